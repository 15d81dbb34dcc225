"""The journal of a group's pops on a topic: `pyrmq/pop/<group>/<topic>/journal`, written by one process at a time.

    0-7    magic "pyrmqpop"         8-15  identity, another one for each file       16-59  0
    60-63  CRC-32 of bytes 0-59
    then 64 bytes per change:
    0      kind: 1 in flight, 2 acknowledged, 3 moving to the dead letters, 4 position
    1      reset (position only)   2-3    0
    4-7    how many changes of the same append follow
    8-11   queue id                12-15  attempt (in flight)
    16-23  queue offset            24-31  commit-log offset
    32-55  three int64             in flight: pop time ms, invisible ms, attempt key; moving to the dead letters: unit;
                                   position: store timestamp ms, committed before, committed
    56-59  version (in flight)     60-63  CRC-32 of bytes 0-59

Little-endian. An append counts as a whole or not at all: the next holder of the lock cuts off the unfinished append of
a killed writer. The file is replaced by a snapshot when most of it is history. If its end is lost, messages are given
out once more, never less often. So the file is fsynced only under SYNC_FLUSH. RocketMQ keeps the same table in a
key-value store (PopConsumerRocksdbStore.java).
"""

from __future__ import annotations

import os
import struct
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rmq_store.broker.pop.pop_state import Acknowledged, Change, InFlight, MovingToDlq, PopState, Position
from rmq_store.errors import CorruptConfigError, InvalidReceiptHandleError
from rmq_store.files import durable
from rmq_store.files.locks.lock import OfdLock
from rmq_store.files.rooted import refuse_if_replaced

_HEADER = struct.Struct("<8sq44x")
_CHANGE = struct.Struct("<BB2xIiiqqqqqi")
_CRC = struct.Struct("<I")
_MAGIC = b"pyrmqpop"
RECORD_BYTES = 64
assert _HEADER.size == _CHANGE.size == RECORD_BYTES - _CRC.size

_IN_FLIGHT, _ACKNOWLEDGED, _MOVING_TO_DLQ, _POSITION = 1, 2, 3, 4

LOCK_TIMEOUT_MS = 10_000
# A file is replaced when it is larger than this and than four times what it says.
COMPACT_BYTES = 1 << 20
_COMPACT_FACTOR = 4


