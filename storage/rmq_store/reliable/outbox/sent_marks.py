"""Marks of messages that a process has sent itself, written in the background in batches.

No guarantee depends on the mark: without it a message is sent again, and recognised as a duplicate. So one transaction
writes the marks of 100 ms. Until then the process remembers in memory the messages that it has sent.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

import sqlalchemy as sa

from rmq_store.reliable.database.outage import Outage
from rmq_store.reliable.database.tables import Tables
from rmq_store.reliable.database.transact import is_transient, transact
from rmq_store.reliable.outbox.claim_marks import give_back, mark_sent
from rmq_store.reliable.outbox.resend_times import ResendBackoff
from rmq_store.reliable.outbox.sending import NotSent, Sent

_LOG = logging.getLogger(__name__)

WAITING_MAX: Final = 10_000
"""Who sends when so many marks wait writes them himself first: memory is bounded, even if the database is slow."""


class SentMarks:
    """The marks of one process. Safe for threads, not across fork. A thread runs only while there are marks to write.

    `delay_ms`: how late a mark may be written, at most.
    """

    def __init__(
        self,
        engine: sa.Engine,
        tables: Tables,
        backoff: ResendBackoff,
        clock: Callable[[], int],
        delay_ms: int,
    ) -> None:
        self._engine = engine
        self._tables = tables
        self._backoff = backoff
        self._clock = clock
        self._delay_s = delay_ms / 1_000
        self._waiting: list[Sent | NotSent] = []
        self._sent_seqs: set[int] = set()
        # Marked by the last write: somebody may still look at what the table said before it.
        self._just_marked: set[int] = set()
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._writer: threading.Thread | None = None
        self._closing = threading.Event()
        self._outage = Outage("outbox", "sent messages are not marked")

    def add(self, outcomes: Sequence[Sent | NotSent]) -> None:
        """Write the marks of these results soon."""
        with self._lock:
            self._waiting += outcomes
            self._sent_seqs.update(each.claimed.seq for each in outcomes if isinstance(each, Sent))
            is_late = len(self._waiting) > WAITING_MAX
            if self._writer is None and not is_late and not self._closing.is_set():
                self._writer = threading.Thread(target=self._run, name="rmq-sent-marks", daemon=True)
                self._writer.start()
        if is_late or self._closing.is_set():
            self.write()

    def was_sent(self, seq: int) -> bool:
        """True if this process has sent the row, although the table may still show it as unsent."""
        with self._lock:
            return seq in self._sent_seqs or seq in self._just_marked

    def waiting_count(self) -> int:
        """The largest number of rows that the table may show as unsent although they are sent."""
        with self._lock:
            return len(self._sent_seqs) + len(self._just_marked)

    def write(self) -> None:
        """Write all marks now. Marks that the database refuses are tried again with later ones during their claim."""
        with self._writing:
            with self._lock:
                taken, self._waiting = self._waiting, []
            try:
                if taken:
                    transact(self._engine, lambda connection: self._write(connection, taken))
            except sa.exc.SQLAlchemyError as error:
                self._keep(taken, error)
                return
            except BaseException:
                self._keep(taken, None)
                raise
            if taken:
                self._outage.ended()
                with self._lock:
                    # Not what was given back: it is unsent, and its key waits for it.
                    self._just_marked = {each.claimed.seq for each in taken if isinstance(each, Sent)}
                    self._sent_seqs -= self._just_marked

    def close(self) -> None:
        """Write all marks and end the thread."""
        self._closing.set()
        with self._lock:
            writer = self._writer
        if writer is not None:
            writer.join()
        self.write()

    def _run(self) -> None:
        while True:
            self._closing.wait(self._delay_s)
            self.write()
            with self._lock:
                if not self._waiting or self._closing.is_set():
                    self._writer = None
                    return

    def _write(self, connection: sa.Connection, taken: Sequence[Sent | NotSent]) -> None:
        ordered = sorted(taken, key=lambda each: each.claimed.seq)
        mark_sent(connection, self._tables, [each for each in ordered if isinstance(each, Sent)], self._backoff)
        give_back(
            connection,
            self._tables,
            [each for each in ordered if isinstance(each, NotSent)],
            self._backoff,
            self._clock(),
        )

    def _keep(self, taken: Sequence[Sent | NotSent], error: Exception | None) -> None:
        now_ms = self._clock()
        kept = [each for each in taken if each.claimed.claim_until_ms > now_ms]
        with self._lock:
            self._waiting = [*kept, *self._waiting]
            self._sent_seqs -= {each.claimed.seq for each in taken} - {each.claimed.seq for each in kept}
        is_outage = isinstance(error, sa.exc.DBAPIError | sa.exc.TimeoutError) and is_transient(error)
        if is_outage and error is not None:
            self._outage.began(error)
        if error is not None and not (is_outage and len(kept) == len(taken)):
            _LOG.warning(
                "%d marks of sent messages could not be written, %d of them are given up and these messages will be "
                "sent again: %s",
                len(taken),
                len(taken) - len(kept),
                getattr(error, "orig", None) or error,
            )
