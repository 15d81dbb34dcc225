"""Units of consumequeue_ext: where a broker with enableConsumeQueueExt=true keeps the tags codes of its queue entries.

    <root>/consumequeue_ext/<topic>/<queue id>/<20 digits>     units one after another, of different sizes

    bytes  field        meaning
    0-1    size         int16, bytes, the whole unit: 20 + bit_map_size; -1: the next unit begins in the next file
    2-9    tags_code    int64, what the queue entry would hold
    10-17  store_time   int64, ms, storeTimestamp of the message
    18-19  bit_map_size int16, bytes; the bit map of SQL filters follows

The entry then holds an address: the byte of the unit in its queue's units, minus 2^63. Any tags code below the smallest
int32 is such an address. A process that replaces an address cuts the message off from its unit. Nothing here writes.
Source: ConsumeQueueExt.java (isExtAddr, unDecorate, CqExtUnit), ConsumeQueue.java (CqUnit of an iterator).
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rmq_store.files import durable
from rmq_store.format.bytes.gather import gather_fields
from rmq_store.format.text.names import parse_segment_name
from rmq_store.format.views.consume_queue import is_extension_address

Int64 = npt.NDArray[np.int64]

DIRECTORY = "consumequeue_ext"
UNIT = np.dtype([("size", ">i2"), ("tags_code", ">i8"), ("store_time", ">i8"), ("bit_map_size", ">i2")])
_ADDRESS_MIN = -(1 << 63)
NO_TIME = -1


def has_units(root: Path) -> bool:
    """True if a broker ever wrote units. Otherwise no tags code of the store is an address."""
    return (root / DIRECTORY).is_dir()


def read_units(root: Path, topic: str, queue_id: int, addresses: Int64) -> tuple[Int64, Int64]:
    """Tags code and store time (ms) of the units at `addresses` (n,), (n,) each. The time is NO_TIME where there is no
    unit.

    Raises:
        NotAStoreError: a directory of the path is a symbolic link.
        StoreFailedError, UsageError: a file cannot be read.
    """
    codes, times = addresses.copy(), np.full(len(addresses), NO_TIME, np.int64)
    directory = root / DIRECTORY / topic / str(queue_id)
    durable.refuse_links(directory.parent, directory)
    with durable.typed(directory):
        bases = _bases(directory)
        if not len(bases):
            return codes, times
        places = (addresses - np.int64(_ADDRESS_MIN)).astype(np.int64)
        numbers = np.searchsorted(bases, places, side="right") - 1
        for number in np.unique(numbers[numbers >= 0]).tolist():
            rows = np.flatnonzero(numbers == number)
            units, inside = _units(directory / f"{int(bases[number]):020d}", places[rows] - bases[number])
            whole = inside & (units["size"].astype(np.int32) == UNIT.itemsize + np.maximum(units["bit_map_size"], 0))
            codes[rows[whole]] = units["tags_code"][whole]
            times[rows[whole]] = units["store_time"][whole]
    return codes, times


def tags_codes(root: Path, topic: str, queue_id: int, entries: np.ndarray) -> Int64:
    """The tags codes of queue entries (dtype ENTRY), (n,). An address stays if its unit cannot be found."""
    codes: Int64 = entries["tags_code"].astype(np.int64)
    rows = np.flatnonzero(is_extension_address(codes))
    if len(rows):
        found, times = read_units(root, topic, queue_id, codes[rows])
        codes[rows] = np.where(times == NO_TIME, codes[rows], found)
    return codes


def _bases(directory: Path) -> Int64:
    try:
        names = [parse_segment_name(name) for name in os.listdir(directory)]  # noqa: PTH208 - as `views`: no Path each
    except (FileNotFoundError, NotADirectoryError):
        names = []
    return np.array(sorted(base for base in names if base is not None), np.int64)


def _units(path: Path, positions: Int64) -> tuple[np.ndarray, npt.NDArray[np.bool_]]:
    """UNIT (n,) at byte positions of a file, and which of them (n,) lie in it; the others are of no meaning."""
    try:
        fd = durable.open_nofollow(path, os.O_RDONLY)
    except FileNotFoundError:  # a broker has deleted it meanwhile
        return np.zeros(len(positions), UNIT), np.zeros(len(positions), np.bool_)
    try:
        size = os.fstat(fd).st_size
        inside: npt.NDArray[np.bool_] = positions <= size - UNIT.itemsize
        if not inside.any():
            return np.zeros(len(positions), UNIT), inside
        with mmap.mmap(fd, size, prot=mmap.PROT_READ) as view:
            data = np.frombuffer(view, np.uint8)
            units = gather_fields(data, np.where(inside, positions, 0), UNIT)
            del data
        return units, inside
    finally:
        os.close(fd)
