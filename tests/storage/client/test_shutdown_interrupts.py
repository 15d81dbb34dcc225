"""Ctrl-C in the middle of a client's shutdown: repeated, it leaves the group and closes the store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.interrupts import interrupted
from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.metadata.leases import live_leases
from rmq_store.client.consume_service.listener import ConsumeConcurrentlyStatus, MessageListenerConcurrently
from rmq_store.client.consumer.lite_pull_consumer import LitePullConsumer
from rmq_store.client.consumer.push_consumer import PushConsumer
from rmq_store.client.group.consumer_config import PushConsumerConfig
from rmq_store.client.producer.producer import Producer
from rmq_store.files.locks.lock import OfdLock

PLACES_MAX = 20_000


def pushing(root: Path) -> PushConsumer:
    consumer = PushConsumer("g", root, PushConsumerConfig(consume_thread_nums=2, poll_interval_millis=1))
    consumer.subscribe("T")
    consumer.register_message_listener(
        MessageListenerConcurrently(lambda messages, context: ConsumeConcurrentlyStatus.CONSUME_SUCCESS)
    )
    consumer.start()
    return consumer


def pulling(root: Path) -> LitePullConsumer:
    consumer = LitePullConsumer("g", root)
    consumer.subscribe("T")
    consumer.start()
    return consumer


def producing(root: Path) -> Producer:
    producer = Producer("p", root)
    producer.start()
    producer.send_async(Message("T", b"x")).result()
    return producer


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 41])
@pytest.mark.parametrize("start", [pushing, pulling, producing])
def test_a_shutdown_that_ctrl_c_ends_at_any_place_can_be_repeated(
    scratch: Path, small: StoreConfig, start: Callable[[Path], Any], every: int
) -> None:
    root = scratch / "store"
    with Store.open(root, create=True, config=small) as store:
        store.create_topic("T", queue_count=1)
    for k in range(1, PLACES_MAX, every):
        consumer = start(root)
        signal = interrupted(k, consumer.shutdown)
        consumer.shutdown()
        assert live_leases(root, "g") == [], signal.where
        assert OfdLock(root / "lock").who().kind == "free", signal.where
        if not signal.came:
            break
    assert k > 100
