"""Encoded frames as entries of the body of a SEND_BATCH_MESSAGE request (data plane).

    int32 total size | int32 0 | int32 0 | int32 flag | int32 body length | body | int16 properties length | properties

A broker makes the other fields itself, and those of the request's header are the same for all entries. Source:
MessageDecoder.java (encodeMessage), MessageExtEncoder.java (encode of a MessageExtBatch).
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.format.bytes import native
from rmq_store.format.bytes.gather import value_bytes
from rmq_store.format.frames.frame_check import BODY_POSITIONS, MESSAGE_MAGIC_V2
from rmq_store.format.properties.property_encoder import refusal
from rmq_store.format.properties.property_string import PROPERTIES_BYTES_MAX, UNIQUE_KEY

Bytes = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]

KEY_BYTES = 16
"""Of a unique key that this package makes of a message's content; it is written in 32 hex digits."""

KEY_PROPERTY_BYTES = len(UNIQUE_KEY) + 2 * KEY_BYTES + 2
"""Of such a key as a property."""

HEADER_BYTES = BODY_POSITIONS[0]
"""Before the body of frames with IPv4 hosts: the encoder is given such hosts for what goes to a cluster."""

_HEAD = struct.Struct(">5i")
_LENGTH_BYTES = 2


def batch_entries(frames: pa.LargeBinaryArray, keys: Bytes | None, tail: bytes) -> tuple[Int64, Bytes]:
    """Offsets (n + 1,) and bytes of the entries of frames (n,) with IPv4 hosts and without a CRC property.

    Each gets its own of `keys` (KEY_BYTES * n) as UNIQ_KEY before its properties; None: they have theirs. `tail`,
    whole properties, goes behind them.

    Raises:
        UsageError: more than 32767 bytes of properties; names the row.
    """
    offsets, data = value_bytes(frames)
    count = len(frames)
    added_bytes = (0 if keys is None else KEY_PROPERTY_BYTES) + len(tail)
    # An entry has less before its body than a frame has.
    entries = np.empty(int(offsets[-1] - offsets[0]) + count * added_bytes, np.uint8)
    entry_offsets = np.zeros(count + 1, np.int64)
    if native.LOADED:
        done = native.functions.write_entries(data, offsets, HEADER_BYTES, keys, tail, entry_offsets, entries)
    else:
        done = _write_entries(data, offsets, keys, tail, entry_offsets, entries)
    if done < count:
        parts = message_parts(data[offsets[done] : offsets[done + 1]].tobytes())
        length = len(parts.properties) + added_bytes
        raise refusal(done, "properties", f"{length} bytes of properties, more than {PROPERTIES_BYTES_MAX}")
    return entry_offsets, entries[: entry_offsets[-1]]


def encode_entry(flag: int, body: bytes, properties: bytes) -> bytes:
    """One entry. OverflowError: more than 32767 bytes of properties."""
    size = _HEAD.size + len(body) + _LENGTH_BYTES + len(properties)
    head = _HEAD.pack(size, 0, 0, flag, len(body))
    return b"".join((head, body, len(properties).to_bytes(_LENGTH_BYTES, "big", signed=True), properties))


def decode_entry(entry: bytes) -> tuple[int, bytes, bytes]:
    """The flag, the body and the properties of one entry that this module has made."""
    _, _, _, flag, body_bytes = _HEAD.unpack_from(entry)
    body_end = _HEAD.size + body_bytes
    return flag, entry[_HEAD.size : body_end], entry[body_end + _LENGTH_BYTES :]


class MessageParts:
    """Parts of one frame with IPv4 hosts. `content`: from the length of the body to the end of the frame."""

    __slots__ = ("body", "content", "flag", "properties", "reconsume_times", "sys_flag")

    def __init__(self, frame: bytes, header_bytes: int = HEADER_BYTES) -> None:
        (magic,) = struct.unpack_from(">i", frame, 4)
        (self.flag,) = struct.unpack_from(">i", frame, 16)
        (self.sys_flag,) = struct.unpack_from(">i", frame, 36)
        self.reconsume_times, _, body_bytes = struct.unpack_from(">iqi", frame, header_bytes - 16)
        self.content = frame[header_bytes - 4 :]
        topic_at = header_bytes + body_bytes
        self.body = frame[header_bytes:topic_at]
        length_bytes = 2 if magic == MESSAGE_MAGIC_V2 else 1
        topic_bytes = int.from_bytes(frame[topic_at : topic_at + length_bytes], "big")
        self.properties = frame[topic_at + length_bytes + topic_bytes + _LENGTH_BYTES :]


def message_parts(frame: bytes) -> MessageParts:
    """The parts of a frame of the encoder's."""
    return MessageParts(frame)


def _write_entries(
    data: Bytes, offsets: Int64, keys: Bytes | None, tail: bytes, entry_offsets: Int64, entries: Bytes
) -> int:
    """As the extension: how many rows were written."""
    for row in range(len(offsets) - 1):
        parts = message_parts(data[offsets[row] : offsets[row + 1]].tobytes())
        properties = parts.properties + tail
        if keys is not None:
            key = keys[KEY_BYTES * row : KEY_BYTES * (row + 1)].tobytes().hex().upper()
            properties = f"{UNIQUE_KEY}\x01{key}\x02".encode() + properties
        if len(properties) > PROPERTIES_BYTES_MAX:
            return row
        entry = encode_entry(parts.flag, parts.body, properties)
        entry_offsets[row + 1] = entry_offsets[row] + len(entry)
        entries[entry_offsets[row] : entry_offsets[row + 1]] = np.frombuffer(entry, np.uint8)
    return len(offsets) - 1
