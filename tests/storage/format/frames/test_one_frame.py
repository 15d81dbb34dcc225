"""One message as a frame: in Python and in C, the same bytes and hashes, or the same error."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmq_store.errors import UsageError
from rmq_store.format.bytes import native
from rmq_store.format.frames.one_frame import Hosts, encode_one
from rmq_store.format.frames.stored_message import complete_frame
from rmq_store.format.text.host import Host

pytestmark = pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")

V4 = Hosts(Host.parse("10.108.115.217:0"), Host.parse("10.108.115.217:10911"))
V6 = Hosts(Host.parse("[fe80::1]:0"), Host.parse("10.108.115.217:10911"))
V6_STORE = Hosts(Host.parse("10.108.115.217:0"), Host.parse("[fe80::2]:10911"))
V6_BOTH = Hosts(V6.born, V6_STORE.store)
ORDINARY: dict[str, Any] = {
    "topic": "Topic", "body": b"body", "properties": {"UNIQ_KEY": "u", "KEYS": "a b", "TAGS": "T"}, "hosts": V4,
    "queue_id": 3, "flag": 0, "sys_flag": 0, "born_timestamp_ms": 1_700_000_000_000, "crc_property": True,
    "index_tags": True,
}  # fmt: skip

Made = TypeVar("Made")

texts = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=12)
names = st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "DELAY", "a", "x__CRC32#"]) | texts


def python_only(made: Callable[[], Made]) -> Made:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "LOADED", False)
        return made()


def placed(fields: dict[str, Any]) -> tuple[bytes, list[int], int]:
    """As it is stored somewhere."""
    made = encode_one(**fields)
    complete_frame(made.frame, 7, 1 << 33, 1_700_000_000_001, crc_property=fields["crc_property"])
    return bytes(made.frame), made.key_hashes, made.tags_hash


@given(
    st.dictionaries(names, texts | st.sampled_from(["k1 k2", " k ", "  ", "\U0001f600 中文"]), max_size=8),
    st.binary(max_size=50),
    texts | st.just("x" * 127),
    st.sampled_from([0, 1, -(1 << 31), (1 << 31) - 1]),
    st.booleans(),
    st.booleans(),
)
@example({"KEYS": "polygenelubricants"}, b"", "", 0, True, True)
@example({f"name{number}": "v" for number in range(64)}, b"", "T", 0, True, False)
@example({f"name{number}": "v" for number in range(65)}, b"", "T", 0, True, False)
@example({"__CRC32#": "0123456789"}, b"", "T", 0, True, False)
@example({"x__CRC32#": "0123456789"}, b"", "T", 0, True, False)
@example({}, b"", "x" * 128, 0, False, False)
def test_the_extension_makes_the_frames_that_python_makes(
    properties: dict[str, str], body: bytes, topic: str, flag: int, crc_property: bool, index_tags: bool
) -> None:
    fields = ORDINARY | {
        "properties": properties, "body": body, "topic": topic, "flag": flag, "crc_property": crc_property,
        "index_tags": index_tags, "sys_flag": 0x331,
    }  # fmt: skip
    assert placed(fields) == python_only(lambda: placed(fields))


def test_an_ordinary_message_is_made_by_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_store.format.frames.one_frame.encode_frame", None)
    made = encode_one(**ORDINARY)
    assert len(made.key_hashes) == 4


@pytest.mark.parametrize(("size", "has_crc"), [(0, False), (87, False), (107, True)])
def test_what_is_too_short_for_a_frame_gets_no_place(size: int, has_crc: bool) -> None:
    with pytest.raises(IndexError):
        complete_frame(bytearray(size), 7, 1 << 33, 1_700_000_000_001, crc_property=has_crc)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("properties", {"a": ""}),
        ("properties", {"": "a"}),
        ("properties", {"a": "b\x01"}),
        ("properties", {"a\x02": "b"}),
        ("properties", {"a": 7}),
        ("properties", {7: "a"}),
        ("properties", {"a": "\udcff"}),
        ("properties", {"a": "x" * 32_750}),
        ("properties", {"a": "x" * 32_767}),
        ("flag", 1 << 31),
        ("flag", 1 << 80),
        ("flag", "text"),
        ("sys_flag", (1 << 32) + 1),
        ("sys_flag", -(1 << 32)),
        ("queue_id", 1 << 31),
        ("born_timestamp_ms", 1 << 63),
        ("born_timestamp_ms", None),
    ],
)
def test_what_cannot_be_stored_is_the_same_error(field: str, value: object) -> None:
    fields = ORDINARY | {field: value}
    with pytest.raises(UsageError) as said:
        encode_one(**fields)
    with pytest.raises(UsageError) as meant:
        python_only(lambda: encode_one(**fields))
    assert str(said.value) == str(meant.value)


def test_properties_may_take_as_much_as_there_is_room_for() -> None:
    most = {"a": "x" * (32_767 - 20 - 3)}
    fields = ORDINARY | {"properties": most}
    assert placed(fields) == python_only(lambda: placed(fields))
    with pytest.raises(UsageError):
        encode_one(**ORDINARY | {"properties": {"a": most["a"] + "x"}})


def test_properties_are_stored_in_the_order_that_their_mapping_says() -> None:
    moved = OrderedDict(a="1", b="2")
    moved.move_to_end("a")
    frame = bytes(encode_one(**ORDINARY | {"properties": moved}).frame)
    assert b"b\x012\x02a\x011\x02" in frame


@pytest.mark.parametrize("crc_property", [True, False])
@pytest.mark.parametrize("hosts", [V6, V6_STORE, V6_BOTH])
def test_hosts_of_sixteen_bytes_have_their_flags(hosts: Hosts, crc_property: bool) -> None:
    fields = ORDINARY | {"hosts": hosts, "crc_property": crc_property}
    assert placed(fields) == python_only(lambda: placed(fields))
