"""Consumers, and what they send back, beside RocketMQ's client on a broker of the same machine."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.case import Case, Pair, Target
from bench.messages import BODY_BYTES, TOPIC
from bench.peer import Cluster
from bench.scratch import Scratch
from bench.stores import QUEUES, make
from rmq_store import Store
from rmq_store.client import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    MessageListenerArrow,
    MessageListenerConcurrently,
    PushConsumer,
    PushConsumerConfig,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CONSUMED = 200_000
JAVA_CONSUMED = {100: 1_000_000, 1024: 400_000}
BATCH = 32
ARROW_BATCH = 1024
PULL_THRESHOLD = 10_000
SENT_BACK = 100_000
SENDERS = 16
DELAY_LEVEL = 18
GROUP = "cg_bench"
DEADLINE_S = 120

# So that a pull of a thousand messages would not be cut short.
BROKER_SETTINGS = {
    f"maxTransfer{kind}OnMessageIn{place}": limit
    for kind, limit in (("Count", 1000), ("Bytes", 16 << 20))
    for place in ("Memory", "Disk")
}
_JAVA = (
    "RocketMQ 5.5.0 on loopback, name server, broker (2 GiB) and client in JVMs of their own (G1), ASYNC_FLUSH, "
    "defaults but for maxTransferCount 1,000 and maxTransferBytes 16 MiB."
)
_PUSHED = (
    f"{QUEUES} queues, a new group each time, 20 threads, pullThresholdForQueue {PULL_THRESHOLD:,}. Rate from the "
    "first message that the listener sees to the last."
)
_PUSH_LIMIT = (
    "Python runs one thread at a time. Of 5 us for a message, reading the store is two fifths and making the object a "
    "third. The work around a call of the listener is a quarter, 40 us for 32 messages. A listener for each message "
    "pays that for each message."
)
_group_numbers = itertools.count()


def new_group() -> str:
    """A group that has consumed nothing yet."""
    return f"{GROUP}_{next(_group_numbers)}"


class Seen:
    """A listener that counts, and keeps the times of the first and of the last of `count` messages."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._seen = 0
        self._first_s = 0.0
        self._last_s = 0.0
        self._done = threading.Event()

    def __call__(self, messages: Sequence[Any], context: object) -> ConsumeConcurrentlyStatus:
        with self._lock:
            if not self._seen:
                self._first_s = time.perf_counter()
            self._seen += len(messages)
            if self._seen == self._count:
                self._last_s = time.perf_counter()
                self._done.set()
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    def rate(self) -> float:
        """Messages per second from the first to the last, for which it waits."""
        if not self._done.wait(DEADLINE_S):
            raise TimeoutError(f"{self._seen} of {self._count} messages came")
        return self._count / (self._last_s - self._first_s)


def push_rate(store: Store, count: int, batch: int, *, arrow: bool) -> float:
    """Messages per second that a listener of a new group gets, `batch` at a time; as rows with `arrow`."""
    config = PushConsumerConfig(
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        consume_message_batch_max_size=batch,
        pull_batch_size=batch if arrow else BATCH,
        pull_threshold_for_queue=PULL_THRESHOLD,
    )
    seen = Seen(count)
    with PushConsumer(new_group(), store, config) as consumer:
        consumer.subscribe(TOPIC)
        consumer.register_message_listener((MessageListenerArrow if arrow else MessageListenerConcurrently)(seen))
        consumer.start()
        return seen.rate()


def ask_client(cluster: Cluster, command: str, group: str, topic: str, **fields: object) -> float:
    """Let Java's client do something; returns a rate."""
    options = {"pullBatch": BATCH, "consumeBatch": BATCH} | fields
    done = cluster.client.ask(command, namesrv=cluster.name_server, group=group, topic=topic, **options)
    return float(done.get("rate", 0.0))


@contextlib.contextmanager
def pushing(scratch: Scratch, body_bytes: int, batch: int, *, arrow: bool = False) -> Iterator[Pair]:
    """Messages per second."""
    java_count = scratch.rows(JAVA_CONSUMED[body_bytes])
    count = java_count if arrow else scratch.rows(CONSUMED)
    root = make(scratch.directory / "store", count, body_bytes, scratch)
    with (
        scratch.peer().cluster(scratch.directory / "broker", **BROKER_SETTINGS) as cluster,
        Store.open(root) as store,
    ):
        cluster.broker.ask("broker.fill", topic=TOPIC, queues=QUEUES, bodyBytes=body_bytes, count=java_count)

        def yardstick() -> float:
            return ask_client(cluster, "client.push", new_group(), TOPIC, count=java_count)

        yardstick()  # the client is slow until it is compiled
        yield Pair(partial(push_rate, store, count, batch, arrow=arrow), yardstick)


