"""Finds all copies of messages in a store.

Every copy of a message keeps its UNIQ_KEY, so one look-up in the index per topic finds all of them, for many messages
at once. If the index cannot answer (there is none, it is incomplete, or a message has no UNIQ_KEY), the queues that
hold copies are read instead, at most `scan_max` messages of them. UNIQ_KEY and ORIGIN_MESSAGE_ID then show which belong
to a message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from rmq_store.broker.rules.timer import TIMER_QUEUES
from rmq_store.errors import UsageError
from rmq_store.format.frames.stored_message import StoredMessage
from rmq_store.format.properties import property_string as keys
from rmq_store.format.text import names
from rmq_store.lazy.arrow_compute import pc

if TYPE_CHECKING:
    from rmq_store.broker.store.store import Store

# Copies of one message that are shown; a message with all its retries has 34.
_RECORDS_MAX = 1000

DELAY_TOPICS = (names.SCHEDULE_TOPIC, names.TIMER_TOPIC, names.PYRMQ_TIMER_TOPIC, names.HALF_TOPIC)
"""The topics in which messages wait before they are stored in their own topic."""


class Copies:
    """Finds records in one open store. The second value of each result is True if it is complete."""

    def __init__(self, store: Store, scan_max: int) -> None:
        self._store = store
        self._scan_max = scan_max
        self._topics = sorted({*store.topics(), *DELAY_TOPICS})
        self._retries = [name for name in self._topics if name.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX))]

    def by_key(self, topic: str, key: str) -> list[StoredMessage]:
        """The newest 64 records with a key of each topic that may have a copy of a message of `topic`; of the other
        topics only the copies. Raises as `Query.by_key`.
        """
        found = self._store.query.by_key(topic, key)
        for name in (*DELAY_TOPICS, *self._retries):
            if name != topic:
                with_key = self._store.query.by_key(name, key)
                found += [one for one in with_key if topic in original_topics(one.properties)]
        return found

    def by_index(self, unique_keys: Sequence[str]) -> tuple[list[StoredMessage], bool]:
        """The records with these UNIQ_KEYs. UsageError, CorruptIndexError: the index cannot answer; see `scan`."""
        tables = [self._store.query.find(name, unique_keys, unique=True) for name in self._topics]
        offsets: dict[str, list[int]] = {}
        for table in tables:
            for key, offset in zip(table["key"].to_pylist(), table["commit_log_offset"].to_pylist(), strict=True):
                offsets.setdefault(key, []).append(offset)
        complete = all(len(of_key) <= _RECORDS_MAX for of_key in offsets.values())
        return [
            self._store.message_at(offset) for of_key in offsets.values() for offset in sorted(of_key)[:_RECORDS_MAX]
        ], complete

    def scan(
        self, unique_keys: Sequence[str], origins: Sequence[str], topic: str | None, begin_ms: int
    ) -> tuple[list[StoredMessage], bool]:
        """The copies in delay, retry and dead-letter topics (and in `topic`), and the originals that they name."""
        found: set[int] = set()
        left = self._scan_max
        for name in dict.fromkeys([*([topic] if topic else []), *self._retries, *DELAY_TOPICS]):
            for queue_id in self._queue_ids(name):
                first, last = self._store.queue_range(name, queue_id)
                start = self._store.offset_by_time(name, queue_id, begin_ms) if first < last and begin_ms else first
                for batch in self._read(name, queue_id, start, min(last, start + left)):
                    found.update(_own(batch, unique_keys, origins))
                left -= max(min(last - start, left), 0)
        complete = left > 0 and len(found) <= _RECORDS_MAX
        records = [self._store.message_at(offset) for offset in sorted(found)[:_RECORDS_MAX]]
        named = {record.properties.get(keys.ORIGIN_MESSAGE_ID, "") for record in records}
        originals = (self.original(origin) for origin in named - {record.offset_msg_id for record in records})
        return [*records, *(record for record in originals if record is not None)], complete

    def _read(self, topic: str, queue_id: int, start: int, end: int) -> Iterable[pa.RecordBatch]:
        if start >= end:
            return []
        return self._store.read(topic, queue_id, start, end, columns=["commitLogOffset", "msgId", "properties"])

    def _queue_ids(self, topic: str) -> Iterable[int]:
        config = self._store.find_topic(topic)
        return range(config.read_queue_nums if config else TIMER_QUEUES)

    def original(self, origin: str) -> StoredMessage | None:
        """The record that an ORIGIN_MESSAGE_ID names; None if it is gone, or if a client wrote its unique id there."""
        try:
            return self._store.query.by_offset_id(origin)
        except UsageError:
            return None


def original_topics(properties: Mapping[str, str]) -> set[str]:
    """The topics that the properties of a copy name: of the message that waits, and of the one that failed."""
    named = (keys.REAL_TOPIC, keys.RETRY_TOPIC, keys.DLQ_ORIGIN_TOPIC)
    return {properties[one] for one in named if one in properties}


def _own(batch: pa.RecordBatch, unique_keys: Sequence[str], origins: Sequence[str]) -> list[int]:
    """Commit-log offsets of the rows that belong to a message."""
    origin = pc.map_lookup(batch.column("properties"), pa.scalar(keys.ORIGIN_MESSAGE_ID), "first")
    wanted = pa.array([*unique_keys, *origins], pa.string())
    is_own = pc.or_(pc.is_in(batch.column("msgId"), wanted), pc.is_in(origin, wanted))
    offsets: list[int] = batch.column("commitLogOffset").filter(is_own).to_pylist()
    return offsets
