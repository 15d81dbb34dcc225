"""Checks many frames for damage, by their checksums (data plane).

A copy gets new checksums, which would hide damage of the original. So code that copies frames checks them here first.
If a frame ends with a CRC property, that checksum decides: it covers all bytes before it. For any other frame only the
body can be checked. A frame that `check_frame`, with the CRC property required, calls bad is never accepted here.
Source: CommitLog.java (checkMessageAndReturnSize); UtilAll.java (crc32).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rmq_store.format.bytes.gather import gather_fields
from rmq_store.format.frames.crc import crc_digits, slice_crcs
from rmq_store.format.frames.frame_check import CRC_MASK, check_frame
from rmq_store.format.frames.frame_fields import FrameHeaders
from rmq_store.format.properties.property_string import CRC_PROPERTY_BYTES, CRC_PROPERTY_PREFIX

Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp] | slice

# A CRC property as a few words, of which two hold its ten digits.
_PROPERTY = np.dtype([("name", "<u8"), ("equals", "u1"), ("digits", "<u8"), ("last_digits", "<u2"), ("end", "u1")])
assert _PROPERTY.itemsize == CRC_PROPERTY_BYTES
_NAME, _EQUALS, _END = np.uint64(int.from_bytes(CRC_PROPERTY_PREFIX[:8], "little")), CRC_PROPERTY_PREFIX[8], 2


def damaged_frames(headers: FrameHeaders, crc_from: int | None) -> Mask:
    """True for damaged frames, of n; bool (n,). All their lengths must be checked already.

    From the commit-log offset `crc_from` on a frame must end with a CRC property; None: none must.
    """
    tails = headers.properties_end - CRC_PROPERTY_BYTES
    has_room = tails >= headers.properties_start
    found = gather_fields(headers.data, tails[_rows(has_room)], _PROPERTY)
    flipped_bits = np.full(len(tails), 255, np.uint8)
    flipped_bits[has_room] = (
        np.bitwise_count(found["name"] ^ _NAME)
        + np.bitwise_count(found["equals"] ^ _EQUALS)
        + np.bitwise_count(found["end"] ^ _END)
    )
    damaged = np.ones(len(tails), np.bool_)
    ended = flipped_bits == 0
    rows = _rows(ended)
    digits = crc_digits(slice_crcs(headers.data, headers.positions[rows], tails[rows]))
    stored = found[_rows(ended[has_room])]
    damaged[rows] = (_words(digits[:, :8], "<u8") != stored["digits"]) | (
        _words(digits[:, 8:], "<u2") != stored["last_digits"]
    )
    # One bit away from the name of the property: nothing but damage makes such a name.
    plain = flipped_bits > 1
    if crc_from is not None:
        plain &= headers.physical_offset < crc_from
    if plain.any():
        rows = _rows(plain)
        starts, ends = headers.body_start[rows], headers.body_end[rows]
        crcs = slice_crcs(headers.data, starts, ends) & np.uint32(CRC_MASK)
        damaged[rows] = (crcs != headers.body_crc[rows].view(np.uint32)) & (ends > starts)
    return damaged


def damage_of(headers: FrameHeaders, row: int, crc_from: int | None) -> str:
    """The defect of a frame that `damaged_frames` has found."""
    must_have_crc = crc_from is not None and int(headers.physical_offset[row]) >= crc_from
    start, end = int(headers.positions[row]), int(headers.properties_end[row])
    return check_frame(
        headers.data.data, start, end, expect_offset=None, check_crc=True, force_prop_crc=must_have_crc
    ).reason


def _rows(mask: Mask) -> Rows:
    """The rows of a mask; of all rows, which is the usual case, nothing is copied."""
    return slice(None) if mask.all() else np.flatnonzero(mask)


def _words(digits: npt.NDArray[np.uint8], dtype: str) -> npt.NDArray[np.uint64]:
    """Each row of bytes as one number, (n,)."""
    words: npt.NDArray[np.uint64] = np.ascontiguousarray(digits).view(dtype)[:, 0]
    return words
