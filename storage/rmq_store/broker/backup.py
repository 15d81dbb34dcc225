"""A consistent copy of a store that other processes write, without stopping them. The source is only read.

What each step leaves out is what the next ones must not see (docs/operations.md):

    B1  offsets, POP state, unit table        before the end is taken: none of them is ahead of the copied log
    B2  the end; the segments below it pinned the end always lies between two appends, so a unit is in or out as a whole
    B3  topics and groups                     after it: every message of the copy has its topic
    B4  the log, segment by segment           each record is checked in the copy, and put into new queues and index
    B5  queues whose messages retention took  their next offset stays what it is
    B6  opened and closed, renamed            before this the target does not exist

A store that a broker wrote last is copied file by file instead, and only while nobody uses it: a broker gives no end
that a copy could trust.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

import numpy as np
import numpy.typing as npt

from rmq_store.broker.config import StoreConfig, StoreFile, parse_delay_levels
from rmq_store.broker.store import Store
from rmq_store.errors import CorruptRecordError, OffsetOutOfRangeError, StoreLockedError, UsageError
from rmq_store.files import durable
from rmq_store.files.copying import copy_start
from rmq_store.files.lock import OfdLock, lock_shared_quietly
from rmq_store.files.progress import ProgressRecord
from rmq_store.files.segments import OpenFile
from rmq_store.format.consume_queue import ENTRY
from rmq_store.format.names import COMMIT_LOG_DIRECTORY, CONFIG_DIRECTORY, LOCK_FILE
from rmq_store.log import scan
from rmq_store.log.commit_log import CommitLog
from rmq_store.log.hash_index import EMPTY
from rmq_store.log.starting_point import OUR_LOCK_TEXT, lock_text
from rmq_store.log.views import QueueKey

Progress = Callable[[int, int, int], None]
"""(messages so far, bytes so far, bytes in all)"""

# What belongs to the processes that use the store, or to one copy of it. `lock` in a directory of POP state, too.
_NOT_COPIED = frozenset(("state", "progress", "staging", "removed", "groups", LOCK_FILE))
_NOT_COPIED_SUFFIXES = (".lock", ".tmp")

_AFTER_THE_END = ("topics.json", "subscriptionGroup.json")

# Descriptors that are held open so that retention passes over their segments: it takes the oldest first.
_PINNED_MAX = 256

Entries = npt.NDArray[np.void]
_Wanted = Callable[[PurePath], bool]


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What was copied: the log [start, end), its records (those of our system topics, too), and the bytes of it; of a
    broker's store, which is copied as it is, no records are counted. `identity`: that of the store, "" if it has none.
    """

    source: str
    target: str
    identity: str
    start: int
    end: int
    record_count: int
    copied_bytes: int


def backup(path: str | Path, target: str | Path, *, progress: Progress | None = None) -> BackupReport:
    """Copy the store at `path` to `target`, a new directory, while other processes of ours go on writing it.

    The copy is a cleanly stopped store: every message that was acknowledged before the call, later ones up to one
    moment, units as a whole, the same queue offsets, topics, groups, group offsets and identity. On return it is on
    disk; until then `target` does not exist. Nothing at `path` is changed. `progress` is called after every file.

    Raises:
        UsageError: `target` exists, or cannot be made.
        NotAStoreError: no store at `path`.
        StoreLockedError: a RocketMQ broker runs on the store (its pid is named), or somebody opens a store that a
            broker wrote last.
        CorruptRecordError: a record of the store is damaged; repair it first.
        OffsetOutOfRangeError: retention removed a segment by force while it waited to be copied; run it again.
        StoreFullError, StoreFailedError: the copy could not be written.
    """
    new = Path(os.path.normpath(Path(target).absolute()))
    tell = progress or (lambda messages, done, total: None)
    with Store.open(path, read_only=True) as store:
        _check_target(store.path, new)
        try:
            with _workshop(new) as made:
                if lock_text(_log(store.path, store.config, writable=False)) == OUR_LOCK_TEXT:
                    report = _Backup(store, made, tell).run(new)
                else:
                    report = _copy_at_rest(store, made, new, tell)
                durable.before("rename", new)
                made.rename(new)
                durable.fsync_directory(new.parent)
        except OSError as error:
            raise durable.translate(error, new) from error
    return report


def _check_target(root: Path, target: Path) -> None:
    if target.exists() or target.is_symlink():
        raise UsageError(f"{target} exists: a backup makes a directory of its own")
    if not target.parent.is_dir():
        raise UsageError(f"{target}: {target.parent} is no directory")
    if target.parent.resolve().is_relative_to(root.resolve()):
        raise UsageError(f"{target} lies in the store itself")


