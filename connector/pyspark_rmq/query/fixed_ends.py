"""The ends up to which a run of Trigger.AvailableNow reads. Control plane.

    the run starts          the ends that brokers tell now. Spark has not told the position yet, which knows more
                            brokers than name servers that forget
    a plan, if those lack   the position is known, and the brokers of its queues are asked; ends that were taken before
    some broker             stay. So again with each plan, while brokers are away for which the stream waits
                            (`Absences.hold`), or nobody can tell of the topics

A run that goes on without a broker reads none of its rows: the next one does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from pyspark_rmq.access.queue_source import Brokers, QueueSource
from pyspark_rmq.position.planning import Range
from pyspark_rmq.position.position import Queue
from pyspark_rmq.query.absences import Absences

if TYPE_CHECKING:
    from rmq_store.cluster import BrokerAwayError


class FixedEnds:
    """The ends of one run. `by_queue` is None with any other trigger: nothing is fixed then."""

    def __init__(self, absences: Absences) -> None:
        self._absences = absences
        self.by_queue: dict[Queue, int] | None = None
        self.are_whole = True
        """Whether they have those of all brokers for which the stream waits."""

    @property
    def lack_some(self) -> bool:
        """Whether ends are to be taken again before the next plan."""
        return self.by_queue is not None and not self.are_whole

    def take_none(self) -> None:
        """Nobody can tell of the topics now."""
        self.by_queue = self.by_queue or {}
        self.are_whole = False

    def take(
        self,
        store: QueueSource,
        ranges: Mapping[Queue, Range],
        missed: BrokerAwayError | None,
        missing: Collection[Queue] | None,
    ) -> None:
        """Take the ends of the subscribed queues, whose `ranges` were told now. `missed` names required brokers that
        are away. `missing`: the subscribed queues of the position that have no range; None: it is not known yet.
        """
        untold: set[Queue] = set()
        if missing and isinstance(store, Brokers):
            # Name servers forget a broker that is away, and show it late when it is back: it is asked itself.
            store.ranges(missing)
            untold = store.untold(missing)
        is_held = self._absences.hold(store, missed, untold)
        self.by_queue = {queue: limits.max_offset for queue, limits in ranges.items()} | (self.by_queue or {})
        self.are_whole = missing is not None and not is_held
