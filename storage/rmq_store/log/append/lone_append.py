"""One message appended by one call of the C extension (native/lone_append.c), if nothing is unusual.

The call takes the append lock only if it is free. It does what `append_one` does under `append_lock`, in the same order
and with the same bytes. Or it changes nothing, and says so; then Python appends the message. docs/adr/0036 has the
conditions, and the state that both sides share:

    log ends, intent, lock's waiters    words of the state page          both, under the append lock
    where queues of this process go on  `CommitLog.own_next`, `own_end`  both, under the append lock
    open files, geometry                `_Place`, `_Queue`               Python, after an append of its own
"""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from rmq_store.errors import StoreError
from rmq_store.files import durable
from rmq_store.files.segments.open_files import OpenFile
from rmq_store.format.bytes import native
from rmq_store.log.append.append import OneRecord, append_lock
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.views.consume_queue import ConsumeQueue
from rmq_store.log.views.hash_index import UNKNOWN
from rmq_store.log.views.views import QueueKey

# The call keeps the interpreter's lock. A write of so few bytes takes microseconds, and a larger one is not slow by
# what is left out here.
FRAME_BYTES_MAX = 64 << 10

# Queues whose files are known. They are held weakly: the table of open files decides what stays open.
_QUEUES_MAX = 1024

# The C function's answer if its places are out of date, and nothing was appended (Outcome).
_OUTDATED = 2

Watch = Callable[[str, str, int, int, bytes], object]
"""(operation, target, descriptor, position, data), before each step of the C function: "write" to "segment", "queue
file" or "index file"; "half" in the middle of it; "store", without a descriptor (-1), into a word of the state page,
into an "index slot" or the "index header". An error that it raises happens instead.
"""

watch: Watch | None = None
"""Set by tests. While it is set, the call holds the claim of the append lock, because other threads may run."""


class _Place(NamedTuple):
    """The C function takes these fields of the store, in this order. `numbers`: device and inode of the
    log's directory; descriptor, first offset and size of the last segment; descriptor, name, slots and entries of the
    newest index file; and whether frames have a CRC property.
    """

    page: mmap.mmap
    own_next: dict[QueueKey, int]
    own_end: array[int]
    numbers: array[int]
    index_map: mmap.mmap | None
    log: CommitLog
    append_lock: object
    append_claim: object
    flush_claim: object
    store_lock: object
    log_name: bytes
    segment: weakref.ref[OpenFile]


class _Queue(NamedTuple):
    """The same of a queue. `numbers`: of its last file the descriptor, the position of its first byte, and the size."""

    key: QueueKey
    file: weakref.ref[OpenFile]
    numbers: array[int]


class Waiting(Protocol):
    """A sender that waits. `claim`: who takes its one item out appends the record, or gives it up."""

    record: OneRecord
    claim: list[bool]
    offsets: tuple[int, int] | None


QueueTable = dict[QueueKey, _Queue]
"""Queues that a caller has checked, and whose files are known."""


