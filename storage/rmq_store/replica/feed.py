"""The feed: raw bytes of a master's log become the log of a replica, with its queues and its index.

The bytes, their offsets and hosts are the master's; queue entries and index keys are made here, as a recovery makes
them. The visible end moves as in any append (`AppendSteps`): over whole records with their entries, and over whole
units of ours. Bytes wait in a buffer until their record is whole; a frame is stored only after it was checked. The
bytes of a unit, and of the blank that fills a segment, are stored as they come, behind the visible end, under one
intent: the append lock is held until the last of them. If they do not come, `abort` takes back what came.
"""

from __future__ import annotations

import threading
from typing import Final

import numpy as np
import pyarrow as pa

from rmq_store.errors import CorruptRecordError, MasterTransferError, ReplicaDivergedError
from rmq_store.format.frames.frame_check import (
    BLANK_BYTES_MIN,
    BLANK_MAGIC,
    FRAME_BYTES_MIN,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    check_frame,
)
from rmq_store.format.frames.frame_walk import sound_frames
from rmq_store.log.append.append import AppendSteps, begin_append
from rmq_store.log.core.commit_log import LOCK_TIMEOUT_MS, CommitLog
from rmq_store.log.core.scan import Stretch
from rmq_store.log.core.units import UnitScan
from rmq_store.log.recovery.dispatch import QueueDispatch
from rmq_store.replica.compare import first_difference

BUFFER_BYTES: Final = 4 << 20
FRAME_BYTES_MAX: Final = 256 << 20
"""A greater record is refused: its bytes wait in memory until it is whole."""

_MESSAGE_MAGICS: Final = (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2)


