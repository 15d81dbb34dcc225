"""Positions of groups, translated: random histories of two mirrored queues against a model that knows every message."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.mirrored_queues import Entry, Pair
from rmq_store.bridge.offsets.copies import Copies, CopiesStart, Lost, WayBack, count_missing, nothing_copied, seek
from rmq_store.bridge.offsets.plan import Move, Rules, Status, plan_group
from rmq_store.bridge.offsets.translate import (
    OTHER,
    RETURNED,
    NothingConsumed,
    Origins,
    Stop,
    Translation,
    translate,
)

CHUNK = 3


@dataclass
class Expected:
    """By the model: the first record that holds the position up, or the end; and how many come again."""

    position: int
    redelivered: int


def expected(pair: Pair, side: int) -> Expected:
    """What is right, if nothing is hidden by compaction."""
    group, target = pair.positions[side], pair.queues[1 - side]
    assert group is not None
    first = max(pair.positions[1 - side] or 0, target.start)
    position, redelivered = max(target.next, first), 0
    for at, entry in reversed(target.visible(first, target.next)):
        if entry.source_offset == RETURNED and pair.mirrors[side] is not None:
            continue
        if pair.places[side].get(entry.message, group) < group and entry.source_offset != RETURNED:
            redelivered += 1
        else:
            position = at
    in_front = [
        at
        for at, entry in target.visible(first, position)
        if pair.places[side].get(entry.message, group) < group and entry.source_offset != RETURNED
    ]
    return Expected(position, redelivered - len(in_front))


def assert_nothing_is_lost(pair: Pair, side: int, position: int) -> None:
    """All that lies before `position` on the other side was consumed, or the group will meet it there later."""
    source, target = pair.queues[side], pair.queues[1 - side]
    present, mirror = pair.positions[1 - side] or 0, pair.mirrors[side]
    for at, entry in target.visible(present, position):
        if entry.source_offset != RETURNED:
            assert entry.message in pair.consumed | pair.superseded, f"{at} was skipped"
            continue
        assert mirror is not None
        origin, copy = pair.places[side][entry.message], pair.places[1 - side].get(entry.message)
        comes = origin >= mirror.next if copy is None else copy >= position
        gone = origin not in source.entries or (copy is not None and copy not in target.entries)
        never = origin < mirror.start or origin in mirror.letters
        assert entry.message in pair.consumed | pair.superseded or comes or gone or never, f"{at} was skipped"
    still_here = {entry.message for _, entry in source.visible(0, source.next) if entry.source_offset != RETURNED}
    for message, at in pair.places[1 - side].items():
        if at < position and message in still_here - pair.superseded:
            assert message in pair.consumed, f"a translation back would skip what was copied to {at}"


def assert_missing(pair: Pair, side: int, move: Move) -> None:
    """Count what the group has not consumed on `side`, and will not meet on the other side."""
    source, target, mirror = pair.queues[side], pair.queues[1 - side], pair.mirrors[side]
    assert move.position is not None and move.new is not None
    end = source.next if mirror is None else mirror.next
    here = {entry.message for _, entry in target.visible(move.new, target.next) if entry.source_offset >= 0}
    old = pair.positions[1 - side] or 0

    def is_missing(at: int, entry: Entry) -> bool:
        if entry.source_offset != OTHER:
            return old <= entry.source_offset < target.start
        if mirror is None or not target.compacted:
            return at < end and entry.message not in here
        return at < mirror.start or at in mirror.letters

    missing = [at for at, entry in source.visible(move.position, source.next) if is_missing(at, entry)]
    if target.compacted and target.start > old:
        assert move.missing >= len(missing), "compaction and retention together: in doubt it is missing"
    else:
        assert move.missing == len(missing)


def planned(pair: Pair, side: int, **rules: bool) -> Move:
    """The group's position on `side`, translated to the other side."""
    (move,) = plan_group(pair.link(side, CHUNK), "g", "g", Rules(**rules))
    return move


