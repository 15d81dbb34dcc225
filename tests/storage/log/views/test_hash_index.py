"""The index: in bulk the same bytes as one by one, and back again after a cut."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_store.errors import CorruptIndexError
from rmq_store.format.bytes import native
from rmq_store.format.views.index import SLOT, IndexHeader, file_size, slot_position
from rmq_store.log.views import index_file
from rmq_store.log.views.hash_index import EMPTY, HashIndex
from rmq_store.log.views.index_file import IndexFile

SLOTS, ENTRIES = 5, 12

Row = tuple[int, int, int]


def java_files(rows: list[Row]) -> list[bytes]:
    """What IndexFile#putKey writes, step by step; rows are (key hash, log offset, storeTimestamp)."""
    files: list[bytearray] = []
    header = IndexHeader()
    for key_hash, offset, timestamp in rows:
        if not files or header.index_count >= ENTRIES:
            header = header.next_file() if files else IndexHeader()
            files.append(bytearray(file_size(SLOTS, ENTRIES)))
        data, slot = files[-1], 40 + 4 * (key_hash % SLOTS)
        previous = int.from_bytes(data[slot : slot + 4], "big")
        seconds = (timestamp - header.begin_timestamp) // 1000 if header.begin_timestamp > 0 else 0
        seconds = min(max(seconds, 0), 2**31 - 1)
        at = 40 + 4 * SLOTS + 20 * header.index_count
        parts = ((key_hash, 4), (offset, 8), (seconds, 4), (previous, 4))
        data[at : at + 20] = b"".join(value.to_bytes(width, "big") for value, width in parts)
        data[slot : slot + 4] = header.index_count.to_bytes(4, "big")
        if header.index_count <= 1:
            header = header._replace(begin_timestamp=timestamp, begin_phy_offset=offset)
        header = header._replace(
            end_timestamp=timestamp, end_phy_offset=offset, index_count=header.index_count + 1,
            hash_slot_count=header.hash_slot_count + (previous == 0),
        )  # fmt: skip
        data[:40] = header.pack()
    return [bytes(data) for data in files]


def index_at(directory: Path) -> HashIndex:
    return HashIndex(directory / "index", SLOTS, ENTRIES)


def contents(index: HashIndex) -> list[bytes]:
    return [index.path(name).read_bytes() for name in index.names()]


def put(index: HashIndex, rows: list[Row]) -> None:
    hashes, offsets, timestamps = (np.array([row[part] for row in rows], np.int64) for part in range(3))
    index.put(hashes.astype(np.int32), offsets, timestamps)


hashes = st.one_of(st.integers(0, 2**31 - 1), st.integers(0, 9))


@st.composite
def row_lists(draw: st.DrawFn) -> list[Row]:
    offset, timestamp, rows = draw(st.integers(0, 1000)), draw(st.integers(1, 10**12)), []
    for key_hash in draw(st.lists(hashes, max_size=50)):
        offset += draw(st.integers(0, 500))
        timestamp += draw(st.sampled_from([0, 1, 999, 1000, 5000, -3000, 3 * 10**12]))
        rows.append((key_hash, offset, max(timestamp, 1)))
    return rows


