"""A cheap poll for a query that has nothing to read. Control plane.

Spark asks for new messages about 95 times a second. A full poll each time took three times the processor time that
Spark itself needs to ask. Most of it went into system calls: each finds a cold cache after Spark's pause of 10 ms.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark_rmq.access.queue_source import QueueSource
from pyspark_rmq.position.planning import Range
from pyspark_rmq.position.position import Queue

FULL_POLL_INTERVAL_S: Final = 0.2
"""Upper bound on how late a change is noticed that `QueueSource.is_still` does not show."""


@dataclass(frozen=True, slots=True)
class IdlePoll:
    """A full poll, begun at `polled_s` (monotonic), that found nothing after `start` in these ranges. `due_ms` is the
    due time of the next waiting message.
    """

    start: dict[str, Any]
    ranges: Mapping[Queue, Range]
    version: Hashable
    due_ms: int | None
    polled_s: float

    def holds(self, store: QueueSource, start: dict[str, Any], now_s: float) -> bool:
        """True if there still is nothing to read after `start`.

        New messages, and delayed messages that become due, are noticed at once. Other changes (a replaced store,
        topics, a heartbeat) are noticed at the next full poll. Until then the answer may be late, but never wrong,
        because it only repeats the answer of the last full poll.
        """
        return (
            now_s - self.polled_s < FULL_POLL_INTERVAL_S
            and store.is_still(self.version)
            and (self.due_ms is None or store.clock() < self.due_ms)
            and start == self.start
        )