def try_translation(pair: Pair, side: int) -> None:
    """Translate, compare with the model, and move the group if that is allowed."""
    mirror, group = pair.mirrors[side], pair.positions[side]
    if group is None or (mirror is None and pair.mirrors[1 - side] is None):
        return
    found = planned(pair, side, accept_missing=True)
    if mirror is not None and mirror.next < group:
        assert (found.status, found.new) == (Status.BEHIND, None)
        return
    source, target = pair.queues[side], pair.queues[1 - side]
    present = pair.positions[1 - side]
    unconsumed = [
        at for message, at in pair.places[1 - side].items()
        if at < (present or 0) and pair.places[side].get(message, -1) >= group and at in target.entries
        and target.entries[at].source_offset >= 0
    ]  # fmt: skip
    assert found.ahead == len(unconsumed)
    if found.ahead:
        assert (found.status, found.new) == (Status.AHEAD, None)
        back = planned(pair, side, force_back=True, accept_missing=True)
        assert back.new is not None and back.new <= unconsumed[0]
        return
    assert found.new is not None
    assert found.new >= max(present or 0, target.start)
    right = expected(pair, side)
    assert found.new <= right.position, "something that was not consumed would be skipped"
    if not source.compacted and (source.start == 0 or group >= source.start):
        assert (found.new, found.redelivered) == (right.position, right.redelivered)
    assert_missing(pair, side, found)
    over = planned(pair, side, pass_letters=True, accept_missing=True)
    assert over.new is not None and over.new >= found.new
    passed = [at for at, entry in target.visible(found.new, over.new) if entry.source_offset == OTHER
              and entry.message not in pair.consumed | pair.superseded]  # fmt: skip
    assert set(passed) <= set(pair.letters(1 - side).tolist())
    assert over.letters_passed >= len(passed)
    strict = planned(pair, side)
    if strict.status is Status.MISSING:
        assert strict.missing == found.missing > 0 and strict.new is None
    elif strict.status is Status.MOVE:
        assert strict.new == found.new
        assert_nothing_is_lost(pair, side, found.new)
        pair.move(1 - side, found.new)
    else:
        assert strict.status is Status.STAYS and found.new == present and not found.missing


SIDE = st.integers(0, 1)
COUNT = st.integers(1, 6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("produce"), SIDE, COUNT),
        st.tuples(st.just("copy"), SIDE, COUNT),
        st.tuples(st.just("consume"), SIDE, COUNT),
        st.tuples(st.just("translate"), SIDE, COUNT),
        st.tuples(st.sampled_from(("too large", "gap", "start", "retain", "compact", "round")), SIDE, COUNT),
    ),
    max_size=40,
)


def run(pair: Pair, steps: list[tuple[str, int, int]]) -> None:
    """A history."""
    does = {
        "produce": pair.produce,
        "too large": lambda side, _: pair.produce(side, 1, is_too_large=True),
        "gap": pair.gap,
        "start": lambda side, count: pair.start(side, 0 if count < 5 else pair.queues[side].next - 1),
        "copy": pair.copy,
        "retain": pair.retain,
        "compact": lambda side, count: pair.compact(side, count + 1),
        "round": pair.bring_round,
        "consume": pair.consume,
        "translate": lambda side, _: try_translation(pair, side),
    }
    for name, side, count in steps:
        does[name](side, count)
    for side in (0, 1, 0, 1):
        try_translation(pair, side)


@settings(max_examples=100)
@given(both_ways=st.booleans(), compacted=st.tuples(st.booleans(), st.booleans()), steps=STEPS)
def test_no_history_of_two_sides_makes_a_group_skip_a_message_or_repeat_more_than_is_said(
    both_ways: bool, compacted: tuple[bool, bool], steps: list[tuple[str, int, int]]
) -> None:
    pair = Pair(compacted)
    pair.start(0, 0)
    if both_ways:
        pair.start(1, 0)
    run(pair, steps)


NAMES = ("produce", "copy", "consume", "translate", "too large", "gap", "start", "retain", "compact", "round")


