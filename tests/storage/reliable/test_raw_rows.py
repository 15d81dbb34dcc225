"""What is wrong with a row: the quick look at its types finds the same as the search."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from rmq_store.reliable import Tables
from rmq_store.reliable.database.raw_rows import fault_of

COLUMNS = {
    "number": sa.Column("number", sa.BigInteger, nullable=False),
    "number_or_null": sa.Column("number_or_null", sa.BigInteger),
    "text": sa.Column("text", sa.String(9), nullable=False),
    "text_or_null": sa.Column("text_or_null", sa.String(9)),
    "bytes": sa.Column("bytes", sa.LargeBinary, nullable=False),
    "flag": sa.Column("flag", sa.Boolean, nullable=False),
}
TABLE = sa.Table("t", sa.MetaData(), *COLUMNS.values())
RIGHT: dict[str, Any] = {
    "number": 2, "number_or_null": None, "text": "Tee", "text_or_null": None, "bytes": b"\xff", "flag": 0, "label": 1.5,
}  # fmt: skip
NUMBERS = (0, 1, 2, -(2**63))
VALUES = (None, *NUMBERS, 1.0, "", "a", "ä", "a\udcff", b"", b"\xff")


def row(**values: Any) -> sa.Row[Any]:
    """A row of these values, as a driver gives them."""
    names = sa.engine.result.SimpleResultMetaData([*values])
    result: Any = sa.engine.IteratorResult(names, iter([tuple(values.values())]))
    found: sa.Row[Any] = result.one()
    return found


def is_right(column: str, value: Any) -> bool:
    if value is None:
        return column.endswith("null")
    if column.startswith("number"):
        return value in NUMBERS and type(value) is int
    if column.startswith("text"):
        return isinstance(value, str) and not value.endswith("\udcff")
    return type(value) is bytes if column == "bytes" else type(value) is int and value in (0, 1)


@pytest.mark.parametrize("column", COLUMNS)
def test_each_wrong_value_of_each_column_is_found_and_no_right_one(column: str) -> None:
    for value in VALUES:
        if column == "flag" and value == 1.0 and type(value) is float:
            continue  # equal to 1, as a driver of a database without a type for flags may give it
        fault = fault_of(TABLE, row(**RIGHT | {column: value}))
        assert (fault is None) is is_right(column, value), (value, fault)
        assert fault is None or f"its {column} " in fault


def test_flags_that_a_driver_gives_as_such_are_right() -> None:
    assert fault_of(TABLE, row(**RIGHT | {"flag": True})) is None


def test_the_columns_of_a_row_may_be_some_and_in_any_order() -> None:
    tables = Tables()
    assert fault_of(tables.stub, row(topic="Orders", seq=1)) is None
    assert fault_of(tables.stub, row(seq=1, topic="Orders", body_bytes=None)) is None
    assert fault_of(tables.stub, row(seq="1", topic="Orders")) == "its seq is no number: '1'"
    assert fault_of(tables.stub, row(topic=1, seq=1)) == "its topic is no text: 1"