class LoneAppend:
    """Appends single records of one open store. Thread-safe; a signal handler may call it."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._place: tuple[_Place, object] | None = None  # with what keeps the index file open
        self._queues: dict[QueueKey, tuple[_Queue, ConsumeQueue]] = {}

    def append(self, record: OneRecord, now_ms: int) -> tuple[int, int] | None:
        """Append the record with this store time; its commit-log offset and its queue offset. Visible on return.

        None: nothing was appended, because something is unusual: another holder of the append lock, a flush that is
        under way, an unfinished append, the end of a file, a delay, a write that failed, ...
        """
        place, known = self._place, self._queues.get(record[:2])
        if place is None or known is None or record.delay_ms > 0 or len(record.frame) > FRAME_BYTES_MAX:
            return None
        if durable.hook is not None and watch is None:
            return None  # a test counts operations, which the C function has none of
        try:
            made = native.functions.append_lone(
                place[0], known[0], record.frame, list(record.key_hashes), record.tags_code, now_ms, watch
            )
        except BaseException as error:
            self._take_back(error)
            raise
        if isinstance(made, tuple):
            known[1].has_got(made[1])
            return made
        if made == _OUTDATED:
            self._place = None
            self._queues.pop(known[0].key, None)
        return None

    def append_group(self, line: Sequence[Waiting], now_ms: int) -> bool:
        """As `append`, for senders that wait, in their order, as far as nothing is unusual: those whose message was
        appended have their `offsets`. True: there are some.
        """
        if self._place is None or (durable.hook is not None and watch is None):
            return False
        try:
            is_outdated = native.functions.append_group(self._place[0], self._queues, list(line), now_ms, watch)
        except BaseException as error:
            self._take_back(error)
            raise
        count = 0
        for waiting in line:
            if waiting.offsets is not None:
                count += 1
                if (known := self._queues.get(waiting.record[:2])) is not None:
                    known[1].has_got(waiting.offsets[1])
        if is_outdated:
            self.forget()
        return count > 0

    def serve(
        self, queues: QueueTable, rules: tuple[object, ...], data: memoryview, born_host: bytes, now_ms: int
    ) -> tuple[int, bytes, list[QueueKey]] | None:
        """As `append`, for all usual requests at the beginning of `data` that send one message to one of `queues`,
        under one lock: where the first one begins that was not taken, the answers to the others, and their queues.
        `rules` are those of native/sent_requests.c. `queues` becomes empty if it is out of date.
        """
        place = self._place
        if place is None or (durable.hook is not None and watch is None):
            return None
        try:
            end, answers, stored, is_outdated = native.functions.serve_sends(
                place[0], queues, rules, data, 0, born_host, now_ms, watch
            )
        except BaseException as error:
            self._take_back(error)
            raise
        for key, queue_offset in stored.items():
            if (known := self._queues.get(key)) is not None:
                known[1].has_got(queue_offset)
        if is_outdated:
            self._place = None
            for key in queues:
                self._queues.pop(key, None)
            queues.clear()
        return end, answers, list(stored)

    def tell(self, topic: str, queue_id: int, queues: QueueTable) -> None:
        """Put a queue into `queues` if its files are known."""
        known = self._queues.get((topic, queue_id))
        if known is not None:
            queues[topic, queue_id] = known[0]

    def _take_back(self, error: BaseException) -> None:
        """Undo an append that `watch` has interrupted, as any unfinished one."""
        with append_lock(self._log):
            pass
        if isinstance(error, OSError):
            raise durable.translate(error, self._log.root) from error

    def learn(self, key: QueueKey) -> None:
        """Look where the next record of this queue goes, after Python has appended one. The caller still holds the
        append lock. It raises nothing: that record is stored, and who cannot open the files next says so.
        """
        if not native.LOADED:
            return
        with contextlib.suppress(OSError, StoreError):
            if self._place is None:
                self._place = self._look()
            if key not in self._queues:
                queue = self._look_at_queue(key)
                if queue is not None:
                    if len(self._queues) >= _QUEUES_MAX:
                        self._queues.clear()
                    self._queues[key] = queue

    def forget(self) -> None:
        """Let go of all files: the store is closed."""
        self._place = None
        self._queues.clear()

    def _look(self) -> tuple[_Place, object] | None:
        """None: this store, or its newest index file, is not a usual one."""
        log = self._log
        where, index = log.held_root.log_place(), log.views.index
        if where is None:
            return None
        newest = index.newest() if index is not None else None
        if index is not None and (newest is None or newest.counts_entries):
            return None
        base = log.segments.base_of(log.writing_page.appended_end)
        try:
            segment = log.segments.open(base)
        except FileNotFoundError:
            return None
        name, device, inode = where
        numbers = [_signed(device), _signed(inode), segment.fd, base, segment.size_bytes]
        numbers += [-1, UNKNOWN, 0, 0] if newest is None else [
            newest.fd, newest.number, newest.slot_count, newest.entry_max,
        ]  # fmt: skip
        return _Place(
            log.writing_page.map, log.own_next, log.own_end, array("q", [*numbers, int(log.crc_property)]),
            None if newest is None else newest.map, log, log.append_lock, log.append_lock.claim, log.flush_lock.claim,
            log.store_lock, os.fsencode(name), weakref.ref(segment),
        ), newest  # fmt: skip

    def _look_at_queue(self, key: QueueKey) -> tuple[_Queue, ConsumeQueue] | None:
        queue, end = self._log.views.queue(*key), self._log.own_next.get(key)
        if end is None:
            return None
        try:
            position, file = queue.last_file(end)
        except FileNotFoundError:
            return None
        return _Queue(key, weakref.ref(file), array("q", [file.fd, position, file.size_bytes])), queue


def _signed(value: int) -> int:
    """A number of the kernel's, 64 bits, as int64."""
    return value - (1 << 64) if value >= 1 << 63 else value
