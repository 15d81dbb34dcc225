"""All files of an index asked at once for one key: the same answer as file by file, or none at all."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_store.files.segments import listing
from rmq_store.files.segments.open_files import OpenFiles
from rmq_store.format.bytes import native
from rmq_store.format.views.index import entry_position, file_size, slot_position
from rmq_store.log.views import index_search
from rmq_store.log.views.hash_index import HashIndex
from rmq_store.log.views.index_map import BrokenChainError, IndexMap, newest_entries
from rmq_store.log.views.index_search import IndexSearch

pytestmark = pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")

SLOTS, ENTRIES = 5, 12
ALWAYS, EVERYWHERE = (0, (1 << 63) - 1), (0, (1 << 63) - 1)


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories that changed right before count as known, too."""
    monkeypatch.setattr(listing, "_SETTLED_NS", -1_000_000_000)


def filled(directory: Path, rows: list[tuple[int, int, int]]) -> HashIndex:
    """`rows`: key hash, log offset, storeTimestamp."""
    index = HashIndex(directory, SLOTS, ENTRIES)
    hashes, offsets, times = (np.array([row[part] for row in rows], np.int64) for part in range(3))
    index.put(hashes.astype(np.int32), offsets, times)
    return index


def looked_at(index: HashIndex) -> IndexSearch:
    """A search that knows all files."""
    search = IndexSearch(index, OpenFiles())
    list(search.newest_first(0, *ALWAYS, EVERYWHERE))
    return search


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was asked of all files at once."""
    calls: list[object] = []

    def watched(maps: tuple[mmap.mmap, ...], *arguments: object) -> list[int] | None:
        found = newest_entries(maps, *arguments)  # type: ignore[arg-type]
        calls.append(None if found is None else len(maps))
        return found

    monkeypatch.setattr(index_search, "newest_entries", watched)
    return calls


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 5, 6]), st.integers(0, 2), st.integers(-1500, 2500)), min_size=1, max_size=60
    ),
    st.lists(st.integers(0, 60_000), min_size=2, max_size=2).map(sorted),
    st.booleans(),
    st.tuples(st.integers(0, 40), st.integers(0, 90)),
)  # fmt: skip
def test_one_call_finds_what_a_walk_through_each_file_finds(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, int, int]],
    window: list[int],
    is_timed: bool,
    log_range: tuple[int, int],
) -> None:
    offset, time_ms, rows = 0, 1_000_000, []
    for key_hash, bytes_on, ms_on in steps:
        offset, time_ms = offset + bytes_on, time_ms + ms_on
        rows.append((key_hash, offset, time_ms))
    index = filled(tmp_path_factory.mktemp("index") / "index", rows)
    times = (1_000_000 + window[0], 1_000_000 + window[1]) if is_timed else ALWAYS
    for key_hash in (0, 1, 5, 6, 7):
        by_file = list(IndexSearch(index, OpenFiles()).newest_first(key_hash, *times, log_range))
        search = looked_at(index)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(IndexMap, "chain", None)  # no file is asked by itself
            assert list(search.newest_first(key_hash, *times, log_range)) == by_file


def test_files_that_come_and_go_are_noticed(tmp_path: Path, asked: list[object]) -> None:
    """Each time the directory has another time, on any file system."""
    index = filled(tmp_path / "index", [(1, 10 * number, 5000) for number in range(ENTRIES + 2)])
    os.utime(index.directory, ns=(0, 0))
    search = looked_at(index)
    one = np.array([1], np.int32), np.array([7000]), np.array([9000])
    assert len(list(search.newest_first(1, *ALWAYS, EVERYWHERE))) == ENTRIES + 2
    assert asked == [2]
    for _ in range(ENTRIES):
        index.put(*one)
    os.utime(index.directory, ns=(0, 10**9))
    assert list(search.newest_first(1, *ALWAYS, EVERYWHERE))[:1] == [7000]
    index.path(index.names()[0]).unlink()
    os.utime(index.directory, ns=(0, 2 * 10**9))
    assert min(search.newest_first(1, *ALWAYS, EVERYWHERE)) == 10 * (ENTRIES - 1)
    assert asked == [2]
    list(search.newest_first(1, *ALWAYS, EVERYWHERE))
    assert asked == [2, 2]


def test_files_that_another_thread_forgets_meanwhile_are_asked_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its walk does that meets a file which is just being made."""
    index = filled(tmp_path / "index", [(1, 10, 5000)])
    search = looked_at(index)
    names = index.names

    def meanwhile() -> Sequence[int]:
        search._known = None
        return names()

    monkeypatch.setattr(index, "names", meanwhile)
    assert list(search.newest_first(1, *ALWAYS, EVERYWHERE)) == [10]


