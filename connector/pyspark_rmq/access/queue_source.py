"""`QueueSource`: the interface of a place of messages for readers, and capabilities that only some have. Control plane.

    QueueSource     a store and a cluster have all of it: `store_reader.StoreReader`, `cluster_reader.ClusterReader`
    Pins            messages can be kept from retention while they are read
    Sizes           the bytes of messages are known before they are read
    LostOffsets     the queues tell which messages the log has lost
    DelayedMessages what is delayed is delivered by whoever reads
    Brokers         the messages are at brokers, which may be away

A capability is an interface, as in Spark's own sources (`SupportsTriggerAvailableNow`): readers ask for it with
`isinstance`, and never on which side they are. `store_location` knows that, and opens a `QueueSource` there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self, TypeVar, runtime_checkable

from pyspark_rmq.position.planning import QueueSlice, Range
from pyspark_rmq.position.position import Queue
from pyspark_rmq.position.queue_ids import QueueId

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from rmq_store.cluster import KnownRoutes

Planned = TypeVar("Planned")


@dataclass(frozen=True, slots=True, eq=False)
class SliceRead:
    """A read of a slice: its messages, and the form of the result. All layers of a task pass it on.

    `columns` are those of the engine, in the order of the result. `tags` is a tag expression; None: all messages.
    Bodies are decompressed unless `raw_body`. `only`: of the slice just these queue offsets, (n,) int64, ascending.
    """

    part: QueueSlice
    columns: Sequence[str]
    tags: str | None = None
    raw_body: bool = False
    only: np.ndarray | None = None


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


class Redriven(Protocol):
    """The queue offsets of the dead letters of one queue that were redriven."""

    def contains(self, offsets: np.ndarray) -> np.ndarray:
        """Mask (n,) bool: True for each of `offsets`, (n,) int64, that was redriven."""


class QueueSource(Protocol):
    """Queues, their messages, and the groups that read them. Offsets are queue offsets unless a name says otherwise."""

    second_read_is_cheap: bool
    """Whether it costs less to read a few messages again than to decode large columns of all of them."""

    @property
    def identity(self) -> str:
        """Identity of the store, from its creation; "" for a store that a broker made."""

    @property
    def clock(self) -> Callable[[], int]:
        """The clock of the messages, ms since the epoch."""

    def refresh(self) -> None:
        """See the appends and changes of other processes since the last call."""

    def version(self) -> Hashable:
        """Another value after each change of topics' queues that `refresh` has found."""

    def is_still(self, version: Hashable) -> bool:
        """Cheap, without a system call or a request. True: nothing has changed since that version. False: unknown, call
        `refresh` and `version`.
        """

    def topics(self) -> Mapping[str, object]:
        """All topics of the table by name; the same object as long as nothing changed."""

    def find_topic(self, name: str) -> object | None:
        """The topic of exactly this name, also if it has queues but is not in the table; None if there is none."""

    def unlisted_topics(self) -> Mapping[str, object]:
        """Topics that have queues but are not in the table, by name."""

    def queue_ranges(self, topic: str) -> Mapping[QueueId, Range]:
        """The queues of a topic that may be read, with their ranges. Raises `UnknownTopicError` if the topic does not
        exist.
        """

    def ranges(self, queues: Iterable[Queue]) -> Mapping[Queue, Range]:
        """The ranges of queues that a reader knows already, also of queues that are not open for reading; an empty
        range of one that was never used. A queue without an entry has no range now: nobody has reported it, so nothing
        may be concluded about its messages.
        """

    def commit_log_offset_before(self, topic: str, queue_id: QueueId, queue_offset: int) -> int:
        """Commit-log offset of the message before `queue_offset`; -1 if it does not exist (any more)."""

    def store_timestamp(self, topic: str, queue_id: QueueId, queue_offset: int) -> int:
        """Time at which a message was stored, ms. Raises `OffsetOutOfRangeError` and `CorruptRecordError`."""

    def offset_by_time(self, topic: str, queue_id: QueueId, timestamp_ms: int) -> int:
        """Queue offset of the first message stored at `timestamp_ms` or later; the end of the queue if there is none.
        """

    def offsets_by_time(self, times_ms: Mapping[Queue, int]) -> dict[Queue, int]:
        """Of each queue the first offset that was stored at its time (ms since the epoch) or later, or its end. No
        other queue is asked for.
        """

    def read_slice(self, wanted: SliceRead) -> Iterator[pa.RecordBatch]:
        """Yield the messages in order, as record batches. Raises `OffsetOutOfRangeError` and `CorruptionError`."""

    def redriven_of(self, group: str, queue_id: QueueId) -> Redriven | None:
        """The dead letters of a queue of `%DLQ%group` that were redriven; None: none were. Raises `CorruptionError` if
        the ledger is damaged.
        """

    def find(
        self,
        topic: str,
        texts: Sequence[str],
        spans: Mapping[QueueId, tuple[int, int]],
        by: Literal["key", "unique key", "id"],
    ) -> FoundRows:
        """Look up the messages in `spans` (queue id -> [start, end)) that have one of `texts` as key, unique key or id.
        `StoreLocation.index_is_exact` says what an answer is worth.
        """

    def known_groups(self) -> Collection[str]:
        """The groups that have settings or offsets."""

    def starts_at_first_message(self, group: str, queue: Queue, max_offset: int) -> bool:
        """Whether a group without an offset begins at the first message of the queue, because the queue is young
        (`rmq_store.starts_at_first_message`). Ask only for a queue whose first message is still there.
        """

    def committed_offsets(self, group: str) -> Mapping[tuple[str, QueueId], int]:
        """The offsets that the group has committed, by (topic, queue id)."""

    def commit_offsets(self, group: str, offsets: Mapping[tuple[str, QueueId], int]) -> None:
        """Commit the offsets of these queues; those of other queues stay."""

    def lease(self, group: str, topic: str, owner: str) -> Lease:
        """Take the lease of a topic for a group. Raises `LeaseHeldError`, which names the holder."""

    def close(self) -> None:
        """Let go of the place; may be called again."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class Pins(Protocol):
    """Messages can be kept from retention."""

    def pin(self, start_offset: int, end_offset: int) -> Pin:
        """Keep retention from deleting the commit-log offsets `[start_offset, end_offset)`, as far as they still exist.
        """

    def unpin(self) -> None:
        """Release the files that reading has pinned against retention; the next read pins again."""


@runtime_checkable
class Sizes(Protocol):
    """The bytes of messages are known before they are read."""

    def bytes_between(self, topic: str, queue_id: QueueId, start: int, end: int) -> int:
        """Size in the log of the messages `[start, end)`, in bytes."""

    def offset_after_bytes(self, topic: str, queue_id: QueueId, start: int, end: int, limit_bytes: int) -> int:
        """The largest offset up to `end` for which `[start, offset)` takes at most `limit_bytes` in the log."""


@runtime_checkable
class LostOffsets(Protocol):
    """The queues tell which messages the log has lost."""

    def lost_offsets(self, topic: str, queue_id: QueueId, start: int, end: int, *, tags: str | None) -> np.ndarray:
        """Queue offsets, (n,) int64, ascending, of the messages `[start, end)` that cannot be read because the log lost
        their bytes.
        """


@runtime_checkable
class DelayedMessages(Protocol):
    """Delayed messages wait here until somebody delivers them. Only of a source that may commit."""

    def deliver_due(self, limit: int | None) -> int | None:
        """Deliver the messages that are due, at most `limit` or a few more. Cheap if none is due. Returns the due time
        of the next one, by the clock of the messages; it may have passed. None: none is left.
        """


@runtime_checkable
class Runs(Protocol):
    """The runs of a query are known to each other, whatever process they are."""

    def runs_of(self, query: str) -> None:
        """Leases from now on are those of a run of this query. Its earlier runs are waited for, if they may have ended.
        """


@runtime_checkable
class Brokers(Protocol):
    """The messages are at brokers, which may be away."""

    def planned(self, plan: Callable[[], Planned]) -> Planned:
        """The result of `plan`, which asks through this source. It begins again if a broker goes while it runs: so it
        must be one that may be repeated.
        """

    def away(self) -> Mapping[str, Exception]:
        """The brokers that have not answered in the plan of now, each with the reason. None of their queues has a range
        in it.
        """

    def untold(self, queues: Iterable[Queue]) -> set[Queue]:
        """Those of the queues of which nothing is known in the plan of now: their brokers are away, or no name server
        shows them with the topic yet. They are not empty, not closed, not deleted. Nobody is asked: `ranges` has asked.
        """

    def newest_read(self, offsets: Mapping[Queue, int]) -> Collection[Queue]:
        """Of queues that are read up to these offsets, those that have the newest message of their brokers. A broker
        loses the end of its log, so they tell of any loss. None of brokers that are away.
        """

    def require_brokers(self, names: Sequence[str], topics: Collection[str]) -> None:
        """Return if these brokers are there. `topics` are those that are read. Raises `BrokerAwayError`."""

    def known_brokers(self, queues: Iterable[Queue]) -> Mapping[QueueId, KnownRoutes]:
        """By queue id the addresses of its broker, as far as they are known here: for the tasks that read it. Nobody is
        asked.
        """

    def take_over(self, known: KnownRoutes) -> None:
        """Find brokers by what another process knew a moment ago, until the name servers tell more."""

    def awaits_registrations(self, topics: Collection[str]) -> bool:
        """Whether the name servers have just begun, and nobody can tell of these topics until brokers register. Only of
        one that starts, and for 65 s at most.
        """

    def missing_brokers(self, known: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
        """By topic the brokers that are away: that had queues of it, as `known`, this process or a name server say, and
        that no name server has among its brokers now.
        """


def held(store: QueueSource, queues: Iterable[Queue]) -> set[Queue]:
    """Those of the queues of which nothing is known now: their positions are held (`Brokers.untold`)."""
    return store.untold(queues) if isinstance(store, Brokers) else set()
