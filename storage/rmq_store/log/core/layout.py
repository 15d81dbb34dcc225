"""Offsets of the records of an append: arithmetic over their sizes, no I/O (data plane).

segment 0                                segment 1
| r0 | r1 | r2 |######################## | r3 | r4 | ...
                blank frame: fills the rest, at least 8 bytes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rmq_store.errors import UsageError

# 8 bytes, a size and the blank magic, must always fit behind the last record, or a scan could not tell "segment ends
# here" from "record torn here" (CommitLog END_FILE_MIN_BLANK_LENGTH).
BLANK_BYTES = 8

# So few groups are found faster by looking for each of them than by sorting.
_LOOKED_FOR_MAX = 16


class Run(NamedTuple):
    """Records [first, last) are contiguous from `offset` on, in one segment."""

    first: int
    last: int
    offset: int


class Layout(NamedTuple):
    """The offsets of n records.

    `offsets`: int64 (n,), commit-log offset of each; `runs`; `blanks`: (offset, size) of each blank frame; `end`.
    """

    offsets: np.ndarray
    runs: list[Run]
    blanks: list[tuple[int, int]]
    end: int


def lay_out(sizes: np.ndarray, start: int, segment_bytes: int) -> Layout:
    """Place records of `sizes` bytes (int64 (n,)) from offset `start` on, rolling segments.

    Raises:
        UsageError: a record that no segment can hold. Java reports such a message as stored and loses it.
    """
    count = len(sizes)
    ends = np.cumsum(sizes, dtype=np.int64)
    size = int(ends[-1]) if count else 0
    if count and size + BLANK_BYTES <= segment_bytes - start % segment_bytes:  # in one segment: the usual case
        return Layout(ends - sizes + start, [Run(0, count, start)], [], start + size)
    if count and int(sizes.max()) + BLANK_BYTES > segment_bytes:
        row = int(sizes.argmax())
        raise UsageError(f"record {row} of {int(sizes[row])} bytes does not fit a segment of {segment_bytes} bytes")
    offsets = np.empty(count, dtype=np.int64)
    runs: list[Run] = []
    blanks: list[tuple[int, int]] = []
    offset, first, placed = start, 0, 0
    while first < count:
        segment_end = offset - offset % segment_bytes + segment_bytes
        last = int(np.searchsorted(ends, placed + segment_end - BLANK_BYTES - offset, side="right"))
        if last > first:
            np.subtract(ends[first:last], sizes[first:last] + (placed - offset), out=offsets[first:last])
            runs.append(Run(first, last, offset))
            offset += int(ends[last - 1]) - placed
            placed = int(ends[last - 1])
            first = last
        if first < count:
            blanks.append((offset, segment_end - offset))
            offset = segment_end
    return Layout(offsets, runs, blanks, offset)


def lay_out_one(size: int, start: int, segment_bytes: int) -> int:
    """As `lay_out`, for one record: its offset. It is above `start` if a blank frame fills what is between. UsageError
    as there.
    """
    if size + BLANK_BYTES > segment_bytes:
        raise UsageError(f"a record of {size} bytes does not fit a segment of {segment_bytes} bytes")
    room = segment_bytes - start % segment_bytes
    return start if size + BLANK_BYTES <= room else start + room


def extent(bounds: Sequence[np.ndarray], start: int, segment_bytes: int) -> tuple[int, int]:
    """Where `lay_out` would begin and end with all records of some batches: (offset of the first one, end).

    `bounds`: of each batch int64 (n + 1,), where its records begin and end in a buffer. Looks at single records only
    where a segment ends. UsageError as `lay_out`.
    """
    first, end = -1, start
    for batch in bounds:
        offset, size = end, int(batch[-1] - batch[0])
        if size + BLANK_BYTES <= segment_bytes - end % segment_bytes:
            end += size
        else:
            layout = lay_out(np.diff(batch), end, segment_bytes)
            offset, end = int(layout.offsets[0]), layout.end
        if first < 0 and len(batch) > 1:
            first = offset
    return max(first, start), end


def distinct(values: np.ndarray) -> np.ndarray:
    """Each value once, ascending. By sorting: `numpy.unique` takes ten times as long since it makes a hash table."""
    ordered = np.sort(values)
    is_new = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    return ordered[is_new]


def members(codes: np.ndarray, group_count: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of each group, group after group, in their order of appearance.

    `codes`: int (n,), values below `group_count`; a row with one below 0 belongs to no group. Returns (row numbers
    int64 (m,), how many each group has, int64 (group_count,)).
    """
    if group_count <= _LOOKED_FOR_MAX:
        found = [np.flatnonzero(codes == code) for code in range(group_count)]
        return np.concatenate([np.empty(0, np.int64), *found]), np.array([len(rows) for rows in found], np.int64)
    rows = np.flatnonzero(codes >= 0)
    own = codes[rows]
    # numpy sorts 16-bit integers by radix, several times faster than wider ones.
    narrow = own.astype(np.uint16) if group_count <= 1 << 16 else own
    return rows[np.argsort(narrow, kind="stable")], np.bincount(own, minlength=group_count)


def ranks(codes: np.ndarray, group_count: int) -> tuple[np.ndarray, np.ndarray]:
    """Number the members of each group in their order of appearance.

    `codes`: int (n,), values in [0, group_count). Returns (rank int64 (n,), how many each group has (group_count,)).
    """
    if group_count == 1:
        return np.arange(len(codes), dtype=np.int64), np.array([len(codes)])
    rows, counts = members(codes, group_count)
    rank = np.empty(len(codes), dtype=np.int64)
    rank[rows] = numbered_from(np.zeros(group_count, np.int64), counts)
    return rank, counts


def numbered_from(firsts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """int64: of each group `counts[k]` numbers from `firsts[k]` on, group after group; both int64 (groups,)."""
    numbers: np.ndarray = np.arange(int(counts.sum())) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
    return numbers
