"""When a message may be sent again (the document's resendTime): pure.

    first sends that failed     after 1 s, 2 s, 4 s ... 5 min
    sent, not confirmed         after 15 min, 30 min, 1 h ... 6 h; for a delayed message counted from its due time

A message that waits in its queue behind others is not lost. The group's high-water mark tells that, and the log tells
which messages a worker has. But a push consumer also holds messages that it has pulled and not yet begun, while later
ones of the queue have moved the mark. RocketMQ lets a listener have a message for 15 minutes (consumeTimeout), so the
first resend waits as long. A shorter wait costs duplicates when consumers are slow already; a longer one costs time
when a message is really lost.
"""

from __future__ import annotations

from typing import Final

from rmq_store.backoff import Backoff
from rmq_store.errors import UsageError
from rmq_store.lazy.dataclasses import dataclass

WAIT_MS_MAX: Final = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class ResendBackoff:
    """The waits, in ms; each is `multiplier` times the one before it, up to its maximum.

    Raises:
        UsageError: a wait that is not positive, longer than 24 h, or longer than its maximum; a multiplier below 1.
    """

    first_wait_ms: int = 15 * 60_000
    max_wait_ms: int = 6 * 3_600_000
    first_retry_ms: int = 1_000
    max_retry_ms: int = 5 * 60_000
    multiplier: float = 2.0

    def __post_init__(self) -> None:
        for first, most in (("first_wait_ms", "max_wait_ms"), ("first_retry_ms", "max_retry_ms")):
            first_ms, most_ms = getattr(self, first), getattr(self, most)
            if not 0 < first_ms <= most_ms <= WAIT_MS_MAX:
                raise UsageError(f"{first}={first_ms}, {most}={most_ms}: 1 ms to 24 h, and not less than the first")
        if not self.multiplier >= 1:
            raise UsageError(f"multiplier={self.multiplier}: at least 1")

    def resend_at_ms(self, send_count: int, sent_ms: int, deliver_ms: int | None = None) -> int:
        """The resend time of a message that was sent for the `send_count`-th time. `deliver_ms`: the time at which the
        broker delivers it, if that is later.
        """
        return max(sent_ms, deliver_ms or 0) + self._wait_ms(send_count, self.first_wait_ms, self.max_wait_ms)

    def retry_wait_ms(self, send_count: int) -> int:
        """The wait, in ms, after the `send_count`-th send of a message has failed."""
        return self._wait_ms(send_count, self.first_retry_ms, self.max_retry_ms)

    def _wait_ms(self, send_count: int, first_ms: int, max_ms: int) -> int:
        return int(Backoff(first_ms, max_ms, self.multiplier).wait_ms(send_count))
