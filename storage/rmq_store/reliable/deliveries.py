"""Ids of the rows of a batch, and what part of it an answer can acknowledge. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.errors import NoMessageIdError
from rmq_store.reliable.message_id import OUTBOX_ID, UNIQUE_KEY, message_id_of


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
            first_error = first_error or NoMessageIdError(_name(batch, row) + str(error))
    return ids, first_error


def first_rows(ids: Sequence[str | None]) -> dict[str, int]:
    """{id: the first row that has it}, in the order of the rows."""
    found: dict[str, int] = {}
    for row, message_id in enumerate(ids):
        if message_id is not None:
            found.setdefault(message_id, row)
    return found


def prefix_length(done: Sequence[bool]) -> int:
    """How many come before the first that is not done."""
    return next((index for index, is_done in enumerate(done) if not is_done), len(done))


def _name(batch: pa.RecordBatch, row: int) -> str:
    broker, topic, queue_id, offset = (
        batch.column(name)[row].as_py() for name in ("brokerName", "topic", "queueId", "queueOffset")
    )
    return f"the message at offset {offset} of queue {queue_id} of {topic} ({broker})"
