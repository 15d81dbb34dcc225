"""The consume queue file: fixed 20-byte entries, one for each message of a queue, big-endian (data plane).

    bytes  field              meaning
    0-7    commit_log_offset  int64, where the frame starts in the commit log
    8-11   frame_size         int32, bytes, the whole frame; 0x7FFFFFFF: no message (pre-blank)
    12-19  tags_code          int64, Java hash of the TAGS property, sign-extended; 0 without one; in
                              SCHEDULE_TOPIC_XXXX the time of delivery in ms

Entry N of a queue is message N. Nothing is checksummed: after an unclean stop the tail is rebuilt from the commit log.
Source: ConsumeQueue.java (CQ_STORE_UNIT_SIZE, fillPreBlank), ConsumeQueueExt.java (isExtAddr).
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rmq_store.format.text.hashing import java_hash

ENTRY = np.dtype([("commit_log_offset", ">i8"), ("frame_size", ">i4"), ("tags_code", ">i8")])
ENTRY_BYTES = 20
ENTRY_FIELDS: Final = struct.Struct(">qiq")
"""One entry, where an array would cost more than it saves."""

assert ENTRY.itemsize == ENTRY_FIELDS.size == ENTRY_BYTES

# An entry lies at byte 20 * queue offset of its queue, and file names have 20 digits of a Java long; a queue id is a
# Java int.
QUEUE_OFFSET_MAX = ((1 << 63) - 1) // ENTRY_BYTES
QUEUE_ID_MAX = (1 << 31) - 1

# A queue that starts at message N > 0 has its first segment filled with these up to entry N. After a restart they look
# valid to Java (commit-log offset 0 >= minimum 0): whoever looks for the first entry has to skip them by their size.
PRE_BLANK_SIZE = 0x7FFFFFFF
PRE_BLANK = bytes(8) + PRE_BLANK_SIZE.to_bytes(4, "big") + bytes(8)

# Below any int32: with enableConsumeQueueExt the tags code is the address of an extension unit instead.
_EXTENSION_ADDRESS_MAX = -(1 << 31) - 1


def entries(buffer: memoryview | bytes) -> npt.NDArray[np.void]:
    """View the whole entries in `buffer`, copying nothing: (n,) ENTRY; a partial one at the end is left out."""
    return np.frombuffer(buffer, ENTRY, len(buffer) // ENTRY_BYTES)


def encode_entries(
    offsets: npt.NDArray[np.int64], sizes: npt.NDArray[np.integer[Any]], tags_codes: npt.NDArray[np.int64]
) -> npt.NDArray[np.void]:
    """The entries of n records, ENTRY (n,), contiguous; the three arrays are (n,)."""
    encoded = np.empty(len(offsets), ENTRY)
    encoded["commit_log_offset"] = offsets
    encoded["frame_size"] = sizes
    encoded["tags_code"] = tags_codes
    return encoded


def tags_code(tags: str | None) -> int:
    """The tags code of a message: the hash of its whole TAGS property, 0 without one."""
    return java_hash(tags) if tags else 0


def is_extension_address(tags_codes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """(n,) bool: the code is the address of an extension unit, so the tag is unknown here and matches any filter."""
    return tags_codes <= _EXTENSION_ADDRESS_MAX
