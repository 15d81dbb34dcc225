"""Work for two threads that looks like work for one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from itertools import count

import pytest

from rmq_store.files.locks.background import map_in_pairs


@pytest.fixture(autouse=True)
def processors(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    found = {0, 1}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: found)
    return found


def squares(items: object, refused: int = -1) -> list[tuple[int, Callable[[], int]]]:
    def square(item: int) -> int:
        if item == refused:
            raise ValueError(f"{item} is refused")
        return item * item

    return list(map_in_pairs(items, square))  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("size", range(6))
def test_every_item_comes_once_and_in_order(size: int) -> None:
    found = squares(range(size))
    assert [item for item, _ in found] == list(range(size))
    assert [answer() for _, answer in found] == [item * item for item in range(size)]


@pytest.mark.parametrize("refused", range(5))
def test_an_error_comes_with_its_own_item(refused: int) -> None:
    for item, answer in squares(range(5), refused):
        if item == refused:
            with pytest.raises(ValueError, match=f"{item} is refused"):
                answer()
        else:
            assert answer() == item * item


def test_two_items_are_worked_on_at_the_same_time() -> None:
    both = threading.Barrier(2)
    assert [answer() for _, answer in map_in_pairs(range(4), lambda item: both.wait(60) * 0 + item)] == [0, 1, 2, 3]


def test_nothing_is_worked_on_while_the_caller_has_an_item() -> None:
    """The caller may close the store, or fork."""
    second_may_end = threading.Event()

    def work(item: int) -> int:
        if item % 2:
            second_may_end.wait(60)
        else:
            threading.Timer(0.05, second_may_end.set).start()
        return item

    for item, _ in map_in_pairs(range(4), work):
        assert second_may_end.is_set()
        if item % 2:
            second_may_end.clear()


def test_no_more_is_taken_than_is_worked_on() -> None:
    """Items may be many, and what they are made from large."""
    taken = []
    pairs = map_in_pairs((taken.append(number) or number for number in count()), lambda item: item)
    for number in range(6):
        assert next(pairs)[0] == number
        assert len(taken) <= number + 2


def test_one_processor_gets_no_second_thread(processors: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    processors.clear()
    processors.add(3)
    monkeypatch.setattr(threading.Thread, "start", lambda thread: pytest.fail("started"))
    assert [answer() for _, answer in squares(range(5))] == [0, 1, 4, 9, 16]


def test_where_no_thread_is_to_be_had_one_does_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert [answer() for _, answer in squares(range(5))] == [0, 1, 4, 9, 16]
