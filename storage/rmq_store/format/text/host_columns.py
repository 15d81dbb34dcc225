"""The hosts of many frames at once: as text, and in offset message ids (data plane)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.format.bytes import native
from rmq_store.format.bytes.gather import Bytes, Positions, gather_fields
from rmq_store.format.text.host import IPV4_HOST_BYTES, IPV6_HOST_BYTES, Host
from rmq_store.format.text.ids import offset_message_ids

_IPV4_TEXT_ROOM_BYTES = 32

Mask = npt.NDArray[np.bool_]
# (rows of that width, which rows they are) -> one text each
_Render = Callable[[Bytes, Positions], pa.StringArray]


def host_texts(data: Bytes, positions: Positions, is_ipv6: Mask) -> pa.StringArray:
    """`str(Host)` of the hosts at `positions` (n,), of 20 bytes where `is_ipv6` (n,), else of 8."""
    if native.LOADED and not bool(is_ipv6.any()):
        return _ipv4_texts(data, positions)
    return _by_width(data, positions, is_ipv6, lambda hosts, _: _texts(hosts))


def _ipv4_texts(data: Bytes, positions: Positions) -> pa.StringArray:
    offsets = np.empty(len(positions) + 1, np.int32)
    values = np.empty(len(positions) * _IPV4_TEXT_ROOM_BYTES, np.uint8)
    text_bytes = native.functions.ipv4_texts(data, positions, offsets, values)
    return pa.StringArray.from_buffers(len(positions), pa.py_buffer(offsets), pa.py_buffer(values[:text_bytes]))


def host_message_ids(data: Bytes, positions: Positions, is_ipv6: Mask, offsets: Positions) -> pa.StringArray:
    """`offset_message_id` of the store hosts at `positions` (n,) and the commit-log `offsets` (n,)."""
    return _by_width(data, positions, is_ipv6, lambda hosts, rows: offset_message_ids(hosts, offsets[rows]))


def _by_width(data: Bytes, positions: Positions, is_ipv6: Mask, render: _Render) -> pa.StringArray:
    """Render the IPv4 hosts and the IPv6 hosts apart, then put both back in order."""
    rendered = []
    order = np.argsort(is_ipv6, kind="stable")
    ipv6_from = len(order) - int(np.count_nonzero(is_ipv6))
    for rows, width in ((order[:ipv6_from], IPV4_HOST_BYTES), (order[ipv6_from:], IPV6_HOST_BYTES)):
        if len(rows):
            hosts = gather_fields(data, positions[rows], np.dtype((np.void, width)))
            rendered.append(render(hosts.view(np.uint8).reshape(len(rows), width), rows))
    if len(rendered) == 1:
        return rendered[0]
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return pa.concat_arrays(rendered or [pa.array([], pa.string())]).take(pa.array(places))


def _texts(hosts: Bytes) -> pa.StringArray:
    """There are few different hosts in a log: each is written out once, then taken by number."""
    count, width = hosts.shape
    if width == IPV4_HOST_BYTES:
        codes = pa.array(hosts.view(np.int64).ravel()).dictionary_encode()
        different = np.asarray(codes.dictionary).view(np.uint8).reshape(-1, width)
    else:
        packed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, [None, pa.py_buffer(hosts)])
        codes = packed.dictionary_encode()
        different = np.frombuffer(b"".join(codes.dictionary.to_pylist()), np.uint8).reshape(-1, width)
    texts = pa.array([str(Host.unpack(raw.tobytes())) for raw in different], pa.string())
    return texts.take(codes.indices)
