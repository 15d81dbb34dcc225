"""Rows that a caller gives: their columns, and a map column, taken apart at once."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_store import UsageError
from rmq_store.broker.rules.input_rows import as_schema, map_columns
from rmq_store.format.tables.schema import PROPERTIES_TYPE

names = st.sampled_from("abcd")
pairs = st.tuples(names, st.one_of(st.none(), st.text(max_size=3)))
rows = st.lists(st.one_of(st.none(), st.lists(pairs, max_size=5)), max_size=8)


@given(rows, st.integers(0, 3), st.integers(0, 8))
@settings(max_examples=100)
def test_every_name_gives_what_a_look_up_of_it_gives(
    given_rows: list[list[tuple[str, str | None]] | None], first: int, count: int
) -> None:
    column = pa.array(given_rows, PROPERTIES_TYPE).slice(first, count)
    found = map_columns(column)
    assert set(found) == {name for row in column.to_pylist() for name, _ in row or ()}
    for name, values in found.items():
        assert values.to_pylist() == pc.map_lookup(column, pa.scalar(name), "last").to_pylist()


def test_rows_are_taken_as_they_are_or_refused() -> None:
    wanted = pa.schema([("queueId", pa.int32()), ("queueOffset", pa.int64()), ("msgId", pa.string())])

    def taken(**columns: pa.Array) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = as_schema(
            pa.RecordBatch.from_pydict(columns), wanted, ("queueId", "queueOffset"), "which"
        ).to_pylist()
        return rows

    assert taken(queueId=pa.array([1], pa.uint8()), queueOffset=pa.array([1 << 40])) == [
        {"queueId": 1, "queueOffset": 1 << 40, "msgId": None}
    ]
    for bad in (pa.array([1.0]), pa.array(["1"]), pa.array([True]), pa.array([1], pa.timestamp("us"))):
        with pytest.raises(UsageError, match=r"^column 'queueOffset' is .*, not int64$"):
            taken(queueId=pa.array([1]), queueOffset=bad)
    with pytest.raises(UsageError, match="row 1, column 'queueId': 4294967296 does not fit int32"):
        taken(queueId=pa.array([1, 1 << 32]), queueOffset=pa.array([1, 2]))
    twice = pa.RecordBatch.from_arrays([pa.array([1])] * 3, ["queueId", "queueOffset", "queueId"])
    with pytest.raises(UsageError, match="a column is there twice"):
        as_schema(twice, wanted, ("queueId", "queueOffset"), "which")