@pytest.mark.parametrize("window", [(1 << 63, 1 << 64), (-(1 << 64), -(1 << 63) - 1), (-(1 << 64), 1 << 64)])
def test_times_that_no_clock_shows_have_the_same_answer_from_all_files_at_once(
    tmp_path: Path, window: tuple[int, int], asked: list[object]
) -> None:
    index = filled(tmp_path / "index", [(1, 10, 5000)])
    by_file = list(IndexSearch(index, OpenFiles()).newest_first(1, *window, EVERYWHERE))
    assert by_file == ([10] if window[0] < 0 < window[1] else [])
    assert list(looked_at(index).newest_first(1, *window, EVERYWHERE)) == by_file
    assert asked == [1]


def test_an_entry_that_was_added_to_a_known_file_is_found(tmp_path: Path, asked: list[object]) -> None:
    index = filled(tmp_path / "index", [(1, 10, 5000)])
    search = looked_at(index)
    index.put(np.array([1], np.int32), np.array([20]), np.array([6000]))
    assert list(search.newest_first(1, *ALWAYS, EVERYWHERE)) == [20, 10]
    assert asked == [1]


def read_only_maps(directory: Path) -> list[str]:
    """Those of searches; an index that appends has others."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if str(directory) in line and " r--s " in line]


def test_files_that_were_forgotten_are_not_kept_open(tmp_path: Path, asked: list[object]) -> None:
    """Their space on the disk would stay taken."""
    index = filled(tmp_path / "index", [(1, 10, 5000)])
    files = OpenFiles()
    search = IndexSearch(index, files)
    for _ in range(2):
        list(search.newest_first(1, *ALWAYS, EVERYWHERE))
    assert len(read_only_maps(tmp_path)) == 1
    files.clear()
    assert read_only_maps(tmp_path) == []
    assert list(search.newest_first(1, *ALWAYS, EVERYWHERE)) == [10]
    assert asked == [1]


def test_a_key_of_many_messages_is_looked_for_file_by_file(tmp_path: Path, asked: list[object]) -> None:
    for count, found_at_once in ((64, 6), (65, None)):
        index = filled(tmp_path / f"{count}", [(1, number, 5000) for number in range(count)])
        found = list(looked_at(index).newest_first(1, *ALWAYS, EVERYWHERE))
        assert found == list(reversed(range(count)))
        assert asked.pop() == found_at_once


@pytest.mark.parametrize("damage", ["slot", "entry", "negative", "time"])
def test_a_damaged_file_is_left_to_who_can_say_what_is_wrong(tmp_path: Path, damage: str) -> None:
    index = filled(tmp_path / "index", [(1, 10, 5000), (6, 20, 6000)])
    window = ALWAYS
    with index.path(index.names()[0]).open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        if damage == "slot":
            view[slot_position(1) : slot_position(2)] = b"\x7f" * 4
        elif damage == "entry":
            view[entry_position(SLOTS, 2) : entry_position(SLOTS, 2) + 4] = b"\0\0\0\2"
        elif damage == "negative":  # of slot 0 as C counts, of none as Java does
            view[slot_position(0) : slot_position(1)] = b"\0\0\0\2"
            view[entry_position(SLOTS, 2) : entry_position(SLOTS, 2) + 4] = (-SLOTS).to_bytes(4, "big", signed=True)
            view[entry_position(SLOTS, 2) + 16 : entry_position(SLOTS, 3)] = bytes(4)
            assert newest_entries((view,), (SLOTS, ENTRIES), 5, window, EVERYWHERE) is None
        else:
            view[0:8], window = b"\x7f" * 8, (1, (1 << 63) - 1)
        assert newest_entries((view,), (SLOTS, ENTRIES), 6, window, EVERYWHERE) is None
        assert newest_entries((view,), (SLOTS, ENTRIES), 2, ALWAYS, EVERYWHERE) == []


def damaged_file(chance: np.random.Generator) -> bytearray:
    """A sound file, and up to three words in it that something else was written into, more often than not a number
    that could be an entry's.
    """
    slots, words = [0] * SLOTS, []
    for number in range(1, ENTRIES):
        key_hash = int(chance.integers(0, 12))
        words += [key_hash, 0, 100 * number, 0, slots[key_hash % SLOTS]]
        slots[key_hash % SLOTS] = number
    all_words = np.array([0] * 10 + slots + [0] * 5 + words, ">i4")
    for _ in range(int(chance.integers(0, 4))):
        low, high = (-2, ENTRIES + 2) if chance.random() < 0.7 else (-(1 << 31), 1 << 31)
        all_words[chance.integers(0, len(all_words))] = chance.integers(low, high)
    return bytearray(all_words.tobytes())


def test_damaged_chains_are_followed_as_python_follows_them(tmp_path: Path) -> None:
    chance = np.random.default_rng(7)
    path = tmp_path / "file"
    outcomes: list[object] = []
    for _ in range(400):
        path.write_bytes(damaged_file(chance))
        hashes = chance.integers(0, 12, 6).astype(np.int32)
        log_range = (int(chance.integers(-5, 600)), int(chance.integers(500, 1500)))
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            answers = []
            for loaded in (False, True):
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(native, "LOADED", loaded)
                    answers.append(answer(IndexMap(view, SLOTS, ENTRIES).chains(hashes, log_range)))
            assert answers[0] == answers[1]
            outcomes.append(answers[0] == "broken")
            one = newest_entries((view,), (SLOTS, ENTRIES), int(hashes[0]), ALWAYS, log_range)
            window = (*ALWAYS, 0)
            by_file = answer(np.array([found]) for found in IndexMap(view, SLOTS, ENTRIES).chain(
                int(hashes[0]), window, log_range))  # fmt: skip
            assert one == by_file or (one is None and isinstance(by_file, str))
    assert 40 < sum(map(bool, outcomes)) < 360


def answer(pieces: Iterator[np.ndarray]) -> list[int] | str:
    """What is found, or that some entry is wrong."""
    found: list[int] = []
    try:
        for piece in pieces:
            found += piece.tolist()
    except BrokenChainError:
        return "broken"
    return found


def test_nothing_is_read_that_is_no_index_file() -> None:
    data = np.tile(np.array([0, 0, 0, 1], np.uint8), file_size(SLOTS, ENTRIES) // 4 + 5)[:-20]  # more lies behind
    one, found = np.ones(1, np.int32), np.zeros(1, np.int64)
    functions = native.functions
    for slots, entries in ((SLOTS, ENTRIES + 1), (0, 28), (-1, 1), (1 << 40, 1)):
        with pytest.raises(ValueError, match="another geometry"):
            functions.newest_entries((data,), slots, entries, 1, 0, 1, 0, 1)
        with pytest.raises(ValueError, match="another geometry"):
            functions.read_slots(data, slots, entries, one, one.copy())
        with pytest.raises(ValueError, match="another geometry"):
            functions.follow_chains(data, slots, entries, one, one.copy(), one.copy(), 0, 1, found)
    with pytest.raises(ValueError, match="negative"):
        functions.newest_entries((data,), SLOTS, ENTRIES, -1, 0, 1, 0, 1)
    with pytest.raises(ValueError, match="negative"):
        functions.read_slots(data, SLOTS, ENTRIES, -one, one.copy())
    with pytest.raises(ValueError, match="1 items"):
        functions.follow_chains(data, SLOTS, ENTRIES, one, one.copy(), one.copy(), 0, 1, np.zeros(2, np.int64))
    for number, above, key_hash in ((0, 5, 1), (-1, 5, 1), (5, 5, 1), (ENTRIES, ENTRIES + 9, 1), (1, 5, -1)):
        arrays = (np.array([value], np.int32) for value in (key_hash, number, above))
        assert functions.follow_chains(data, SLOTS, ENTRIES, *arrays, 0, 1, found) == (0, 0, 0)
    assert functions.newest_entries((), SLOTS, ENTRIES, 1, 0, 1, 0, 1) == []
