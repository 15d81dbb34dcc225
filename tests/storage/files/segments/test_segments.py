"""Runs of equally sized files: created whole, zeroed in place, unlinked; never grown or shrunk."""

from __future__ import annotations

import errno
import gc
import os
import stat
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from rmq_store.errors import CorruptionError, NotAStoreError, StoreFailedError, StoreFullError
from rmq_store.files import durable
from rmq_store.files.locks.lock import OfdLock
from rmq_store.files.segments.open_files import OpenFiles, data_ranges
from rmq_store.files.segments.segments import FsyncError, SegmentRun

SIZE = 8192

MakeRun = Callable[..., SegmentRun]


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    yield
    durable.hook = None


@pytest.fixture
def make(tmp_path: Path) -> MakeRun:
    (tmp_path / "pyrmq").mkdir()

    def run(
        *, files: OpenFiles | None = None, writable: bool = True, sparse: bool = False, pin: bool = False
    ) -> SegmentRun:
        return SegmentRun(tmp_path / "commitlog", SIZE, files or OpenFiles(), writable=writable, sparse=sparse, pin=pin)

    return run


def fail_at(operation: str, code: int) -> None:
    def hook(name: str, path: str) -> None:
        if name == operation:
            raise OSError(code, os.strerror(code))

    durable.hook = hook


def test_a_missing_directory_has_no_files(make: MakeRun) -> None:
    assert make().bases() == []
    assert not make().data_beyond(0)


def test_files_are_named_by_their_first_byte_and_listed_in_order(make: MakeRun) -> None:
    run = make()
    for base in (2 * SIZE, 0, SIZE):
        run.create(base)
    for name in ("notes", "1" * 19, "1" * 21, "٠" * 20):
        (run.directory / name).write_bytes(b"")
    assert run.bases() == [0, SIZE, 2 * SIZE]
    assert run.path(SIZE).name == "00000000000000008192"
    assert (run.base_of(SIZE - 1), run.base_of(SIZE)) == (0, SIZE)


@pytest.mark.parametrize(("sparse", "allocated"), [(False, True), (True, False)])
def test_a_new_file_has_its_size_private_modes_and_blocks_unless_sparse(
    make: MakeRun, sparse: bool, allocated: bool
) -> None:
    run = make(sparse=sparse)
    run.create(0)
    state = run.path(0).stat()
    assert (state.st_size, stat.S_IMODE(state.st_mode)) == (SIZE, 0o600)
    assert stat.S_IMODE(run.directory.stat().st_mode) == 0o700
    assert (state.st_blocks * 512 >= SIZE) is allocated


def test_creating_again_changes_nothing(make: MakeRun) -> None:
    run = make()
    run.create(0)
    run.write(0, b"x")
    run.create(0)
    assert run.open(0).map[:1] == b"x"


@pytest.mark.parametrize("operation", ["allocate", "fsync", "rename"])
def test_a_file_appears_under_its_name_whole_or_not_at_all(make: MakeRun, operation: str) -> None:
    run = make()
    fail_at(operation, errno.ENOSPC)
    with pytest.raises(StoreFullError):
        run.create(0)
    assert run.bases() == []
    assert list((run.directory.parent / "pyrmq").iterdir()) == []
    durable.hook = None
    run.create(0)
    assert run.bases() == [0]


def test_a_file_is_synced_before_it_gets_its_name(make: MakeRun) -> None:
    """Otherwise a power cut can leave a short file, and Java refuses to load the store."""
    operations: list[str] = []
    run = make()
    run.directory.mkdir()
    durable.hook = lambda name, path: operations.append(name)
    run.create(0)
    assert operations == ["open", "allocate", "fsync", "rename", "fsync_directory"]


def test_a_file_of_the_wrong_size_is_refused_before_it_is_mapped(make: MakeRun) -> None:
    run = make()
    run.create(0)
    os.truncate(run.path(0), SIZE - 1)
    with pytest.raises(CorruptionError, match="8191 bytes, not 8192"):
        make().open(0)


def test_a_symbolic_link_is_not_followed(make: MakeRun, tmp_path: Path) -> None:
    run = make()
    run.create(0)
    victim = tmp_path / "victim"
    run.path(0).rename(victim)
    run.path(0).symlink_to(victim)
    with pytest.raises(NotAStoreError):
        make().open(0)


