"""The place of the dead letters of `redrive`: a store or a cluster. Control plane."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from pyspark_rmq.access.cluster_pool import give_back, take
from pyspark_rmq.retry.consumed_from import ConsumedFrom, consumed_from

if TYPE_CHECKING:
    from pyspark_rmq.options.cluster_options import ClusterSinkOptions

_KEYS = pa.schema([("queueId", pa.int32()), ("queueOffset", pa.int64()), ("msgId", pa.string())])


class Letters(Protocol):
    """The dead letters of an open place. The methods are those of `rmq_store.DeadLetters`."""

    def plan(
        self,
        group: str,
        rows: pa.RecordBatch,
        *,
        to_topic: str | None = None,
        max_replays: int | None = None,
        parking_topic: str | None = None,
        limit: int | None = None,
    ) -> pa.RecordBatch:
        """As `DeadLetters.plan`."""

    def redrive(
        self,
        group: str,
        rows: pa.RecordBatch,
        *,
        to_topic: str | None = None,
        max_replays: int | None = None,
        parking_topic: str | None = None,
        limit: int | None = None,
    ) -> pa.RecordBatch:
        """As `DeadLetters.redrive`."""


@dataclass(frozen=True)
class RedrivenFrom:
    """The place of the letters. `schema`: the columns that name a letter, and its id."""

    place: ConsumedFrom
    sink: ClusterSinkOptions | None

    @property
    def schema(self) -> pa.Schema:
        """The columns of rows for `Letters`."""
        return _KEYS if self.sink is None else pa.schema([("brokerName", pa.string()), *_KEYS])

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that name a letter, in the order in which letters are moved."""
        return tuple(name for name in self.schema.names if name != "msgId")

    @contextlib.contextmanager
    def opened(self) -> Iterator[Letters]:
        """The letters, for a `with` block. Raises what `Store.open` raises."""
        if self.sink is None:
            from rmq_store import Store

            with Store.open(self.place.path) as store:
                yield store.dead_letters
            return
        from rmq_store.cluster import ClusterDeadLetters

        options = self.place.cluster
        assert options is not None  # there are options of a sink
        cluster = take(options)
        try:
            yield ClusterDeadLetters(
                cluster,
                settle_ms=self.sink.settle_ms,
                send_timeout_ms=self.sink.send_timeout_ms,
                pull_group=options.pull_group,
            )
        finally:
            give_back(options)


def redriven_from(path: object, options: Mapping[str, str] | None) -> RedrivenFrom:
    """The place that the arguments of `redrive` name. Raises as `consumed_from`."""
    place = consumed_from(path, options, "redrive")
    if place.cluster is None:
        return RedrivenFrom(place, None)
    from pyspark_rmq.options.options import sink_options

    given = {**place.given, "sendBack": "group", "txnAppId": "redrive", "txnVersion": "0"}
    return RedrivenFrom(place, sink_options(given, "batch write").cluster_sink)
