"""The flood breaker: stops a query before one mistake turns all its messages into dead letters. Control plane, no I/O.

A bug in a handler, or a service that is down, fails every message; after the last retry all of them are dead letters.
The breaker checks each batch before any of its messages is sent back. RocketMQ has no counterpart.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from pyspark_rmq.position.position import refuse
from rmq_store.arguments import check_fields
from rmq_store.errors import StoreError

_WINDOW_MS = 60_000


class FloodBreakerError(StoreError):
    """Too many rows would become dead letters. Nothing of the batch was sent back, and its offsets are not committed.

    `dead` of the batch's `rows` would become dead letters; `in_window` did within a minute, this batch included.
    """

    def __init__(self, message: str, dead: int, rows: int, in_window: int) -> None:
        super().__init__(message)
        self.dead = dead
        self.rows = rows
        self.in_window = in_window


@dataclass(frozen=True, slots=True)
class FloodBreaker:
    """Limits at which a query fails: more than `max_percent` of the rows of a batch, or more than `max_per_minute` rows
    within any minute, would become dead letters.

    `max_percent` applies to batches of at least `min_rows` rows: a batch of retries may be small, and each of its rows
    at its last try.

    Raises:
        UsageError: no limit is given, or a limit is no valid number.
    """

    max_percent: float | None = None
    max_per_minute: int | None = None
    min_rows: int = 1

    def __post_init__(self) -> None:
        check_fields(self)
        if self.max_percent is None and self.max_per_minute is None:
            refuse("a FloodBreaker needs max_percent or max_per_minute")
        if self.max_percent is not None and not 0 <= self.max_percent < 100:
            refuse(f"max_percent={self.max_percent} of a FloodBreaker is no percentage from 0 to below 100")
        if self.max_per_minute is not None and self.max_per_minute < 0:
            refuse(f"max_per_minute={self.max_per_minute} of a FloodBreaker is negative")
        if self.min_rows < 1:
            refuse(f"min_rows={self.min_rows} of a FloodBreaker is not at least 1")


class FloodWatch:
    """A breaker with its state: the dead letters of the last minute, in the memory of one driver."""

    def __init__(self, breaker: FloodBreaker) -> None:
        self._breaker = breaker
        self._seen: deque[tuple[int, int]] = deque()

    def check(self, rows: int, dead: int, now_ms: int) -> None:
        """Raise `FloodBreakerError` if `dead` of the batch's `rows` rows are too many. `count` adds them later."""
        while self._seen and self._seen[0][0] <= now_ms - _WINDOW_MS:
            self._seen.popleft()
        if not dead:
            return
        in_window = dead + sum(count for _, count in self._seen)
        percent, per_minute = self._breaker.max_percent, self._breaker.max_per_minute
        problems = []
        if percent is not None and rows >= self._breaker.min_rows and dead * 100 > percent * rows:
            problems.append(f"{dead} of {rows} rows of the batch ({dead * 100 / rows:.1f} %, limit {percent:g} %)")
        if per_minute is not None and in_window > per_minute:
            problems.append(f"{in_window} rows within a minute, {dead} of them in this batch (limit {per_minute})")
        if problems:
            raise FloodBreakerError(
                f"flood breaker: {' and '.join(problems)} would become dead letters; nothing of this batch was sent "
                "back. Correct the handler and start the query again, or raise the limit",
                dead, rows, in_window,
            )  # fmt: skip

    def count(self, dead: int, now_ms: int) -> None:
        """Count the dead letters of a batch that was sent back."""
        if dead:
            self._seen.append((now_ms, dead))
