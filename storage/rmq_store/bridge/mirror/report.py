"""Counts and lag of a mirror: for people, for programs, and as OpenMetrics.

Lag is the last stable offset minus the position. The position skips transaction markers, so a topic that ends with a
marker can be caught up. Offsets without records (markers, compacted records) count as lag until they are passed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Final

from rmq_store import real_time
from rmq_store.bridge.kafka.client import Partition
from rmq_store.format.text.openmetrics import Metric, MetricFamily
from rmq_store.lazy.dataclasses import dataclass

RATE_WINDOW_S: Final = 10.0
STARTING: Final = "starting"

_LABELS: Final = ("mirror", "direction")
_PLACE: Final = (*_LABELS, "topic", "partition")

COPIED = Metric("rmq_mirror_copied_records", "counter", "Records that were copied since the mirror started.", _LABELS)
LOOPS = Metric(
    "rmq_mirror_dropped_loop_records",
    "counter",
    "Records that had been at the target before, and were left out.",
    _LABELS,
)
LETTERS = Metric("rmq_mirror_dead_letter_records", "counter", "Records that became dead letters.", _LABELS)
LOST = Metric("rmq_mirror_lost_records", "counter", "Offsets that were gone before they were read.", _LABELS)
DAMAGED = Metric(
    "rmq_mirror_damaged_records", "counter", "Messages that the store could not read: dead letters say where.", _LABELS
)
OLD = Metric(
    "rmq_mirror_older_than_retention_records",
    "counter",
    "Records that were copied, and that the target topic's retention deletes at once.",
    _LABELS,
)
LAG = Metric("rmq_mirror_lag_records", "gauge", "Last stable offset less the position.", _PLACE)
POSITION = Metric("rmq_mirror_position_records", "gauge", "The next source offset.", _PLACE)
FAILED = Metric("rmq_mirror_partition_failed", "gauge", "1 for a partition that has stopped.", _PLACE)
CAUGHT_UP = Metric("rmq_mirror_caught_up", "gauge", "1 while every partition is caught up.", _LABELS)
LAST_POLL = Metric(
    "rmq_mirror_last_poll_seconds",
    "gauge",
    "When the source was last asked, in seconds since 1970.",
    _LABELS,
    "seconds",
)


@dataclass(slots=True)
class PartitionReport:
    """One partition or queue. `stable_end` -1: unknown yet. `failure`: why it has stopped; "": it has not."""

    next_offset: int
    stable_end: int = -1
    failure: str = ""

    @property
    def lag(self) -> int:
        """Unread offsets; also 0 while the end is unknown. After a change of the leader the end may lag for a while."""
        return max(0, self.stable_end - self.next_offset)

    @property
    def is_caught_up(self) -> bool:
        """True if nothing is left to copy; False while the end is unknown."""
        return 0 <= self.stable_end <= self.next_offset


@dataclass(slots=True)
class MirrorReport:
    """Counts since the mirror started. `state`: its present activity, in words."""

    mirror: str
    direction: str
    copied: int = 0
    dropped_loops: int = 0
    letters: int = 0
    lost: int = 0
    damaged: int = 0
    older_than_retention: int = 0
    units: int = 0
    state: str = STARTING
    last_poll_ms: int = 0
    partitions: dict[Partition, PartitionReport] = field(default_factory=dict)
    clock_s: Callable[[], float] = real_time.monotonic
    _marks: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, copied: int, dropped_loops: int, letters: int) -> None:
        """Count the records of one unit."""
        self.copied += copied
        self.dropped_loops += dropped_loops
        self.letters += letters
        self.units += 1
        now_s = self.clock_s()
        self._marks.append((now_s, copied))
        while self._marks[0][0] < now_s - RATE_WINDOW_S:
            self._marks.popleft()

    @property
    def rate(self) -> float:
        """Records copied per second, over the last ten seconds."""
        since_s = self.clock_s() - RATE_WINDOW_S
        return sum(count for at_s, count in self._marks if at_s >= since_s) / RATE_WINDOW_S

    @property
    def lag(self) -> int:
        """The sum over all partitions that have not stopped."""
        return sum(one.lag for one in self.partitions.values() if not one.failure)

    @property
    def is_caught_up(self) -> bool:
        """True if no partition has stopped and each is caught up; False until the first poll."""
        return self.state != STARTING and all(one.is_caught_up and not one.failure for one in self.partitions.values())

    @property
    def failures(self) -> Mapping[Partition, str]:
        """Partitions that have stopped, with their errors."""
        return {place: one.failure for place, one in self.partitions.items() if one.failure}

    def families(self) -> list[MetricFamily]:
        """The report as metrics."""
        labels = (self.mirror, self.direction)
        counts = (
            (COPIED, self.copied), (LOOPS, self.dropped_loops), (LETTERS, self.letters), (LOST, self.lost),
            (DAMAGED, self.damaged), (OLD, self.older_than_retention),
        )  # fmt: skip
        places = [((*labels, at.topic, str(at.partition)), one) for at, one in sorted(self.partitions.items())]
        return [
            *(MetricFamily(metric, [(labels, float(number))]) for metric, number in counts),
            MetricFamily(POSITION, [(place, float(one.next_offset)) for place, one in places]),
            MetricFamily(LAG, [(place, float(one.lag)) for place, one in places]),
            MetricFamily(FAILED, [(place, float(bool(one.failure))) for place, one in places]),
            MetricFamily(CAUGHT_UP, [(labels, float(self.is_caught_up))]),
            MetricFamily(LAST_POLL, [(labels, self.last_poll_ms / 1000)]),
        ]
