"""Searching the index: the same answers as RocketMQ's walk, told step by step, and as a look at every entry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_store.errors import CorruptIndexError, CorruptionError
from rmq_store.files.segments import listing
from rmq_store.files.segments.open_files import OpenFile, OpenFiles
from rmq_store.format.bytes import native
from rmq_store.format.views.index import IndexHeader, entry_position, slot_position
from rmq_store.log.views import index_map, index_search
from rmq_store.log.views.hash_index import HashIndex
from rmq_store.log.views.index_search import IndexSearch

SLOTS, ENTRIES = 5, 12
UNBOUNDED = (1 << 63) - 1

Row = tuple[int, int, int]
"""Key hash, log offset, storeTimestamp."""


@dataclass
class Bench:
    """An index of small files, and a search that opens its files anew."""

    directory: Path
    rows: list[Row] = field(default_factory=list)

    @property
    def index(self) -> HashIndex:
        return HashIndex(self.directory, SLOTS, ENTRIES)

    def put(self, rows: list[Row]) -> None:
        hashes, offsets, times = (np.array([row[part] for row in rows], np.int64) for part in range(3))
        self.index.put(hashes.astype(np.int32), offsets, times)
        self.rows += rows

    def candidates(self, *hashes: int, log_range: tuple[int, int] = (0, UNBOUNDED)) -> list[int]:
        search = IndexSearch(self.index, OpenFiles())
        pieces = list(search.candidates(np.array(hashes, np.int32), log_range))
        return sorted(np.concatenate(pieces).tolist()) if pieces else []

    def newest_first(
        self, key_hash: int, begin_ms: int = 0, end_ms: int = UNBOUNDED, log_range: tuple[int, int] = (0, UNBOUNDED)
    ) -> Iterator[int]:
        search = IndexSearch(self.index, OpenFiles())
        list(search.newest_first(SLOTS - 1, 0, UNBOUNDED, log_range))  # from now on it knows the files
        return search.newest_first(key_hash, begin_ms, end_ms, log_range)

    def path(self, number: int) -> Path:
        return self.index.path(self.index.names()[number])

    def write(self, position: int, value: int, number: int = -1) -> None:
        with self.path(number).open("r+b") as file:
            file.seek(position)
            file.write(value.to_bytes(4, "big", signed=True))


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories that changed right before count as known, too."""
    monkeypatch.setattr(listing, "_SETTLED_NS", -1_000_000_000)


@pytest.fixture(params=["python", "extension"])
def bench(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Bench:
    if request.param == "extension" and not native.LOADED:
        pytest.skip("the extension was not built, or RMQ_PURE=1")
    monkeypatch.setattr(native, "LOADED", request.param == "extension")
    return Bench(tmp_path / "index")


def java_query(bench: Bench, key_hash: int, begin: int, end: int) -> list[int]:
    """IndexService#queryOffset without a limit, from the bytes of the files."""
    found = []
    for name in reversed(bench.index.names()):
        data = bench.index.path(name).read_bytes()
        header = IndexHeader.unpack(data[:40])
        first, last, count = header.begin_timestamp, header.end_timestamp, header.index_count

        def integer(at: int, width: int, data: bytes = data) -> int:
            return int.from_bytes(data[at : at + width], "big", signed=True)

        if (begin < first and end > last) or first <= begin <= last or first <= end <= last:
            number = integer(slot_position(key_hash % SLOTS), 4)
            while 0 < number <= count and count > 1:
                at = entry_position(SLOTS, number)
                seconds, previous = integer(at + 12, 4), integer(at + 16, 4)
                if seconds < 0:
                    break
                moment = first + seconds * 1000
                if integer(at, 4) == key_hash and begin <= moment <= end:
                    found.append(integer(at + 4, 8))
                if previous <= 0 or previous > count or previous == number or moment < begin:
                    break
                number = previous
        if first < begin:
            break
    return found


rows_lists = st.lists(
    st.tuples(st.sampled_from([0, 1, 5, 6, 2**31 - 1]), st.integers(0, 2), st.integers(-1500, 2500)), max_size=60
)


@pytest.mark.statement("F08")
@settings(max_examples=60)
@given(rows_lists, st.lists(st.sampled_from([0, 1, 5, 6, 7, 2**31 - 1]), unique=True), st.integers(1, 4), st.data())
def test_all_entries_of_many_keys_are_found(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], wanted: list[int], steps_max: int, data: st.DataObject
) -> None:
    bench = filled(tmp_path_factory, rows)
    offsets = [offset for _, offset, _ in bench.rows] or [0]
    start, end = sorted(data.draw(st.sampled_from([*offsets, 0, max(offsets) + 1])) for _ in range(2))
    expected = sorted(offset for key_hash, offset, _ in bench.rows if key_hash in wanted and start <= offset < end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_map, "_STEPS_MAX", steps_max)  # long chains are read in a row
        patch.setattr(index_map, "_BLOCK_ENTRIES", 3)
        found = bench.candidates(*wanted, log_range=(start, end))
        patch.setattr(native, "LOADED", False)
        assert bench.candidates(*wanted, log_range=(start, end)) == found
    assert sorted(set(found)) == sorted(set(expected))
    for key_hash in wanted:
        newest = list(bench.newest_first(key_hash, log_range=(start, end)))
        assert newest == sorted(newest, reverse=True)
        assert set(newest) == {o for h, o, _ in bench.rows if h == key_hash and start <= o < end}


