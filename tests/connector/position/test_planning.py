"""Admission control and the cut into tasks, on plain numbers."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rmq.position.planning import (
    Limits,
    QueueSlice,
    admit_bytes,
    admit_rows,
    backlog,
    clip,
    lost,
    must_wait,
    split,
)
from pyspark_rmq.position.position import Queue

Q = [Queue("T", number) for number in range(12)]


@st.composite
def ranges(draw: st.DrawFn) -> tuple[dict[Queue, int], dict[Queue, int]]:
    start = {queue: draw(st.integers(0, 50)) for queue in Q[: draw(st.integers(1, 12))]}
    return start, {queue: offset + draw(st.sampled_from([0, 1, 2, 5, 40, 1000])) for queue, offset in start.items()}


@given(ranges(), st.integers(1, 3000))
def test_rows_are_admitted_up_to_the_limit_and_not_one_less(both, max_rows: int) -> None:  # type: ignore[no-untyped-def]
    start, end = both
    admitted = admit_rows(start, end, max_rows)
    assert admitted.keys() == end.keys()
    assert all(start[queue] <= admitted[queue] <= end[queue] for queue in end)
    assert backlog(start, admitted) == min(max_rows, backlog(start, end))


@given(ranges(), st.integers(1, 3000))
def test_no_queue_is_starved_however_long_the_others_are(both, max_rows: int) -> None:  # type: ignore[no-untyped-def]
    start, end = both
    waiting = {queue for queue in end if end[queue] > start[queue]}
    at = dict(start)
    for _ in range(-(-len(waiting) // max_rows)):
        # those that wait keep growing, so none ever has nothing left to give
        grown = {queue: max(offset, at[queue] + (queue in waiting)) for queue, offset in end.items()}
        at = admit_rows(at, grown, max_rows)
    if max_rows < len(waiting):
        assert len([queue for queue in waiting if at[queue] > start[queue]]) >= max_rows
    else:
        assert all(at[queue] > start[queue] for queue in waiting)


def test_with_more_queues_than_rows_the_turn_goes_round() -> None:
    at = dict.fromkeys(Q, 0)
    for _ in range(6):
        at = admit_rows(at, dict.fromkeys(Q, 1000), 2)
    assert at == dict.fromkeys(Q, 1)


def test_rows_are_shared_in_proportion() -> None:
    admitted = admit_rows({Q[0]: 10, Q[1]: 0}, {Q[0]: 40, Q[1]: 10}, 20)
    assert admitted == {Q[0]: 25, Q[1]: 5}


class Sizes:
    """Message `i` of every queue takes `sizes[i]` bytes."""

    def __init__(self, sizes: list[int]) -> None:
        self.total = [0, *accumulate(sizes)]
        self.filter_columns = 0

    def between(self, queue: Queue, start: int, end: int) -> int:
        self.filter_columns = max(self.filter_columns, end)
        return self.total[end] - self.total[start]

    def after(self, queue: Queue, start: int, end: int, limit_bytes: int) -> int:
        """As the store: at least one message, whatever its size."""
        fitting = (at for at in range(start + 1, end) if self.total[at + 1] - self.total[start] > limit_bytes)
        return next(fitting, end)


@given(st.lists(st.integers(50, 500), min_size=60, max_size=60), st.integers(1, 20_000), st.data())
def test_bytes_are_admitted_up_to_the_limit_but_never_nothing(
    sizes: list[int], max_bytes: int, data: st.DataObject
) -> None:
    log = Sizes(sizes)
    start = {queue: data.draw(st.integers(0, 30)) for queue in Q[:3]}
    end = {queue: data.draw(st.integers(offset, 60)) for queue, offset in start.items()}
    admitted = admit_bytes(start, end, max_bytes, log.between, log.after)
    taken = sum(log.between(queue, start[queue], admitted[queue]) for queue in end)
    assert all(start[queue] <= admitted[queue] <= end[queue] for queue in end)
    assert taken <= max_bytes or backlog(start, admitted) == 1
    assert backlog(start, admitted) > 0 or backlog(start, end) == 0


def test_a_short_queue_is_not_starved_by_bytes_either() -> None:
    log = Sizes([100] * 10_000)
    admitted = admit_bytes({Q[0]: 0, Q[1]: 0}, {Q[0]: 10_000, Q[1]: 1}, 1000, log.between, log.after)
    assert admitted == {Q[0]: 9, Q[1]: 1}


def test_bytes_are_shared_in_proportion_to_the_messages_that_wait() -> None:
    log = Sizes([100] * 100)
    assert admit_bytes({Q[0]: 10, Q[1]: 0}, {Q[0]: 40, Q[1]: 10}, 2000, log.between, log.after) == {Q[0]: 25, Q[1]: 5}


@given(st.lists(st.lists(st.integers(1, 900), max_size=20), max_size=5), st.integers(0, 5000))
def test_what_fits_as_a_whole_is_admitted_as_a_whole(sizes: list[list[int]], room_bytes: int) -> None:
    logs = dict(zip(Q, map(Sizes, sizes), strict=False))
    end = {queue: len(log.total) - 1 for queue, log in logs.items()}
    max_bytes = sum(map(sum, sizes)) + room_bytes
    between, after = (lambda q, *span, name=name: getattr(logs[q], name)(q, *span) for name in ("between", "after"))
    assert admit_bytes(dict.fromkeys(end, 0), end, max_bytes, between, after) == end


def test_sizes_are_looked_at_only_as_far_as_the_limit_may_go() -> None:
    """Each trigger summed up the whole backlog."""
    log = Sizes([100] * 10_000)
    admitted = admit_bytes({Q[0]: 0, Q[1]: 0}, {Q[0]: 10_000, Q[1]: 9_000}, 1000, log.between, log.after)
    assert sum(admitted.values()) == 10
    assert log.filter_columns <= 10


def test_one_message_larger_than_the_limit_passes() -> None:
    log = Sizes([5000, 5000, 5000])
    at = {Q[0]: 0, Q[1]: 0}
    for expected in (1, 2, 3):
        at = admit_bytes(at, {Q[0]: 3, Q[1]: 3}, 10, log.between, log.after)
        assert sum(at.values()) == expected
    assert set(at.values()) == {1, 2}  # in turn


def test_a_trigger_waits_for_the_minimum_but_not_the_first_one_and_not_for_ever() -> None:
    limits = Limits(min_rows=10, max_delay_ms=1000)
    start, few, many = {Q[0]: 0}, {Q[0]: 9}, {Q[0]: 10}
    assert must_wait(start, few, limits, 500)
    assert not must_wait(start, many, limits, 500)
    assert not must_wait(start, few, limits, 1000)
    assert not must_wait(start, few, limits, None)
    assert not must_wait(start, few, Limits(), 500)


SLICES = st.lists(
    st.builds(lambda q, s, n: QueueSlice("T", q, s, s + n), st.integers(0, 5), st.integers(0, 9), st.integers(0, 99)),
    max_size=6,
    unique_by=lambda part: part.queue_id,
)


@given(SLICES, st.one_of(st.none(), st.integers(1, 300)))
def test_slices_cover_every_message_once_and_are_at_least_so_many(parts: list[QueueSlice], minimum: int | None) -> None:
    slices = split(parts, minimum)
    assert [(part.queue_id, offset) for part in slices for offset in range(part.start, part.end)] == [
        (part.queue_id, offset) for part in sorted(parts) for offset in range(part.start, part.end)
    ]
    assert all(part.start < part.end for part in slices)
    total = sum(part.end - part.start for part in parts)
    busy = sum(part.end > part.start for part in parts)
    assert len(slices) == max(busy, min(minimum or 0, total))


def test_the_largest_ranges_are_cut_first() -> None:
    slices = split([QueueSlice("T", 0, 0, 100), QueueSlice("T", 1, 0, 10)], 5)
    assert [part.end - part.start for part in slices] == [25, 25, 25, 25, 10]


@pytest.mark.parametrize(
    ("kept", "gone", "left"),
    [
        ((0, 40), [], [(5, 10)]),
        ((7, 40), [(5, 7)], [(7, 10)]),
        ((10, 40), [(5, 10)], []),
        ((20, 40), [(5, 10)], []),
        ((0, 8), [(8, 10)], [(5, 8)]),
        ((0, 5), [(5, 10)], []),
        ((0, 2), [(5, 10)], []),
        ((6, 8), [(5, 6), (8, 10)], [(6, 8)]),
        (None, [(5, 10)], []),
    ],
)
def test_what_is_lost_and_what_is_left_make_up_the_range(
    kept: tuple[int, int] | None, gone: list[tuple[int, int]], left: list[tuple[int, int]]
) -> None:
    bounds = {} if kept is None else {Q[0]: kept}
    wanted = [QueueSlice("T", 0, 5, 10)]
    assert [(part.start, part.end) for part in lost(wanted, bounds)] == gone
    assert [(part.start, part.end) for part in clip(wanted, bounds)] == left
