"""`with` and clients: start() is allowed in the block of a producer, which has done so, and no consumer is idle in
silence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_store import Message, Store, UsageError
from rmq_store.client import (
    ConsumeConcurrentlyStatus,
    LitePullConsumer,
    LocalTransactionState,
    MessageListenerConcurrently,
    Producer,
    PushConsumer,
    TransactionListener,
    TransactionProducer,
)
from rmq_store.protocol.errors import MQClientError

IDLE = "consumer group 'cg': it was never started, so it got no messages; call start"
Make = Callable[[], Any]


@pytest.fixture
def store(scratch: Path) -> Iterator[Store]:
    with Store.open(scratch / "store", create=True) as opened:
        opened.create_topic("T", 1)
        opened.send(Message("T", b"x"))
        yield opened


def set_up(consumer: PushConsumer | LitePullConsumer) -> None:
    consumer.subscribe("T")
    if isinstance(consumer, PushConsumer):
        done = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
        consumer.register_message_listener(MessageListenerConcurrently(lambda messages, context: done))


@pytest.fixture(params=[PushConsumer, LitePullConsumer])
def make(request: pytest.FixtureRequest, store: Store) -> Make:
    return lambda: request.param("cg", store)


@pytest.mark.parametrize("is_set_up_before", [True, False])
def test_a_consumer_is_started_in_its_block(make: Make, is_set_up_before: bool) -> None:
    consumer = make()
    if is_set_up_before:
        set_up(consumer)
    with consumer:
        if not is_set_up_before:
            set_up(consumer)
        consumer.start(threads=False)
        assert consumer._state == "running"


def test_one_that_nobody_starts_is_an_error(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UsageError, match=IDLE), make() as consumer:
        set_up(consumer)
    assert consumer._state == "ended"
    with caplog.at_level(logging.WARNING), pytest.raises(KeyboardInterrupt), make() as consumer:
        set_up(consumer)
        raise KeyboardInterrupt
    assert IDLE in caplog.text
    with make() as consumer:  # nothing was wanted of it
        pass


@pytest.mark.parametrize("kind", ["plain", "transactions"])
def test_a_producer_may_be_started_in_its_block_and_before_it(store: Store, kind: str) -> None:
    class Listener(TransactionListener):
        def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
            return LocalTransactionState.COMMIT_MESSAGE

        def check_local_transaction(self, message: Any) -> LocalTransactionState:
            return LocalTransactionState.COMMIT_MESSAGE

    def made() -> Producer:
        return Producer("pg", store) if kind == "plain" else TransactionProducer("pg", store, listener=Listener())

    with made() as producer:
        producer.start()
        producer.send(Message("T", b"1"))
    started = made()
    started.start()
    with started:
        started.send(Message("T", b"2"))
        with pytest.raises(MQClientError, match="cannot be started: RUNNING"):
            started.start()
    with pytest.raises(MQClientError, match="cannot be started: SHUTDOWN_ALREADY"), started:
        pass
