"""Counts of the rounds of a relay."""

from __future__ import annotations

from collections import Counter
from dataclasses import field

from rmq_store.late.dataclasses import dataclass


@dataclass(slots=True)
class RelayReport:
    """Counts of messages of a round, or of its plan in a dry run: `sent` for the first time, `resent`, `failed` (their
    claims are given back), `confirmed` (the group had done the message, and its confirmation was lost), `notified`
    entries of the manual list, `purged` stubs. `manual` {reason: messages}, `waiting` {why a due message is not sent
    again: messages}.
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

    def add(self, other: RelayReport) -> None:
        """Add the numbers of another round."""
        for name in ("sent", "resent", "failed", "confirmed", "counted_again", "notified", "purged"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.manual += other.manual
        self.waiting += other.waiting
        self.has_more = other.has_more
