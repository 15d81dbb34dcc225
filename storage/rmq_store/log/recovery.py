"""Recovery by a first opener: find the end of the log, remove what lies behind it, bring the views up to date.

One pass over the records from the starting point on; every queue entry written again is the same bytes at the same
place. Units whose end was not reached are dropped. docs/design.md section 8; CommitLog#recoverNormally,
#recoverAbnormally.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from rmq_store.errors import CorruptRecordError
from rmq_store.files import durable
from rmq_store.files.progress import ProgressRecord
from rmq_store.format.frame_check import check_frame
from rmq_store.log import scan
from rmq_store.log.append import undo
from rmq_store.log.commit_log import CommitLog
from rmq_store.log.flush import sync_filesystem
from rmq_store.log.hash_index import EMPTY, IndexState
from rmq_store.log.index_repair import cut_entries, keep_whole_entries
from rmq_store.log.recovery_table import Action, Follows, decide
from rmq_store.log.starting_point import OUR_LOCK_TEXT, StartingPoint, Trust, starting_point
from rmq_store.log.units import UnitScan

_LOG = logging.getLogger(__name__)

_MAGIC_PREFIX = b"\xda\xa3\x20"


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What a recovery found and did; sizes in bytes, `case` as in RECOVERY_TABLE."""

    trust: str
    case: str
    end: int
    scanned_bytes: int
    record_count: int
    removed_bytes: int
    dropped_unit: int | None


def recover(log: CommitLog, create_abort: Callable[[], None]) -> RecoveryReport:
    """Recover and publish the state page. The caller holds byte 0 of `lock` exclusively.

    `create_abort` is called once it is known how the store was left, and before anything is changed.

    Raises:
        CorruptRecordError: records below the durable point are damaged or missing; nothing was changed.
        StoreFullError, StoreFailedError: call again after the cause is gone.
    """
    page = log.writing_page
    start = starting_point(log, page)
    if start.trust not in (Trust.CLEAN, Trust.SAME_BOOT):
        _refuse_damage(log, start)
    create_abort()
    if page.counts() and not start.foreign:
        undo(log)
    if start.trust is Trust.SAME_BOOT:
        report = _verify_same_boot(log, start)
        if report is not None:
            last, timestamp = page.last_record, page.store_timestamp
            page.retract()
            return _publish(log, report, last, timestamp)
        start = replace(starting_point(log, None), durable_point=start.durable_point)
        _refuse_damage(log, start)
    page.retract()
    if start.trust is Trust.CLEAN:
        assert start.record is not None
        report = RecoveryReport(start.trust.name, "clean", start.offset, 0, 0, 0, None)
        return _publish(log, report, start.record.last_record, start.record.timestamp, flushed=True)
    return _scan_and_repair(log, start)


def _refuse_damage(log: CommitLog, start: StartingPoint) -> None:
    """Before anything is changed: whether the records are there that were on disk for certain."""
    end, reason = start.offset, ""
    for stretch in scan.walk(log, start.offset, start.durable_point) if end < start.durable_point else ():
        end, reason = stretch.end, stretch.stopped
    newest = start.record.last_record if start.record is not None else -1
    if newest >= log.start() and not len(next(scan.walk(log, newest, newest + 1)).positions):
        raise CorruptRecordError(
            str(log.segments.path(log.segments.base_of(newest))), newest,
            "damaged: the newest record that was on disk is not whole",
        )  # fmt: skip
    if end < start.durable_point:
        case = decide(_what_follows(log, end), durable=True, in_unit=False, foreign=start.foreign)
        assert case.action is Action.REFUSE
        raise CorruptRecordError(str(log.segments.path(log.segments.base_of(end))), end, f"{case.name}: {reason}")


def _verify_same_boot(log: CommitLog, start: StartingPoint) -> RecoveryReport | None:
    """Walk what was never flushed; None if the page cannot be believed: files were changed by hand, or a flush failed.

    After a failed flush nobody knows which pages of the views reached the disk; they are written again, too.
    """
    page = log.writing_page
    if page.poison:
        return None
    end, records = start.offset, 0
    for stretch in scan.walk(log, start.offset, page.appended_end) if start.offset < page.appended_end else ():
        end, records = stretch.end, records + len(stretch.positions)
    if end != page.appended_end:
        return None
    log.segments.rewrite(start.offset, end)
    return RecoveryReport(start.trust.name, "clean", end, end - start.offset, records, 0, None)