def random_history(seed: int) -> None:
    """A longer history than hypothesis tries: mostly both ways, with a part of the steps left out."""
    chance = random.Random(seed)
    weights = [6, 8, 3, 4] + [chance.choice((0, 0, 1, 2)) for _ in NAMES[4:]]
    pair = Pair((chance.random() < 0.2, chance.random() < 0.2))
    pair.start(0, 0)
    if chance.random() < 0.7:
        pair.start(1, 0)
    names = chance.choices(NAMES, weights, k=chance.randrange(20, 80))
    run(pair, [(name, chance.randrange(2), chance.randrange(1, 7)) for name in names])


def test_long_histories_of_two_sides_keep_the_rule() -> None:
    for seed in range(150):
        random_history(seed)


@pytest.mark.slow
def test_many_long_histories_of_two_sides_keep_the_rule() -> None:
    for seed in range(150, 800):
        random_history(seed)


def origins(*rows: tuple[int, int]) -> list[Origins]:
    """One chunk of (position, source offset)."""
    return [Origins(np.array([at for at, _ in rows], np.int64), np.array([offset for _, offset in rows], np.int64))]


def test_a_position_in_a_gap_becomes_the_next_record_that_was_copied() -> None:
    rows = origins((0, 3), (1, 4), (2, 9), (3, 10))
    assert translate(6, 11, rows, 4, NothingConsumed()) == Translation(2, 0, 0, Stop.RECORD, 9)


def test_a_group_that_has_consumed_all_that_was_copied_goes_to_the_end_that_was_asked_for_behind_the_mirror() -> None:
    assert translate(5, 5, origins((0, 3), (1, 4)), 2, NothingConsumed()) == Translation(2, 0, 0, Stop.END, 5)
    # The mirror has gone on since: what it brought behind its position is not consumed, and is not passed.
    late = origins((0, 3), (1, 4), (2, 5))
    assert translate(5, 5, late, 3, NothingConsumed()).position == 2


def test_nothing_is_said_while_the_mirror_stands_below_the_group() -> None:
    assert translate(6, 5, origins((0, 3)), 1, NothingConsumed()) == Translation(None, 0, 0, Stop.BEHIND, 5)


def test_a_record_of_others_holds_the_position_up_and_what_comes_again_is_counted() -> None:
    rows = origins((0, 0), (1, OTHER), (2, 1), (3, 2), (4, 3))
    assert translate(3, 4, rows, 5, NothingConsumed()) == Translation(1, 2, 0, Stop.OTHER, 3)


def test_a_copy_that_the_mirror_has_brought_since_is_not_consumed_though_all_others_are() -> None:
    # The way back has passed over it as a loop, and says that it has done all of the queue.
    nothing_left = Copies(origins(), WayBack(0, 3), Lost.OLDEST, lambda: 3)
    rows = origins((0, 0), (1, OTHER), (2, 1))
    assert translate(1, 1, rows, 3, nothing_left) == Translation(2, 0, 0, Stop.OTHER, 1)


def test_a_copy_that_a_job_made_counts_as_a_new_record() -> None:
    rows = origins((0, 0), (1, 1), (2, 0), (3, 2))
    assert translate(3, 3, rows, 4, NothingConsumed()) == Translation(2, 1, 0, Stop.OTHER, 3)


def test_a_mark_beyond_the_position_of_the_way_back_is_not_believed() -> None:
    forged = origins((0, 999_999))
    copies = Copies(forged, WayBack(0, 2), Lost.NONE, lambda: 0)
    assert translate(1, 5, origins((0, OTHER), (1, OTHER)), 2, copies).position == 0
    hides = Copies(origins((0, 999_999), (1, 0), (2, 1)), WayBack(0, 2), Lost.NONE, lambda: 0)
    assert translate(3, 5, origins((0, OTHER), (1, OTHER)), 2, hides).position == 2


def test_a_forged_mark_of_the_mirror_makes_records_come_again_but_none_is_skipped() -> None:
    rows = origins((0, 0), (1, 4), (2, 1), (3, 2), (4, 3))
    assert translate(3, 5, rows, 5, NothingConsumed()).position == 1
    assert translate(5, 5, rows, 5, NothingConsumed()).position == 2


