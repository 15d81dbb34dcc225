"""Reads the dead letters of a group at a broker: pages of `%DLQ%group`, each letter with the id of its message."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rmq_store.client import Broker, MessageQueue, PullStatus
from rmq_store.errors import NoMessageIdError
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.reliable.database.message_id import message_id_of
from rmq_store.reliable.database.tables import MESSAGE_ID_CHARACTERS_MAX

PAGE_ROWS: Final = 256
"""Dead letters of one page, at most."""

_log = logging.getLogger(__name__)

# Properties that Spark and `rmq consume` write when they send a message back: why it failed.
_ERROR_CLASS, _ERROR_MESSAGE = "PYRMQ_ERROR_CLASS", "PYRMQ_ERROR_MESSAGE"
# The topic that a retried message came from (MessageConst.PROPERTY_RETRY_TOPIC).
_ORIGINAL_TOPIC = "RETRY_TOPIC"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter. `topic`: the topic in which the message failed. `stored_ms`: when the letter was stored, ms since
    1970. `detail`: one line for a person.
    """

    message_id: str
    topic: str
    queue: MessageQueue
    queue_offset: int
    reconsume_times: int
    stored_ms: int
    detail: str


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """`letters` have an id; the `message_id` of a `nameless` one is its place. Queue offsets [`begin`, `end`)."""

    letters: Sequence[DeadLetter]
    nameless: Sequence[DeadLetter]
    begin: int
    end: int


def count_gone(queue: MessageQueue, due: int, first: int) -> int:
    """The number of letters from offset `due` on that retention has deleted, as the first one is `first`; logs them."""
    gone = first - due
    if gone > 0:
        _log.warning(
            "%s queue %d at %s: %d dead letters were deleted before they were collected: collect more often, or "
            "keep them longer (fileReservedTime, rmq dlq archive)",
            queue.topic, queue.queue_id, queue.broker_name, gone,
        )  # fmt: skip
    return max(gone, 0)


def pages(group: str, broker: Broker, queue: MessageQueue, mark: int | None) -> Iterator[DeadLetterPage]:
    """The letters after queue offset `mark`, in order; None: all. Raises ClientError and CorruptionError."""
    last = broker.max_offset(queue)
    # A mark behind the end is of a topic that was deleted, or of another store: begin again.
    offset = broker.min_offset(queue) if mark is None or mark >= last else mark + 1
    if mark is not None and mark == last - 1:
        return
    while offset < last:
        pulled = broker.pull_batch(group, queue, offset, PAGE_ROWS)
        if pulled.status is PullStatus.OFFSET_ILLEGAL and pulled.next_begin_offset <= offset:
            return
        for batch in pulled.batches:
            for start in range(0, batch.num_rows, PAGE_ROWS):
                rows = batch.slice(start, PAGE_ROWS).drop_columns(["body"]).to_pylist()
                yield _page(queue, rows)
        if pulled.next_begin_offset <= offset:
            return
        offset = pulled.next_begin_offset


def _page(queue: MessageQueue, rows: Sequence[Mapping[str, Any]]) -> DeadLetterPage:
    letters: list[DeadLetter] = []
    nameless: list[DeadLetter] = []
    for row in rows:
        properties = dict(row["properties"])
        place = f"{queue.broker_name}/{queue.topic}/{queue.queue_id}/{row['queueOffset']}"
        try:
            message_id, kind = message_id_of(properties, place), letters
        except NoMessageIdError:
            message_id, kind = place[-MESSAGE_ID_CHARACTERS_MAX:], nameless
        kind.append(
            DeadLetter(
                message_id,
                properties.get(_ORIGINAL_TOPIC) or queue.topic,
                queue,
                row["queueOffset"],
                row["reconsumeTimes"],
                int(row["storeTimestamp"].timestamp() * 1000),
                _detail(queue, row, properties),
            )
        )
    return DeadLetterPage(letters, nameless, int(rows[0]["queueOffset"]), int(rows[-1]["queueOffset"]) + 1)


def _detail(queue: MessageQueue, row: Mapping[str, Any], properties: Mapping[str, str]) -> str:
    """The reason of the death, if it was recorded, and the place of the letter."""
    why = ": ".join(filter(None, (properties.get(_ERROR_CLASS), properties.get(_ERROR_MESSAGE))))
    origin = properties.get(_ORIGINAL_TOPIC)
    where = f"{queue.topic} queue {queue.queue_id} offset {row['queueOffset']} at {queue.broker_name}"
    parts = (why, f"from {origin}" if origin else "", f"reconsumeTimes {row['reconsumeTimes']}", f"in {where}")
    return ", ".join(filter(None, parts))
