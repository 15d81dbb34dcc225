"""Finds damage of records that were certainly on disk, before anything is changed.

A range ends at the next whole frame of its segment; otherwise at the end of the segment, or at the durable point. The
durable point also ends a range of missing files. Rows "corruption", "missing segment" and "lost durable tail" of the
recovery table; docs/design.md sections 8.2, 8.5.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import pairwise

import numpy as np

from rmq_store.errors import CorruptRecordError
from rmq_store.files.locks.state_page import StatePage
from rmq_store.log.core import scan
from rmq_store.log.core.accepted_damage import AcceptedDamage, BadRange
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.core.units import UnitScan
from rmq_store.log.integrity.placeholder_entries import messages_in
from rmq_store.log.integrity.walk_over_damage import DamageWalk, bad_range, damaged_range, message_after
from rmq_store.log.recovery.recovery_table import Action, Follows, decide
from rmq_store.log.recovery.starting_point import StartingPoint, Trust, vouched_end

_LOG = logging.getLogger(__name__)


def find_damage(log: CommitLog, start: StartingPoint) -> list[BadRange]:
    """The damaged ranges below the durable point that were not accepted yet, ascending; [] if there are none."""
    accepted, found = log.accepted_damage, [*_missing_segments(log, start.durable_point), *_newest_record(log, start)]
    try:
        log.accepted_damage = accepted.plus(found)
        found += _walk(log, start)
        log.accepted_damage = accepted.plus(found)
        new = [bad for bad in log.accepted_damage.ranges if bad not in accepted.ranges]
        return _with_counts(log, new) if new else []
    finally:
        log.accepted_damage = accepted


def plausible_durable_point(log: CommitLog, start: StartingPoint, page: StatePage | None) -> int:
    """The durable point that the log can have. The state page has no checksum, and a damaged word of it must not move
    the end far away. So beyond the files the page counts only if its words agree with each other.
    """
    bases = log.segments.bases()
    files_end = bases[-1] + log.segments.size_bytes if bases else 0
    if page is None or page.flushed_end <= page.appended_end <= page.last_record + log.segments.size_bytes:
        return start.durable_point
    return max(vouched_end(log) or 0, min(start.durable_point, files_end))


def presumed_end(log: CommitLog, start: StartingPoint) -> int:
    """Of a copied store: the end of the last whole record that follows damage above the durable point; the durable
    point if there is no such damage. It is unknown whether all of it was on disk in the original, so only the user may
    give it up.
    """
    end = start.offset
    for stretch in scan.walk(log, start.offset):
        end = stretch.end
    if message_after(log, end) is None:
        return start.durable_point
    accepted, over, units = log.accepted_damage, DamageWalk(log, start.durable_point, presumes=True), UnitScan()
    try:
        for stretch in over.walk(start.offset):
            for piece, columns, _ in units.split(log, stretch):
                over.add(piece, columns)
            end = stretch.end
    finally:
        log.accepted_damage = accepted
    torn = units.torn()
    end = end if torn is None else torn.start
    return max(start.durable_point, end) if any(bad.start < end for bad in over.found) else start.durable_point


def refusal(log: CommitLog, bad: BadRange, follows: Follows) -> CorruptRecordError:
    """The error for the first of the ranges."""
    case = decide(follows, durable=True, in_unit=False, foreign=False)
    assert case.action is Action.REFUSE
    messages = messages_in(log, bad)
    lost = f"; lost with them: {messages}" if messages else ""
    return CorruptRecordError(
        str(log.root / bad.file),
        bad.start,
        f"{case.name}: {bad.reason}; bytes {bad.start} to {bad.end} of the log were on disk and are no records, "
        f"{bad.records_behind} whole records lie behind them{lost}. Nothing was changed. Open the store with "
        "on_corruption='keep', or run `rmq repair`, to go on with both sides",
    )


def _missing_segments(log: CommitLog, durable_point: int) -> list[BadRange]:
    """Segments that are missing between two others. One missing behind all others is met by the walk."""
    size = log.segments.size_bytes
    neighbours = pairwise(log.segments.bases()) if durable_point else ()
    gaps = [(low, high) for low, high in neighbours if high - low > size]
    missing = [base for low, high in gaps for base in range(low + size, min(high, durable_point), size)]
    new = [base for base in missing if not log.accepted_damage.covering(base)]
    return [bad_range(log, base, base + size, "the segment is missing") for base in new]


def _newest_record(log: CommitLog, start: StartingPoint) -> list[BadRange]:
    """The newest record that was on disk when the progress record was written: the walk begins behind it."""
    if start.record is None or start.trust is Trust.CLEAN:
        return []
    newest = start.record.last_record
    if newest < log.start() or log.accepted_damage.covering(newest):
        return []
    base = log.segments.base_of(newest)
    end = min(base + log.segments.size_bytes, start.record.end)
    if not log.segments.exists(base):
        return [bad_range(log, base, end, "the segment is missing")]
    if len(next(scan.walk(log, newest, newest + 1)).positions):
        return []
    end = min(base + scan.next_frame(log, base, newest - base + 1), end)
    return [bad_range(log, newest, end, "damaged: the newest record that was on disk is not whole")]


def _walk(log: CommitLog, start: StartingPoint) -> list[BadRange]:
    """Walk up to the durable point, over what is damaged; `log.accepted_damage` grows on the way."""
    found: list[BadRange] = []
    offset = start.offset
    while offset < start.durable_point:
        reason = ""
        for stretch in scan.walk(log, offset, start.durable_point, ahead=not found):
            offset, reason = stretch.end, stretch.stopped
        if offset >= start.durable_point:
            break
        bad = damaged_range(log, offset, start.durable_point, reason)
        found.append(bad)
        log.accepted_damage = log.accepted_damage.plus([bad])
    return found


def _with_counts(log: CommitLog, found: list[BadRange]) -> list[BadRange]:
    """How many whole records lie behind each."""
    _LOG.warning("%s: %d damaged ranges; reading what lies behind byte %d", log.root, len(found), found[0].end)
    ends = np.array([bad.end for bad in found])
    counts = np.zeros(len(found), np.int64)
    for stretch in scan.walk(log, found[0].end):
        counts += len(stretch.positions) - np.searchsorted(stretch.base + stretch.positions, ends)
    return [bad._replace(records_behind=behind) for bad, behind in zip(found, counts.tolist(), strict=True)]


def accepted_damage_of_broker(log: CommitLog) -> AcceptedDamage:
    """The accepted damage that a broker leaves. It truncates at the first bad record, so ranges with nothing after them
    are no part of its log any more.
    """
    still = [bad for bad in log.accepted_damage.ranges if _goes_on(log, log.accepted_damage.skip(bad.start))]
    return replace(log.accepted_damage, ranges=tuple(still), queues=log.accepted_damage.queues if still else {})


def last_message_end(log: CommitLog) -> int:
    """The end of the last whole message in the files, wherever it lies: nothing before it is a torn tail."""
    size = log.segments.size_bytes
    for base in reversed(log.segments.bases()):
        position = end = 0
        while (position := scan.next_message(log, base, position)) < size:
            view = log.segments.open(base).map
            position = end = position + int.from_bytes(view[position : position + 4])
        if end:
            return base + end
    return log.start()


def _goes_on(log: CommitLog, offset: int) -> bool:
    stretch = next(scan.walk(log, offset, offset + 1))
    return not stretch.stopped
