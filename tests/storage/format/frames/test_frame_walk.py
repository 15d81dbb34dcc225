"""Walking over frames: what `check_frame` calls a message, one behind another; in Python and in C alike."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from rmq_store.errors import CorruptRecordError
from rmq_store.format.bytes import native
from rmq_store.format.frames import frame_walk
from rmq_store.format.frames.frame_check import check_frame
from rmq_store.format.frames.frame_walk import sound_frames
from rmq_store.format.frames.stored_message import encode_blank, encode_frame
from rmq_store.format.text.host import Host

BASE = 1 << 40
HOSTS = (Host.parse("1.2.3.4:5"), Host.parse("[::1]:5"))
needs_native = pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")


@pytest.fixture(params=["python", pytest.param("extension", marks=needs_native)], autouse=True)
def _implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "LOADED", request.param == "extension")


def frame(at: int, **fields: object) -> bytes:
    given = {
        "topic": "T", "body": b"some body", "properties": b"KEYS\x01k\x02", "queue_id": 1, "queue_offset": 2,
        "commit_log_offset": BASE + at, "born_timestamp_ms": 3, "born_host": HOSTS[0], "store_timestamp_ms": 4,
        "store_host": HOSTS[0], "crc_property": True,
    }  # fmt: skip
    return encode_frame(**{**given, **fields})  # type: ignore[arg-type]


def frames(count: int, **fields: object) -> tuple[bytearray, list[int]]:
    """Frames one behind another, and where each begins."""
    data, starts = bytearray(), []
    for _ in range(count):
        starts.append(len(data))
        data += frame(len(data), **fields)
    return data, starts


def found(data: bytes | bytearray, start: int = 0, stop: int | None = None, crc_from: int | None = None) -> list[int]:
    positions, sizes = sound_frames(memoryview(data), start, len(data) if stop is None else stop, BASE, crc_from)
    assert (positions.dtype, sizes.dtype) == (np.int64, np.int64)
    ends = (positions + sizes).tolist()
    assert positions.tolist() == [start, *ends][:-1]
    return positions.tolist()


def test_all_frames_are_found_from_where_one_begins() -> None:
    data, starts = frames(20)
    assert found(data) == starts
    assert found(data, starts[7]) == starts[7:]
    assert found(data, starts[7] + 1) == []
    assert found(data, len(data)) == []


def test_the_last_frame_may_end_behind_the_stop() -> None:
    data, starts = frames(20)
    assert found(data, 0, starts[5]) == starts[:5]
    assert found(data, 0, starts[5] + 1) == starts[:6]
    assert found(data, starts[5], starts[5]) == []


def test_no_more_frames_than_the_most_are_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    data, starts = frames(20)
    monkeypatch.setattr(frame_walk, "FRAMES_MAX", 6)
    assert found(data) == starts[:6]


@pytest.mark.parametrize("behind", [encode_blank(64), bytes(64), b"\xff" * 64, b"\0\0\0", b""])
def test_the_walk_ends_at_what_is_no_message(behind: bytes) -> None:
    data, starts = frames(3)
    assert found(data + behind) == starts


def test_a_frame_that_does_not_know_its_own_offset_ends_the_walk() -> None:
    data, starts = frames(3)
    assert found(data + frame(len(data) + 1)) == starts


def test_where_a_checksum_must_be_a_frame_without_one_ends_the_walk() -> None:
    data, starts = frames(6, crc_property=False)
    assert found(data) == found(data, crc_from=BASE + len(data)) == starts
    assert found(data, crc_from=BASE + starts[3]) == found(data, crc_from=BASE + starts[2] + 1) == starts[:3]
    assert found(data, crc_from=BASE) == found(data, crc_from=0) == []


def test_the_checksum_of_the_frame_stands_for_that_of_the_body_where_it_must_be() -> None:
    """RocketMQ's forceVerifyPropCRC."""
    data = frame(0, crc_property=False, properties=b"")
    other = bytearray(data)
    struct.pack_into(">I", other, 8, 1)
    assert (found(data), found(other)) == ([0], [])


