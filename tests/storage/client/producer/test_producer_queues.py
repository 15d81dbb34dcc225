"""Which queue a producer takes, and which brokers it avoids.

Sources: TopicPublishInfo.java, MQFaultStrategy.java, LatencyFaultToleranceImpl.java of 4.x and 5.x; A09 to A11
of docs/conformance.md on isolation and on another broker for a retry.
"""

from __future__ import annotations

import threading

import pytest

from rmq_store import UsageError
from rmq_store.client.backend.queue_selection import (
    ThreadLocalIndex,
    next_queue,
    select_message_queue_by_hash,
)
from rmq_store.client.producer.fault_strategy import LATENCY_TABLES, LatencyPreset, MQFaultStrategy
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.order_conf import queues_of_order_conf

from ..conftest import FakeClock


def queues(*names: str, count: int = 2) -> list[MessageQueue]:
    return [MessageQueue("T", name, queue_id) for name in names for queue_id in range(count)]


def index_at(start: int) -> ThreadLocalIndex:
    """The first look gives queue `start` (modulo their number)."""
    return ThreadLocalIndex(lambda: start - 1)


@pytest.mark.statement("A09")
def test_queues_are_taken_in_turn_from_a_random_one_on() -> None:
    index, all_queues = index_at(4), queues("a", "b", "c")
    taken = [next_queue(all_queues, index) for _ in range(8)]
    assert taken == [all_queues[n % 6] for n in range(4, 12)]


def test_the_index_wraps_at_31_bits() -> None:
    index = ThreadLocalIndex(lambda: 0x7FFFFFFF - 1)
    assert [index.increment_and_get() for _ in range(3)] == [0x7FFFFFFF, 0, 1]


def test_each_thread_has_an_index_of_its_own() -> None:
    starts = iter([10, 500])
    index = ThreadLocalIndex(lambda: next(starts))
    assert index.increment_and_get() == 11
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.extend(index.increment_and_get() for _ in range(2)))
    thread.start()
    thread.join()
    assert seen == [501, 502]
    assert index.increment_and_get() == 12


@pytest.mark.statement("A10")
def test_a_retry_goes_to_the_next_queue_of_another_broker() -> None:
    index, all_queues = index_at(0), queues("a", "b", "c")
    assert next_queue(all_queues, index, "a") == MessageQueue("T", "b", 0)
    assert next_queue(all_queues, index, "b") == MessageQueue("T", "c", 0)
    assert next_queue(all_queues, index, "c") == MessageQueue("T", "a", 0)


@pytest.mark.statement("A10")
def test_with_a_single_broker_a_retry_goes_to_its_next_queue() -> None:
    index, all_queues = index_at(0), queues("a", count=4)
    first = next_queue(all_queues, index)
    second = next_queue(all_queues, index, "a")
    assert first.broker_name == second.broker_name == "a"
    assert first.queue_id != second.queue_id


def test_a_single_queue_is_taken_again() -> None:
    assert next_queue(queues("a", count=1), index_at(0), "a") == MessageQueue("T", "a", 0)


def test_the_same_sharding_key_means_the_same_queue() -> None:
    """SelectMessageQueueByHash: |hashCode % n|; "b" has 98, "Aa" and "BB" both 2112."""
    all_queues = queues("a", count=5)
    assert select_message_queue_by_hash(all_queues, None, "b").queue_id == 98 % 5
    assert select_message_queue_by_hash(all_queues, None, "Aa") == select_message_queue_by_hash(all_queues, None, "BB")
    # hashCode -2147483648, whose absolute value Java's int cannot hold.
    assert select_message_queue_by_hash(all_queues, None, "polygenelubricants").queue_id == 2147483648 % 5


def test_an_order_configuration_names_exactly_the_queues() -> None:
    assert queues_of_order_conf("T", "b:1;a:2") == [
        MessageQueue("T", "b", 0),
        MessageQueue("T", "a", 0),
        MessageQueue("T", "a", 1),
    ]


@pytest.mark.parametrize("text", ["", "a", "a:", "a:x", ":4", "a:4;", "a:-1", "a:²", "a:1000000"])
def test_a_bad_order_configuration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="broker:n"):
        queues_of_order_conf("T", text)


# -- tables ------------------------------------------------------------------------------------------------------------

ROWS_4X = [
    (0, 0), (49, 0), (50, 0), (99, 0), (100, 0), (549, 0), (550, 30_000), (999, 30_000), (1000, 60_000),
    (1999, 60_000), (2000, 120_000), (2999, 120_000), (3000, 180_000), (14_999, 180_000), (15_000, 600_000),
    (10**9, 600_000),
]  # fmt: skip
ROWS_5X = [
    (0, 0), (49, 0), (50, 0), (99, 0), (100, 0), (549, 0), (550, 2_000), (1799, 2_000), (1800, 5_000), (2999, 5_000),
    (3000, 6_000), (4999, 6_000), (5000, 10_000), (14_999, 10_000), (15_000, 30_000), (10**9, 30_000),
]  # fmt: skip


@pytest.mark.parametrize(
    ("preset", "latency_ms", "not_available_ms"),
    [("4.x", *row) for row in ROWS_4X] + [("5.x", *row) for row in ROWS_5X],
)
@pytest.mark.statement("A11")
def test_a_slow_broker_is_avoided_for_the_time_in_the_table(
    clock: FakeClock, preset: LatencyPreset, latency_ms: int, not_available_ms: int
) -> None:
    assert LATENCY_TABLES[preset].not_available_duration_ms(latency_ms) == not_available_ms
    strategy = made(clock, preset)
    strategy.update_fault_item("a", latency_ms, isolation=False)
    assert strategy.is_available("a") is (not_available_ms == 0)
    if not_available_ms:
        clock.advance(not_available_ms - 1)
        assert not strategy.is_available("a")
        clock.advance(1)
        assert strategy.is_available("a")


