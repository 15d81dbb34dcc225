"""A cluster of brokers as a place to read from: `StoreLocation`. Control plane."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pyspark_rmq.access.cluster_pool import give_back, take
from pyspark_rmq.access.spark_worker import spare_modules
from pyspark_rmq.options.cluster_options import ClusterOptions

if TYPE_CHECKING:
    from pyspark_rmq.access.cluster_reader import ClusterReader

_log = logging.getLogger(__name__)


class SameCluster:
    """The identity of a cluster: its name is compared with the checkpoint's, and nothing else can change."""

    def is_unchanged(self) -> bool:
        """True."""
        return True

    def close(self) -> None:
        """Nothing to close."""


@dataclass(frozen=True, slots=True)
class ClusterLocation:
    """The cluster that options name. All tasks of a process share its connections. `sql92` is a condition that brokers
    may evaluate. With `goes_on` plans go on without brokers that are away (`ClusterReader`). A query's losses are in
    its log only: there is no directory for a report.
    """

    options: ClusterOptions
    sql92: str | None = None
    goes_on: bool = False
    index_is_exact: ClassVar[bool] = False
    queues_turn_up_late: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"the cluster of {self.options.name_server}"

    @property
    def in_progress(self) -> dict[str, str]:
        """As `StoreLocation.in_progress`."""
        return {"nameServer": self.options.name_server}

    @property
    def in_losses(self) -> dict[str, str]:
        """As `StoreLocation.in_losses`."""
        return self.in_progress

    def open_to_read(self) -> ClusterReader:
        """As `StoreLocation.open_to_read`. Nothing is asked before the first question."""
        return self._open(goes_on=self.goes_on, away_ms=None)

    def _open(self, goes_on: bool, away_ms: int | None) -> ClusterReader:
        from pyspark_rmq.access.cluster_reader import ClusterReader

        options = self.options
        cluster = take(options)
        return ClusterReader(
            cluster, pull_group=options.pull_group, sql92=self.sql92, goes_on=goes_on, away_ms=away_ms,
            on_close=lambda: give_back(options),
        )  # fmt: skip

    def open_to_commit(self, group: str) -> ClusterReader:
        """As `StoreLocation.open_to_commit`."""
        return self.open_to_read()

    def in_task(self) -> AbstractContextManager[ClusterReader]:
        """As `StoreLocation.in_task`. Reads wait for a broker that is away, so long as brokerAwayTimeout says."""
        return self._in_task()

    @contextlib.contextmanager
    def _in_task(self) -> Iterator[ClusterReader]:
        spare_modules()
        with self._open(goes_on=False, away_ms=self.options.broker_away_timeout_ms) as reader:
            yield reader

    def identity(self) -> SameCluster:
        """As `StoreLocation.identity`."""
        return SameCluster()

    def clock(self) -> Callable[[], int]:
        """The clock of this host."""
        return lambda: time.time_ns() // 1_000_000

    def retry_max_times(self, group: str) -> int:
        """As `StoreLocation.retry_max_times`, of the first broker that tells it; 16 if none does. Each broker has a
        setting of its own.

        Raises:
            RemotingError: a broker does not answer, and no other tells it. MQBrokerError: a broker refuses, or is busy,
                and no other tells it.
        """
        from rmq_store import SubscriptionGroup
        from rmq_store.cluster import first_group_config

        with self.open_to_read() as reader:
            config = first_group_config(reader.cluster, group)
        return (SubscriptionGroup(group) if config is None else config).retry_max_times

    def retry_ladder_ms(self) -> tuple[int, ...]:
        """As `StoreLocation.retry_ladder_ms`, with the levels that brokers have unless they are configured."""
        from rmq_store import StoreConfig

        return StoreConfig().retry_delays_ms()

    def is_consuming(self, group: str) -> bool:
        """As `StoreLocation.is_consuming`: whether the group has live members. It may have them at masters that are
        away, and at those that no name server shows now.
        """
        from rmq_store.cluster import MQBrokerError, RemotingError, gather_members, tells_nothing

        with self.open_to_read() as reader:
            try:
                found = gather_members(reader.cluster, group)
            except (RemotingError, MQBrokerError) as error:
                if not tells_nothing(error):
                    raise
                _log.info("group %r: its members are not known: %s", group, error)
                return True
            told = found.those_that_answer()
            return any(told.values()) or not told or bool(found.away)
