"""The relay: sends what nobody has sent, and sends again what nobody confirms (H09 of docs/conformance.md).

    relay = Relay(producer, engine, notifier=SmtpNotifier(...))
    relay.run(stop)          # or run_once(), from a timer

Any number of relays may work on one database: what one has claimed, the others leave alone. A round is

    1. first sends      claim, send, mark; page after page
    2. resends          read a page, decide (`resend_rule`), claim what is left of it, send, mark; page after page
    3. people           tell of what is new on the manual list
    4. purge            stubs that are confirmed or void for longer than any copy of their messages can come
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final

import sqlalchemy as sa

from rmq_store.client import Backend, Producer
from rmq_store.errors import UsageError
from rmq_store.reliable.database import leases, manual_list
from rmq_store.reliable.database.tables import Tables
from rmq_store.reliable.database.transact import is_transient, read, transact
from rmq_store.reliable.outbox.backoff import ResendBackoff
from rmq_store.reliable.outbox.claims import SendingRules, claim_first_sends, count_first_sends, is_anything_unsent
from rmq_store.reliable.outbox.stub_purge import KEEP_MS, purge
from rmq_store.reliable.relay.claim_sender import ClaimSender
from rmq_store.reliable.relay.inboxes import Inboxes
from rmq_store.reliable.relay.notifier import Notifications, Notifier
from rmq_store.reliable.relay.relay_report import RelayReport
from rmq_store.reliable.relay.resend_page import end_of_queue
from rmq_store.reliable.relay.resend_rule import STUCK_AFTER_MS
from rmq_store.reliable.relay.resending import Resending

_LOG = logging.getLogger(__name__)

PAGE_ROWS: Final = 1_000
ROUND_ROWS_MAX: Final = 100_000
"""A round ends behind so many first sends, so that resends have their turn, too."""
PURGE_EVERY_MS: Final = 3_600_000


class Relay:
    """Sends the stubs of one database. Safe to run in several processes; one object is for one thread.

    `producer` is started by its owner. `engine`: the senders' database. `inboxes`: where consumer groups have theirs:
    {group: engine}, one engine for all, or `Inboxes`; None: in the same database. `backend`: to ask brokers where their
    queues end; without it a message that a broker has lost waits until the group's mark passes its place. `notifier`
    tells people of new entries of the manual list. `stuck_after_ms`: how long after its resend time a message may wait
    in its queue before people are told. `keep_ms`: how long confirmed and void stubs stay.

    Raises:
        UsageError: a setting that cannot be.
    """

    def __init__(
        self,
        producer: Producer,
        engine: sa.Engine,
        tables: Tables | None = None,
        *,
        inboxes: Inboxes | Mapping[str, sa.Engine] | sa.Engine | None = None,
        backend: Backend | None = None,
        max_send_count: int = 16,
        backoff: ResendBackoff | None = None,
        lease_ms: int = 30_000,
        resend_out_of_order: bool = False,
        stuck_after_ms: int = STUCK_AFTER_MS,
        keep_ms: int = KEEP_MS,
        notifier: Notifier | None = None,
        clock: Callable[[], int] = leases.now_ms,
        page_rows: int = PAGE_ROWS,
    ) -> None:
        if page_rows < 1:
            raise UsageError(f"page_rows={page_rows}: at least 1")
        self._engine = engine
        self._tables = tables or Tables()
        self._rules = SendingRules(lease_ms, max_send_count, backoff or ResendBackoff())
        self._sender = ClaimSender(producer, engine, self._tables, self._rules, clock)
        self._resending = Resending(
            _inboxes(engine, inboxes),
            self._tables,
            self._rules,
            self._sender,
            end_of_queue=end_of_queue(backend),
            resend_out_of_order=resend_out_of_order,
            stuck_after_ms=stuck_after_ms,
            clock=clock,
            page_rows=page_rows,
        )
        self._keep_ms = keep_ms
        self._notifications = None if notifier is None else Notifications(engine, self._tables, notifier)
        self._clock = clock
        self._page_rows = page_rows
        self._purged_ms: int | None = None
        self.total = RelayReport()
        """The numbers of all rounds."""

    def run(self, stop: threading.Event, interval_ms: int = 1_000) -> None:
        """Rounds until `stop` is set, with `interval_ms` between two of them that had all done. A database that is away
        for a while is logged and waited for.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: what waiting does not cure, such as a missing table.
        """
        while not stop.is_set():
            has_more = False
            try:
                has_more = self.run_once(stop=stop).has_more
            except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
                if not is_transient(error):
                    raise
                _LOG.warning("the relay waits for its database: %s", getattr(error, "orig", None) or error)
            if not has_more:
                stop.wait(interval_ms / 1_000)

    def run_once(self, *, dry_run: bool = False, stop: threading.Event | None = None) -> RelayReport:
        """One round. On return what it reports is in the database. `dry_run` only looks. `stop` ends it between pages.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: the senders' database failed, after some tries. Claims end by themselves.
        """
        report = RelayReport()
        stop = stop or threading.Event()
        self._sender.begin_round()
        try:
            if dry_run:
                report.sent = read(self._engine, lambda connection: count_first_sends(connection, *self._terms()))
            else:
                self._first_sends(report, stop)
            self._resending.run(report, stop, dry_run=dry_run)
            if not dry_run:
                self._look_after_people(report)
        finally:
            if not dry_run:
                self._sender.end_round(report)
                self.total.add(report)
        return report

    # -- first sends ------------------------------------------------------------------------------------------------

    def _terms(self) -> tuple[Tables, SendingRules, int]:
        return self._tables, self._rules, self._clock()

    def _first_sends(self, report: RelayReport, stop: threading.Event) -> None:
        # A claim writes, and most rounds have nothing to claim.
        if not read(self._engine, lambda connection: is_anything_unsent(connection, *self._terms())):
            return
        done = 0
        while not stop.is_set():
            without = frozenset(self._sender.failed_topics)
            claim = transact(
                self._engine,
                lambda connection, without=without: claim_first_sends(  # type: ignore[misc]
                    connection, self._tables, self._rules, self._clock(), self._page_rows, without
                ),
            )
            report.manual.update(manual_list.MAXIMUM for _ in claim.at_maximum)
            report.sent += self._sender.send(claim.claimed, report)
            done += len(claim.claimed)
            if not claim.is_full or not (claim.claimed or claim.at_maximum):
                return
            if done >= ROUND_ROWS_MAX:
                report.has_more = True
                return

    def _look_after_people(self, report: RelayReport) -> None:
        manual_list.clean(self._engine, self._tables)
        if self._notifications is not None:
            report.notified += self._notifications.run_once()
        now_ms = self._clock()
        if self._purged_ms is None or not 0 <= now_ms - self._purged_ms < PURGE_EVERY_MS:
            report.purged += purge(self._engine, self._tables, now_ms - self._keep_ms)
            self._purged_ms = now_ms


def _inboxes(engine: sa.Engine, given: Inboxes | Mapping[str, sa.Engine] | sa.Engine | None) -> Inboxes:
    if isinstance(given, Inboxes):
        return given
    if isinstance(given, Mapping):
        return Inboxes(engine, given)
    return Inboxes(engine, other=given)