@pytest.mark.parametrize(("preset", "isolated_ms"), [("4.x", 600_000), ("5.x", 10_000)])
@pytest.mark.statement("A11")
def test_a_failed_broker_is_isolated_however_fast_it_failed(
    clock: FakeClock, preset: LatencyPreset, isolated_ms: int
) -> None:
    strategy = made(clock, preset)
    strategy.update_fault_item("a", 1, isolation=True)
    clock.advance(isolated_ms - 1)
    assert not strategy.is_available("a")
    clock.advance(1)
    assert strategy.is_available("a")


def test_a_later_success_ends_an_isolation_in_4x_only(clock: FakeClock) -> None:
    """4.x overwrites the time, 5.x only moves it later (FaultItem#updateNotAvailableDuration)."""
    for preset, available in (("4.x", True), ("5.x", False)):
        strategy = made(clock, preset)  # type: ignore[arg-type]
        strategy.update_fault_item("a", 20_000, isolation=False)
        strategy.update_fault_item("a", 1, isolation=False)
        assert strategy.is_available("a") is available
    strategy.update_fault_item("a", 600, isolation=False)  # 2 s from now, less than what is left of 30 s
    clock.advance(29_999)
    assert not strategy.is_available("a")


def made(clock: FakeClock, preset: LatencyPreset, *, enable: bool = True) -> MQFaultStrategy:
    return MQFaultStrategy(
        preset, send_latency_fault_enable=enable, timer=clock.exact, random_start=lambda: 0
    )


@pytest.mark.parametrize("preset", ["4.x", "5.x"])
@pytest.mark.statement("A11")
def test_brokers_without_recent_failures_are_preferred(clock: FakeClock, preset: LatencyPreset) -> None:
    strategy, index, all_queues = made(clock, preset), index_at(0), queues("a", "b", "c")
    strategy.update_fault_item("a", 0, isolation=True)
    taken = [strategy.select_one_message_queue(all_queues, index).broker_name for _ in range(12)]
    assert set(taken) == {"b", "c"}
    clock.advance(600_000)
    taken = [strategy.select_one_message_queue(all_queues, index).broker_name for _ in range(12)]
    assert set(taken) == {"a", "b", "c"}


@pytest.mark.statement("A11")
def test_isolation_is_a_switch_and_off_by_default(clock: FakeClock) -> None:
    strategy, index, all_queues = made(clock, "4.x", enable=False), index_at(0), queues("a", "b")
    strategy.update_fault_item("a", 0, isolation=True)
    assert strategy.is_available("a")
    assert [strategy.select_one_message_queue(all_queues, index) for _ in range(4)] == all_queues
    assert strategy.select_one_message_queue(all_queues, index, "a").broker_name == "b"


def test_5x_takes_an_available_broker_then_another_one_then_any(clock: FakeClock) -> None:
    strategy, index, all_queues = made(clock, "5.x"), index_at(0), queues("a", "b", "c")
    strategy.update_fault_item("b", 0, isolation=True)
    # Available, and not the last one: c alone.
    assert {strategy.select_one_message_queue(all_queues, index, "a").broker_name for _ in range(6)} == {"c"}
    strategy.update_fault_item("c", 0, isolation=True)
    # None is available but the last one: another one all the same.
    assert {strategy.select_one_message_queue(all_queues, index, "a").broker_name for _ in range(6)} == {"b", "c"}
    # There is no other one.
    assert strategy.select_one_message_queue(queues("a"), index, "a").broker_name == "a"


def test_4x_takes_an_available_broker_even_the_last_one(clock: FakeClock) -> None:
    strategy, index, all_queues = made(clock, "4.x"), index_at(0), queues("a", "b")
    strategy.update_fault_item("b", 0, isolation=True)
    assert strategy.select_one_message_queue(all_queues, index, "a").broker_name == "a"


def test_4x_takes_one_of_the_better_half_when_all_are_isolated(clock: FakeClock) -> None:
    """pickOneAtLeast: sorted by availability, latency, time of return; the first half of them in turn."""
    strategy, index, all_queues = made(clock, "4.x"), index_at(0), queues("a", "b", "c", "d")
    for name, latency_ms in (("a", 4_000), ("b", 600), ("c", 2_500), ("d", 1_200)):
        strategy.update_fault_item(name, latency_ms, isolation=False)
    taken = [strategy.select_one_message_queue(all_queues, index).broker_name for _ in range(6)]
    assert taken == ["d", "b", "d", "b", "d", "b"]


def test_4x_forgets_an_isolated_broker_that_the_topic_does_not_have(clock: FakeClock) -> None:
    strategy, index = made(clock, "4.x"), index_at(0)
    strategy.update_fault_item("gone", 560, isolation=False)
    strategy.update_fault_item("a", 900, isolation=False)
    assert strategy.select_one_message_queue(queues("a"), index).broker_name == "a"
    assert strategy.is_available("gone")


def test_a_broker_nobody_sent_to_is_available(clock: FakeClock) -> None:
    assert made(clock, "5.x").is_available("new")
