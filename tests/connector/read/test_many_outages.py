"""A hundred outages of a broker leave no thread, no descriptor and no memory behind: a stream with a group, alone and
beside members of two more groups, at a simulated cluster over sockets.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from helpers.cluster.simulated import SimulatedCluster
from pyspark_rmq.read.stream_reader import RmqStreamReader
from rmq_store.client import (
    ConsumeConcurrentlyStatus,
    LitePullConsumer,
    LitePullConsumerConfig,
    MessageListenerConcurrently,
    PushConsumer,
    PushConsumerConfig,
)

from ..planned_batches import LIMIT, planned, through_spark
from .test_away_over_sockets import leave, stand_still, stop

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

OUTAGES, LEARNING = 100, 10
GOES = "broker-001"
DEADLINE_S = 60.0
FEW_BYTES = 300_000
FROM_FIRST: Any = {"consume_from_where": "CONSUME_FROM_FIRST_OFFSET"}


class Used(NamedTuple):
    threads: int
    descriptors: int
    heap_bytes: int


def used() -> Used:
    gc.collect()
    descriptors = sum(1 for _ in Path("/proc/self/fd").iterdir())
    return Used(threading.active_count(), descriptors, tracemalloc.get_traced_memory()[0])


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(brokers=2) as made:
        made.create_topic("T", 1, 10)
        for broker in made.brokers.values():
            broker.groups |= {"cg_stream", "cg_push", "cg_lite"}
        yield made


@pytest.fixture
def reader(cluster: SimulatedCluster, over_sockets: Callable[..., RmqStreamReader]) -> RmqStreamReader:
    return over_sockets(cluster, group="cg_stream")


@pytest.fixture(params=[False, True], ids=["alone", "with members"])
def got(cluster: SimulatedCluster, request: pytest.FixtureRequest) -> Iterator[list[set[tuple[str, int]]]]:
    """What two members have got: (broker, queue offset); nothing if there are none."""
    if not request.param:
        yield []
        return
    pushed: set[tuple[str, int]] = set()
    polled: set[tuple[str, int]] = set()
    place = f"rmq://{cluster.name_server}"
    push = PushConsumer("cg_push", place, PushConsumerConfig(**FROM_FIRST))
    lite = LitePullConsumer("cg_lite", place, LitePullConsumerConfig(**FROM_FIRST))

    def handle(messages: Any, context: object) -> ConsumeConcurrentlyStatus:
        pushed.update((message.broker_name, message.queue_offset) for message in messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    over = threading.Event()

    def poll() -> None:
        while not over.is_set():
            polled.update((message.broker_name, message.queue_offset) for message in lite.poll(100))

    push.subscribe("T")
    push.register_message_listener(MessageListenerConcurrently(handle))
    lite.subscribe("T")
    with push, lite:
        push.start()
        lite.start()
        thread = threading.Thread(target=poll)
        thread.start()
        yield [pushed, polled]
        over.set()
        thread.join()


def test_a_hundred_outages_leave_nothing_behind(
    cluster: SimulatedCluster,
    reader: RmqStreamReader,
    got: list[set[tuple[str, int]]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    # A member has the answer to a lost pull, and a route, only after 30 s.
    ways = (stop,) if got else (stop, leave, stand_still)
    position = through_spark(reader.initialOffset())
    read: set[tuple[str, int]] = set()

    def trigger() -> None:
        nonlocal position
        start, position = position, through_spark(reader.latestOffset(position, LIMIT))
        if position != start:
            for _, queue_id, first, last in planned(reader, start, position):
                read.update((queue_id.broker_name, offset) for offset in range(first, last))

    def until(fulfilled: Callable[[], bool]) -> None:
        until_s = time.monotonic() + DEADLINE_S
        while not fulfilled():
            assert time.monotonic() < until_s, (position, [len(one) for one in got])
            trigger()
            time.sleep(0.02)

    queues = {name: broker.queues.topics["T"][0] for name, broker in cluster.brokers.items()}

    def send() -> set[tuple[str, int]]:
        """One more message to each broker."""
        for queue in queues.values():
            queue.generated += 1
        return {(name, queue.generated - 1) for name, queue in queues.items()}

    def everybody_has(messages: set[tuple[str, int]]) -> bool:
        return all(messages <= those for those in (read, *got))

    def outage(goes: Callable[[SimulatedCluster], Callable[[], None]]) -> None:
        comes_back = goes(cluster)
        sent = send()
        until(lambda: everybody_has({one for one in sent if one[0] != GOES}))
        comes_back()
        until(lambda: everybody_has(sent))
        # What the helpers keep is no memory of ours; nor is what pytest keeps of the warnings.
        for server in (cluster.server, *(broker.server for broker in cluster.brokers.values())):
            for one in (server, *server.connections):
                one.requests.clear()

    sent = send()
    until(lambda: everybody_has(sent))
    tracemalloc.start()
    try:
        for number in range(LEARNING):
            outage(ways[number % len(ways)])
        before = used()
        for number in range(OUTAGES):
            outage(ways[number % len(ways)])
        after = used()
    finally:
        tracemalloc.stop()
    assert after.threads <= before.threads, (before, after)
    assert after.descriptors <= before.descriptors, (before, after)
    # Each message that was read is a pair in three sets here.
    assert after.heap_bytes - before.heap_bytes < FEW_BYTES, (before, after)
