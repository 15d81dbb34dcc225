"""Frames bit for bit. Vectors: spec 14.2 and 14.3; the rest of the proof is every frame that Java wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.errors import CorruptRecordError, UsageError
from rmq_store.format.bytes import native
from rmq_store.format.frames.frame_check import SysFlag, check_frame, crc_property
from rmq_store.format.frames.message import Message
from rmq_store.format.frames.stored_message import (
    StoredMessage,
    complete_frame,
    decode_frame,
    encode_blank,
    encode_frame,
)
from rmq_store.format.properties.property_string import encode_properties
from rmq_store.format.text.host import Host

FRAME = bytes.fromhex(
    "00000089daa320a70bd69e520000000100000000000000000000000000000000"
    "00000000000000000000018bcfe5687bc0a801070000c8220000018bcfe56be8"
    "0a6c73d900002a9f0000000000000000000000000000000b48656c6c6f20776f"
    "726c6409546f70696354657374001a4b455953014f7264657249443030310254"
    "414753015461674102"
)
BORN, STORE = Host.parse("192.168.1.7:51234"), Host.parse("10.108.115.217:10911")
V6 = Host.parse("[fe80::1234]:10911")


def frame(**changes: object) -> bytes:
    fields: dict[str, object] = {
        "topic": "TopicTest",
        "body": b"Hello world",
        "properties": encode_properties({"KEYS": "OrderID001", "TAGS": "TagA"}),
        "queue_id": 1,
        "queue_offset": 0,
        "commit_log_offset": 0,
        "born_timestamp_ms": 1700000000123,
        "born_host": BORN,
        "store_timestamp_ms": 1700000001000,
        "store_host": STORE,
    }
    return encode_frame(**{**fields, **changes})  # type: ignore[arg-type]


def decode(raw: bytes) -> StoredMessage:
    return decode_frame(memoryview(raw), 0, len(raw))


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("crc", [True, False])
@pytest.mark.parametrize(("born", "store"), [(BORN, STORE), (V6, STORE), (BORN, V6), (V6, V6)])
def test_a_frame_gets_its_place_afterwards_as_if_it_had_been_known(
    born: Host, store: Host, crc: bool, pure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "LOADED", native.LOADED and not pure)
    place = {"queue_offset": (1 << 40) + 3, "commit_log_offset": (5 << 30) + 7, "store_timestamp_ms": 1700000009999}
    rest = {"born_host": born, "store_host": store, "crc_property": crc}
    patched = bytearray(frame(**rest, queue_offset=0, commit_log_offset=0, store_timestamp_ms=0))
    complete_frame(patched, *place.values(), crc_property=crc)
    assert patched == frame(**rest, **place)


def test_frame_is_the_one_that_java_loads() -> None:
    assert frame() == FRAME
    message = decode(FRAME)
    assert (message.topic, message.body, message.tags, message.keys) == (
        "TopicTest",
        b"Hello world",
        "TagA",
        "OrderID001",
    )
    assert message.body_crc == 198614610
    assert (str(message.born_host), str(message.store_host)) == ("192.168.1.7:51234", "10.108.115.217:10911")
    assert message.offset_msg_id == "0A6C73D900002A9F0000000000000000"
    assert message.encode() == FRAME


@pytest.mark.parametrize(
    ("body", "topic", "properties", "born", "store", "size"),
    [
        (0, 1, 0, BORN, STORE, 92),
        (11, 9, 77, BORN, STORE, 188),
        (11, 9, 77, V6, STORE, 200),
        (11, 9, 77, BORN, V6, 200),
        (11, 9, 77, V6, V6, 212),
        (10, 137, 7, BORN, STORE, 246),
        (1024, 9, 0, BORN, STORE, 1124),
        (4194304, 127, 32767, BORN, STORE, 4227289),
    ],
)
def test_frame_sizes(body: int, topic: int, properties: int, born: Host, store: Host, size: int) -> None:
    raw = frame(body=bytes(body), topic="t" * topic, properties=b"p" * properties, born_host=born, store_host=store)
    assert len(raw) == size
    assert check_frame(memoryview(raw), 0, size, expect_offset=0, check_crc=True) == ("message", size, "")


def test_body_crc_loses_its_top_bit_only() -> None:
    assert decode(frame(body=b"Hello RocketMQ")).body_crc == 1774740973
    assert decode(frame(body=b"")).body_crc == 0


def test_v2_begins_with_the_128th_byte_of_the_topic() -> None:
    assert frame(topic="t" * 127)[4:8].hex() == "daa320a7"
    assert frame(topic="t" * 128)[4:8].hex() == "daa320ab"


def test_host_bits_of_the_flag_follow_the_hosts() -> None:
    """A flag that was taken over from another message must not make the hosts unreadable."""
    copied = int(SysFlag.BORN_HOST_V6 | SysFlag.COMPRESSED)
    assert decode(frame(sys_flag=copied)).sys_flag == SysFlag.COMPRESSED
    message = decode(frame(sys_flag=0, store_host=V6))
    assert message.sys_flag == SysFlag.STORE_HOST_V6
    assert message.offset_msg_id == "FE80000000000000000000000000123400002A9F0000000000000000"


hosts = st.builds(
    Host,
    st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)),
    st.integers(-(2**31), 2**31 - 1),
)
int32, int64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
fields = st.fixed_dictionaries(
    {
        "topic": st.text(st.characters(codec="utf-8"), min_size=1, max_size=70).map(lambda text: text * 3),
        "body": st.binary(max_size=50),
        "properties": st.binary(max_size=50),
        "queue_id": st.integers(0, 2**31 - 1),
        "queue_offset": st.integers(0, 2**63 - 1),
        "commit_log_offset": st.integers(0, 2**63 - 1),
        "born_timestamp_ms": int64,
        "born_host": hosts,
        "store_timestamp_ms": int64,
        "store_host": hosts,
        "flag": int32,
        "sys_flag": int32,
        "reconsume_times": int32,
        "prepared_transaction_offset": int64,
    }
)


@given(fields, st.booleans(), st.integers(0, 3))
def test_every_field_comes_back(values: dict[str, object], crc: bool, position: int) -> None:
    raw = encode_frame(**values, crc_property=crc)  # type: ignore[arg-type]
    view = memoryview(bytes(position) + raw + b"behind")
    message = decode_frame(view, position, len(view))
    for name, value in values.items():
        if name not in ("sys_flag", "properties"):
            assert getattr(message, name) == value, name
    assert message.sys_flag & ~0x30 == values["sys_flag"] & ~0x30  # type: ignore[operator]
    assert message.total_size == len(raw)
    assert message.encode(crc_property=crc) == raw
    if not crc:
        assert message.properties_raw == values["properties"]


def test_checksum_ends_the_frame_and_replaces_an_older_one() -> None:
    raw = frame(crc_property=True)
    assert (
        check_frame(memoryview(raw), 0, len(raw), expect_offset=0, check_crc=True, force_prop_crc=True).kind
        == "message"
    )
    moved = replace(decode(raw), queue_offset=7).encode(crc_property=True)
    assert len(moved) == len(raw)
    assert moved[-20:] != raw[-20:]
    assert (
        check_frame(memoryview(moved), 0, len(raw), expect_offset=0, check_crc=True, force_prop_crc=True).kind
        == "message"
    )


def test_checksum_digits_come_least_significant_first() -> None:
    assert crc_property(1480484954) == b"__CRC32#\x014594840841\x02"
    assert crc_property(0x80000000 | 12) == b"__CRC32#\x012100000000\x02"


def test_checksum_behind_properties_without_their_last_separator_adds_it() -> None:
    assert decode(frame(properties=b"a\x01b", crc_property=True)).properties_raw[:13] == b"a\x01b\x02__CRC32#\x01"
    assert decode(frame(properties=b"", crc_property=True)).properties_raw[:9] == b"__CRC32#\x01"
    ours = b"x__CRC32#\x010123456789\x02"
    assert decode(frame(properties=ours, crc_property=True)).properties_raw[: len(ours)] == ours
    assert decode(frame(properties=b"a\x01b\x02" + ours[1:], crc_property=True)).properties_raw[:5] == b"a\x01b\x02_"


def test_checksum_counts_towards_the_limit_of_the_properties() -> None:
    assert decode(frame(properties=b"a\x01" + b"b" * 32744 + b"\x02", crc_property=True)).properties["a"] == "b" * 32744
    for properties, crc in ((b"a\x01" + b"b" * 32745 + b"\x02", True), (bytes(32768), False)):
        with pytest.raises(UsageError, match="32768"):
            frame(properties=properties, crc_property=crc)


@pytest.mark.parametrize(
    "change", [{"flag": 2**31}, {"queue_id": -(2**31) - 1}, {"commit_log_offset": 2**63}, {"topic": "t" * 65536}]
)
def test_field_that_does_not_fit_its_width_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="does not fit"):
        frame(**change)


def test_blank_is_eight_bytes_whatever_it_covers() -> None:
    assert encode_blank(1183).hex() == "0000049fcbd43194"


def test_decoding_something_else_names_the_position() -> None:
    for raw, reason in ((encode_blank(8), "blank"), (bytes(200), "magic"), (FRAME[:-1], "left")):
        with pytest.raises(CorruptRecordError, match=reason) as caught:
            decode_frame(memoryview(b"\xff" + raw), 1, len(raw) + 1)
        assert caught.value.offset == 1


def test_id_that_the_client_shows_is_the_unique_key_if_there_is_one() -> None:
    assert decode(FRAME).msg_id == decode(FRAME).offset_msg_id
    assert decode(frame(properties=b"UNIQ_KEY\x01ABC\x02")).msg_id == "ABC"


@pytest.mark.parametrize(("bits", "dispatchable"), [(0x0, True), (0x4, False), (0x8, True), (0xC, False)])
def test_half_and_rolled_back_messages_have_no_queue_entry(bits: int, dispatchable: bool) -> None:
    assert decode(frame(sys_flag=bits | 0x301)).is_dispatchable is dispatchable


def test_named_fields_are_stored_before_the_other_properties_and_win() -> None:
    message = Message("t", b"", tags="T", keys=["k1", "k2"], sharding_key="s", properties={"a": "1", "TAGS": "other"})
    stored = message.stored_properties("ID")
    assert list(stored.items()) == [
        ("UNIQ_KEY", "ID"),
        ("KEYS", "k1 k2"),
        ("TAGS", "T"),
        ("__SHARDINGKEY", "s"),
        ("a", "1"),
    ]
    assert Message("t", b"", keys="k1 k2", properties={"TAGS": "x"}).stored_properties() == {
        "KEYS": "k1 k2",
        "TAGS": "x",
    }


def test_a_wish_to_wait_is_a_property() -> None:
    """Message.java: setDelayTimeLevel, setDeliverTimeMs."""
    message = Message("t", b"", delay_level=3, deliver_timestamp_ms=0, properties={"DELAY": "4"})
    assert message.stored_properties() == {"DELAY": "3", "TIMER_DELIVER_MS": "0"}
    assert Message("t", b"", properties={"DELAY": "4"}).stored_properties() == {"DELAY": "4"}


def test_a_checksum_is_not_taken_from_a_caller() -> None:
    assert Message("t", b"", properties={"__CRC32#": "0123456789", "a": "1"}).stored_properties() == {"a": "1"}


@pytest.mark.parametrize(("name", "count"), [("normal", 18), ("propcrc", 18), ("crash", 18)])
def test_small_stores_decode_and_encode_to_the_same_bytes(
    golden_small: Path, walk_frames, name: str, count: int
) -> None:  # type: ignore[no-untyped-def]
    assert_same_bytes(list(walk_frames(golden_small / name)), count, crc_property=name == "propcrc")


def test_broker_store_decodes_and_encodes_to_the_same_bytes(golden: Path, walk_frames) -> None:  # type: ignore[no-untyped-def]
    assert_same_bytes(list(walk_frames(golden / "store")), 7063, crc_property=False)


def assert_same_bytes(frames: list[tuple[int, memoryview]], count: int, *, crc_property: bool) -> None:
    assert len(frames) == count
    for offset, raw in frames:
        message = decode_frame(raw, 0, len(raw))
        assert message.commit_log_offset == offset
        assert message.encode(crc_property=crc_property) == raw, offset
        rest = message.properties_raw[:-20] if crc_property else message.properties_raw
        if len(message.properties) == rest.count(b"\x02"):  # a batch member may hold UNIQ_KEY twice
            assert encode_properties(message.properties) == rest
