"""Where a connection to a master begins, so that nothing is acknowledged that a producer still waits for.

A master takes every report for the acknowledgement of all bytes below it. Under SYNC_MASTER a send waits for that at
most `slaveTimeout` (3 s; 5 s in old versions). A replica is no slave: it has flushed nothing for that producer. So the
first report, which is repeated and never grows, lies at the start of a record below which nothing waits any more:

    of a process that has run for SETTLED_MS    the end that its log had so long ago
    of one that has just started                a record stored SETTLED_MS before the newest one, by the master's clock
    without such a record                       the start of the log, if that is 0 or the master has nothing below it;
                                                otherwise none yet: the process waits for the first case

From there on the master sends again what the replica has: so the overlap is compared on each connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from rmq_store import real_time
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.core.scan import next_message

SETTLED_MS: Final = 10_000

_FIRST_STEP_BYTES: Final = 64 << 10


class SettledEnd:
    """The end that a replica's log had SETTLED_MS ago, in this process. `note` the end from time to time."""

    def __init__(self, timer: Callable[[], float] = real_time.monotonic) -> None:
        self._timer = timer
        self._noted: deque[tuple[float, int]] = deque()
        self._settled: int | None = None

    def note(self, end: int) -> None:
        """Note where the log ends now: a boundary of records."""
        now = self._timer()
        if not self._noted or now - self._noted[-1][0] >= 1:
            self._noted.append((now, end))
        self._look(now)

    @property
    def end(self) -> int | None:
        """None: the process has not run for so long."""
        self._look(self._timer())
        return self._settled

    def _look(self, now: float) -> None:
        while self._noted and now - self._noted[0][0] >= SETTLED_MS / 1000:
            self._settled = self._noted.popleft()[1]


def overlap_start(log: CommitLog, settled_end: int | None, master_start: int) -> int | None:
    """The offset from which the master is to send, at or below the end of the replica's log; None: wait (see above).
    `master_start`: where the master's log begins, at or below that end.
    """
    start = max(log.start(), master_start)
    if settled_end is not None:
        return max(settled_end, start)
    page = log.writing_page
    found = _record_before(log, page.store_timestamp - SETTLED_MS)
    if found is not None:
        return max(found, start)
    return start if start == 0 or start == master_start else None


def _record_before(log: CommitLog, limit_ms: int) -> int | None:
    """The start of a record that was stored at or before `limit_ms`, not far below the newest such one; None: there is
    none, as far as records tell.
    """
    start, end, step = log.start(), log.writing_page.appended_end, _FIRST_STEP_BYTES
    while start < end:
        at = max(start, end - step)
        base = log.segments.base_of(at)
        found = at if at == base else base + next_message(log, base, at - base)
        stored_ms = log.store_timestamp(found) if found < min(end, base + log.segments.size_bytes) else None
        if stored_ms is not None and stored_ms <= limit_ms:
            return found
        if at == start:
            return None
        step *= 2
    return None