def _scan_and_repair(log: CommitLog, start: StartingPoint) -> RecoveryReport:
    first, index_from = _prepare_index(log, start)
    end, records = first, 0
    last_record = start.record.last_record if start.record else -1
    timestamp = start.record.timestamp if start.record else 0
    units = UnitScan()
    before_unit = last_record, timestamp
    for stretch in scan.walk(log, first, crc_from=start.crc_from(log)):
        for piece, opened in units.split(log, stretch):
            if opened is not None:
                before_unit = last_record, timestamp
            if len(piece.positions):
                timestamp = _dispatch(log, piece, index_from)
                last_record = piece.base + int(piece.positions[-1])
                records += len(piece.positions)
        end = stretch.end
    torn = units.torn()
    case = decide(_what_follows(log, end), durable=False, in_unit=torn is not None, foreign=start.foreign)
    cut_from = end
    if case.action is Action.DROP_UNIT:
        assert torn is not None
        cut_from = torn.start
        _LOG.warning("%s: dropping a unit that was not finished: bytes %d to %d", log.root, torn.start, end)
        last_record, timestamp = before_unit
    cut_entries(log, cut_from)
    removed = _remove(log, cut_from)
    log.views.cut_queues(cut_from, log.views.keys(), log.is_whole_entry)
    if not start.foreign:
        log.segments.rewrite(max(first, min(start.durable_point, cut_from)), cut_from)
    report = RecoveryReport(
        start.trust.name, case.name, cut_from, end - first, records, removed,
        cut_from if case.action is Action.DROP_UNIT else None,
    )  # fmt: skip
    return _publish(log, report, last_record, timestamp)


def _prepare_index(log: CommitLog, start: StartingPoint) -> tuple[int, int]:
    """Put the index into a state that records can be added to.

    Returns the frame boundary to walk from and the offset from which on records must be indexed.
    """
    if log.views.index is None:
        return start.offset, start.offset
    if start.trust is Trust.OWN:
        record = start.record
        assert record is not None
        log.views.restore_index(IndexState(record.index_file, record.index_header))
        return start.offset, start.offset
    if start.trust is Trust.COPY:
        log.views.restore_index(EMPTY)
        return start.offset, start.offset
    if start.trust is Trust.BROKER_CLEAN:
        # A clean stop guarantees that everything was indexed, unless the broker did so only for a time.
        last = log.views.index.end_offset()
        if log.store_timestamp(last) is None:
            return start.offset, start.offset
    elif (last := keep_whole_entries(log)) < 0:
        return log.start(), log.start()
    return min(start.offset, last), last + 1


def _dispatch(log: CommitLog, piece: scan.Stretch, index_from: int) -> int:
    """Put the records of a stretch into the views; returns the newest storeTimestamp."""
    columns = scan.columns_of(log, piece)
    for key, first, entries in scan.entries_by_queue(columns, piece):
        log.views.queue(*key).put(first, entries)
    offsets = piece.base + piece.positions
    wanted = offsets >= index_from
    if wanted.any():
        skipped = int(columns.key_counts[~wanted].sum())
        log.views.put_keys(
            columns.key_hashes[skipped:], columns.key_counts[wanted], offsets[wanted], columns.store_timestamp[wanted]
        )
    return int(columns.store_timestamp[-1])


def _what_follows(log: CommitLog, end: int) -> Follows:
    bases = log.segments.bases()
    if end in range(0, bases[-1] if bases else 0, log.segments.size_bytes) and end not in bases:
        return Follows.NO_SEGMENT
    if not log.segments.data_beyond(end):
        return Follows.ZEROS
    for base in log.segments.bases():
        if base + log.segments.size_bytes <= end:
            continue
        view = log.segments.open(base).map
        at = view.find(_MAGIC_PREFIX, max(end - base, 0))
        while at >= 0:
            position = at - 4
            if position >= 0 and base + position > end:
                window = memoryview(view)
                check = check_frame(window, position, len(window), expect_offset=base + position, check_crc=True)
                if check.kind == "message":
                    return Follows.RECORDS
            at = view.find(_MAGIC_PREFIX, at + 1)
    return Follows.GARBAGE


def _remove(log: CommitLog, end: int) -> int:
    """Take the bytes from `end` on out of the log, keeping a copy of those that are not zero; returns how many."""
    removed = 0
    directory = log.own / "removed"
    for base in log.segments.bases():
        if base + log.segments.size_bytes <= end:
            continue
        low = max(end - base, 0)
        start, stop = base + low, log.segments.data_end(base, low)
        if stop > start:
            durable.make_directory(directory)
            log.segments.copy(start, stop, directory / f"{start:020d}")
            _LOG.warning("%s: bytes %d to %d were no part of the log; kept in %s", log.root, start, stop, directory)
            log.segments.zero(start, base + log.segments.size_bytes)
            removed += stop - start
    return removed


def _publish(
    log: CommitLog, report: RecoveryReport, last_record: int, timestamp: int, *, flushed: bool = False
) -> RecoveryReport:
    """Make everything durable, write it down, and only then say that the store is ours (docs/design.md section 4)."""
    page = log.writing_page
    if not flushed:
        sync_filesystem(log)
    state = log.views.index_state()
    log.progress.write(
        ProgressRecord(report.end, last_record, report.end, state.file, state.header, clean=False, timestamp=timestamp)
    )
    fd = durable.open_nofollow(log.root / "lock", os.O_RDWR | os.O_CREAT)
    try:
        durable.write_fully(fd, OUR_LOCK_TEXT, 0, log.root / "lock")
        durable.fsync_file(fd, log.root / "lock")
    finally:
        os.close(fd)
    page.publish(report.end, report.end, last_record, timestamp)
    return report
