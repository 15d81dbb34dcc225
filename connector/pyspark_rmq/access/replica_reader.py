"""A replica as a `QueueSource` for a stream with a group: messages are read here, the group is at the master. Control
plane.

    messages, ranges, times, look-ups    of the replica, as of any store
    lease, membership, offsets           of the group, at the master alone (`GroupLease` over `OneBroker`)
    delayed messages                     are the master's to deliver

Another consumer of the group may have been faster at the master, so that the group's offset lies behind the end of the
replica. That is no loss: ends of a replica are unsure, as those of a slave (`UnsureRange`), and the stream waits until
the replica has the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from pyspark_rmq.access.store_reader import StoreReader
from pyspark_rmq.position.planning import UnsureRange
from pyspark_rmq.position.position import Queue
from rmq_store.cluster import Cluster, GroupLease, MessageQueue, OneBroker
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from pyspark_rmq.access.queue_source import DelayedMessages, Lease, LostOffsets, Pins, QueueSource, Runs, Sizes
    from pyspark_rmq.position.planning import Range
    from pyspark_rmq.position.queue_ids import QueueId


class ReplicaReader(StoreReader):
    """See `QueueSource`. Before a group is asked about, `keep_group_at` says where it is."""

    _broker_name = ""
    _cluster: OneBroker | None = None
    _group: GroupLease | None = None
    _query_id = ""
    _on_close: Callable[[], None] | None = None

    def keep_group_at(self, cluster: Cluster, on_close: Callable[[], None]) -> None:
        """Say by which cluster the master is reached. `on_close` is called once, by `close`, also if this raises.

        Raises:
            UsageError: the store is no replica.
            RemotingConnectError: the name servers do not know the master. RemotingError, MQBrokerError: they do not
                answer, or refuse.
        """
        self._on_close = on_close
        if self.replica is None:
            raise UsageError(
                f"{self.path} is no replica of a broker (rmq follow): its groups are in the store itself. Leave out "
                "the option nameServer, or leave out path and read from the brokers"
            )
        self._broker_name = self.replica.broker
        self._cluster = OneBroker(cluster, self.replica.broker)
        self._cluster.require_member_of(self.replica.cluster)

    # -- ends ---------------------------------------------------------------------------------------------------------

    def queue_ranges(self, topic: str) -> Mapping[int, Range]:  # type: ignore[override]
        """As `QueueSource.queue_ranges`: the replica may be behind."""
        return {number: UnsureRange(*limits) for number, limits in super().queue_ranges(topic).items()}

    def ranges(self, queues: Iterable[Queue]) -> dict[Queue, Range]:
        """As `QueueSource.ranges`: the replica may be behind."""
        return {queue: UnsureRange(*self.queue_range(*queue)) for queue in queues}

    # -- the group ----------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """As `QueueSource.refresh`, and hold the lease, if there is one, at a master that is back.

        Raises:
            LeaseHeldError: another client has taken it.
        """
        super().refresh()
        if self._group is not None:
            self._group.hold_at([self._broker_name])

    def committed_offsets(self, group: str) -> dict[tuple[str, int], int]:
        """The offsets that the group has committed at the master, in the queues that the replica has (14)."""
        queues = [
            MessageQueue(topic, self._broker_name, number)
            for topic in self.topics()
            for number in self.queue_ranges(topic)
        ]
        found = self._of_group(group).committed(queues)
        return {(queue.topic, queue.queue_id): offset for queue, offset in found.items()}

    def starts_at_first_message(self, group: str, queue: Queue, max_offset: int) -> bool:
        """Whether the master lets a new group begin at the first message of the queue, because the queue is young."""
        return self._of_group(group).starts_at_first_message(self._at_master(queue.topic, queue.queue_id))

    def commit_offsets(self, group: str, offsets: Mapping[tuple[str, QueueId], int]) -> None:
        """Commit these queues at the master (15). Raises as `ClusterReader.commit_offsets`."""
        self._of_group(group).commit({self._at_master(*queue): offset for queue, offset in offsets.items()})

    def runs_of(self, query: str) -> None:
        """See `Runs.runs_of`."""
        self._query_id = query

    def lease(self, group: str, topic: str, owner: str) -> Lease:  # type: ignore[override]
        """Take the lease at the master, and join the group there. Raises as `ClusterReader.lease`."""
        return self._of_group(group).lease(topic, owner, self._query_id)

    def deliver_due(self, limit: int | None) -> int | None:
        """Nothing: the master delivers what is delayed, and the replica gets the copies."""
        return None

    def _at_master(self, topic: str, queue_id: QueueId) -> MessageQueue:
        assert isinstance(queue_id, int)
        return MessageQueue(topic, self._broker_name, queue_id)

    def _of_group(self, group: str) -> GroupLease:
        assert self._cluster is not None, "keep_group_at was not called"
        if self._group is None or self._group.name != group:
            self._group = GroupLease(self._cluster, group, instead="set commitOffsets=false")
        return self._group

    def close(self) -> None:
        """Leave the group, let go of the cluster and of the store; may be called again."""
        on_close, self._on_close = self._on_close, None
        group, self._group = self._group, None
        try:
            if group is not None:
                group.leave()
        finally:
            try:
                if on_close is not None:
                    on_close()
            finally:
                super().close()


if TYPE_CHECKING:

    def _is_source(store: ReplicaReader) -> QueueSource:
        """Never called. mypy fails here if a member is missing, or has another signature."""
        return store

    def _has_capabilities(store: ReplicaReader) -> tuple[Pins, Sizes, LostOffsets, DelayedMessages, Runs]:
        """The same of the capabilities."""
        return store, store, store, store, store
