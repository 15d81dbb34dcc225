"""The relay: sends messages that nobody has sent, and resends messages that nobody confirms (H09 of
docs/conformance.md).

    relay = Relay(producer, engine, notifier=SmtpNotifier(...))
    relay.run(stop)          # or run_once(), from a timer

Any number of relays may work on one database: no relay sends a message that another one has claimed. A round is

    1. first sends      claim, send, mark; page after page
    2. resends          read a page, decide (`resend_rule`), claim the messages to resend, send, mark; page after page
    3. people           notify them of new entries of the manual list
    4. purge            delete stubs that have been confirmed or void for longer than any copy can still come
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Final

import sqlalchemy as sa

from rmq_store.client import Backend, Producer
from rmq_store.errors import UsageError
from rmq_store.reliable.database import leases, manual_list
from rmq_store.reliable.database.drivers import require_engine
from rmq_store.reliable.database.outage import Outage
from rmq_store.reliable.database.tables import CONFIRMED, VOID, Tables
from rmq_store.reliable.database.transact import is_transient, read, transact
from rmq_store.reliable.outbox.claims import claim_first_sends, has_any_hidden, list_hidden
from rmq_store.reliable.outbox.first_sends import count_first_sends, find_first_sends
from rmq_store.reliable.outbox.resend_times import ResendBackoff
from rmq_store.reliable.outbox.sending_rules import SendingRules
from rmq_store.reliable.relay.claim_sender import ClaimSender
from rmq_store.reliable.relay.inboxes import Inboxes
from rmq_store.reliable.relay.notifier import Notifications, Notifier
from rmq_store.reliable.relay.relay_report import RelayReport
from rmq_store.reliable.relay.resend_page import end_of_queue
from rmq_store.reliable.relay.resend_rule import STUCK_AFTER_MS
from rmq_store.reliable.relay.resending import Resending

PAGE_ROWS: Final = 1_000
ROUND_ROWS_MAX: Final = 100_000
"""A round ends behind so many first sends, so that resends have their turn, too."""
PURGE_EVERY_MS: Final = 3_600_000
KEEP_MS: Final = 31 * 24 * 3_600_000
"""How long confirmed and void stubs stay. A void stub keeps copies of its message from having an effect, so it must
outlive them: it stays longer than the rows of an inbox (30 days). Unconfirmed stubs stay for ever.
"""
_PURGE_ROWS: Final = 1_000


class Relay:
    """Sends the stubs of one database. Safe to run in several processes; one object is for one thread.

    `producer` is started by its owner. `engine`: the senders' database. `inboxes`: the databases of the consumer
    groups: {group: engine}, one engine for all, or `Inboxes`; None: the senders' database. `backend`: the brokers,
    which are asked for the ends of their queues. Without it, a message that a broker has lost is only noticed when the
    group's high-water mark passes its offset. `notifier` notifies people of new entries of the manual list.
    `stuck_after_ms`: how long after its resend time a message may wait in its queue before people are notified.
    `keep_ms`: how long confirmed and void stubs stay.

    Raises:
        UsageError: an invalid setting.
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
        self._engine = require_engine(engine)
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
        self._outage = Outage("relay", "messages are not sent")
        self.total = RelayReport()
        """The numbers of all rounds."""

    def run(self, stop: threading.Event, interval_ms: int = 1_000) -> None:
        """Run rounds until `stop` is set, with a pause of `interval_ms` after a round that left nothing to do. While a
        database is unavailable or only reads, this is logged once, and the rounds go on. Each writes before it sends.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: an error that waiting cannot help, such as a missing table.
        """
        while not stop.is_set():
            has_more = False
            try:
                has_more = self.run_once(stop=stop).has_more
                self._outage.ended()
            except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
                if not is_transient(error):
                    raise
                self._outage.began(error)
            if not has_more:
                stop.wait(interval_ms / 1_000)

    def run_once(self, *, dry_run: bool = False, stop: threading.Event | None = None) -> RelayReport:
        """Run one round. On return its report is in the database. `dry_run` only reads. `stop` ends it between pages.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: the senders' database failed several times. Claims end by themselves.
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
        is_any, is_odd = read(self._engine, self._what_is_there)
        if is_odd:  # nobody would ever look at such a stub otherwise, and its key must wait
            listed = transact(
                self._engine,
                lambda connection: list_hidden(connection, self._tables, self._clock(), self._page_rows),
            )
            report.give_up(listed)
        if not is_any:
            return
        done = 0
        while not stop.is_set():
            claim = transact(self._engine, lambda connection: claim_first_sends(connection, *self._search()))
            report.give_up(claim.given_up)
            report.sent += self._sender.send(claim.claimed, report)
            done += len(claim.claimed)
            if not claim.is_full or not (claim.claimed or claim.given_up):
                return
            if done >= ROUND_ROWS_MAX:
                report.has_more = True
                return

    def _what_is_there(self, connection: sa.Connection) -> tuple[bool, bool]:
        """Whether anything may be sent, and whether a stub is there that no other question finds."""
        found, _ = find_first_sends(connection, *self._search())
        return bool(found), has_any_hidden(connection, self._tables)

    def _search(self) -> tuple[Tables, SendingRules, int, int, Collection[str], Collection[str]]:
        return *self._terms(), self._page_rows, self._sender.failed_topics, self._sender.silent_topics

    def _look_after_people(self, report: RelayReport) -> None:
        manual_list.clean(self._engine, self._tables)
        if self._notifications is not None:
            report.notified += self._notifications.run_once()
        now_ms = self._clock()
        if self._purged_ms is None or not 0 <= now_ms - self._purged_ms < PURGE_EVERY_MS:
            report.purged += _purge(self._engine, self._tables, now_ms - self._keep_ms)
            self._purged_ms = now_ms


def _inboxes(engine: sa.Engine, given: Inboxes | Mapping[str, sa.Engine] | sa.Engine | None) -> Inboxes:
    if isinstance(given, Inboxes):
        return given
    if isinstance(given, Mapping):
        return Inboxes(engine, given)
    return Inboxes(engine, other=given)


def _purge(engine: sa.Engine, tables: Tables, before_ms: int) -> int:
    """Delete stubs created, sent and voided before `before_ms`; returns their number. 1,000 per transaction."""
    stub, stub_group = tables.stub, tables.stub_group
    is_old = sa.and_(stub.c.status.in_((CONFIRMED, VOID)), stub.c.resend_ms < before_ms, stub.c.created_ms < before_ms)

    def delete_some(connection: sa.Connection) -> int:
        old = list(connection.scalars(sa.select(stub.c.message_id).where(is_old).limit(_PURGE_ROWS)))
        if old:
            connection.execute(stub_group.delete().where(stub_group.c.message_id.in_(old)))
            connection.execute(stub.delete().where(stub.c.message_id.in_(old)))
        return len(old)

    total = 0
    while deleted := transact(engine, delete_some):
        total += deleted
    return total
