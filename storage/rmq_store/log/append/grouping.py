"""Assigns the records of an append to queues, and gives them queue offsets (data plane)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rmq_store.log.core.layout import members, numbered_from
from rmq_store.log.views.views import QueueKey

# Rows that an append handles together: what it holds besides the frames does not grow with it, but for 4 bytes a row.
PART_ROWS = 1 << 16


class Numbered(NamedTuple):
    """The rows of one part.

    `queue_offsets`: int64 (n,), 0 for a row without a queue entry (half, rollback). `rows`: int64 (m,), the others,
    queue after queue; the `counts[k]` rows of queue k begin at its message `firsts[k]`, both int64 (queues,).
    """

    queue_offsets: np.ndarray
    rows: np.ndarray
    firsts: np.ndarray
    counts: np.ndarray


def in_parts(batches: Sequence[pa.RecordBatch]) -> list[list[pa.RecordBatch]]:
    """The rows of all batches in their order, in parts of up to PART_ROWS rows."""
    parts: list[list[pa.RecordBatch]] = []
    room = 0
    for batch in batches:
        for first in range(0, batch.num_rows, PART_ROWS):
            piece = batch.slice(first, PART_ROWS) if batch.num_rows > PART_ROWS else batch
            if piece.num_rows > room:
                parts.append([])
                room = PART_ROWS
            parts[-1].append(piece)
            room -= piece.num_rows
    return parts


class Groups:
    """Rows of all parts by (topic, queue id). `keys` are the queues in the order of their first rows."""

    def __init__(self, parts: Sequence[Sequence[pa.RecordBatch]]) -> None:
        self.keys: list[QueueKey] = []
        numbers: dict[QueueKey, int] = {}
        self._codes = [np.concatenate([self._codes_of(batch, numbers) for batch in part]) for part in parts]
        self._next = np.empty(0, np.int64)

    def start_at(self, offsets: Sequence[int]) -> None:
        """Set the queue offsets that the next message of each queue gets."""
        self._next = np.array(offsets, dtype=np.int64)

    def ranges(self) -> list[tuple[QueueKey, int, int]]:
        """Of each queue: its key, the queue offset of its first row, and its number of rows. Call before `number`."""
        counts = np.zeros(len(self.keys), np.int64)
        for codes in self._codes:
            counts += np.bincount(codes + 1, minlength=len(self.keys) + 1)[1:]
        return list(zip(self.keys, self._next.tolist(), counts.tolist(), strict=True))

    def number(self, part: int) -> Numbered:
        """Number the rows of one part. Call it for part after part."""
        codes = self._codes[part]
        rows, counts = members(codes, len(self.keys))
        firsts = self._next
        queue_offsets = np.zeros(len(codes), dtype=np.int64)
        queue_offsets[rows] = numbered_from(firsts, counts)
        self._next = firsts + counts
        return Numbered(queue_offsets, rows, firsts, counts)

    def _codes_of(self, batch: pa.RecordBatch, numbers: dict[QueueKey, int]) -> np.ndarray:
        """int32 (n,): the number of each row's key; -1 for a row without a queue entry."""
        topics = batch.column("topic")
        if not pa.types.is_dictionary(topics.type):
            topics = topics.dictionary_encode()
        names = topics.dictionary.to_pylist()
        queue_ids = batch.column("queue_id").to_numpy(zero_copy_only=False)
        span = int(queue_ids.max(initial=0)) + 1
        local = queue_ids
        if len(names) > 1:
            local = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64) * span + queue_ids
        codes: np.ndarray
        if len(names) * span <= 1 << 22:
            used = np.flatnonzero(np.bincount(local, minlength=1))
            table = np.zeros(len(names) * span, dtype=np.int32)
            table[used] = self._numbers_of(used, names, span, numbers)
            codes = table[local]
        else:  # a table of all of them would not do: queue ids may be far apart
            used, places = np.unique(local, return_inverse=True)
            codes = self._numbers_of(used, names, span, numbers)[places]
        dispatchable = batch.column("dispatchable")
        if dispatchable.true_count < len(codes):
            codes[~dispatchable.to_numpy(zero_copy_only=False)] = -1
        return codes

    def _numbers_of(
        self, used: np.ndarray, names: Sequence[str], span: int, numbers: dict[QueueKey, int]
    ) -> np.ndarray:
        """int32 (n,): the numbers of the keys that are written as name * `span` + queue id; new ones are added."""
        found = np.empty(len(used), dtype=np.int32)
        for place, code in enumerate(used.tolist()):
            key = (names[code // span], code % span)
            if key not in numbers:
                numbers[key] = len(self.keys)
                self.keys.append(key)
            found[place] = numbers[key]
        return found
