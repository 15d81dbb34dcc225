"""Reading a store without writing to it: the end of its log, and the queue entries that its files lack.

If a writer is alive, its state page has the end. Otherwise the log is scanned as by a first opener, with the result in
memory.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Collection
from dataclasses import field, replace

import numpy as np

from rmq_store.errors import NotAStoreError
from rmq_store.files.locks.state_page import StatePage
from rmq_store.files.segments.open_files import OpenFile
from rmq_store.format.views.consume_queue import ENTRY
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.core import scan
from rmq_store.log.core.accepted_damage import AcceptedDamage, BadRange
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.core.units import UnitScan
from rmq_store.log.integrity.placeholder_entries import (
    has_gap_before,
    lost_messages_max,
    placeholder_entries,
    queue_ends,
)
from rmq_store.log.integrity.queue_ends import QueueEnds
from rmq_store.log.integrity.walk_over_damage import DamageWalk
from rmq_store.log.recovery.damage import plausible_durable_point
from rmq_store.log.recovery.rebuild import is_begun
from rmq_store.log.recovery.rebuilt_queues import RebuiltViews, Spool
from rmq_store.log.recovery.starting_point import (
    StartingPoint,
    Trust,
    log_is_ours,
    refetched_from,
    starting_point,
)
from rmq_store.log.views.views import QueueKey

_LOG = logging.getLogger(__name__)

# Of which damage a log's readers were told: they look again whenever somebody may have written.
_LOGGED: weakref.WeakKeyDictionary[CommitLog, set[BadRange | int]] = weakref.WeakKeyDictionary()

# 20 bytes each: enough for the tail of any store; one whose queues were all deleted has to be rebuilt by a writer.
_MISSING_ENTRIES_MAX = 5_000_000

_TRIES = 5

# Bytes after the end of a log to which nobody appends: no frame begins so.
_UNTOUCHED = bytes(8)

MissingEntries = tuple[int, np.ndarray]
"""Queue offset of the first entry, and entries (dtype ENTRY) from there on."""


@dataclass(slots=True)
class ReadOnlyEnd:
    """The visible end of a store without a writer, and, per queue, entries [first, first + n) that its files lack.

    `behind`: the bytes after the end; if they change, a process has written.
    """

    end: int
    behind: bytes
    foreign: bool = False
    missing: dict[QueueKey, MissingEntries] = field(default_factory=dict)
    segment: Callable[[], OpenFile | None] = lambda: None
    """Where the end lies. A weak reference: its map goes when others are needed, and to look at it unpins nothing."""
    position: int = 0

    def is_untouched(self) -> bool:
        """Cheap check without a system call. True: nothing was appended since; mapped memory still has zeros after the
        end. False: unknown, call `read_on`.

        Every writer, brokers included, writes its first bytes there before its end moves, so an append is never missed.
        The check covers the file that was found; `read_on` checks whether it is still the store's.
        """
        file = self.segment()
        return file is not None and file.map[self.position : self.position + len(_UNTOUCHED)] == _UNTOUCHED


def live_page(log: CommitLog) -> StatePage | None:
    """The state page, if a live writer of ours updates it at this moment; otherwise None."""
    if log.store_lock.who().kind != "shared" or not log_is_ours(log):
        return None
    page = _page(log)
    return page if page is not None and page.counts() else None


def index_is_whole(log: CommitLog) -> bool:
    """True if the index covers all readable messages: its writer is alive, or stopped cleanly. A broker's index is
    taken as it is.
    """
    if not log_is_ours(log) or live_page(log) is not None:
        return True
    return starting_point(log, _page(log)).trust not in (Trust.OWN, Trust.COPY)


def read_only_end(log: CommitLog) -> ReadOnlyEnd | StatePage:
    """Return the state page of a live writer, or the end of a store without one.

    Raises:
        NotAStoreError: too many queue entries are missing to keep them in memory, or a rebuild of the queues was
            interrupted.
        CorruptionError: a segment has the wrong size.
    """
    log.accepted_damage = AcceptedDamage.load(log.own)
    for _ in range(_TRIES):
        if (page := live_page(log)) is not None:
            return page
        found = _scan(log)
        # A writer that came while we scanned may have been killed in the middle of an append that will be undone.
        if log.store_lock.who().kind == "free" or log.store_lock.posix_holder() is not None:
            return found
    return found


def read_on(log: CommitLog, found: ReadOnlyEnd) -> ReadOnlyEnd | StatePage:
    """The present result of `read_only_end`. Cheap if no process wrote since `found`. Raises as `read_only_end`."""
    if (page := live_page(log)) is not None:
        return page
    now = _end_at(log, found.end)
    # Somebody may have been in the middle of a record when it was found, and have completed it since, or another one of
    # its size have been written there: its first bytes do not tell.
    if now.behind == found.behind and not any(now.behind):
        found.segment = now.segment
        return found
    if isinstance(log.views, RebuiltViews):
        return _on_from_log_alone(log, log.views, found)
    if found.foreign and not log_is_ours(log):
        start = StartingPoint(Trust.BROKER_UNCLEAN, found.end, 0, None, False)
        return _walk(log, start, missing=dict(found.missing))
    return read_only_end(log)


def _end_at(
    log: CommitLog, end: int, *, foreign: bool = False, missing: dict[QueueKey, MissingEntries] | None = None
) -> ReadOnlyEnd:
    base = log.segments.base_of(end)
    found = ReadOnlyEnd(end, b"", foreign, missing or {}, position=end - base)
    with contextlib.suppress(FileNotFoundError):
        file = log.segments.open(base)
        found.behind = file.map[found.position : found.position + len(_UNTOUCHED)]
        found.segment = weakref.ref(file)
    return found


def _page(log: CommitLog) -> StatePage | None:
    try:
        return StatePage(log.own / "state", writable=False)
    except FileNotFoundError:
        return None


def _from_log_alone(log: CommitLog, views: RebuiltViews) -> ReadOnlyEnd:
    """Walk over the whole log, and make the queues of what it holds."""
    over, end = DamageWalk(log, 0, presumes=log.store_lock.posix_holder() is None), log.start()
    with Spool() as spool:
        for stretch in over.walk(end):
            if len(stretch.positions):
                columns = scan.columns_of(log, stretch)
                over.add(stretch, columns)
                for key, first, entries in scan.entries_by_queue(columns, stretch, views.elsewhere):
                    spool.add(key, first, entries)
            end = stretch.end
        _log_damage(log, over, [], end)
        views.fill(spool, log.accepted_damage)
    return _end_at(log, end, foreign=True)


def _on_from_log_alone(log: CommitLog, views: RebuiltViews, found: ReadOnlyEnd) -> ReadOnlyEnd:
    """Walk over what has come since."""
    end = found.end
    for stretch in scan.walk(log, end):
        if len(stretch.positions):
            for key, first, entries in scan.entries_by_queue(scan.columns_of(log, stretch), stretch, views.elsewhere):
                views.add(key, first, entries, log.accepted_damage)
        end = stretch.end
    return _end_at(log, end, foreign=True)


def _scan(log: CommitLog) -> ReadOnlyEnd:
    if isinstance(log.views, RebuiltViews):
        return _from_log_alone(log, log.views)
    if is_begun(log.root):
        reason = "a rebuild of the queues did not come to its end: open the store for writing, or run `rmq repair`"
        raise NotAStoreError(str(log.root), reason)
    page = _page(log)
    start = starting_point(log, page)
    log.crc_from = start.crc_from(log)
    if start.trust is Trust.CLEAN:
        return _end_at(log, start.offset)
    if start.trust is Trust.SAME_BOOT:
        assert page is not None
        end = page.flushed_end if log.sync_flush else page.appended_end
        return _end_at(log, end)
    if start.foreign:
        if not log.segments.bases() and any(log.views.queue(*key).last_entry() for key in log.views.keys()):
            _LOG.warning("%s: its log has no file, though its queues have entries: is a disk not mounted?", log.root)
        return _walk(log, start, missing={})
    # Of this boot: what lies above its end is an append that the next writer takes back.
    limit = page.appended_end if page is not None and page.counts() else refetched_from(log, page, start)
    return _walk(log, replace(start, durable_point=plausible_durable_point(log, start, page)), limit, missing={})


def _walk(
    log: CommitLog, start: StartingPoint, limit: int | None = None, *, missing: dict[QueueKey, MissingEntries]
) -> ReadOnlyEnd:
    """Walk the log from where `start` says; `missing` is what is known of the queues below it. Of the queues that are
    `start.lost` every entry is taken from the log: the first ones may be those that are missing.
    """
    end, stretches, units, accepted = start.offset, [], UnitScan(), log.accepted_damage
    # After the end of a running broker there may be truncated bytes that it will overwrite.
    presumes = start.copied or (start.foreign and log.store_lock.posix_holder() is None)
    over = DamageWalk(log, start.durable_point, presumes=presumes)
    for stretch in over.walk(start.offset, limit):
        for piece, columns, _ in units.split(log, stretch):
            over.add(piece, columns)
        stretches.append(stretch)
        end = stretch.end
    torn = None if start.foreign else units.torn()
    end = torn.start if torn else end
    if over.found:
        found_damage = tuple(bad for bad in over.found if bad.start < end)
        table = None if start.foreign else QueueEnds.load(log.own)
        queues = queue_ends(log, AcceptedDamage(found_damage), {}, table) if found_damage else {}
        log.accepted_damage = accepted.plus(found_damage, queues)
    _log_damage(log, over, stretches, end)
    found = _end_at(log, end, foreign=start.foreign, missing=_still_missing(log, end, missing))
    believes_views = start.offset > log.start() and not start.foreign and not log.accepted_damage
    if believes_views and (corrupt := [key for key, first in over.firsts.items() if has_gap_before(log, key, first)]):
        return _walk(log, replace(start, offset=log.start(), lost=tuple(corrupt)), limit, missing={})
    for stretch in stretches:
        _add_missing(log, stretch, found, start.lost)
    for key, queue_end in log.accepted_damage.queues.items():
        _lengthen(log, key, queue_end, found)
    return found


def _log_damage(log: CommitLog, over: DamageWalk, stretches: list[scan.Stretch], end: int) -> None:
    """Say what of the log is damaged, and where it ends although whole records lie behind."""
    logged = _LOGGED.setdefault(log, set())
    for bad in over.found if over.found and over.found[0] not in logged else ():
        behind = sum(int(np.count_nonzero(stretch.base + stretch.positions >= bad.end)) for stretch in stretches)
        if bad.start < end:
            _LOG.warning(
                "%s: bytes %d to %d of the log are damaged (%s); %d whole records behind them are read. To read a "
                "message that was there is an error; `rmq verify` names all damage, `rmq repair` accepts it",
                log.root, *bad[1:3], bad.reason, behind,
            )  # fmt: skip
        else:
            _LOG.warning(
                "%s: the log ends at byte %d, where a unit begins whose end is not there; %d whole records behind "
                "damage at byte %d are not read",
                log.root, end, behind, bad.start,
            )  # fmt: skip
    if over.behind is not None and over.behind not in logged:
        _LOG.warning(
            "%s: the log ends at byte %d, but whole records lie behind it from byte %d on. They are not read: the log "
            "does not go on with them, or it was never on disk so far. The next writer removes them (a copy goes to "
            "pyrmq/removed)",
            log.root, end, over.behind,
        )  # fmt: skip
    logged.update(over.found)
    if over.behind is not None:
        logged.add(over.behind)


def _lengthen(log: CommitLog, key: QueueKey, queue_end: int, found: ReadOnlyEnd) -> None:
    """A queue whose last messages are lost ends where it did."""
    known = found.missing.get(key)
    next_offset = known[0] + len(known[1]) if known else log.queue_max(*key, found.end)
    if next_offset < queue_end <= next_offset + lost_messages_max(log.accepted_damage):  # as `close_ends`
        bad = log.accepted_damage.at_or_after(_newest(log, key, known, next_offset))
        placeholders = placeholder_entries(bad, queue_end - next_offset)
        found.missing[key] = (known[0], _joined(known[1], placeholders)) if known else (next_offset, placeholders)


def _newest(log: CommitLog, key: QueueKey, known: MissingEntries | None, next_offset: int) -> int:
    """Log offset of the last known entry's record; -1 without one."""
    if known:
        return int(known[1]["commit_log_offset"][-1])
    return log.views.queue(*key).entry(next_offset - 1)[0] if next_offset else -1


