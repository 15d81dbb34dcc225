"""A column that a caller gives is stored exactly, or refused by row and value."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import UsageError
from rmq_store.format.batches.input_columns import as_type

TIMES = pa.timestamp("us", tz="UTC")
TEXTS = pa.map_(pa.string(), pa.string())
US_MAX = (1 << 63) - 1


def times(values: list[int | None], unit: str, tz: str | None = None) -> pa.Array:
    return pa.array(values, pa.int64()).view(pa.timestamp(unit, tz))


@pytest.mark.parametrize("tz", [None, "UTC", "Asia/Tokyo"])
@pytest.mark.parametrize(
    ("unit", "given", "stored"),
    [
        ("s", US_MAX // 10**6, US_MAX // 10**6 * 10**6),
        ("s", -(US_MAX // 10**6), -(US_MAX // 10**6) * 10**6),
        ("ms", US_MAX // 10**3, US_MAX // 10**3 * 10**3),
        ("us", US_MAX, US_MAX),
        ("us", -US_MAX, -US_MAX),
        ("ns", 1999, 1),
        ("ns", -1, -1),
        ("ns", -1000, -1),
        ("ns", US_MAX, US_MAX // 1000),
    ],
)
def test_a_time_of_any_unit_and_zone_is_the_same_time_in_microseconds(
    unit: str, given: int, stored: int, tz: str | None
) -> None:
    """Parts below a microsecond are cut off downwards, before 1970 too."""
    column = as_type("bornTimestamp", times([None, given], unit, tz), TIMES)
    assert column.type == TIMES
    assert column.view(pa.int64()).to_pylist() == [None, stored]


@pytest.mark.parametrize("is_dictionary", [False, True])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("unit", ["s", "ms"])
def test_a_time_beyond_64_bits_of_microseconds_is_refused_and_does_not_become_another_one(
    unit: str, sign: int, is_dictionary: bool
) -> None:
    per_unit = {"s": 10**6, "ms": 10**3}[unit]
    too_far = sign * (US_MAX // per_unit + 2)
    column = times([0, None, too_far, 2 * too_far], unit)
    if is_dictionary:
        column = column.dictionary_encode()
    with pytest.raises(UsageError, match=rf"^row 2, column 'deliverTimestamp': {too_far} {unit} since 1970 does not"):
        as_type("deliverTimestamp", column, TIMES)


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64(), pa.uint32(), pa.dictionary(pa.int8(), pa.int64())], ids=str)
def test_an_integer_of_any_width_is_exact_or_refused_by_row_and_value(kind: pa.DataType) -> None:
    fits = as_type("flag", pa.array([0, None, 2**31 - 1], kind), pa.int32())
    assert fits.type == pa.int32()
    assert fits.to_pylist() == [0, None, 2**31 - 1]
    with pytest.raises(UsageError, match=r"^row 1, column 'flag': 2147483648 does not fit int32$"):
        as_type("flag", pa.array([0, 2**31, 2**31 + 5], kind), pa.int32())


def test_the_ends_of_an_integers_range_are_kept() -> None:
    assert as_type("flag", pa.array([-(2**31)]), pa.int32()).to_pylist() == [-(2**31)]
    with pytest.raises(UsageError, match="row 0, column 'flag': -2147483649 does not fit int32"):
        as_type("flag", pa.array([-(2**31) - 1]), pa.int32())
    with pytest.raises(UsageError, match="row 0, column 'commitLogOffset': 9223372036854775808 does not fit int64"):
        as_type("commitLogOffset", pa.array([1 << 63], pa.uint64()), pa.int64())


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1.0]), pa.array([True]), pa.array(["1"]), pa.array([b"1"]), pa.array([1]).cast(pa.decimal128(20, 0)),
        pa.array([1], pa.date32()), pa.array([1], pa.duration("s")), times([1], "us"),
    ],
    ids=lambda column: str(column.type),
)  # fmt: skip
@pytest.mark.parametrize("wanted", [pa.int32(), pa.int64()], ids=str)
def test_what_is_no_integer_does_not_become_one(column: pa.Array, wanted: pa.DataType) -> None:
    with pytest.raises(UsageError, match=rf"^column 'queueId' is {re.escape(str(column.type))}, not {wanted}$"):
        as_type("queueId", column, wanted)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1]), pa.array([1.5]), pa.array([1], pa.date32()), pa.array([1], pa.date64()),
        pa.array([1], pa.time64("us")), pa.array([1], pa.duration("us")), pa.array(["2024-01-01"]),
    ],
    ids=lambda column: str(column.type),
)  # fmt: skip
def test_what_is_no_time_does_not_become_one(column: pa.Array) -> None:
    with pytest.raises(UsageError, match=r"^column 'bornTimestamp' is "):
        as_type("bornTimestamp", column, TIMES)


@pytest.mark.parametrize(
    "kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.large_string())], ids=str
)
def test_text_of_any_layout_is_text_and_a_body(kind: pa.DataType) -> None:
    column = pa.array(["tä", None, ""], pa.string()).cast(kind)
    assert as_type("tags", column, pa.string()).to_pylist() == ["tä", None, ""]
    assert as_type("body", column, pa.binary()).to_pylist() == ["tä".encode(), None, b""]


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.binary_view(), pa.binary(2)], ids=str)
def test_bytes_of_any_layout_are_a_body_and_no_text(kind: pa.DataType) -> None:
    column = pa.array([b"\xff\x00", None], kind)
    assert as_type("body", column, pa.binary()).to_pylist() == [b"\xff\x00", None]
    with pytest.raises(UsageError, match=r"^column 'tags' is "):
        as_type("tags", column, pa.string())


@pytest.mark.parametrize(
    ("value", "kind"),
    [(1 << 60, pa.int64()), (0.1, pa.float64()), (True, pa.bool_()), (b"v", pa.binary()), (1, pa.timestamp("s"))],
    ids=lambda value: str(value),
)
def test_properties_that_are_no_text_are_refused_what_text_they_become_is_the_callers_choice(
    value: Any, kind: pa.DataType
) -> None:
    as_values = pa.MapArray.from_arrays([0, 1], pa.array(["a"]), pa.array([value], kind))
    with pytest.raises(UsageError, match=r"^column 'properties' is map<"):
        as_type("properties", as_values, TEXTS)
    as_names = pa.MapArray.from_arrays([0, 1], pa.array([value], kind), pa.array(["a"]))
    with pytest.raises(UsageError, match=r"^column 'properties' is map<"):
        as_type("properties", as_names, TEXTS)


def test_properties_of_any_layout_of_text_are_kept() -> None:
    column = pa.array([[("a", "b")], None], pa.map_(pa.large_string(), pa.large_string()))
    assert as_type("properties", column, TEXTS).to_pylist() == [[("a", "b")], None]
    assert as_type("properties", pa.nulls(2), TEXTS).to_pylist() == [None, None]
