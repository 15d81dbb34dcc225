"""Whatever a caller passes to a client, an error is one of ours, and the client goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmq_store import Store, StoreError, UsageError
from rmq_store.client import (
    ConsumeConcurrentlyStatus,
    LitePullConsumer,
    LitePullConsumerConfig,
    LocalBackend,
    Message,
    MessageListenerConcurrently,
    MessageQueue,
    Producer,
    ProducerConfig,
    PushConsumer,
    PushConsumerConfig,
    SimpleConsumer,
)

WRONG: list[Any] = [
    None, b"x", "x", "", 1.5, float("nan"), True, -1, 0, 2**63, 2**70, [], [1], ["x"], [None], {}, {"x": 1}, object(),
    "\ud800", "a\0b", "x" * 5000, (1, 2), np.int64(0), Path("x"), Message("T", b""), MessageQueue("T", "other", 0),
    MessageQueue("T", "rmq-embedded", 9), MessageQueue("T", "rmq-embedded", -1), timedelta(-1), timedelta.max,
]  # fmt: skip

QUEUE = MessageQueue("T", "rmq-embedded", 0)


def try_each(call: Callable[..., Any], right: Mapping[str, Any]) -> None:
    """Call with each argument wrong in each way, the others right: it works, or the error is one of ours."""
    call(**right)
    for name in right:
        for wrong in WRONG:
            try:
                call(**{**right, name: wrong})
            except StoreError:
                pass
            except Exception as error:
                raise AssertionError(f"{call}: {name}={wrong!r}") from error


@pytest.fixture
def store(scratch: Path) -> Iterator[Store]:
    with Store.open(scratch / "store", create=True) as store:
        store.create_topic("T", queue_count=2)
        store.create_topic("x", queue_count=1)
        yield store


def test_a_producer_refuses_wrong_values_and_goes_on(store: Store) -> None:
    with Producer("pg", store) as producer:
        message = Message("T", b"x")

        def sent(**arguments: Any) -> None:
            producer.send_async(**arguments).result(timeout=30)

        right = {"message": message, "timeout": 3000, "queue": QUEUE}
        try_each(producer.send, right)
        try_each(producer.send, {**right, "queue": None, "selector": lambda queues, message, arg: queues[0], "arg": 1})
        try_each(producer.send_batch, {"messages": [message], "timeout": 3000, "queue": QUEUE})
        try_each(producer.send_oneway, {"message": message, "queue": QUEUE})
        try_each(sent, {**right, "on_success": None, "on_exception": None})
        try_each(producer.fetch_publish_message_queues, {"topic": "T"})
        for field in Message.__dataclass_fields__:
            for wrong in WRONG:
                bad = Message(**{"topic": "T", "body": b"x", field: wrong})
                for call in (producer.send, lambda one: producer.send_batch([one]), producer.send_oneway):
                    try:
                        call(bad)
                    except StoreError:
                        pass
        with pytest.raises(UsageError, match="queue_id='0' is str, not int"):
            producer.send(Message("T", b"x", queue_id="0"))  # type: ignore[arg-type]
        before = store.queue_range("T", 0).max_offset
        assert producer.send(message, queue=QUEUE).queue_offset == before


@pytest.mark.parametrize("kind", [Producer, PushConsumer, LitePullConsumer, SimpleConsumer])
def test_a_client_is_not_made_of_wrong_values(store: Store, kind: Any) -> None:
    lite_pull = LitePullConsumerConfig()
    right: dict[Any, dict[str, Any]] = {
        Producer: {"group": "g", "backend": store, "config": ProducerConfig()},
        PushConsumer: {"consumer_group": "g", "backend": store, "config": PushConsumerConfig(), "client_id": "c"},
        LitePullConsumer: {"consumer_group": "g", "backend": store, "config": lite_pull, "client_id": "c"},
        SimpleConsumer: {
            "consumer_group": "g", "backend": store, "subscription_expressions": {"T": "*"},
            "await_duration": timedelta(seconds=1), "consume_from_where": "CONSUME_FROM_LAST_OFFSET",
            "max_delivery_attempts": 3,
        },
    }  # fmt: skip

    def made(**arguments: Any) -> None:
        client = kind(**arguments)
        if kind is Producer:
            with client:
                pass
        elif kind is SimpleConsumer:
            client.close()
        else:
            client.shutdown()

    try_each(made, right[kind])


@pytest.mark.parametrize("kind", [ProducerConfig, PushConsumerConfig, LitePullConsumerConfig])
def test_settings_of_wrong_types_are_refused(kind: Any) -> None:
    for field in kind.__dataclass_fields__:
        for wrong in WRONG:
            try:
                kind(**{field: wrong})
            except StoreError:
                pass
    with pytest.raises(UsageError, match="True"):
        kind(**{"auto_commit_interval_millis" if kind is LitePullConsumerConfig else "pull_interval"
                if kind is PushConsumerConfig else "send_msg_timeout": True})  # fmt: skip


def test_a_push_consumer_refuses_wrong_values(store: Store) -> None:
    consumer = PushConsumer("g", store)
    try_each(consumer.subscribe, {"topic": "T", "selector": "*"})
    try_each(consumer.unsubscribe, {"topic": "x"})
    listener = MessageListenerConcurrently(lambda messages, context: ConsumeConcurrentlyStatus.CONSUME_SUCCESS)
    try_each(consumer.register_message_listener, {"listener": listener})
    for wrong in (None, "x", 1.5, 1):
        with pytest.raises(UsageError, match="threads"):
            consumer.start(threads=wrong)  # type: ignore[arg-type]
    consumer.shutdown()


@pytest.mark.long
def test_a_lite_pull_consumer_refuses_wrong_values(store: Store) -> None:
    with Producer("pg", store) as producer:
        producer.send(Message("T", b"x"), queue=QUEUE)
    consumer = LitePullConsumer("g", store)
    try_each(consumer.set_sub_expression_for_assign, {"topic": "x", "selector": "*"})
    try_each(consumer.assign, {"queues": [QUEUE]})
    consumer.assign([QUEUE])
    consumer.start(threads=False)
    try_each(consumer.fetch_message_queues, {"topic": "T"})
    try_each(consumer.poll, {"timeout_millis": 1})
    try_each(consumer.seek, {"queue": QUEUE, "offset": 0})
    try_each(consumer.seek_to_begin, {"queue": QUEUE})
    try_each(consumer.seek_to_end, {"queue": QUEUE})
    try_each(consumer.pause, {"queues": [QUEUE]})
    try_each(consumer.resume, {"queues": [QUEUE]})
    try_each(consumer.offset_for_timestamp, {"queue": QUEUE, "timestamp_ms": 5})
    try_each(consumer.committed, {"queue": QUEUE})
    try_each(consumer.commit, {"offsets": {QUEUE: 0}, "persist": True})
    consumer.shutdown()
    other = LitePullConsumer("g2", store)
    try_each(other.subscribe, {"topic": "T", "selector": "*"})
    try_each(other.unsubscribe, {"topic": "x"})
    other.shutdown()


def test_a_simple_consumer_refuses_wrong_values(store: Store) -> None:
    with Producer("pg", store) as producer:
        producer.send(Message("T", b"x"), queue=QUEUE)
    consumer = SimpleConsumer("g", store, {"T": "*"}, await_duration=timedelta(milliseconds=1))
    try_each(consumer.subscribe, {"topic": "T", "filter_expression": "*"})
    try_each(consumer.unsubscribe, {"topic": "x"})
    try_each(consumer.receive, {"max_message_num": 1, "invisible_duration": timedelta(seconds=10)})
    consumer.subscribe("T")
    for wrong in WRONG:
        for call in (consumer.ack, lambda view: consumer.change_invisible_duration(view, timedelta(seconds=10))):
            with pytest.raises(StoreError):
                call(wrong)
    consumer.close()


def test_a_choice_may_be_given_as_its_text(store: Store) -> None:
    where: Any = "CONSUME_FROM_FIRST_OFFSET"
    with Producer("pg", store) as producer:
        producer.send(Message("T", b"x"), queue=QUEUE)
        producer.send(Message("T", b"y"), queue=QUEUE)
    consumer = SimpleConsumer("g", store, {"T": "*"}, consume_from_where=where)
    assert consumer.receive(1, timedelta(seconds=10))[0].body == b"x"
    consumer.close()
    with pytest.raises(UsageError, match=r"^consume_from_where='elsewhere': one of CONSUME_FROM_LAST_OFFSET, "):
        SimpleConsumer("g", store, {"T": "*"}, consume_from_where="elsewhere")  # type: ignore[arg-type]


def test_what_is_no_place_of_a_store_is_refused(tmp_path: Path) -> None:
    for wrong in (None, 5, b"x", object(), {1: "x"}, {"a": 5}, [5], "a\0b"):
        with pytest.raises(UsageError):
            LocalBackend(wrong)  # type: ignore[arg-type]
