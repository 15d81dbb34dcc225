"""Hashes decide slots and tag filters: one wrong bit and a broker no longer finds our messages. Vectors: spec 14.1."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.format.text.hashing import (
    index_hash,
    index_hashes,
    java_hash,
    java_hashes,
    topic_key_hash,
    topic_key_hashes,
)

VECTORS = [
    ("", 0, 0),
    ("a", 97, 97),
    ("TagA", 2598919, 2598919),
    ("TagB", 2598920, 2598920),
    ("TagA || TagB", 1359775119, 1359775119),
    ("TAG-中文", -1827284947, 1827284947),
    ("\U0001f600", 1772899, 1772899),
    ("polygenelubricants", -2147483648, 0),
    ("T#aaaaCyKF", -2147483648, 0),
    ("TopicTest#OrderID001", -1231272886, 1231272886),
    ("TopicTest#0A6C73D939B318B4AAC20CBA5D920000", -154464086, 154464086),
]


def hash_by_definition(text: str) -> int:
    value = 0
    for unit in np.frombuffer(text.encode("utf-16-le"), "<u2").tolist():
        value = (31 * value + unit) % 2**32
    return value - 2**32 if value >= 2**31 else value


texts = st.text(st.one_of(st.characters(codec="utf-8"), st.characters(codec="ascii")), max_size=40)
columns = st.lists(st.one_of(st.none(), texts, st.from_regex(r"[A-F]{8}", fullmatch=True)), max_size=12)


@pytest.mark.parametrize(("text", "expected", "expected_index"), VECTORS)
def test_hashes_are_those_that_java_computes(text: str, expected: int, expected_index: int) -> None:
    assert java_hash(text) == expected
    assert index_hash(expected) == expected_index
    assert java_hashes(pa.array([text])).tolist() == [expected]
    assert index_hashes(np.array([expected], np.int32)).tolist() == [expected_index]


@given(texts)
def test_single_hash_follows_the_definition(text: str) -> None:
    assert java_hash(text) == hash_by_definition(text)


@given(texts, texts)
def test_a_hash_goes_on_from_that_of_what_stands_before(head: str, tail: str) -> None:
    assert java_hash(tail, java_hash(head)) == hash_by_definition(head + tail)
    assert topic_key_hash(head, tail) == index_hash(hash_by_definition(f"{head}#{tail}"))


def test_lone_surrogate_hashes_as_its_code_unit() -> None:
    assert java_hash("\ud800") == 0xD800


@given(columns, st.sampled_from([pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]), st.integers(0, 3))
def test_column_hash_equals_single_hashes(rows: list[str | None], kind: pa.DataType, skip: int) -> None:
    encoded = [None if row is None else row.encode() for row in rows]
    column = pa.array(encoded, kind)[skip:]
    assert java_hashes(column).tolist() == [0 if row is None else hash_by_definition(row) for row in rows[skip:]]


@given(columns)
def test_dictionary_column_hashes_as_its_values(rows: list[str | None]) -> None:
    column = pa.array(rows, pa.string()).dictionary_encode()
    assert java_hashes(column).tolist() == [0 if row is None else hash_by_definition(row) for row in rows]


def test_rows_longer_than_255_bytes_hash_right_beside_short_ones() -> None:
    rows = ["x" * 255, "abc" * 100, "", "y" * 256, "key", "é" * 300, None]
    assert java_hashes(pa.array(rows)).tolist() == [hash_by_definition(row or "") for row in rows]


def test_bytes_under_a_null_do_not_count() -> None:
    offsets = pa.py_buffer(np.array([0, 3, 6], np.int32))
    column = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"abcdef"), pa.py_buffer(b"\x01"))
    assert java_hashes(column).tolist() == [hash_by_definition("abc"), 0]


def test_column_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="int64"):
        java_hashes(pa.array([1, 2]))


@given(st.from_regex(r"[%a-zA-Z0-9_-]{1,20}", fullmatch=True), columns)
@pytest.mark.statement("F05")
def test_topic_key_hash_is_the_hash_of_both_joined(topic: str, keys: list[str | None]) -> None:
    expected = [0 if key is None else index_hash(hash_by_definition(f"{topic}#{key}")) for key in keys]
    assert topic_key_hashes(topic, pa.array(keys, pa.string())).tolist() == expected


def test_topic_key_hash_that_has_no_absolute_value_is_zero() -> None:
    assert topic_key_hashes("T", pa.array(["aaaaCyKF", "x"])).tolist()[0] == 0
