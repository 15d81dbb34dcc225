"""Every error that the engine raises, and who is at fault.

    StoreError
    ├── UsageError              the caller: bad topic name, message too large, unknown option   (also ValueError)
    │   ├── UnknownTopicError   the caller named a topic that the store does not have
    │   ├── TopicKindError      the topic's form of storage is not read or written here: docs/stores.md
    │   ├── ReadOnlyError       the caller wrote to a store that was opened for reading
    │   ├── InvalidReceiptHandleError  the message was acknowledged, got a new handle, or is available again
    │   ├── MarkerError         the caller repeats an older unit: rewound or copied checkpoint
    │   ├── NoMessageIdError    a message without an id of its own cannot be consumed once
    │   ├── SchemaMismatchError the tables of a database are not those of the kit            .differences
    │   └── HandlerTransactionError  a handler ended the transaction that its caller commits
    ├── ResponseError           what a broker answers with a code other than SUCCESS   .response_code .remark
    ├── NotAStoreError          the path is no RocketMQ store, or one that must not be opened   .path
    │   └── StoreKindError      this kind of store does not allow the operation: docs/stores.md .path .kind
    ├── StoreLockedError        a Java broker or another process holds the lock; retry           .pid
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
    ├── ReplicaDivergedError    a replica does not continue its master's log    .replica_range .master_range
    ├── MasterTransferError     what a master sends over its HA port is no log, or not the next part of it
    ├── OffsetOutOfRangeError   the offset is not in the queue             .requested .minimum .maximum
    ├── KafkaUnavailableError   Kafka does not answer in time; retry
    ├── KafkaRefusedError       Kafka refuses: rights, a setting, a group with members           .topics
    ├── KafkaOffsetError        Kafka does not have this offset                                  .offsets
    ├── CorruptBatchError       a record batch of Kafka contradicts its format         .offset .reason .partition
    ├── MirrorConflictError     another mirror of the same name runs
    ├── MirrorSourceError       the source of a mirror lost records, or was replaced             .places
    ├── MirrorTargetError       the target of a mirror lost records, or was replaced
    ├── MirrorLettersError      a mirror made more dead letters than allowed
    └── GroupInUseError         the group has members; stop them first

RecordTooLargeError (.row) is a UsageError, RecordRefusedError (.partition .rows .reason) a KafkaRefusedError.

All of them pickle with their fields, because Spark moves them between processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

# Names that are compared with a misspelled one: an error about one of many thousands comes without a hint, but at once.
_COMPARED_MAX: Final = 5000


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that is most like `name`, in any case of letters, which somebody may have meant. None: none is
    like it by `cutoff` (0 to 1).
    """
    from difflib import get_close_matches  # no caller at work needs it

    by_lower = {each.lower(): each for each in islice(known, _COMPARED_MAX)}
    near = get_close_matches(name[:255].lower(), by_lower, 1, cutoff)
    return by_lower[near[0]] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: "; did you mean 'Orders'?", or "" if no known name is like it."""
    meant = nearest(name, known)
    return "" if meant is None else f"; did you mean {meant!r}?"


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
    """The topic's form of storage (docs/stores.md) is not read, or not written, here. Other topics can be used."""


class ReadOnlyError(UsageError):
    """A write on a store that was opened with `read_only=True`."""


class InvalidReceiptHandleError(UsageError):
    """A receipt handle is not valid (RocketMQ's INVALID_RECEIPT_HANDLE): used, replaced, expired, or malformed."""


class MarkerError(UsageError):
    """A unit whose value is smaller than the newest one of its key: a rewound or copied checkpoint."""


class NoMessageIdError(UsageError):
    """The message has no id of its own, so that its duplicates cannot be recognised (`rmq_store.reliable`)."""


class SchemaMismatchError(UsageError):
    """The tables of a database differ from those of `rmq_store.reliable`: `differences` names each difference."""

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


def development_version(path: object, what: str, advice: str) -> NotAStoreError:
    """The refusal of a format that no released version has written: `what` names the format, `advice` the way out."""
    return NotAStoreError(str(path), f"written by a development version of pyspark-rmq ({what}): {advice}")


