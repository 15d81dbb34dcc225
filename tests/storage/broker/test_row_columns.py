"""A map column, taken apart at once: the same as asking for one name after the other."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_store.broker.row_columns import map_columns
from rmq_store.format.schema import PROPERTIES_TYPE

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
