"""Threads that run a consumer's work: as many at a time as there are, and no more of them awake than are needed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from rmq_store.client.consume_service.executor import Executor

THREADS = 8
HANG_GUARD_S = 30.0


@pytest.fixture
def executor() -> Iterator[Executor]:
    made = Executor(clock=lambda: 0)
    made.start(THREADS, "worker")
    until_all_wait(made)
    yield made
    assert made.stop(int(HANG_GUARD_S * 1000))


def until_all_wait(executor: Executor) -> None:
    deadline_s = time.monotonic() + HANG_GUARD_S
    while executor._waiting < THREADS and time.monotonic() < deadline_s:
        time.sleep(0.001)


def test_tasks_that_wait_for_each_other_run_at_the_same_time_on_all_threads(executor: Executor) -> None:
    met = threading.Barrier(THREADS + 1)
    for _ in range(THREADS):
        executor.submit(lambda: met.wait(HANG_GUARD_S) and None)
    met.wait(HANG_GUARD_S)


@pytest.mark.parametrize("rounds", range(20))
def test_each_task_runs_once_however_many_are_submitted_at_once(executor: Executor, rounds: int) -> None:
    ran: list[int] = []
    done = threading.Event()

    def task(number: int) -> None:
        ran.append(number)
        if len(ran) == 200:
            done.set()

    for number in range(200):
        executor.submit(lambda number=number: task(number))  # type: ignore[misc]
        if number % 50 == 0:
            time.sleep(0.001)
    assert done.wait(HANG_GUARD_S)
    assert sorted(ran) == list(range(200))


def test_a_thread_that_is_busy_holds_up_no_other_task(executor: Executor) -> None:
    stays, went_on = threading.Event(), threading.Event()
    executor.submit(lambda: stays.wait(HANG_GUARD_S) and None)
    executor.submit(went_on.set)
    assert went_on.wait(HANG_GUARD_S)
    stays.set()


def test_many_tasks_wake_one_thread_which_wakes_the_next_when_it_has_one(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that finds that others have done all has only taken the interpreter from them."""
    woken, ran = [], []
    notify = executor._condition.notify
    monkeypatch.setattr(executor._condition, "notify", lambda: (woken.append(threading.get_ident()), notify()))
    with executor._condition:  # no thread gets a task before all are there
        for number in range(3):
            executor.submit(lambda number=number: ran.append(number))  # type: ignore[misc]
        assert woken == [threading.get_ident()]
    until_all_wait(executor)
    assert sorted(ran) == [0, 1, 2]
    assert threading.get_ident() not in woken[1:]


def test_what_was_put_off_wakes_a_thread_when_it_is_due() -> None:
    now_ms = 0
    executor = Executor(clock=lambda: now_ms)
    executor.start(2, "worker")
    ran = threading.Event()
    executor.submit_later(ran.set, 10)
    executor.release_due()
    assert not ran.wait(0.05)
    now_ms = 10
    executor.release_due()
    assert ran.wait(HANG_GUARD_S)
    assert executor.stop(int(HANG_GUARD_S * 1000))
