"""Copies stored frames in one pass, by the extension (data plane). `frame_copy` does the same with Arrow.

Each frame is checked, copied and changed while its bytes are in the cache, and its property string is read in place.
The extension handles only ordinary rows. It refuses others (IPv6 hosts, malformed UTF-8, more than 64 properties,
too many bytes of them). `frame_copy` then handles them, and raises the error if they are really wrong.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.format.batches.frame_parts import encoded_rows
from rmq_store.format.bytes import native
from rmq_store.format.bytes.gather import SLICES_BYTES_MAX, value_bytes
from rmq_store.format.frames.frame_fields import FrameHeaders
from rmq_store.format.properties.property_string import CRC_PROPERTY_BYTES
from rmq_store.format.text.host import Host
from rmq_store.format.views.index_keys import topic_hashes

Int32 = npt.NDArray[np.int32]

# Lengths of topic and properties; a separator that the last property lacks, and the CRC property behind it.
_MORE_BYTES_MAX = 2 + 2 + 1 + CRC_PROPERTY_BYTES
_ROW_HASHES_EXPECTED = 4  # on average; if there are more, the extension copies a second time


def copy_natively(
    headers: FrameHeaders,
    *,
    topics: pa.DictionaryArray,
    queue_ids: Int32,
    sys_flags: Int32,
    properties: pa.LargeBinaryArray | None,
    reconsume_times: Int32 | None,
    store_host: Host | None,
    crc_property: bool,
    index_tags: bool,
) -> pa.RecordBatch | None:
    """The result of `frame_copy.copy_frames` for messages that are not delayed, or None: refused. Topics and queue ids
    are checked already, `sys_flags` (n,) are those of the copies. The extension must be loaded.
    """
    if store_host is not None and store_host.is_ipv6:
        return None
    host = None if store_host is None else store_host.pack()
    times = None if reconsume_times is None else np.ascontiguousarray(reconsume_times, np.int32)
    codes, (topic_offsets, topic_bytes) = topics.indices.to_numpy(), value_bytes(topics.dictionary)
    strings = None if properties is None else value_bytes(properties)
    property_bytes = headers.properties_end - headers.properties_start if strings is None else np.diff(strings[0])
    kept_bytes = headers.body_end - headers.positions
    room = int(kept_bytes.sum() + property_bytes.sum() + np.diff(topic_offsets)[codes].sum())
    room += _MORE_BYTES_MAX * len(codes)
    if room > SLICES_BYTES_MAX:
        return None
    count = len(codes)
    offsets, hash_offsets = np.empty(count + 1, np.int64), np.empty(count + 1, np.int32)
    crcs, tags_codes = np.empty(count, np.uint32), np.empty(count, np.int64)
    # Arrow's memory pool keeps large pieces for the next batch; numpy's would come from the kernel, page by page.
    frames = pa.allocate_buffer(room)
    hash_count, hashes = _ROW_HASHES_EXPECTED * count, np.empty(0, np.int32)
    while hash_count > len(hashes):
        hashes = np.empty(hash_count, np.int32)
        found = native.functions.copy_frames(
            headers.data, headers.positions, headers.properties_end - headers.positions,
            (codes, topic_offsets, topic_bytes, topic_hashes(topics.dictionary).view(np.uint32)),
            queue_ids, sys_flags, times, host, strings, crc_property, index_tags,
            offsets, frames, crcs, tags_codes, hash_offsets, hashes,
        )  # fmt: skip
        if found is None:
            return None
        hash_count = found
    buffers = [None, pa.py_buffer(offsets), frames.slice(0, int(offsets[-1]))]
    return encoded_rows(
        pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, buffers),
        topics,
        queue_ids,
        sys_flags,
        crcs,
        tags_codes,
        pa.ListArray.from_arrays(pa.array(hash_offsets), pa.array(hashes[:hash_count])),
    )