@contextlib.contextmanager
def _workshop(target: Path) -> Iterator[Path]:
    """A directory beside `target` to build the copy in, gone afterwards; what killed backups left goes, too."""
    prefix, suffix = f".{target.name}.", ".partial"
    for leftover in target.parent.iterdir():
        if leftover.name.startswith(prefix) and leftover.name.endswith(suffix):
            with contextlib.closing(OfdLock(leftover / LOCK_FILE)) as lock:
                if lock.try_exclusive():
                    shutil.rmtree(leftover)
    directory = Path(tempfile.mkdtemp(suffix, prefix, target.parent))
    lock = OfdLock(directory / LOCK_FILE)
    try:
        lock.try_exclusive()
        durable.make_directory(directory / "store")
        yield directory / "store"
    finally:
        lock.close()
        shutil.rmtree(directory, ignore_errors=True)


def _log(root: Path, config: StoreConfig, *, writable: bool) -> CommitLog:
    return CommitLog(
        root,
        config.geometry(),
        writable=writable,
        index_enabled=config.message_index_enable,
        index_tags=config.message_index_tags,
        clock=lambda: 0,
        sync_flush=config.flush_disk_type == "SYNC_FLUSH",
        crc_property=config.enabled_append_prop_crc,
        delay_levels_ms=parse_delay_levels(config.message_delay_level),
    )


class _Backup:
    """One copy of a store of ours."""

    def __init__(self, store: Store, made: Path, tell: Progress) -> None:
        self._store = store
        self._source = _log(store.path, store.config, writable=False)
        self._copy = _log(made, store.config, writable=True)
        self._made = made
        self._tell = tell
        self._records = 0
        self._done_bytes = 0
        self._last_record = -1
        self._timestamp = 0

    def run(self, target: Path) -> BackupReport:
        if (pid := self._source.store_lock.posix_holder()) is not None:
            raise StoreLockedError(f"{self._store.path}: a RocketMQ broker (process {pid}) runs on the store", pid)
        try:
            start, end = self._copy_all()
        finally:
            self._source.close()
            self._copy.close()
        with Store.open(self._made):
            pass  # the first opener finds everything in place; the last closer leaves a clean store
        if lock_text(self._source) != OUR_LOCK_TEXT:
            raise StoreLockedError(f"{self._store.path}: a RocketMQ broker was started on the store meanwhile", None)
        return BackupReport(
            str(self._store.path), str(target), self._store.identity, start, end, self._records, end - start
        )

    def _copy_all(self) -> tuple[int, int]:
        root = self._store.path
        for name in (CONFIG_DIRECTORY, COMMIT_LOG_DIRECTORY, "pyrmq"):
            durable.make_directory(self._made / name)
        _copy_tree(
            root / CONFIG_DIRECTORY, self._made / CONFIG_DIRECTORY,
            lambda path: _is_kept(path) and not _comes_after(path),
        )  # fmt: skip
        _copy_tree(root / "pyrmq", self._made / "pyrmq", _is_kept)
        self._store.refresh()
        end = self._store.log_range()[1]
        segments, start = self._pinned(end)
        _copy_tree(root / CONFIG_DIRECTORY, self._made / CONFIG_DIRECTORY, _comes_after)
        gone = self._queues_without_messages(start, end)
        self._copy.views.restore_index(EMPTY)
        self._tell(0, 0, end - start)
        for base, file in segments:
            self._copy_segment(base, file, start, end)
        for (topic, queue_id), queue_offset, entry in gone:
            self._copy.views.queue(topic, queue_id).put(queue_offset, entry)
        self._vouch(end)
        return start, end

    def _pinned(self, end: int) -> tuple[Iterator[tuple[int, OpenFile]], int]:
        """The segments below `end`, pinned, and where the log begins: that is settled once the first one is pinned."""
        run = self._source.segments
        while True:
            bases = [base for base in run.bases() if base < end]
            ahead: deque[tuple[int, OpenFile]] = deque()
            try:
                ahead.extend((base, run.open(base)) for base in bases[:_PINNED_MAX])
            except FileNotFoundError:
                continue  # retention was faster
            break
        start = bases[0] if bases else end
        if bases and bases != list(range(start, end, run.size_bytes)):
            missing = min(set(range(start, end, run.size_bytes)) - set(bases))
            raise self._source.missing_segment(missing)

        def walk() -> Iterator[tuple[int, OpenFile]]:
            waiting = iter(bases[_PINNED_MAX:])
            while ahead:
                oldest = ahead.popleft()
                for base in itertools.islice(waiting, 1):
                    try:
                        ahead.append((base, run.open(base)))
                    except FileNotFoundError as error:
                        raise OffsetOutOfRangeError(
                            f"{run.path(base)}: retention removed it before it was copied; run the backup again",
                            base, self._source.start(), end,
                        ) from error  # fmt: skip
                yield oldest

        return walk(), start

    def _queues_without_messages(self, start: int, end: int) -> list[tuple[QueueKey, int, Entries]]:
        """(queue, offset, entry) of the newest message of each queue whose messages all lie below `start`."""
        found = []
        for key in self._source.views.keys():
            last = self._source.queue_max(*key, end)
            if last:
                entry = self._source.views.queue(*key).entries(last - 1, last)
                if entry["commit_log_offset"][0] < start:
                    found.append((key, last - 1, entry.astype(ENTRY)))
        return found

    def _copy_segment(self, base: int, file: OpenFile, start: int, end: int) -> None:
        run = self._copy.segments
        limit = min(base + run.size_bytes, end)
        copy_start(file.fd, run.path(base), limit - base, run.size_bytes)
        try:
            for stretch in scan.walk(self._copy, base, limit):
                if stretch.stopped:
                    raise CorruptRecordError(file.path, stretch.end, stretch.stopped)
                if len(stretch.positions):
                    self._dispatch(stretch)
        except CorruptRecordError as error:
            raise CorruptRecordError(file.path, error.offset, error.reason) from error
        self._tell(self._records, limit - start, end - start)

    def _dispatch(self, stretch: scan.Stretch) -> None:
        columns = scan.columns_of(self._copy, stretch)
        for key, first, entries in scan.entries_by_queue(columns, stretch):
            self._copy.views.queue(*key).put(first, entries)
        offsets = stretch.base + stretch.positions
        self._copy.views.put_keys(columns.key_hashes, columns.key_counts, offsets, columns.store_timestamp)
        self._records += len(offsets)
        self._last_record = int(offsets[-1])
        self._timestamp = int(columns.store_timestamp[-1])

    def _vouch(self, end: int) -> None:
        """Say that log and views are complete, and whose store this is: opening it has nothing to repair then.

        They get onto the disk when it is opened, and before it has its name.
        """
        index, last = self._copy.views.index_state(), self._last_record
        self._copy.progress.write(
            ProgressRecord(end, last, end, index.file, index.header, clean=False, timestamp=self._timestamp)
        )
        durable.write_atomically(self._made / LOCK_FILE, OUR_LOCK_TEXT)