@given(rows=row_lists(), cuts=st.lists(st.integers(0, 50), max_size=4), together=st.integers(1, 50))
@settings(max_examples=60)
def test_bulk_and_single_puts_write_what_java_writes_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], cuts: list[int], together: int
) -> None:
    """Also where a put goes through more entries than are chained together, or they are many."""
    root = tmp_path_factory.mktemp("index")
    for directory in (root / "bulk", root / "many", root / "single"):
        directory.mkdir()
    bulk, many, single = index_at(root / "bulk"), index_at(root / "many"), index_at(root / "single")
    edges = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_file, "_PUT_ENTRIES", together)
        for low, high in pairwise(edges):
            put(bulk, rows[low:high])
        for low, high in pairwise([0, min(7, len(rows)), len(rows)]):
            with many.putting(SLOTS):
                for part in (rows[low : (low + high) // 2], rows[(low + high) // 2 : high]):
                    put(many, part)
    for key_hash, offset, timestamp in rows:
        single.put_one([key_hash], offset, timestamp)
    assert contents(bulk) == java_files(rows)
    assert contents(many) == java_files(rows)
    assert contents(single) == java_files(rows)
    assert bulk.names() == single.names()


@pytest.mark.parametrize("before", [0, 1, ENTRIES - 1, 2 * (ENTRIES - 1)])
@pytest.mark.parametrize("count", [1, 2, 3 * ENTRIES])
def test_one_timestamp_for_all_is_that_of_each(tmp_path: Path, before: int, count: int) -> None:
    """The first entry of a file counts from another time than the others."""
    index = index_at(tmp_path)
    rows = [(number, 100 * number, 10**12 + 5000 * number) for number in range(before)]
    put(index, rows)
    timestamp = 10**12 + 10**6
    keys, offsets = np.arange(count, dtype=np.int32), np.arange(count, dtype=np.int64) + 10**6
    index.put(keys, offsets, np.array([timestamp], np.int64))
    rows += [(int(key_hash), int(offset), timestamp) for key_hash, offset in zip(keys, offsets, strict=True)]
    assert contents(index) == java_files(rows)


@given(records=st.lists(st.lists(hashes, max_size=2 * ENTRIES), max_size=6))
@settings(max_examples=60)
def test_all_keys_of_a_record_give_what_java_writes_for_one_after_the_other(
    tmp_path_factory: pytest.TempPathFactory, records: list[list[int]]
) -> None:
    """They are written at once: several of a slot, and more than the file has room for, must not show."""
    index = index_at(tmp_path_factory.mktemp("index"))
    rows = []
    for number, key_hashes in enumerate(records, start=1):
        offset, timestamp = 100 * number, 10**12 + 1500 * number
        index.put_one(key_hashes, offset, timestamp)
        rows += [(key_hash, offset, timestamp) for key_hash in key_hashes]
    assert contents(index) == java_files(rows)


def test_slots_for_many_entries_are_written_when_all_have_come_or_their_file_is_full(tmp_path: Path) -> None:
    index = index_at(tmp_path)
    put(index, rows_of(2))
    before = index.newest().slots.tolist()  # type: ignore[union-attr]
    with index.putting(20):
        put(index, rows_of(5, 2))
        assert index.newest().slots.tolist() == before  # type: ignore[union-attr]
        put(index, rows_of(15, 7))
        full, newest = contents(index)
        assert full == java_files(rows_of(22))[0]
        assert newest[40 : 40 + 4 * SLOTS] == bytes(4 * SLOTS)
    assert contents(index) == java_files(rows_of(22))
    put(index, rows_of(1, 22))
    assert contents(index) == java_files(rows_of(23))


def test_for_few_entries_only_their_slots_are_written(tmp_path: Path) -> None:
    index = HashIndex(tmp_path / "index", 80, 100)
    with index.putting(4):
        put(index, rows_of(3))
        assert np.count_nonzero(index.newest().slots) == 3  # type: ignore[union-attr]


@pytest.mark.parametrize("count", [1, 1000, 5_000_000])
def test_slots_that_are_written_at_once_lie_in_cache_lines_as_in_the_file(count: int) -> None:
    """Otherwise readers in other processes saw one slot in 25 million half old and half new (x86-64, Linux 6.18)."""
    slots = index_file._slots_in_memory(count)
    assert (len(slots), slots.dtype) == (count, SLOT)
    assert (slots.ctypes.data - slot_position(0)) % 64 == 0


def test_a_failure_among_many_entries_leaves_what_a_restore_takes_back(tmp_path: Path) -> None:
    index = index_at(tmp_path)
    put(index, rows_of(2))
    before, state = contents(index), index.state()
    with pytest.raises(RuntimeError), index.putting(20):
        put(index, rows_of(5, 2))
        raise RuntimeError
    index.restore(state)
    assert contents(index) == before
    put(index, rows_of(3, 2))
    assert contents(index) == java_files(rows_of(5))


@given(rows=row_lists(), kept=st.integers(0, 50))
@settings(max_examples=60)
def test_restoring_a_state_gives_the_bytes_of_that_moment(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], kept: int
) -> None:
    index = index_at(tmp_path_factory.mktemp("index"))
    put(index, rows[:kept])
    before, state = contents(index), index.state()
    put(index, rows[kept:])
    index.restore(state)
    assert contents(index) == before
    put(index, rows[kept:])
    assert contents(index) == java_files(rows)


def rows_of(count: int, first: int = 0) -> list[Row]:
    return [(number * 7, 100 * number, 10**12 + 1000 * number) for number in range(first, first + count)]


@pytest.mark.parametrize("looked_at_together", [1, 2, 4, 100])
def test_a_cut_does_not_rely_on_slots_that_a_power_cut_made_old_or_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked_at_together: int
) -> None:
    monkeypatch.setattr(index_file, "_CUT_ENTRIES", looked_at_together)
    index = index_at(tmp_path)
    put(index, rows_of(5))
    before, state = contents(index), index.state()
    put(index, rows_of(4, 5))
    newest = index.newest()
    assert newest is not None
    newest.slots[:] = 11
    index_at(tmp_path).restore(state)
    assert contents(index) == before


