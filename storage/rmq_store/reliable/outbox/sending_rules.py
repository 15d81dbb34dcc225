"""Settings that all senders of a database share: how long a claim lasts, how often a message is sent, and its waits."""

from __future__ import annotations

from dataclasses import field

from rmq_store.errors import UsageError
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.reliable.database.leases import horizon_ms
from rmq_store.reliable.outbox.resend_times import WAIT_MS_MAX, ResendBackoff


@dataclass(frozen=True, slots=True)
class SendingRules:
    """`lease_ms`: length of a claim. `max_send_count`: sends of a message before it goes to the manual list.

    Raises (when constructed):
        UsageError: a lease or a count outside its range.
    """

    lease_ms: int = 30_000
    max_send_count: int = 16
    backoff: ResendBackoff = field(default_factory=ResendBackoff)

    def __post_init__(self) -> None:
        if not 0 < self.lease_ms <= WAIT_MS_MAX:
            raise UsageError(f"lease_ms={self.lease_ms}: 1 ms to 24 h")
        if self.max_send_count < 1:
            raise UsageError(f"max_send_count={self.max_send_count}: at least 1")

    def last_wait_ms(self, now_ms: int) -> int:
        """The latest time, in ms since 1970, until which a claim or a failed first send can wait."""
        return horizon_ms(now_ms, max(self.lease_ms, self.backoff.max_retry_ms))