@pytest.mark.statement("F08")
@settings(max_examples=60)
@given(rows_lists, st.integers(0, 60_000), st.integers(0, 60_000))
def test_one_key_is_searched_as_rocketmq_does(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], one_ms: int, other_ms: int
) -> None:
    """With its times of whole seconds, and the first entry of a file that may count from the file before."""
    bench = filled(tmp_path_factory, rows)
    begin, end = sorted((1_000_000 + one_ms, 1_000_000 + other_ms))
    for window in ((begin, end), (0, end), (begin, UNBOUNDED)):
        for key_hash in (0, 1, 5, 6, 7):
            assert list(bench.newest_first(key_hash, *window)) == java_query(bench, key_hash, *window)


def test_one_key_is_searched_up_to_the_first_entry_before_the_window(bench: Bench) -> None:
    """With a clock that was set back RocketMQ stops too early; `candidates` looks at no times."""
    bench.put([(1, 10, 1_000_000), (1, 20, 1_010_000), (1, 30, 1_002_000), (2, 40, 1_020_000)])
    assert list(bench.newest_first(1, 1_008_000)) == java_query(bench, 1, 1_008_000, UNBOUNDED) == []
    assert bench.candidates(1) == [10, 20, 30]


def test_files_are_searched_up_to_the_first_that_begins_before_the_window(bench: Bench) -> None:
    """With a clock that was set back RocketMQ does not look into older files, whatever their times are."""
    bench.put([(1, 10 * number, 2_000_000) for number in range(ENTRIES - 1)])
    bench.put([(1, 500, 1_000_000)])
    assert list(bench.newest_first(1, 1_500_000)) == java_query(bench, 1, 1_500_000, UNBOUNDED) == []


def test_a_window_that_begins_with_a_file_goes_on_to_the_file_before(bench: Bench) -> None:
    bench.put([(1, 10 * number, 1_000_000) for number in range(ENTRIES + 2)])
    found = list(bench.newest_first(1, 1_000_000))
    assert found == java_query(bench, 1, 1_000_000, UNBOUNDED) == [10 * n for n in reversed(range(ENTRIES + 2))]


def test_a_file_outside_the_window_is_not_searched_whatever_its_entries_say(bench: Bench) -> None:
    """The first entry of a file counts from the end of the file before, so its time may lie behind the file's last."""
    bench.put([(1, 10 * number, 1_000_000) for number in range(ENTRIES - 1)])
    bench.put([(1, 500, 1_100_000), (2, 510, 1_101_000)])
    assert list(bench.newest_first(1, 1_150_000)) == java_query(bench, 1, 1_150_000, UNBOUNDED) == []
    assert list(bench.newest_first(1, 1_101_000)) == java_query(bench, 1, 1_101_000, UNBOUNDED) == [500]


def filled(factory: pytest.TempPathFactory, steps: list[Row]) -> Bench:
    """`steps`: key hash, and by how much offset and time grow."""
    bench = Bench(factory.mktemp("search") / "index")
    offset, time_ms, rows = 0, 1_000_000, []
    for key_hash, bytes_on, ms_on in steps:
        offset, time_ms = offset + bytes_on, time_ms + ms_on
        rows.append((key_hash, offset, time_ms))
    if rows:
        bench.put(rows)
    return bench


def test_a_store_without_index_files_has_no_candidates(bench: Bench) -> None:
    assert bench.candidates(1) == []
    assert list(bench.newest_first(1)) == []