def _still_missing(log: CommitLog, end: int, missing: dict[QueueKey, MissingEntries]) -> dict[QueueKey, MissingEntries]:
    """Leave out what a broker has put into its files since we looked."""
    kept = {}
    for key, (first, entries) in missing.items():
        in_files = log.queue_max(*key, end)
        if in_files < first + len(entries):
            skipped = max(0, in_files - first)
            kept[key] = (first + skipped, entries[skipped:])
    return kept


def _add_missing(log: CommitLog, stretch: scan.Stretch, found: ReadOnlyEnd, lost: Collection[QueueKey]) -> None:
    below = stretch.base + stretch.positions < found.end
    if not below.any():
        return
    part = stretch._replace(positions=stretch.positions[below], sizes=stretch.sizes[below])
    for key, first, entries in scan.entries_by_queue(scan.columns_of(log, part), part, log.views.elsewhere):
        known = found.missing.get(key)
        in_files = 0 if known or key in lost else log.queue_max(*key, found.end)
        next_offset = known[0] + len(known[1]) if known else in_files
        if known and first < next_offset:  # a topic that was made again, or fail-over: the last one counts
            found.missing[key] = (min(known[0], first), _joined(known[1][: max(first - known[0], 0)], entries))
            continue
        new = entries[max(0, next_offset - first) :]
        if not len(new):
            continue
        if first > next_offset and (known or next_offset or (log.accepted_damage and log.start() == 0)):
            if not log.accepted_damage:
                continue  # a gap: these queue offsets cannot be reached by reading on
            bad = log.accepted_damage.at_or_after(_newest(log, key, known, next_offset))
            first, new = next_offset, _joined(placeholder_entries(bad, first - next_offset), new)
        found.missing[key] = (known[0], _joined(known[1], new)) if known else (max(first, next_offset), new)
        if sum(len(entries) for _, entries in found.missing.values()) > _MISSING_ENTRIES_MAX:
            raise NotAStoreError(
                str(log.views.directory),
                "most queue entries are missing: open the store for writing once to rebuild them",
            )


def _joined(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    # Without a dtype numpy makes the fields native.
    return np.concatenate([first, second], dtype=ENTRY)
