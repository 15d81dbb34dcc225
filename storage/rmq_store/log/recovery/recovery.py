"""Recovery by a first opener: find the end of the log, remove the bytes after it, bring the views up to date.

Recovery passes once over the records from the starting point on. Every queue entry that it writes again has the same
bytes at the same offset. Units whose end was not reached are dropped. docs/design.md section 8;
CommitLog#recoverNormally, #recoverAbnormally.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path

from rmq_store.errors import CorruptConfigError
from rmq_store.files import durable
from rmq_store.files.progress import ProgressRecord
from rmq_store.format.text.names import LMQ_PREFIX
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.append.append import undo
from rmq_store.log.append.flush import sync_filesystem
from rmq_store.log.core import scan
from rmq_store.log.core.accepted_damage import AcceptedDamage, BadRange
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.core.units import UnitScan
from rmq_store.log.integrity.placeholder_entries import close_ends, fill_taken, is_retired, queue_ends, restore_ends
from rmq_store.log.integrity.queue_ends import QueueEnds
from rmq_store.log.integrity.queue_ends_writer import doubt_queue_ends, settle_queue_ends
from rmq_store.log.recovery.damage import (
    accepted_damage_of_broker,
    find_damage,
    last_message_end,
    plausible_durable_point,
    presumed_end,
    refusal,
)
from rmq_store.log.recovery.delivery_times import copy_schedule, drop_copies, restore_delivery_times
from rmq_store.log.recovery.dispatch import CorruptQueueError, Dispatch
from rmq_store.log.recovery.index_repair import cut_entries, keep_whole_entries
from rmq_store.log.recovery.rebuild import Rebuild, begin_rebuild, end_rebuild, go_on, is_begun
from rmq_store.log.recovery.recovery_table import Action, Follows, decide
from rmq_store.log.recovery.rewrite_files import renew
from rmq_store.log.recovery.starting_point import (
    OUR_LOCK_TEXT,
    StartingPoint,
    Trust,
    refetched_from,
    starting_point,
)
from rmq_store.log.views.hash_index import EMPTY, IndexState
from rmq_store.log.views.views import QueueKey

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """Findings and actions of a recovery; sizes in bytes, `case` as in RECOVERY_TABLE.

    `bad_ranges`: all kept damage of records that were on disk, from this recovery or an earlier one. `delivery_times`:
    number of delayed messages whose due time was restored from copies of the queues.
    """

    trust: str
    case: str
    end: int
    scanned_bytes: int
    record_count: int
    removed_bytes: int
    dropped_unit: int | None
    bad_ranges: tuple[BadRange, ...] = ()
    delivery_times: int = 0


@dataclass(frozen=True, slots=True)
class RecoveryOptions:
    """Options of a recovery.

    `keep`: damage of records that were on disk is kept and passed over, instead of refused. `rebuild`: the whole log is
    scanned and every view written again. `committed()`: offsets up to which queues were certainly used. `describe()`
    makes the store.json of a store that has none: until it exists, nothing says that a store is ours. `progress` is
    called with (records so far, bytes so far, bytes in all).
    """

    keep: bool = False
    rebuild: bool = False
    committed: Callable[[], Mapping[QueueKey, Iterable[int]]] = dict
    describe: Callable[[], None] = lambda: None
    progress: Callable[[int, int, int], None] = lambda records, done_bytes, total_bytes: None


REFUSE = RecoveryOptions()


def recover(log: CommitLog, begin: Callable[[], None], options: RecoveryOptions = REFUSE) -> RecoveryReport:
    """Recover and publish the state page; everything is on disk on return. The caller holds byte 0 of `lock`
    exclusively.

    `begin`, and then `options.describe`, is called when the state of the store is known, and before anything is
    changed.

    Raises:
        CorruptRecordError: records below the durable point are damaged or missing; nothing was changed. Not with
            `options.keep`.
        CorruptConfigError, NotAStoreError: of `kept.json`, as `AcceptedDamage.load`.
        StoreFullError, StoreFailedError: call again after the cause is gone.
    """
    page = log.writing_page
    log.accepted_damage = AcceptedDamage.load(log.own)
    start = starting_point(log, page)
    log.crc_from = start.crc_from(log)
    interrupted = is_begun(log.root)
    if interrupted:
        options = replace(options, rebuild=True)
    if options.rebuild:
        trust = Trust.BROKER_UNCLEAN if start.foreign else Trust.COPY
        start = replace(start, trust=trust, offset=log.start(), record=None)
    accepted = _judge(log, start, options, cut_as_java=not interrupted)
    limit = refetched_from(log, page, start)
    in_doubt = page.is_doubtful and (log.root / "abort").exists()
    on_disk = page.is_of_another_boot()
    begin()
    options.describe()
    _remember(log, accepted)
    if start.trust is not Trust.CLEAN:
        doubt_queue_ends(log, foreign=start.foreign)
    if page.counts() and not start.foreign:
        undo(log)
    if start.trust is Trust.SAME_BOOT:
        report = _verify_same_boot(log, start)
        if report is not None:
            log.segments.rewrite(start.offset, report.end)
            last, timestamp = page.last_record, page.store_timestamp
            page.retract()
            return _publish(log, report, last, timestamp)
        start = replace(starting_point(log, None), durable_point=start.durable_point)
        _remember(log, _judge(log, start, options))
    page.retract()
    if start.trust is Trust.CLEAN:
        assert start.record is not None
        report = RecoveryReport(start.trust.name, "clean", start.offset, 0, 0, 0, None, log.accepted_damage.ranges)
        return _publish(log, report, start.record.last_record, start.record.timestamp, flushed=True)
    if start.trust is Trust.COPY:
        _distrust_views(log, start)
    if in_doubt and not start.foreign:
        renew(log)
    if options.rebuild:
        copies = {} if interrupted else copy_schedule(log)
        begin_rebuild(log.root, _known_committed(options), copies)
        _remove_queues(log)
    try:
        return _scan_and_repair(log, start, options, limit, on_disk=on_disk)
    except CorruptQueueError as error:
        _LOG.warning("%s: entries of %s-%d are damaged: all are taken from the log", log.root, *error.key)
        start = replace(start, trust=Trust.COPY, offset=log.start(), record=None)
        _remember(log, _judge(log, start, options))
        _distrust_views(log, start)
        return _scan_and_repair(log, start, options, limit, on_disk=on_disk)


def _distrust_views(log: CommitLog, start: StartingPoint) -> None:
    """If we are killed in the middle, half-written views are there, and must not be taken for whole ones."""
    if start.vouched:
        log.progress.write(
            ProgressRecord(
                log.start(), -1, start.durable_point, EMPTY.file, EMPTY.header, clean=False, timestamp=0,
                crc_from=log.crc_from,
            )
        )  # fmt: skip


def _known_committed(options: RecoveryOptions) -> Mapping[QueueKey, Iterable[int]]:
    """A table of offsets that nobody can read has nothing to say here, and is no reason not to build queues again."""
    try:
        return options.committed()
    except CorruptConfigError:
        return {}


def _remove_queues(log: CommitLog) -> None:
    """Except for the newest file of a queue without messages: it stays as it was, byte for byte. `go_on` makes one in
    the place of those that are damaged.
    """
    for topic, queue_id in log.views.keys():
        if not topic.startswith(LMQ_PREFIX):
            queue = log.views.queue(topic, queue_id)
            bases = queue.run.bases()
            for base in bases[:-1] if is_retired(log, queue) else bases:
                queue.run.remove(base)


def _judge(
    log: CommitLog, start: StartingPoint, options: RecoveryOptions, *, cut_as_java: bool = True
) -> AcceptedDamage:
    """Before anything is changed: whether the records are there that were on disk for certain; what is kept if not.

    A broker's log is cut where the broker would cut it only if `cut_as_java`: not by who finds a rebuild that was
    begun, and so meets damage that no broker would have looked at.
    """
    if start.foreign and not options.keep and cut_as_java:
        return accepted_damage_of_broker(log)
    if start.foreign:
        log.accepted_damage = accepted_damage_of_broker(log)
        start = replace(start, offset=log.start(), durable_point=last_message_end(log))
    elif options.keep:
        start = replace(start, durable_point=plausible_durable_point(log, start, log.writing_page))
    if start.copied:
        start = replace(start, durable_point=presumed_end(log, start))
    found = find_damage(log, start)
    if not found:
        return log.accepted_damage
    if not options.keep:
        raise refusal(log, found[0], _what_follows(log, found[0].start))
    new = AcceptedDamage(tuple(found))
    table = None if start.foreign else QueueEnds.load(log.own)
    return log.accepted_damage.plus(found, queue_ends(log, new, options.committed(), table))


def _remember(log: CommitLog, accepted: AcceptedDamage) -> None:
    """From here on the damage counts as known, if we are killed too."""
    if accepted == log.accepted_damage:
        return
    for bad in accepted.ranges:
        if bad not in log.accepted_damage.ranges:
            _LOG.error("%s: bytes %d to %d of the log are damaged and kept: %s", log.root, *bad[1:3], bad.reason)
    accepted.save(log.own)
    log.accepted_damage = accepted


def _verify_same_boot(log: CommitLog, start: StartingPoint) -> RecoveryReport | None:
    """Walk what was never flushed; None if the page cannot be believed: files were changed by hand, or a flush failed.

    After a failed flush nobody knows which pages of the views reached the disk; they are written again, too.
    """
    page = log.writing_page
    if page.is_doubtful:
        return None
    end, records = start.offset, 0
    for stretch in scan.walk(log, start.offset, page.appended_end) if start.offset < page.appended_end else ():
        end, records = stretch.end, records + len(stretch.positions)
    if end != page.appended_end:
        return None
    ranges = log.accepted_damage.ranges
    return RecoveryReport(start.trust.name, "clean", end, end - start.offset, records, 0, None, ranges)


def _scan_and_repair(
    log: CommitLog, start: StartingPoint, options: RecoveryOptions, limit: int | None, *, on_disk: bool
) -> RecoveryReport:
    """`limit`: records behind it do not count. `on_disk`: the bytes of the log come from there, and need not be written
    again.
    """
    first, index_from, index_state = _prepare_index(log, start)
    end, records = first, 0
    files_end = max(log.segments.bases(), default=0) + log.segments.size_bytes
    last_record = start.record.last_record if start.record else -1
    timestamp = start.record.timestamp if start.record else 0
    before_unit, units = (last_record, timestamp), UnitScan()
    with Dispatch(log, index_from, believes_views=start.trust is Trust.OWN) as dispatch:
        if index_state is not None:
            dispatch.restore_index(index_state)
        for stretch in scan.walk(log, first, limit):
            for piece, columns, opened in units.split(log, stretch):
                if opened is not None:
                    before_unit = last_record, timestamp
                dispatch.put(piece, columns)
                last_record, timestamp = piece.base + int(piece.positions[-1]), int(columns.store_timestamp[-1])
                records += len(piece.positions)
            end = stretch.end
            options.progress(records, end - first, max(files_end, end) - first)
        dispatch.end()
    _tell_assumed(log, dispatch.assumed)
    torn = units.torn()
    case = decide(_what_follows(log, end), durable=False, in_unit=torn is not None, foreign=start.foreign)
    cut_from = end
    if case.action is Action.DROP_UNIT:
        assert torn is not None
        cut_from = torn.start
        _LOG.warning("%s: dropping a unit that was not finished: bytes %d to %d", log.root, torn.start, end)
        last_record, timestamp = before_unit
    if start.trust is Trust.COPY:
        fill_taken(log, dispatch.firsts, cut_from)
    close_ends(log)
    go_on(log)
    restore_ends(log)
    cut_entries(log, cut_from)
    removed = _remove(log, cut_from)
    keys = log.views.keys()
    own = [key for key in keys if not key[0].startswith(LMQ_PREFIX)]
    log.views.cut_queues(cut_from, own, log.is_record_of, log.is_whole_entry)
    others = [key for key in keys if key[0].startswith(LMQ_PREFIX)]  # their records say that they are another queue's
    log.views.cut_queues(cut_from, others, log.is_record_of)
    begun = Rebuild.load(log.root)
    delivery_times = restore_delivery_times(log, begun.schedule) if begun is not None else 0
    if not start.foreign:
        settle_queue_ends(log, cut_from)
        if not on_disk:
            log.segments.rewrite(max(first, min(start.durable_point, cut_from)), cut_from)
    report = RecoveryReport(
        start.trust.name, case.name, cut_from, end - first, records, removed,
        cut_from if case.action is Action.DROP_UNIT else None, log.accepted_damage.ranges, delivery_times,
    )  # fmt: skip
    report = _publish(log, report, last_record, timestamp)
    end_rebuild(log.root)
    drop_copies(log)
    return report


def _tell_assumed(log: CommitLog, assumed: Mapping[int, int]) -> None:
    delays_ms = log.delay_levels_ms
    for level, messages in sorted(assumed.items()):
        _LOG.warning(
            "%s: nothing tells when %d messages of delay level %d are due: no queue entry of theirs, and no other "
            "message of the level. They wait %d s, by RocketMQ's own messageDelayLevel",
            log.root, messages, level, delays_ms[min(level, len(delays_ms)) - 1] // 1000,
        )  # fmt: skip


def _prepare_index(log: CommitLog, start: StartingPoint) -> tuple[int, int, IndexState | None]:
    """How records can be added to the index: the frame boundary to walk from, the offset from which on records must be
    indexed, and the state that the index has to be put back to before, if it has to.
    """
    if log.views.index is None:
        return start.offset, start.offset, None
    if start.trust is Trust.OWN:
        record = start.record
        assert record is not None
        return start.offset, start.offset, IndexState(record.index_file, record.index_header)
    if start.trust is Trust.COPY:
        return start.offset, start.offset, EMPTY
    if start.trust is Trust.BROKER_CLEAN:
        # A clean stop guarantees that everything was indexed, unless the broker did so only for a time.
        last = log.views.index.end_offset()
        if log.store_timestamp(last) is None:
            return start.offset, start.offset, None
    elif (last := keep_whole_entries(log)) < 0:
        return log.start(), log.start(), None
    return min(start.offset, last), last + 1, None


def _what_follows(log: CommitLog, end: int) -> Follows:
    bases = log.segments.bases()
    if end in range(0, bases[-1] if bases else 0, log.segments.size_bytes) and end not in bases:
        return Follows.NO_SEGMENT
    if not log.segments.data_beyond(end):
        return Follows.ZEROS
    for base in log.segments.bases():
        position = max(end + 1 - base, 0)
        if position < log.segments.size_bytes > scan.next_message(log, base, position):
            return Follows.RECORDS
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
            # Under a new name each time: a recovery that was killed here had copied more than what is left now.
            log.segments.copy(start, stop, free_name(directory / f"{start:020d}"))
            _LOG.warning("%s: bytes %d to %d were no part of the log; kept in %s", log.root, start, stop, directory)
            log.segments.zero(start, base + log.segments.size_bytes)
            removed += stop - start
    return removed


def free_name(path: Path) -> Path:
    """`path`, or `path` with a number, so that no earlier copy is overwritten."""
    return next(free for n in count(1) if not (free := path.with_name(f"{path.name}-{n}") if n > 1 else path).exists())


def _publish(
    log: CommitLog, report: RecoveryReport, last_record: int, timestamp: int, *, flushed: bool = False
) -> RecoveryReport:
    """Make everything durable, write it down, and only then say that the store is ours (docs/design.md section 4)."""
    page = log.writing_page
    if not flushed:
        page.doubt()  # we may be told of an error, which is told only once, and be killed then
        sync_filesystem(log)
        page.flushing = 0
    state = log.views.index_state()
    if log.crc_from is None and log.crc_property:
        log.crc_from = report.end  # a broker's records lie below it
    log.progress.write(
        ProgressRecord(
            report.end, last_record, report.end, state.file, state.header, clean=False, timestamp=timestamp,
            crc_from=log.crc_from,
        )
    )  # fmt: skip
    fd = durable.open_nofollow(log.root / "lock", os.O_RDWR | os.O_CREAT)
    try:
        durable.write_fully(fd, OUR_LOCK_TEXT, 0, log.root / "lock")
        durable.fsync_file(fd, log.root / "lock")
    finally:
        os.close(fd)
    page.publish(report.end, report.end, last_record, timestamp)
    return report