@pytest.mark.parametrize(
    "damage",
    ["slot behind the file", "negative slot", "slot before the file", "another slot's", "negative hash", "forwards"],
)
def test_a_damaged_chain_is_an_error_that_says_what_helps(bench: Bench, damage: str) -> None:
    bench.put([(1, 10, 5000), (6, 20, 6000), (2, 30, 7000)])
    if damage == "slot behind the file":
        bench.write(slot_position(1), ENTRIES)
    elif damage == "negative slot":
        bench.write(slot_position(1), -1)
    elif damage == "slot before the file":
        bench.write(slot_position(1), -100_000_000)
    elif damage == "another slot's":
        bench.write(slot_position(1), 3)
    elif damage == "negative hash":
        bench.write(entry_position(SLOTS, 2), 1 - SLOTS)  # of this slot as numpy and Python count, of none as Java does
    else:
        bench.write(entry_position(SLOTS, 2) + 16, 2)  # the older entry is itself
    for search in (lambda: bench.candidates(6), lambda: list(bench.newest_first(6))):
        with pytest.raises(CorruptIndexError, match="rmq repair --index"):
            search()
    assert bench.candidates(3) == []


def test_a_negative_time_ends_the_walk_of_one_key(bench: Bench) -> None:
    """As in RocketMQ; `candidates` looks at no times."""
    bench.put([(1, 10, 5000), (6, 20, 6000), (1, 30, 7000)])
    bench.write(entry_position(SLOTS, 2) + 12, -1)
    assert list(bench.newest_first(1)) == java_query(bench, 1, 0, UNBOUNDED) == [30]
    assert list(bench.newest_first(1, 1)) == java_query(bench, 1, 1, UNBOUNDED) == [30]
    assert bench.candidates(1) == [10, 30]


def test_a_chain_that_an_append_changes_is_read_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was taken back has been zeroed, and an old slot has led there."""
    bench.put([(1, 10, 5000), (6, 20, 6000)])
    bench.write(slot_position(1), 3)
    opened = index_search.IndexMap

    class Late(opened):  # type: ignore[misc, valid-type]
        tries = 0

        def chain(self, *arguments: object) -> Iterator[int]:
            self._again()
            yield from super().chain(*arguments)

        def chains(self, *arguments: object) -> Iterator[np.ndarray]:
            self._again()
            yield from super().chains(*arguments)

        def _again(self) -> None:
            type(self).tries += 1
            if self.tries % 3 == 0:
                bench.write(slot_position(1), 2)

    monkeypatch.setattr(index_search, "IndexMap", Late)
    assert bench.candidates(1, 6) == [10, 20]
    assert Late.tries == 3
    bench.write(slot_position(1), 3)
    assert list(bench.newest_first(6)) == [20]
    assert Late.tries == 6


@pytest.mark.parametrize("size_bytes", [0, 40, 60, 4096])
def test_a_file_that_is_being_made_has_nothing_yet(bench: Bench, size_bytes: int) -> None:
    """By an append under way, or one that was killed; a file that was cut has a header."""
    bench.put([(1, 10 * number, 5000) for number in range(ENTRIES + 2)])
    newest = bench.path(-1)
    newest.write_bytes(bytes(size_bytes))
    assert bench.candidates(1) == [10 * number for number in range(ENTRIES - 1)]


def test_an_older_file_is_not_being_made(bench: Bench) -> None:
    bench.put([(1, 10 * number, 5000) for number in range(ENTRIES + 2)])
    bench.path(0).write_bytes(bytes(60))
    for search in (lambda: bench.candidates(1), lambda: list(bench.newest_first(1))):
        with pytest.raises(CorruptIndexError, match="rmq repair --index"):
            search()


def test_a_file_of_a_wrong_size_is_an_error(bench: Bench) -> None:
    bench.put([(1, 10 * number, 5000) for number in range(2 * ENTRIES)])
    for number in (0, -1):
        path = bench.path(number)
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        with pytest.raises(CorruptIndexError, match="rmq repair --index"):
            bench.candidates(1)
        path.write_bytes(whole)
    assert len(bench.candidates(1)) == 2 * ENTRIES


def test_a_file_that_gets_its_size_meanwhile_is_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was too short when it was opened, and holds something when that is looked into."""
    bench.put([(1, 10 * number, 5000) for number in range(3)])
    opened, tries = OpenFiles.get, []

    def late(files: OpenFiles, path: str, *size: int, **how: bool) -> OpenFile:
        tries.append(path)
        if len(tries) == 1:
            raise CorruptionError(path, 0, "the file has 0 bytes")
        return opened(files, path, *size, **how)

    monkeypatch.setattr(OpenFiles, "get", late)
    assert bench.candidates(1) == [0, 10, 20]
    assert len(tries) == 2


def test_a_file_that_retention_takes_meanwhile_is_passed_over(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put([(1, 10 * number, 5000) for number in range(ENTRIES)])
    names = bench.index.names()
    monkeypatch.setattr(HashIndex, "names", lambda index: [names[0] - 1, *names])
    assert len(bench.candidates(1)) == ENTRIES
