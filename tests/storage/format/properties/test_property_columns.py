r"""A column of property strings gives what `parse_properties` gives for each row, whatever the bytes are."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmq_store.format.properties.property_columns import parse_property_column, split_properties
from rmq_store.format.properties.property_string import parse_properties

# Pieces that meet each other in every order: separators, the names that are looked up, malformed UTF-8.
FRAGMENTS = [
    b"\x01",
    b"\x02",
    b"a",
    b"TAGS",
    b"KEYS",
    b"UNIQ_KEY",
    b"__CRC32#",
    b"TAGS\x01TagA\x02",
    b"UNIQ_KEY\x01first\x02",
    b"UNIQ_KEY\x01second\x02",
    b"x\x01y\x02",
    "中文\U0001f600".encode(),
    b"\xff",
    b"\xed\xa0\x80",
    b"\xe4\xb8",
]
property_strings = st.one_of(
    st.lists(st.sampled_from(FRAGMENTS), max_size=12).map(b"".join), st.binary(max_size=30)
)


def assert_equals_scalar(rows: list[bytes | None]) -> None:
    columns = parse_property_column(pa.array(rows, pa.binary()))
    columns.properties.validate(full=True)
    assert columns.properties.type == pa.map_(pa.string(), pa.string())
    expected = [parse_properties(row or b"") for row in rows]
    entries = columns.properties.to_pylist()
    assert [dict(row) for row in entries] == expected
    assert [len(row) for row in entries] == [len(row) for row in expected]  # no name twice
    assert columns.tags.to_pylist() == [row.get("TAGS") for row in expected]
    assert columns.keys.to_pylist() == [row.get("KEYS") for row in expected]
    assert columns.uniq_key.to_pylist() == [row.get("UNIQ_KEY") for row in expected]


@given(st.lists(property_strings, max_size=8))
@example([])
@example([b""])
@example([b"a\x01b"])
@example([b"a\x01b\x02", b"", b"c\x01d"])
def test_every_row_is_parsed_as_alone(rows: list[bytes]) -> None:
    assert_equals_scalar(list(rows))


@given(st.lists(st.dictionaries(st.text("abK\u00e9\U0001f600", min_size=1), st.text(min_size=1)), max_size=8))
def test_well_formed_rows_in_both_trailing_styles(rows: list[dict[str, str]]) -> None:
    texts = ["".join(f"{name}\x01{value}\x02" for name, value in row.items()) for row in rows]
    encoded = [text.encode(errors="replace") for text in texts]
    assert_equals_scalar(list(encoded))
    assert_equals_scalar([row.removesuffix(b"\x02") for row in encoded])


@pytest.mark.parametrize("count", [1, 31, 32, 33, 200])
def test_duplicates_are_found_in_rows_of_any_length(count: int) -> None:
    row = b"".join(b"name%d\x01v%d\x02" % (number % max(1, count - 1), number) for number in range(count))
    assert_equals_scalar([row, b"a\x01b\x02", row + b"UNIQ_KEY\x01one\x02UNIQ_KEY\x01two\x02"])


def test_long_names_that_differ_in_one_place_are_not_duplicates() -> None:
    assert_equals_scalar([b"".join(b"a.long.name.%d.of.a.property\x01v\x02" % number for number in range(9))])


def test_null_row_has_no_properties() -> None:
    assert_equals_scalar([None, b"TAGS\x01a\x02", None])


def test_slice_of_a_column_is_parsed_alone() -> None:
    column = pa.array([b"TAGS\x01other\x02", b"TAGS\x01mine\x02", b"x\x01y"], pa.binary())
    assert parse_property_column(column[1:]).tags.to_pylist() == ["mine", None]
    assert parse_property_column(column[1:2]).properties.to_pylist() == [[("TAGS", "mine")]]


def test_frame_checksum_is_no_property() -> None:
    column = pa.array([b"TAGS\x01a\x02__CRC32#\x014594840841\x02"], pa.binary())
    assert parse_property_column(column).properties.to_pylist() == [[("TAGS", "a")]]


def test_any_short_name_can_be_looked_up() -> None:
    pieces = split_properties(pa.array([b"DELAY\x013\x02", b"DELAYS\x019\x02", b"d\x011"], pa.binary()))
    assert pieces.column("DELAY").to_pylist() == ["3", None, None]
    assert pieces.column("d").to_pylist() == [None, None, "1"]


def test_long_names_are_looked_up_whole() -> None:
    rows = [b"REAL_TOPIC\x01a\x02", b"REAL_TOPIX\x01b\x02REAL_TOPIC\x01c", b"REAL_TOP\x01d", b"REAL_TOPICS\x01e"]
    pieces = split_properties(pa.array(rows, pa.binary()))
    assert pieces.column("REAL_TOPIC").to_pylist() == ["a", "c", None, None]
    assert pieces.column("REAL_TOP").to_pylist() == [None, None, "d", None]
    assert split_properties(pa.array([b"short\x01x\x02"])).column("TIMER_OUT_MS").to_pylist() == [None]
