"""Where the messages live: what the connector asks of that place, and how it gets there. Control plane.

Today the only home is a store in a directory. Nothing but this module knows `path`; a cluster will be a second home
behind the same interface.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pyspark_rmq.offsets import Queue
from pyspark_rmq.options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa


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


class Home(Protocol):
    """The part of `rmq_store.Store` that reading needs. Offsets are queue offsets unless a name says otherwise."""

    @property
    def identity(self) -> str:
        """What tells this home from another one; "" if it has no name of its own."""

    def refresh(self) -> None:
        """Look at what others have written since."""

    def topics(self) -> Mapping[str, object]:
        """All topics by name."""

    def queue_ranges(self, topic: str) -> Mapping[int, Range]:
        """The queues of a topic; `UnknownTopicError` if it does not exist."""

    def log_range(self) -> tuple[int, int]:
        """The commit-log offsets `[start, end)` that exist."""

    def commit_log_offset_before(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Commit-log offset of the message before `queue_offset`; -1 if it does not exist (any more)."""

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The first message stored at `timestamp_ms` or later; the end of the queue if there is none."""

    def bytes_between(self, topic: str, queue_id: int, start: int, end: int) -> int:
        """Bytes that the messages `[start, end)` take in the log."""

    def offset_after_bytes(self, topic: str, queue_id: int, start: int, end: int, limit_bytes: int) -> int:
        """The largest offset up to `end` so that `[start, offset)` takes `limit_bytes` or less."""

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
    ) -> Iterator[pa.RecordBatch]:
        """The messages `[start, end)`, in order."""

    def committed_offsets(self, group: str) -> Mapping[tuple[str, int], int]:
        """What the group has committed."""

    def commit_offsets(self, group: str, offsets: Mapping[Queue, int]) -> None:
        """Commit these queues, leave the others as they are."""

    def lease(self, group: str, topic: str, owner: str) -> Lease:
        """Take the lease; `LeaseHeldError` names the holder."""

    def close(self) -> None:
        """Let go of it."""

    def __enter__(self) -> Home: ...

    def __exit__(self, *exc_info: object) -> None: ...


def open_to_read(options: SourceOptions) -> Home:
    """Open the home for reading; nothing on disk changes. Raises what `Store.open` raises."""
    from rmq_store import Store

    home: Any = Store.open(options.path, read_only=True, broker_name=options.broker_name)
    return home  # type: ignore[no-any-return]


def open_to_commit(options: SourceOptions) -> Home:
    """Open the home for reading and for committing the offsets of `options.group`.

    Raises:
        ReadOnlyError: the place cannot be written; the message names the option that reads it nevertheless.
        StoreLockedError: a broker has the store open.
    """
    from rmq_store import Store
    from rmq_store.errors import ReadOnlyError

    try:
        home: Any = Store.open(options.path, broker_name=options.broker_name)
    except (PermissionError, ReadOnlyError) as error:
        raise ReadOnlyError(
            f"{options.path} cannot be written, so group {options.group!r} cannot commit its offsets there ({error}); "
            "set commitOffsets=false to read without committing"
        ) from error
    return home  # type: ignore[no-any-return]
