"""Redrives of dead letters, in calls of the engine that each get some of them, and their outcomes together."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

# Dead letters that one call of the engine gets: what it answers is in memory.
CALL_ROWS: Final = 20_000

_PLANNED: Final[Mapping[str, str]] = MappingProxyType({"WOULD_REDRIVE": "REDRIVEN", "WOULD_PARK": "PARKED"})


class Totals:
    """Outcomes of all calls together, and the reasons of refusals."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()

    @property
    def moving(self) -> int:
        """The number of messages that are moved, or would be."""
        return self.outcomes["REDRIVEN"] + self.outcomes["PARKED"]

    def add(self, result: pa.RecordBatch) -> None:
        """Count the outcomes of some rows."""
        import pyarrow.compute as pc

        for entry in result.column("outcome").value_counts().to_pylist():
            self.outcomes[_PLANNED.get(entry["values"], entry["values"])] += entry["counts"]
        refused = result.filter(pc.equal(result.column("outcome"), "REFUSED"))
        for entry in refused.column("reason").value_counts().to_pylist():
            self.reasons[entry["values"]] += entry["counts"]


def in_calls(
    calls: Iterator[pa.RecordBatch],
    limit: int | None,
    ask: Callable[[pa.RecordBatch, int | None], pa.RecordBatch],
    *,
    rate: float | None = None,
) -> Totals:
    """Call `ask` with the places of each call, and with how many more may be moved; return the outcomes of all.

    `rate` (messages per second) makes it wait between two calls. A call that moves more than those of one second
    waits by itself.
    """
    totals = Totals()
    moved = 0
    for places in calls:
        left = None if limit is None else limit - totals.moving
        if left == 0:
            break
        if rate is not None and moved:
            time.sleep(min(moved, max(int(rate), 1)) / rate)
        before = totals.moving
        totals.add(ask(places, left))
        moved = totals.moving - before
    return totals
