"""Checksums of many frames: each bit of a record counts, and `check_frame` says the same of one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from rmq_store.errors import CorruptRecordError
from rmq_store.format.frames.frame_check import check_frame
from rmq_store.format.frames.frame_crcs import damage_of, damaged_frames
from rmq_store.format.frames.frame_fields import FrameHeaders, frame_columns
from rmq_store.format.frames.stored_message import encode_frame
from rmq_store.format.text.host import Host

HOST = Host.parse("10.0.0.1:10911")


def frame(
    offset: int, *, crc: bool, body: bytes = b"some body", properties: bytes = b"REAL_TOPIC\x01OrdersT\x02"
) -> bytes:
    return encode_frame(
        topic="T",
        body=body,
        properties=properties,
        queue_id=1,
        queue_offset=2,
        commit_log_offset=offset,
        born_timestamp_ms=3,
        born_host=HOST,
        store_timestamp_ms=4,
        store_host=HOST,
        crc_property=crc,
    )


def headers_of(*frames: bytes, base_offset: int | None = None) -> FrameHeaders:
    sizes = np.array([len(raw) for raw in frames], np.int32)
    return frame_columns(pa.py_buffer(b"".join(frames)), np.cumsum(sizes) - sizes, sizes, base_offset=base_offset)


@pytest.mark.parametrize("crc", [True, False])
@pytest.mark.parametrize("crc_from", [None, 0])
def test_every_flipped_bit_is_judged_as_check_frame_does(crc: bool, crc_from: int | None) -> None:
    whole = frame(0, crc=crc)
    seen = 0
    for bit in range(8 * len(whole)):
        raw = bytearray(whole)
        raw[bit // 8] ^= 1 << bit % 8
        try:
            headers = headers_of(bytes(raw), base_offset=0)
        except CorruptRecordError:
            continue  # lengths, magic, place: found before any checksum
        check = check_frame(
            memoryview(raw), 0, len(raw), expect_offset=None, check_crc=True, force_prop_crc=crc_from is not None
        )
        assert damaged_frames(headers, crc_from).tolist() == [check.kind != "message"], bit
        if check.kind != "message":
            assert damage_of(headers, 0, crc_from) == check.reason
        seen += 1
    assert seen > 4 * len(whole)


def test_frames_with_and_without_a_checksum_of_their_own_lie_side_by_side() -> None:
    """A broker wrote the first two: it had no reason to add one."""
    frames = [frame(0, crc=False), frame(1, crc=False, body=b"", properties=b""), *(frame(n, crc=True) for n in (2, 3))]
    bad = [frames[0].replace(b"some", b"sOme"), frames[1], frames[2].replace(b"OrdersT", b"OrdersU"), frames[3]]
    assert damaged_frames(headers_of(*frames), None).tolist() == [False] * 4
    assert damaged_frames(headers_of(*frames), 2).tolist() == [False] * 4
    assert damaged_frames(headers_of(*frames), 1).tolist() == [False, True, False, False]
    assert damaged_frames(headers_of(*bad), None).tolist() == [True, False, True, False]
    assert damage_of(headers_of(*frames), 1, 1) == "no CRC property"


def test_no_frames_are_no_damage() -> None:
    assert damaged_frames(headers_of(), 0).tolist() == []
