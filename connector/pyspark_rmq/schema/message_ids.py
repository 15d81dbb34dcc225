"""Ids of rows, by which `rmq_store.reliable` recognises a message that comes twice. Data plane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from rmq_store.errors import NoMessageIdError

# Columns that name a row's message in an error.
_NAMING_COLUMNS = {"storeTopic": "", "topic": "", "queueId": "queue ", "queueOffset": "offset ", "msgId": ""}


def message_ids(rows: pa.RecordBatch) -> list[str]:
    """The id of each row, from its column `properties`: OUTBOX_ID if it is the message's own, else UNIQ_KEY.

    Raises:
        NoMessageIdError: a message has neither; the error names it by those of the columns topic, queueId, queueOffset
            and msgId that are there.
    """
    ids = []
    for found in ids_or_errors(rows):
        if not isinstance(found, str):
            raise found
        ids.append(found)
    return ids


def ids_or_errors(rows: pa.RecordBatch) -> list[str | NoMessageIdError]:
    """As `message_ids`, but a row without an id has the error as its item; nothing is raised."""
    from rmq_store.errors import NoMessageIdError
    from rmq_store.reliable import id_properties, message_id_of

    ids: list[str | NoMessageIdError] = []
    for number, properties in enumerate(id_properties(rows.column("properties"))):
        try:
            ids.append(message_id_of(properties, ""))
        except NoMessageIdError as error:
            ids.append(NoMessageIdError(f"{_name_of(rows, number)}{error}"))
    return ids


def _name_of(rows: pa.RecordBatch, number: int) -> str:
    names = [name for name in _NAMING_COLUMNS if name in rows.schema.names]
    values: dict[str, Any] = {name: rows.column(name)[number].as_py() for name in names}
    if "storeTopic" in values:
        values.pop("topic", None)
    return "the message " + ", ".join(f"{_NAMING_COLUMNS[name]}{value}" for name, value in values.items())
