"""Every error that the engine raises, and who is at fault.

    StoreError
    ├── UsageError              the caller: bad topic name, message too large, unknown option   (also ValueError)
    │   ├── UnknownTopicError   the caller named a topic that the store does not have
    │   ├── TopicKindError      the topic is kept in a way that is not read or written here: docs/stores.md
    │   ├── ReadOnlyError       the caller wrote to a store that was opened for reading
    │   ├── InvalidReceiptHandleError  the message was acknowledged, hidden anew or given out again
    │   ├── MarkerError         the caller repeats an older unit: rewound or copied checkpoint
    │   ├── NoMessageIdError    a message without an id of its own cannot be consumed once
    │   ├── SchemaMismatchError the tables of a database are not those of the kit            .differences
    │   └── HandlerTransactionError  a handler ended the transaction that its caller commits
    ├── ResponseError           what a broker answers with a code other than SUCCESS   .response_code .remark
    ├── NotAStoreError          the path is no RocketMQ store, or one that we must not touch    .path
    │   └── StoreKindError      a store of a kind that cannot be used so: docs/stores.md        .path .kind
    ├── StoreLockedError        a Java broker, or a stuck holder of one of our locks; retry      .pid
    ├── LeaseHeldError          another live member holds the lease                              .holder
    ├── StoreFullError          no space; nothing was written; retry after freeing some
    ├── StoreFailedError        an fsync or I/O error made further writes unsafe; reopen
    │   └── StoreReplacedError  the directory was moved, deleted or replaced while it was open   .path .moved_to
    ├── CorruptionError         bytes on disk contradict the format                    .path .offset .reason
    │   ├── CorruptRecordError  a message frame
    │   ├── CorruptQueueError   a consume queue entry
    │   ├── CorruptIndexError   a hash index file
    │   └── CorruptConfigError  a JSON, checkpoint or side file
    ├── StagingError            a staged file is missing or not what its task wrote; rerun the batch
    ├── DataLossError           a planned range is gone: retention, or another store             .ranges
    └── OffsetOutOfRangeError   the offset is not in the queue             .requested .minimum .maximum

All of them pickle with their fields, because Spark moves them between processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def _rebuild(cls: type[StoreError], message: str, fields: dict[str, Any]) -> StoreError:
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    error.__dict__.update(fields)
    return error


class StoreError(Exception):
    """Root of the tree; `retryable` says whether the same call may succeed later without a change by the caller."""

    retryable = False

    def __reduce__(self) -> tuple[Callable[..., StoreError], tuple[Any, ...]]:
        return _rebuild, (type(self), str(self), dict(self.__dict__))


class UsageError(StoreError, ValueError):
    """The caller asked for something that cannot be done; nothing was written."""


class UnknownTopicError(UsageError):
    """The store has no such topic."""


class TopicKindError(UsageError):
    """The store keeps this topic in a way (docs/stores.md) that is not read, or not written, here. Others can be used.
    """


class ReadOnlyError(UsageError):
    """A write on a store that was opened with `read_only=True`."""


class InvalidReceiptHandleError(UsageError):
    """A receipt handle that is void (RocketMQ's INVALID_RECEIPT_HANDLE): acknowledged, replaced, expired, or none."""


class MarkerError(UsageError):
    """A unit whose value is smaller than the newest one of its key: a rewound or copied checkpoint."""


class NoMessageIdError(UsageError):
    """The message has no id of its own, so that its duplicates cannot be recognised (`rmq_store.reliable`)."""


class SchemaMismatchError(UsageError):
    """A database does not have the tables of `rmq_store.reliable`, or others of their names."""

    def __init__(self, message: str, *, differences: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.differences = differences


class HandlerTransactionError(UsageError):
    """A handler committed or rolled back the transaction that it was given, or ran a statement that does so."""


class ResponseError(StoreError):
    """A request was refused as a broker refuses it: `response_code` and `remark` of the answer (ResponseCode.java)."""

    def __init__(self, response_code: int, remark: str) -> None:
        super().__init__(f"CODE: {response_code}  DESC: {remark}")
        self.response_code = response_code
        self.remark = remark


class NotAStoreError(StoreError):
    """`path` is not a RocketMQ store, or one that this version must not open."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


class StoreKindError(NotAStoreError):
    """The store at `path` is of a kind (docs/stores.md) that can be read only, or not at all. Nothing was changed."""

    def __init__(self, path: str, reason: str, kind: str) -> None:
        super().__init__(path, reason)
        self.kind = kind


class StoreLockedError(StoreError):
    """A lock was not free within its timeout; `pid` is its holder, or None if that could not be found out."""

    retryable = True

    def __init__(self, message: str, pid: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid


class LeaseHeldError(StoreError):
    """Another live member holds the lease; `holder` is what it wrote about itself."""

    def __init__(self, message: str, holder: str) -> None:
        super().__init__(message)
        self.holder = holder


class StoreFullError(StoreError):
    """The disk is full; nothing of this append is visible."""

    retryable = True


class StoreFailedError(StoreError):
    """A flush failed: what is on disk is unknown. Reads go on; writes are refused until the store was repaired."""


class StoreReplacedError(StoreFailedError):
    """The store that was opened at `path` is not there any more: it was moved (`moved_to`; None: that is not known), or
    deleted (""), and perhaps another one is there. What is at `path` now was not changed.
    """

    def __init__(self, path: str, reason: str, moved_to: str | None = None) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.moved_to = moved_to


class CorruptionError(StoreError):
    """Bytes on disk contradict the format: `path`, byte `offset` in it (or in the log), `reason`."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(f"{path}: at byte {offset}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason


class CorruptRecordError(CorruptionError):
    """A message frame."""


class CorruptQueueError(CorruptionError):
    """A consume queue entry."""


class CorruptIndexError(CorruptionError):
    """A hash index file."""


class CorruptConfigError(CorruptionError):
    """A JSON file, the checkpoint, or a side file under pyrmq/."""


class StagingError(StoreError):
    """A staged file is missing or differs from what its task reported; the whole commit was refused."""

    retryable = True


class DataLossError(StoreError):
    """Messages that were planned to be read are gone; `ranges` is [(topic, queue_id, start, end), ...]."""

    def __init__(self, message: str, ranges: list[tuple[str, int, int, int]]) -> None:
        super().__init__(message)
        self.ranges = ranges


class OffsetOutOfRangeError(StoreError):
    """`requested` is not in [`minimum`, `maximum`] of the queue."""

    def __init__(self, message: str, requested: int, minimum: int, maximum: int) -> None:
        super().__init__(message)
        self.requested = requested
        self.minimum = minimum
        self.maximum = maximum


class KafkaUnavailableError(StoreError):
    """Kafka's brokers do not answer, or not in time."""

    retryable = True


class KafkaRefusedError(StoreError):
    """Kafka's brokers refuse: rights, a setting, a group with members. `topics`: those it is about, if they say."""

    def __init__(self, message: str, topics: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.topics = frozenset(topics)


class KafkaOffsetError(StoreError):
    """Kafka has no such offset of a partition; `offsets` is {(topic, partition): offset}."""

    def __init__(self, message: str, offsets: dict[tuple[str, int], int]) -> None:
        super().__init__(message)
        self.offsets = offsets


class CorruptBatchError(StoreError):
    """A record batch that Kafka sent contradicts its format: base `offset`, `reason`, and `next_offset`, the one behind
    the batch, or None if the batch does not say. `partition` is (topic, partition), or None if that is not known.
    """

    def __init__(
        self, *, offset: int, reason: str, next_offset: int | None = None, partition: tuple[str, int] | None = None
    ) -> None:
        place = "" if partition is None else f" of partition {partition[1]} of topic {partition[0]}"
        super().__init__(f"the record batch at offset {offset}{place} is broken: {reason}")
        self.offset = offset
        self.reason = reason
        self.next_offset = next_offset
        self.partition = partition


class RecordTooLargeError(UsageError):
    """A record is larger than its Kafka topic takes; `row` is its place in the batch that was given."""

    def __init__(self, message: str, row: int) -> None:
        super().__init__(message)
        self.row = row


class RecordRefusedError(KafkaRefusedError):
    """Kafka's brokers refuse records, and always would: `rows` are their places among those that were added for
    `partition` (topic, number) in the transaction; empty if Kafka does not say. `reason` is Kafka's. Nothing was
    committed.
    """

    def __init__(self, message: str, partition: tuple[str, int], rows: list[int], reason: str) -> None:
        super().__init__(message)
        self.partition = partition
        self.rows = rows
        self.reason = reason


class MirrorConflictError(StoreError):
    """Another mirror of the same name writes to the same target; this one wrote nothing and has ended."""


class MirrorSourceError(StoreError):
    """The source of a mirror is not what it was: records are gone, it is shorter, or it was deleted and made again.
    `places`: {(topic, partition or queue id), ...}, as far as they are known.
    """

    def __init__(self, message: str, places: Iterable[tuple[str, int]] = ()) -> None:
        super().__init__(message)
        self.places = frozenset(places)


class MirrorLettersError(StoreError):
    """A mirror wrote more dead letters than it was allowed to: something is wrong with all records, or with a rule."""


class MirrorTargetError(StoreError):
    """The target of a mirror has lost what was mirrored to it: it ends earlier than it did, or was made again."""


class GroupInUseError(StoreError):
    """A group has members, so that nobody else may move its offsets."""
