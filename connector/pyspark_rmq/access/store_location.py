"""Where the messages are, and how a source opens them there. Control plane.

`StoreLocation` is the interface. `StoreDirectory` is a store in a directory of this host, `ClusterLocation` the brokers
behind name servers. `location_of` chooses by the options of the read, and no other module of the sources knows which of
them it has: `tests/connector/test_sides.py` holds that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from pyspark_rmq.access.cluster_location import ClusterLocation
from pyspark_rmq.access.cluster_pool import give_back, take
from pyspark_rmq.access.queue_source import QueueSource
from pyspark_rmq.access.spark_worker import spare_modules
from pyspark_rmq.access.store_pool import DirectoryIdentity, pooled
from pyspark_rmq.options.cluster_options import ClusterOptions
from pyspark_rmq.options.option_table import FAIL
from pyspark_rmq.options.options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_rmq.access.replica_reader import ReplicaReader
    from pyspark_rmq.access.store_reader import StoreReader
    from rmq_store import Loss, StoreConfig

# A store stays open for so long after a task that has read: the next micro-batch often comes within that time.
_TASK_STORE_POOLED_S = 5.0


class Identity(Protocol):
    """Tells whether a location still has the store that it had when the identity was taken."""

    def is_unchanged(self) -> bool:
        """True if the location still has the same store."""

    def close(self) -> None:
        """Release the descriptors; may be called again."""


class StoreLocation(Protocol):
    """A place that has a store. `str()` names it in messages."""

    index_is_exact: ClassVar[bool]
    """Whether look-ups find all messages, and only those whose texts are equal. Otherwise they may leave out some of
    many, and have others with the same hash.
    """

    queues_turn_up_late: ClassVar[bool]
    """Whether a queue may be seen later than others although it was there before: its broker was away."""

    @property
    def in_progress(self) -> dict[str, str]:
        """The place, as the progress of a query and its lag name it."""

    @property
    def in_losses(self) -> dict[str, str]:
        """The place, as lines of the log of losses name it."""

    def open_to_read(self) -> QueueSource:
        """Open the store read-only. Raises what `Store.open` raises."""

    def open_to_commit(self, group: str) -> QueueSource:
        """Open the store for reading, and for committing the offsets of `group`.

        Raises:
            ReadOnlyError: the store cannot be written; the message names the option with which it can still be read.
            StoreLockedError: a broker has the store open.
        """

    def in_task(self) -> AbstractContextManager[QueueSource]:
        """The store for the block of a task, open for reading and refreshed. It comes from a pool: the next task in
        this process gets the same one.
        """

    def identity(self) -> Identity:
        """The identity of the store that is at the location now. Take it before the store is opened. Then it tells
        later whether the opened store is still the one at the location.
        """

    def clock(self) -> Callable[[], int]:
        """The clock of the store, ms since the epoch: the system's, unless a test gave the store a clock of its own."""

    def retry_max_times(self, group: str) -> int:
        """The number of retries after which a message of the group becomes a dead letter, by the group's settings."""

    def retry_ladder_ms(self) -> tuple[int, ...]:
        """The delays (ms) of the first, second, ... retry: the delay levels from the third on (3 + reconsumeTimes,
        SendMessageProcessor). The last one repeats.
        """

    def is_consuming(self, group: str) -> bool:
        """True if a process holds a lease of the group now. Each stream that commits for the group holds one."""


@runtime_checkable
class LossReport(Protocol):
    """A location that keeps the losses which queries have passed over."""

    def record_losses(self, losses: Sequence[Loss]) -> list[Loss]:
        """Add losses to the report, and return the new ones. Raises as `rmq_store.record_losses`."""

    def recorded_losses(self) -> list[Loss]:
        """All losses in the report. Raises what `Store.open` raises if there is no store."""


