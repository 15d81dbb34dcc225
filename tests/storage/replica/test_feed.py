"""The feed of a replica: bytes of a master's log, cut anywhere, become a store with the same log."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from rmq_store import Message, Store
from rmq_store.errors import MasterTransferError, ReplicaDivergedError
from rmq_store.log.core import scan
from rmq_store.log.core.units import UNITS_TOPIC
from rmq_store.replica import feed as feed_module
from rmq_store.replica.feed import Feed
from rmq_store.verify import verify_store
from storage.replica.conftest import SEGMENT_BYTES, commit_unit, fill, log_bytes, views_of


def taken(feed: Feed, data: bytes, cut: int, *, start: int | None = None) -> None:
    """Feed `data` in pieces of `cut` bytes, each published."""
    for low in range(0, len(data), cut):
        feed.take(feed.position, memoryview(data)[low : low + cut])
        feed.publish()


def master_log(master: Store) -> bytes:
    return log_bytes(master._log, *master.log_range())


def boundaries(store: Store) -> set[int]:
    """Where readers of a store may see its log end: behind whole records and whole units."""
    found, inside = {0}, False
    for stretch in scan.walk(store._log, *store.log_range()):
        columns = scan.columns_of(store._log, stretch)
        for position, size, topic in zip(stretch.positions, stretch.sizes, columns.topic.to_pylist(), strict=True):
            inside ^= topic == UNITS_TOPIC
            if not inside:
                found.add(stretch.base + int(position + size))
        found.add(stretch.end)
    return found


@pytest.mark.parametrize("cut", [1 << 20, 32 << 10, 1000, 97])
def test_a_replica_has_the_log_the_queues_and_the_index_of_its_master(
    master: Store, replica: Store, cut: int
) -> None:
    fill(master, 250)
    commit_unit(master, 1, 300)  # rolls the segment in its middle
    fill(master, 100)
    feed = Feed(replica._log, 0, "broker-a")
    taken(feed, master_log(master), cut)
    assert not feed.holds_back
    assert replica.log_range() == master.log_range()
    assert replica.log_range()[1] > 2 * SEGMENT_BYTES
    assert log_bytes(replica._log, *replica.log_range()) == master_log(master)
    assert views_of(replica.path) == views_of(master.path)
    for key in ("k7", "k249"):
        assert replica.query.by_key("Orders", key) == master.query.by_key("Orders", key) != []
    replica.close()
    shutil.copy(master.path / "config" / "topics.json", replica.path / "config")
    report = verify_store(replica.path)
    assert report.status == "clean", report.problems


def test_bytes_that_come_one_by_one_show_whole_records_and_whole_units_only(master: Store, replica: Store) -> None:
    fill(master, 4)
    commit_unit(master, 1, 4)
    fill(master, 2)
    commit_unit(master, 2, 1)
    commit_unit(master, 3, 2)
    allowed = boundaries(master)
    feed, seen = Feed(replica._log, 0, "broker-a"), set()
    for number, byte in enumerate(master_log(master)):
        feed.take(number, memoryview(bytes([byte])))
        feed.publish()
        seen.add(replica.log_range()[1])
    assert seen <= allowed
    assert len(seen) > 6
    assert replica.log_range() == master.log_range()
    assert feed.messages == 4 + 6 + 2 + 3 + 4


def test_what_was_stored_of_half_a_unit_is_taken_back(master: Store, replica: Store) -> None:
    fill(master, 5)
    before = master.log_range()[1]
    commit_unit(master, 1, 250)
    data = master_log(master)
    for low in (before + 1, before + 700, before + SEGMENT_BYTES, len(data) - 1):
        feed = Feed(replica._log, replica.log_range()[1], "broker-a")
        taken(feed, data[feed.position : low], 5000)
        assert replica.log_range()[1] == before
        feed.abort()
        assert replica.log_range()[1] == before
        assert not replica._log.segments.data_beyond(before)
        with Store.open(replica.path, read_only=True) as reader:
            assert sum(last - first for first, last in reader.queue_ranges("Orders").values()) == 5
    feed = Feed(replica._log, before, "broker-a")
    taken(feed, data[before:], 5000)
    assert replica.log_range() == master.log_range()
    assert views_of(replica.path) == views_of(master.path)


def test_half_a_unit_that_a_broker_kept_counts_as_records_as_soon_as_others_follow(
    master: Store, replica: Store
) -> None:
    fill(master, 2)
    start = master.log_range()[1]
    commit_unit(master, 1, 4)
    stretch = next(iter(scan.walk(master._log, start)))
    half = start + int(stretch.sizes[:3].sum())
    data = master_log(master)[:half]
    follower = moved(first_record(master), half, 3, 5000)
    feed = Feed(replica._log, 0, "broker-a")
    taken(feed, data, 100)
    assert (replica.log_range()[1], feed.holds_back) == (start, True)
    taken(feed, follower, 100)
    assert (replica.log_range()[1], feed.holds_back) == (half + len(follower), False)


def test_a_record_that_is_larger_than_the_buffer_is_taken(
    tmp_path: Path, master: Store, replica: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "BUFFER_BYTES", 4096)
    fill(master, 3)
    master.send(Message("Orders", bytes(20_000)))
    fill(master, 3)
    feed = Feed(replica._log, 0, "broker-a")
    taken(feed, master_log(master), 1500)
    assert replica.log_range() == master.log_range()
    assert len(feed._buffer) == 4096


def first_record(store: Store) -> bytes:
    """The first record of a store, which is of queue 0 of Orders."""
    return log_bytes(store._log, 0, int(next(iter(scan.walk(store._log, 0))).sizes[0]))


def moved(record: bytes, offset: int, queue_offset: int, later_ms: int) -> bytes:
    """A record at another offset of the log and of its queue, stored later."""
    frame = bytearray(record)
    frame[20:28], frame[28:36] = queue_offset.to_bytes(8, "big"), offset.to_bytes(8, "big")
    frame[56:64] = (int.from_bytes(frame[56:64], "big") + later_ms).to_bytes(8, "big")
    return bytes(frame)


def spoiled(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (0, b"\x7f\xff\xff\xff", "a record of 2147483647 bytes|total size"),
        (0, b"\x00\x00\x00\x08", "no record"),
        (0, b"\xff\xff\xff\xff", "no record"),
        (4, b"abcd", "unknown magic"),
        (4, b"\xcb\xd4\x31\x94", "a blank of"),
        (20, b"\x7f" + bytes(7), "no queue can hold|negative"),
        (28, b"\x00" * 7 + b"\x01", "physical offset"),
        (12, b"\xff\xff\xff\xff", "negative queue"),
        (100, b"\xff\xff\xff", "CRC"),
    ],
)
@pytest.mark.parametrize("cut", [1 << 20, 50])
def test_bytes_that_are_no_record_are_refused_and_nothing_of_them_is_stored(
    master: Store, replica: Store, at: int, value: bytes, reason: str, cut: int
) -> None:
    fill(master, 3)
    first = master.log_range()[1]
    fill(master, 1)
    feed = Feed(replica._log, 0, "broker-a")
    taken(feed, master_log(master)[:first], 1 << 20)
    with pytest.raises(MasterTransferError, match=reason):
        taken(feed, spoiled(master_log(master)[first:], at, value), cut)
    feed.abort()
    assert replica.log_range()[1] == first
    assert not replica._log.segments.data_beyond(first)
    with pytest.raises(MasterTransferError, match="come next"):
        Feed(replica._log, first, "broker-a").take(first + 1, memoryview(b"x"))


@pytest.mark.parametrize("back", [1, 700, 10**6])
def test_a_master_whose_offsets_go_backwards_is_refused(master: Store, replica: Store, back: int) -> None:
    fill(master, 5)
    data = master_log(master)
    feed = Feed(replica._log, 0, "broker-a")
    taken(feed, data, 1 << 20)
    with pytest.raises(MasterTransferError, match=f"sent bytes from {len(data) - back} on where {len(data)} come next"):
        feed.take(len(data) - back, memoryview(data))
    feed.abort()
    assert replica.log_range() == (0, len(data))


@pytest.mark.parametrize("cut", [1 << 20, 1])
def test_a_whole_record_at_another_place_than_it_says_is_refused(master: Store, replica: Store, cut: int) -> None:
    fill(master, 3)
    data, again = master_log(master), first_record(master)
    feed = Feed(replica._log, 0, "broker-a")
    with pytest.raises(MasterTransferError, match=f"no record at {len(data)}: .*physical offset"):
        taken(feed, data + again, cut)
    feed.abort()
    assert replica.log_range() == (0, len(data))
    assert not replica._log.segments.data_beyond(len(data))


def test_a_record_that_never_ends_is_refused_by_its_size_before_its_bytes_are_kept(
    master: Store, replica: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "FRAME_BYTES_MAX", 20_000)
    monkeypatch.setattr(feed_module, "BUFFER_BYTES", 4096)
    fill(master, 1)
    start = first_record(master)[:12]
    feed = Feed(replica._log, 0, "broker-a")
    with pytest.raises(MasterTransferError, match="a record of 20001 bytes where 20000 are possible"):
        taken(feed, spoiled(start, 0, (20_001).to_bytes(4, "big")), 4)
    feed.abort()
    feed = Feed(replica._log, 0, "broker-a")
    taken(feed, spoiled(start, 0, (20_000).to_bytes(4, "big")) + bytes(19_000), 1000)
    assert feed.waits
    assert len(feed._buffer) <= 2 * 20_000
    feed.abort()
    assert replica.log_range() == (0, 0)


def test_a_topic_that_no_broker_accepts_becomes_no_file(master: Store, replica: Store) -> None:
    fill(master, 1)
    data = master_log(master)
    at = data.index(b"Orders")
    data = spoiled(data, at, b"../../")
    feed = Feed(replica._log, 0, "broker-a")
    with pytest.raises(MasterTransferError, match="topic"):
        taken(feed, data, 1 << 20)
    feed.abort()
    assert views_of(replica.path) == {}


def test_a_blank_must_fill_its_segment_and_its_bytes_are_kept(master: Store, replica: Store) -> None:
    fill(master, 300)
    data = bytearray(master_log(master))
    blank = data.index(b"\xcb\xd4\x31\x94") - 4
    data[blank + 8 : blank + 12] = b"rest"  # which a broker does not clear
    feed = Feed(replica._log, 0, "broker-a")
    taken(feed, bytes(data[: blank + 9]), 1000)
    assert (feed.holds_back, replica.log_range()[1]) == (True, blank)
    taken(feed, bytes(data[blank + 9 :]), 1000)
    assert log_bytes(replica._log, *replica.log_range()) == data


@pytest.mark.parametrize("cut", [7, 1 << 20])
def test_other_bytes_at_the_same_offset_are_found_before_anything_new_counts(
    master: Store, replica: Store, cut: int
) -> None:
    fill(master, 40)
    data = master_log(master)
    half = sorted(boundaries(master))[20]
    taken(Feed(replica._log, 0, "broker-a"), data[:half], 1 << 20)
    start = sorted(boundaries(master))[10]
    other = spoiled(data, half - 5, bytes([data[half - 5] ^ 1]))
    feed = Feed(replica._log, start, "broker-a")
    with pytest.raises(ReplicaDivergedError, match="rmq follow --resync") as refused:
        taken(feed, other[start:], cut)
    assert refused.value.replica_range == (half - 5, half)
    assert refused.value.master_range[0] == half - 5
    feed.abort()
    assert replica.log_range()[1] == half
    feed = Feed(replica._log, start, "broker-a")
    taken(feed, data[start:], cut * 100)
    assert replica.log_range() == master.log_range()


def test_a_topic_that_was_made_again_begins_its_queues_again(master: Store, replica: Store) -> None:
    fill(master, 6)
    first = master.log_range()[1]
    taken(Feed(replica._log, 0, "broker-a"), master_log(master), 1 << 20)
    assert replica.queue_range("Orders", 0) == (0, 3)
    again = moved(first_record(master), first, 0, 1)
    taken(Feed(replica._log, first, "broker-a"), again, 1 << 20)
    assert replica.queue_range("Orders", 0) == (0, 1)
    assert replica.queue_range("Orders", 1) == (0, 3)


def test_any_cuts_of_any_log_give_the_same_replica(master: Store, replica: Store) -> None:
    dice = random.Random(20260201)
    for value in range(12):
        fill(master, dice.randrange(1, 60), dice.randrange(0, 900))
        if dice.random() < 0.6:
            commit_unit(master, value, dice.randrange(1, 120), dice.randrange(0, 500))
    data, allowed = master_log(master), boundaries(master)
    feed = Feed(replica._log, 0, "broker-a")
    while feed.position < len(data):
        if dice.random() < 0.02:
            feed.abort()
            start = dice.choice([end for end in allowed if end <= replica.log_range()[1]])
            feed = Feed(replica._log, start, "broker-a")
        low = feed.position
        feed.take(low, memoryview(data)[low : low + dice.choice([1, 13, 400, 3000, 32768])])
        feed.publish()
        assert replica.log_range()[1] in allowed
    assert log_bytes(replica._log, *replica.log_range()) == data
    assert views_of(replica.path) == views_of(master.path)
    assert json.loads((replica.path / "pyrmq" / "store.json").read_text())["format"] == 2
