"""A query that has nothing to do, and how seldom it looks at what seldom changes. Control plane.

Spark asks for new messages some 95 times a second. To look at everything each time took three times the processor that
Spark itself needs to ask, most of it for system calls: each finds a cold cache after Spark's pause of 10 ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark_rmq.access.store_reader import StoreReader
from pyspark_rmq.position.planning import Range
from pyspark_rmq.position.position import Queue

FULL_POLL_INTERVAL_S: Final = 0.2
"""How late is noticed what does not show at the end of the log."""


@dataclass(frozen=True, slots=True)
class IdlePoll:
    """A whole look, begun at `polled_s` (monotonic), that found nothing to read behind `start` in these ranges; a
    message that waits is due at `due_ms`.
    """

    start: dict[str, Any]
    ranges: Mapping[Queue, Range]
    log_end: int
    due_ms: int | None
    polled_s: float

    def holds(self, store: StoreReader, start: dict[str, Any], now_s: float) -> bool:
        """Whether there still is nothing behind `start`. New messages show at once, at the end of the log, and so does
        one that is due. All else (a store in the other's place, topics, a heartbeat) waits for the next whole look: the
        answer may be late until then, and is never wrong, because it names nothing that the last one did not find.
        """
        return (
            now_s - self.polled_s < FULL_POLL_INTERVAL_S
            and store.has_not_grown(self.log_end)
            and (self.due_ms is None or store.clock() < self.due_ms)
            and start == self.start
        )
