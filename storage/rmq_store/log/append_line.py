"""What threads of one process send at the same time is appended and flushed by one of them, for all.

If each did it by itself, they would change places at every system call, because Python lets one of them run at a time:
that costs more than the fsync which they share. So they stand in a line; the first one leads: it appends all that wait,
and flushes once. A leader that is interrupted (Ctrl-C) leaves the others where they are, and the next one goes on from
there. Source: CommitLog.GroupCommitService, where one thread flushes for all.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from rmq_store.errors import StoreError, StoreFailedError, StoreLockedError
from rmq_store.log.append import OneRecord, append_lock, append_one
from rmq_store.log.commit_log import CommitLog
from rmq_store.log.flush import flush

# How long one sleeps before it looks for itself: a leader that was interrupted at the wrong moment wakes nobody.
_PATIENCE_S = 0.05


@dataclass(slots=True, eq=False)
class _Waiting:
    """`claim`: who takes its one item out appends the record, or gives it up. `asleep`: an item in it wakes."""

    record: OneRecord
    claim: list[bool] = field(default_factory=lambda: [True])
    asleep: SimpleQueue[None] = field(default_factory=SimpleQueue)
    place: tuple[int, int] | None = None
    error: StoreError | None = None

    @property
    def settled(self) -> bool:
        return self.place is not None or self.error is not None

    def claimed(self) -> bool:
        """Take the claim; False if somebody has it."""
        try:
            return self.claim.pop()
        except IndexError:
            return False

    def sleep(self, timeout_s: float) -> None:
        """Until a leader wakes this one."""
        with contextlib.suppress(Empty):
            self.asleep.get(timeout=timeout_s)


class AppendLine:
    """The line of one open store. Every step is one operation on a deque, a list or a dict, which neither another
    thread nor a signal handler can come between.
    """

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self.waiting: deque[_Waiting] = deque()
        # {0: thread id} while one leads: `setdefault` asks and takes the place in one step.
        self._leader: dict[int, int] = {}

    def append(self, record: OneRecord, lock_timeout_ms: int, flush_timeout_ms: int) -> tuple[int, int]:
        """Append one record: its commit-log offset and its queue offset. On return it is on disk, or a flush was tried
        for `flush_timeout_ms`: the flushed end tells.

        Raises as `append_one`, `append_lock` and `flush`; StoreFailedError also if the thread that appended the record
        was interrupted, and nobody knows how far it came.
        """
        own = _Waiting(record)
        self.waiting.append(own)
        deadline_s = time.monotonic() + lock_timeout_ms / 1000
        try:
            while not own.settled:
                left_s = deadline_s - time.monotonic()
                if self._leads():
                    self._lead(max(0, int(1000 * left_s)), flush_timeout_ms)
                    self._leave()
                elif left_s > 0:
                    own.sleep(min(left_s, _PATIENCE_S))
                elif self._gives_up(own):
                    raise StoreLockedError(f"{self._log.append_lock.path}: not free within {lock_timeout_ms} ms")
                else:
                    own.sleep(_PATIENCE_S)
        finally:
            if not own.settled:
                self._gives_up(own)
            if self._leader.get(0) == threading.get_ident():
                self._leave()
        if own.error is not None:
            raise own.error
        assert own.place is not None
        return own.place

    def _gives_up(self, own: _Waiting) -> bool:
        """Leave the line; False if somebody is appending the record already."""
        if not own.claimed():
            return False
        with contextlib.suppress(ValueError):
            self.waiting.remove(own)
        return True

    def _leads(self) -> bool:
        me = threading.get_ident()
        return self._leader.setdefault(0, me) == me

    def _lead(self, lock_timeout_ms: int, flush_timeout_ms: int) -> None:
        """Append what waits, and flush it."""
        end = 0
        with append_lock(self._log, lock_timeout_ms):
            for waiting in list(self.waiting):
                if waiting.claimed():
                    try:
                        waiting.place = append_one(self._log, waiting.record)
                    except StoreError as error:
                        waiting.error = error
                        continue
                    end = waiting.place[0] + waiting.record.size
                elif not waiting.settled:
                    waiting.error = StoreFailedError(
                        f"{self._log.root}: the thread that appended this message was interrupted: whether it is "
                        "stored is not known"
                    )
        if end:
            # Each sender looks at the flushed end itself.
            with contextlib.suppress(StoreLockedError):
                flush(self._log, end, flush_timeout_ms)

    def _leave(self) -> None:
        """Wake those that are settled, and one more, to lead."""
        line = self.waiting
        while line and line[0].settled:
            line.popleft().asleep.put(None)
        self._leader.pop(0, None)
        # Looked at after leadership was given up: who comes into the line asks the other way round.
        with contextlib.suppress(IndexError):
            line[0].asleep.put(None)