def test_a_dead_letter_of_the_way_back_holds_the_position_up_unless_it_may_be_passed() -> None:
    rows = origins((0, OTHER), (1, OTHER), (2, 0), (3, 1))
    letters = np.array([1], np.int64)

    def copies() -> Copies:
        return Copies(origins((1, 0)), WayBack(0, 2), Lost.NONE, lambda: 0, letters)

    assert translate(2, 2, rows, 4, copies()) == Translation(1, 2, 0, Stop.OTHER, 2)
    assert translate(2, 2, rows, 4, copies(), letters) == Translation(4, 0, 1, Stop.END, 2)


def test_a_returned_record_holds_the_position_up_only_if_no_mirror_brings_it_directly() -> None:
    rows = origins((0, RETURNED), (1, RETURNED))
    assert translate(0, 0, rows, 2, NothingConsumed()).position == 2
    assert translate(0, None, rows, 2, NothingConsumed()) == Translation(0, 0, 0, Stop.OTHER, 0)


def test_reading_ends_where_nothing_behind_can_matter() -> None:
    def rows() -> object:
        yield from origins((0, 0), (1, 1), (2, 2))
        raise AssertionError("read too far")

    assert translate(1, 3, rows(), 100, NothingConsumed()).position == 1  # type: ignore[arg-type]


def test_seeking_reads_a_queue_no_more_than_once_and_little_where_copies_are_dense() -> None:
    size = 1 << 12
    read_count = 0

    def reading(source_offsets: np.ndarray):  # type: ignore[no-untyped-def]
        def read(first: int, end: int):  # type: ignore[no-untyped-def]
            nonlocal read_count
            for begin in range(first, end, 16):
                part = np.arange(begin, min(begin + 16, end))
                read_count += len(part)
                yield Origins(part, source_offsets[part])

        return read

    dense = np.arange(size) // 2 * 2
    assert seek(reading(np.where(np.arange(size) % 2, OTHER, dense)), 0, size, 1000) == CopiesStart(999, True)
    assert read_count <= 16 * 13
    read_count = 0
    sparse = np.full(size, OTHER)
    assert seek(reading(sparse), 0, size, 1000) == CopiesStart(0, False)
    assert read_count <= size
    sparse[100] = 7
    assert seek(reading(sparse), 0, size, 8) == CopiesStart(101, True)
    assert seek(reading(sparse), 0, size, 7) == CopiesStart(0, False)


def test_missing_counts_what_was_never_copied_and_what_the_targets_retention_took() -> None:
    source = origins((4, OTHER), (5, 2), (6, OTHER), (7, 8), (8, OTHER))
    assert count_missing(source, 7, nothing_copied, range(0)) == 2
    assert count_missing(source, 4, nothing_copied, range(0, 8)) == 1
    assert count_missing(source, 7, nothing_copied, range(0, 9)) == 4
    assert count_missing(source, 9, lambda positions: positions != 6, range(0)) == 1


def asked(copies: Copies, *positions: int) -> list[bool]:
    """Which of these records of others are consumed."""
    return copies.consumed(np.array(positions, np.int64)).tolist()


def test_before_the_first_copy_that_retention_left_all_is_consumed_from_the_start_of_the_way_back_on() -> None:
    copies = Copies(origins((10, 7), (12, 9)), WayBack(3, 20), Lost.OLDEST, lambda: 20, np.array([5], np.int64))
    assert asked(copies, 2, 3, 5, 6, 7, 8, 9, 10) == [False, True, False, True, True, False, True, False]


def test_in_a_compacted_source_all_is_consumed_up_to_the_last_copy() -> None:
    copies = Copies(origins((10, 7), (12, 9)), WayBack(3, 20), Lost.ANY, lambda: 0)
    assert asked(copies, 2, 3, 8, 9, 10) == [False, True, True, True, False]
    ended = Copies(origins((10, 7)), WayBack(0, 20), Lost.ANY, lambda: 20)
    assert asked(ended, 8, 19, 20) == [True, True, False]


def test_a_copy_of_the_very_next_record_is_still_to_come() -> None:
    copies = Copies(origins((10, 7)), WayBack(0, 20), Lost.NONE, lambda: 0)
    assert not copies.none_from(7)
    assert copies.none_from(8)
