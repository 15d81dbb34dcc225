"""The outages of databases, as one process sees them: a line in the log when one begins and when it ends, and metrics.

    rmq_database_holding          threads that hold their work until a database can be written
    rmq_database_outages_total    outages that began

Each worker (a consumer group, a relay) has its own `Outage`, and the metrics are of all of them: `holding_metrics`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Final

from rmq_store.format.text.openmetrics import Metric, MetricFamily

_LABELS: Final = ("worker",)

HOLDING: Final = Metric(
    "rmq_database_holding", "gauge", "Threads that hold their work until the database can be written.", _LABELS
)
OUTAGES: Final = Metric("rmq_database_outages", "counter", "Outages of the database since the process began.", _LABELS)

RELIABLE_METRICS: Final = (HOLDING, OUTAGES)

_log = logging.getLogger(__name__)

_all: weakref.WeakSet[Outage] = weakref.WeakSet()
_all_lock = threading.Lock()


class Outage:
    """The outages that a `worker` ("group cg", "relay") meets. `held`: the consequence, in words. Safe for threads."""

    def __init__(self, worker: str, held: str) -> None:
        self.worker = worker
        self._held = held
        self._lock = threading.Lock()
        self._is_on = False
        self._count = 0
        self._waiting = 0
        with _all_lock:
            _all.add(self)

    @property
    def count(self) -> int:
        """Outages that began."""
        return self._count

    @property
    def waiting(self) -> int:
        """Threads that hold their work now; at least one while an outage lasts."""
        return max(self._waiting, int(self._is_on))

    def began(self, error: BaseException) -> None:
        """Note an error that waiting can help; only the first one of an outage is logged."""
        with self._lock:
            if self._is_on:
                return
            self._is_on = True
            self._count += 1
        original = getattr(error, "orig", None)
        text = " ".join(str(original if original is not None else error).split())
        _log.warning("%s: the database is away (%s); %s until it can be written", self.worker, text, self._held)

    def ended(self) -> None:
        """Note that the database was written."""
        if not self._is_on:
            return
        with self._lock:
            if not self._is_on:
                return
            self._is_on = False
        _log.warning("%s: the database is back", self.worker)

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Count this thread as one that waits, in a `with` block."""
        with self._lock:
            self._waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1


def holding_metrics() -> list[MetricFamily]:
    """The metrics of all workers of this process, for `rmq_store.openmetrics_text` and `write_openmetrics`:
    `RELIABLE_METRICS`.
    """
    holding: Counter[str] = Counter()
    outages: Counter[str] = Counter()
    with _all_lock:
        workers = list(_all)
    for each in workers:
        holding[each.worker] += each.waiting
        outages[each.worker] += each.count
    return [
        MetricFamily(HOLDING, [((worker,), float(count)) for worker, count in sorted(holding.items())]),
        MetricFamily(OUTAGES, [((worker,), float(count)) for worker, count in sorted(outages.items())]),
    ]
