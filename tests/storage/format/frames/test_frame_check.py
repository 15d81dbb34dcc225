"""What recovery trusts. A frame that is wrong anywhere must be called bad, and no bytes may make the check fail."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmq_store.format.frames.frame_check import BLANK_MAGIC, FrameCheck, check_frame
from rmq_store.format.frames.stored_message import encode_blank, encode_frame
from rmq_store.format.text.host import Host

V4, V6 = Host.parse("1.2.3.4:5"), Host.parse("[::1]:5")


def frame(topic: str = "T", body: bytes = b"some body", crc: bool = False, host: Host = V4, at: int = 1000) -> bytes:
    return encode_frame(
        topic=topic,
        body=body,
        properties=b"KEYS\x01k\x02",
        queue_id=1,
        queue_offset=2,
        commit_log_offset=at,
        born_timestamp_ms=3,
        born_host=host,
        store_timestamp_ms=4,
        store_host=V4,
        crc_property=crc,
    )


def check(raw: bytes, **options: object) -> FrameCheck:
    return check_frame(memoryview(raw), 0, len(raw), **{"expect_offset": 1000, "check_crc": True, **options})  # type: ignore[arg-type]


def patched(raw: bytes, position: int, form: str, value: int) -> bytes:
    changed = bytearray(raw)
    struct.pack_into(form, changed, position, value)
    return bytes(changed)


FRAMES = [frame(), frame(crc=True), frame(topic="t" * 200, crc=True), frame(host=V6), frame(body=b"", crc=True)]


@pytest.mark.parametrize("raw", FRAMES)
def test_good_frame_is_good_wherever_it_lies(raw: bytes) -> None:
    view = memoryview(b"\xff" * 7 + raw + b"\xff" * 7)
    assert check_frame(view, 7, len(view), expect_offset=1000, check_crc=True) == ("message", len(raw), "")
    assert check_frame(view, 7, 7 + len(raw), expect_offset=None, check_crc=False) == ("message", len(raw), "")


@pytest.mark.parametrize("raw", FRAMES)
def test_frame_cut_anywhere_is_bad(raw: bytes) -> None:
    for length in range(len(raw)):
        assert check(raw[:length]).kind == "bad"
        view = memoryview(raw)
        assert check_frame(view, 0, length, expect_offset=1000, check_crc=True).kind == "bad"


def test_any_single_changed_byte_is_noticed_with_a_forced_checksum() -> None:
    raw = frame(crc=True)
    for position in range(len(raw)):
        for flip in (0x01, 0x80, 0xFF):
            changed = bytearray(raw)
            changed[position] ^= flip
            assert check(bytes(changed), force_prop_crc=True).kind == "bad", position
            if position < len(raw) - 20:
                assert check(bytes(changed)).kind == "bad", position


def test_body_is_checked_without_a_frame_checksum_too() -> None:
    raw = frame()
    at = raw.index(b"some body")
    changed = patched(raw, at, ">b", 0x53)
    assert check(changed) == ("bad", 0, "the body does not have the CRC that the header gives")
    assert check(changed, check_crc=False).kind == "message"


def test_forced_checksum_replaces_that_of_the_body_and_is_required() -> None:
    """RocketMQ's forceVerifyPropCRC: the body CRC is no longer looked at."""
    raw = frame(crc=True)
    other_body_crc = patched(raw, 8, ">i", 1)
    assert check(other_body_crc).reason.startswith("the body")
    assert check(other_body_crc, force_prop_crc=True).reason.startswith("the frame does not have the CRC")
    assert check(frame(), force_prop_crc=True) == ("bad", 0, "no CRC property")
    assert check(frame(), force_prop_crc=True, check_crc=False).kind == "message"


def test_checksum_that_is_no_number_fits_no_frame() -> None:
    raw = frame(crc=True)
    assert check(patched(raw, len(raw) - 5, ">b", ord("x"))).reason.startswith("the frame does not have the CRC")


def test_checksum_is_looked_for_in_the_properties_only() -> None:
    """Here topic, length and properties together look like one."""
    raw = encode_frame(
        topic="__CRC32#\x0112345",
        body=b"",
        properties=b"a\x01b\x02",
        queue_id=1,
        queue_offset=2,
        commit_log_offset=1000,
        born_timestamp_ms=3,
        born_host=V4,
        store_timestamp_ms=4,
        store_host=V4,
    )
    assert raw[-20:-11] == b"__CRC32#\x01"
    assert check(raw).kind == "message"


