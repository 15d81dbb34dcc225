"""After a failed write-back nothing that the page cache shows is believed to be on the disk: files are made anew.

Rebello et al., USENIX ATC 2020; that ext4 needs new blocks, and not the same bytes again, is what
tests/crash/write_back.py found.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmq_store import Store
from rmq_store.errors import StoreFailedError, StoreFullError
from rmq_store.files import durable

if TYPE_CHECKING:
    from .conftest import Lab


def fail(operation: str, part: str) -> None:
    """Let an operation on a path with this part fail from now on."""

    def hook(name: str, path: str) -> None:
        if name.startswith(operation) and part in path:
            raise OSError(errno.EIO, "Input/output error")

    durable.hook = hook


def inodes(lab: Lab) -> dict[str, int]:
    return {
        str(path.relative_to(lab.root)): path.stat().st_ino
        for name in ("commitlog", "consumequeue", "index")
        for path in (lab.root / name).rglob("*")
        if path.is_file()
    }


def write_and_fail(lab: Lab) -> None:
    """A writer is killed after one of its flushes failed; a batch had been flushed before."""
    with lab.open():
        pass

    def work(store: Store) -> None:
        store.append(lab.batch(40))
        store.flush()
        store.append(lab.batch(40))
        fail("fsync", "commitlog/")
        with pytest.raises(StoreFailedError):
            store.flush()

    lab.crash(work)
    lab.written += 80


def write_behind(lab: Lab) -> int:
    """The same in a store that was closed cleanly; where its log ended then."""
    with lab.open() as store:
        end = store.log_range()[1]

    def work(store: Store) -> None:
        store.append(lab.batch(40))
        fail("fsync", "commitlog/")
        with pytest.raises(StoreFailedError):
            store.flush()

    lab.crash(work)
    lab.written += 40
    return end


def queues(files: dict[str, int]) -> set[str]:
    return {name.rsplit("/", 1)[0] for name in files if name.startswith("consumequeue/")}


def test_after_a_failed_flush_log_and_views_are_written_to_new_files(lab: Lab) -> None:
    write_and_fail(lab)
    before, files = inodes(lab), lab.files()
    with lab.open() as store:
        assert lab.numbers(store) == list(range(80))
        after = inodes(lab)
    assert before.keys() == after.keys()
    assert not set(before.values()) & set(after.values())
    assert lab.files() == files
    assert lab.verify().status == "clean"


def test_new_files_have_their_names_on_disk_before_anything_else_is_written(lab: Lab) -> None:
    """A power cut must not bring back the old file of a segment, and leave the new one of a queue."""
    write_and_fail(lab)
    done: list[tuple[str, Path]] = []
    durable.hook = lambda operation, path: done.append((operation, Path(path)))
    lab.open().close()
    durable.hook = None
    renames = [at for at, (operation, path) in enumerate(done) if operation == "rename" and path.name.isdigit()]
    behind = done[renames[-1] + 1 :]
    directories = {done[at][1].parent for at in renames}
    assert len(directories) == 6  # the log, four queues, the index
    assert set(behind[:6]) == {("fsync_directory", directory) for directory in directories}


@pytest.mark.parametrize("reboot", [False, True])
def test_a_recovery_whose_sync_fails_is_not_believed_by_the_next_one(lab: Lab, reboot: bool) -> None:
    """syncfs tells of an error that nobody had heard of; it tells only once."""
    lab.crash(lambda store: store.append(lab.batch(40)))
    lab.written += 40
    if reboot:
        lab.reboot()
    fail("syncfs", "")
    with pytest.raises(StoreFailedError):
        lab.open()
    durable.hook = None
    before = inodes(lab)
    with lab.open() as store:
        assert lab.numbers(store) == list(range(40))
        assert not set(before.values()) & set(inodes(lab).values())


@pytest.mark.parametrize("reboot", [False, True])
@pytest.mark.parametrize(
    ("operation", "part", "renewed"),
    [("write", "consumequeue/", False), ("syncfs", "", True), ("write", "store/lock", False)],
)
def test_only_a_first_opener_that_is_killed_while_it_syncs_leaves_files_in_doubt(
    lab: Lab, operation: str, part: str, renewed: bool, reboot: bool
) -> None:
    """Its syncfs may have been told of an error. Before that nothing was told, and to copy what an hour has written
    each time that a slow recovery is killed would never come to an end.
    """
    with lab.open() as store:
        store.append(lab.batch(20))
    lab.crash(lambda store: store.append(lab.batch(20)))
    lab.written += 20
    shutil.rmtree(lab.root / "index")  # so that all is scanned, and dispatched again
    before = inodes(lab)

    def die() -> None:
        durable.hook = lambda name, path: os._exit(9) if name == operation and part in path else None
        lab.open()

    if reboot:
        lab.reboot()
    assert lab.in_child(die) == 9
    with lab.open() as store:
        assert lab.numbers(store) == list(range(40))
        after = inodes(lab)
    same = {name for name in before if after[name] == before[name]}
    assert same == (set() if renewed else set(before))


def test_who_is_killed_while_he_syncs_for_a_writer_that_died_in_its_fsync_leaves_files_in_doubt(lab: Lab) -> None:
    """Of an error that the dead writer had not heard of, he may have been told."""

    def die_in(operation: str) -> None:
        durable.hook = lambda name, path: os._exit(9) if name == operation else None

    def leave_unsynced() -> None:
        store = lab.open()
        store.append(lab.batch(40))
        die_in("fsync")
        store.flush()

    def live_on() -> None:
        store = lab.open()
        assert lab.in_child(leave_unsynced) == 9
        die_in("syncfs")
        store.flush()

    with lab.open() as store:
        store.append(lab.batch(0))
    assert lab.in_child(live_on) == 9
    lab.written += 40
    before = inodes(lab)
    with lab.open() as store:
        assert lab.numbers(store) == list(range(40))
        assert not set(before.values()) & set(inodes(lab).values())


def test_a_writer_that_was_just_killed_leaves_its_files_in_use(lab: Lab) -> None:
    lab.crash(lambda store: store.append(lab.batch(40)))
    before = inodes(lab)
    for _ in range(2):
        with lab.open():
            assert inodes(lab) == before


@pytest.mark.parametrize("operation", ["allocate", "write", "fsync", "rename"])
def test_a_renewal_that_fails_leaves_whole_files_and_is_done_again(lab: Lab, operation: str) -> None:
    write_and_fail(lab)
    files = lab.files()
    fail(operation, "consumequeue" if operation in ("allocate", "rename") else "/new-")
    with pytest.raises((StoreFailedError, StoreFullError)):
        lab.open()
    durable.hook = None
    assert lab.files() == files
    assert not list((lab.root / "pyrmq").glob("new-*"))
    with lab.open() as store:
        assert lab.numbers(store) == list(range(80))
    assert lab.files() == files
    assert lab.verify().status == "clean"


def set_back(path: Path, progress: Path) -> None:
    """Let a file look as if it was written two hours before the progress record."""
    os.utime(path, ns=(0, progress.stat().st_mtime_ns - 2 * 3_600 * 10**9))


def renewed_files(lab: Lab) -> set[str]:
    before = inodes(lab)
    with lab.open():
        return {name for name, inode in inodes(lab).items() if inode != before[name]}


def test_what_was_written_behind_the_progress_record_is_made_anew_whatever_the_clock_said(lab: Lab) -> None:
    """The clock was set back before the writes: by their times the files were old, and on the disk."""
    write_and_fail(lab)
    for name in inodes(lab):
        set_back(lab.root / name, lab.root / "pyrmq" / "progress")
    assert renewed_files(lab) == inodes(lab).keys()


def test_what_the_progress_record_vouches_for_is_not_made_anew(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(70))
    lab.written += 70
    old = inodes(lab)
    end = write_behind(lab)
    for name in old:
        set_back(lab.root / name, lab.root / "pyrmq" / "progress")
    # Of the log, each queue and the index the file that was written on has to be copied.
    written_on = {f"commitlog/{end - end % 8192:020d}", f"index/{max(name for name in old if 'index/' in name)[6:]}"}
    written_on |= {max(name for name in old if name.startswith(f"{queue}/")) for queue in queues(old)}
    renewed = renewed_files(lab)
    assert renewed >= set(inodes(lab)) - set(old)
    assert renewed & set(old) == written_on
    assert lab.verify().status == "clean"
