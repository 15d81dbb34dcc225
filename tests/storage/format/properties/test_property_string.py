"""The property string has no escapes: what it cannot hold has to be refused, and what others wrote read as they do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.errors import UsageError
from rmq_store.format.bytes.utf8 import decode_utf8
from rmq_store.format.properties.property_string import PROPERTIES_BYTES_MAX, encode_properties, parse_properties

parts = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=12)


@given(st.dictionaries(parts.filter(lambda name: name != "__CRC32#"), parts, max_size=6))
def test_properties_come_back_with_and_without_the_last_separator(properties: dict[str, str]) -> None:
    """Brokers 4.9.1 .. 5.1.4 leave the last separator out."""
    raw = encode_properties(properties)
    assert parse_properties(raw) == properties
    assert list(parse_properties(raw)) == list(properties)
    assert parse_properties(raw.removesuffix(b"\x02")) == properties


def test_properties_are_written_in_their_order() -> None:
    assert encode_properties({"KEYS": "OrderID001", "TAGS": "TagA"}) == b"KEYS\x01OrderID001\x02TAGS\x01TagA\x02"
    assert encode_properties({}) == b""


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", {}),
        (b"\x02\x02", {}),
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}),
        (b"a\x01\x01\x02", {"a": "\x01"}),
        (b"a\x02b\x01\x02\x01c\x02\x01\x02d\x01e", {"d": "e"}),
        (b"a\x011\x02b\x012\x02a\x013\x02", {"a": "3", "b": "2"}),
        (b"UNIQ_KEY\x01member\x02a\x011\x02UNIQ_KEY\x01batch\x02", {"UNIQ_KEY": "member", "a": "1"}),
        (b"a\x011\x02__CRC32#\x014594840841\x02", {"a": "1"}),
    ],
    ids=[
        "empty", "separators only", "value with x01", "value is x01", "empty names and values",
        "the last duplicate wins", "the first UNIQ_KEY wins", "frame checksum",
    ],
)  # fmt: skip
def test_odd_strings_are_read_as_rocketmq_reads_them(raw: bytes, expected: dict[str, str]) -> None:
    assert parse_properties(raw) == expected


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"ok \xe4\xb8\xad", "ok 中"),
        (b"\xed\xa0\x80", "�"),
        (b"\xed\xa0\xbd\xed\xb8\x80", "��"),
        (b"a\xed\xa0", "a�"),
        (b"\xed\xa0x", "�x"),
        (b"\xe4\xb8x", "�x"),
        (b"\xe0\x80\x80", "���"),
        (b"\xc0\x80", "��"),
        (b"\xf0\x9f\x98", "�"),
        (b"\xf4\x90\x80\x80", "����"),
        (b"\xff\xfe", "��"),
    ],
)
def test_malformed_utf8_gives_the_replacement_characters_that_java_gives(raw: bytes, text: str) -> None:
    """Java replaces an encoded surrogate as a whole, Python each of its bytes; elsewhere the two agree."""
    assert decode_utf8(raw) == text


@given(st.binary(max_size=60))
def test_any_bytes_parse_to_properties_that_can_be_stored(raw: bytes) -> None:
    properties = parse_properties(raw)
    assert all(
        name and value and "\x02" not in name + value and "\x01" not in name for name, value in properties.items()
    )


@pytest.mark.parametrize(
    "properties",
    [
        {"": "v"},
        {"n": ""},
        {"a\x01": "v"},
        {"a\x02": "v"},
        {"n": "a\x01"},
        {"n": "\x02"},
        {"n": "\ud800"},
        {"n": 1},
        {1: "v"},
    ],
)
def test_what_the_string_cannot_hold_is_refused(properties: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="propert"):
        encode_properties(properties)


def test_properties_may_take_32767_bytes_and_no_more() -> None:
    fits = {"n": "é" * ((PROPERTIES_BYTES_MAX - 3) // 2)}
    assert len(encode_properties(fits)) == PROPERTIES_BYTES_MAX
    with pytest.raises(UsageError, match="32768"):
        encode_properties({"n": fits["n"] + "x"})
