"""The header of a record batch (magic 2), and the walk over the batches of a fetch response.

Source: DefaultRecordBatch.java of Kafka's clients, and the protocol guide's "Record Batch".
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from rmq_store.errors import CorruptBatchError

HEADER: Final = Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = HEADER.size
LENGTH_END: Final = 12
"""Base offset and length; the length counts what is behind them."""
CRC_START: Final = 17
ATTRIBUTES_START: Final = 21
"""The CRC covers the batch from here on."""

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_FLAG: Final = 0x08
TRANSACTIONAL_FLAG: Final = 0x10
CONTROL_FLAG: Final = 0x20
NO_PRODUCER_ID: Final = -1

_PREFIX: Final = Struct(">qiib")
_LEGACY_BYTES_MIN: Final = 26
"""Of a message of magic 0 with its offset and length, empty."""
_OFFSET_MAX: Final = (1 << 63) - 1


class Batch(NamedTuple):
    """One batch at [start, end) of the data. In a legacy batch the fields after `magic` are zero."""

    start: int
    end: int
    base_offset: int
    leader_epoch: int
    magic: int
    crc: int = 0
    attributes: int = 0
    last_offset_delta: int = 0
    base_timestamp: int = 0
    max_timestamp: int = 0
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = 0
    base_sequence: int = 0
    record_count: int = 0

    @property
    def next_offset(self) -> int:
        """The offset after the batch, whatever records compaction has left in it."""
        return self.base_offset + self.last_offset_delta + 1

    def broken(self, reason: str) -> CorruptBatchError:
        """The error about this batch."""
        return CorruptBatchError(
            offset=self.base_offset, reason=reason, next_offset=self.next_offset if self.magic == 2 else None
        )


def walk(data: memoryview) -> Iterator[Batch]:
    """The complete batches of `data`, in their order. A last one that is cut off is left out, because brokers cut
    responses.

    Raises:
        CorruptBatchError: a header that no batch can have.
    """
    start, floor = 0, 0
    while len(data) - start >= _PREFIX.size:
        base_offset, length, leader_epoch, magic = _PREFIX.unpack_from(data, start)
        end = start + LENGTH_END + length
        shortest = HEADER_BYTES if magic == 2 else _LEGACY_BYTES_MIN
        if length < shortest - LENGTH_END:
            raise CorruptBatchError(offset=base_offset, reason=f"its length is {length} bytes")
        if end > len(data):
            return
        if not 0 <= magic <= 2:
            raise CorruptBatchError(offset=base_offset, reason=f"its format (magic {magic}) is not known")
        if base_offset < floor:
            raise CorruptBatchError(offset=base_offset, reason=f"the batch before it ends at {floor}")
        if magic == 2:
            batch = Batch(start, end, base_offset, leader_epoch, magic, *HEADER.unpack_from(data, start)[4:])
            if batch.last_offset_delta < 0 or batch.next_offset > _OFFSET_MAX or batch.record_count < 0:
                reason = f"{batch.record_count} records up to offset delta {batch.last_offset_delta}"
                raise CorruptBatchError(offset=base_offset, reason=f"its header says that it has {reason}")
            floor = batch.next_offset
        else:
            batch = Batch(start, end, base_offset, -1, magic)
            floor = base_offset
        yield batch
        start = end
