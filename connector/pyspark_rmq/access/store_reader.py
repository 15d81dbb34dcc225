"""Where the messages live: what sources ask of that place, and how they get there. Control plane.

Today the only home is a store in a directory. Nothing but this module and `sink_home` knows `path`; a cluster will be a
second home behind the same interface.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pyspark_rmq.access.spark_worker import spare_modules
from pyspark_rmq.access.store_pool import Place, kept
from pyspark_rmq.options.options import SourceOptions
from pyspark_rmq.position.position import Queue

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from rmq_store import Loss, StoreConfig

# How long a home stays open after a task that has read: micro-batches often follow each other.
_TASK_HOME_KEPT_S = 5.0

_FIRST_RETRY_LEVEL = 3


class Range(Protocol):
    """The messages of a queue that exist: `[min_offset, max_offset)`."""

    @property
    def min_offset(self) -> int:
        """The first queue offset that can be read."""

    @property
    def max_offset(self) -> int:
        """The queue offset that the next message will get."""


class Lease(Protocol):
    """The right of one process to consume a topic for a group; it ends with the process."""

    def heartbeat(self) -> bool:
        """Show that the holder still works; False if the lease is lost."""

    def held(self) -> bool:
        """Whether it is still ours."""

    def release(self) -> None:
        """Give it back."""


class Pin(Protocol):
    """What keeps retention from deleting messages; it ends with the process."""

    def release(self) -> None:
        """Let retention have them; may be called again."""


class Delivery(Protocol):
    """What a look at the waiting messages did."""

    @property
    def next_due_ms(self) -> int | None:
        """When the next one is due, perhaps already, by the home's clock; None: nothing waits."""


class Schedule(Protocol):
    """The messages that wait for their time."""

    def deliver_due(self, limit: int | None = None) -> Delivery:
        """Deliver what is due, `limit` messages or a few more; cheap if nothing is."""


class FoundRows(Protocol):
    """By queue id: queue offsets that were found, (n,) int64, and ranges of which only reading them tells."""

    @property
    def found(self) -> Mapping[int, np.ndarray]:
        """Ascending."""

    @property
    def untold(self) -> Mapping[int, Sequence[tuple[int, int]]]:
        """[start, end), ascending; nothing in them is in `found`."""


class Rows(Protocol):
    """What is found without reading all messages."""

    def find(
        self,
        topic: str,
        texts: Sequence[str],
        spans: Mapping[int, tuple[int, int]],
        by: Literal["key", "unique key", "id"],
    ) -> FoundRows:
        """The messages of some ranges (queue id -> [start, end)) with one of these keys, unique keys or ids."""


class Query(Protocol):
    """The home's index."""

    @property
    def rows(self) -> Rows:
        """Of queues."""


class Redriven(Protocol):
    """Offsets of one queue."""

    def contains(self, offsets: np.ndarray) -> np.ndarray:
        """Which of `offsets`, (n,) int64, are among them; (n,) bool."""