def test_an_empty_index_comes_back_by_removing_all_files(tmp_path: Path) -> None:
    index = index_at(tmp_path)
    assert index.state() == EMPTY
    put(index, rows_of(30))
    assert len(index.names()) == 3
    index.restore(EMPTY)
    assert (index.names(), index.state()) == ((), EMPTY)


@pytest.mark.statement("F04", "F07")
def test_files_are_named_after_their_first_message_and_never_alike(tmp_path: Path) -> None:
    index = index_at(tmp_path)
    put(index, [(1, number, 1_700_000_000_123) for number in range(30)])
    first = index.names()[0]
    assert index.names() == (first, first + 1, first + 2)
    assert str(first).endswith("123")


def test_a_file_that_another_process_unlinked_is_not_written(tmp_path: Path) -> None:
    """Its append was undone; ours goes on where the index really ends."""
    index, other = index_at(tmp_path), index_at(tmp_path)
    put(index, rows_of(3))
    state = other.state()
    put(index, rows_of(20, 3))
    other.restore(state)
    put(index, rows_of(1, 3))
    assert contents(index) == java_files(rows_of(4))


def test_a_file_that_another_process_continued_is_continued(tmp_path: Path) -> None:
    index, other = index_at(tmp_path), index_at(tmp_path)
    for number in range(30):
        put((index, other)[number % 2], rows_of(1, number))
    assert contents(index) == java_files(rows_of(30))


@pytest.mark.parametrize("many", [True, False], ids=["many", "one"])
def test_slots_show_entries_and_the_header_shows_slots_behind_a_fence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    """On ARM a reader would otherwise follow a slot to an entry that is not there yet."""
    index = index_at(tmp_path)
    put(index, [(0, 100, 1_000)])
    (name,) = index.names()
    seen: list[tuple[bool, int, int]] = []

    def fence() -> None:
        file = IndexFile(index.path(name), SLOTS, ENTRIES, writable=False)
        entry = index.path(name).read_bytes()[40 + 4 * SLOTS + 20 * 2 :][:20]
        seen.append((entry != bytes(20), int(file.slots[3]), file.header.index_count))

    monkeypatch.setattr(native, "release_fence", fence)
    if many:
        put(index, [(3, 200, 2_000)])
    else:
        index.put_one([3], 200, 2_000)
    assert seen == [(True, 0, 2), (True, 2, 2)], "entry, then slot, then header"


def test_foreign_names_are_passed_over(tmp_path: Path) -> None:
    index = index_at(tmp_path)
    put(index, rows_of(3))
    (index.directory / "notes.txt").write_text("")
    assert len(index.names()) == 1


def test_a_file_of_another_size_is_refused_and_its_descriptor_closed_once(tmp_path: Path) -> None:
    path = tmp_path / "20230101000000000"
    path.write_bytes(bytes(100))
    with pytest.raises(CorruptIndexError, match="100 bytes, not"):
        IndexFile(path, SLOTS, ENTRIES)


def test_the_end_of_the_index_and_of_its_newest_full_file_are_known(tmp_path: Path) -> None:
    index = index_at(tmp_path)
    assert (index.end_offset(), index.newest_full_timestamp()) == (-1, 0)
    put(index, rows_of(5))
    assert (index.end_offset(), index.newest_full_timestamp()) == (400, 0)
    put(index, rows_of(20, 5))
    assert (index.end_offset(), index.newest_full_timestamp()) == (2400, 10**12 + 21_000)
    index.remove_newest()
    assert index.end_offset() == 2100
