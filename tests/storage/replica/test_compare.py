"""`rmq verify --against`: the master's log is read a second time, and the first difference is named."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from rmq_store import Store, UsageError
from rmq_store.errors import MasterTransferError
from rmq_store.protocol.errors import RemotingError
from rmq_store.replica import compare, ha_connection
from rmq_store.replica.compare import ByteRange, Comparison, LogComparison
from rmq_store.replica.first_report import SETTLED_MS
from rmq_store.replica.follow import Follower
from rmq_store.replica.master import LogEnds, Master, MasterSettings
from storage.replica.conftest import CONFIG, SEGMENT_BYTES, fill
from storage.replica.ha_master import FollowedMaster, HAMaster

OTHERS = replace(CONFIG, mapped_file_size_commit_log=2 * SEGMENT_BYTES)


@pytest.fixture
def ha(master: Store) -> Iterator[HAMaster]:
    served = HAMaster(master)
    yield served
    served.close()


@pytest.fixture
def copied(tmp_path: Path, master: Store, ha: HAMaster) -> Path:
    """A replica with three segments of the master."""
    fill(master, 400)
    return copy(tmp_path / "replica", ha)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_WAIT_S", 0.02)


def copy(root: Path, ha: HAMaster, **given: Any) -> Path:
    master = cast(Master, FollowedMaster.of(ha, CONFIG))
    Follower(root, master, should_stop=lambda seconds: bool(time.sleep(seconds)), **given).run(once=True)
    return root


def compared(root: Path, ha: HAMaster, ends: LogEnds | None = None, **given: Any) -> Comparison:
    asked = FollowedMaster.of(ha, CONFIG)
    asked.ends = ends
    with Store.open(root, read_only=True) as store:
        return LogComparison(store, cast(Master, given.pop("asked", asked)), **given).run()


def change(root: Path, offset: int, to: int = 0x7F) -> None:
    """Change one byte of the log."""
    base = offset - offset % SEGMENT_BYTES
    path = root / "commitlog" / f"{base:020}"
    data = bytearray(path.read_bytes())
    data[offset - base] ^= to
    path.write_bytes(data)


@pytest.mark.parametrize("cut", [1 << 20, 4099])
def test_a_copy_is_equal_and_nothing_was_acknowledged(copied: Path, ha: HAMaster, cut: int) -> None:
    ha.cut = cut
    ha.reports.clear()
    told: list[tuple[int, int]] = []
    found = compared(copied, ha, tell=lambda done, total: told.append((done, total)))
    end = found.replica.end
    assert found == Comparison(ByteRange(0, end), ByteRange(0, end), (ByteRange(0, end),), None)
    assert found.is_equal and not found.only_at_master and not found.only_at_replica
    assert told[-1] == (end, end)
    assert {report for reports in ha.reports for report in reports} == {1}


@pytest.mark.parametrize("place", ["first", "in the middle", "second segment", "last"])
def test_the_first_difference_is_named_with_its_message(copied: Path, ha: HAMaster, place: str) -> None:
    with Store.open(copied, read_only=True) as store:
        end = store.log_range()[1]
        message = store.message_at(0)
    offset = {
        "first": 1, "in the middle": message.total_size + 150, "second segment": SEGMENT_BYTES + 120, "last": end - 1,
    }[place]  # fmt: skip
    change(copied, offset)
    change(copied, min(offset + 40, end - 1), 0x0F)
    found = compared(copied, ha)
    assert not found.is_equal and found.difference is not None
    first, text = found.difference
    assert first == offset
    assert text.startswith(f"other bytes from {offset} on, in ")
    if place == "in the middle":
        assert f"in the record at {message.total_size}, which is damaged here: " in text
    assert found.compared == ((ByteRange(0, offset),) if offset else ())


def test_what_only_one_of_them_has_is_said(copied: Path, master: Store, ha: HAMaster) -> None:
    had = master.log_range()[1]
    fill(master, 10)
    master.retention.run(manual=True, file_reserved_time=0)
    start, end = master.log_range()
    assert 0 < start < had < end
    found = compared(copied, ha)
    assert found.is_equal
    assert found.only_at_replica == (ByteRange(0, start),)
    assert found.only_at_master == (ByteRange(had, end),)
    assert found.compared == (ByteRange(start, had),)


def test_a_replica_that_begins_later_says_what_it_lacks(tmp_path: Path, master: Store, ha: HAMaster) -> None:
    fill(master, 400)
    root = copy(tmp_path / "newest", ha, start="newest-segment")
    slept: list[float] = []
    found = compared(root, ha, sleep=slept.append)
    start, end = found.replica
    assert start > 0 and found.is_equal
    assert found.only_at_master == (ByteRange(0, start),)
    assert found.compared == (ByteRange(start, end),)
    assert slept and 0 < slept[0] <= SETTLED_MS / 1000, "what lies below may still be waited for"


def test_other_bytes_in_a_sound_record_are_named_by_their_message(
    copied: Path, ha: HAMaster, master: Store
) -> None:
    """The replica is sound, and the master sends others: it is another broker."""
    with Store.open(copied, read_only=True) as store:
        second = store.message_at(0).total_size

    def other(offset: int, data: bytes) -> bytes:
        at = second + 200 - offset + 12
        return data[:at] + b"?" + data[at + 1 :] if offset == 1 else data

    ha.spoil = other
    found = compared(copied, ha)
    assert found.difference == (
        second + 200, f"other bytes from {second + 200} on, in message 0 of Orders-1, at {second}"
    )


def test_nothing_in_common_is_no_difference(copied: Path, master: Store, ha: HAMaster) -> None:
    had = master.log_range()[1]
    found = compared(copied, ha, LogEnds(had + SEGMENT_BYTES, had + 2 * SEGMENT_BYTES))
    assert found.is_equal and not found.compared
    assert found.only_at_replica == (ByteRange(0, had),)


def test_a_replica_that_is_longer_than_its_master_differs(copied: Path, master: Store, ha: HAMaster) -> None:
    had = master.log_range()[1]
    with Store.open(copied, read_only=True) as store:
        cut = store.message_at(0).total_size * 10
    found = compared(copied, ha, LogEnds(0, cut))
    assert found.difference == (cut, f"the master's log ends at {cut}, and the replica's at {had}")


def test_a_connection_that_ends_is_made_again_from_where_it_ended(copied: Path, ha: HAMaster) -> None:
    ha.drop_after, slept = 40_000, list[float]()
    ha.reports.clear()
    found = compared(copied, ha, sleep=slept.append)
    assert found.is_equal and len(ha.reports) > 2
    assert not found.only_at_replica
    assert slept, "a report above the start waits until nobody waits for what lies below"


def test_a_connection_that_ends_at_once_again_and_again_is_an_error(copied: Path, ha: HAMaster) -> None:
    ha.drop_after = 0
    ha.spoil = lambda offset, data: b""
    with pytest.raises(RemotingError):
        compared(copied, ha)


def test_what_the_master_deletes_meanwhile_is_said(
    copied: Path, master: Store, ha: HAMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master behind the report sends heartbeats for ever."""
    monkeypatch.setattr(ha_connection, "SILENCE_S", 5)
    had = master.log_range()[1]
    fill(master, 10)
    master.retention.run(manual=True, file_reserved_time=0)
    start = master.log_range()[0]

    class Forgets(FollowedMaster):
        asked_ends = 0

        def log_ends(self) -> LogEnds:
            self.asked_ends += 1
            return LogEnds(0, had) if self.asked_ends == 1 else LogEnds(*master.log_range())

    forgets = Forgets.of(ha, CONFIG)
    found = compared(copied, ha, asked=forgets, sleep=lambda seconds: None)
    assert found.is_equal
    assert found.only_at_replica == (ByteRange(0, start),)
    assert found.compared == (ByteRange(start, had),)


def test_another_broker_and_other_segments_are_refused(copied: Path, ha: HAMaster) -> None:
    asked = FollowedMaster.of(ha, OTHERS)
    with pytest.raises(UsageError, match="it is no copy of its log"):
        compared(copied, ha, asked=asked)

    class Other(FollowedMaster):
        def look(self) -> MasterSettings:
            return MasterSettings("DefaultCluster", "broker-b", self.ha.address, self.config)

    with pytest.raises(UsageError, match=r"a replica of broker 'broker-a'.*not of 'broker-b'"):
        compared(copied, ha, asked=Other.of(ha, CONFIG))


@pytest.mark.parametrize(
    "spoil",
    [lambda offset, data: data[:12][:7] + b"\x01" + data[8:], lambda offset, data: data[:8] + b"\xff" * 4 + data[12:]],
)
def test_a_master_that_sends_no_log_is_refused(
    copied: Path, ha: HAMaster, spoil: Callable[[int, bytes], bytes]
) -> None:
    ha.spoil = spoil
    with pytest.raises(MasterTransferError):
        compared(copied, ha)