class PopJournal:
    """The journal in one directory, and the state that its changes lead to. Safe for threads; each process has its own
    object.
    """

    def __init__(self, directory: Path, *, sync: bool) -> None:
        self.path = directory / "journal"
        self.state = PopState()
        self._sync = sync
        self._lock = OfdLock(directory / "lock")
        self._is_whole = True
        self._identity: int | None = None
        self._end = 0

    def exists(self) -> bool:
        """True if a message was ever given out."""
        return self.path.exists()

    def exclusive(self) -> JournalBlock:
        """Lock the journal for a `with` block, which gets the newest state that any process has written.

        `release_left` gives up a lock that an interrupt (Ctrl-C) has left behind.

        Raises (on the way in):
            StoreLockedError: another process, or another thread, held it for LOCK_TIMEOUT_MS.
            CorruptConfigError: the file is no journal; nothing was changed.
            UsageError: a signal handler called this during such a block of its own thread.
            StoreReplacedError: the store is not in its place any more.
        """
        return JournalBlock(self)

    def release_left(self) -> None:
        """As `OfdLock.release_left`."""
        self._lock.release_left()

    def append(self, changes: Sequence[Change]) -> None:
        """Write changes as one append and apply them; in an `exclusive` block. After an error the state may hold the
        changes or not: the next block reads the file again.

        Raises:
            StoreFullError, StoreFailedError: as durable.translate.
        """
        if not changes:
            return
        if self._identity is None or self._end > max(COMPACT_BYTES, _COMPACT_FACTOR * RECORD_BYTES * len(self.state)):
            self._replace()
        data = _encode(changes)
        try:
            fd = durable.open_nofollow(self.path, os.O_WRONLY)
            try:
                durable.write_fully(fd, data, self._end, self.path)
                if self._sync:
                    durable.fsync_file(fd, self.path)
            finally:
                os.close(fd)
        except OSError as error:
            raise durable.translate(error, self.path) from error
        self._end += len(data)
        for change in changes:
            self.state.apply(change)

    def remove(self) -> None:
        """Delete the journal, in an `exclusive` block: the group starts again at its committed offsets. Durable on
        return. StoreFailedError.
        """
        with durable.typed(self.path):
            durable.before("unlink", self.path)
            self.path.unlink(missing_ok=True)
            durable.fsync_directory(self.path.parent)
        self.state, self._identity, self._end = PopState(), None, 0

    def close(self) -> None:
        """Close the lock file."""
        self._lock.close()

    def _catch_up(self) -> None:
        """Apply appends of other processes, and cut off the unfinished append of a killed writer."""
        if not self._is_whole:
            self._identity = None  # a block ended in the middle of a change: read all of it again
        self._is_whole = False
        try:
            fd = durable.open_nofollow(self.path, os.O_RDWR)
        except FileNotFoundError:
            self.state, self._identity, self._end = PopState(), None, 0
            return
        try:
            if self._read_on(fd) > self._end:
                durable.before("write", self.path)
                os.ftruncate(fd, self._end)
        finally:
            os.close(fd)

    def refresh(self) -> None:
        """Apply appends of other processes, without the lock and without changing the file. CorruptConfigError."""
        try:
            fd = durable.open_nofollow(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            self._read_on(fd)
        finally:
            os.close(fd)

    def _read_on(self, fd: int) -> int:
        """Apply the new part of the open file; returns its size."""
        identity = self._read_identity(os.pread(fd, RECORD_BYTES, 0))
        size = os.fstat(fd).st_size
        if identity != self._identity or size < self._end:
            self.state, self._identity, self._end = PopState(), identity, RECORD_BYTES
        changes, count_bytes = _decode(os.pread(fd, size - self._end, self._end))
        for change in changes:
            self.state.apply(change)
        self._end += count_bytes
        return size

    def _read_identity(self, header: bytes) -> int:
        if len(header) == RECORD_BYTES and zlib.crc32(header[: _HEADER.size]) == _CRC.unpack(header[_HEADER.size :])[0]:
            magic, identity = _HEADER.unpack_from(header)
            if magic == _MAGIC:
                return int(identity)
        raise CorruptConfigError(
            str(self.path), 0, "not the journal of a group's pops; removed, the group starts again where it committed"
        )

    def _replace(self) -> None:
        """Start a new file with the state as its first append."""
        identity = int.from_bytes(os.urandom(8), "little", signed=True)
        header = _HEADER.pack(_MAGIC, identity)
        data = header + _CRC.pack(zlib.crc32(header)) + _encode(list(self.state.snapshot()))
        durable.remove_leftovers(self.path)
        durable.write_atomically(self.path, data)
        self._identity, self._end = identity, len(data)


class JournalBlock:
    """The `with` block of `PopJournal.exclusive`."""

    __slots__ = ("_block", "_journal")

    def __init__(self, journal: PopJournal) -> None:
        self._journal = journal
        self._block = journal._lock.exclusive(LOCK_TIMEOUT_MS)

    def __enter__(self) -> PopState:
        journal = self._journal
        directory = journal.path.parent
        refuse_if_replaced(directory)
        durable.refuse_links(directory.parents[1], directory.parent, directory)
        if not directory.is_dir():
            for missing in reversed([directory, *directory.parents[:3]]):
                durable.make_directory(missing)
        self._block.enter(sys._getframe(1))
        try:
            refuse_if_replaced(directory)
            journal._catch_up()
        except BaseException as error:
            self._block.__exit__(type(error), error, error.__traceback__)
            raise
        return journal.state

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An exception may come from a signal handler, at any instruction of a change.
        self._journal._is_whole = kind is None or issubclass(kind, InvalidReceiptHandleError)
        self._block.__exit__(kind, error, trace)


def read_state(directory: Path) -> PopState:
    """The content of the journal in a directory, for readers: no lock is taken, nothing is changed. An empty state if
    there is no journal. An append during the call counts as a whole or not at all. CorruptConfigError.
    """
    journal = PopJournal(directory, sync=False)
    journal.refresh()
    return journal.state


def _encode(changes: Sequence[Change]) -> bytes:
    pieces = []
    for left, change in zip(range(len(changes) - 1, -1, -1), changes, strict=True):
        body = _CHANGE.pack(*_fields(change, left))
        pieces += [body, _CRC.pack(zlib.crc32(body))]
    return b"".join(pieces)


def _fields(change: Change, left: int) -> tuple[int, ...]:
    match change:
        case InFlight(
            queue_id, queue_offset, attempt, version, commit_log_offset, pop_time_ms, invisible_ms, attempt_key
        ):
            rest = (queue_id, attempt, queue_offset, commit_log_offset, pop_time_ms, invisible_ms, attempt_key, version)
            return (_IN_FLIGHT, 0, left, *rest)
        case Acknowledged(queue_id, queue_offset):
            return (_ACKNOWLEDGED, 0, left, queue_id, 0, queue_offset, 0, 0, 0, 0, 0)
        case MovingToDlq(queue_id, queue_offset, unit):
            return (_MOVING_TO_DLQ, 0, left, queue_id, 0, queue_offset, 0, unit, 0, 0, 0)
        case Position(queue_id, next_offset, commit_log_offset, timestamp_ms, before, committed, is_reset):
            rest = (queue_id, 0, next_offset, commit_log_offset, timestamp_ms, before, committed, 0)
            return (_POSITION, int(is_reset), left, *rest)


def _decode(data: bytes) -> tuple[list[Change], int]:
    """The changes of the complete appends at the beginning of `data`, and their length in bytes."""
    whole: list[Change] = []
    batch: list[Change] = []
    end = 0
    expected: int | None = None
    for start in range(0, len(data) - RECORD_BYTES + 1, RECORD_BYTES):
        body = data[start : start + _CHANGE.size]
        if zlib.crc32(body) != _CRC.unpack_from(data, start + _CHANGE.size)[0]:
            break
        change, left = _change(body)
        if change is None or expected not in (None, left):
            break
        batch.append(change)
        expected = left - 1
        if left == 0:
            whole += batch
            batch, expected, end = [], None, start + RECORD_BYTES
    return whole, end


def _change(body: bytes) -> tuple[Change | None, int]:
    kind, reset, left, queue_id, attempt, offset, log_offset, first, second, third, version = _CHANGE.unpack(body)
    if kind == _IN_FLIGHT:
        return InFlight(queue_id, offset, attempt, version, log_offset, first, second, third), left
    if kind == _ACKNOWLEDGED:
        return Acknowledged(queue_id, offset), left
    if kind == _MOVING_TO_DLQ:
        return MovingToDlq(queue_id, offset, first), left
    if kind == _POSITION:
        return Position(queue_id, offset, log_offset, first, second, third, reset == 1), left
    return None, left
