"""What the two records of a unit say, and what they cannot be made to say."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.log.core.units import UnitRecord

UNIT = UnitRecord("sink", "query", 7, 100, 12345)


def test_the_size_of_both_records_does_not_depend_on_where_the_unit_lies() -> None:
    sizes = {tuple(map(len, UNIT.bodies(start, end))) for start, end in ((0, 0), (9, 10), ((1 << 62), (1 << 63) - 1))}
    assert len(sizes) == 1


@given(st.text(), st.none() | st.text(), st.none() | st.integers(), st.integers(), st.integers())
def test_the_last_record_gives_back_what_the_unit_stands_for(
    purpose: str, key: str | None, value: int | None, rows: int, content: int
) -> None:
    unit = UnitRecord(purpose, key, value, rows, content)
    begin, end = unit.bodies(5, 6)
    assert UnitRecord.parse(end) == unit
    assert UnitRecord.parse(begin) is None
    assert json.loads(begin) == {"start": "0" * 19 + "5", "end": "0" * 19 + "6"}


def test_the_last_record_carries_further_numbers_of_its_purpose() -> None:
    unit = UnitRecord("timer", "0", 1_700_000_000_000, detail={"scanned_end": 17})
    assert UnitRecord.parse(unit.bodies(5, 6)[1]) == unit
    assert b"detail" not in UNIT.bodies(5, 6)[1]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"\xff", b"{}", b"[" * 100_000,
        b'{"purpose": 1, "rows": 1, "content": 1}',
        b'{"purpose": "sink", "rows": "1", "content": 1}',
        b'{"purpose": "sink", "rows": 1}',
        b'{"purpose": "sink", "key": [], "rows": 1, "content": 1}',
        b'{"purpose": "sink", "key": "k", "value": "v", "rows": 1, "content": 1}',
        b'{"purpose": "sink", "key": "k", "value": 1.5, "rows": 1, "content": 1}',
        b'{"purpose": "sink", "key": "k", "value": 1, "rows": 1, "content": 1, "detail": {"n": "1"}}',
        b'{"purpose": "sink", "key": "k", "value": 1, "rows": 1, "content": 1, "detail": [1]}',
    ],
)  # fmt: skip
def test_other_bodies_mean_nothing(body: bytes) -> None:
    assert UnitRecord.parse(body) is None
