"""The plan of a slice around loss, on a store in memory: which pieces are read, and which messages are reported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pyspark_rmq.access.queue_source import SliceRead
from pyspark_rmq.position.planning import QueueSlice
from pyspark_rmq.read import slice_reader as module
from pyspark_rmq.read.slice_reader import _naming_first, plan_pieces
from rmq_store import OffsetOutOfRangeError


class Entries:
    """A queue of messages of 10 bytes, some of which the log has lost."""

    def __init__(self, lost: Sequence[int] = ()) -> None:
        self.lost = np.array(lost, np.int64)
        self.asked: list[tuple[int, int]] = []

    def lost_offsets(self, topic: str, queue_id: int, start: int, end: int, *, tags: str | None) -> np.ndarray:
        self.asked.append((start, end))
        return self.lost[(self.lost >= start) & (self.lost < end)]

    def offset_after_bytes(self, topic: str, queue_id: int, start: int, end: int, limit_bytes: int) -> int:
        return min(end, start + limit_bytes // 10)

    def bytes_between(self, topic: str, queue_id: int, start: int, end: int) -> int:
        return 10 * (end - start)


def plan(store: Any, start: int, end: int, rows: Sequence[int] | None = None) -> list[tuple[int, int, list[int]]]:
    wanted = None if rows is None else np.array(rows, np.int64)
    found = plan_pieces(store, SliceRead(QueueSlice("T", 0, start, end), ["body"], only=wanted))
    return [(piece.wanted.part.start, piece.wanted.part.end, piece.missing) for piece in found]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE_ROWS", 10)
    monkeypatch.setattr(module, "_LOST_ROWS", 1000)


def test_a_sound_slice_is_cut_into_pieces_that_follow_each_other() -> None:
    assert plan(Entries(), 5, 30) == [(5, 15, []), (15, 25, []), (25, 30, [])]


def test_a_piece_has_no_more_bytes_than_are_held_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE_BYTES", 40)
    assert plan(Entries(), 0, 10) == [(0, 4, []), (4, 8, []), (8, 10, [])]


def test_lost_messages_are_in_the_list_of_their_piece_and_a_lost_range_is_in_one_list() -> None:
    pieces = plan(Entries([3, *range(8, 14)]), 0, 20)
    assert pieces == [(0, 14, [3, *range(8, 14)]), (14, 20, [])]


def test_a_slice_of_which_nothing_is_left_is_one_empty_piece() -> None:
    assert plan(Entries(range(5)), 0, 5) == [(5, 5, [0, 1, 2, 3, 4])]


def test_of_chosen_rows_only_lost_ones_that_were_chosen_are_in_the_list() -> None:
    (piece,) = plan(Entries([2, 3, 4]), 0, 9, rows=[1, 3, 8])
    assert piece == (1, 9, [3])


def test_the_entries_are_asked_for_a_bounded_range_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOST_ROWS", 8)
    store = Entries()
    plan(store, 0, 20)
    assert store.asked == [(0, 8), (8, 16), (16, 20)]


def test_an_error_at_the_end_of_a_piece_names_the_first_message_that_was_not_read() -> None:
    for requested, named in ((25, 20), (7, 7)):
        with pytest.raises(OffsetOutOfRangeError) as raised, _naming_first(20):
            raise OffsetOutOfRangeError("gone", requested, 0, 22)
        assert raised.value.requested == named


def test_a_queue_that_tells_neither_losses_nor_sizes_is_cut_by_rows() -> None:
    assert plan(object(), 5, 30) == [(5, 15, []), (15, 25, []), (25, 30, [])]
    assert plan(object(), 0, 100, rows=[3, 4, 50]) == [(3, 13, []), (50, 51, [])]