@dataclass(frozen=True, slots=True)
class StoreDirectory:
    """The `StoreLocation` of a store in a directory of this host: `path` is its root. The other fields are the options
    brokerName, storePathCommitLog and enableLmq. `group_at`: of a replica, the cluster that has the groups.
    """

    path: str
    broker_name: str | None = None
    commit_log_paths: str = ""
    enable_lmq: bool | None = None
    group_at: ClusterOptions | None = None
    index_is_exact: ClassVar[bool] = True
    queues_turn_up_late: ClassVar[bool] = False

    def __str__(self) -> str:
        return self.path

    @property
    def in_progress(self) -> dict[str, str]:
        """As `StoreLocation.in_progress`."""
        return {"path": self.path}

    @property
    def in_losses(self) -> dict[str, str]:
        """As `StoreLocation.in_losses`."""
        return {"store": self.path}

    def open_to_read(self) -> StoreReader:
        """As `StoreLocation.open_to_read`."""
        from pyspark_rmq.access.store_reader import StoreReader

        return StoreReader.open(
            self.path,
            read_only=True,
            config=self._config(),
            broker_name=self.broker_name,
            commit_log_paths=self.commit_log_paths,
        )

    def open_to_commit(self, group: str) -> StoreReader:
        """As `StoreLocation.open_to_commit`. Of a replica raises as `ReplicaReader.keep_group_at`, too."""
        from pyspark_rmq.access.store_reader import StoreReader
        from rmq_store import ReadOnlyError

        if self.group_at is not None:
            return self._open_replica(self.group_at)
        path = Path(self.path)
        if path.exists() and not os.access(path, os.W_OK):
            raise ReadOnlyError(
                f"{path} cannot be written, so group {group!r} cannot commit its offsets there; "
                "set commitOffsets=false to read without committing"
            )
        try:
            return StoreReader.open(path, config=self._config(), broker_name=self.broker_name)
        except ReadOnlyError as error:
            with self.open_to_read() as store:
                role = store.replica
            if role is None:
                raise
            raise ReadOnlyError(
                f"{path} is a replica of broker {role.broker!r}: leases and offsets of group {group!r} are at that "
                "broker. Name its name servers in the option nameServer, beside path; or set commitOffsets=false to "
                "read without committing"
            ) from error

    def _open_replica(self, options: ClusterOptions) -> ReplicaReader:
        from pyspark_rmq.access.replica_reader import ReplicaReader

        reader = ReplicaReader.open(self.path, read_only=True, broker_name=self.broker_name)
        try:
            reader.keep_group_at(take(options), lambda: give_back(options))
        except BaseException:
            reader.close()
            raise
        return reader

    def _config(self) -> StoreConfig | None:
        if self.enable_lmq is None:
            return None
        from rmq_store import StoreConfig

        return StoreConfig(enable_lmq=self.enable_lmq)

    def in_task(self) -> AbstractContextManager[StoreReader]:
        """As `StoreLocation.in_task`."""
        spare_modules()
        key = ("read", self.path, self.broker_name, self.commit_log_paths, str(self.enable_lmq))
        return pooled(key, Path(self.path), self.open_to_read, lambda _: _TASK_STORE_POOLED_S)

    def identity(self) -> DirectoryIdentity:
        """As `StoreLocation.identity`: device and inode of the store's directories."""
        return DirectoryIdentity(Path(self.path))

    def clock(self) -> Callable[[], int]:
        """As `StoreLocation.clock`."""
        from rmq_store import store_clock

        return store_clock(self.path)

    def broker_backlog(self) -> Iterator[pa.RecordBatch]:
        """Messages that only a broker delivers. As `Store.broker_backlog`, with the errors of `Store.open` as well."""
        from rmq_store import Store

        with Store.open(self.path, read_only=True, commit_log_paths=self.commit_log_paths) as store:
            yield from store.broker_backlog()

    def retry_max_times(self, group: str) -> int:
        """As `StoreLocation.retry_max_times`."""
        from rmq_store import Store, SubscriptionGroup

        with Store.open(self.path, read_only=True) as store:
            return (store.groups().get(group) or SubscriptionGroup(group)).retry_max_times

    def retry_ladder_ms(self) -> tuple[int, ...]:
        """As `StoreLocation.retry_ladder_ms`."""
        from rmq_store import Store

        with Store.open(self.path, read_only=True) as store:
            return store.config.retry_delays_ms()

    def record_losses(self, losses: Sequence[Loss]) -> list[Loss]:
        """As `LossReport.record_losses`."""
        from rmq_store import record_losses

        return record_losses(self.path, losses)

    def recorded_losses(self) -> list[Loss]:
        """As `LossReport.recorded_losses`."""
        from rmq_store import Store, recorded_losses

        Store.open(self.path, read_only=True).close()
        return recorded_losses(self.path)

    def is_consuming(self, group: str) -> bool:
        """As `StoreLocation.is_consuming`."""
        if self.group_at is not None:
            return ClusterLocation(self.group_at).is_consuming(group)
        from rmq_store import live_leases

        return bool(live_leases(self.path, group))


def location_of(options: SourceOptions) -> StoreLocation:
    """The location that the options of a read name."""
    if options.cluster is not None:
        return ClusterLocation(options.cluster, options.sql92, goes_on=options.on_broker_away != FAIL)
    return StoreDirectory(
        options.path, options.broker_name, options.commit_log_paths, options.enable_lmq, options.group_at
    )
