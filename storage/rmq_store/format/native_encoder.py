"""Batches of messages as frames, by the extension (data plane): what `frame_encoder` does with Arrow, in two passes.

The first checks and measures the rows, the second writes each frame whole while it is in the processor's cache: body,
properties, both CRCs, and the hashes for queues and index. The extension knows the good case only. A batch that it
refuses is left to `frame_encoder`, which says what is wrong with it, or finds it in order after all.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.format import native
from rmq_store.format import properties as names
from rmq_store.format.encode_input import EncodeInput, EncodeOptions, RowFields
from rmq_store.format.frame_fields import header_dtype
from rmq_store.format.frame_parts import encoded_rows
from rmq_store.format.host import Host
from rmq_store.format.ids import month_start_ms
from rmq_store.format.index_keys import topic_hashes
from rmq_store.format.native import Rows, Texts
from rmq_store.format.property_encoder import NAMED_COLUMNS
from rmq_store.threads import map_in_threads, processor_count

# A thread costs 0.1 ms to start: as much as 0.2 MB of frames.
_PART_BYTES_MIN = 1 << 20


def encode_natively(
    given: EncodeInput,
    topics: pa.DictionaryArray,
    bodies: pa.LargeBinaryArray,
    fields: RowFields,
    options: EncodeOptions,
) -> pa.RecordBatch | None:
    """What `frame_encoder.encode_batch` answers, or None: refused. `bodies` (n,) are those to be stored. The extension
    must be there.
    """
    rows = columns_of(given, topics, bodies, fields, options)
    if rows is None:
        return None
    count = given.row_count
    offsets, hash_offsets = np.empty(count + 1, np.int64), np.empty(count + 1, np.int32)
    new_keys = np.empty(count, np.int64)
    new_key_count = native.functions.measure_frames(rows, offsets, hash_offsets, new_keys)
    if new_key_count is None:
        return None
    raw_prefix, first_sequence = b"", 0
    if (ids := options.unique_ids) is not None:
        raw_prefix, first_sequence = ids.reserve(new_key_count, options.now_ms, month_start_ms(options.now_ms))
    key_prefix = raw_prefix.hex().upper().encode()
    # Arrow's memory pool keeps large pieces for the next batch; numpy's would come from the kernel, page by page.
    frames = pa.allocate_buffer(int(offsets[-1]))
    hashes = np.empty(int(hash_offsets[-1]), np.int32)
    crcs, tags_codes = np.empty(count, np.uint32), np.empty(count, np.int64)

    def write(part: tuple[int, int]) -> None:
        native.functions.write_frames(
            rows, *part, fields.queue_ids, fields.flags, fields.born_timestamps, fields.reconsume_times, key_prefix,
            first_sequence, offsets, hash_offsets, new_keys, np.frombuffer(frames, np.uint8), crcs, tags_codes, hashes,
        )  # fmt: skip

    map_in_threads(write, _parts(offsets) if options.in_threads else [(0, count)])
    buffers = [None, pa.py_buffer(offsets), frames]
    return encoded_rows(
        pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, buffers),
        topics,
        fields.queue_ids,
        fields.sys_flags,
        crcs,
        tags_codes,
        pa.ListArray.from_arrays(pa.array(hash_offsets), pa.array(hashes)),
    )


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
    """The rows as the extension takes them (native/rows.h); None: it does not take them."""
    entries = None
    if (properties := given.properties()) is not None:
        if _has_entries_under_null(properties):
            return None
        entries = properties.offsets.to_numpy(), _texts(properties.keys), _texts(properties.items)
    return (
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
