"""The sizes of an existing store's files are read off the files, or refused; never guessed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.errors import CorruptIndexError, CorruptionError, UsageError
from rmq_store.log.core.geometry import Geometry, infer
from rmq_store.log.views.hash_index import HashIndex

DEFAULT = Geometry(64 << 20, 6_000_000, 1_000_000, 4_000_000)
JAVA_DEFAULT = Geometry(1 << 30, 6_000_000, 5_000_000, 20_000_000)
INDEX_NAMES = frozenset({"max_hash_slot_num", "max_index_num"})


def make_index(root: Path, slots: int, entries: int, rows: int, *, keys_per_record: int = 1) -> HashIndex:
    index = HashIndex(root / "index", slots, entries)
    numbers = np.arange(rows)
    offsets = 100 + 200 * (numbers // keys_per_record)
    index.put(
        (numbers * 7919 % 2**31).astype(np.int32), offsets.astype(np.int64), 10**12 + 10 * numbers.astype(np.int64)
    )
    return index


def test_an_empty_store_gets_the_sizes_asked_for(tmp_path: Path) -> None:
    assert infer(tmp_path, DEFAULT) == DEFAULT


@pytest.mark.parametrize(
    ("fixture", "store", "expected"),
    [
        ("golden", "store", None),
        ("golden_crash", "store", Geometry(1 << 20, 12_000, 1000, 4000)),
        ("golden_crash", "store-torn", Geometry(1 << 20, 12_000, 1000, 4000)),
        ("golden_small", "normal", Geometry(4096, 200, 100, 20)),
        ("golden_small", "propcrc", Geometry(4096, 200, 100, 20)),
        ("golden_small", "crash", Geometry(4096, 200, 100, 20)),
    ],
)
def test_the_sizes_of_every_broker_store_are_found_whatever_we_expected(
    request: pytest.FixtureRequest, fixture: str, store: str, expected: Geometry | None
) -> None:
    root: Path = request.getfixturevalue(fixture) / store
    found = infer(root, DEFAULT)
    assert found == infer(root, JAVA_DEFAULT)
    segment = next((root / "commitlog").iterdir())
    assert found.mapped_file_size_commit_log == segment.stat().st_size
    for path in (root / "index").iterdir():
        assert path.stat().st_size == 40 + 4 * found.max_hash_slot_num + 20 * found.max_index_num
    if expected is not None:
        assert found == expected


@pytest.mark.parametrize("geometry", [DEFAULT, JAVA_DEFAULT], ids=["ours", "a broker's"])
def test_the_default_index_files_are_recognised(tmp_path: Path, geometry: Geometry) -> None:
    make_index(tmp_path, geometry.max_hash_slot_num, geometry.max_index_num, 300)
    for expectation in (DEFAULT, JAVA_DEFAULT):
        found = infer(tmp_path, expectation)
        assert (found.max_hash_slot_num, found.max_index_num) == (geometry.max_hash_slot_num, geometry.max_index_num)


@pytest.mark.parametrize("rows", [2, 3, 50, 98, 99, 250])
@pytest.mark.parametrize("keys_per_record", [1, 4])
def test_an_index_is_recognised_at_any_degree_of_filling(tmp_path: Path, rows: int, keys_per_record: int) -> None:
    make_index(tmp_path, 60, 100, rows, keys_per_record=keys_per_record)
    if rows > keys_per_record:
        found = infer(tmp_path, DEFAULT)
        assert (found.max_hash_slot_num, found.max_index_num) == (60, 100)


@pytest.mark.parametrize("ours", [True, False])
def test_an_index_file_that_retention_takes_while_it_is_looked_at_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: bool
) -> None:
    """Here the older one, while the newest is being made and has no size yet."""
    index = make_index(tmp_path, 60, 100, 250)
    older, newest = (index.path(name) for name in index.names()[-2:])
    newest.write_bytes(b"")
    looked_at = "rmq_store.log.core.geometry.is_index_file_name"
    monkeypatch.setattr(looked_at, lambda name: older.unlink(missing_ok=True) or True)
    found = infer(tmp_path, Geometry(64 << 20, 6_000_000, 60, 100), ours=ours)
    assert (found.max_hash_slot_num, found.max_index_num) == (60, 100)


def ambiguous(root: Path) -> HashIndex:
    """One record with one key: zeros around the only entry fit several geometries."""
    index = HashIndex(root / "index", 60, 100)
    index.put(np.array([0], np.int32), np.array([4096]), np.array([10**12]))
    file = index.newest()
    assert file is not None
    return index


def test_an_index_that_fits_several_geometries_is_refused_with_advice(tmp_path: Path) -> None:
    index = ambiguous(tmp_path)
    path = index.path(index.names()[0])
    data = bytearray(path.read_bytes())
    # The same entry where a file of 55 slots and 101 entries would have it.
    at = 40 + 4 * 60 + 20
    data[at + 20 - 40 : at + 40 - 40] = data[at : at + 20]
    path.write_bytes(data)
    with pytest.raises(CorruptIndexError, match="2 geometries fit: give maxHashSlotNum and maxIndexNum"):
        infer(tmp_path, DEFAULT)
    chosen = infer(tmp_path, replace(DEFAULT, max_hash_slot_num=60, max_index_num=100))
    assert (chosen.max_hash_slot_num, chosen.max_index_num) == (60, 100)


def test_an_index_without_an_entry_has_the_size_asked_for_or_is_refused(tmp_path: Path) -> None:
    """A broker of 4.9 makes the file for messages without keys, too."""
    path = tmp_path / "index" / f"{20260101000000000}"
    path.parent.mkdir()
    asked = replace(DEFAULT, max_hash_slot_num=60, max_index_num=100)
    path.write_bytes(bytes(40 + 4 * 60 + 20 * 100))
    assert infer(tmp_path, asked, INDEX_NAMES) == asked
    with pytest.raises(CorruptIndexError, match="no geometry fits: give maxHashSlotNum and maxIndexNum"):
        infer(tmp_path, DEFAULT)
    damage: list[CorruptIndexError] = []
    assert infer(tmp_path, DEFAULT, without_index=damage) == DEFAULT
    assert damage


def test_a_brokers_store_with_such_an_index_is_written_to_without_it(tmp_path: Path) -> None:
    config = StoreConfig(max_hash_slot_num=60, max_index_num=100)
    with Store.open(tmp_path / "store", create=True, config=config) as store:
        store.send(Message("Orders", b"1", queue_id=0))
    shutil.rmtree(tmp_path / "store" / "pyrmq")
    path = tmp_path / "store" / "index" / f"{20260101000000000}"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(40 + 4 * 60 + 20 * 100))
    with Store.open(tmp_path / "store") as store:
        store.send(Message("Orders", b"2", queue_id=0))
        assert store.queue_range("Orders", 0) == (0, 2)


@pytest.fixture
def with_a_second_reading(tmp_path: Path) -> Path:
    """The path of a file of 50 slots that fits 45 as well: there entry n is the one before.

    The log's first record has two keys, and the last one too; its offset 0 is also in entry 0, which is never used.
    No key is in one of the last five slots, so that both see as many slots in use.
    """
    index = HashIndex(tmp_path / "index", 50, 200)
    hashes = [number for number in range(11, 1000, 7) if number % 50 < 45][:80]
    offsets = np.arange(80, dtype=np.int64) // 2 * 200
    index.put(np.array(hashes, np.int32), offsets, 10**12 + offsets)
    return index.path(index.names()[0])


@pytest.mark.parametrize("rotten", [None, "key_hash", "previous", "slot"])
def test_where_two_geometries_fit_the_chains_decide(
    tmp_path: Path, with_a_second_reading: Path, rotten: str | None
) -> None:
    data = bytearray(with_a_second_reading.read_bytes())
    at = {None: 0, "key_hash": 240 + 20 * 70, "previous": 240 + 20 * 70 + 16, "slot": 40 + 4 * 11}
    if rotten:
        data[at[rotten] : at[rotten] + 4] = (1).to_bytes(4, "big")
    with_a_second_reading.write_bytes(data)
    found = infer(tmp_path, DEFAULT)
    assert (found.max_hash_slot_num, found.max_index_num) == (50, 200)


def test_sizes_that_fit_but_for_the_chains_are_refused(tmp_path: Path, with_a_second_reading: Path) -> None:
    with pytest.raises(UsageError, match="the index files have 50, 200"):
        infer(tmp_path, replace(DEFAULT, max_hash_slot_num=45, max_index_num=201), INDEX_NAMES)


def test_an_index_that_fits_no_geometry_is_refused(tmp_path: Path) -> None:
    index = make_index(tmp_path, 60, 100, 50)
    path = index.path(index.names()[0])
    data = bytearray(path.read_bytes())
    data[300:2000] = bytes(1700)
    path.write_bytes(data)
    with pytest.raises(CorruptIndexError, match=r"no geometry fits.*`rmq repair --index`"):
        infer(tmp_path, DEFAULT)


def test_a_file_that_a_writer_is_writing_does_not_hide_the_geometry_we_know(tmp_path: Path) -> None:
    """A second process opens the store while the first one has written slots, but not yet the header."""
    index = make_index(tmp_path, 60, 100, 50)
    file = index.newest()
    assert file is not None
    file.slots[:] = 99
    given = replace(DEFAULT, max_hash_slot_num=60, max_index_num=100)
    assert infer(tmp_path, given) == given


def test_older_files_speak_for_a_newest_one_that_a_broker_left_torn(tmp_path: Path) -> None:
    index = make_index(tmp_path, 60, 100, 150)
    file = index.newest()
    assert file is not None
    file.slots[:] = 99
    found = infer(tmp_path, DEFAULT)
    assert (found.max_hash_slot_num, found.max_index_num) == (60, 100)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for name, size in (("commitlog", 8192), ("consumequeue/Topic/0", 400)):
        directory = tmp_path / name
        directory.mkdir(parents=True)
        (directory / f"{0:020d}").write_bytes(bytes(size))
    make_index(tmp_path, 60, 100, 50)
    return tmp_path


def test_every_size_of_a_store_is_found(store: Path) -> None:
    assert infer(store, DEFAULT) == Geometry(8192, 400, 60, 100)


@pytest.mark.parametrize(
    "change",
    [
        {"mapped_file_size_commit_log": 4096},
        {"mapped_file_size_consume_queue": 200},
        {"max_hash_slot_num": 61},
        {"max_index_num": 101},
        {"max_hash_slot_num": 55, "max_index_num": 101},  # the same file size
    ],
)
def test_a_size_that_contradicts_the_files_is_refused(store: Path, change: dict[str, int]) -> None:
    right = Geometry(8192, 400, 60, 100)
    named = frozenset(Geometry.__slots__)
    assert infer(store, right, named) == right
    with pytest.raises(UsageError, match="asked for"):
        infer(store, replace(right, **change), named)
    assert infer(store, replace(right, **change)) == right  # not named: only a guess


@pytest.mark.parametrize("directory", ["commitlog", "consumequeue/Topic/0"])
def test_files_of_different_sizes_are_refused(store: Path, directory: str) -> None:
    (store / directory / f"{8000:020d}").write_bytes(bytes(100))
    with pytest.raises(CorruptionError, match="100 bytes"):
        infer(store, DEFAULT)


def test_a_newest_file_of_no_bytes_is_what_a_dying_broker_leaves(store: Path) -> None:
    (store / "commitlog" / f"{8192:020d}").write_bytes(b"")
    assert infer(store, DEFAULT).mapped_file_size_commit_log == 8192


@pytest.mark.parametrize(
    "sizes",
    [
        (4095, 400, 60, 100),
        (1 << 31, 400, 60, 100),
        (8192, 0, 60, 100),
        (8192, 401, 60, 100),
        (8192, 400, 0, 100),
        (8192, 400, 60, 1),
    ],
)
def test_sizes_that_no_broker_could_use_are_refused(sizes: tuple[int, int, int, int]) -> None:
    with pytest.raises(UsageError):
        Geometry(*sizes)


def test_the_store_says_so_when_an_option_contradicts_it(
    golden_small: Path, working_copy: Callable[[Path], Path]
) -> None:
    root = working_copy(golden_small / "normal")
    with Store.open(root):
        pass
    with pytest.raises(UsageError, match="asked for"):
        Store.open(root, config=StoreConfig(max_hash_slot_num=77))
