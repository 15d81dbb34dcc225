"""Batches of messages as frames, all at once (data plane).

The encoder makes every field that does not depend on the message's offset, in any thread, without a lock.
`patch_frames` writes the other fields when the offsets are known.
Source: MessageExtEncoder.java (encode), CommitLog.java (the CRC property).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.format.batches.encode_input import EncodeInput, EncodeOptions, RowFields, refuse_over
from rmq_store.format.batches.frame_parts import CRC_RESERVED, encoded_rows, fixed_width, hash_lists, topic_heads
from rmq_store.format.batches.frame_patch import patch_frames
from rmq_store.format.batches.native_encoder import encode_natively
from rmq_store.format.bytes import native
from rmq_store.format.bytes.gather import value_bytes
from rmq_store.format.frames.compression import compress
from rmq_store.format.frames.crc import array_crcs, shift_crcs, slice_crcs
from rmq_store.format.frames.frame_check import COMPRESSION_MASK, CRC_MASK, TRANSACTION_MASK, SysFlag
from rmq_store.format.frames.frame_fields import header_dtype
from rmq_store.format.properties import property_string as names
from rmq_store.format.properties.property_encoder import MapEntries, PropertyParts, no_separator, property_parts
from rmq_store.format.properties.property_string import CRC_PROPERTY_BYTES
from rmq_store.format.tables.schema import ENCODED_SCHEMA
from rmq_store.format.text.hashing import java_hashes
from rmq_store.format.text.ids import month_start_ms
from rmq_store.format.views.index_keys import index_key_hashes, topic_hashes
from rmq_store.lazy.arrow_compute import pc

__all__ = ["EncodeOptions", "encode_batch", "patch_frames"]

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt32 = npt.NDArray[np.uint32]

# A whole frame may exceed the limit for bodies by this much: more than header, topic and properties can take, so the
# limits on these are enough. MessageExtEncoder.java.
_FRAME_BYTES_OVER_BODY = 64 * 1024
# From here on (mean of a batch) it is cheaper to put a frame's CRC together than to read the body a second time.
_COMBINED_BODY_BYTES_MIN = 2048


def encode_batch(batch: pa.RecordBatch, *, queue_ids: Int32, options: EncodeOptions) -> pa.RecordBatch:
    """Encode every row as a frame: an ENCODED_SCHEMA batch with as many rows, in their order.

    Columns used: `topic` and `body` (both required); `tags`, `keys`, `shardingKey` (string); `properties` (map<string,
    string>, entries with a null value are left out); `flag`, `reconsumeTimes`, `sysFlag` (integer, null is 0);
    `bornTimestamp` (timestamp). All others are ignored. A tag, key or sharding key that is null or empty leaves the
    property of that name as it is in the map. Bodies of rows with the COMPRESSED bit in `sysFlag` are stored unchanged.
    `queue_ids` (n,). The tags code is the tag's hash for scheduled messages too: only the append knows their time.

    Raises:
        UsageError: names the first bad row and its column: no body or one over the limit, a bad topic name, a separator
            or an empty text in the properties, more than 32767 bytes of them; or a column of another type.
    """
    assert len(queue_ids) == batch.num_rows
    assert bool((queue_ids >= 0).all())
    if batch.num_rows == 0:
        return pa.RecordBatch.from_pylist([], ENCODED_SCHEMA)
    given = EncodeInput(batch)
    topics = given.topics()
    fields = given.fields(queue_ids, options)
    bodies, fields = _compress(given.bodies(options.max_message_bytes), fields, options)
    if native.LOADED:
        encoded = encode_natively(given, topics, bodies, fields, options)
        if encoded is not None:
            return encoded
    return _encode(given, topics, bodies, fields, options)


def _encode(
    given: EncodeInput,
    topics: pa.DictionaryArray,
    bodies: pa.LargeBinaryArray,
    fields: RowFields,
    options: EncodeOptions,
) -> pa.RecordBatch:
    """As `encode_batch`; `bodies` are those to be stored."""
    properties = _properties(given, options)
    heads, magics = topic_heads(topics)

    body_lengths = np.diff(value_bytes(bodies)[0])
    property_lengths = _joined_lengths(properties, given.row_count)
    refuse_over(property_lengths, names.PROPERTIES_BYTES_MAX, "properties", "bytes of properties")
    header_type = header_dtype(options.born_host.is_ipv6, options.store_host.is_ipv6)
    sizes = header_type.itemsize + body_lengths + np.diff(value_bytes(heads)[0]) + 2 + property_lengths
    assert bool((sizes <= options.max_message_bytes + _FRAME_BYTES_OVER_BODY).all())

    body_crcs = array_crcs(bodies)
    headers = np.zeros(given.row_count, header_type)
    headers["total_size"] = sizes
    headers["magic"] = magics
    headers["body_crc"] = body_crcs & np.uint32(CRC_MASK)
    headers["queue_id"] = fields.queue_ids
    headers["flag"] = fields.flags
    headers["sys_flag"] = fields.sys_flags
    headers["born_timestamp"] = fields.born_timestamps
    headers["born_host"] = np.void(options.born_host.pack())
    headers["store_host"] = np.void(options.store_host.pack())
    headers["reconsume_times"] = fields.reconsume_times
    headers["body_length"] = body_lengths
    frames = pc.binary_join_element_wise(
        fixed_width(headers),
        bodies,
        heads,
        fixed_width(property_lengths.astype(">i2")),
        *properties.parts,
        no_separator(),
        null_handling="skip",
    )
    crcs = np.zeros(given.row_count, np.uint32)
    if options.crc_property:
        crcs = _frame_crcs(frames, headers.view(np.uint8).reshape(-1, header_type.itemsize), body_lengths, body_crcs)

    hashes = index_key_hashes(
        topic_hashes(topics),
        properties.unique_keys,
        properties.keys,
        fields.sys_flags & np.int32(TRANSACTION_MASK) != int(SysFlag.TRANSACTION_ROLLBACK),
        properties.tags if options.index_tags else None,
    )
    tags_codes = java_hashes(properties.tags).astype(np.int64)
    return encoded_rows(frames, topics, fields.queue_ids, fields.sys_flags, crcs, tags_codes, hash_lists(hashes))


def _compress(
    bodies: pa.LargeBinaryArray, fields: RowFields, options: EncodeOptions
) -> tuple[pa.LargeBinaryArray, RowFields]:
    """Compress the bodies that are long enough; their flags say so."""
    if options.compress_over_bytes is None:
        return bodies, fields
    lengths = np.diff(value_bytes(bodies)[0])
    is_plain = fields.sys_flags & int(SysFlag.COMPRESSED) == 0
    choice, flags = np.arange(len(bodies)), fields.sys_flags.copy()
    packed: list[bytes] = []
    for row in np.flatnonzero((lengths >= options.compress_over_bytes) & is_plain).tolist():
        body, bits = compress(bodies[row].as_py(), options.compress_kind)
        if len(body) < lengths[row]:
            choice[row] = len(bodies) + len(packed)
            flags[row] = flags[row] & ~COMPRESSION_MASK | bits
            packed.append(body)
    if not packed:
        return bodies, fields
    stored = pa.concat_arrays([bodies, pa.array(packed, pa.large_binary())]).take(pa.array(choice))
    return stored, replace(fields, sys_flags=flags)


def _properties(given: EncodeInput, options: EncodeOptions) -> PropertyParts:
    """The parts of the property strings, the reserved CRC property last."""
    entries = MapEntries(given.properties(), given.row_count, options.drop_properties)
    unique_keys = None
    if options.unique_ids is not None:
        lacking = np.ones(given.row_count, np.bool_)
        lacking[entries.rows[entries.named(names.UNIQUE_KEY)]] = False
        count = int(np.count_nonzero(lacking))
        unique_keys = options.unique_ids.next_ids(count, options.now_ms, month_start_ms(options.now_ms))
        if count < given.row_count:
            unique_keys = unique_keys.take(pa.array(np.cumsum(lacking) - 1, mask=~lacking))
    properties = property_parts(given.texts(), entries, unique_keys)
    if options.crc_property:
        properties.parts.append(pa.scalar(CRC_RESERVED, pa.large_binary()))
    return properties


def _joined_lengths(properties: PropertyParts, count: int) -> Int64:
    """Bytes of the property string of each row."""
    lengths = np.zeros(count, np.int64)
    for part in properties.parts:
        if isinstance(part, pa.Scalar):
            lengths += len(part.as_py())
        else:
            lengths += pc.binary_length(part).fill_null(0).to_numpy()
    return lengths


def _frame_crcs(
    frames: pa.LargeBinaryArray, headers: npt.NDArray[np.uint8], body_lengths: Int64, body_crcs: UInt32
) -> UInt32:
    """CRC-32 of each frame without its reserved CRC property."""
    offsets, data = value_bytes(frames)
    starts, ends = offsets[:-1], offsets[1:] - CRC_PROPERTY_BYTES
    if int(body_lengths.sum()) < _COMBINED_BODY_BYTES_MIN * len(frames):
        return slice_crcs(data, starts, ends)
    header_bytes = headers.shape[1]
    header_starts = np.arange(len(headers)) * header_bytes
    header_crcs = slice_crcs(headers.ravel(), header_starts, header_starts + header_bytes)
    seeds = shift_crcs(header_crcs, body_lengths) ^ body_crcs
    return slice_crcs(data, starts + header_bytes + body_lengths, ends, seeds)
