"""The optional C extension, where it was built: the inner loops that cost most (data plane).

    if native.LOADED:
        native.functions.slice_crcs(...)

Whatever it does, Python does here as well, next to each call: that is the reference, and all that a machine without a
C compiler has. The extension is not loaded either with RMQ_PURE=1 in the environment. Sources: rmq_store/native/.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt32 = npt.NDArray[np.uint32]
Texts = tuple[npt.NDArray[np.signedinteger], pa.Buffer | bytes, pa.Buffer | None, int]
"""n texts: offsets (n + 1,) int32 into their bytes; a bitmap of those that are there, if not all are; its first bit."""
Rows = tuple[object, ...]
"""What `native_encoder` makes of a batch; the extension knows the order."""

# Raised whenever a function is added or its parameters change, here and in native/module.c: what was built before is
# not used.
INTERFACE = 13

try:
    from rmq_store import _native
except ImportError:
    LOADED = False
else:
    LOADED = getattr(_native, "INTERFACE", 1) == INTERFACE
    functions = _native
