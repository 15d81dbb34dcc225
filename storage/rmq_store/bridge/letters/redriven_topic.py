"""Which dead letters went back to Kafka, kept in Kafka itself, in the transaction that produced them.

A compacted topic for each group, `__pyrmq.redriven.<group>`, of one partition; only transactions of the group's
transactional id write it. Key: the letter's UNIQ_KEY, which stands for the record in its topic of dead letters,
whatever store it was imported into, and how often. Value: JSON, for people.
"""

from __future__ import annotations

import json
import re
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.bridge.kafka.client import KafkaAdministration, KafkaReader, Partition, Position
from rmq_store.bridge.records.schema import CREATE_TIME, RECORDS_SCHEMA
from rmq_store.errors import KafkaUnavailableError, MirrorSourceError

_PREFIX: Final = "__pyrmq.redriven."
# Small segments: compaction leaves the newest one alone, and it is read at each start.
_SETTINGS: Final = {
    "cleanup.policy": "compact", "segment.bytes": str(16 << 20), "min.cleanable.dirty.ratio": "0.1",
}  # fmt: skip
_POLL_MS: Final = 1000
_EMPTY_POLLS_MAX: Final = 30


def topic_of(group: str) -> str:
    """The topic of a group; what Kafka's names cannot have is written as a dot and two hex digits."""
    return _PREFIX + _escaped(group)


def transactional_id_of(group: str) -> str:
    """The id of whoever moves letters of this group back to Kafka: a second one fences the first."""
    return f"pyrmq.redrive.{_escaped(group)}"


class RedrivenTopic:
    """The letters of one group that went back. Not safe for threads."""

    def __init__(self, administration: KafkaAdministration, reader: KafkaReader, group: str) -> None:
        self._administration = administration
        self._reader = reader
        self._group = group
        self.partition = Partition(topic_of(group), 0)
        self._keys: pa.BinaryArray = pa.array([], pa.binary())

    def make(self) -> None:
        """Make the topic, unless it is there. MirrorSourceError: it is, but Kafka deletes old records of it."""
        name = self.partition.topic
        self._administration.create_topic(name, 1, _SETTINGS)
        policy = self._administration.topic_settings(name).get("cleanup.policy")
        if policy != "compact":
            raise MirrorSourceError(
                f"Kafka's topic {name!r} has cleanup.policy={policy}, so that it forgets which letters went back; it "
                "must be compact"
            )

    def read(self) -> None:
        """Learn which letters went back: behind the writer's first `begin`, which settles what a killed one left.

        Raises:
            KafkaUnavailableError, KafkaRefusedError.
        """
        known = self._administration.topics([self.partition.topic])
        if not known:
            return
        start = self._reader.starts([self.partition])[self.partition]
        end = self._reader.stable_ends([self.partition])[self.partition]
        self._reader.assign({self.partition: Position(start)})
        found, at, empty_polls = [], start, 0
        while at < end:
            fetched = self._reader.poll(_POLL_MS).get(self.partition)
            if fetched is None:
                empty_polls += 1
                if empty_polls > _EMPTY_POLLS_MAX:
                    raise KafkaUnavailableError(f"Kafka's topic {self.partition.topic!r} cannot be read up to {end}")
                continue
            at, empty_polls = fetched.next_offset, 0
            found.append(fetched.rows.column("key"))
        self._keys = pa.concat_arrays([self._keys, *found])

    def has(self, unique_keys: pa.StringArray) -> pa.BooleanArray:
        """Which letters (n,) went back."""
        return pc.is_in(unique_keys.cast(pa.binary()), self._keys)

    def add(self, unique_keys: pa.StringArray) -> None:
        """They have: a transaction with their `records` was committed."""
        self._keys = pa.concat_arrays([self._keys, unique_keys.cast(pa.binary())])

    def records(
        self, unique_keys: pa.StringArray, queue_id: int, queue_offsets: np.ndarray, now_ms: int
    ) -> pa.RecordBatch:
        """Records (RECORDS_SCHEMA) for the transaction that moves these letters."""
        count = len(unique_keys)
        values = [
            json.dumps({"group": self._group, "queue": queue_id, "offset": offset}).encode()
            for offset in queue_offsets.tolist()
        ]
        columns = [
            pa.array(np.zeros(count, np.int64)), pa.array(np.full(count, now_ms, np.int64)),
            pa.array(np.full(count, CREATE_TIME, np.int8)), unique_keys.cast(pa.binary()),
            pa.array(values, pa.binary()), pa.array([[]] * count, RECORDS_SCHEMA.field("headers").type),
        ]  # fmt: skip
        return pa.RecordBatch.from_arrays(columns, schema=RECORDS_SCHEMA)


def _escaped(group: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", lambda found: f".{ord(found[0]):02x}", group)
