"""The ids under which a member of a batch may be indexed (data plane).

A 5.x Java client gives each message of a batch an id, and the batch itself one more, a moment later. The messages carry
both, and brokers index that of the batch. So the index does not hold a member's own id, but the batch's id is near it.
It has the same address, process and loader, a slightly higher counter, and the same time or a little later. A search
tries all such ids together. Sources: MessageClientIDSetter.java (createUniqID), DefaultMQProducer.java (batch).
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from rmq_store.format.text.hashing import index_hashes, java_hash

Int32 = npt.NDArray[np.int32]

# (ms, ids) that may lie between an id and that of its batch: large batches, and a producer that stood still.
_REACH = ((16, 2048), (1000, 64))

_TAIL = re.compile(r"[0-9A-Fa-f]+([0-9A-F]{8})([0-9A-F]{4})", re.ASCII)
_ID_LENGTHS = (32, 56)
_TIME_END, _COUNTER_END = 1 << 32, 1 << 16
_DIGITS = np.frombuffer(b"0123456789ABCDEF", np.uint8).astype(np.uint32)


def batch_id_hashes(topic: str, unique_key: str) -> Int32:
    """The index hashes of the possible ids of the batch that holds the message `unique_key`, (n,), some perhaps twice.
    Empty if that is no unique id.
    """
    match = _TAIL.fullmatch(unique_key) if len(unique_key) in _ID_LENGTHS else None
    if match is None:
        return np.empty(0, np.int32)
    time, counter = int(match[1], 16), int(match[2], 16)
    prefix = np.uint32(java_hash(f"{topic}#{unique_key[: match.start(1)]}") & 0xFFFFFFFF)
    found = []
    for ms_count, id_count in _REACH:
        times = (time + np.arange(ms_count, dtype=np.int64)) % _TIME_END
        counters = (counter + np.arange(1, id_count + 1, dtype=np.int64)) % _COUNTER_END
        heads = _append_hex(np.full(ms_count, prefix), times, 8)
        tails = _append_hex(np.zeros(id_count, np.uint32), counters, 4)
        found.append(((heads * np.uint32(31**4))[:, None] + tails[None, :]).ravel())
    hashes: Int32 = index_hashes(np.concatenate(found).view(np.int32))
    return hashes


def _append_hex(hashes: npt.NDArray[np.uint32], values: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.uint32]:
    """The hashes (n,) of texts to which `values` (n,) are appended as `width` hex digits."""
    for place in range(width - 1, -1, -1):
        hashes = hashes * np.uint32(31) + _DIGITS[(values >> (4 * place)) & 15]
    return hashes