class Home(Protocol):
    """The part of `rmq_store.Store` that reading needs. Offsets are queue offsets unless a name says otherwise."""

    @property
    def identity(self) -> str:
        """What tells this home from another one; "" if it has no name of its own."""

    @property
    def clock(self) -> Callable[[], int]:
        """The home's clock, ms since the epoch."""

    @property
    def schedule(self) -> Schedule:
        """The waiting messages; only of a home that was opened to commit."""

    def refresh(self) -> None:
        """Look at what others have written since."""

    def unpin(self) -> None:
        """Keep nothing from retention until something is read again."""

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
        """Whether the log still ends there, as a look of a moment ago found; costs no system call. False is no
        answer.
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
        """Which dead letters in each queue of `%DLQ%group` were moved on. `CorruptionError`: that cannot be told."""

    @property
    def query(self) -> Query:
        """Finds messages without reading all of them."""

    def pin(self, start_offset: int, end_offset: int) -> Pin:
        """Keep the commit-log offsets `[start_offset, end_offset)` from being deleted, as far as they are there."""

    def committed_offsets(self, group: str) -> Mapping[tuple[str, int], int]:
        """What the group has committed."""

    def all_committed_offsets(self) -> Mapping[str, Mapping[tuple[str, int], int]]:
        """The same of all groups that have committed something."""

    def groups(self) -> Mapping[str, object]:
        """The groups that have settings, by name."""

    def commit_offsets(self, group: str, offsets: Mapping[Queue, int]) -> None:
        """Commit these queues, leave the others as they are."""

    def lease(self, group: str, topic: str, owner: str) -> Lease:
        """Take the lease; `LeaseHeldError` names the holder."""

    def close(self) -> None:
        """Let go of it."""

    def __enter__(self) -> Home: ...

    def __exit__(self, *exc_info: object) -> None: ...


def clock_of(path: str) -> Callable[[], int]:
    """The clock of the store at `path`, ms since the epoch: the machine's, but that of a test's store."""
    from rmq_store import store_clock

    return store_clock(path)


def open_to_read(options: SourceOptions) -> Home:
    """Open the home for reading; nothing on disk changes. Raises what `Store.open` raises."""
    from rmq_store import Store

    home: Any = Store.open(
        options.path,
        read_only=True,
        config=_settings(options),
        broker_name=options.broker_name,
        commit_log_paths=options.commit_log_paths,
    )
    return home  # type: ignore[no-any-return]


def _settings(options: SourceOptions) -> StoreConfig | None:
    if options.enable_lmq is None:
        return None
    from rmq_store import StoreConfig

    return StoreConfig(enable_lmq=options.enable_lmq)


def place_of(options: SourceOptions) -> Place:
    """Where the home is now. Taken before it is opened, it tells whether what was opened is still what is there."""
    return Place(Path(options.path))


def task_home(options: SourceOptions) -> AbstractContextManager[Home]:
    """The home, open for reading and up to date, in a task: its next one in this process gets the same."""
    spare_modules()
    key = ("read", options.path, options.broker_name, options.commit_log_paths, str(options.enable_lmq))
    return kept(key, Path(options.path), lambda: open_to_read(options), lambda _: _TASK_HOME_KEPT_S)


def open_to_watch(path: str) -> Home:
    """Open the home at `path` to look at it from time to time. Raises what `Store.open` raises."""
    from rmq_store import Store

    home: Any = Store.open(path, read_only=True)
    return home  # type: ignore[no-any-return]


def broker_backlog(path: str, commit_log_paths: str) -> Iterator[pa.RecordBatch]:
    """What only a broker delivers, as `Store.broker_backlog`. Raises what `Store.open` and `Store.read` raise."""
    from rmq_store import Store

    with Store.open(path, read_only=True, commit_log_paths=commit_log_paths) as store:
        yield from store.broker_backlog()


def open_to_commit(options: SourceOptions) -> Home:
    """Open the home for reading and for committing the offsets of `options.group`.

    Raises:
        ReadOnlyError: the place cannot be written; the message names the option that reads it nevertheless.
        StoreLockedError: a broker has the store open.
    """
    from rmq_store import ReadOnlyError, Store

    path = Path(options.path)
    if path.exists() and not os.access(path, os.W_OK):
        raise ReadOnlyError(
            f"{path} cannot be written, so group {options.group!r} cannot commit its offsets there; "
            "set commitOffsets=false to read without committing"
        )
    home: Any = Store.open(path, config=_settings(options), broker_name=options.broker_name)
    return home  # type: ignore[no-any-return]


def retry_max_times(path: str, group: str) -> int:
    """How often a message of the group comes back before it is a dead letter, if nobody asks for another number."""
    from rmq_store import Store, SubscriptionGroup

    with Store.open(path, read_only=True) as store:
        return (store.groups().get(group) or SubscriptionGroup(group)).retry_max_times


def retry_ladder_ms(path: str) -> tuple[int, ...]:
    """How long the first, second, ... retry of a message waits: the delay levels from the third on (3 +
    reconsumeTimes, SendMessageProcessor). The last one repeats.
    """
    from rmq_store import Store

    with Store.open(path, read_only=True) as store:
        levels_ms = store.config.delay_levels_ms()
    return levels_ms[_FIRST_RETRY_LEVEL - 1 :] or levels_ms[-1:]


def record_losses(path: str, losses: Sequence[Loss]) -> list[Loss]:
    """Add losses to the report of the home, and return the new ones. Raises what `rmq_store.record_losses` raises."""
    from rmq_store import record_losses

    return record_losses(path, losses)


def recorded_losses(path: str) -> list[Loss]:
    """What queries went on without. Raises what `Store.open` raises where no home is."""
    from rmq_store import Store, recorded_losses

    Store.open(path, read_only=True).close()
    return recorded_losses(path)


def is_consuming(path: str, group: str) -> bool:
    """Whether somebody holds a lease of the group now, as each stream does that commits for it."""
    from rmq_store import live_leases

    return bool(live_leases(path, group))