@contextlib.contextmanager
def sending_back(scratch: Scratch) -> Iterator[Pair]:
    """Messages per second."""
    count, body_bytes = scratch.rows(SENT_BACK), BODY_BYTES[1]
    root = make(scratch.directory / "store", count, body_bytes, scratch)
    failed = _failed_rows(scratch, str(root))
    with scratch.peer().cluster(scratch.directory / "broker", **BROKER_SETTINGS) as cluster:
        fill = partial(cluster.broker.ask, "broker.fill", bodyBytes=body_bytes)
        fill(topic=TOPIC, queues=QUEUES, count=count)
        fill(topic="Empty", queues=1, count=0)
        ask_client(cluster, "client.take", new_group(), TOPIC, count=count)

        def ours() -> float:
            begin = time.perf_counter()
            failed.write.format("rmq").mode("append").options(path=str(root), sendBack=GROUP).save()
            return count / (time.perf_counter() - begin)

        def yardstick() -> float:
            sending = {"broker": cluster.broker_name, "threads": SENDERS, "delayLevel": DELAY_LEVEL}
            return ask_client(cluster, "client.sendBack", GROUP, "Empty", **sending)

        yield Pair(ours, yardstick)
    failed.unpersist()


def _failed_rows(scratch: Scratch, path: str) -> DataFrame:
    """What a job keeps of rows that failed, in Spark's memory."""
    from pyspark.sql import functions as fn

    rows = scratch.spark().read.format("rmq").options(path=path, subscribe=TOPIC).load()
    failed = rows.select("commitLogOffset", "msgId", fn.lit(DELAY_LEVEL).alias("delayLevel")).cache()
    failed.count()
    return failed


CASES = (
    *(
        Case(
            name=f"java-push-{kind}-{body_bytes}",
            title=f"push consumer, Python listener for {'each message' if batch == 1 else f'batches of {batch}'}",
            group="push consumer",
            body_bytes=body_bytes,
            yardstick=f"Java's push consumer, batches of {BATCH}",
            unit="msgs/s",
            target=None if batch == 1 else Target(1),
            settings=(
                f"{CONSUMED:,} messages of ours, {JAVA_CONSUMED[body_bytes]:,} of Java's; pull batch {BATCH}.",
                _PUSHED,
                _JAVA,
            ),
            prepare=partial(pushing, body_bytes=body_bytes, batch=batch),
            limit=_PUSH_LIMIT,
            peers=True,
        )
        for kind, batch, body_bytes in (
            ("message", 1, BODY_BYTES[0]),
            *(("batch", BATCH, body_bytes) for body_bytes in BODY_BYTES),
        )
    ),
    *(
        Case(
            name=f"java-push-arrow-{body_bytes}",
            title=f"push consumer, Arrow listener for batches of up to {ARROW_BATCH:,}",
            group="push consumer",
            body_bytes=body_bytes,
            yardstick=f"Java's push consumer, batches of {BATCH}",
            unit="msgs/s",
            target=Target(1),
            settings=(
                f"{JAVA_CONSUMED[body_bytes]:,} messages on both sides; ours a `MessageListenerArrow` that counts "
                f"rows, pull batch and batches of {ARROW_BATCH:,}. Java gets objects, {BATCH} at a time (pull "
                "batch and batches).",
                _PUSHED,
                _JAVA,
            ),
            prepare=partial(pushing, body_bytes=body_bytes, batch=ARROW_BATCH, arrow=True),
            limit="One thread pulls: that is nine tenths of the work, one read of the store for each pull.",
            peers=True,
        )
        for body_bytes in BODY_BYTES
    ),
    Case(
        name="java-send-back",
        title="send-back of failed rows from Spark",
        group="send back",
        body_bytes=BODY_BYTES[1],
        yardstick=f"Java client's sendMessageBack, {SENDERS} threads",
        unit="msgs/s",
        target=Target(20),
        settings=(
            f"{SENT_BACK:,} messages, level {DELAY_LEVEL}; ours a batch write with the option `sendBack` of cached "
            "rows of commitLogOffset and msgId, local[2], 4 partitions, from the call to its return.",
            _JAVA,
        ),
        prepare=sending_back,
        limit=(
            "Spark: the null sink alone takes 0.23 to 0.33 s for these rows, 12 to 17 times Java's speed. Ours adds "
            "tasks of 0.3 s (6 us of a processor for each message: checksums are checked, and the message is copied "
            "with other properties) and a commit of 0.14 s."
        ),
        peers=True,
    ),
)
