"""Locks and threads that a signal handler comes across at any instruction."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from helpers.interrupts import interrupted
from rmq_store.errors import UsageError
from rmq_store.files.locks.background import Answer, Background, HelperThread, Pool
from rmq_store.files.locks.guard import Condition, Event, Guard
from rmq_store.threads import map_in_threads

HANG_GUARD_S = 30.0
PLACES_MAX = 2000


def in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(HANG_GUARD_S)
    assert not thread.is_alive(), "it waits for ever"


def at_every_place(make: Callable[[], Callable[[], object]], after: Callable[[], object]) -> None:
    for k in range(1, PLACES_MAX):
        signal = interrupted(k, make())
        after()
        if not signal.came:
            break
    assert 3 < k < PLACES_MAX - 1


def test_a_guard_refuses_its_own_thread_and_makes_others_wait() -> None:
    guard, order = Guard(), []
    with guard.entered():
        with pytest.raises(UsageError, match="after the handler has returned"), guard.entered():
            pass
        thread = threading.Thread(target=lambda: (guard.entered().__enter__(), order.append("other"), guard.release()))
        thread.start()
        time.sleep(0.05)
        order.append("own")
    thread.join(HANG_GUARD_S)
    assert order == ["own", "other"]


def test_a_condition_that_is_interrupted_at_any_place_is_held_by_nobody() -> None:
    condition = Condition()

    def use() -> None:
        with condition:
            condition.wait(0.0001)
            condition.notify_all()
            condition.wait_for(lambda: False, 0.0001)

    def take() -> None:
        with condition:
            pass

    at_every_place(lambda: use, lambda: in_thread(take))
    assert condition.waiting == 0


def test_a_condition_wakes_as_many_as_it_is_told_to_and_says_when_nobody_did() -> None:
    condition, woken = Condition(), []

    def wait(name: str) -> None:
        with condition:
            assert condition.wait(HANG_GUARD_S)
            woken.append(name)

    threads = [threading.Thread(target=wait, args=(str(number),)) for number in range(3)]
    for number, thread in enumerate(threads, start=1):
        thread.start()
        while condition.waiting < number:
            time.sleep(0.001)
    with condition:
        assert condition.notify() == 1
    threads[0].join(HANG_GUARD_S)
    assert woken == ["0"]
    with condition:
        assert condition.notify_all() == 2
        assert not condition.wait(0.001)
    for thread in threads:
        thread.join(HANG_GUARD_S)
    assert sorted(woken) == ["0", "1", "2"]


def test_an_event_that_is_interrupted_at_any_place_can_be_set_and_waited_for() -> None:
    event = Event()

    def use() -> None:
        event.clear()
        event.wait(0.0001)
        event.set()
        event.wait()

    def look() -> None:
        event.set()
        assert event.wait(HANG_GUARD_S)

    at_every_place(lambda: use, lambda: in_thread(look))


def test_a_thread_whose_start_or_end_is_interrupted_at_any_place_ends() -> None:
    running: list[tuple[Background, Event]] = []

    def start_and_join() -> None:
        go_on = Event()
        running.append((Background(lambda: go_on.wait() and None, "patient"), go_on))
        running[0][0].start()
        go_on.set()
        running[0][0].join()

    def end() -> None:
        if running:
            thread, go_on = running.pop()
            go_on.set()
            assert thread.join(HANG_GUARD_S)
            assert not thread.is_alive()

    at_every_place(lambda: start_and_join, end)


def test_a_pool_that_is_interrupted_at_any_place_shuts_down() -> None:
    pools: list[Pool] = []

    def use() -> None:
        pools.append(Pool(2, "few"))
        assert pools[0].submit(lambda: 1).result() == 1
        pools[0].shutdown()

    at_every_place(lambda: use, lambda: in_thread(pools.pop().shutdown) if pools else None)


def test_a_pool_does_all_that_was_submitted_and_takes_nothing_more() -> None:
    pool = Pool(3, "few")
    outcomes = [pool.submit(lambda number=number: number * number) for number in range(100)]  # type: ignore[misc]
    failing = pool.submit(lambda: 1 // 0)
    pool.shutdown()
    assert [outcome.result(0) for outcome in outcomes] == [number * number for number in range(100)]
    assert isinstance(failing.exception(0), ZeroDivisionError)
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(lambda: 1)


def test_a_second_thread_of_a_block_has_ended_wherever_the_block_was_interrupted() -> None:
    working: list[int] = []

    def work() -> None:
        working.append(1)
        time.sleep(0.001)
        working.pop()

    def use() -> None:
        with HelperThread() as helper:
            helper.begin(work)
            helper.begin(work).result()

    def look() -> None:
        assert not working

    at_every_place(lambda: use, look)


def test_a_map_that_is_interrupted_at_any_place_has_ended_what_it_began() -> None:
    working: list[int] = []

    def work(number: int) -> int:
        working.append(number)
        time.sleep(0.0005)
        working.remove(number)
        return number + 1

    at_every_place(lambda: lambda: map_in_threads(work, range(4)), lambda: None if not working else pytest.fail("on"))
    assert map_in_threads(work, range(10)) == list(range(1, 11))
    with pytest.raises(ZeroDivisionError):
        map_in_threads(lambda number: 1 // number, [1, 2, 0, 3])


def test_an_answer_gives_what_was_found_or_raises_what_was_raised() -> None:
    answer: Answer[int] = Answer()
    in_thread(lambda: answer.work_out(lambda: 7))
    assert answer.result() == 7
    failed: Answer[int] = Answer()
    failed.work_out(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failed.result()
