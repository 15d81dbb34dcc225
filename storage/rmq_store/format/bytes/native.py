"""The optional C extension with the most expensive inner loops, if it was built (data plane).

    if native.LOADED:
        native.functions.slice_crcs(...)

Next to each call there is a Python version of the same code. It is the reference, and it runs on a machine without a
C compiler. RMQ_PURE=1 in the environment keeps the extension from being loaded. Sources: rmq_store/native/.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt32 = npt.NDArray[np.uint32]
UInt64 = npt.NDArray[np.uint64]
Texts = tuple[npt.NDArray[np.signedinteger], pa.Buffer | bytes, pa.Buffer | None, int]
"""n texts: offsets (n + 1,) int32 into their bytes; a bitmap of those that are there, if not all are; its first bit."""


class Rows(NamedTuple):
    """The rows of a batch, n, in the form that the extension reads (native/rows.h).

    `topic_codes` (n,) are indexes into the topics; `topic_hashes` are the hashes of the topics, each followed by "#".
    `named`: columns that become properties, name and texts. `entries` of the maps: offsets (n + 1,), names, values.
    `left_out`: names of entries that are not stored. `header`: the bytes before the body that are the same for all
    frames.
    """

    body_offsets: Int64
    bodies: pa.Buffer | bytes
    topic_codes: Int32
    topic_offsets: npt.NDArray[np.signedinteger]
    topics: pa.Buffer | bytes
    topic_hashes: UInt32
    sys_flags: Int32
    named: tuple[tuple[bytes, Texts], ...]
    entries: tuple[Int32, Texts, Texts] | None
    left_out: Texts
    header: bytes
    body_bytes_max: int
    unique_key_bytes: int
    has_crc: bool
    indexes_tags: bool


# Raised whenever a function is added or its parameters change, here and in native/module.c: what was built before is
# not used.
INTERFACE = 28

try:
    from rmq_store import _native
except ImportError:
    LOADED = False
else:
    LOADED = getattr(_native, "INTERFACE", 1) == INTERFACE
    functions = _native


def _no_fence() -> None:
    """Python has none. x86 needs none."""


acquire_fence = functions.acquire_fence if LOADED else _no_fence
"""Call it behind the load of a word that processes share: what is read then is not older than that word."""
release_fence = functions.release_fence if LOADED else _no_fence
"""Call it before the store of such a word: who loads it finds all that was stored or written before."""
