"""One trigger of a stream on plain values: where the next batch starts and ends, and what its position says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from hypothesis import given
from hypothesis import strategies as st

from pyspark_rmq.position.fingerprint import Fingerprint
from pyspark_rmq.position.planning import Limits
from pyspark_rmq.position.position import Queue, StreamPosition
from pyspark_rmq.position.stream_plan import StreamPlan, batch_slices, moved, with_opened_again

A, B, C = Queue("T", 0), Queue("T", 1), Queue("T", 2)


class Limit(NamedTuple):
    min_offset: int
    max_offset: int


def plan(position: StreamPosition, ranges: dict[Queue, tuple[int, int]], **fields: Any) -> StreamPlan:
    given = {"back": {}, "target": None, "is_first": False} | fields
    return StreamPlan.of(position, {queue: Limit(*pair) for queue, pair in ranges.items()}, **given)


def unasked(*asked: object) -> NoReturn:
    raise AssertionError(f"the store is asked for bytes without a limit of bytes: {asked}")


def end_of(
    made: StreamPlan,
    *,
    everything: bool = False,
    waited_ms: float | None = None,
    offset_after_bytes: Callable[[Queue, int, int, int], int] = unasked,
    **limits: Any,
) -> dict[Queue, int]:
    bytes_between: Any = unasked if offset_after_bytes is unasked else (lambda queue, start, end: (end - start) * 10)
    return made.end(
        Limits(**limits), everything=everything, waited_ms=waited_ms, bytes_between=bytes_between,
        offset_after_bytes=offset_after_bytes,
    )  # fmt: skip


def test_a_batch_goes_from_the_position_to_the_ends_of_the_queues() -> None:
    made = plan(StreamPosition("s", {A: 3, B: 5}), {A: (0, 10), B: (0, 5)})
    end = end_of(made)
    assert (made.start, end) == ({A: 3, B: 5}, {A: 10, B: 5})
    assert made.has_messages(end) and made.is_new(end)
    position = made.position("s", end, {A: Fingerprint(900)}, {})
    assert position == StreamPosition("s", {A: 10, B: 5}, {A: Fingerprint(900)})


def test_without_new_messages_spark_keeps_its_position() -> None:
    made = plan(StreamPosition("s", {A: 10}), {A: (0, 10)})
    end = end_of(made)
    assert end == made.available
    assert not made.is_new(end) and not made.has_messages(end)


def test_the_first_batch_has_a_position_of_its_own_even_if_it_is_empty() -> None:
    """Spark asks for the start again after a restart, and `latest` would be another place by then."""
    made = plan(StreamPosition("", {A: 10}, began={A: 10}), {A: (0, 10)}, is_first=True)
    end = end_of(made)
    assert made.is_new(end) and not made.has_messages(end)
    assert made.position("s", end, {}, {}).began == {A: 10}


def test_the_name_of_the_store_is_kept_where_the_store_has_none() -> None:
    made = plan(StreamPosition("s", {A: 0}), {A: (0, 1)})
    assert made.position("", {A: 1}, {}, {}).store == "s"


def test_a_new_queue_starts_where_the_reader_says_and_the_position_tells_it() -> None:
    made = plan(StreamPosition("s", {A: 10}), {A: (0, 10), B: (2, 7)})
    assert dict(made.new_queues) == {B: (2, 7)}
    made = made.starting({B: 4})
    end = end_of(made)
    assert (made.start, end) == ({A: 10, B: 4}, {A: 10, B: 7})
    position = made.position("s", end, {}, {})
    assert position.began == {B: 4}
    assert [tuple(part) for part in batch_slices(made.begin, position, {})] == [("T", 0, 10, 10), ("T", 1, 4, 7)]


def test_a_queue_that_was_opened_again_goes_on_where_it_was_closed() -> None:
    closed = StreamPosition("s", {A: 10}, closed={B: 3, C: 8})
    made = plan(closed, {A: (0, 10), B: (0, 9)})
    assert with_opened_again(closed, made.ranges).next == {A: 10, B: 3}
    assert not made.new_queues
    assert made.began == {B: 3}
    assert end_of(made) == {A: 10, B: 9}


def test_a_queue_that_was_rolled_back_goes_on_earlier_and_its_fingerprint_is_forgotten() -> None:
    position = StreamPosition("s", {A: 20, B: 5}, {A: Fingerprint(7), B: Fingerprint(8)})
    made = plan(position, {A: (0, 12), B: (0, 5)}, back={A: 12})
    assert made.begin == moved(position, {A: 12})
    assert (made.begin.next, made.begin.after) == ({A: 12, B: 5}, {B: Fingerprint(8)})
    end = end_of(made)
    assert made.is_new(end), "the position of a store that was rolled back is a new one, also without messages"
    assert made.position("s", end, {}, {}).began == {A: 12}


def test_messages_that_came_instead_of_planned_ones_are_left_to_the_next_batch() -> None:
    begin, finish = StreamPosition("s", {A: 3}), StreamPosition("s", {A: 20})
    assert [tuple(part) for part in batch_slices(begin, finish, {A: 12})] == [("T", 0, 3, 12)]


def test_a_held_queue_keeps_its_position_whatever_limits_the_batch() -> None:
    mark = Fingerprint(700, 7)
    position = StreamPosition("cluster:a,b", {A: 3, B: 5}, {B: mark})
    made = plan(position, {A: (0, 10)}, held={B})
    for limits in ({}, {"max_rows": 2}, {"everything": True}):
        end = end_of(made, **limits)
        assert end[B] == 5 and end[A] > 3 and made.is_new(end)
        after = made.position("cluster:a", end, {B: mark}, {})
        assert (after.next[B], after.after[B], after.store) == (5, mark, "cluster:a,b")
    assert end_of(made, min_rows=100, waited_ms=0.0) == {A: 3, B: 5}
    assert not made.new_queues
    idle = plan(StreamPosition("s", {A: 10, B: 5}), {A: (0, 10)}, held={B})
    assert not idle.is_new(end_of(idle))
    at_once = plan(position, {A: (0, 10)}, held={B}, target={A: 4})
    assert end_of(at_once) == {A: 4, B: 5}


def test_available_now_ends_where_the_query_found_the_queues_and_never_before_its_start() -> None:
    position = StreamPosition("s", {A: 0, B: 30})
    ranges = {A: (0, 25), B: (0, 40), C: (0, 4)}
    made = plan(position, ranges, target={A: 10, B: 20})
    assert made.available == {A: 10, B: 30}, "B's group begins behind the target; C came later"
    assert not made.new_queues
    assert end_of(made) == {A: 10, B: 30}


def test_a_minimum_holds_a_batch_back_but_not_one_of_available_now() -> None:
    position, ranges = StreamPosition("s", {A: 0}), {A: (0, 5)}
    for waited_ms, end in ((None, 5), (10.0, 0), (60_000.0, 5)):
        made = plan(position, ranges)
        assert end_of(made, min_rows=6, max_delay_ms=60_000, waited_ms=waited_ms) == {A: end}
    assert end_of(plan(position, ranges), min_rows=5, waited_ms=10.0) == {A: 5}
    assert end_of(plan(position, ranges, target={A: 5}), min_rows=6, waited_ms=10.0) == {A: 5}


def test_a_batch_that_waits_for_its_minimum_still_goes_back_to_the_end_of_a_queue_that_lost_its_tail() -> None:
    made = plan(StreamPosition("s", {A: 9, B: 9}), {A: (0, 4), B: (0, 10)}, back={A: 9})
    assert end_of(made, min_rows=100, waited_ms=1.0) == {A: 4, B: 9}


def test_rows_are_counted_from_the_first_message_that_is_there() -> None:
    made = plan(StreamPosition("s", {A: 0}), {A: (100, 200)})
    assert end_of(made, max_rows=10) == {A: 110}


def test_trigger_once_knows_no_limit() -> None:
    made = plan(StreamPosition("s", {A: 0}), {A: (0, 50)})
    assert end_of(made, everything=True, max_rows=1, min_rows=90, waited_ms=1.0) == {A: 50}


def test_a_limit_of_bytes_is_measured_by_the_store() -> None:
    made = plan(StreamPosition("s", {A: 0}), {A: (0, 50)})
    end = end_of(made, max_bytes=70, offset_after_bytes=lambda queue, start, end, size: min(end, start + size // 10))
    assert end == {A: 7}


offsets = st.integers(0, 60)
some_queues = st.sampled_from([A, B, C])


@given(
    st.dictionaries(some_queues, offsets, min_size=1),
    st.dictionaries(some_queues, st.tuples(offsets, offsets).map(lambda pair: (min(pair), max(pair))), min_size=1),
    st.none() | st.dictionaries(some_queues, offsets),
    st.none() | st.integers(1, 100),
)
def test_a_batch_ends_between_its_start_and_the_ends_of_the_queues(
    position: dict[Queue, int],
    ranges: dict[Queue, tuple[int, int]],
    target: dict[Queue, int] | None,
    max_rows: int | None,
) -> None:
    # As the reader: a queue that ends before the position was rolled back.
    back = {queue: ranges[queue][1] for queue in position if queue in ranges and position[queue] > ranges[queue][1]}
    made = plan(StreamPosition("s", position), ranges, back=back, target=target)
    made = made.starting({queue: limits.min_offset for queue, limits in made.new_queues.items()})
    end = end_of(made, max_rows=max_rows)
    assert end.keys() == made.available.keys()
    for queue, offset in end.items():
        assert made.start[queue] <= max(offset, ranges[queue][0])
        assert offset <= ranges[queue][1]
    if max_rows is not None:
        low = {queue: max(made.start[queue], ranges[queue][0]) for queue in end}
        assert sum(max(0, offset - low[queue]) for queue, offset in end.items()) <= max_rows
