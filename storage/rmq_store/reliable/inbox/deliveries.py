"""Deliveries of messages and rows as the kit needs them: id, place, retry, and what an answer acknowledges.

The fingerprint of a message tells it from another one with the same id. It is made of the body: retries, redrives,
resends and copies of mirrors keep that, compressed or not, and a message that was made of another one has a new one.

    b<hash>   of the body, as the message has it
    r<hash>   of the column `body` of rows that a program may have changed before it handed them to the kit
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from rmq_store.client import MessageExt
from rmq_store.errors import NoMessageIdError
from rmq_store.format.properties.new_message import OUTBOX_ID
from rmq_store.format.text.delay_levels import DELAY_LEVELS_MS, FIRST_RETRY_LEVEL, retry_delays_ms
from rmq_store.lazy.arrow_compute import pc
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.reliable.database.message_id import ID_PROPERTIES, UNIQUE_KEY, copied_id_of, message_id_of
from rmq_store.reliable.database.tables import MESSAGE_ID_CHARACTERS_MAX

RETRY_LADDER_MS: Final = retry_delays_ms(DELAY_LEVELS_MS)
"""RocketMQ's delays of the first, second, ... retry."""

OF_BODY: Final = "b"
OF_ROW: Final = "r"
_DIGEST_BYTES = 16
BROKER_CHOOSES: Final = 0
RETRY_TOPIC_PREFIX: Final = "%RETRY%"

Queue = tuple[str, str, int]
"""Broker name, topic, queue id."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of a message. `topic`, `queue_id`, `queue_offset`: the place of the delivered message; for a retry
    this is in the retry topic.

    `retry_ms`: the wait before its next delivery if this one fails. `is_last`: if this one fails, the message is dead.
    `fingerprint`: tells it from another message with its id; None: unknown. `copied_id`: the OUTBOX_ID of the message
    that it was made of, by which workers of version 1 know it.
    """

    message_id: str
    broker_name: str
    topic: str
    queue_id: int
    queue_offset: int
    reconsume_times: int
    retry_ms: int
    is_last: bool
    fingerprint: str | None = None
    copied_id: str | None = None

    def under_its_own_id(self) -> Delivery:
        """The same delivery under an id of the message's own, made of its id and its fingerprint: the id that it has is
        another message's.
        """
        return replace(self, message_id=own_id(self.message_id, self.fingerprint))

    @property
    def place(self) -> str:
        """The place of the delivered message, for people."""
        return f"offset {self.queue_offset} of queue {self.queue_id} of {self.topic} ({self.broker_name})"

    @property
    def is_first_delivery(self) -> bool:
        """True if it counts for the high-water mark: it is neither a retry, nor was it delivered before."""
        return self.reconsume_times == 0 and not self.topic.startswith(RETRY_TOPIC_PREFIX)

    @property
    def queue(self) -> Queue:
        """The queue that holds the delivered message."""
        return self.broker_name, self.topic, self.queue_id


def own_id(message_id: str, fingerprint: str | None) -> str:
    """The id of a message that has the id of another one."""
    own = f"{message_id}#{fingerprint}"
    if len(own) <= MESSAGE_ID_CHARACTERS_MAX:
        return own
    return f"{hashlib.blake2b(message_id.encode(), digest_size=16).hexdigest()}#{fingerprint}"


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


def delivery_of(message: MessageExt, topic: str, reconsume_times: int, retry: Retry) -> Delivery:
    """A delivery. `topic`: the topic that holds the message; for a retried message this is the retry topic.

    Raises:
        NoMessageIdError: it has no id of its own.
    """
    place = _address(message.broker_name, topic, message.queue_id, message.queue_offset)
    return Delivery(
        message_id_of(message.properties, place),
        message.broker_name,
        topic,
        message.queue_id,
        message.queue_offset,
        reconsume_times,
        retry.after_ms,
        retry.is_last,
        OF_BODY + _digest(message.body),
        copied_id_of(message.properties),
    )


def deliveries_of(
    batch: pa.RecordBatch, ids: Sequence[str | None], topic: str, ladder: Ladder, kind: str
) -> list[Delivery | None]:
    """The deliveries of a batch with the columns of `MessageListenerArrow`; None for a row without an id. `kind`: of
    the fingerprints.
    """
    columns = batch.select(["brokerName", "queueId", "queueOffset", "reconsumeTimes"])
    values = (column.to_pylist() for column in columns.columns)
    copied = (copied_id_of(properties) for properties in id_properties(batch.column("properties")))
    found: list[Delivery | None] = []
    for message_id, broker_name, queue_id, offset, times, fingerprint, copied_id in zip(
        ids, *values, fingerprints_of(batch, kind), copied, strict=True
    ):
        if message_id is None:
            found.append(None)
            continue
        retry = ladder.retry(times)
        found.append(
            Delivery(
                message_id, broker_name, topic, queue_id, offset, times, retry.after_ms, retry.is_last, fingerprint,
                copied_id,
            )
        )  # fmt: skip
    return found


def fingerprints_of(rows: pa.RecordBatch, kind: str) -> list[str | None]:
    """The fingerprint of each row's column `body`; None without it."""
    at = rows.schema.get_field_index("body")
    if at < 0 or not (pa.types.is_binary(rows.schema.types[at]) or pa.types.is_string(rows.schema.types[at])):
        return [None] * rows.num_rows
    bodies = (body.as_buffer() for body in rows.column(at))
    return [None if body is None else kind + _digest(body) for body in bodies]


def id_properties(properties: pa.MapArray) -> Iterator[dict[str, str]]:
    """Of the properties of each row those that tell its id, for `message_id_of` and `copied_id_of`."""
    names: tuple[str, ...] = (OUTBOX_ID, UNIQUE_KEY)
    columns = {name: pc.map_lookup(properties, pa.scalar(name, pa.string()), "first") for name in names}
    if pc.any(pc.not_equal(columns[OUTBOX_ID], columns[UNIQUE_KEY])).as_py():
        names = ID_PROPERTIES
        columns = {name: pc.map_lookup(properties, pa.scalar(name, pa.string()), "first") for name in names}
    for values in zip(*(columns[name].to_pylist() for name in names), strict=True):
        yield {name: value for name, value in zip(names, values, strict=True) if value is not None}


def _digest(body: bytes | pa.Buffer) -> str:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).hexdigest()


def message_ids_of(batch: pa.RecordBatch) -> tuple[list[str | None], NoMessageIdError | None]:
    """The id of each row of a batch with the columns of `MessageListenerArrow`, None for a row without one, and the
    error of the first of those.
    """
    ids: list[str | None] = []
    first_error: NoMessageIdError | None = None
    for row, properties in enumerate(id_properties(batch.column("properties"))):
        try:
            ids.append(message_id_of(properties, ""))
        except NoMessageIdError as error:
            ids.append(None)
            if first_error is None:
                names = ("brokerName", "topic", "queueId", "queueOffset")
                broker_name, topic, queue_id, offset = (batch.column(name)[row].as_py() for name in names)
                first_error = NoMessageIdError(_address(broker_name, topic, queue_id, offset) + str(error))
    return ids, first_error


def prefix_length(done: Sequence[bool]) -> int:
    """The number of items before the first one that is not done."""
    return next((index for index, is_done in enumerate(done) if not is_done), len(done))


def _address(broker_name: str, topic: str, queue_id: int, offset: int) -> str:
    return f"the message at offset {offset} of queue {queue_id} of {topic} ({broker_name})"
