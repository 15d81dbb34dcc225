"""The ids of rows, by which `rmq_store.reliable` recognises messages that come twice. Data plane."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

# What says which message a row is, for those who read an error.
_PLACE = {"storeTopic": "", "topic": "", "queueId": "queue ", "queueOffset": "offset ", "msgId": ""}


def message_ids(rows: pa.RecordBatch) -> list[str]:
    """The id of each row, from its column `properties`: OUTBOX_ID, else UNIQ_KEY.

    Raises:
        NoMessageIdError: a message has neither; the error names it by those of the columns topic, queueId, queueOffset
            and msgId that are there.
    """
    from rmq_store.errors import NoMessageIdError
    from rmq_store.reliable import OUTBOX_ID, UNIQUE_KEY, message_id_of

    properties = rows.column("properties")
    given = {name: pc.map_lookup(properties, pa.scalar(name), "first") for name in (OUTBOX_ID, UNIQUE_KEY)}
    # One of the two decides, so a row needs no dict of all its properties.
    names = pa.array(pc.if_else(pc.is_valid(given[OUTBOX_ID]), OUTBOX_ID, UNIQUE_KEY)).to_pylist()
    found = pc.coalesce(given[OUTBOX_ID], given[UNIQUE_KEY]).to_pylist()
    ids = []
    for number, (name, value) in enumerate(zip(names, found, strict=True)):
        known = {} if value is None else {name: value}
        try:
            ids.append(message_id_of(known, ""))
        except NoMessageIdError:
            ids.append(message_id_of(known, _name_of(rows, number)))
    return ids


def _name_of(rows: pa.RecordBatch, number: int) -> str:
    values: dict[str, Any] = {name: rows.column(name)[number].as_py() for name in _PLACE if name in rows.schema.names}
    if "storeTopic" in values:
        values.pop("topic", None)
    return "the message " + ", ".join(f"{_PLACE[name]}{value}" for name, value in values.items())
