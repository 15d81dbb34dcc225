"""A signal handler that uses a consumer in the middle of its own thread's use: refused, or as if between two calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from helpers.interrupts import Signal
from rmq_store import Message, Store, StoreConfig, UsageError
from rmq_store.broker.metadata.leases import live_leases
from rmq_store.client.consume_service.listener import ConsumeConcurrentlyStatus, MessageListenerConcurrently
from rmq_store.client.consumer.lite_pull_consumer import LitePullConsumer
from rmq_store.client.consumer.push_consumer import PushConsumer
from rmq_store.client.group.consumer_config import ConsumeFromWhere, LitePullConsumerConfig, PushConsumerConfig
from rmq_store.files.locks.lock import OfdLock

PLACES_MAX = 5_000
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@pytest.fixture
def root(scratch: Path, small: StoreConfig) -> Path:
    with Store.open(scratch / "store", create=True, config=small) as store:
        store.create_topic("T", queue_count=1)
    return scratch / "store"


def sent(root: Path, count: int) -> list[bytes]:
    bodies = [b"%d" % number for number in range(count)]
    with Store.open(root) as store:
        for body in bodies:
            store.send(Message("T", body))
    return bodies


class Handler:
    """Does something, and keeps whether it was refused."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._act = act
        self.refused = False

    def __call__(self) -> None:
        try:
            self._act()
        except UsageError:
            self.refused = True


@pytest.mark.parametrize("every", [pytest.param(5, marks=pytest.mark.slow), 31])
def test_a_poll_within_a_poll_is_refused_or_takes_the_next_messages(root: Path, every: int) -> None:
    bodies = sent(root, 3)
    refused = passed = 0
    for k in range(1, PLACES_MAX, every):
        config = LitePullConsumerConfig(consume_from_where=FIRST, pull_batch_size=1, auto_commit=False)
        got: list[bytes] = []
        with LitePullConsumer(f"g{k}", root, config) as consumer:
            consumer.subscribe("T")
            consumer.start(threads=False)

            def poll(consumer: LitePullConsumer = consumer, got: list[bytes] = got) -> None:
                got.extend(message.body for message in consumer.poll(0))

            handler = Handler(poll)
            with Signal(k, handler) as signal:
                poll()
            while len(got) < len(bodies):
                before = len(got)
                poll()
                assert len(got) > before, signal.where
        assert sorted(got) == bodies, signal.where
        refused += handler.refused
        passed += signal.came and not handler.refused
        if not signal.came:
            break
    assert not signal.came
    assert refused > 20 // every
    assert passed > 0


def pushing(group: str, root: Path, got: list[bytes]) -> PushConsumer:
    def listen(messages: Any, context: Any) -> ConsumeConcurrentlyStatus:
        got.extend(message.body for message in messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    consumer = PushConsumer(group, root, PushConsumerConfig(consume_from_where=FIRST))
    consumer.subscribe("T")
    consumer.register_message_listener(MessageListenerConcurrently(listen))
    consumer.start(threads=False)
    return consumer


@pytest.mark.long
@pytest.mark.parametrize("act", ["run_once", "subscribe"])
@pytest.mark.parametrize("every", [pytest.param(5, marks=pytest.mark.slow), 31])
def test_a_handler_within_a_round_is_refused_or_leaves_a_sound_consumer(root: Path, act: str, every: int) -> None:
    bodies = sent(root, 3)
    refused = 0
    for k in range(1, PLACES_MAX, every):
        got: list[bytes] = []
        with pushing(f"g{k}", root, got) as consumer:
            handler = Handler(consumer.run_once if act == "run_once" else partial(consumer.subscribe, "U"))
            with Signal(k, handler) as signal:
                consumer.run_once()
            while consumer.run_once():
                pass
        assert sorted(got) == bodies, signal.where
        refused += handler.refused
        if not signal.came:
            break
    assert not signal.came
    assert refused > 0 or (act == "subscribe" and every > 5)  # which is short


@pytest.mark.long
@pytest.mark.parametrize("every", [pytest.param(5, marks=pytest.mark.slow), 31])
def test_a_shutdown_within_a_round_is_refused_or_leaves_the_rest_to_others(root: Path, every: int) -> None:
    bodies = sent(root, 3)
    refused = ended = 0
    for k in range(1, PLACES_MAX, every):
        got: list[bytes] = []
        consumer = pushing(f"g{k}", root, got)
        handler = Handler(consumer.shutdown)
        with Signal(k, handler) as signal, suppress(UsageError):  # the round, of a consumer that is not running
            consumer.run_once()
        consumer.shutdown()
        assert live_leases(root, f"g{k}") == [], signal.where
        assert OfdLock(root / "lock").who().kind == "free", signal.where
        with pushing(f"g{k}", root, got) as other:
            while other.run_once():
                pass
        assert set(got) == set(bodies), signal.where
        refused += handler.refused
        ended += signal.came and not handler.refused
        if not signal.came:
            break
    assert not signal.came
    assert refused > 0
    assert ended > 0
