"""Many rows at once are written and read as the reference does it one by one."""

from __future__ import annotations

import base64

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.bridge.records.exact_columns import HEADERS_IN_STEP_MAX, decode_exact_column, encode_exact_column
from rmq_store.bridge.records.exact_record import decode_exact, encode_exact
from rmq_store.bridge.records.merge_columns import Pieces
from rmq_store.errors import UsageError

Headers = list[tuple[bytes, bytes | None]]
Row = tuple[bytes | None, Headers]

sizes = st.sampled_from([0, 1, 2, 3, 62, 63, 64, 65, 8191, 8192])
some = st.one_of(st.none(), st.binary(max_size=4), sizes.map(lambda size: b"x" * size))
rows_of_any = st.lists(st.tuples(some, st.lists(st.tuples(st.binary(max_size=70), some), max_size=4)), max_size=8)


def written(rows: list[Row]) -> list[str]:
    pairs = [pair for _, headers in rows for pair in headers]
    values = pa.array([value for _, value in pairs], pa.binary())
    owners = np.repeat(np.arange(len(rows)), [len(headers) for _, headers in rows]).astype(np.int64)
    column = encode_exact_column(
        pa.array([key for key, _ in rows], pa.binary()),
        owners,
        Pieces.of(pa.array([name for name, _ in pairs], pa.binary())),
        Pieces.of(values),
        values.is_null().to_numpy(zero_copy_only=False),
    )
    column.validate(full=True)
    texts: list[str] = column.to_pylist()
    return texts


def read(texts: list[str]) -> list[Row | None]:
    """What each text says; None: it is left for the reference."""
    found = decode_exact_column(pa.array(texts, pa.string()).cast(pa.binary()))
    names, values = found.names.array().to_pylist(), found.values.array().to_pylist()
    pairs: list[Headers] = [[] for _ in texts]
    for row, name, value, is_null in zip(found.rows.tolist(), names, values, found.is_null.tolist(), strict=True):
        pairs[row].append((name, None if is_null else value))
    keys = found.keys.to_pylist()
    return [(keys[row], pairs[row]) if is_read else None for row, is_read in enumerate(found.is_read.tolist())]


@given(rows_of_any)
def test_rows_are_written_as_one_by_one_and_read_again(rows: list[Row]) -> None:
    texts = written(rows)
    assert texts == [encode_exact(key, headers) for key, headers in rows]
    assert read(texts) == rows


def reference(text: str) -> Row | None:
    try:
        return decode_exact(text)
    except UsageError:
        return None


broken = st.one_of(
    st.binary(max_size=12).map(lambda raw: base64.b64encode(raw).decode()),
    st.text("AQKg/+=-\n ", max_size=9),
    st.just(encode_exact(b"key", [(b"n", b"v")])),
    st.builds(
        lambda raw, at, byte: base64.b64encode(raw[:at] + bytes([byte]) + raw[at:]).decode(),
        rows_of_any.filter(bool).map(lambda rows: base64.b64decode(encode_exact(*rows[0]))[:300]),
        st.integers(0, 20),
        st.integers(0, 255),
    ),
)


@given(st.lists(broken, max_size=6))
def test_what_is_damaged_is_left_for_the_reference_and_harms_no_other_row(texts: list[str]) -> None:
    for text, row in zip(texts, read(texts), strict=True):
        assert row == reference(text), text


@pytest.mark.parametrize("count", [HEADERS_IN_STEP_MAX, HEADERS_IN_STEP_MAX + 1])
def test_rows_with_very_many_headers_are_left_for_the_reference(count: int) -> None:
    many: Row = (None, [(b"n", b"v")] * count)
    few: Row = (b"k", [(b"n", None)])
    found = read(written([few, many, few]))
    assert found == [few, many if count <= HEADERS_IN_STEP_MAX else None, few]


def test_numbers_of_five_bytes_and_more_are_no_lengths_here() -> None:
    for raw in (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\xff\x01", b"\x80\x80\x80\x80\x00\x00"):
        text = base64.b64encode(raw).decode()
        assert read([text]) == [reference(text)]
