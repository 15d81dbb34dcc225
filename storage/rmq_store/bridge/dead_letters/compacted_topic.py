"""A compacted topic of one partition, in which a transactional writer records its progress.

Only transactions of one transactional id write it. The first `begin` of that id ends the transaction of a killed
process. From then on the stable end of the topic is its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from rmq_store.bridge.kafka.client import KafkaAdministration, KafkaReader, Partition, Position
from rmq_store.bridge.record_batches.schema import CREATE_TIME, RECORDS_SCHEMA
from rmq_store.errors import KafkaUnavailableError, MirrorTargetError

# Small segments: compaction leaves the newest one alone, and all of it is read at each start.
_SETTINGS: Final = {
    "cleanup.policy": "compact", "segment.bytes": str(16 << 20), "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
}  # fmt: skip
_POLL_MS: Final = 1000
_EMPTY_POLLS_MAX: Final = 30


class CompactedTopic:
    """A topic for one transactional id. Not safe for threads."""

    def __init__(self, administration: KafkaAdministration, reader: KafkaReader, name: str) -> None:
        self._administration = administration
        self._reader = reader
        self.partition = Partition(name, 0)

    def make(self) -> None:
        """Create the topic, unless it exists. Raises MirrorTargetError if Kafka deletes old records of an existing one.
        """
        name = self.partition.topic
        self._administration.create_topic(name, 1, _SETTINGS)
        policy = self._administration.topic_settings(name).get("cleanup.policy")
        if policy != "compact":
            raise MirrorTargetError(
                f"Kafka's topic {name!r} has cleanup.policy={policy}, which deletes records of finished work; it must "
                "be compact"
            )

    def read(self) -> Iterator[pa.RecordBatch]:
        """All records (RECORDS_SCHEMA), in their order; none if there is no such topic.

        Raises:
            KafkaUnavailableError, KafkaRefusedError.
        """
        if not self._administration.topics([self.partition.topic]):
            return
        at = self._reader.starts([self.partition])[self.partition]
        end = self._reader.stable_ends([self.partition])[self.partition]
        self._reader.assign({self.partition: Position(at)})
        empty_polls = 0
        while at < end:
            fetched = self._reader.poll(_POLL_MS).get(self.partition)
            if fetched is None:
                empty_polls += 1
                if empty_polls > _EMPTY_POLLS_MAX:
                    raise KafkaUnavailableError(f"Kafka's topic {self.partition.topic!r} cannot be read up to {end}")
                continue
            at, empty_polls = fetched.next_offset, 0
            yield fetched.rows


def keyed_records(keys: pa.BinaryArray, values: pa.BinaryArray, now_ms: int) -> pa.RecordBatch:
    """Records (RECORDS_SCHEMA) without headers."""
    count = len(keys)
    columns = [
        pa.array(np.zeros(count, np.int64)), pa.array(np.full(count, now_ms, np.int64)),
        pa.array(np.full(count, CREATE_TIME, np.int8)), keys, values,
        pa.array([[]] * count, RECORDS_SCHEMA.field("headers").type),
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, schema=RECORDS_SCHEMA)
