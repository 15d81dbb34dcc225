"""Lag is what mqadmin counts (AdminBrokerProcessor#getConsumeStats)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from rmq_store import Message, Store
from rmq_store.broker.monitoring.lag import QueueLag, all_lags, group_lag

NOW_MS = 1_800_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(scratch: Path, clock: Clock) -> Store:
    with Store.open(scratch / "store", create=True, clock=clock) as store:
        store.create_topic("Orders", queue_count=2)
        for number in range(5):
            clock.now_ms += 1000
            store.send(Message("Orders", b"%d" % number, queue_id=0))
        yield store  # type: ignore[misc]


def test_every_group_of_a_real_broker_has_the_lag_that_mqadmin_showed(golden: Path) -> None:
    groups = json.loads((golden / "manifest.json").read_text())["groups"]
    with Store.open(golden / "store", read_only=True) as store:
        found = {lag.group: lag for lag in all_lags(store)}
    compared = 0
    for name, group in groups.items():
        # Without an offset, mqadmin lists the queues of the %RETRY% topic, all of them empty.
        if group["totalLag"] is None or name not in found:
            assert not group["totalLag"]
            continue
        compared += 1
        assert found[name].diff_total == group["totalLag"]
        assert [
            (queue.topic, queue.queue_id, queue.consumer_offset or 0, queue.broker_offset, queue.diff,
             queue.last_timestamp_ms)
            for queue in found[name].queues
        ] == sorted(
            (queue["topic"], queue["queueId"], queue["committedOffset"], queue["brokerOffset"], queue["lag"],
             queue["lastTimestamp"])
            for queue in group["queues"]
        )  # fmt: skip
    assert compared >= 5


def test_a_queue_is_behind_by_its_messages_and_by_the_age_of_the_oldest_one_left(store: Store, clock: Clock) -> None:
    store.commit_offsets("G", {("Orders", 0): 2})
    lag = group_lag(store, "G", now_ms=NOW_MS + 10_000)
    assert lag.queues == (
        QueueLag("Orders", 0, 5, 2, diff=3, inflight=0, last_timestamp_ms=NOW_MS + 2000, lag_ms=7000,
                 queueing_ms=7000),
        QueueLag("Orders", 1, 0, None, diff=0, inflight=0, last_timestamp_ms=0, lag_ms=0, queueing_ms=0),
    )
    assert (lag.diff_total, lag.retry_diff, lag.dead) == (3, 0, 0)


def test_an_offset_beyond_the_end_is_a_negative_diff_as_mqadmin_shows_it(store: Store) -> None:
    store.commit_offsets("G", {("Orders", 0): 9})
    (queue, _) = group_lag(store, "G").queues
    assert (queue.diff, queue.lag_ms, queue.last_timestamp_ms) == (-4, 0, 0)


def test_a_group_that_consumes_between_the_looks_at_two_groups_is_not_beyond_the_end(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Store.committed_offsets
    for group in ("G", "H"):
        store.commit_offsets(group, {("Orders", 0): 5})

    def consumed_meanwhile(self: Store, group: str) -> Mapping[tuple[str, int], int]:
        if group == "H":
            store.send(Message("Orders", b"new", queue_id=0))
            store.commit_offsets("H", {("Orders", 0): 6})
        return real(self, group)

    monkeypatch.setattr(Store, "committed_offsets", consumed_meanwhile)
    (behind, _), (at_end, _) = (lag.queues for lag in all_lags(store))
    assert (behind.broker_offset, behind.diff) == (5, 0)
    assert (at_end.broker_offset, at_end.consumer_offset, at_end.diff) == (6, 6, 0)


def test_what_pops_gave_out_is_in_flight_until_it_is_acknowledged(store: Store, clock: Clock) -> None:
    taken = store.pop.receive("G", "Orders", 4, 60_000)
    assert len(taken) == 4
    store.pop.ack("G", "Orders", taken[0].receipt_handle)
    clock.now_ms += 10_000
    store.pop.close()  # commits what is acknowledged
    with Store.open(store.path, read_only=True) as reader:
        queue = group_lag(reader, "G").queues[0]
    assert (queue.consumer_offset, queue.diff, queue.inflight) == (1, 4, 3)


def test_a_topic_that_was_deleted_counts_no_more(store: Store) -> None:
    store.commit_offsets("G", {("Orders", 0): 2, ("Gone", 0): 7})
    assert {queue.topic for queue in group_lag(store, "G").queues} == {"Orders"}


def test_a_group_that_never_committed_has_no_queues(store: Store) -> None:
    assert group_lag(store, "Nobody").queues == ()
    assert all_lags(store) == []
