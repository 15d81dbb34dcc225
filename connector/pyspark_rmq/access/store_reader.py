"""`StoreReader`: the part of `rmq_store.Store` that the sources of this package use. Control plane.

The interface does not say where the messages are. `store_location` knows that, and opens a `StoreReader` there: a store
in a directory of this host, or a cluster of brokers. mypy checks each member of `Store` and of `ClusterReader` against
the interface.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self

from pyspark_rmq.position.planning import Range
from pyspark_rmq.position.queue_ids import QueueId

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from rmq_store import Store


class Lease(Protocol):
    """The right of one process to consume a topic for a group. It ends with the process."""

    def heartbeat(self) -> bool:
        """Write that the holder still works; False if the lease is lost."""

    def held(self) -> bool:
        """True if this process still holds the lease."""

    def release(self) -> None:
        """Give the lease up."""


class Pin(Protocol):
    """Keeps retention from deleting a range of the log. It ends with the process."""

    def release(self) -> None:
        """Let retention delete the range; may be called again."""


class Delivery(Protocol):
    """The result of a delivery of due delayed messages."""

    @property
    def next_due_ms(self) -> int | None:
        """Due time of the next delayed message, by the store's clock; it may have passed. None: none is left."""


class Schedule(Protocol):
    """The delayed messages of the store."""

    def deliver_due(self, limit: int | None = None) -> Delivery:
        """Deliver the messages that are due, at most `limit` or a few more. Cheap if none is due."""


class FoundRows(Protocol):
    """Answer of an index lookup for some ranges of queues."""

    @property
    def found(self) -> Mapping[QueueId, np.ndarray]:
        """By queue id: queue offsets of the messages that the index found, (n,) int64, ascending."""

    @property
    def uncovered(self) -> Mapping[QueueId, Sequence[tuple[int, int]]]:
        """By queue id: ranges [start, end) of queue offsets that the index does not cover, ascending. `found` has
        nothing in them.
        """


class Rows(Protocol):
    """Finds queue offsets of messages by key or id."""

    def find(
        self,
        topic: str,
        texts: Sequence[str],
        spans: Mapping[QueueId, tuple[int, int]],
        by: Literal["key", "unique key", "id"],
    ) -> FoundRows:
        """Look up the messages in `spans` (queue id -> [start, end)) that have one of `texts` as key, unique key or id.
        """


class Query(Protocol):
    """The store's index."""

    @property
    def rows(self) -> Rows:
        """Lookups that return queue offsets."""


class Redriven(Protocol):
    """The queue offsets of the dead letters of one queue that were redriven."""

    def contains(self, offsets: np.ndarray) -> np.ndarray:
        """Mask (n,) bool: True for each of `offsets`, (n,) int64, that was redriven."""


class StoreReader(Protocol):
    """The part of `rmq_store.Store` that reading needs. Offsets are queue offsets unless a name says otherwise."""

    @property
    def identity(self) -> str:
        """Identity of the store, from its creation; "" for a store that a broker made."""

    @property
    def clock(self) -> Callable[[], int]:
        """The store's clock, ms since the epoch."""

    @property
    def schedule(self) -> Schedule:
        """The delayed messages. Only for a store that was opened with `open_to_commit`."""

    def refresh(self) -> None:
        """See the appends and changes of other processes since the last call."""

    def unpin(self) -> None:
        """Release the files that reading has pinned against retention; the next read pins again."""

    def topics(self) -> Mapping[str, object]:
        """All topics of the table by name; the same object as long as nothing changed."""

    def find_topic(self, name: str) -> object | None:
        """The topic of exactly this name, also if it has queues but is not in the table; None if there is none."""

    def unlisted_topics(self) -> Mapping[str, object]:
        """Topics that have queues but are not in the table, by name."""

    def queue_ranges(self, topic: str) -> Mapping[QueueId, Range]:
        """The range of each queue of a topic, by queue id. Raises `UnknownTopicError` if the topic does not exist."""

    def queue_range(self, topic: str, queue_id: QueueId) -> Range:
        """The range of one queue, also of a queue that is not open for reading; an empty range if it was never used."""

    def log_range(self) -> tuple[int, int]:
        """The commit-log offsets `[start, end)` that exist."""

    def has_not_grown(self, end: int) -> bool:
        """Cheap, without a system call. True: nothing was appended since `end`. False: unknown, call `log_range()`."""

    def commit_log_offset_before(self, topic: str, queue_id: QueueId, queue_offset: int) -> int:
        """Commit-log offset of the message before `queue_offset`; -1 if it does not exist (any more)."""

    def store_timestamp(self, topic: str, queue_id: QueueId, queue_offset: int) -> int:
        """Time at which a message was stored, ms. Raises `OffsetOutOfRangeError` and `CorruptRecordError`."""

    def offset_by_time(self, topic: str, queue_id: QueueId, timestamp_ms: int) -> int:
        """Queue offset of the first message stored at `timestamp_ms` or later; the end of the queue if there is none.
        """

    def bytes_between(self, topic: str, queue_id: QueueId, start: int, end: int) -> int:
        """Size in the log of the messages `[start, end)`, in bytes."""

    def offset_after_bytes(self, topic: str, queue_id: QueueId, start: int, end: int, limit_bytes: int) -> int:
        """The largest offset up to `end` for which `[start, offset)` takes at most `limit_bytes` in the log."""

    def lost_offsets(self, topic: str, queue_id: QueueId, start: int, end: int, *, tags: str | None) -> np.ndarray:
        """Queue offsets, (n,) int64, ascending, of the messages `[start, end)` that cannot be read because the log lost
        their bytes.
        """

    def read(
        self,
        topic: str,
        queue_id: QueueId,
        start: int,
        end: int,
        *,
        columns: Sequence[str],
        tags: str | None,
        raw_body: bool,
        only: np.ndarray | None = None,
        two_threads: bool,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages `[start, end)` in order, as record batches of `columns`. With `only`, (n,) int64,
        ascending: only these queue offsets. With `two_threads`: a second thread decodes every other batch.
        """

    def redriven(self, group: str) -> Mapping[QueueId, Redriven]:
        """The dead letters that were redriven, by queue id of `%DLQ%group`. Raises `CorruptionError` if the ledger is
        damaged.
        """

    @property
    def query(self) -> Query:
        """Lookups by key or id, which do not read all messages."""

    def pin(self, start_offset: int, end_offset: int) -> Pin:
        """Keep retention from deleting the commit-log offsets `[start_offset, end_offset)`, as far as they still exist.
        """

    def committed_offsets(self, group: str) -> Mapping[tuple[str, QueueId], int]:
        """The offsets that the group has committed, by (topic, queue id)."""

    def all_committed_offsets(self) -> Mapping[str, Mapping[tuple[str, QueueId], int]]:
        """The committed offsets of all groups that have some: group -> (topic, queue id) -> offset."""

    def groups(self) -> Mapping[str, object]:
        """The groups that have settings, by name."""

    def commit_offsets(self, group: str, offsets: Mapping[tuple[str, QueueId], int]) -> None:
        """Commit the offsets of these queues; those of other queues stay."""

    def lease(self, group: str, topic: str, owner: str) -> Lease:
        """Take the lease of a topic for a group. Raises `LeaseHeldError`, which names the holder."""

    def close(self) -> None:
        """Close the store."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


if TYPE_CHECKING:

    def _is_store_reader(store: Store) -> StoreReader:
        """Never called. mypy fails here if `Store` lacks a member of `StoreReader`, or has another signature for it."""
        return store