class Feed:
    """Feeds the log of one replica that this process has open for writing, from `start` on, for one connection.

    While it `holds_back`, its thread must do nothing else that takes the append lock. Bytes below the replica's end are
    compared with its own. `master` names the master in errors. After any error, and at the end of the connection,
    `abort` must be called.
    """

    def __init__(self, log: CommitLog, start: int, master: str) -> None:
        self._log = log
        self._master = master
        self._buffer = np.empty(BUFFER_BYTES, np.uint8)
        self._view = self._buffer.data
        self._low = self._high = 0  # the bytes that wait, in the buffer
        self._waits_at = self._known_end = log.writing_page.appended_end  # `_waits_at`: their offset in the log
        assert start <= self._known_end
        self.position = start
        """The offset in the log of the byte that must come next."""
        self._blank_end = 0  # where the blank ends whose bytes come now
        self._units = UnitScan()
        self._queues = QueueDispatch(log, believes_views=False, continues=True)
        self._steps: AppendSteps | None = None
        self.messages = 0
        """How many messages have become visible."""
        self._pending_messages = 0

    @property
    def holds_back(self) -> bool:
        """True while a unit or a blank has begun whose last byte has not come: nothing of it is visible."""
        return self._steps is not None

    @property
    def waits(self) -> bool:
        """True while the first bytes of a record have come, and not its last ones."""
        return self._low < self._high

    def take(self, offset: int, data: memoryview) -> None:
        """Take the bytes of the master's log at `offset`, which must be `position`. They count after `publish`.

        Raises:
            MasterTransferError: they are others, or bytes that no log has; nothing of them was stored.
            ReplicaDivergedError: the replica has other bytes there.
            StoreFullError, StoreFailedError
        """
        if offset != self.position:
            raise MasterTransferError(f"{self._master} sent bytes from {offset} on where {self.position} come next")
        data = data[self._compare(data) :]
        while len(data):
            room = len(self._buffer) - self._high
            if not room:
                self.publish()
                self._make_room()
                continue
            count = min(room, len(data))
            self._view[self._high : self._high + count] = data[:count]
            self._high += count
            self.position += count
            data = data[count:]

    def publish(self) -> None:
        """Store the whole records that wait, and make them visible, but for those of a unit whose end has not come.

        Raises:
            MasterTransferError: a frame is not sound; those before it are visible.
            StoreFullError, StoreFailedError
        """
        while self._low < self._high:
            if self._blank_end:
                self._store_blank()
                continue
            stop = min(self._high, self._low + self._segment_end() - self._waits_at)
            base = self._waits_at - self._low
            positions, sizes = sound_frames(self._view[:stop], self._low, stop, base, None)
            if len(positions):
                self._store(positions, sizes)
            elif not self._begins_blank(stop):
                break
        if self._low == self._high:
            self._low = self._high = 0
            if len(self._buffer) > BUFFER_BYTES:
                self._make_room()

    def abort(self) -> None:
        """Take back what is stored and not visible, and forget what waits. Does nothing if there is nothing."""
        steps, self._steps = self._steps, None
        self._low = self._high = 0
        try:
            if steps is not None:
                steps.__exit__(_Aborted, _Aborted(), None)
        finally:
            self._release()

    # -- steps --------------------------------------------------------------------------------------------------------

    def _store(self, positions: np.ndarray, sizes: np.ndarray) -> None:
        """Store the whole frames at `positions` of the buffer."""
        base = self._waits_at - self._low
        end = base + int(positions[-1] + sizes[-1])
        stretch = Stretch(base, positions, sizes, end, "")
        buffer = pa.py_buffer(self._buffer)
        try:
            pieces = list(self._units.split(self._log, stretch, buffer))
        except CorruptRecordError as error:
            raise MasterTransferError(f"{self._master}: the record at {error.offset}: {error.reason}") from error
        still_open = self._units.torn()
        waits_from = end if still_open is None else max(still_open.start, self._waits_at)
        number = 0
        for low, high, is_whole in (self._waits_at, waits_from, True), (waits_from, end, False):
            if low == high:
                continue
            steps = self._begin(low, high)
            self._log.segments.put(low, self._view[low - base : high - base])
            while number < len(pieces) and base + int(pieces[number][0].positions[0]) < high:
                piece, columns, _ = pieces[number]
                self._queues.put(piece, columns)
                self._log.views.put_keys(
                    columns.key_hashes, columns.key_counts, base + piece.positions, columns.store_timestamp
                )
                self._pending_messages += len(piece.positions)
                steps.last_record, steps.now = base + int(piece.positions[-1]), int(columns.store_timestamp[-1])
                number += 1
            self._went_on(high)
            if is_whole:
                self._finish()

    def _begins_blank(self, stop: int) -> bool:
        """Whether the bytes that wait begin a blank; False: they are part of a record that is not whole yet."""
        waits = stop - self._low
        if waits < BLANK_BYTES_MIN:
            if self._segment_end() - self._waits_at < BLANK_BYTES_MIN:
                raise self._no_record("fewer than 8 bytes are left in the segment")
            return False
        size, magic = (int.from_bytes(self._view[at : at + 4], "big", signed=True) for at in (self._low, self._low + 4))
        left = self._segment_end() - self._waits_at
        if magic == BLANK_MAGIC:
            if size != left:
                raise self._no_record(f"a blank of {size} bytes where {left} are left in the segment")
            self._blank_end = self._waits_at + size
            return True
        if waits < size and magic in _MESSAGE_MAGICS and size >= FRAME_BYTES_MIN:
            if size > (most := min(left - BLANK_BYTES_MIN, FRAME_BYTES_MAX)):
                raise self._no_record(f"a record of {size} bytes where {most} are possible")
            return False
        check = check_frame(self._view, self._low, stop, expect_offset=self._waits_at, check_crc=True)
        raise self._no_record(check.reason or f"a record of {size} bytes where {left} are left in the segment")

    def _store_blank(self) -> None:
        """Store those bytes of the blank that have come."""
        count = min(self._high - self._low, self._blank_end - self._waits_at)
        end = self._waits_at + count
        self._begin(self._waits_at, end)
        self._log.segments.put(self._waits_at, self._view[self._low : self._low + count])
        self._went_on(end)
        if end == self._blank_end:
            self._blank_end = 0
            if self._units.torn() is None:
                self._finish()

    def _begin(self, start: int, end: int) -> AppendSteps:
        """Declare that [start, end) is put now: as the next part of what is held back, if there is something."""
        if self._steps is not None:
            self._steps.extend(end)
            return self._steps
        log = self._log
        log.flush_lock.refuse_reentry()
        log.append_lock.acquire_exclusive(LOCK_TIMEOUT_MS)
        begin_append(log)
        self._steps = steps = AppendSteps(log, start, end)
        steps.__enter__()
        steps.last_record, steps.now = log.writing_page.last_record, log.writing_page.store_timestamp
        return steps

    def _went_on(self, end: int) -> None:
        self._low += end - self._waits_at
        self._waits_at = end

    def _finish(self) -> None:
        """Make visible what was put since `_begin`."""
        assert self._steps is not None
        self._steps.__exit__(None, None, None)
        self._steps = None
        self._release()
        self.messages += self._pending_messages
        self._pending_messages = 0

    def _release(self) -> None:
        """Release the append lock if this thread has it outside of a block."""
        if self._log.append_lock.claim.holder() == (threading.get_ident(), None):
            self._log.append_lock.release()

    # -- bytes --------------------------------------------------------------------------------------------------------

    def _compare(self, data: memoryview) -> int:
        """How many of the bytes the replica had already. ReplicaDivergedError: it has others."""
        end = self._known_end
        count = min(max(end - self.position, 0), len(data))
        first = first_difference(self._log, self.position, data[:count]) if count else None
        if first is not None:
            raise ReplicaDivergedError(
                f"{self._log.root}: the replica has other bytes than {self._master} from {first} on, and ends at "
                f"{end}. The master may have lost what it had not flushed, or is another broker. Nothing was "
                "changed: `rmq follow --resync` keeps this replica aside, and begins a new one",
                (first, end), (first, self.position + len(data)),
            )  # fmt: skip
        self.position += count
        return count

    def _make_room(self) -> None:
        """Move what waits to the front of the buffer, which grows if a whole record does not fit into it."""
        kept = self._high - self._low
        wanted = min(max(BUFFER_BYTES, 2 * kept), FRAME_BYTES_MAX + BUFFER_BYTES)
        buffer = np.empty(wanted, np.uint8) if wanted != len(self._buffer) else self._buffer
        buffer[:kept] = self._buffer[self._low : self._high].copy()
        self._buffer, self._view = buffer, buffer.data
        self._low, self._high = 0, kept

    def _segment_end(self) -> int:
        """The end of the segment in which the bytes that wait begin."""
        return self._log.segments.base_of(self._waits_at) + self._log.segments.size_bytes

    def _no_record(self, reason: str) -> MasterTransferError:
        return MasterTransferError(f"{self._master} sent no record at {self._waits_at}: {reason}")


class _Aborted(Exception):
    """Ends the steps that are taken back."""
