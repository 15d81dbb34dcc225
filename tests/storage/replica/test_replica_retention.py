"""A replica deletes old files by its own settings, and never what its master alone can write again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.replicas import FedReplica
from rmq_store import Message, ReadOnlyError, Store, StoreConfig
from rmq_store.broker.write import disk_space
from rmq_store.format.properties.property_string import DELAY_TIME_LEVEL
from rmq_store.log.core.units import UnitRecord

SEGMENT_BYTES = 8192


@pytest.fixture
def replica(
    tmp_path: Path, tiny: StoreConfig, another_hour: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FedReplica]:
    monkeypatch.setattr(disk_space, "usage_percent", lambda root: 10)
    config = replace(
        tiny, mapped_file_size_commit_log=SEGMENT_BYTES, delete_when=another_hour, delete_commit_log_files_interval=0
    )
    with FedReplica(tmp_path / "replica", config) as made:
        made.store.create_topic("T", 1)
        yield made


def segments(replica: FedReplica) -> list[int]:
    return sorted(int(path.name) for path in (replica.root / "commitlog").iterdir())


def fill(replica: FedReplica, count: int) -> None:
    """Messages come until there are so many segments."""
    while len(segments(replica)) < count:
        replica.store.send(Message("T", b"." * 500))
    then = time.time() - 100 * 3600
    for path in sorted((replica.root / "commitlog").iterdir())[:-1]:
        os.utime(path, (then, then))


def unit_comes(replica: FedReplica, key: str, value: int, purpose: str = "sink") -> None:
    """A unit of a sink at the master."""
    writer = replica.store._writer
    assert writer is not None
    found = writer.newest_unit(purpose, key)
    assert writer.append_unit([], UnitRecord(purpose, key, value), expect=found.value if found else None)


def test_a_replica_deletes_by_its_own_settings_and_appends_nothing(replica: FedReplica) -> None:
    fill(replica, 6)
    end = replica.store.log_range()[1]
    assert not replica.store.retention.run().removed, "not at this hour"
    replica.store.retention.configure(file_reserved_time=200)
    assert not replica.store.retention.run(manual=True).removed, "it may keep more than its master"
    replica.store.retention.configure(file_reserved_time=72)
    report = replica.store.retention.run(manual=True)
    assert len(report.removed) == 5 and (report.units, report.half_messages) == (0, 0)
    assert replica.store.log_range() == (5 * SEGMENT_BYTES, end)


def test_others_may_plan_and_not_run(replica: FedReplica) -> None:
    fill(replica, 3)
    with Store.open(replica.root, read_only=True) as store:
        assert [fate.goes for fate in store.retention.plan(manual=True).segments] == [True, True]
        with pytest.raises(ReadOnlyError):
            store.retention.run(manual=True)
        with pytest.raises(ReadOnlyError):
            store.retention.configure(file_reserved_time=1)
    assert len(segments(replica)) == 3


def test_a_segment_that_a_reader_has_pinned_stays(replica: FedReplica) -> None:
    fill(replica, 4)
    with Store.open(replica.root, read_only=True) as store:
        pin = store.pin(SEGMENT_BYTES, SEGMENT_BYTES + 1)
        report = replica.store.retention.run(manual=True)
        assert (report.removed, report.stopped) == ((0,), "a reader keeps it, for 120 s at most")
        pin.release()
    assert len(replica.store.retention.run(manual=True).removed) == 2


def test_a_segment_with_the_newest_unit_stays_until_the_master_has_written_it_again(replica: FedReplica) -> None:
    fill(replica, 2)
    unit_comes(replica, "query", 3)
    fill(replica, 5)
    report = replica.store.retention.run(manual=True)
    assert report.removed == (0,)
    assert report.stopped == (
        "a sink knows by 1 newest unit that is stored in it which commits were written; the master has not written it "
        "again"
    )
    assert not replica.store.retention.run(manual=True).removed
    assert replica.store.newest_unit("sink", "query") == UnitRecord("sink", "query", 3)
    unit_comes(replica, "query", 4)
    fill(replica, 6)
    assert len(replica.store.retention.run(manual=True).removed) == 3, "the newest unit is in the fifth segment"
    assert replica.store.newest_unit("sink", "query") == UnitRecord("sink", "query", 4)


def test_a_unit_that_has_expired_at_the_master_keeps_nothing(
    replica: FedReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit_comes(replica, "query", 3)
    fill(replica, 3)
    assert not replica.store.retention.run(manual=True).removed
    later = time.time_ns() // 1_000_000 + 40 * 24 * 3_600_000
    monkeypatch.setattr(replica.store._log, "clock", lambda: later)
    assert len(replica.store.retention.run(manual=True).removed) == 2


def test_delayed_and_half_messages_are_the_masters_and_keep_nothing(
    replica: FedReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    def carry(log_offset: int) -> int:
        raise AssertionError("a half message cannot be written again")

    monkeypatch.setattr(replica.store.retention, "_carry_halves", carry)
    replica.store.send(Message("T", b"later", properties={DELAY_TIME_LEVEL: "18"}))
    fill(replica, 3)
    end = replica.store.log_range()[1]
    assert len(replica.store.retention.run(manual=True).removed) == 2
    assert replica.store.log_range()[1] == end
