"""The list of dead letters that went back to Kafka. It is a topic of Kafka, written in the transaction that produced
them.

A compacted topic for each group, `__pyrmq.redriven.<group>`, with one partition; only transactions of the group's
transactional id write it. Key: the letter's UNIQ_KEY. It identifies the record in its topic of dead letters, whatever
store imported it, and however often. Value: JSON, for people.
"""

from __future__ import annotations

import json
import re
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.bridge.dead_letters.compacted_topic import CompactedTopic, keyed_records
from rmq_store.bridge.kafka.client import KafkaAdministration, KafkaReader, Partition
from rmq_store.lazy.arrow_compute import pc

_PREFIX: Final = "__pyrmq.redriven."


def topic_of(group: str) -> str:
    """The topic of a group. A character that Kafka's names cannot have becomes a dot and two hex digits."""
    return _PREFIX + escaped(group)


def transactional_id_of(group: str) -> str:
    """The transactional id for moving letters of this group back to Kafka: a second process fences the first."""
    return f"pyrmq.redrive.{escaped(group)}"


def escaped(group: str) -> str:
    """The name of a RocketMQ group as a part of a name in Kafka."""
    return re.sub(r"[^A-Za-z0-9_-]", lambda found: f".{ord(found[0]):02x}", group)


class RedrivenTopic:
    """The letters of one group that went back. Not safe for threads."""

    def __init__(self, administration: KafkaAdministration, reader: KafkaReader, group: str) -> None:
        self._topic = CompactedTopic(administration, reader, topic_of(group))
        self._group = group
        self._keys: pa.BinaryArray = pa.array([], pa.binary())

    @property
    def partition(self) -> Partition:
        """The partition of its records."""
        return self._topic.partition

    def make(self) -> None:
        """As `CompactedTopic.make`."""
        self._topic.make()

    def read(self) -> None:
        """Read which letters went back. Call it after the writer's first `begin`. Raises as `CompactedTopic.read`."""
        self._keys = pa.concat_arrays([self._keys, *(rows.column("key") for rows in self._topic.read())])

    def has(self, unique_keys: pa.StringArray) -> pa.BooleanArray:
        """bool (n,): True for letters that went back."""
        return pc.is_in(unique_keys.cast(pa.binary()), self._keys)

    def add(self, unique_keys: pa.StringArray) -> None:
        """Take in letters after a transaction with their `records` was committed."""
        self._keys = pa.concat_arrays([self._keys, unique_keys.cast(pa.binary())])

    def records(
        self, unique_keys: pa.StringArray, queue_id: int, queue_offsets: npt.NDArray[np.int64], now_ms: int
    ) -> pa.RecordBatch:
        """Records (RECORDS_SCHEMA) for the transaction that moves these letters."""
        values = [
            json.dumps({"group": self._group, "queue": queue_id, "offset": offset}).encode()
            for offset in queue_offsets.tolist()
        ]
        return keyed_records(unique_keys.cast(pa.binary()), pa.array(values, pa.binary()), now_ms)