@pytest.mark.parametrize(
    ("position", "form", "value", "reason"),
    [
        (0, ">i", 5000, "more than"),
        (0, ">i", 90, "less than"),
        (0, ">i", -1, "less than"),
        (4, ">i", 0, "unknown magic 0x00000000"),
        (4, ">I", 0xDAA320A6, "unknown magic"),
        (28, ">q", 1001, "physical offset 1001 where 1000"),
        (12, ">i", -1, "negative queue id"),
        (20, ">q", -1, "queue offset -1"),
        (84, ">i", -1, "body length -1"),
        (84, ">i", 17, "topic length"),
        (84, ">i", 2**31 - 1, "body length"),
        (84, ">i", 0, "topic length"),
        (97, ">b", 0, "topic length 0"),
        (97, ">b", -1, "topic length -1"),
        (97, ">b", 127, "topic length 127"),
        (99, ">h", 6, "do not add up"),
        (99, ">h", 8, "do not add up"),
        (99, ">h", -1, "do not add up"),
    ],
)
def test_wrong_field_gives_its_reason(position: int, form: str, value: int, reason: str) -> None:
    result = check(patched(frame(), position, form, value))
    assert result.kind == "bad"
    assert reason in result.reason


def test_lengths_that_disagree_give_the_size_to_skip() -> None:
    """Java's dispatch goes on behind such a frame; behind any other bad one it does not know where to go on."""
    raw = frame()
    assert len(raw) == 108
    assert check(patched(raw, 99, ">h", 6)) == ("bad", 108, "the lengths inside do not add up to total size 108")
    assert check(patched(raw, 36, ">i", 0x30)).size == 108


def test_hosts_of_another_length_than_the_flag_says_do_not_fit() -> None:
    assert check(patched(frame(host=V6), 36, ">i", 0)).kind == "bad"


@pytest.mark.parametrize("size", [8, 100])
def test_blank_has_its_size(size: int) -> None:
    raw = encode_blank(size).ljust(100, b"\xff")
    assert check(raw) == ("blank", size, "")


@pytest.mark.parametrize("size", [-1, 0, 7, 101])
def test_blank_that_does_not_fit_is_bad(size: int) -> None:
    assert check(struct.pack(">ii", size, BLANK_MAGIC).ljust(100, b"\0")).kind == "bad"


def test_nothing_outside_the_limits_is_read() -> None:
    raw = frame()
    view = memoryview(raw)
    assert check_frame(view, -len(raw), len(raw), expect_offset=None, check_crc=True).kind == "bad"
    assert check_frame(view, 0, 10**6, expect_offset=None, check_crc=True).kind == "message"
    assert check_frame(view, len(raw) + 5, 10**6, expect_offset=None, check_crc=True).kind == "bad"


head = st.sampled_from([bytes.fromhex("daa320a7"), bytes.fromhex("daa320ab"), bytes.fromhex("cbd43194"), b"\0\0\0\0"])
random_frame = st.builds(
    lambda size, magic, rest: struct.pack(">i", size) + magic + rest,
    st.integers(-2, 200),
    head,
    st.binary(max_size=200),
)


@given(st.one_of(st.binary(max_size=200), random_frame), st.integers(-3, 210), st.integers(-3, 210), st.booleans())
@example(b"", 0, 0, True)
def test_any_bytes_are_judged_without_an_exception(raw: bytes, position: int, limit: int, force: bool) -> None:
    result = check_frame(memoryview(raw), position, limit, expect_offset=None, check_crc=True, force_prop_crc=force)
    assert bool(result.reason) == (result.kind == "bad")
    if result.kind != "bad":
        assert position >= 0
        assert position + result.size <= min(limit, len(raw))


@given(st.sampled_from(FRAMES), st.data())
def test_mutated_frames_are_judged_without_an_exception(raw: bytes, data: st.DataObject) -> None:
    changed = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    result = check(bytes(changed))
    assert result.size <= len(raw)


def test_mapped_segment_is_read_in_place(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000"
    path.write_bytes(frame(at=0).ljust(4096, b"\0"))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        view = memoryview(mapped)
        good = check_frame(view, 0, 4096, expect_offset=0, check_crc=True)
        assert good.kind == "message"
        assert check_frame(view, good.size, 4096, expect_offset=good.size, check_crc=True).reason.startswith(
            "unknown magic"
        )
        view.release()
