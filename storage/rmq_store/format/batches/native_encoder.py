"""Encodes batches of messages to frames by the extension (data plane), in one or two passes. `frame_encoder` does the
same with Arrow.

Each frame is written whole while it is in the processor's cache: body, properties, both CRCs, and the hashes for queues
and index. For several threads an earlier pass measures the rows. That pass is also needed if only some rows get a new
unique key, because these are numbered without a gap. The extension handles only ordinary batches. `frame_encoder`
handles a batch that it refuses, and raises the error if the batch is really wrong.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.format.batches.encode_input import EncodeInput, EncodeOptions, RowFields
from rmq_store.format.batches.frame_parts import encoded_rows
from rmq_store.format.bytes import native
from rmq_store.format.bytes.native import Int32, Int64, Rows, Texts
from rmq_store.format.frames.frame_fields import header_dtype
from rmq_store.format.properties import property_string as names
from rmq_store.format.properties.property_encoder import NAMED_COLUMNS
from rmq_store.format.properties.property_string import CRC_PROPERTY_BYTES
from rmq_store.format.text.host import Host
from rmq_store.format.text.ids import month_start_ms
from rmq_store.format.views.index_keys import topic_hashes
from rmq_store.threads import map_in_threads, processor_count

_Fixed = tuple[Int32, Int32, Int64, Int32]
"""Queue ids, flags, born timestamps, and how often each row was consumed before."""

# Before a topic at most, and before the properties; and in a property.
_TOPIC_LENGTH_BYTES_MAX, _LENGTH_BYTES, _SEPARATORS = 2, 2, 2

# A thread costs 0.1 ms to start: as much as 0.2 MB of frames.
_PART_BYTES_MIN = 1 << 20


def encode_natively(
    given: EncodeInput,
    topics: pa.DictionaryArray,
    bodies: pa.LargeBinaryArray,
    fields: RowFields,
    options: EncodeOptions,
) -> pa.RecordBatch | None:
    """The result of `frame_encoder.encode_batch`, or None: refused. `bodies` (n,) are stored as given. The extension
    must be loaded.
    """
    rows = columns_of(given, topics, bodies, fields, options)
    if rows is None:
        return None
    encoded = _Encoded(given.row_count)
    fixed = fields.queue_ids, fields.flags, fields.born_timestamps, fields.reconsume_times
    has_own_keys = options.unique_ids is not None and names.UNIQUE_KEY not in options.drop_properties
    if options.in_threads or has_own_keys:
        is_done = _encode_measured(rows, fixed, options, encoded)
    else:
        is_done = _encode_at_once(rows, fixed, options, encoded)
    if not is_done:
        return None
    buffers = [None, pa.py_buffer(encoded.offsets), encoded.frames]
    hashes = encoded.hashes[: encoded.hash_offsets[-1]]
    return encoded_rows(
        pa.LargeBinaryArray.from_buffers(pa.large_binary(), given.row_count, buffers),
        topics,
        fields.queue_ids,
        fields.sys_flags,
        encoded.crcs,
        encoded.tags_codes,
        pa.ListArray.from_arrays(pa.array(encoded.hash_offsets), pa.array(hashes)),
    )


class _Encoded:
    """The buffers that the extension fills: of `count` frames where they and their index hashes begin and end, (count +
    1,), CRC
    and tags code, (count,); the frames and hashes themselves, for which `make_room` is called before.
    """

    def __init__(self, count: int) -> None:
        self.offsets, self.hash_offsets = np.empty(count + 1, np.int64), np.empty(count + 1, np.int32)
        self.crcs, self.tags_codes = np.empty(count, np.uint32), np.empty(count, np.int64)

    def make_room(self, frames_bytes: int, hash_count: int) -> None:
        # Arrow's memory pool keeps large pieces for the next batch; numpy's would come from the kernel, page by page.
        self.frames = pa.allocate_buffer(frames_bytes)
        self.hashes = np.empty(hash_count, np.int32)


def _encode_at_once(rows: Rows, fixed: _Fixed, options: EncodeOptions, encoded: _Encoded) -> bool:
    encoded.make_room(*_room(rows))
    key_prefix, first_sequence = _new_keys(options, len(encoded.crcs))
    return native.functions.encode_frames(
        rows, *fixed, key_prefix, first_sequence, encoded.offsets, encoded.hash_offsets,
        np.frombuffer(encoded.frames, np.uint8), encoded.crcs, encoded.tags_codes, encoded.hashes,
    )  # fmt: skip


def _encode_measured(rows: Rows, fixed: _Fixed, options: EncodeOptions, encoded: _Encoded) -> bool:
    new_keys = np.empty(len(encoded.crcs), np.int64)
    new_key_count = native.functions.measure_frames(rows, encoded.offsets, encoded.hash_offsets, new_keys)
    if new_key_count is None:
        return False
    encoded.make_room(int(encoded.offsets[-1]), int(encoded.hash_offsets[-1]))
    key_prefix, first_sequence = _new_keys(options, new_key_count)

    def write(part: tuple[int, int]) -> None:
        first, behind = part
        native.functions.write_frames(
            rows, first, behind, *fixed, key_prefix, first_sequence, encoded.offsets, encoded.hash_offsets, new_keys,
            np.frombuffer(encoded.frames, np.uint8), encoded.crcs, encoded.tags_codes, encoded.hashes,
        )  # fmt: skip

    map_in_threads(write, _parts(encoded.offsets) if options.in_threads else [(0, len(new_keys))])
    return True


def _new_keys(options: EncodeOptions, count: int) -> tuple[bytes, int]:
    """Of so many new unique keys the text before their last digits, and what these are in the first of them."""
    if options.unique_ids is None:
        return b"", 0
    raw_prefix, first_sequence = options.unique_ids.reserve(count, options.now_ms, month_start_ms(options.now_ms))
    return raw_prefix.hex().upper().encode(), first_sequence


def _room(rows: Rows) -> tuple[int, int]:
    """Bytes of frames and number of index hashes that the rows cannot exceed: nothing is left out of them."""
    count = len(rows.topic_codes)
    fixed_bytes = len(rows.header) + _TOPIC_LENGTH_BYTES_MAX + int(np.diff(rows.topic_offsets).max()) + _LENGTH_BYTES
    fixed_bytes += len(names.UNIQUE_KEY) + rows.unique_key_bytes + _SEPARATORS + CRC_PROPERTY_BYTES
    bytes_max, keys_bytes = count * fixed_bytes + _extent(rows.body_offsets), 0
    for name, (offsets, *_) in rows.named:
        bytes_max += count * (len(name) + _SEPARATORS) + _extent(offsets)
        keys_bytes += _extent(offsets) if name == names.KEYS.encode() else 0
    if rows.entries is not None:
        places, (name_offsets, *_), (value_offsets, *_) = rows.entries
        first, behind = int(places[0]), int(places[-1])
        bytes_max += (behind - first) * _SEPARATORS + _extent(name_offsets[first : behind + 1])
        bytes_max += _extent(value_offsets[first : behind + 1])
        keys_bytes += _extent(value_offsets[first : behind + 1])
    # A unique key and a tag; and of n bytes with spaces between them at most (n + 1) / 2 keys.
    return bytes_max, 3 * count + keys_bytes // 2


def _extent(offsets: npt.NDArray[np.signedinteger]) -> int:
    return int(offsets[-1]) - int(offsets[0])


def _parts(offsets: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Rows [first, behind) for each processor, of about as many bytes each; fewer parts if those would be small."""
    size = int(offsets[-1])
    count = max(1, min(processor_count(), size // _PART_BYTES_MIN))
    bounds = np.searchsorted(offsets, np.arange(1, count) * (size // count)).tolist()
    return list(pairwise([0, *bounds, len(offsets) - 1]))


def columns_of(
    given: EncodeInput,
    topics: pa.DictionaryArray,
    bodies: pa.LargeBinaryArray,
    fields: RowFields,
    options: EncodeOptions,
) -> Rows | None:
    """The rows in the form that the extension reads (native/rows.h); None: it does not accept them."""
    entries = None
    if (properties := given.properties()) is not None:
        if _has_entries_under_null(properties):
            return None
        entries = properties.offsets.to_numpy(), _texts(properties.keys), _texts(properties.items)
    return Rows(
        _offsets(bodies, np.int64),
        bodies.buffers()[2] or b"",
        topics.indices.to_numpy(),
        *_texts(topics.dictionary)[:2],
        topic_hashes(topics.dictionary).view(np.uint32),
        fields.sys_flags,
        tuple((NAMED_COLUMNS[name].encode(), _texts(column)) for name, column in given.texts().items()),
        entries,
        _texts(pa.array([*options.drop_properties, names.CRC32], pa.string())),
        _header(options.born_host, options.store_host),
        options.max_message_bytes,
        0 if options.unique_ids is None else options.unique_ids.text_bytes,
        options.crc_property,
        options.index_tags,
    )


@lru_cache(maxsize=64)
def _header(born_host: Host, store_host: Host) -> bytes:
    """The fields before the body that are the same in all frames."""
    header = np.zeros(1, header_dtype(born_host.is_ipv6, store_host.is_ipv6))
    header["born_host"] = np.void(born_host.pack())
    header["store_host"] = np.void(store_host.pack())
    return header.tobytes()


def _has_entries_under_null(properties: pa.MapArray) -> bool:
    if not properties.null_count:
        return False
    counts = np.diff(properties.offsets.to_numpy())
    return bool(counts[properties.is_null().to_numpy(zero_copy_only=False)].any())


def _texts(values: pa.StringArray) -> Texts:
    """Offsets, bytes, bitmap of those that are not null, and its first bit."""
    buffers = values.buffers()
    validity = buffers[0] if values.null_count else None
    return _offsets(values, np.int32), buffers[2] or b"", validity, values.offset


def _offsets(values: pa.Array, kind: npt.DTypeLike) -> npt.NDArray[np.signedinteger]:
    """(n + 1,): where the rows of a string or binary array begin and end in its bytes."""
    if len(values) == 0:
        return np.zeros(1, kind)
    dtype = np.dtype(kind)
    return np.frombuffer(values.buffers()[1], dtype, len(values) + 1, values.offset * dtype.itemsize)
