"""Each public method of the clients, of pyspark_rmq and of the business kit over a cluster, for docs/cluster.md.

A method that is public and has no row here fails a test. Change the row where the method changes.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Final

_SAME = "same"

_OF_PRODUCERS: Final = (
    "shutdown", "fetch_publish_message_queues", "check", "send", "send_batch", "send_async", "send_oneway",
)  # fmt: skip

CLIENTS: Final = ("Producer", "PushConsumer", "LitePullConsumer", "SimpleConsumer", "TransactionProducer")

METHODS: Final[dict[str, str]] = {
    # -- rmq_store.client
    "Producer.start": _SAME,
    "Producer.shutdown": _SAME,
    "Producer.fetch_publish_message_queues": "differs: queues of several brokers, at most 30 s old",
    "Producer.check": _SAME,
    "Producer.send": "differs: a send whose answer is lost may be stored, and is repeated: at least once",
    "Producer.send_batch": "differs: as `send`",
    "Producer.send_async": "differs: as `send`",
    "Producer.send_oneway": "differs: nobody learns whether a broker has stored the message",
    "Producer.recall_message": (
        "differs: a broker needs `recallMessageEnable`, and answers with success also when the message was delivered. "
        "A served store answers as a store"
    ),
    "TransactionProducer.recall_message": "differs: as that of `Producer`",
    "TransactionProducer.start": "differs: the group is registered at the brokers, which ask it",
    "TransactionProducer.send_message_in_transaction": "differs: the end has no answer; a broker asks if it is lost",
    **dict.fromkeys((f"TransactionProducer.{name}" for name in _OF_PRODUCERS), "differs: as `Producer`"),
    "PushConsumer.start": _SAME,
    "PushConsumer.shutdown": _SAME,
    "PushConsumer.subscribe": _SAME,
    "PushConsumer.unsubscribe": _SAME,
    "PushConsumer.register_message_listener": _SAME,
    "PushConsumer.run_once": "differs: False means that no answer has come yet, and not that no message is left",
    "PushConsumer.failure": _SAME,
    "PushConsumer.suspend": _SAME,
    "PushConsumer.resume": _SAME,
    "PushConsumer.queues": _SAME,
    "PushConsumer.persist_consumer_offset": "differs: a broker writes offsets to its disk every 5 s",
    "LitePullConsumer.start": _SAME,
    "LitePullConsumer.shutdown": _SAME,
    "LitePullConsumer.subscribe": _SAME,
    "LitePullConsumer.unsubscribe": _SAME,
    "LitePullConsumer.assign": _SAME,
    "LitePullConsumer.assignment": _SAME,
    "LitePullConsumer.set_sub_expression_for_assign": _SAME,
    "LitePullConsumer.poll": _SAME,
    "LitePullConsumer.pause": _SAME,
    "LitePullConsumer.resume": _SAME,
    "LitePullConsumer.seek": _SAME,
    "LitePullConsumer.seek_to_begin": _SAME,
    "LitePullConsumer.seek_to_end": _SAME,
    "LitePullConsumer.commit": "differs: a broker writes offsets to its disk every 5 s",
    "LitePullConsumer.committed": _SAME,
    "LitePullConsumer.fetch_message_queues": "differs: queues of several brokers, at most 30 s old",
    "LitePullConsumer.offset_for_timestamp": _SAME,
    "SimpleConsumer.receive": "differs: brokers of 5.x only, because 4.9 has no POP",
    "SimpleConsumer.receive_async": "differs: as `receive`",
    "SimpleConsumer.ack": "differs: as `receive`",
    "SimpleConsumer.ack_async": "differs: as `receive`",
    "SimpleConsumer.change_invisible_duration": "differs: as `receive`",
    "SimpleConsumer.change_invisible_duration_async": "differs: as `receive`",
    "SimpleConsumer.subscribe": _SAME,
    "SimpleConsumer.unsubscribe": _SAME,
    "SimpleConsumer.subscription_expressions": _SAME,
    "SimpleConsumer.close": _SAME,
    # -- pyspark_rmq
    "pyspark_rmq.register": _SAME,
    "pyspark_rmq.consume": "differs: `options` name the cluster, in place of `path`. No marker says that a batch is "
    "done: a repetition runs the handler for all rows, and leaves out what is sent back. Brokers are told the maximum "
    "of retries with each message",
    "pyspark_rmq.redrive": "differs: `options` name the cluster, in place of `path`, and `brokerName` names a letter, "
    "too. Effectively once, by records in the topic `PYRMQ_REDRIVEN`",
    "pyspark_rmq.write_once": "differs: keep the column `brokerName`, as logs of two brokers have the same offsets",
    "pyspark_rmq.failure": _SAME,
    "pyspark_rmq.FloodBreaker": _SAME,
    "pyspark_rmq.SparkIdempotency": "differs: waits between tries count as with the default delay levels, whatever "
    "the brokers have configured",
    "pyspark_rmq.GroupListener": _SAME,
    "pyspark_rmq.commit_groups": _SAME,
    "pyspark_rmq.LagListener": "differs: lag comes from the progress of the query, in messages and not in seconds",
    # -- the rest
    "rmq_store.Store": "refused: a store is a directory; the clients take both",
    "rmq_store.reliable": _SAME,
    "rmq_store.bridge": "differs: a broker is mirrored into Kafka; mirrors into RocketMQ need a store",
}


def public_methods() -> Iterator[str]:
    """The names that need a row."""
    import pyspark_rmq
    from rmq_store import client

    for name in CLIENTS:
        kind = getattr(client, name, None)
        if kind is not None:
            yield from (f"{name}.{method}" for method in dir(kind) if not method.startswith("_"))
    modules = {"DefaultSource", "Any"}  # the data source itself, and an import
    for name in dir(pyspark_rmq):
        found = getattr(pyspark_rmq, name, None)
        is_ours = getattr(found, "__module__", "").startswith("pyspark_rmq")
        is_error = inspect.isclass(found) and (issubclass(found, BaseException) or name == "Failure")
        if not name.startswith("_") and callable(found) and is_ours and not is_error and name not in modules:
            yield f"pyspark_rmq.{name}"
    yield from ("rmq_store.Store", "rmq_store.reliable", "rmq_store.bridge")
