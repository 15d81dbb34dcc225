"""Messages as columns in one pass, by the extension (data plane): the same answers as `frame_decoder`.

Each frame is checked, taken apart and copied while its bytes are at hand, where the twin goes through all frames once
for every column. What is not ordinary is left to the twin, which also says what is wrong with a frame: compressed
bodies, IPv6 hosts, several topics, malformed UTF-8, a message without UNIQ_KEY, times outside of the years 1 to 9999.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from rmq_store.format import native
from rmq_store.format.gather import Bytes, Positions, repeated
from rmq_store.format.properties import CRC32, KEYS, TAGS, UNIQUE_KEY
from rmq_store.format.schema import MESSAGE_SCHEMA, TIMESTAMP_TYPE
from rmq_store.memory import reserve

# The extension knows the order.
_NUMBERS = (
    "queueId", "reconsumeTimes", "flag", "sysFlag", "queueOffset", "commitLogOffset", "bornTimestamp", "storeTimestamp",
)  # fmt: skip
_TEXTS = ("body", "bornHost", "storeHost", "msgId", "tags", "keys")
_NAMES = tuple(name.encode() for name in (UNIQUE_KEY, CRC32, TAGS, KEYS))
_MAY_BE_NULL = ("tags", "keys")

_HOST_ROOM_BYTES = 32
_PIECE_BYTES_MIN = 4
_ROW_PIECES_MAX = 64
_FRAMES_BYTES_MAX = 256 << 20
_LARGE_FRAME_BYTES = 512

_Text = tuple[np.ndarray, np.ndarray, np.ndarray | None]
_Pieces = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def decode_ordinary(
    data: Bytes,
    positions: Positions,
    sizes: Positions,
    *,
    base_offset: int,
    columns: Sequence[str],
    broker_name: str,
    raw_body: bool,
    owner: tuple[str, int, Positions] | None,
) -> pa.RecordBatch | None:
    """What `decode_frames` answers, or None: something is not ordinary, or wrong."""
    count, room = len(positions), int(sizes.sum())
    if count == 0 or not 0 < room <= _FRAMES_BYTES_MAX:
        return None
    numbers = {name: _number(name, count) for name in _NUMBERS if name in columns}
    texts = {name: _text(name, count, room) for name in _TEXTS if name in columns}
    pieces = _pieces(count, room) if "properties" in columns else None
    ends = np.empty(len(_TEXTS) + 3, np.int64)
    asked = None if owner is None else (owner[0].encode(), owner[1], np.ascontiguousarray(owner[2], np.int64))
    raw_topic = native.functions.copy_messages(
        data, positions, sizes, base_offset, raw_body, asked, _NAMES, tuple(map(numbers.get, _NUMBERS)),
        tuple(map(texts.get, _TEXTS)), pieces, ends,
    )  # fmt: skip
    if raw_topic is None:
        return None
    try:
        topic = raw_topic.decode()
    except UnicodeDecodeError:
        return None
    arrays: dict[str, pa.Array] = {name: _as_numbers(name, values) for name, values in numbers.items()}
    arrays |= {name: _as_texts(name, count, texts[name], int(ends[_TEXTS.index(name)])) for name in texts}
    if pieces is not None:
        arrays["properties"] = _as_map(pieces, *ends[len(_TEXTS) :].tolist())
    arrays |= {name: repeated(text, count) for name, text in (("topic", topic), ("brokerName", broker_name))}
    schema = pa.schema([MESSAGE_SCHEMA.field(name) for name in columns])
    return pa.RecordBatch.from_arrays([arrays[name] for name in columns], schema=schema)


def _number(name: str, count: int) -> np.ndarray:
    return np.empty(count, np.int32 if MESSAGE_SCHEMA.field(name).type == pa.int32() else np.int64)


def _text(name: str, count: int, room: int) -> _Text:
    """Offsets, bytes, and which rows are there if not all may be."""
    if name.endswith("Host"):
        values = np.empty(count * _HOST_ROOM_BYTES, np.uint8)
    else:
        values = _room(room) if name == "body" else _reserve(room, count)
    valid = np.zeros((count + 7) // 8, np.uint8) if name in _MAY_BE_NULL else None
    return np.empty(count + 1, np.int32), values, valid


def _pieces(count: int, room: int) -> _Pieces:
    """How many pieces there are before each row, then offsets and bytes of names and of values."""
    most = min(room // _PIECE_BYTES_MIN, _ROW_PIECES_MAX * count)
    offsets_bytes = 4 * (most + 1)
    names, values = [(_reserve(offsets_bytes, count).view(np.int32), _reserve(room, count)) for _ in range(2)]
    return np.empty(count + 1, np.int32), *names, *values


def _reserve(room: int, count: int) -> np.ndarray:
    """Bytes for the most that texts of so many frames may have. Beside large bodies they have little of it."""
    return _room(room) if room < _LARGE_FRAME_BYTES * count else reserve(room)


def _room(size_bytes: int) -> np.ndarray:
    """Arrow's memory pool keeps large pieces for the next batch; numpy's would come from the kernel, page by page."""
    return np.frombuffer(pa.allocate_buffer(size_bytes), np.uint8)


def _as_numbers(name: str, values: np.ndarray) -> pa.Array:
    array = pa.array(values)
    return array.view(TIMESTAMP_TYPE) if name.endswith("Timestamp") else array


def _as_texts(name: str, count: int, text: _Text, size: int) -> pa.Array:
    offsets, values, valid = text
    buffers = [None if valid is None else pa.py_buffer(valid), pa.py_buffer(offsets), pa.py_buffer(values[:size])]
    return pa.Array.from_buffers(MESSAGE_SCHEMA.field(name).type, count, buffers)


def _as_map(pieces: _Pieces, count: int, names_size: int, values_size: int) -> pa.MapArray:
    before, name_offsets, name_bytes, value_offsets, value_bytes = pieces
    keys, items = (
        pa.StringArray.from_buffers(count, pa.py_buffer(offsets[: count + 1]), pa.py_buffer(values[:size]))
        for offsets, values, size in ((name_offsets, name_bytes, names_size), (value_offsets, value_bytes, values_size))
    )
    return pa.MapArray.from_arrays(pa.array(before), keys, items)
