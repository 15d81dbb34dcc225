"""Group append: one thread appends and fsyncs for all waiting threads of the process.

If each thread did it alone, the interpreter lock would change hands at every system call. That costs more than the
fsync they share. So the first waiting thread leads: it appends the records of all, and flushes once.

No thread depends on the leader. A thread that was not served within PATIENCE_S appends its record itself: the disk may
be slow, or the leader was interrupted (Ctrl-C). Each sender checks the flushed end itself. Source:
CommitLog.GroupCommitService, where one thread flushes for all.
"""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import field
from queue import Empty, SimpleQueue
from typing import NamedTuple

from rmq_store import real_time
from rmq_store.errors import StoreError, StoreFailedError, StoreLockedError
from rmq_store.files import durable
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.append.append import OneRecord, append_lock, append_one
from rmq_store.log.append.flush import flush
from rmq_store.log.append.lone_append import LoneAppend
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.threads import Claim

# Where an fsync takes longer than this, what a change of threads costs does not matter.
PATIENCE_S = 0.05


class Sent(NamedTuple):
    """The offsets of a record. `is_late`: the flush did not end within the given timeout."""

    commit_log_offset: int
    queue_offset: int
    is_late: bool


@dataclass(slots=True, eq=False)
class _Waiting:
    """`claim`: who takes its one item out appends the record, or gives it up. `asleep`: an item in it wakes."""

    record: OneRecord
    claim: list[bool] = field(default_factory=lambda: [True])
    asleep: SimpleQueue[None] = field(default_factory=SimpleQueue)
    offsets: tuple[int, int] | None = None
    error: StoreError | None = None
    is_late: bool = False

    @property
    def settled(self) -> bool:
        return self.offsets is not None or self.error is not None

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


class GroupAppend:
    """The waiting senders of one open store. Each step is one operation on a deque, a list or a dict; neither another
    thread nor a signal handler can come between.
    """

    def __init__(self, log: CommitLog, lone_append: LoneAppend) -> None:
        self._log = log
        self._lone_append = lone_append
        self.waiting: deque[_Waiting] = deque()
        self._leader: Claim[_Waiting] = Claim()

    def append(self, record: OneRecord, lock_timeout_ms: int, flush_timeout_ms: int) -> Sent:
        """Append one record, and try to flush it. The flushed end says whether it is on disk.

        Raises as `append_one`, `append_lock` and `flush`. Raises StoreFailedError as well if the thread that appended
        the record was interrupted, so that the result is unknown. After an interrupt of the caller (Ctrl-C) the record
        is stored already, or never will be.
        """
        own = _Waiting(record)
        begin_s = 0.0
        left_ms = lock_timeout_ms
        try:
            self.waiting.append(own)
            while own.offsets is None and own.error is None:
                now_s = real_time.monotonic()
                begin_s = begin_s or now_s
                waited_s = now_s - begin_s
                left_ms = max(0, lock_timeout_ms - int(1000 * waited_s))
                patience_s = min(PATIENCE_S, lock_timeout_ms / 1000) - waited_s
                if self._leads(own):
                    self._lead(own, left_ms, flush_timeout_ms)
                    self._leave()
                elif patience_s > 0:
                    own.sleep(patience_s)
                elif self._gives_up(own):
                    break
                else:
                    own.sleep(PATIENCE_S)  # it is being appended
        except BaseException:
            self._withdraw(own)
            raise
        finally:
            if self._leader.holder() is own:
                self._leave()
        if own.error is not None:
            raise own.error
        if own.offsets is None:
            with append_lock(self._log, left_ms):
                return Sent(*append_one(self._log, record), is_late=False)
        return Sent(*own.offsets, own.is_late)

    def _gives_up(self, own: _Waiting) -> bool:
        """Leave the line; False if somebody is appending the record already."""
        if not own.claimed():
            return False
        self._remove(own)
        return True

    def _withdraw(self, own: _Waiting) -> None:
        """Leave the line after an interrupt; if another leader has begun with the record, see it through."""
        leader = self._leader.holder()
        if not self._gives_up(own) and leader is not own:
            while not own.settled and leader is not None and self._leader.holder() is leader:
                own.sleep(PATIENCE_S)

    def _leads(self, own: _Waiting) -> bool:
        return self._leader.take(own) is own

    def _lead(self, own: _Waiting, lock_timeout_ms: int, flush_timeout_ms: int) -> None:
        """Append what waits, and flush it."""
        page, end = self._log.writing_page, 0
        line = list(dict.fromkeys((own, *self.waiting)))
        if self._lone_append.append_group(line, self._log.clock()):
            end = page.appended_end
        if not all(waiting.settled for waiting in line):
            end = self._append_left(own, lock_timeout_ms) or end
        if end:
            try:
                flush(self._log, end, flush_timeout_ms)
            except StoreLockedError:
                own.is_late = True

    def _append_left(self, own: _Waiting, lock_timeout_ms: int) -> int:
        """Append what the extension has left, and what comes until the lock is free. Returns the new end of the log; 0:
        nothing was appended.
        """
        page, root, end = self._log.writing_page, self._log.root, 0
        with append_lock(self._log, lock_timeout_ms):
            for waiting in dict.fromkeys((own, *self.waiting)):
                if waiting.claimed():
                    try:
                        waiting.offsets = append_one(self._log, waiting.record)
                        end = page.appended_end
                        self._lone_append.learn(waiting.record[:2])
                    except StoreError as error:
                        waiting.error = error
                    except OSError as error:
                        waiting.error = durable.translate(error, root)
                    if page.intent is not None:
                        break  # what it has left there could not be taken back: `append_lock` tries again
                elif not waiting.settled:
                    waiting.error = StoreFailedError(
                        f"{root}: the thread that appended this message was interrupted: whether it is stored is not "
                        "known"
                    )
        return end

    def _leave(self) -> None:
        """Wake those that are settled, and one more, to lead."""
        for first in list(self.waiting):
            if not first.settled:
                break
            self._remove(first)
            first.asleep.put(None)
        self._leader.give_up()
        # Looked at after leadership was given up: who comes into the line asks the other way round.
        if (leading := self._first()) is not None:
            leading.asleep.put(None)

    def _first(self) -> _Waiting | None:
        try:
            return self.waiting[0]
        except IndexError:
            return None

    def _remove(self, waiting: _Waiting) -> None:
        """Not `popleft`: it may have left by itself meanwhile, and another be the first."""
        try:
            self.waiting.remove(waiting)
        except ValueError:
            pass
