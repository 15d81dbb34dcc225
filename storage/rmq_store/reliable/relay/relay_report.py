"""Counts of the rounds of a relay."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import field
from typing import Final

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.reliable.database.manual_list import ILLEGAL, ManualEntry
from rmq_store.reliable.relay.notifier import line_of

LOGGED_MAX: Final = 20

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class RelayReport:
    """Counts of messages of a round, or of its plan in a dry run: `sent` for the first time, `resent`, `failed` (tried
    again later, or refused: see `manual`), `confirmed` (the group had done the message, and its confirmation was lost),
    `notified` entries of the manual list, `purged` stubs. `manual` {reason: new entries}. `waiting` {why a message is
    not sent again: messages}, of the due messages that this round has looked at: the new ones, and some of the others.
    """

    sent: int = 0
    resent: int = 0
    failed: int = 0
    confirmed: int = 0
    counted_again: int = 0
    notified: int = 0
    purged: int = 0
    manual: Counter[str] = field(default_factory=Counter)
    waiting: Counter[str] = field(default_factory=Counter)
    has_more: bool = False

    def give_up(self, entries: Sequence[ManualEntry]) -> None:
        """Count new entries of the manual list, and log those that are somebody's mistake: each by its id."""
        self.manual.update(entry.reason for entry in entries)
        illegal = [entry for entry in entries if entry.reason == ILLEGAL]
        for entry in illegal[:LOGGED_MAX]:
            _LOG.warning("a message is on the manual list, and the others go on: %s", line_of(entry))
        if len(illegal) > LOGGED_MAX:
            _LOG.warning("and %d more: see rmq resend list --reason illegal", len(illegal) - LOGGED_MAX)

    def add(self, other: RelayReport) -> None:
        """Add the numbers of another round."""
        for name in ("sent", "resent", "failed", "confirmed", "counted_again", "notified", "purged"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.manual += other.manual
        self.waiting += other.waiting
        self.has_more = other.has_more
