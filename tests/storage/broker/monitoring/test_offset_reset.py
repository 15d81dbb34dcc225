"""Moving a group's offsets by plan (AdminBrokerProcessor#resetOffsetInner)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_store import LeaseHeldError, Message, Store, StoreConfig, UnknownTopicError, UsageError
from rmq_store.broker.monitoring.active_consumers import active_consumers
from rmq_store.broker.monitoring.offset_reset import (
    Target,
    apply_reset,
    at_offset,
    at_time,
    earliest,
    given,
    latest,
    plan_reset,
    shifted,
)
from rmq_store.broker.processor.local_groups import LocalGroups


class Clock:
    now_ms = 1000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def store(scratch: Path, small: StoreConfig) -> Iterator[Store]:
    """T has messages of the times 1000, 2000, 3000, 4000 in queue 0, and none in queue 1."""
    clock = Clock()
    with Store.open(scratch / "store", create=True, config=small, clock=clock) as store:
        store.create_topic("T", queue_count=2)
        store.create_topic("U", queue_count=1)
        for number in range(4):
            clock.now_ms = 1000 * (number + 1)
            store.send(Message("T", b"%d" % number, queue_id=0))
        store.commit_offsets("g", {("T", 0): 2})
        yield store


@pytest.mark.parametrize(
    ("target", "wanted", "then"),
    [
        (earliest, 0, 0),
        (latest, 4, 4),
        (at_offset(3), 3, 3),
        (at_offset(9), 9, 4),
        (shifted(1), 3, 3),
        (shifted(-1), 1, 1),
        (shifted(-5), -3, 0),
        (shifted(5), 7, 4),
    ],
)
def test_a_target_is_moved_into_the_queue(store: Store, target: Target, wanted: int, then: int) -> None:
    change = plan_reset(store, "g", ["T"], target)[0]
    assert (change.wanted, change.then, change.place.lag, change.lag) == (wanted, then, 2, 4 - then)


@pytest.mark.parametrize(("timestamp_ms", "then"), [(0, 0), (1000, 0), (1001, 1), (3000, 2), (4001, 4), (-1, 4)])
def test_a_time_is_the_first_message_from_then_on_and_minus_one_the_end(
    store: Store, timestamp_ms: int, then: int
) -> None:
    """AdminBrokerProcessor: searchOffsetByTimestamp; resetOffsetInner takes -1 for the end."""
    assert [c.then for c in plan_reset(store, "g", ["T"], at_time(store, timestamp_ms))] == [then, 0]


def test_every_queue_of_every_topic_is_planned_or_the_one_that_is_named(store: Store) -> None:
    def places(**options: int) -> list[tuple[str, int, int | None]]:
        planned = plan_reset(store, "g", ["U", "T"], latest, **options)
        return [(c.place.topic, c.place.queue_id, c.place.committed) for c in planned]

    assert places() == [("T", 0, 2), ("T", 1, None), ("U", 0, None)]
    assert places(queue_id=0) == [("T", 0, 2), ("U", 0, None)]
    with pytest.raises(UsageError, match="topic 'U' has queues 0 to 0, not 1"):
        places(queue_id=1)
    with pytest.raises(UnknownTopicError):
        plan_reset(store, "g", ["Nope"], latest)


def test_queues_that_a_file_does_not_name_stay(store: Store) -> None:
    apply_reset(store, "g", plan_reset(store, "g", ["T", "U"], given({("T", 0): 1})))
    assert store.committed_offsets("g") == {("T", 0): 1}


def test_a_reset_commits_what_was_planned_and_leaves_no_lease(store: Store) -> None:
    apply_reset(store, "g", plan_reset(store, "g", ["T"], earliest))
    assert store.committed_offsets("g") == {("T", 0): 0, ("T", 1): 0}
    assert active_consumers(store, "g") == []


def test_nothing_is_reset_under_a_live_consumer_even_one_that_came_after_the_plan(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = plan_reset(store, "g", ["T", "U"], earliest)
    stream = store.lease("g", "U", "query 1")
    with pytest.raises(LeaseHeldError, match="query 1"):
        apply_reset(store, "g", changes)
    monkeypatch.setattr("rmq_store.broker.monitoring.offset_reset.require_idle", lambda store, group: None)
    with pytest.raises(LeaseHeldError, match="query 1"):  # came between the look and the leases
        apply_reset(store, "g", changes)
    assert store.committed_offsets("g") == {("T", 0): 2}
    stream.release()
    assert active_consumers(store, "g") == []  # the lease on T was given back


def test_nothing_is_reset_under_a_push_consumer_which_holds_no_lease_of_a_topic(store: Store) -> None:
    members = LocalGroups(store.path, store.clock)
    members.heartbeat("g", "10.0.0.1@4711#1")
    with pytest.raises(LeaseHeldError, match="@4711#1"):
        apply_reset(store, "g", plan_reset(store, "g", ["T"], earliest))
    assert store.committed_offsets("g") == {("T", 0): 2}
    members.close()