def test_each_changed_byte_ends_the_walk_there() -> None:
    data, starts = frames(3)
    for position in range(starts[1], starts[2]):
        for flip in (1, 0x80, 0xFF):
            changed = bytearray(data)
            changed[position] ^= flip
            assert found(changed, crc_from=BASE) == starts[:1], (position, flip)


@pytest.mark.parametrize("place", range(10))
def test_one_bit_of_the_name_of_the_checksum_does_not_hide_it(place: int) -> None:
    data = bytearray(frame(0))
    data[len(data) - 20 + (place if place < 9 else 19)] ^= 4
    assert found(data) == []


def test_checksums_are_looked_for_in_the_properties_only() -> None:
    raw = frame(0, topic="__CRC32#\x0112345", body=b"", properties=b"a\x01b\x02", crc_property=False)
    assert raw[-20:-11] == b"__CRC32#\x01"
    assert found(raw) == [0]


def test_random_frames_are_judged_as_one_by_one() -> None:
    chance = random.Random(20261122)
    ended = 0
    for _ in range(1500):
        data = bytearray()
        for _ in range(chance.randrange(1, 6)):
            data += frame(
                len(data), topic=chance.choice(["T", "x" * 127, "y" * 200]),
                body=chance.randbytes(chance.randrange(90)),
                properties=chance.choice([b"", b"TAGS\x01TagA\x02", b"a\x01b", b"z\x01" + b"y" * 30]),
                crc_property=chance.random() < 0.7, born_host=chance.choice(HOSTS), store_host=chance.choice(HOSTS),
            )  # fmt: skip
        for _ in range(chance.randrange(3)):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        crc_from = chance.choice([None, 0, BASE + chance.randrange(len(data))])
        one_by_one, position = [], 0
        while position < len(data):
            check = check_frame(
                memoryview(data), position, len(data), expect_offset=BASE + position, check_crc=True,
                force_prop_crc=crc_from is not None and crc_from <= BASE + position,
            )  # fmt: skip
            if check.kind != "message":
                ended += 1
                break
            one_by_one.append(position)
            position += check.size
        assert found(data, crc_from=crc_from) == one_by_one
    assert 300 < ended < 1400


@needs_native
def test_the_extension_refuses_what_it_cannot_use() -> None:
    data, places = np.zeros(100, np.uint8), np.zeros(4, np.int64)
    with pytest.raises(TypeError, match="sizes: expected aligned items of 8 bytes"):
        native.functions.walk_frames(data, 0, 100, 0, 0, places, np.zeros(4, np.int32))
    with pytest.raises(ValueError, match="sizes: expected 4 items, got 3"):
        native.functions.walk_frames(data, 0, 100, 0, 0, places, places[:3].copy())
    for start in (-1, 97, 1 << 62):
        assert native.functions.walk_frames(data, start, (1 << 63) - 1, 0, 0, places, places.copy()) == 0


def test_an_answer_to_a_pull_is_walked_whatever_log_offsets_its_frames_have() -> None:
    parts = [frame(0, commit_log_offset=offset, body=bytes(offset % 7)) for offset in (1 << 50, 3, 77, 0)]
    positions, sizes = frame_walk.frames_of_answer(b"".join(parts))
    assert sizes.tolist() == [len(part) for part in parts]
    assert positions.tolist() == [sum(map(len, parts[:number])) for number in range(4)]


def test_an_answer_without_messages_has_no_frames() -> None:
    positions, sizes = frame_walk.frames_of_answer(b"")
    assert len(positions) == len(sizes) == 0


@pytest.mark.parametrize("behind", [b"\0\0\0", b"\xff" * 200, encode_blank(64), frame(0)[:-1]])
def test_an_answer_with_other_bytes_behind_its_messages_is_refused(behind: bytes) -> None:
    first = frame(0)
    with pytest.raises(CorruptRecordError, match="an answer to a pull has") as refused:
        frame_walk.frames_of_answer(first + behind)
    assert refused.value.offset == len(first)


def test_a_body_that_was_changed_on_its_way_is_refused() -> None:
    sent = bytearray(frame(0, crc_property=False) * 2)
    sent[len(sent) // 2 + 90] ^= 1
    with pytest.raises(CorruptRecordError) as refused:
        frame_walk.frames_of_answer(bytes(sent))
    assert refused.value.offset == len(sent) // 2
