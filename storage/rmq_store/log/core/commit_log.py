"""The commit log of one open store: the files, locks and views that append, scan and flush share.

It holds no protocol, only wiring and short queries. The protocols are in append.py, flush.py, opening.py and
recovery.py; docs/design.md explains them together.
"""

from __future__ import annotations

import functools
import struct
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from rmq_store import kinds
from rmq_store.errors import CorruptIndexError, CorruptRecordError, StoreKindError
from rmq_store.files.locks.lock import OfdLock
from rmq_store.files.locks.state_page import StatePage
from rmq_store.files.progress import Progress, ProgressRecord
from rmq_store.files.rooted import Root, root_of
from rmq_store.files.segments.open_files import OpenFiles
from rmq_store.files.segments.segments import SegmentRun
from rmq_store.files.segments.spread_log import SpreadRun
from rmq_store.format.frames.frame_check import HOSTS_V6_MASK, MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2, check_frame
from rmq_store.format.frames.stored_message import StoredMessage, decode_checked
from rmq_store.format.properties.light_queues import is_dispatched, is_light
from rmq_store.log.core.accepted_damage import AcceptedDamage
from rmq_store.log.core.delay_table import DelayTable
from rmq_store.log.core.geometry import Geometry
from rmq_store.log.views.hash_index import HashIndex
from rmq_store.log.views.views import Views

Clock = Callable[[], int]
"""Milliseconds since the epoch."""

# How long a writer waits for another one's append before it gives up; appends take milliseconds, large commits seconds.
LOCK_TIMEOUT_MS = 60_000

_FRAME_START = struct.Struct(">iiiiiqq")  # size, magic, body CRC, queue id, flag, queue offset, physical offset
_FIXED_TO_BODY = 84  # bytes before bodyLength with two IPv4 hosts
_IPV6_EXTRA = 12
_SYS_FLAG_LAST_BYTE = 36 + 3

_SETTLE_TRIES = 1000
_SETTLE_WAIT_S = 0.001