def _comes_after(path: PurePath) -> bool:
    return path.name.removesuffix(".bak") in _AFTER_THE_END


def _is_kept(path: PurePath) -> bool:
    return path.name not in _NOT_COPIED and path.suffix not in _NOT_COPIED_SUFFIXES and not path.name.startswith("new-")


def _copy_tree(source: Path, target: Path, wanted: _Wanted) -> None:
    """Copy the files of a directory that are `wanted` (asked for directories, too). A file that vanishes on the way
    was somebody's temporary one.
    """
    try:
        entries = sorted(os.scandir(source), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    for entry in entries:
        path = Path(entry.path)
        if entry.is_dir() and wanted(path):
            durable.make_directory(target / entry.name)
            _copy_tree(path, target / entry.name, wanted)
        elif not entry.is_dir() and wanted(path):
            with contextlib.suppress(FileNotFoundError):
                _copy_file(path, target / entry.name)


def _copy_file(source: Path, target: Path) -> None:
    fd = durable.open_nofollow(source, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        copy_start(fd, target, size, size)
    finally:
        os.close(fd)


def _copy_at_rest(store: Store, made: Path, target: Path, tell: Progress) -> BackupReport:
    """Copy all files of a store that nobody uses. A broker that is started meanwhile is kept out by its own lock."""
    log = _log(store.path, store.config, writable=False)
    guard = None
    try:
        if (holder := log.store_lock.who()).kind != "free":
            raise StoreLockedError(
                f"{log.root}: a RocketMQ broker wrote this store last, and process {holder.pid} uses it now. Stop it "
                "first: only a store of our own can be copied while it is written",
                holder.pid,
            )
        with contextlib.suppress(FileNotFoundError):
            guard = durable.open_nofollow(store.path / LOCK_FILE, os.O_RDONLY)
            lock_shared_quietly(guard)
        before = _stamps(store.path)
        start, end = store.log_range()
        total, done = sum(size for size, _, _ in before.values()), 0
        tell(0, 0, total)
        for name in sorted(before):
            for parent in reversed(PurePath(name).parents[:-1]):
                durable.make_directory(made / parent)
            _copy_file(store.path / name, made / name)
            done += before[name][0]
            tell(0, done, total)
        if log.store_lock.posix_holder() is not None or _stamps(store.path) != before:
            raise StoreLockedError(f"{store.path}: somebody changed the store while it was copied", None)
    finally:
        if guard is not None:
            os.close(guard)
        log.close()
    identity = StoreFile.load(store.path)
    return BackupReport(str(store.path), str(target), identity.identity if identity else "", start, end, 0, total)


def _stamps(root: Path) -> dict[str, tuple[int, int, int]]:
    """{path below root: (size, time of the last change in ns, inode)} of all files; directories may be links."""
    found = {}

    def fail(error: OSError) -> None:
        raise error

    for directory, _, names in os.walk(root, onerror=fail, followlinks=True):
        for name in names:
            path = Path(directory, name)
            status = path.lstat()
            found[str(path.relative_to(root))] = (status.st_size, status.st_mtime_ns, status.st_ino)
    return found
