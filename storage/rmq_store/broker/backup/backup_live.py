"""Copying a store of this engine while other processes write it; the steps are in `backup`.

The backup builds the views of the copy from its log, right after it has copied each segment. So every record is
checked. The views of the source change during the backup, and are not copied.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from pathlib import Path, PurePath

import numpy as np
import numpy.typing as npt

from rmq_store.broker.backup.backup_files import BackupReport, Progress, copy_tree
from rmq_store.broker.backup.credential_files import is_credential
from rmq_store.broker.metadata.store_log import log_of
from rmq_store.broker.metadata.topics import topics_with_batch_queues
from rmq_store.broker.store.open_store import OpenRequest, open_store
from rmq_store.broker.store.store import Store
from rmq_store.errors import CorruptRecordError, OffsetOutOfRangeError, StoreLockedError
from rmq_store.files import durable
from rmq_store.files.progress import ProgressRecord
from rmq_store.files.segments.copying import copy_start
from rmq_store.files.segments.open_files import OpenFile
from rmq_store.format.text.names import COMMIT_LOG_DIRECTORY, CONFIG_DIRECTORY, LOCK_FILE
from rmq_store.log.core import scan
from rmq_store.log.core.accepted_damage import AcceptedDamage
from rmq_store.log.core.scan import next_frame
from rmq_store.log.integrity.placeholder_entries import messages_in
from rmq_store.log.integrity.walk_over_damage import bad_range
from rmq_store.log.recovery.delivery_times import preserved_entries
from rmq_store.log.recovery.starting_point import OUR_LOCK_TEXT, log_is_ours
from rmq_store.log.replica_role import Feeder
from rmq_store.log.views.hash_index import EMPTY
from rmq_store.log.views.views import QueueKey

# Files of the processes that use the store, or of one copy of it. `lock` in a directory of POP state, too.
_NOT_COPIED = frozenset((
    "state", "progress", "queue_ends.json", "queue_ends.json.bak", "rebuild.json", "staging", "removed", "groups",
    "retention.json", LOCK_FILE,
))  # fmt: skip
_NOT_COPIED_SUFFIXES = (".lock", ".tmp")

# Made anew for the copy, or copied before; what a file system makes where it is mounted is none of the store's.
_MADE_ANEW = frozenset((
    COMMIT_LOG_DIRECTORY, "consumequeue", "index", CONFIG_DIRECTORY, "pyrmq", LOCK_FILE, "abort", "checkpoint",
    "lost+found",
))  # fmt: skip

_AFTER_THE_END = ("topics.json", "subscriptionGroup.json")

# Descriptors that are held open so that retention passes over their segments: it takes the oldest first.
_PINNED_MAX = 256

Entries = npt.NDArray[np.void]


class LiveBackup:
    """One copy of a store of this engine."""

    def __init__(self, store: Store, made: Path, tell: Progress, *, with_credentials: bool = False) -> None:
        self._store = store
        self._with_credentials = with_credentials
        self._left_out: set[str] = set()
        self._source = log_of(store.path, store.config, writable=False)
        self._copy = log_of(made, store.config, writable=True)
        self._source.views.elsewhere |= topics_with_batch_queues(store.path)
        self._copy.views.elsewhere = self._source.views.elsewhere
        self._made = made
        self._tell = tell
        self._accepted = AcceptedDamage()
        self._records = 0
        self._done_bytes = 0
        self._last_record = -1
        self._timestamp = 0

    def run(self, target: Path) -> BackupReport:
        """Make the copy, and close it; `target` is its final name. Raises as `backup`."""
        if (pid := self._source.store_lock.posix_holder()) is not None:
            raise StoreLockedError(f"{self._store.path}: a RocketMQ broker (process {pid}) runs on the store", pid)
        try:
            start, end = self._copy_all()
        finally:
            self._source.close()
            self._copy.close()
        self._open_once()
        if not log_is_ours(self._source):
            raise StoreLockedError(f"{self._store.path}: a RocketMQ broker was started on the store meanwhile", None)
        return BackupReport(
            str(self._store.path), str(target), self._store.identity, start, end, self._records, end - start,
            tuple(sorted(self._left_out)),
        )  # fmt: skip

    def _open_once(self) -> None:
        """The first opener finds everything in place; the last closer leaves a clean store. The copy of a replica is
        one too, and this process its feeder for this moment.
        """
        if self._store.replica is None:
            Store.open(self._made).close()
            return
        feeder = Feeder(self._made)
        feeder.take()
        try:
            request = OpenRequest(
                self._made, read_only=False, create=False, config=None, clock=None, broker_name=None,
                on_corruption="refuse", rebuild_views=False, commit_log_paths="", feeder=feeder,
            )  # fmt: skip
            open_store(request, Store).close()
        finally:
            feeder.close()

    def _copy_all(self) -> tuple[int, int]:
        root = self._store.path
        for name in (CONFIG_DIRECTORY, COMMIT_LOG_DIRECTORY, "pyrmq"):
            durable.make_directory(self._made / name)
        copy_tree(
            root / CONFIG_DIRECTORY, self._made / CONFIG_DIRECTORY,
            lambda path: path.suffix != ".tmp" and not _comes_after(path) and self._is_wanted(path),
        )  # fmt: skip
        copy_tree(root / "pyrmq", self._made / "pyrmq", _is_kept)
        copy_tree(root, self._made, lambda path: _is_of_others(root, path) and self._is_wanted(path))
        self._accepted = AcceptedDamage.load(self._copy.own)
        known = self._source.progress.load()
        self._copy.crc_from = known[0].crc_from if known is not None else None
        self._store.refresh()
        end = self._store.log_range()[1]
        segments, start = self._pinned(end)
        copy_tree(root / CONFIG_DIRECTORY, self._made / CONFIG_DIRECTORY, _comes_after)
        self._accepted = self._copy.accepted_damage = self._accepted.within(start, end)
        gone = self._queues_without_messages(start, end)
        self._copy.views.restore_index(EMPTY)
        self._tell(0, 0, end - start)
        for base, file in segments:
            self._copy_segment(base, file, start, end)
        for (topic, queue_id), queue_offset, entry in gone:
            self._copy.views.queue(topic, queue_id).put(queue_offset, entry)
        self._vouch(start, end)
        return start, end

    def _is_wanted(self, path: PurePath) -> bool:
        """False for credentials, unless they are to be copied; the report names them."""
        name = path.relative_to(self._store.path)
        if self._with_credentials or not is_credential(name):
            return True
        self._left_out.add(str(name))
        return False

    def _pinned(self, end: int) -> tuple[Iterator[tuple[int, OpenFile]], int]:
        """The segments below `end`, pinned, and the begin of the log. The begin is fixed once the first segment is
        pinned.
        """
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
        missing = sorted(set(range(start, end, run.size_bytes)) - set(bases))
        for base in missing:
            if self._accepted.covering(base) is None:
                raise self._damaged(None, base, "the segment is missing")

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
                    found.append((key, last - 1, entry))
        return found

    def _copy_segment(self, base: int, file: OpenFile, start: int, end: int) -> None:
        run = self._copy.segments
        limit = min(base + run.size_bytes, end)
        copy_start(file.fd, run.path(base), limit - base, run.size_bytes)
        try:
            for stretch in scan.walk(self._copy, base, limit):
                if stretch.stopped:
                    raise self._damaged(file, stretch.end, stretch.stopped)
                if len(stretch.positions):
                    self._take(stretch)
        except CorruptRecordError as error:  # of the copy's files: the source's are to be named
            raise CorruptRecordError(file.path, error.offset, error.reason) from error
        self._tell(self._records, limit - start, end - start)

    def _damaged(self, file: OpenFile | None, offset: int, reason: str) -> CorruptRecordError:
        """The error for a record of the source that is not whole."""
        run, log = self._source.segments, self._source
        base = run.base_of(offset)
        end = base + (next_frame(log, base, offset - base + 1) if file is not None else run.size_bytes)
        messages = messages_in(log, bad_range(log, offset, end, reason))
        lost = f", lost with them: {messages}" if messages else ""
        reason += f"; bytes {offset} to {end} of the log are no records{lost}"
        path = file.path if file is not None else str(run.path(base))
        return CorruptRecordError(path, offset, f"{reason}. There is no backup: `rmq repair` the store first")

    def _take(self, stretch: scan.Stretch) -> None:
        """Add the records of a range to the copy's views."""
        offsets = stretch.base + stretch.positions
        self._records += len(offsets)
        if self._accepted:
            return  # messages that are lost have places in their queues: recovery knows how to make those
        columns = scan.columns_of(self._copy, stretch)
        for key, first, entries in scan.entries_by_queue(columns, stretch, self._source.views.elsewhere):
            entries, _ = preserved_entries(self._source, key, first, entries, has_ext=False)
            self._copy.views.queue(*key).put(first, entries)
        self._copy.views.put_keys(columns.key_hashes, columns.key_counts, offsets, columns.store_timestamp)
        self._last_record = int(offsets[-1])
        self._timestamp = int(columns.store_timestamp[-1])

    def _vouch(self, start: int, end: int) -> None:
        """Record that the log is complete, that the views are (unless they must still be built), and whose store this
        is.

        The opening of the copy makes all of it durable, before the copy gets its name.
        """
        index, last, done = self._copy.views.index_state(), self._last_record, start if self._accepted else end
        self._copy.progress.write(
            ProgressRecord(
                done, last, end, index.file, index.header, clean=False, timestamp=self._timestamp,
                crc_from=self._copy.crc_from,
            )
        )  # fmt: skip
        durable.write_atomically(self._made / LOCK_FILE, OUR_LOCK_TEXT)


def _is_of_others(root: Path, path: PurePath) -> bool:
    """Whether a broker, or somebody else, keeps this in the store: no process of this engine writes there."""
    name = path.relative_to(root).parts[0]
    return name not in _MADE_ANEW and not (name.startswith("checkpoint.") and name.endswith(".tmp"))


def _comes_after(path: PurePath) -> bool:
    return path.name.removesuffix(".bak") in _AFTER_THE_END


def _is_kept(path: PurePath) -> bool:
    return path.name not in _NOT_COPIED and path.suffix not in _NOT_COPIED_SUFFIXES and not path.name.startswith("new-")