class CommitLog:
    """Files, views, locks and the state page of one open store."""

    def __init__(
        self,
        root: Path,
        geometry: Geometry,
        *,
        writable: bool,
        index_enabled: bool,
        index_tags: bool,
        clock: Clock,
        sync_flush: bool,
        crc_property: bool,
        delay_levels_ms: tuple[int, ...],
        paths: Sequence[Path] = (),
    ) -> None:
        """`paths`: the directories of a log that is not in `commitlog/`, and can only be read."""
        if writable and root_of(root) is None:
            root = Root(root).path
        self.root = root
        """Of a store that is open for writing, a path that leads to the directory that was opened (`rooted`)."""
        self.held = root_of(root)
        """That directory. A reader may hold it, too, to see whether it is still in its place."""
        self.geometry = geometry
        self.writable = writable
        self.clock = clock
        self.sync_flush = sync_flush
        self.crc_property = crc_property
        self.index_tags = index_tags
        self.delays = DelayTable(delay_levels_ms)
        self.files = OpenFiles()
        size_bytes = geometry.mapped_file_size_commit_log
        self.segments: SegmentRun = SpreadRun(paths, size_bytes, self.files) if paths else SegmentRun(
            root / "commitlog", size_bytes, self.files, writable=writable, sparse=False, pin=not writable,
            keep_names=True,
        )  # fmt: skip
        index = None
        if index_enabled:
            index = HashIndex(root / "index", geometry.max_hash_slot_num, geometry.max_index_num)
        self.views = Views(root, geometry.mapped_file_size_consume_queue, self.files, index, writable=writable)
        self.index_damage: CorruptIndexError | None = None
        """Why there is no index to be had, although the store keeps one."""
        self.own = root / "pyrmq"
        self.own_end = array("q", [-1])
        """Where the log ended after the last append of one record by this process (one item)."""
        self.own_next: dict[tuple[str, int], int] = {}
        """Where queues went on then. These two change under the append lock, together."""
        self.accepted_damage = AcceptedDamage()
        self.is_replica = False
        """What is lost of the log comes again from its master. Set by whoever opens it."""
        self.crc_from: int | None = None
        """From here on a record must have a CRC property to count as whole. Set by whoever judges the log."""
        self.progress = Progress(self.own / "progress")
        self.store_lock = OfdLock(root / "lock")
        self.append_lock = OfdLock(self.own / "append.lock")
        self.flush_lock = OfdLock(self.own / "flush.lock")
        self.page: StatePage | None = None
        self.is_closing = False
        """Nothing is appended any more: `append_lock` refuses."""
        self.has_spare = False
        """All that the close replaces is there, and `queue_ends.make_spare` was called: the close makes no name."""

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """The delay of each level, level 1 first."""
        return self.delays.delays_ms

    @property
    def held_root(self) -> Root:
        """The directory of an open store, from before anything was written or read."""
        assert self.held is not None
        return self.held

    @property
    def writing_page(self) -> StatePage:
        """The state page of a store that is open for writing."""
        assert self.page is not None
        return self.page

    def start(self) -> int:
        """Offset of the first byte of the log: that of the first segment; 0 for an empty log."""
        return self.segments.first() or 0

    def visible_end(self) -> int:
        """End of the log for readers of a store whose state page counts."""
        page = self.writing_page
        return page.flushed_end if self.sync_flush else page.appended_end

    def progress_record(self, *, clean: bool = False) -> ProgressRecord:
        """The progress record as of now, with the stored `crc_from`. The caller holds the append lock, or has the store
        alone.
        """
        page = self.writing_page
        state, known = self.views.index_state(), self.progress.load()
        return ProgressRecord(
            end=page.appended_end,
            last_record=page.last_record,
            flushed_end=page.flushed_end,
            index_file=state.file,
            index_header=state.header,
            clean=clean,
            timestamp=page.store_timestamp,
            crc_from=known[0].crc_from if known else None,
        )

    def is_record_of(self, topic: str, queue_id: int, offset: int, size: int, queue_offset: int) -> bool:
        """True if the record at `offset` is message `queue_offset` of that queue. Reads about 100 bytes, and a whole
        record of a light queue (LMQ); never raises for bad bytes.
        """
        if is_light(topic) and self._is_dispatched(topic, queue_id, offset, size, queue_offset):
            return True
        base = self.segments.base_of(offset)
        position = offset - base
        if offset < 0 or size < _FIXED_TO_BODY or position + size > self.segments.size_bytes:
            return False
        try:
            view = self.segments.open(base).map
        except FileNotFoundError:
            return False
        found_size, magic, _, found_queue, _, found_queue_offset, found_offset = _FRAME_START.unpack_from(
            view, position
        )
        if (found_size, found_queue, found_queue_offset, found_offset) != (size, queue_id, queue_offset, offset):
            return False
        if magic not in (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2):
            return False
        hosts = view[position + _SYS_FLAG_LAST_BYTE] & HOSTS_V6_MASK
        body = position + _FIXED_TO_BODY + _IPV6_EXTRA * hosts.bit_count()
        topic_at = body + 4 + int.from_bytes(view[body : body + 4], "big")
        length_bytes = 1 if magic == MESSAGE_MAGIC_V1 else 2
        if not position < topic_at <= position + size - length_bytes:
            return False
        length = int.from_bytes(view[topic_at : topic_at + length_bytes], "big")
        name = view[topic_at + length_bytes : topic_at + length_bytes + length]
        return name == topic.encode()

    def _is_dispatched(self, topic: str, queue_id: int, offset: int, size: int, queue_offset: int) -> bool:
        message = self.message_at(offset) if queue_id == 0 and offset >= 0 else None
        if message is None or message.total_size != size:
            return False
        return is_dispatched(message.properties, topic, queue_offset)

    def queue_max(self, topic: str, queue_id: int, end: int) -> int:
        """The queue's max offset for a reader whose log ends at `end`."""
        queue = self.views.queue(topic, queue_id)

        def confirm(offset: int, size: int, queue_offset: int) -> bool:
            if self.is_record_of(topic, queue_id, offset, size, queue_offset) or self.accepted_damage.covering(offset):
                return True
            # If retention took the record, it cannot answer: the entry is whole if nobody was writing while we looked.
            return offset < self.start() and self._is_settled(lambda: queue.entry(queue_offset))

        return queue.max_offset(end, confirm, functools.partial(self.is_record_of, topic, queue_id))

    def queue_min(self, topic: str, queue_id: int, span: tuple[int, int], max_offset: int) -> int:
        """The first queue offset below `max_offset` whose record lies in the log's files; `max_offset` if there is
        none. `span`: that of `segments`, from after `max_offset` was found or the end of the log was loaded.
        FileNotFoundError: retention removed a file meanwhile.
        """
        confirm = functools.partial(self.is_record_of, topic, queue_id)
        return self.views.queue(topic, queue_id).min_offset(span[0], max_offset, span[1], confirm)

    def old_queue_files(self, topic: str, queue_id: int) -> list[int]:
        """As `ConsumeQueue.old_files`, of records below where the log begins."""
        is_record = functools.partial(self.is_record_of, topic, queue_id)
        return self.views.queue(topic, queue_id).old_files(self.start(), self.files_end(), is_record)

    def files_end(self) -> int:
        """The end of the last segment file: no record lies at or above it."""
        return self.segments.span()[1]

    def is_whole_entry(self, topic: str, queue_id: int, offset: int, size: int, queue_offset: int) -> bool:
        """As `is_record_of`, for a store without other writers. An entry also counts as whole if retention removed its
        record, or if its record lies in accepted damage.
        """
        return (
            self.is_record_of(topic, queue_id, offset, size, queue_offset)  # first: the other two are rare
            or offset < self.start()
            or self.accepted_damage.covering(offset) is not None
        )

    def next_queue_offset(self, topic: str, queue_id: int, end: int) -> int:
        """The next message's queue offset; the caller holds the append lock of a log that ends at `end`.

        While this process alone appends single messages, the offset is cached. Then the queue's last record is not read
        again, and damage to it does not hide later messages.

        Raises:
            CorruptRecordError: the queue's last record is damaged. No process is writing, so its entry is not torn;
                giving its offset to another message would hide both.
            StoreKindError: the topic's queues are kept elsewhere.
        """
        if topic in self.views.elsewhere:
            kind = kinds.BATCH_QUEUES
            raise StoreKindError(str(self.root), f"topic {topic!r}: {kind.what}. {kind.advice}", kind.name)
        queue = self.views.queue(topic, queue_id)
        known = self.own_next.get((topic, queue_id)) if end == self.own_end[0] else None
        if known is not None and queue.has_entry(known - 1):
            return known

        def confirm(offset: int, size: int, queue_offset: int) -> bool:
            if not self.is_whole_entry(topic, queue_id, offset, size, queue_offset):
                raise CorruptRecordError(
                    str(self.segments.path(self.segments.base_of(offset))),
                    offset,
                    f"message {queue_offset} of {topic}-{queue_id}, its newest, is damaged, or the entry that points "
                    "here is: nothing can be added to this queue before `rmq repair`",
                )
            return True

        is_record = functools.partial(self.is_record_of, topic, queue_id)
        return queue.max_offset(end, confirm, is_record)

    def remember_next(self, topic: str, queue_id: int, queue_offset: int, start: int, end: int) -> None:
        """Cache, under the append lock, that a queue goes on at `queue_offset` after this process appended [start,
        end).

        The next message of the queue uses it, as long as no other process has appended.
        """
        if start != self.own_end[0]:
            self.own_next.clear()
        self.own_next[topic, queue_id] = queue_offset
        self.own_end[0] = end

    def _is_settled(self, read: Callable[[], tuple[int, int, int]]) -> bool:
        """Whether `read` gives the same value twice with no append under way behind the first."""
        for _ in range(_SETTLE_TRIES):
            value = read()
            if self.page is None or self.page.intent is None:
                return read() == value
            time.sleep(_SETTLE_WAIT_S)
        return True

    def message_at(self, offset: int) -> StoredMessage | None:
        """The message whose record begins at `offset`; None if there is no whole record (any more)."""
        base = self.segments.base_of(offset)
        try:
            view = memoryview(self.segments.open(base).map)
        except FileNotFoundError:
            return None
        position = offset - base
        check = check_frame(view, position, len(view), expect_offset=offset, check_crc=False)
        return decode_checked(view, position) if check.kind == "message" else None

    def store_timestamp(self, offset: int) -> int | None:
        """storeTimestamp of the record at `offset`; None as `message_at`."""
        message = self.message_at(offset)
        return message.store_timestamp_ms if message is not None else None

    def missing_segment(self, offset: int) -> CorruptRecordError:
        """The error for a segment that should exist."""
        return CorruptRecordError(
            str(self.segments.path(self.segments.base_of(offset))), offset, "the segment is missing"
        )

    def refuse_reentry(self) -> None:
        """UsageError if a signal handler has come in the middle of an append or a flush of this thread."""
        self.append_lock.refuse_reentry()
        self.flush_lock.refuse_reentry()

    def close(self) -> None:
        """Release files and locks, after the other threads have finished their appends and flushes.

        Raises:
            StoreLockedError: they did not finish within LOCK_TIMEOUT_MS. They go on, and byte 0 stays locked:
                close again.
            UsageError: as `refuse_reentry`; nothing was released.
        """
        self.refuse_reentry()
        self.is_closing = True
        try:
            # Byte 0 last: whoever gets it alone takes an append under way for a dead process's.
            self.append_lock.close(LOCK_TIMEOUT_MS)
            self.flush_lock.close(LOCK_TIMEOUT_MS)
            self.files.clear()
            if self.views.index is not None:
                self.views.index.close()
            self.store_lock.close()
        except BaseException:
            self.is_closing = False
            raise
        if self.held is not None:
            self.held.close()


class _OnLog(Protocol):
    _log: CommitLog


_S = TypeVar("_S", bound=_OnLog)
_P = ParamSpec("_P")
_R = TypeVar("_R")


def leaves_no_lock(method: Callable[Concatenate[_S, _P], _R]) -> Callable[Concatenate[_S, _P], _R]:
    """After this method its thread holds neither append nor flush lock, wherever a signal handler interrupts it.

    A `with` block alone cannot guarantee that. Python runs signal handlers at the first instruction of `__exit__`, and
    an exception from there skips the rest. Every other process would wait until this thread returns.
    """

    @functools.wraps(method)
    def call(self: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return method(self, *args, **kwargs)
        finally:
            self._log.append_lock.release_left()
            self._log.flush_lock.release_left()

    return call
