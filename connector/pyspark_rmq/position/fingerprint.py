"""Fingerprint of a stream position: commit-log offset and store time of the message before it. It detects a replaced or
rolled-back store. Control plane.

The commit-log offset alone is not enough. After a power cut, or in a copy that was appended to, another message of the
same size may be at the same offset. That message has another store time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from pyspark_rmq.position.queue_ids import broker_of

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from pyspark_rmq.position.position import Queue, StreamPosition
    from pyspark_rmq.position.queue_ids import QueueId


class Fingerprint(NamedTuple):
    """One message. `store_timestamp_ms` is None if retention deleted the message while the fingerprint was taken."""

    commit_log_offset: int
    store_timestamp_ms: int | None = None

    def may_be(self, other: Fingerprint) -> bool:
        """True if both can be the same message: equal offsets, and store times that are equal or unknown."""
        times = {self.store_timestamp_ms, other.store_timestamp_ms} - {None}
        return self.commit_log_offset == other.commit_log_offset and len(times) <= 1

    def __str__(self) -> str:
        stored = "" if self.store_timestamp_ms is None else f" (stored at {self.store_timestamp_ms} ms)"
        return f"commit-log offset {self.commit_log_offset}{stored}"


class FingerprintSource(Protocol):
    """The part of a store that fingerprints need."""

    def commit_log_offset_before(self, topic: str, queue_id: QueueId, queue_offset: int) -> int:
        """Commit-log offset of the message before `queue_offset`; -1 if it does not exist (any more)."""

    def store_timestamp(self, topic: str, queue_id: QueueId, queue_offset: int) -> int:
        """Time at which a message was stored, ms. Raises `OffsetOutOfRangeError` and `CorruptionError`."""

    def offset_by_time(self, topic: str, queue_id: QueueId, timestamp_ms: int) -> int:
        """Queue offset of the first message stored at `timestamp_ms` or later; the end of the queue if there is none.
        """


def fingerprint_before(source: FingerprintSource, queue: Queue, queue_offset: int) -> Fingerprint | None:
    """Fingerprint of the message before `queue_offset`. None if that message does not exist (any more), or is damaged:
    all messages of a lost range have the same commit-log offset, the start of the range.

    Raises `CorruptionError` if the queue itself is damaged.
    """
    from rmq_store.errors import CorruptRecordError, OffsetOutOfRangeError

    log_offset = source.commit_log_offset_before(*queue, queue_offset)
    if log_offset < 0:
        return None
    try:
        return Fingerprint(log_offset, source.store_timestamp(*queue, queue_offset - 1))
    except CorruptRecordError:
        return None
    except OffsetOutOfRangeError:  # retention takes it at this moment
        return Fingerprint(log_offset)


def stored_after(source: FingerprintSource, queue: Queue, fingerprint: Fingerprint) -> int | None:
    """Queue offset of the first message stored after that one, or the queue's end; None if it is unknown."""
    from rmq_store.errors import CorruptRecordError

    if fingerprint.store_timestamp_ms is None:
        return None
    try:
        return source.offset_by_time(*queue, fingerprint.store_timestamp_ms + 1)
    except CorruptRecordError:
        return None


def fingerprints_before(
    source: FingerprintSource,
    offsets: Mapping[Queue, int],
    known: StreamPosition,
    away: Container[str] = (),
    closed: Container[Queue] = (),
) -> dict[Queue, Fingerprint]:
    """`fingerprint_before` of each queue that has such a message. The store is not asked again about queues that did
    not move since `known`. Each broker of a cluster is asked about one queue that moved: that is a call, and a broker
    loses the end of its log for all of its queues. Brokers that are `away` are not asked, nor about queues that are
    `closed`, of which they refuse pulls, and what is known stays.
    """
    fingerprints: dict[Queue, Fingerprint] = {}
    asked_brokers: set[str] = set()
    for queue, offset in offsets.items():
        fingerprint = known.after.get(queue) if known.next.get(queue, known.closed.get(queue)) == offset else None
        if fingerprint is None or fingerprint.store_timestamp_ms is None:
            broker = broker_of(queue.queue_id)
            if broker is not None and broker in asked_brokers:
                continue
            if broker is None or (broker not in away and queue not in closed):
                fingerprint = fingerprint_before(source, queue, offset)
            if broker is not None and fingerprint is not None:
                asked_brokers.add(broker)
        if fingerprint is not None:
            fingerprints[queue] = fingerprint
    return fingerprints
