"""Windows of a store's queues: the messages that a mirror reads at once; detects a replaced store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import field

import pyarrow as pa

from rmq_store.bridge.positions.kafka_positions import Mark, QueuePosition
from rmq_store.bridge.source.message_source import MessageSource
from rmq_store.errors import CorruptionError, OffsetOutOfRangeError, StoreError
from rmq_store.lazy.dataclasses import dataclass


@dataclass(slots=True)
class QueueWindow:
    """Messages [start, stop) of a queue. `damaged`: the reason for each message that cannot be read, by queue offset.
    """

    queue_id: int
    start: int
    stop: int
    batches: list[pa.RecordBatch] = field(default_factory=list)
    damaged: dict[int, str] = field(default_factory=dict)


def changed(store: MessageSource, topic: str, queue_id: int, mark: Mark) -> str | None:
    """Why the queue is not the one in which `mark` was made; None if it is, or if the message at the mark is gone."""
    start, end = store.queue_range(topic, queue_id)
    if mark.next_offset > end:
        return f"it ends at {end}, and was copied to {mark.next_offset}"
    last = mark.next_offset - 1
    if mark.log_offset < 0 or last < start:
        return None
    try:
        found = mark_at(store, topic, queue_id, mark.next_offset)
    except (CorruptionError, OffsetOutOfRangeError):
        # A damaged message says nothing, and neither does one that retention takes now.
        return None
    if (found.stored_ms, found.log_offset) != (mark.stored_ms, mark.log_offset):
        return (
            f"message {last} was stored at {found.stored_ms} ms, byte {found.log_offset} of the log, "
            f"and the one that was copied at {mark.stored_ms} ms, byte {mark.log_offset}"
        )
    return None


def mark_at(store: MessageSource, topic: str, queue_id: int, next_offset: int) -> Mark:
    """The mark below `next_offset`, without a target. Raises OffsetOutOfRangeError and CorruptionError."""
    (entry,) = store.queue_entries(topic, queue_id, next_offset - 1, next_offset)
    stored_ms = store.store_timestamp(topic, queue_id, next_offset - 1)
    return Mark(next_offset, stored_ms, int(entry["commit_log_offset"]))


def mark_below(store: MessageSource, topic: str, queue_id: int, next_offset: int, target_end: int) -> Mark:
    """The mark below `next_offset`. It has no message if there is none, or none that can be read."""
    with contextlib.suppress(OffsetOutOfRangeError, CorruptionError):
        return mark_at(store, topic, queue_id, next_offset)._replace(target_end=target_end)
    return Mark(next_offset, target_end=target_end)


def common_place(store: MessageSource, topic: str, queue_id: int, position: QueuePosition) -> Mark | None:
    """The newest mark of `position` whose message the queue still has."""
    start, _ = store.queue_range(topic, queue_id)
    for mark in position.earlier:
        if mark.next_offset > start and changed(store, topic, queue_id, mark) is None:
            return mark
    return None


def read_window(
    store: MessageSource, topic: str, queue_id: int, start: int, limit_rows: int, limit_bytes: int
) -> QueueWindow:
    """Messages from `start` on, within these limits, but at least one if there is one. Damaged messages are named, and
    the others read. Raises OffsetOutOfRangeError if retention has deleted the first ones.
    """
    _, end = store.queue_range(topic, queue_id)
    stop = min(end, start + limit_rows)
    if stop > start:
        stop = store.offset_after_bytes(topic, queue_id, start, stop, limit_bytes)
    window = QueueWindow(queue_id, start, max(stop, start))
    for found in _readable(store, topic, queue_id, window.start, window.stop):
        if isinstance(found, pa.RecordBatch):
            window.batches.append(found)
        else:
            window.damaged.update(found)
    return window


def _readable(
    store: MessageSource, topic: str, queue_id: int, start: int, stop: int
) -> Iterator[pa.RecordBatch | dict[int, str]]:
    """Halves of a range that cannot be read are read one by one."""
    if start >= stop:
        return
    try:
        batches = list(store.read(topic, queue_id, start, stop))
    except CorruptionError as error:
        if stop - start == 1:
            yield {start: _reason(error)}
            return
        middle = (start + stop) // 2
        yield from _readable(store, topic, queue_id, start, middle)
        yield from _readable(store, topic, queue_id, middle, stop)
        return
    yield from batches


def _reason(error: StoreError) -> str:
    return f"the message is damaged in the store: {error}"
