"""Who is at work as a group: streams, push consumers, stuck ones; and who is not (ConsumerManager)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_store import LeaseHeldError, Message, Store, StoreConfig, UsageError
from rmq_store.broker.metadata.leases import STUCK_AFTER_MS, Lease, live_leases
from rmq_store.broker.monitoring.active_consumers import active_consumers, active_groups, require_idle
from rmq_store.broker.processor.local_groups import LocalGroups
from rmq_store.protocol.messages import MessageQueue

NOW_MS = 1_763_711_715_000  # 2025-11-21 07:55:15 UTC


class Clock:
    now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(scratch: Path, small: StoreConfig, clock: Clock) -> Iterator[Store]:
    with Store.open(scratch / "store", create=True, config=small, clock=clock) as store:
        store.create_topic("T", queue_count=1)
        yield store


def test_nobody_is_at_work_as_a_group_that_was_never_seen_or_whose_consumers_have_left(store: Store) -> None:
    assert active_consumers(store, "g") == []
    require_idle(store, "g")
    store.lease("g", "T", "a stream").release()
    assert active_consumers(store, "g") == []
    with pytest.raises(UsageError):
        active_consumers(store, "no/group")


def test_a_stream_is_named_once_with_all_that_it_holds(store: Store) -> None:
    leases = [store.lease("g", topic, "query 'orders' on host-1") for topic in ("T", "%RETRY%g")]
    who = f"\"query 'orders' on host-1\" (process {os.getpid()}, since 2025-11-21 07:55:15 UTC, holds %RETRY%g, T)"
    assert active_consumers(store, "g") == [who]
    with pytest.raises(LeaseHeldError) as raised:
        require_idle(store, "g")
    assert raised.value.holder == who
    assert str(raised.value) == f"group 'g' has running consumers, which would overwrite this: stop them first: {who}"
    assert active_consumers(store, "another") == []
    for lease in leases:
        lease.release()


def test_members_and_their_queue_locks_are_one_consumer_by_its_client_id(store: Store, clock: Clock) -> None:
    groups = LocalGroups(store.path, clock)
    groups.heartbeat("g", "10.0.0.1@4711#1")
    groups.heartbeat("g", "10.0.0.1@4712#1")
    assert groups.lock_queues("g", "10.0.0.1@4711#1", [MessageQueue("T", "b", 0)])
    since = "since 2025-11-21 07:55:15 UTC"
    assert active_consumers(store, "g") == [
        f"'10.0.0.1@{instance}#1' (process {os.getpid()}, {since})" for instance in (4711, 4712)
    ]
    groups.close()
    assert active_consumers(store, "g") == []


def test_a_stuck_holder_counts_because_it_may_go_on(store: Store, clock: Clock) -> None:
    lease = store.lease("g", "T", "sleeper")
    clock.now_ms += STUCK_AFTER_MS + 1
    (text,) = active_consumers(store, "g")
    assert text.endswith("holds T, stuck)")
    lease.release()


def test_a_simple_consumer_is_not_in_the_way_because_it_looks_where_the_offset_was_set(store: Store) -> None:
    """broker/pop/pop.py: when somebody else moves the offset, the queue begins anew there."""
    for number in range(4):
        store.send(Message("T", b"%d" % number))
    store.commit_offsets("g", {("T", 0): 0})
    assert len(store.pop.receive("g", "T", 4, 60_000)) == 4
    require_idle(store, "g")
    store.commit_offsets("g", {("T", 0): 2})
    assert [popped.row["queueOffset"][0].as_py() for popped in store.pop.receive("g", "T", 4, 60_000)] == [2, 3]


def test_groups_at_work_on_a_topic_are_those_with_a_lease_on_it_or_with_members_and_an_offset(
    store: Store, clock: Clock
) -> None:
    stream = store.lease("g_stream", "T", "a stream")
    elsewhere = store.lease("g_other", "U", "a stream")
    members = LocalGroups(store.path, clock)
    members.heartbeat("g_push", "10.0.0.1@1")
    members.heartbeat("g_new", "10.0.0.1@2")
    store.commit_offsets("g_push", {("T", 0): 0})
    store.commit_offsets("g_idle", {("T", 0): 0})
    (store.path / "pyrmq" / "groups" / "no.group").mkdir()
    assert active_groups(store, "T") == ["g_push", "g_stream"]
    assert active_groups(store, "U") == ["g_other"]
    members.close()
    for lease in (stream, elsewhere):
        lease.release()
    assert active_groups(store, "T") == []


def test_a_member_reads_what_it_has_subscribed_to_whatever_its_group_has_committed(store: Store, clock: Clock) -> None:
    """ConsumerManager.java keeps each member's subscriptions from its heartbeats."""
    members = LocalGroups(store.path, clock)
    store.commit_offsets("g", {("U", 0): 0})
    members.heartbeat("g", "10.0.0.1@1", joins=True, topics={"T", "%RETRY%g"})
    assert active_groups(store, "T") == ["g"]
    assert active_groups(store, "U") == []
    members.heartbeat("g", "10.0.0.1@1", topics={"U"})
    assert active_groups(store, "T") == []
    assert active_groups(store, "U") == ["g"]
    members.close()


def test_the_topics_of_a_killed_member_are_not_those_of_the_next_holder(store: Store) -> None:
    killed = Lease(store.path, "g", "m", clock=store.clock)
    killed.acquire("a")
    killed.write_topics(["T", "U"])
    killed._lock.close()
    lease = Lease(store.path, "g", "m", clock=store.clock)
    lease.acquire("b")
    assert [info.topics for info in live_leases(store.path, "g")] == [()]
    lease.write_topics(["V"])
    assert [info.topics for info in live_leases(store.path, "g")] == [("V",)]
    lease.release()


def test_a_lease_whose_text_cannot_be_read_is_somebody_nevertheless(store: Store) -> None:
    lease = Lease(store.path, "g", "T", clock=store.clock)
    lease.acquire("a stream")
    path = store.path / "pyrmq" / "groups" / "g" / "T.lease"
    with path.open("r+b") as file:
        file.seek(64)
        file.write(b"\0" * 4032)
    assert active_consumers(store, "g") == [f"another member (process {os.getpid()}, holds T)"]
    lease.release()