def test_written_bytes_are_seen_through_maps_made_before(make: MakeRun) -> None:
    run, reader = make(), make(writable=False)
    run.create(0)
    view = np.frombuffer(reader.open(0).map, np.uint8)
    run.write(5, b"abc")
    assert view[5:8].tobytes() == b"abc"
    assert not view.flags.writeable


def test_failed_writes_are_typed(make: MakeRun) -> None:
    run = make()
    run.create(0)
    for code, expected in ((errno.ENOSPC, StoreFullError), (errno.EIO, StoreFailedError)):
        fail_at("write", code)
        with pytest.raises(expected):
            run.write(0, b"x")


def test_zeroing_covers_exactly_the_range_over_all_files(make: MakeRun) -> None:
    run = make()
    for base in (0, SIZE, 2 * SIZE):
        run.create(base)
        run.write(base, b"\xff" * SIZE)
    run.zero(100, 2 * SIZE + 50)
    log = b"".join(run.path(base).read_bytes() for base in run.bases())
    assert log == b"\xff" * 100 + bytes(2 * SIZE - 50) + b"\xff" * (SIZE - 50)
    assert all(run.path(base).stat().st_size == SIZE for base in run.bases())


def test_zeroing_writes_nothing_where_zeros_are(make: MakeRun) -> None:
    run = make()
    run.create(0)
    assert run.zero(0, 10 * SIZE) == 0
    run.write(10, b"x")
    assert run.zero(0, 10 * SIZE) > 0
    assert run.zero(0, 10 * SIZE) == 0


def test_zeroing_a_sparse_file_reads_only_its_data(make: MakeRun) -> None:
    run = make(sparse=True)
    run.create(0)
    fd = run.open(0).fd
    assert data_ranges(fd, 0, SIZE) == []
    run.write(5000, b"x")
    assert data_ranges(fd, 0, SIZE) == [(4096, 8192)]
    assert data_ranges(fd, 0, 4096) == []
    assert data_ranges(fd, 5000, 5001) == [(5000, 5001)]


@pytest.mark.parametrize(
    ("at", "start", "found"), [(0, 0, True), (0, 1, False), (SIZE, 1, True), (SIZE, SIZE + 1, False)]
)
def test_data_beyond_an_offset_are_found(make: MakeRun, at: int, start: int, found: bool) -> None:
    run = make()
    run.create(0)
    run.create(SIZE)
    run.write(at, b"x")
    assert run.data_beyond(start) is found


def test_sync_covers_the_files_of_the_range_and_the_names_that_begin_in_it(make: MakeRun) -> None:
    run = make()
    for base in (0, SIZE, 2 * SIZE):
        run.create(base)
    done: list[tuple[str, str]] = []
    durable.hook = lambda name, path: done.append((name, Path(path).name)) if name.startswith("fsync") else None
    run.sync(10, 20)
    assert done == [("fsync", run.path(0).name)]
    done.clear()
    run.sync(10, SIZE + 1)
    assert done == [("fsync", run.path(0).name), ("fsync", run.path(SIZE).name), ("fsync_directory", "commitlog")]
    done.clear()
    run.sync(SIZE + 10, SIZE + 20)
    assert done == [("fsync", run.path(SIZE).name)]
    done.clear()
    run.sync(0, 20)
    assert ("fsync_directory", "commitlog") in done


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_leaves_the_disk_unknown_whatever_the_reason(make: MakeRun, code: int) -> None:
    run = make()
    run.create(0)
    fail_at("fsync", code)
    with pytest.raises(FsyncError):
        run.sync(0, 1)


def test_rewriting_writes_exactly_the_same_bytes(make: MakeRun) -> None:
    run = make()
    content = os.urandom(2 * SIZE)
    for base in (0, SIZE):
        run.create(base)
        run.write(base, content[base : base + SIZE])
    written: list[str] = []
    durable.hook = lambda name, path: written.append(Path(path).name) if name == "write" else None
    run.rewrite(SIZE - 10, SIZE + 10)
    assert written == [run.path(0).name, run.path(SIZE).name]
    assert b"".join(run.path(base).read_bytes() for base in (0, SIZE)) == content


def test_a_map_survives_the_unlinking_of_its_file(make: MakeRun) -> None:
    run = make()
    run.create(0)
    run.write(0, b"kept")
    view = run.open(0).buffer
    run.remove(0)
    gc.collect()
    assert view[:4].to_pybytes() == b"kept"
    with pytest.raises(FileNotFoundError):
        run.open(0)


