"""Pieces of frames that are joined row by row, used by the batch encoder and by the copier of frames (data plane).

Source: MessageExtEncoder.java (encode), CommitLog.java (the CRC property).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.format.frames.frame_check import MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2, TRANSACTION_MASK, SysFlag
from rmq_store.format.properties.property_string import CRC_PROPERTY_BYTES, CRC_PROPERTY_PREFIX
from rmq_store.format.tables.schema import ENCODED_SCHEMA
from rmq_store.format.text.names import TOPIC_LENGTH_MAX
from rmq_store.format.views.index_keys import IndexHashes

Int32 = npt.NDArray[np.int32]

# The CRC property before its digits are known.
CRC_RESERVED = CRC_PROPERTY_PREFIX + b"0" * 10 + b"\x02"
assert len(CRC_RESERVED) == CRC_PROPERTY_BYTES


def topic_heads(topics: pa.DictionaryArray) -> tuple[pa.LargeBinaryArray, Int32]:
    """Topic length and topic of each row (n,), and its magic (n,): V2 for topics over 127 characters."""
    encoded = [name.encode() for name in topics.dictionary.to_pylist()]
    is_v2 = [len(name) > TOPIC_LENGTH_MAX for name in encoded]
    heads = [len(name).to_bytes(1 + wide, "big") + name for name, wide in zip(encoded, is_v2, strict=True)]
    magics = np.array([MESSAGE_MAGIC_V2 if wide else MESSAGE_MAGIC_V1 for wide in is_v2], np.int32)
    return pa.array(heads, pa.large_binary()).take(topics.indices), magics[topics.indices.to_numpy()]


def fixed_width(rows: npt.NDArray[np.generic]) -> pa.LargeBinaryArray:
    """Numpy items as binary values, (n,); the memory is shared."""
    count, width = len(rows), rows.dtype.itemsize
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int64)
    # Arrow has no view of numpy's structured types, only of their bytes.
    data = pa.py_buffer(rows.view(np.uint8))
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, [None, pa.py_buffer(offsets), data])


def hash_lists(hashes: IndexHashes) -> pa.ListArray:
    """The index hashes of each row as a list, (n,) list<int32>."""
    offsets = np.zeros(len(hashes.counts) + 1, np.int32)
    np.cumsum(hashes.counts, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(hashes.hashes))


def encoded_rows(
    frames: pa.LargeBinaryArray,
    topics: pa.DictionaryArray,
    queue_ids: Int32,
    sys_flags: Int32,
    crcs: npt.NDArray[np.uint32],
    tags_codes: npt.NDArray[np.int64],
    key_hashes: pa.ListArray,
) -> pa.RecordBatch:
    """An ENCODED_SCHEMA batch of frames that are not delayed; every argument has one item for each frame."""
    transaction = sys_flags & np.int32(TRANSACTION_MASK)
    dispatchable = (transaction == 0) | (transaction == int(SysFlag.TRANSACTION_COMMIT))
    return pa.RecordBatch.from_arrays(
        [
            frames,
            topics,
            pa.array(queue_ids),
            pa.array(dispatchable),
            pa.array(crcs),
            pa.array(tags_codes),
            pa.array(np.zeros(len(frames), np.int64)),
            key_hashes,
        ],
        schema=ENCODED_SCHEMA,
    )
