"""The place of the dead letters of `redrive`: a store or a cluster. Control plane."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

import pyarrow as pa

from pyspark_rmq.access.cluster_pool import give_back, take
from pyspark_rmq.retry.consumed_from import ConsumedStore, consumed_from

if TYPE_CHECKING:
    from pyspark_rmq.options.cluster_options import ClusterOptions, ClusterSinkOptions

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


class RedrivenFrom(Protocol):
    """The place of the letters."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of rows for `Letters`: those that name a letter, and its id."""

    def opened(self) -> AbstractContextManager[Letters]:
        """The letters, for a `with` block. Raises what `Store.open` raises."""


def names_of(place: RedrivenFrom) -> tuple[str, ...]:
    """The columns that name a letter, in the order in which letters are moved."""
    return tuple(name for name in place.schema.names if name != "msgId")


@dataclass(frozen=True)
class RedrivenStore:
    """The store at `path`."""

    path: str
    schema: ClassVar[pa.Schema] = _KEYS

    @contextlib.contextmanager
    def opened(self) -> Iterator[Letters]:
        """As `RedrivenFrom.opened`."""
        from rmq_store import Store

        with Store.open(self.path) as store:
            yield store.dead_letters


@dataclass(frozen=True)
class RedrivenCluster:
    """The cluster of `options`, and how letters are sent there."""

    options: ClusterOptions
    sink: ClusterSinkOptions
    schema: ClassVar[pa.Schema] = pa.schema([("brokerName", pa.string()), *_KEYS])

    @contextlib.contextmanager
    def opened(self) -> Iterator[Letters]:
        """As `RedrivenFrom.opened`."""
        from rmq_store.cluster import ClusterDeadLetters

        cluster = take(self.options)
        try:
            yield ClusterDeadLetters(
                cluster,
                settle_ms=self.sink.settle_ms,
                send_timeout_ms=self.sink.send_timeout_ms,
                pull_group=self.options.pull_group,
            )
        finally:
            give_back(self.options)


def redriven_from(path: object, options: Mapping[str, str] | None) -> RedrivenFrom:
    """The place that the arguments of `redrive` name. Raises as `consumed_from`."""
    place = consumed_from(path, options, "redrive")
    if isinstance(place, ConsumedStore):
        return RedrivenStore(place.path)
    from pyspark_rmq.options.options import sink_options

    given = {**place.given, "sendBack": "group", "txnAppId": "redrive", "txnVersion": "0"}
    sink = sink_options(given, "batch write").cluster_sink
    assert sink is not None  # of a cluster there are some
    return RedrivenCluster(place.options, sink)