def test_a_file_that_took_the_name_of_an_unlinked_one_is_the_one_opened(make: MakeRun) -> None:
    run, other = make(), make()
    run.create(0)
    run.write(0, b"old")
    other.remove(0)
    other.create(0)
    other.write(0, b"new")
    assert run.open(0).map[:3] == b"new"


def test_the_least_recently_used_file_is_closed_first(make: MakeRun) -> None:
    run = make(files=OpenFiles(2))
    for base in (0, SIZE, 2 * SIZE):
        run.create(base)
    first, second = run.open(0), weakref.ref(run.open(SIZE))
    assert run.open(0) is first
    run.open(2 * SIZE)
    assert run.open(0) is first
    assert second() is None


def test_files_that_are_used_by_turns_are_asked_for_once(make: MakeRun) -> None:
    """The way through OpenFiles made a look-up in a log of many files longer than in one of a single file."""
    run = make()
    bases = (0, SIZE, 2 * SIZE)
    for base in bases:
        run.create(base)
    files = [run.open(base) for base in bases]
    with mock.patch.object(run._files, "get") as asked:
        assert [run.open(base) for base in bases] == files
    asked.assert_not_called()


def test_of_more_files_than_may_be_open_none_is_remembered_for_ever(make: MakeRun) -> None:
    run = make(files=OpenFiles(2))
    with mock.patch("rmq_store.files.segments.segments.OPEN_FILES_MAX", 2):
        for base in range(0, 5 * SIZE, SIZE):
            run.create(base)
            run.open(base)
            assert len(run._known) <= 2


def test_the_file_that_was_used_last_is_not_kept_open_for_that(make: MakeRun) -> None:
    """It would be when its store is closed, and when retention wants its space back."""
    run = make()
    run.create(0)
    gc.collect()  # what earlier tests have closed
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    run.write(0, b"data")
    run._files.clear()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    assert run.open(0).map[:4] == b"data"


def test_descriptors_are_closed_with_the_last_user(make: MakeRun) -> None:
    run = make(files=OpenFiles(1))
    for base in (0, SIZE):
        run.create(base)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(20):
        for base in (0, SIZE):
            assert run.open(base).map[:1] == b"\0"
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) - before <= 2  # noqa: PTH208


def test_a_readers_segments_are_pinned_against_retention(make: MakeRun) -> None:
    writer, reader = make(), make(writable=False, pin=True)
    writer.create(0)
    cleaner = OfdLock(writer.path(0))
    file = reader.open(0)
    assert not cleaner.try_exclusive()
    reader._files.clear()
    del file
    assert cleaner.try_exclusive()
    cleaner.close()


def test_segments_that_a_reader_asks_for_again_are_pinned_again(make: MakeRun) -> None:
    writer, reader = make(), make(writable=False, pin=True)
    writer.create(0)
    cleaner = OfdLock(writer.path(0))
    reader.open(0)
    reader._files.unpin()
    assert cleaner.try_exclusive()
    cleaner.release()
    reader.open(0)
    assert not cleaner.try_exclusive()
    cleaner.close()


def test_a_newest_file_of_no_bytes_is_dropped(make: MakeRun) -> None:
    run = make()
    run.drop_empty_newest()
    run.create(0)
    run.drop_empty_newest()
    assert run.bases() == [0]
    run.path(SIZE).write_bytes(b"")
    run.drop_empty_newest()
    assert run.bases() == [0]


def test_an_extent_that_cannot_be_looked_up_is_no_hole(make: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken for one, a stale tail would not be cut, and a copy of the file would end there (ext4 answers EIO)."""
    run = make()
    run.create(0)
    run.write(100, b"data")

    def lseek(fd: int, position: int, how: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "lseek", lseek)
    for look in (lambda: run.data_beyond(0), lambda: run.data_end(0, 0), lambda: run.zero(0, SIZE)):
        with pytest.raises(StoreFailedError, match=r"00000: Input/output error"):
            look()


def test_a_new_file_is_not_forgotten_for_others_that_were_used(tmp_path: Path) -> None:
    for base in (0, SIZE):
        (tmp_path / f"{base:020d}").write_bytes(bytes(SIZE))
    run = SegmentRun(tmp_path, SIZE, OpenFiles(1), writable=False, sparse=True, pin=False)
    run.open(0)
    assert run.open(0).is_used
    newest = weakref.ref(run.open(SIZE))
    assert newest() is not None
    assert newest() is run.open(SIZE)
