"""The optional C extension (sources in native/). Arguments are buffers: contiguous numpy arrays of the dtypes below.

All results are written into arrays that the caller gives. Each function checks what it is given: TypeError for a buffer
of another kind of items, ValueError for another number of them, IndexError for a slice outside of its data.
"""

from rmq_store.format.native import Bytes, Int64, UInt32

def slice_crcs(data: Bytes, starts: Int64, ends: Int64, seeds: UInt32 | None, crcs: UInt32) -> None:
    """Into `crcs` (n,): CRC-32 of `data[starts[i]:ends[i]]`, which continues `seeds[i]`."""
