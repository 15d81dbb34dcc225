"""Redrives dead letters at the brokers of a cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from rmq_store.cli.target.answers import Answers
from rmq_store.cli.target.cluster.letter_rows import ClusterLetterRows
from rmq_store.cli.target.redrive_calls import CALL_ROWS, Totals, in_calls
from rmq_store.client.cluster_retry.redrive import ClusterDeadLetters

if TYPE_CHECKING:
    from rmq_store.broker.monitoring.dead_letter_rows import Wanted
    from rmq_store.cli.target.cluster_target import ClusterTarget
    from rmq_store.cli.target.view import Progress
    from rmq_store.remoting.cluster.cluster import Cluster

_PLACES: Final = ("brokerName", "queueId", "queueOffset", "msgId")


class ClusterRedrive:
    """See `Redrive`."""

    def __init__(self, cluster: Cluster, target: ClusterTarget, group: str, goals: dict[str, Any]) -> None:
        self.failures = Answers(cluster)
        self._cluster = cluster
        self._target = target
        self._group = group
        self._goals = goals
        self._letters = ClusterDeadLetters(cluster, pull_group=target.pull_group)
        self._rows: ClusterLetterRows | None = None

    def now_ms(self) -> int:
        """By the clock of this host."""
        return time.time_ns() // 1_000_000

    def choose(self, wanted: Wanted) -> None:
        """See `Redrive`."""
        self._rows = ClusterLetterRows(self._cluster, self._target, self.failures, self._group, wanted)

    def plan(self, limit: int | None) -> Totals:
        """See `Redrive`."""

        def ask(places: pa.RecordBatch, left: int | None) -> pa.RecordBatch:
            return self._letters.plan(self._group, places, limit=left, **self._goals)

        return in_calls(self._calls(CALL_ROWS), limit, ask)

    def move(self, limit: int | None, rate: float | None, progress: Progress) -> Totals:
        """See `Redrive`."""
        # A call to brokers does not wait by itself: it gets what one second may move.
        call_rows = CALL_ROWS if rate is None else max(min(int(rate), CALL_ROWS), 1)
        done = 0

        def ask(places: pa.RecordBatch, left: int | None) -> pa.RecordBatch:
            nonlocal done
            result = self._letters.redrive(self._group, places, limit=left, **self._goals)
            done += places.num_rows
            if progress is not None:
                progress(done, 0)
            return result

        return in_calls(self._calls(call_rows), limit, ask, rate=rate)

    def _calls(self, call_rows: int) -> Iterator[pa.RecordBatch]:
        """The places of what is wanted, CLUSTER_ROWS_SCHEMA, for a call of the engine each."""
        assert self._rows is not None
        for batch in self._rows.batches(_PLACES):
            for start in range(0, batch.num_rows, call_rows):
                yield batch.slice(start, call_rows)
