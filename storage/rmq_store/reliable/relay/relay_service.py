"""A relay and its companions, for a process that does nothing else (`rmq resend run`).

    each round       the relay: first sends, resends, notifications, purge
    every 10 s       dead letters of the groups of each inbox; entries of done messages; notifications of the other
                     databases

If a database or broker is unavailable, the error is logged and reported, and the next round tries again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import field
from typing import Final

import sqlalchemy as sa

from rmq_store import real_time
from rmq_store.client import Backend, ClientError
from rmq_store.errors import StoreError
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.reliable.database import manual_list
from rmq_store.reliable.database.outage import Outage
from rmq_store.reliable.database.tables import Tables
from rmq_store.reliable.database.transact import is_transient
from rmq_store.reliable.relay.dead_letters import CollectReport, DeadLetters
from rmq_store.reliable.relay.inboxes import Inboxes
from rmq_store.reliable.relay.notifier import Notifications, Notifier
from rmq_store.reliable.relay.relay import Relay
from rmq_store.reliable.relay.relay_report import RelayReport

COLLECT_EVERY_S: Final = 10.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServiceReport:
    """The report of a round. `problem`: why it ended early; "" if it did not."""

    relay: RelayReport = field(default_factory=RelayReport)
    collected: CollectReport = field(default_factory=CollectReport)
    problem: str = ""


class RelayService:
    """`relay` has the notifier for the senders' database; `notifier` here is for the consumers'. For one thread."""

    def __init__(
        self,
        relay: Relay,
        backend: Backend,
        inboxes: Inboxes,
        tables: Tables,
        *,
        notifier: Notifier | None = None,
        collect_every_s: float = COLLECT_EVERY_S,
        monotonic: Callable[[], float] = real_time.monotonic,
    ) -> None:
        self._relay, self._inboxes, self._tables = relay, inboxes, tables
        self._collectors = {
            engine: DeadLetters(backend, engine, tables, stubs=inboxes.stubs) for engine in inboxes.engines()
        }
        others = [engine for engine in inboxes.engines() if engine is not inboxes.stubs]
        self._notifications = [] if notifier is None else [Notifications(one, tables, notifier) for one in others]
        self._others = others
        self._collect_every_s, self._monotonic = collect_every_s, monotonic
        self._collect_s = monotonic()
        self._outage = Outage("relay", "messages are not sent")

    def run_once(self, *, dry_run: bool = False, stop: threading.Event | None = None) -> ServiceReport:
        """Run one round. `dry_run` changes nothing and collects nothing.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: an error that waiting cannot help, such as a missing table.
        """
        collected = CollectReport()
        relay = RelayReport()
        try:
            if not dry_run and self._monotonic() >= self._collect_s:
                self._collect_s = self._monotonic() + self._collect_every_s
                collected = self._collect()
                self._look_after_others()
            relay = self._relay.run_once(dry_run=dry_run, stop=stop)
        except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
            if not is_transient(error):
                raise
            problem = " ".join(str(getattr(error, "orig", None) or error).split())
            self._outage.began(error)
            return ServiceReport(relay, collected, problem)
        self._outage.ended()
        return ServiceReport(relay, collected)

    def _collect(self) -> CollectReport:
        """Collect the dead letters of all groups. If those of one cannot be read, the others are collected."""
        total = CollectReport()
        for engine, collector in self._collectors.items():
            for group in collector.groups():
                if self._inboxes.of(group) is not engine:
                    continue
                try:
                    total += collector.collect(group)
                except (ClientError, StoreError) as error:
                    _log.warning("the dead letters of %s were not collected: %s", group, error)
        return total

    def _look_after_others(self) -> None:
        for engine in self._others:
            manual_list.clean(engine, self._tables)
        for notifications in self._notifications:
            notifications.run_once()
