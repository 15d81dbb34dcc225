"""Decodes messages to columns in one pass, by the extension (data plane), with the same results as `frame_decoder`.

Each frame is checked, parsed and copied while its bytes are in the cache. `frame_decoder` passes over all frames once
for every column. It handles the frames that are not ordinary, and raises the error for a wrong one. Not ordinary are
compressed bodies, IPv6 hosts, several topics, malformed UTF-8, a message without UNIQ_KEY, and times outside of the
years 1 to 9999.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from rmq_store.format.bytes import native
from rmq_store.format.bytes.gather import Bytes, Positions, repeated
from rmq_store.format.frames.frame_check import FRAME_BYTES_MIN
from rmq_store.format.properties.property_string import CRC32, KEYS, TAGS, UNIQUE_KEY
from rmq_store.format.tables.schema import MESSAGE_SCHEMA, PROPERTY_COLUMNS, message_schema
from rmq_store.memory import Area, BatchMemory, from_heap

# The extension knows the order.
_NUMBERS: Mapping[str, np.dtype[Any]] = {
    **dict.fromkeys(("queueId", "reconsumeTimes", "flag", "sysFlag"), np.dtype(np.int32)),
    **dict.fromkeys(("queueOffset", "commitLogOffset", "bornTimestamp", "storeTimestamp"), np.dtype(np.int64)),
}
_TEXTS = ("body", "bornHost", "storeHost", "msgId", "tags", "keys")
_NAMES = tuple(name.encode() for name in (UNIQUE_KEY, CRC32, TAGS, KEYS))
_MAY_BE_NULL = ("tags", "keys")

_TYPES = {field.name: field.type for field in MESSAGE_SCHEMA}

_HOST_ROOM_BYTES = 32
_PIECE_BYTES_MIN = 4
_ROW_PIECES_MAX = 64
_FRAMES_BYTES_MAX = 256 << 20

# So many rows, from everywhere in a batch, tell how long texts are; a batch of few bytes has the most room at once.
_SAMPLE_ROWS = 256
_SAMPLED_BYTES_MIN = 512 << 10
# Where they lie, [0, 1): spread evenly, and never in step with messages that come in turn (the golden ratio).
_EVERYWHERE = np.arange(_SAMPLE_ROWS) * 0.6180339887498949 % 1

_Text = tuple[np.ndarray, np.ndarray, np.ndarray | None]
_Pieces = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class _BufferSizes(NamedTuple):
    """The room of a copy: bytes of each text, pieces of properties, bytes of their names and of their values."""

    texts: Mapping[str, int]
    pieces: int
    names: int
    values: int

    @classmethod
    def most(cls, count: int, frames_bytes: int) -> _BufferSizes:
        """No frames of so many bytes have more."""
        hosts = dict.fromkeys(("bornHost", "storeHost"), count * _HOST_ROOM_BYTES)
        room = max(frames_bytes - FRAME_BYTES_MIN * count, 0)
        pieces = min(room // _PIECE_BYTES_MIN, _ROW_PIECES_MAX * count)
        return cls(dict.fromkeys(_TEXTS, room) | hosts, pieces, room, room)

    def sizes_bytes(self, count: int, columns: Sequence[str]) -> dict[str, int]:
        """The memory of the columns of `count` rows."""
        sizes = {name: number.itemsize * count for name, number in _NUMBERS.items() if name in columns}
        for name in _TEXTS:
            if name in columns:
                sizes |= {f"{name} offsets": 4 * (count + 1), name: self.texts[name]}
        sizes |= {f"{name} valid": (count + 7) // 8 for name in _MAY_BE_NULL if name in columns}
        if "properties" in columns:
            pieces_bytes = 4 * (self.pieces + 1)
            sizes |= {"properties offsets": 4 * (count + 1), "names offsets": pieces_bytes, "names": self.names}
            sizes |= {"values offsets": pieces_bytes, "values": self.values}
        return sizes

    def at_most(self, ends: Sequence[int], rows: float) -> _BufferSizes:
        """`rows` times what a sample needed, and a fourth more; but no more than these. Bodies are not foretold: one
        may be as long as all the others.
        """
        likely = [int(1.25 * rows * end) + 4096 for end in ends]
        texts = {name: min(likely[at], self.texts[name]) for at, name in enumerate(_TEXTS) if name in PROPERTY_COLUMNS}
        most = self.pieces, self.names, self.values
        return _BufferSizes({**self.texts, **texts}, *map(min, likely[len(_TEXTS) :], most))


class _Copied(NamedTuple):
    """One pass over frames: the topic of all of them, columns, and how many bytes or pieces the texts came to."""

    raw_topic: bytes
    numbers: dict[str, np.ndarray]
    texts: dict[str, _Text]
    pieces: _Pieces | None
    ends: list[int]


def decode_ordinary(
    data: Bytes,
    positions: Positions,
    sizes: Positions,
    *,
    base_offset: int | None,
    columns: Sequence[str],
    broker_name: str,
    raw_body: bool,
    owner: tuple[str, int, Positions] | None,
    memory: BatchMemory,
) -> pa.RecordBatch | None:
    """The result of `decode_frames`, or None if a frame is not ordinary, or wrong."""
    count, frames_bytes = len(positions), int(sizes.sum())
    if count == 0 or not 0 < frames_bytes <= _FRAMES_BYTES_MAX:
        return None
    copy = partial(_copy, data, base_offset, raw_body)
    asked = None if owner is None else (owner[0].encode(), owner[1], np.ascontiguousarray(owner[2], np.int64))
    most = _BufferSizes.most(count, frames_bytes)
    copied = None
    sampled = [name for name in columns if name in PROPERTY_COLUMNS]
    if sampled and frames_bytes >= _SAMPLED_BYTES_MIN:
        rows = np.arange(count) if count <= _SAMPLE_ROWS else (_EVERYWHERE * count).astype(np.int64)
        some = None if asked is None else (*asked[:2], asked[2][rows])
        most_of_some = _BufferSizes.most(len(rows), int(sizes[rows].sum()))
        sample = copy(sampled, from_heap, positions[rows], sizes[rows], some, most_of_some)
        if sample is None:
            return None
        likely = most.at_most(sample.ends, count / len(rows))
        del sample
        copied = copy(columns, memory.carve, positions, sizes, asked, likely)
    if copied is None:  # there was no sample, or its texts were shorter, or another row is not ordinary
        copied = copy(columns, memory.carve, positions, sizes, asked, most)
    return None if copied is None else _as_batch(copied, count, columns, broker_name)


def _copy(
    data: Bytes,
    base_offset: int | None,
    raw_body: bool,
    columns: Sequence[str],
    carve: Callable[[Mapping[str, int]], dict[str, Area]],
    positions: Positions,
    sizes: Positions,
    owner: tuple[bytes, int, Positions] | None,
    buffers: _BufferSizes,
) -> _Copied | None:
    """All frames in one pass, or None: something is not ordinary, or wrong, or there is not room for it."""
    areas = carve(buffers.sizes_bytes(len(positions), columns))
    numbers = {name: areas[name].view(number) for name, number in _NUMBERS.items() if name in columns}
    texts = {name: _text(name, areas) for name in _TEXTS if name in columns}
    pieces = _pieces(areas) if "properties" in columns else None
    ends = np.empty(len(_TEXTS) + 3, np.int64)
    raw_topic = native.functions.copy_messages(
        data, positions, sizes, base_offset, raw_body, owner, _NAMES, tuple(map(numbers.get, _NUMBERS)),
        tuple(map(texts.get, _TEXTS)), pieces, ends,
    )  # fmt: skip
    return None if raw_topic is None else _Copied(raw_topic, numbers, texts, pieces, ends.tolist())


def _as_batch(copied: _Copied, count: int, columns: Sequence[str], broker_name: str) -> pa.RecordBatch | None:
    try:
        topic = copied.raw_topic.decode()
    except UnicodeDecodeError:
        return None
    ends = copied.ends
    arrays: dict[str, pa.Array] = {name: _as_numbers(name, values) for name, values in copied.numbers.items()}
    arrays |= {name: _as_texts(name, count, text, ends[_TEXTS.index(name)]) for name, text in copied.texts.items()}
    if copied.pieces is not None:
        arrays["properties"] = _as_map(copied.pieces, *ends[len(_TEXTS) :])
    arrays |= {name: repeated(text, count) for name, text in (("topic", topic), ("brokerName", broker_name))}
    return pa.RecordBatch.from_arrays([arrays[name] for name in columns], schema=message_schema(tuple(columns)))


def _text(name: str, areas: Mapping[str, np.ndarray]) -> _Text:
    """Offsets, bytes, and which rows are there if not all may be."""
    valid = areas.get(f"{name} valid")
    if valid is not None:
        valid[:] = 0
    return areas[f"{name} offsets"].view(np.int32), areas[name], valid


def _pieces(areas: Mapping[str, np.ndarray]) -> _Pieces:
    """How many pieces there are before each row, then offsets and bytes of names and of values."""
    before, name_offsets, value_offsets = (
        areas[f"{name} offsets"].view(np.int32) for name in ("properties", "names", "values")
    )
    return before, name_offsets, areas["names"], value_offsets, areas["values"]


def _as_numbers(name: str, values: np.ndarray) -> pa.Array:
    return pa.Array.from_buffers(_TYPES[name], len(values), [None, pa.py_buffer(values)])


def _as_texts(name: str, count: int, text: _Text, size: int) -> pa.Array:
    offsets, values, valid = text
    buffers = [None if valid is None else pa.py_buffer(valid), pa.py_buffer(offsets), pa.py_buffer(values[:size])]
    return pa.Array.from_buffers(_TYPES[name], count, buffers)


def _as_map(pieces: _Pieces, count: int, names_size: int, values_size: int) -> pa.MapArray:
    before, name_offsets, name_bytes, value_offsets, value_bytes = pieces
    keys, items = (
        pa.StringArray.from_buffers(count, pa.py_buffer(offsets[: count + 1]), pa.py_buffer(values[:size]))
        for offsets, values, size in ((name_offsets, name_bytes, names_size), (value_offsets, value_bytes, values_size))
    )
    return pa.MapArray.from_arrays(pa.array(before), keys, items)
