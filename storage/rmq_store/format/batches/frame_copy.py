"""Copies stored messages to new frames for another queue, all at once (data plane). The delivery of delayed messages,
send-back and redrive use it.

A copy keeps body, born time, born host and flag of the stored message, and every other field that no argument replaces.
Source: ScheduleMessageService.java (messageTimeUp), AbstractSendMessageProcessor.java (consumerSendMsgBack).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.errors import UsageError
from rmq_store.format.batches.encode_input import refuse_over
from rmq_store.format.batches.frame_parts import CRC_RESERVED, encoded_rows, fixed_width, hash_lists, topic_heads
from rmq_store.format.batches.native_copy import copy_natively
from rmq_store.format.bytes import native
from rmq_store.format.bytes.gather import gather_fields, take_slices, value_bytes
from rmq_store.format.frames.crc import slice_crcs
from rmq_store.format.frames.frame_check import HOSTS_V6_MASK, TRANSACTION_MASK, SysFlag
from rmq_store.format.frames.frame_fields import FrameHeaders, header_dtype
from rmq_store.format.properties import property_string as names
from rmq_store.format.properties.property_changes import crc_property_bytes, without_crc
from rmq_store.format.properties.property_columns import LAST_WINS, split_properties
from rmq_store.format.properties.property_encoder import no_separator
from rmq_store.format.properties.property_string import CRC_PROPERTY_BYTES
from rmq_store.format.tables.schema import ENCODED_SCHEMA
from rmq_store.format.text.hashing import java_hashes
from rmq_store.format.text.host import IPV4_HOST_BYTES, IPV6_HOST_BYTES, Host
from rmq_store.format.text.names import validate_topic
from rmq_store.format.views.index_keys import index_key_hashes, topic_hashes
from rmq_store.lazy.arrow_compute import pc
from rmq_store.lazy.dataclasses import dataclass

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

_PROPERTY_SEPARATOR = 2


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """Values that all copies share.

    `crc_property`: each copy ends with a new CRC property; otherwise it has none. `index_tags`: tags get index entries,
    as in brokers from 5.4.0 on.
    """

    crc_property: bool
    index_tags: bool = True


def copy_frames(
    headers: FrameHeaders,
    *,
    topics: pa.DictionaryArray,
    queue_ids: Int32,
    options: CopyOptions,
    properties: pa.LargeBinaryArray | None = None,
    reconsume_times: Int32 | None = None,
    sys_flags: Int32 | None = None,
    store_host: Host | None = None,
    delay_ms: Int64 | None = None,
) -> pa.RecordBatch:
    """Copy n checked frames, whose bytes are still mapped: an ENCODED_SCHEMA batch, same order.

    `topics` (n,) dictionary<int32, string> and `queue_ids` (n,) are the targets of the copies. `delay_ms` (n,) is the
    delay after their storeTimestamp (0 and None: not delayed). Each other argument replaces the field in all copies,
    None keeps it. The two V6 bits of `sys_flags` (n,) are ignored, they follow from the hosts. `properties` (n,) are
    whole property strings without nulls. A CRC property in them is left out, and made anew if `options` say so.
    preparedTransactionOffset becomes 0.

    Raises:
        UsageError: a bad topic name, a negative queue id, or more than 32767 bytes of properties; names the row.
    """
    count = len(headers.positions)
    assert len(topics) == len(queue_ids) == count
    if count == 0:
        return pa.RecordBatch.from_pylist([], ENCODED_SCHEMA)
    _check_places(topics, queue_ids)
    places = np.ascontiguousarray(queue_ids, np.int32)
    flags = _sys_flags(headers, sys_flags, store_host)
    copied = None
    if native.LOADED:
        copied = copy_natively(
            headers, topics=topics, queue_ids=places, sys_flags=flags, properties=properties,
            reconsume_times=reconsume_times, store_host=store_host, crc_property=options.crc_property,
            index_tags=options.index_tags,
        )  # fmt: skip
    if copied is None:
        copied = _copy(headers, topics, places, flags, options, properties, reconsume_times, store_host)
    if delay_ms is None:
        return copied
    place = ENCODED_SCHEMA.get_field_index("delay_ms")
    return copied.set_column(place, ENCODED_SCHEMA.field(place), pa.array(np.asarray(delay_ms, np.int64)))


def _copy(
    headers: FrameHeaders,
    topics: pa.DictionaryArray,
    queue_ids: Int32,
    flags: Int32,
    options: CopyOptions,
    properties: pa.LargeBinaryArray | None,
    reconsume_times: Int32 | None,
    store_host: Host | None,
) -> pa.RecordBatch:
    """As `copy_frames`, of messages that are not delayed; `flags` (n,) are those that the copies get."""
    strings = _stored_properties(headers) if properties is None else without_crc(properties)
    pieces = split_properties(strings, first_wins=LAST_WINS)
    if options.crc_property:
        strings = _ended(strings)
    bodies = headers.bodies()
    heads, magics = topic_heads(topics)

    body_lengths = headers.body_end - headers.body_start
    property_lengths = np.diff(value_bytes(strings)[0]) + CRC_PROPERTY_BYTES * options.crc_property
    refuse_over(property_lengths, names.PROPERTIES_BYTES_MAX, "properties", "bytes of properties")
    starts = _Starts(headers, flags, store_host)
    starts["total_size"] = body_lengths + np.diff(value_bytes(heads)[0]) + 2 + property_lengths + starts.sizes
    starts["magic"] = magics
    starts["body_crc"] = headers.body_crc
    starts["queue_id"] = queue_ids
    starts["flag"] = headers.flag
    starts["sys_flag"] = flags
    starts["born_timestamp"] = headers.born_timestamp
    starts["reconsume_times"] = headers.reconsume_times if reconsume_times is None else reconsume_times
    starts["body_length"] = body_lengths
    parts = [starts.encoded(), _large(bodies), heads, fixed_width(property_lengths.astype(">i2")), _large(strings)]
    if options.crc_property:
        parts.append(pa.scalar(CRC_RESERVED, pa.large_binary()))
    frames = pc.binary_join_element_wise(*parts, no_separator())
    crcs = np.zeros(len(frames), np.uint32)
    if options.crc_property:
        offsets, data = value_bytes(frames)
        crcs = slice_crcs(data, offsets[:-1], offsets[1:] - CRC_PROPERTY_BYTES)

    tags = pieces.column(names.TAGS)
    hashes = index_key_hashes(
        topic_hashes(topics),
        pieces.column(names.UNIQUE_KEY),
        pieces.column(names.KEYS),
        flags & np.int32(TRANSACTION_MASK) != int(SysFlag.TRANSACTION_ROLLBACK),
        tags if options.index_tags else None,
    )
    tags_codes = java_hashes(tags.dictionary_encode()).astype(np.int64)
    return encoded_rows(frames, topics, queue_ids, flags, crcs, tags_codes, hash_lists(hashes))


def _check_places(topics: pa.DictionaryArray, queue_ids: Int32) -> None:
    """The names come from property strings, and become names of directories."""
    is_used = np.zeros(len(topics.dictionary), np.bool_)
    is_used[topics.indices.to_numpy()] = True
    for code in np.flatnonzero(is_used).tolist():
        try:
            validate_topic(topics.dictionary[code].as_py())
        except UsageError as error:
            raise UsageError(f"row {topics.indices.index(code).as_py()}: {error}") from None
    negative = np.asarray(queue_ids) < 0
    if bool(negative.any()):
        row = int(negative.argmax())
        raise UsageError(f"row {row}: {queue_ids[row]} is no queue id")


def _stored_properties(headers: FrameHeaders) -> pa.BinaryArray:
    """The property strings without their CRC property."""
    more = crc_property_bytes(headers.data, headers.properties_start, headers.properties_end)
    return take_slices(pa.py_buffer(headers.data), headers.properties_start, headers.properties_end - more)


def _ended(strings: pa.Array) -> pa.Array:
    """A separator behind the last piece, which 4.9.1 .. 5.1.4 left out: the CRC property needs it."""
    offsets, data = value_bytes(strings)
    filled = offsets[1:] > offsets[:-1]
    lacking = filled.copy()
    lacking[filled] = data[offsets[1:][filled] - 1] != _PROPERTY_SEPARATOR
    if not bool(lacking.any()):
        return strings
    large = _large(strings)
    separator = pa.scalar(bytes([_PROPERTY_SEPARATOR]), pa.large_binary())
    return pc.if_else(pa.array(lacking), pc.binary_join_element_wise(large, separator, no_separator()), large)


def _sys_flags(headers: FrameHeaders, given: Int32 | None, store_host: Host | None) -> Int32:
    flags = headers.sys_flag if given is None else np.asarray(given, np.int32)
    hosts: Int32 = headers.sys_flag & np.int32(HOSTS_V6_MASK)
    if store_host is not None:
        hosts = hosts & np.int32(SysFlag.BORN_HOST_V6) | np.int32(store_host.is_ipv6 and SysFlag.STORE_HOST_V6)
    joined: Int32 = flags & np.int32(~HOSTS_V6_MASK) | hosts
    return joined


class _Starts:
    """The fields before the body of all frames, in one array for each width of the two hosts."""

    def __init__(self, headers: FrameHeaders, flags: Int32, store_host: Host | None) -> None:
        variants = (flags & np.int32(HOSTS_V6_MASK)) >> 4
        self._count = len(flags)
        self._groups: list[tuple[Int64, npt.NDArray[np.void]]] = []
        self.sizes = np.zeros(self._count, np.int64)
        for variant in np.unique(variants).tolist():
            rows = np.flatnonzero(variants == variant)
            is_born_ipv6, is_store_ipv6 = bool(variant & 1), bool(variant & 2)
            starts = np.zeros(len(rows), header_dtype(is_born_ipv6, is_store_ipv6))
            starts["born_host"] = _hosts(headers, headers.born_host_position[rows], is_born_ipv6)
            if store_host is None:
                starts["store_host"] = _hosts(headers, headers.store_host_position[rows], is_store_ipv6)
            else:
                starts["store_host"] = np.void(store_host.pack())
            self.sizes[rows] = starts.dtype.itemsize
            self._groups.append((rows, starts))

    def __setitem__(self, field: str, values: npt.NDArray[np.integer]) -> None:
        """Set a field of all frames, values (n,)."""
        for rows, starts in self._groups:
            starts[field] = values if len(self._groups) == 1 else values[rows]

    def encoded(self) -> pa.LargeBinaryArray:
        """The bytes, (n,), in the order of the frames."""
        if len(self._groups) == 1:
            return fixed_width(self._groups[0][1])
        places = np.empty(self._count, np.int64)
        places[np.concatenate([rows for rows, _ in self._groups])] = np.arange(self._count)
        return pa.concat_arrays([fixed_width(starts) for _, starts in self._groups]).take(pa.array(places))


def _hosts(headers: FrameHeaders, positions: Int64, is_ipv6: bool) -> npt.NDArray[np.void]:
    return gather_fields(headers.data, positions, np.dtype((np.void, IPV6_HOST_BYTES if is_ipv6 else IPV4_HOST_BYTES)))


def _large(values: pa.Array) -> pa.LargeBinaryArray:
    return values.cast(pa.large_binary())
