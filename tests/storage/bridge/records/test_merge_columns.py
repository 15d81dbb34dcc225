"""Columns put together row by row: as Python does it one by one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.bridge.record_batches.schema import HEADERS
from rmq_store.bridge.records.entries import Entries
from rmq_store.bridge.records.merge_columns import Part, Pieces, joined, weave

texts = st.text(max_size=4)


@given(st.integers(0, 6), st.data())
def test_texts_are_joined_row_by_row(count: int, data: st.DataObject) -> None:
    def column() -> pa.StringArray:
        values = st.one_of(
            st.lists(texts, min_size=count, max_size=count),
            st.lists(st.text("ab", min_size=2, max_size=2), min_size=count, max_size=count),
            st.lists(st.none() | texts, min_size=count, max_size=count),
        )
        return pa.array([*["x"] * 2, *data.draw(values)], pa.string())[2:]

    parts = [data.draw(texts) if data.draw(st.booleans()) else column() for _ in range(3)]
    found = joined(count, *parts)
    found.validate(full=True)
    rows = [[part if isinstance(part, str) else part[row].as_py() for part in parts] for row in range(count)]
    assert found.to_pylist() == [None if None in row else "".join(row) for row in rows]


some = st.lists(st.tuples(st.integers(0, 4), st.sampled_from([b"a", b"b", b""]), st.none() | st.binary(max_size=3)))


@given(st.lists(some.map(lambda part: sorted(part, key=lambda entry: entry[0])), max_size=3), st.booleans())
def test_entries_are_woven_row_by_row_and_read_again(
    parts: list[list[tuple[int, bytes, bytes | None]]], one: bool
) -> None:
    given_parts = []
    expected: list[list[tuple[bytes, bytes | None]]] = [[] for _ in range(5)]
    for part in parts:
        coded = pa.array([name for _, name, _ in part], pa.binary()).dictionary_encode()
        values = pa.array([value for *_, value in part], pa.binary())
        given_parts.append(
            Part(
                np.array([row for row, *_ in part], np.int64), coded.dictionary.to_pylist(), coded.indices.to_numpy(),
                Pieces.of(values), values.is_null().to_numpy(zero_copy_only=False),
            )
        )  # fmt: skip
        for row, name, value in part:
            expected[row].append((name, value))
    if one:
        given_parts.append(Part(None, [b"last"], None, Pieces.same(b"1", 5)))
        for pairs in expected:
            pairs.append((b"last", b"1"))
    column = weave(5, given_parts).headers(HEADERS)
    column.validate(full=True)
    assert [[(pair["name"], pair["value"]) for pair in pairs] for pairs in column.to_pylist()] == expected
    entries = Entries.of_headers(column[1:4])
    for name in (b"a", b"b", b""):
        values, counts = entries.column(name.decode())
        own = [[value for found, value in pairs if found == name] for pairs in expected[1:4]]
        assert counts.tolist() == [len(found) for found in own]
        assert values.to_pylist() == [found[-1] if found else None for found in own]
