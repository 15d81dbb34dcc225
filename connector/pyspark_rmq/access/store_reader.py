"""`StoreReader`: the part of `rmq_store.Store` that the sources of this package use. Control plane.

The interface does not say where the messages are. `store_location` knows that, and opens a `StoreReader` there: today a
store in a directory of this host, later a cluster. mypy checks that `Store` fulfils the interface, member by member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self

from pyspark_rmq.position.planning import Range

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from rmq_store import Store


class Lease(Protocol):
    """The right of one process to consume a topic for a group; it ends with the process."""

    def heartbeat(self) -> bool:
        """Show that the holder still works; False if the lease is lost."""

    def held(self) -> bool:
        """True if this process still holds the lease."""

    def release(self) -> None:
        """Give it back."""


class Pin(Protocol):
    """Keeps retention from deleting a range of the log; ends with the process."""

    def release(self) -> None:
        """Let retention have them; may be called again."""


class Delivery(Protocol):
    """The result of a delivery of due messages."""

    @property
    def next_due_ms(self) -> int | None:
        """Due time of the next waiting message, by the store's clock; it may have passed. None: no message waits."""


class Schedule(Protocol):
    """The messages that wait for their time."""

    def deliver_due(self, limit: int | None = None) -> Delivery:
        """Deliver what is due, `limit` messages or a few more; cheap if nothing is."""


class FoundRows(Protocol):
    """The answer of the index, by queue id: queue offsets that it found, (n,) int64, and ranges that it does not cover.
    """

    @property
    def found(self) -> Mapping[int, np.ndarray]:
        """Ascending."""

    @property
    def untold(self) -> Mapping[int, Sequence[tuple[int, int]]]:
        """[start, end), ascending; nothing in them is in `found`."""


class Rows(Protocol):
    """Queue offsets of messages with a key or id."""

    def find(
        self,
        topic: str,
        texts: Sequence[str],
        spans: Mapping[int, tuple[int, int]],
        by: Literal["key", "unique key", "id"],
    ) -> FoundRows:
        """The messages of some ranges (queue id -> [start, end)) with one of these keys, unique keys or ids."""


class Query(Protocol):
    """The store's index."""

    @property
    def rows(self) -> Rows:
        """Of queues."""


class Redriven(Protocol):
    """Offsets of one queue."""

    def contains(self, offsets: np.ndarray) -> np.ndarray:
        """Mask (n,) bool: which of `offsets`, (n,) int64, belong to them."""


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
        """The waiting messages; only of a store that was opened to commit."""

    def refresh(self) -> None:
        """See the appends and changes of other processes since the last call."""

    def unpin(self) -> None:
        """Release the files that reading has pinned against retention; the next read pins again."""

    def topics(self) -> Mapping[str, object]:
        """All topics of the table by name; the same object as long as nothing changed."""

    def find_topic(self, name: str) -> object | None:
        """The topic of exactly this name, also one that has queues and is in no table; None if there is none."""

    def unlisted_topics(self) -> Mapping[str, object]:
        """Topics that have queues and are in no table, by name."""

    def queue_ranges(self, topic: str) -> Mapping[int, Range]:
        """The queues of a topic; `UnknownTopicError` if it does not exist."""

    def queue_range(self, topic: str, queue_id: int) -> Range:
        """One queue, also one that is not open for reading; empty if it was never used."""

    def log_range(self) -> tuple[int, int]:
        """The commit-log offsets `[start, end)` that exist."""

    def has_not_grown(self, end: int) -> bool:
        """Cheap check without a system call. True: nothing was appended since `end`. False: unknown, call
        `log_range()`.
        """

    def commit_log_offset_before(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Commit-log offset of the message before `queue_offset`; -1 if it does not exist (any more)."""

    def store_timestamp(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """When a message was stored, ms. `OffsetOutOfRangeError`, `CorruptRecordError`."""

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The first message stored at `timestamp_ms` or later; the end of the queue if there is none."""

    def bytes_between(self, topic: str, queue_id: int, start: int, end: int) -> int:
        """Bytes that the messages `[start, end)` take in the log."""

    def offset_after_bytes(self, topic: str, queue_id: int, start: int, end: int, limit_bytes: int) -> int:
        """The largest offset up to `end` so that `[start, offset)` takes `limit_bytes` or less."""

    def lost_offsets(self, topic: str, queue_id: int, start: int, end: int, *, tags: str | None) -> np.ndarray:
        """The messages `[start, end)` that cannot be read because the log lost its bytes: (n,) int64, ascending."""

    def read(
        self,
        topic: str,
        queue_id: int,
        start: int,
        end: int,
        *,
        columns: Sequence[str],
        tags: str | None,
        raw_body: bool,
        only: np.ndarray | None = None,
        two_threads: bool,
    ) -> Iterator[pa.RecordBatch]:
        """The messages `[start, end)`, in order; of these just the queue offsets `only`, (n,) int64, ascending.
        `two_threads`: a second one helps.
        """

    def redriven(self, group: str) -> Mapping[int, Redriven]:
        """Dead letters that were moved on, for each queue of `%DLQ%group`. `CorruptionError`: their record is damaged.
        """

    @property
    def query(self) -> Query:
        """Finds messages without reading all of them."""

    def pin(self, start_offset: int, end_offset: int) -> Pin:
        """Keep the commit-log offsets `[start_offset, end_offset)` from being deleted, as far as they are there."""

    def committed_offsets(self, group: str) -> Mapping[tuple[str, int], int]:
        """The offsets that the group has committed, by (topic, queue id)."""

    def all_committed_offsets(self) -> Mapping[str, Mapping[tuple[str, int], int]]:
        """The same of all groups that have committed something."""

    def groups(self) -> Mapping[str, object]:
        """The groups that have settings, by name."""

    def commit_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit these queues, leave the others as they are."""

    def lease(self, group: str, topic: str, owner: str) -> Lease:
        """Take the lease; `LeaseHeldError` names the holder."""

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
