"""Records of one topic that Kafka refuses: which become dead letters, and which windows get smaller. No I/O.

Kafka refuses a batch as a whole. If it names records, the next transaction has dead letters in their place. If it names
none, a window of half the size is tried, until a single record is left.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.bridge.kafka.client import Partition
from rmq_store.bridge.records.to_kafka import KafkaRules
from rmq_store.errors import KafkaRefusedError, RecordRefusedError


class RefusedRecords:
    """Refusals of the topics `target` and `letters`, its dead letters. Not safe for threads."""

    def __init__(self, target: str, letters: str) -> None:
        self._target = target
        self._letters = letters
        self._rows_max: dict[int, int] = {}
        self._reasons: dict[int, dict[int, str]] = {}
        self._has_short_letters = False
        self._added: dict[Partition, list[npt.NDArray[np.int64]]] = {}

    def begin(self) -> None:
        """A transaction begins."""
        self._added = {}

    def add(self, partition: Partition, rows: pa.RecordBatch) -> None:
        """`rows` of a queue were added to the transaction."""
        self._added.setdefault(partition, []).append(rows.column("offset").to_numpy())

    @property
    def added_count(self) -> int:
        """Number of records that were added to the transaction."""
        return sum(len(offsets) for added in self._added.values() for offsets in added)

    def letter_bytes_max(self, rules: KafkaRules) -> int:
        """The largest body of a dead letter; 0 after Kafka has refused a dead letter."""
        return 0 if self._has_short_letters else rules.max_letter_bytes

    def rows_max(self, queue_id: int, default: int) -> int:
        """The largest window of a queue, in messages: `default`, or fewer after a refusal."""
        return min(default, self._rows_max.get(queue_id, default))

    def reasons(self, queue_id: int) -> Mapping[int, str]:
        """Queue offsets of refused messages, with Kafka's reasons."""
        return self._reasons.get(queue_id, {})

    def committed(self, queue_id: int) -> None:
        """A window of the queue was committed: the next one is of full size."""
        self._rows_max.pop(queue_id, None)
        self._reasons.pop(queue_id, None)

    def refuse(self, error: RecordRefusedError) -> None:
        """Take in a refusal of the transaction; the next one differs from it.

        Raises:
            KafkaRefusedError: the refused records are no mirrored messages, and no dead letters that could be shorter.
        """
        topic, queue_id = error.partition
        if topic != self._target:
            if topic != self._letters or self._has_short_letters:
                raise KafkaRefusedError(str(error)) from error
            self._has_short_letters = True
            return
        offsets = np.concatenate(self._added[Partition(topic, queue_id)])
        rows = error.rows or ([0] if len(offsets) == 1 else [])
        self._reasons.setdefault(queue_id, {}).update({int(offsets[row]): error.reason for row in rows})
        if not rows:
            self._rows_max[queue_id] = max(len(offsets) // 2, 1)