REPAIR_MOVES_IT_AWAY = "run `rmq repair` on the store: it moves the file away, and the next writer makes a new one"


class StoreKindError(NotAStoreError):
    """The store at `path` is of a kind (docs/stores.md) that can be read only, or not at all. Nothing was changed."""

    def __init__(self, path: str, reason: str, kind: str) -> None:
        super().__init__(path, reason)
        self.kind = kind


class StoreLockedError(StoreError):
    """A lock was not free within its timeout; `pid` is the process that holds it, or None if unknown."""

    retryable = True

    def __init__(self, message: str, pid: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid


class LeaseHeldError(StoreError):
    """Another running member holds the lease; `holder` is its own description (name, host, process)."""

    def __init__(self, message: str, holder: str) -> None:
        super().__init__(message)
        self.holder = holder


class StoreFullError(StoreError):
    """The disk is full; nothing of this append is visible."""

    retryable = True


class StoreFailedError(StoreError):
    """A flush failed: it is unknown which bytes are on disk. Reads continue. Writes are refused until every process has
    closed the store; the next opening for writing recovers it.
    """


class StoreReplacedError(StoreFailedError):
    """The store that was opened at `path` is gone: it was moved (`moved_to`; None if unknown) or deleted ("").
    If another store is at `path` now, it was not changed.
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


class ReplicaDivergedError(StoreError):
    """A replica and its master do not have one log: the master is shorter, has other bytes at the same offset, or has
    deleted what comes next. Nothing was changed. `replica_range` and `master_range`: which bytes each has, half open.
    """

    def __init__(self, message: str, replica_range: tuple[int, int], master_range: tuple[int, int]) -> None:
        super().__init__(message)
        self.replica_range = replica_range
        self.master_range = master_range


class MasterTransferError(StoreError):
    """A master sent bytes over its HA port that are no transfer, or no records of a log. Nothing of them counts."""


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
    """Kafka's brokers refuse: rights, a setting, a group with members. `topics`: the affected topics, if known."""

    def __init__(self, message: str, topics: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.topics = frozenset(topics)


class KafkaOffsetError(StoreError):
    """Kafka has no such offset of a partition; `offsets` is {(topic, partition): offset}."""

    def __init__(self, message: str, offsets: dict[tuple[str, int], int]) -> None:
        super().__init__(message)
        self.offsets = offsets


class CorruptBatchError(StoreError):
    """A record batch that Kafka sent contradicts its format: base `offset`, `reason`, and `next_offset`, the first
    offset after the batch, or None if unknown. `partition` is (topic, partition), or None if unknown.
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
    """A record is larger than its Kafka topic allows; `row` is its index in the given batch."""

    def __init__(self, message: str, row: int) -> None:
        super().__init__(message)
        self.row = row


class RecordRefusedError(KafkaRefusedError):
    """Kafka's brokers refuse records permanently. `rows` are their indices among the records added for `partition`
    (topic, number) in the transaction; empty if Kafka does not name them. `reason` is Kafka's. Nothing was committed.
    """

    def __init__(self, message: str, partition: tuple[str, int], rows: list[int], reason: str) -> None:
        super().__init__(message)
        self.partition = partition
        self.rows = rows
        self.reason = reason


class MirrorConflictError(StoreError):
    """Another mirror of the same name writes to the same target; this one wrote nothing and has ended."""


class MirrorSourceError(StoreError):
    """The source of a mirror changed: records are gone, it is shorter, or it was deleted and made again.
    `places`: {(topic, partition or queue id), ...}, as far as known.
    """

    def __init__(self, message: str, places: Iterable[tuple[str, int]] = ()) -> None:
        super().__init__(message)
        self.places = frozenset(places)


class MirrorLettersError(StoreError):
    """A mirror wrote more dead letters than allowed: perhaps all records, or a rule of the mirror, are wrong."""


class MirrorTargetError(StoreError):
    """The target of a mirror has lost mirrored records: it ends earlier than before, or was made again."""


class GroupInUseError(StoreError):
    """A group has members, so its offsets cannot be moved: the members would overwrite them."""
