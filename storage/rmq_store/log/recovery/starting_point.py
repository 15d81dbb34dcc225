"""Decides where a scan of the log begins, from the files that the last process, or the last broker, left.

The rows are those of docs/design.md section 8.1. If a broker wrote the store last, none of our own files is believed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from enum import Enum

from rmq_store.errors import CorruptionError
from rmq_store.files import durable
from rmq_store.files.locks.state_page import StatePage
from rmq_store.files.progress import ProgressRecord
from rmq_store.format.frames.frame_check import check_frame
from rmq_store.format.frames.stored_message import decode_frame
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.core.checkpoint import load_checkpoint
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.integrity.corrupt_queues import corrupt_queues
from rmq_store.log.integrity.queue_ends import QueueEnds
from rmq_store.log.views.hash_index import NO_FILE
from rmq_store.log.views.views import QueueKey

_LOG = logging.getLogger(__name__)

OUR_LOCK_TEXT = b"rmq\n"
"""What our first opener writes into `lock`. A Java broker writes `lock` there at every start."""


class Trust(Enum):
    """How much of the saved state can be believed."""

    CLEAN = "the last closer's record: nothing to do"
    SAME_BOOT = "the state page: the page cache is as the last writer left it"
    OWN = "the progress record: what it names is on disk"
    COPY = "nothing but the records: an unclean store that was copied here, or one whose views were deleted"
    BROKER_CLEAN = "the files of a broker that stopped cleanly"
    BROKER_UNCLEAN = "the files of a broker that did not"


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """The start of the scan. `durable_point` is the flushed end as last saved; 0, and not `vouched`, if no file of ours
    has it. `lost`: queues that lack files or entries. `copied`: neither progress record nor state page is this store's
    own, so they do not say how far the log was on disk in the original.
    """

    trust: Trust
    offset: int
    durable_point: int
    record: ProgressRecord | None
    vouched: bool = True
    lost: tuple[QueueKey, ...] = ()
    copied: bool = False

    @property
    def foreign(self) -> bool:
        """True if a broker wrote the store last."""
        return self.trust in (Trust.BROKER_CLEAN, Trust.BROKER_UNCLEAN)

    def crc_from(self, log: CommitLog) -> int | None:
        """The offset from which every record must have a CRC property: all of them were written by us since a broker's
        last visit. If no progress record has it (missing or damaged), the durable point. None: no record must.
        """
        if self.foreign or not log.crc_property:
            return None
        known = log.progress.load()
        if known is not None and known[0].crc_from is not None:
            return known[0].crc_from
        return self.durable_point if self.vouched else None


def refetched_from(log: CommitLog, page: StatePage | None, start: StartingPoint) -> int | None:
    """Where the log of a replica ends after a power cut, whatever follows; None: where its last sound record ends.

    Bytes that were never flushed may be others than the master's, and look sound: a body has a CRC, and a header of a
    broker's record has none. They come again from the master, so nobody is shown what is left of them. Within a boot
    nothing is lost, and readers may have read these bytes: they stay.
    """
    if not log.is_replica or start.foreign or start.copied or not start.vouched:
        return None
    if start.trust is Trust.CLEAN or (page is not None and page.names_this_boot()):
        return None
    return max(start.offset, start.durable_point)


def starting_point(log: CommitLog, page: StatePage | None) -> StartingPoint:
    """Decide without writing anything. `page` is None if the store has no state page."""
    known = log.progress.load()
    abort = (log.root / "abort").exists()
    if not log_is_ours(log):
        if abort:
            return StartingPoint(Trust.BROKER_UNCLEAN, _after_checkpoint(log), 0, None, False)
        return StartingPoint(Trust.BROKER_CLEAN, _newest_entry_segment(log), 0, None, False)
    # A log that never had a record has no views either.
    no_queues = bool(log.segments.bases()) and not log.views.directory.is_dir()
    table = QueueEnds.load(log.own)
    lost = _lost_queues(log, table)
    views_missing = no_queues or (known is not None and _index_missing(log, known[0])) or bool(lost)
    if known is not None and known[0].clean and not abort and not views_missing and _ends_at(log, known[0]):
        return StartingPoint(Trust.CLEAN, known[0].end, known[0].flushed_end, known[0])
    if not views_missing:  # what lies behind this is written again by who scans the log from there on
        on_disk = page.appended_end if page is not None and page.counts() else known[0].end if known is not None else 0
        lost = _corrupt_queues(log, on_disk, table)
        views_missing = bool(lost)
    if page is not None and page.counts() and not views_missing:
        return StartingPoint(Trust.SAME_BOOT, page.flushed_end, page.flushed_end, None)
    written = vouched_end(log)
    durable_point, vouched = written or 0, written is not None
    if page is not None and page.belongs_here():
        durable_point, vouched = max(durable_point, page.flushed_end), True
    elif known is None or not known[1]:
        durable_point = max(durable_point, _copied_end(log, page))
        return StartingPoint(Trust.COPY, log.start(), durable_point, None, vouched, lost, copied=True)
    if known is None or not known[1] or views_missing:
        return StartingPoint(Trust.COPY, log.start(), durable_point, None, vouched, lost)
    return StartingPoint(Trust.OWN, max(known[0].end, log.start()), durable_point, known[0])


def _copied_end(log: CommitLog, page: StatePage | None) -> int:
    """The durable end in a copied page, if the copy of the log is not older than that of the page: the last byte is
    there, and the last byte of a record is not zero. Else 0.
    """
    if page is None or not page.is_copied() or page.flushed_end <= 0:
        return 0
    last = page.flushed_end - 1
    base = log.segments.base_of(last)
    try:
        return page.flushed_end if any(log.segments.open(base).map[last - base : last - base + 1]) else 0
    except (CorruptionError, FileNotFoundError):
        return 0


def vouched_end(log: CommitLog) -> int | None:
    """The flushed end according to our files with checksums; None if there are none. A closer that is not the last one
    saves it in the table of queue ends. The last closer's progress record is newer than any table.
    """
    known, table = log.progress.load(), QueueEnds.load(log.own)
    if known is not None and known[0].clean and not (log.root / "abort").exists():
        return known[0].flushed_end
    ends = [known[0].flushed_end] if known is not None else []
    if table is not None and table.log_end:
        ends.append(table.log_end)
    return max(ends, default=None)


def log_is_ours(log: CommitLog) -> bool:
    """True if this engine wrote the log last, and no broker, by the first bytes of the lock file."""
    try:
        fd = durable.open_nofollow(log.root / "lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return os.pread(fd, len(OUR_LOCK_TEXT), 0) == OUR_LOCK_TEXT
    finally:
        os.close(fd)


def _index_missing(log: CommitLog, record: ProgressRecord) -> bool:
    index = log.views.index
    # UNKNOWN is no file's name: an index that was not kept for a time is missing, too.
    return index is not None and record.index_file != NO_FILE and not index.path(record.index_file).exists()


def _lost_queues(log: CommitLog, known: QueueEnds | None) -> tuple[QueueKey, ...]:
    lost = known.lost(log) if known is not None else []
    text = "%s: files of %d queues are missing, of %s-%d first: their entries are taken from the log"
    return _warned(log, lost, text)


def _corrupt_queues(log: CommitLog, end: int, known: QueueEnds | None) -> tuple[QueueKey, ...]:
    corrupt = corrupt_queues(log, end, known)
    text = "%s: entries of %d queues are damaged, of %s-%d first: they are taken from the log"
    return _warned(log, corrupt, text)


def _warned(log: CommitLog, queues: Sequence[QueueKey], text: str) -> tuple[QueueKey, ...]:
    if queues:
        _LOG.warning(text, log.root, len(queues), *queues[0])
    return tuple(queues)


def _ends_at(log: CommitLog, record: ProgressRecord) -> bool:
    """Whether the newest record is whole, ends where the log ended, and only zeros follow: neither cut, nor copied
    torn, nor grown.
    """
    bases = log.segments.bases()
    if record.last_record < 0:
        return log.accepted_damage.skip(log.start()) == record.end if log.accepted_damage else not bases
    try:
        bad = log.accepted_damage.covering(record.last_record)
        must_have_crc = log.crc_property and record.crc_from is not None and record.last_record >= record.crc_from
        behind = bad.start if bad is not None else _end_of(log, record.last_record, must_have_crc=must_have_crc)
        if log.accepted_damage.skip(behind) != record.end:
            return False
        base = log.segments.base_of(record.end)
        at_end = log.segments.open(base).map[record.end - base : record.end - base + 8] if base in bases else b""
    except (CorruptionError, FileNotFoundError):
        return False
    return not any(at_end) and (not bases or bases[-1] <= base)


def _end_of(log: CommitLog, offset: int, *, must_have_crc: bool) -> int:
    """The end of the record at `offset`; -1 if it is not whole."""
    base = log.segments.base_of(offset)
    view = memoryview(log.segments.open(base).map)
    check = check_frame(
        view, offset - base, len(view), expect_offset=offset, check_crc=True, force_prop_crc=must_have_crc
    )
    return offset + check.size if check.kind == "message" else -1


def _after_checkpoint(log: CommitLog) -> int:
    """CommitLog#recoverAbnormally: the newest segment whose first record was stored before the checkpoint's time."""
    limit = load_checkpoint(log).min_timestamp
    for base in reversed(log.segments.bases()):
        try:
            view = memoryview(log.segments.open(base).map)
        except CorruptionError:
            continue
        check = check_frame(view, 0, len(view), expect_offset=base, check_crc=True)
        if check.kind == "message" and 0 < decode_frame(view, 0, len(view)).store_timestamp_ms <= limit:
            return base
    return log.start()


def _newest_entry_segment(log: CommitLog) -> int:
    """CommitLog#recoverNormally: the segment of the newest queue entry; the first one if no queue has any."""
    newest = -1
    for key in log.views.keys():
        queue = log.views.queue(*key)
        last = queue.last_entry()
        if last is not None:
            newest = max(newest, last[0])
    bases = [base for base in log.segments.bases() if base <= newest]
    return bases[-1] if bases else log.start()
