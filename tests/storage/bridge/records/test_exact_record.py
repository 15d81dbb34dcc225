"""Key and headers of a record in one property: exactly, and nothing else is read as such."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.bridge.records.exact_record import decode_exact, encode_exact
from rmq_store.errors import UsageError

some = st.one_of(st.none(), st.binary(max_size=200), st.just(b""), st.binary(min_size=130, max_size=140))


@given(some, st.lists(st.tuples(st.binary(max_size=20), some), max_size=200))
def test_key_and_headers_are_read_as_they_were(key: bytes | None, headers: list[tuple[bytes, bytes | None]]) -> None:
    text = encode_exact(key, headers)
    assert decode_exact(text) == (key, headers)
    assert text.isascii()
    assert not {"\x01", "\x02", "\0"} & set(text)


def test_the_bytes_are_those_of_a_kafka_record() -> None:
    assert base64.b64decode(encode_exact(b"key", [(b"n", b"v"), (b"", None)])) == b"\x06key\x04\x02n\x02v\x00\x01"
    assert base64.b64decode(encode_exact(None, [])) == b"\x01\x00"
    assert base64.b64decode(encode_exact(b"x" * 64, [])) == b"\x80\x01" + b"x" * 64 + b"\x00"


@pytest.mark.parametrize(
    "raw",
    [b"", b"\x06ke", b"\x01", b"\x01\x02", b"\x01\x02\x02n", b"\x01\x02\x01\x01", b"\x01\x01", b"\x01\x00x",
     b"\xff\xff\xff\xff\xff\x01", b"\x80", b"\x01\xfe\xff\xff\xff\x0f"],
)  # fmt: skip
def test_bytes_that_are_not_whole_are_refused(raw: bytes) -> None:
    with pytest.raises(UsageError, match="KAFKA_RECORD"):
        decode_exact(base64.b64encode(raw).decode())


@pytest.mark.parametrize("text", ["not base64", "A", "ä", "AQA", "AQA=\n"])
def test_text_that_is_no_base64_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no base64"):
        decode_exact(text)


@given(st.binary(max_size=30))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    try:
        key, headers = decode_exact(base64.b64encode(raw).decode())
    except UsageError:
        return
    assert decode_exact(encode_exact(key, headers)) == (key, headers)
