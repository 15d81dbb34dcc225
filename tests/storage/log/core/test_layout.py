"""Records lie back to back, never across a segment's end, and a blank frame of at least 8 bytes fills the rest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.errors import UsageError
from rmq_store.log.core.layout import BLANK_BYTES, extent, lay_out, members, numbered_from, ranks

SEGMENT = 4096

sizes_and_start = st.tuples(
    st.lists(st.one_of(st.integers(91, SEGMENT - BLANK_BYTES), st.integers(91, 300)), max_size=60),
    st.integers(0, 3 * SEGMENT).map(lambda offset: offset - max(0, offset % SEGMENT - (SEGMENT - BLANK_BYTES))),
)


@given(sizes_and_start)
@pytest.mark.statement("G02", "G03")
def test_records_and_blanks_together_cover_the_range_without_gaps_or_overlaps(case: tuple[list[int], int]) -> None:
    sizes, start = np.array(case[0], np.int64), case[1]
    layout = lay_out(sizes, start, SEGMENT)
    pieces = sorted([*zip(layout.offsets.tolist(), sizes.tolist(), strict=True), *layout.blanks])
    at = start
    for offset, size in pieces:
        assert offset == at
        at += size
    assert at == layout.end
    assert layout.offsets.tolist() == sorted(layout.offsets.tolist())


@given(sizes_and_start)
def test_no_record_crosses_a_segment_and_each_leaves_room_for_a_blank(case: tuple[list[int], int]) -> None:
    sizes, start = np.array(case[0], np.int64), case[1]
    layout = lay_out(sizes, start, SEGMENT)
    assert (layout.offsets % SEGMENT + sizes <= SEGMENT - BLANK_BYTES).all()
    for offset, size in layout.blanks:
        assert size >= BLANK_BYTES
        assert (offset + size) % SEGMENT == 0


@given(sizes_and_start)
def test_a_blank_stands_only_where_the_next_record_does_not_fit(case: tuple[list[int], int]) -> None:
    sizes, start = np.array(case[0], np.int64), case[1]
    layout = lay_out(sizes, start, SEGMENT)
    by_offset = dict(zip(layout.offsets.tolist(), sizes.tolist(), strict=True))
    for offset, size in layout.blanks:
        assert by_offset[offset + size] + BLANK_BYTES > size


@given(sizes_and_start)
def test_runs_are_the_records_between_blanks(case: tuple[list[int], int]) -> None:
    sizes, start = np.array(case[0], np.int64), case[1]
    layout = lay_out(sizes, start, SEGMENT)
    assert [row for run in layout.runs for row in range(run.first, run.last)] == list(range(len(sizes)))
    for run in layout.runs:
        offsets = layout.offsets[run.first : run.last]
        assert run.offset == offsets[0]
        assert (np.diff(offsets) == sizes[run.first : run.last - 1]).all()
        assert len(set((offsets // SEGMENT).tolist())) == 1


@pytest.mark.parametrize(("room", "fits"), [(8, True), (7, False)])
def test_exactly_eight_bytes_must_be_left(room: int, fits: bool) -> None:
    sizes = np.array([SEGMENT - 1000, 1000 - room], np.int64)
    assert bool(lay_out(sizes, 0, SEGMENT).blanks) is not fits


def test_a_record_that_fills_a_segment_but_for_the_blank_fits_and_one_more_byte_does_not() -> None:
    assert lay_out(np.array([SEGMENT - 8]), 100, SEGMENT).offsets.tolist() == [SEGMENT]
    with pytest.raises(UsageError, match="record 1 of 4089 bytes"):
        lay_out(np.array([100, SEGMENT - 7]), 0, SEGMENT)


def test_nothing_takes_no_place() -> None:
    layout = lay_out(np.empty(0, np.int64), 777, SEGMENT)
    assert (len(layout.offsets), layout.runs, layout.blanks, layout.end) == (0, [], [], 777)


@given(sizes_and_start, st.lists(st.integers(0, 60), max_size=5))
def test_the_extent_is_where_the_layout_begins_and_ends_however_the_records_are_cut(
    case: tuple[list[int], int], cuts: list[int]
) -> None:
    sizes, start = np.array(case[0], np.int64), case[1]
    layout = lay_out(sizes, start, SEGMENT)
    bounds = [np.cumsum([7, *part], dtype=np.int64) for part in np.split(sizes, sorted(cuts))]
    first = int(layout.offsets[0]) if len(sizes) else start
    assert extent(bounds, start, SEGMENT) == (first, layout.end)


GROUP_COUNTS = st.integers(6, 40) | st.integers(6, 100_000)


@given(st.lists(st.integers(-1, 5), max_size=100), GROUP_COUNTS)
def test_members_are_the_rows_of_each_group_in_their_order(codes: list[int], group_count: int) -> None:
    rows, counts = members(np.array(codes, np.int32), group_count)
    in_groups = [row for row in range(len(codes)) if codes[row] >= 0]
    assert rows.tolist() == sorted(in_groups, key=lambda row: (codes[row], row))
    assert counts.tolist() == [codes.count(code) for code in range(group_count)]
    assert rows.dtype == counts.dtype == np.int64


@given(st.lists(st.integers(0, 5), max_size=100), GROUP_COUNTS)
def test_ranks_number_each_group_in_its_order(codes: list[int], group_count: int) -> None:
    rank, counts = ranks(np.array(codes, np.int64), group_count)
    seen: dict[int, int] = {}
    for code, number in zip(codes, rank.tolist(), strict=True):
        assert number == seen.get(code, 0)
        seen[code] = number + 1
    assert counts.tolist() == [codes.count(code) for code in range(group_count)]


def test_a_single_group_is_numbered_straight() -> None:
    rank, counts = ranks(np.zeros(4, np.int64), 1)
    assert (rank.tolist(), counts.tolist()) == ([0, 1, 2, 3], [4])


def test_no_groups_have_no_members() -> None:
    rows, counts = members(np.zeros(0, np.int32), 0)
    assert (rows.tolist(), counts.tolist()) == ([], [])


def test_groups_are_numbered_from_where_each_begins() -> None:
    assert numbered_from(np.array([10, 7, 100]), np.array([3, 0, 2])).tolist() == [10, 11, 12, 100, 101]
