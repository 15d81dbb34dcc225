"""A walk of the log that goes on behind damage, as far as what lies there is still part of the log.

Below the durable point every record was on disk: the walk passes over what is damaged, to the next whole frame. Above
it nothing says that more was there. A copy of a store does not tell how far the log was on disk, and a broker writes
nothing down. There (`presumes`) the walk goes on with the next whole message only if the log goes on with it:

    store time      not older than the newest record before the damage
    queue offset    at or above the queue's next one, and not further than the damaged bytes can have held messages

Anything else is stale: a broker truncates without erasing, and appends over it. Damage that a walk passed over is in
`log.accepted_damage` while this process reads, so that a queue keeps its lost messages, and reading one fails.
docs/design.md section 8.4.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rmq_store.format.batches.frame_decoder import DispatchColumns
from rmq_store.format.frames.frame_check import FRAME_BYTES_MIN
from rmq_store.log.core import scan
from rmq_store.log.core.accepted_damage import BadRange
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.views.views import QueueKey

_NO_FRAMES = np.empty(0, np.int64)


class DamageWalk:
    """One walk. The caller passes each piece of a stretch to `add` before it requests the next stretch."""

    def __init__(self, log: CommitLog, durable_point: int, *, presumes: bool) -> None:
        self.found: list[BadRange] = []
        """What was passed over, ascending; without what was kept before."""
        self.firsts: dict[QueueKey, int] = {}
        """Queue offset of the first record of each queue."""
        self.behind: int | None = None
        """Where the first whole message lies behind the end of the log, if there is one that is no part of it."""
        self._log = log
        self._durable_point = durable_point
        self._presumes = presumes
        self._next: dict[QueueKey, int] = {}
        self._newest_ms = 0

    def add(self, piece: scan.Stretch, columns: DispatchColumns) -> None:
        """The frames of a piece are part of the log."""
        for key, first, entries in scan.entries_by_queue(columns, piece, self._log.views.elsewhere):
            self.firsts.setdefault(key, first)
            self._next[key] = first + len(entries)
        self._newest_ms = int(columns.store_timestamp[-1])

    def walk(self, offset: int, limit: int | None = None) -> Iterator[scan.Stretch]:
        """As `scan.walk`, and on behind damage. There `gap` is set for what was on disk: a unit that is open counts as
        closed. Of what is presumed it is not: whether the unit has its end will be seen.
        """
        log, is_over = self._log, limit is not None and offset >= limit
        while not is_over:
            is_over = True
            for stretch in scan.walk(log, offset, limit, ahead=not self.found):
                if not stretch.stopped:
                    yield stretch
                    continue
                if len(stretch.positions):
                    yield stretch._replace(stopped="")
                offset = stretch.end
                new = self._pass_over(offset, stretch.stopped)
                log.accepted_damage = log.accepted_damage.plus(new)
                self.found += new
                was_on_disk, offset = offset < self._durable_point, new[-1].end if new else offset
                stopped = "" if new else stretch.stopped
                yield scan.Stretch(stretch.base, _NO_FRAMES, _NO_FRAMES, offset, stopped, bool(new) and was_on_disk)
                is_over = not new or (limit is not None and offset >= limit)

    def _pass_over(self, offset: int, reason: str) -> list[BadRange]:
        """The ranges from `offset`, where no frame is, up to where the log goes on; [] if it ends there."""
        if offset < self._durable_point:
            return [damaged_range(self._log, offset, self._durable_point, reason)]
        behind = message_after(self._log, offset)
        if behind is None:
            return []
        if not self._presumes or not self._goes_on(offset, behind):
            self.behind = behind
            return []
        found = []
        while offset < behind:
            end = min(self._log.segments.base_of(offset) + self._log.segments.size_bytes, behind)
            found.append(bad_range(self._log, offset, end, reason))
            offset = end
        return found

    def _goes_on(self, offset: int, behind: int) -> bool:
        """Whether the log that has no frame at `offset` goes on with the whole messages at `behind`."""
        log = self._log
        stretch = next(scan.walk(log, behind, ahead=False))
        columns = scan.columns_of(log, stretch)
        if int(columns.store_timestamp[0]) < self._newest_ms:
            return False
        lost_bytes = behind - offset + sum(bad.end - bad.start for bad in log.accepted_damage.ranges)
        met: set[QueueKey] = set()
        for key, first, _ in scan.entries_by_queue(columns, stretch, log.views.elsewhere):
            if key in met:
                continue
            met.add(key)
            known = self._next.get(key)
            next_offset = known if known is not None else log.queue_max(*key, offset)
            if first < next_offset or (known is not None and first - known > lost_bytes // FRAME_BYTES_MIN):
                return False
        return True


def message_after(log: CommitLog, offset: int) -> int | None:
    """Where the first whole message lies behind `offset`, at which no frame is; None if there is none."""
    if not log.segments.data_beyond(offset):
        return None
    size = log.segments.size_bytes
    for base in log.segments.bases():
        position = max(offset + 1 - base, 0)
        if position < size and (found := scan.next_message(log, base, position)) < size:
            return base + found
    return None


def damaged_range(log: CommitLog, offset: int, durable_point: int, reason: str) -> BadRange:
    """The range that begins at `offset`, where no frame is, and was on disk as far as `durable_point`."""
    base = log.segments.base_of(offset)
    end = base + log.segments.size_bytes
    if base > max(log.segments.bases(), default=-1):
        end = durable_point  # all behind the last file, be it a word of a damaged page that says how much
    elif log.segments.exists(base):
        end = base + scan.next_frame(log, base, offset - base + 1)
    return bad_range(log, offset, min(end, durable_point), reason)


def bad_range(log: CommitLog, start: int, end: int, reason: str) -> BadRange:
    """A range of one segment; how many whole records lie behind it is not known yet."""
    path = log.segments.path(log.segments.base_of(start))
    return BadRange(str(path.relative_to(log.root)), start, end, 0, reason)
