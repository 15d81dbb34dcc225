"""Deliveries of messages and rows as the kit needs them: id, place, retry, and what an answer acknowledges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from rmq_store.client import MessageExt
from rmq_store.errors import NoMessageIdError
from rmq_store.late.arrow_compute import pc
from rmq_store.late.dataclasses import dataclass
from rmq_store.reliable.database.message_id import OUTBOX_ID, UNIQUE_KEY, message_id_of
from rmq_store.reliable.inbox.receipts import Receipt

RETRY_LADDER_MS: Final = tuple(
    seconds * 1000 for seconds in (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)
"""RocketMQ's: messageDelayLevel from its third level on (3 + reconsumeTimes)."""

FIRST_RETRY_LEVEL: Final = 3
BROKER_CHOOSES: Final = 0


@dataclass(frozen=True, slots=True)
class Retry:
    """The consequence of a failure: the wait before the next delivery, or that there is none."""

    after_ms: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class Ladder:
    """The retries of a group. `steps_ms`: the waits before the first, second, ... retry; the last one repeats."""

    steps_ms: tuple[int, ...]
    max_reconsume_times: int

    def retry(self, reconsume_times: int) -> Retry:
        """The consequence of a failure of a message that was retried `reconsume_times` times."""
        step_ms = self.steps_ms[min(reconsume_times, len(self.steps_ms) - 1)]
        return Retry(step_ms, reconsume_times >= self.max_reconsume_times)

    def level_of(self, wait_ms: int) -> int:
        """The first delay level that is not shorter than `wait_ms`; `BROKER_CHOOSES` if there is none."""
        longer = (level for level, step_ms in enumerate(self.steps_ms, FIRST_RETRY_LEVEL) if step_ms >= wait_ms)
        return next(longer, BROKER_CHOOSES)


def receipt_of(message: MessageExt, topic: str, reconsume_times: int, retry: Retry) -> Receipt:
    """A delivery. `topic`: the topic that holds the message; for a retried message this is the retry topic.

    Raises:
        NoMessageIdError: it has no id of its own.
    """
    place = _address(message.broker_name, topic, message.queue_id, message.queue_offset)
    return Receipt(
        message_id_of(message.properties, place),
        message.broker_name,
        topic,
        message.queue_id,
        message.queue_offset,
        reconsume_times,
        retry.after_ms,
        retry.is_last,
    )


def receipts_of(batch: pa.RecordBatch, rows: dict[str, int], topic: str, ladder: Ladder) -> list[Receipt]:
    """The deliveries {id: row} of a batch with the columns of `MessageListenerArrow`."""
    columns = batch.select(["brokerName", "queueId", "queueOffset", "reconsumeTimes"])
    values = (column.to_pylist() for column in columns.take(pa.array(rows.values(), pa.int32())).columns)
    found = []
    for message_id, broker_name, queue_id, offset, times in zip(rows, *values, strict=True):
        retry = ladder.retry(times)
        found.append(Receipt(message_id, broker_name, topic, queue_id, offset, times, retry.after_ms, retry.is_last))
    return found


def message_ids_of(batch: pa.RecordBatch) -> tuple[list[str | None], NoMessageIdError | None]:
    """The id of each row of a batch with the columns of `MessageListenerArrow`, None for a row without one, and the
    error of the first of those.
    """
    properties = batch.column("properties")
    columns = [
        pc.map_lookup(properties, pa.scalar(name, pa.string()), "first").to_pylist() for name in (OUTBOX_ID, UNIQUE_KEY)
    ]
    ids: list[str | None] = []
    first_error: NoMessageIdError | None = None
    for row, (outbox_id, unique_key) in enumerate(zip(*columns, strict=True)):
        try:
            ids.append(message_id_of({OUTBOX_ID: outbox_id or "", UNIQUE_KEY: unique_key or ""}, ""))
        except NoMessageIdError as error:
            ids.append(None)
            if first_error is None:
                names = ("brokerName", "topic", "queueId", "queueOffset")
                broker_name, topic, queue_id, offset = (batch.column(name)[row].as_py() for name in names)
                first_error = NoMessageIdError(_address(broker_name, topic, queue_id, offset) + str(error))
    return ids, first_error


def first_rows(ids: Sequence[str | None]) -> dict[str, int]:
    """{id: the first row that has it}, in the order of the rows."""
    found: dict[str, int] = {}
    for row, message_id in enumerate(ids):
        if message_id is not None:
            found.setdefault(message_id, row)
    return found


def prefix_length(done: Sequence[bool]) -> int:
    """The number of items before the first one that is not done."""
    return next((index for index, is_done in enumerate(done) if not is_done), len(done))


def _address(broker_name: str, topic: str, queue_id: int, offset: int) -> str:
    return f"the message at offset {offset} of queue {queue_id} of {topic} ({broker_name})"
