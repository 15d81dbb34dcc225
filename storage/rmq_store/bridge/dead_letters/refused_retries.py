"""Records that Kafka does not take back from a retry: dead letters of their group in the store.

One unit holds the letters, and names the queue offsets of all that a transaction refused. So a repeated transaction
skips the same records, even if Kafka would accept them now.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from rmq_store.broker.rules import failure
from rmq_store.broker.store.store import Store
from rmq_store.errors import MirrorConflictError
from rmq_store.format.properties import property_string
from rmq_store.format.text import names

REFUSED_PURPOSE: Final = "kafka_retry"

# Properties that would make the copy wait once more.
_OF_THE_SCHEDULE: Final = (property_string.DELAY_TIME_LEVEL, property_string.REAL_TOPIC, property_string.REAL_QUEUE_ID)


class RefusedRetries:
    """The refused records of one group, in a store that is open for writing. Not safe for threads."""

    def __init__(self, store: Store, group: str) -> None:
        self._store = store
        self._group = group

    def known(self, rows: pa.RecordBatch) -> dict[int, str]:
        """Rows that became dead letters before a transaction that may have failed, with the reasons."""
        unit = self._store.newest_unit(REFUSED_PURPOSE, self._group)
        offsets = rows.column("queueOffset").to_numpy()
        known = [int(name[1:]) for name in unit.detail] if unit is not None else []
        places = np.flatnonzero(np.isin(offsets, np.array(known, np.int64)))
        return dict.fromkeys(places.tolist(), "")

    def store_letters(self, rows: pa.RecordBatch, unsuitable: dict[int, str]) -> None:
        """Store the rows that Kafka refuses as dead letters of the group, in a unit that names all of them."""
        new = [row for row in sorted(unsuitable) if row not in self.known(rows)]
        if not new:
            return
        topic = names.dlq_topic(self._group)
        self._store.create_topic(topic, 1, self._store.config.dlq_perm, exist_ok=True)
        letters = pa.RecordBatch.from_pylist(
            [_letter(rows.slice(row, 1), topic, unsuitable[row]) for row in new], _LETTER_SCHEMA
        )
        offsets = rows.column("queueOffset")
        before = self._store.last_unit(REFUSED_PURPOSE, self._group)
        appended = self._store.append_unit(
            [letters], purpose=REFUSED_PURPOSE, key=self._group, value=(before or 0) + 1, expect=before,
            detail={f"o{offsets[row].as_py()}": 1 for row in unsuitable}, keep_unique_key=True,
        )  # fmt: skip
        if appended is None:
            raise MirrorConflictError(f"another process returns records of group {self._group!r}; nothing was written")


def _letter(row: pa.RecordBatch, topic: str, reason: str) -> dict[str, object]:
    """One message as a dead letter, row of _LETTER_SCHEMA."""
    message = row.to_pylist()[0]
    added = {failure.KAFKA_LETTER: "rmq", failure.ERROR_CLASS: "KafkaRefused", failure.ERROR_MESSAGE: reason}
    own = {name: value for name, value in message["properties"] if name not in (*added, *_OF_THE_SCHEDULE)}
    return {
        "topic": topic, "queueId": 0, "body": message["body"], "bornTimestamp": message["bornTimestamp"],
        "reconsumeTimes": message["reconsumeTimes"], "properties": list({**own, **added}.items()),
    }  # fmt: skip


_LETTER_SCHEMA: Final = pa.schema([
    ("topic", pa.string()), ("queueId", pa.int32()), ("body", pa.binary()),
    ("bornTimestamp", pa.timestamp("us", tz="UTC")), ("reconsumeTimes", pa.int32()),
    ("properties", pa.map_(pa.string(), pa.string())),
])  # fmt: skip
