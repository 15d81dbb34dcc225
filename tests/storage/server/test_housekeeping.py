"""Work in the background goes on after errors, whichever kind they are of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from rmq_store.errors import StoreLockedError
from rmq_store.server.housekeeping import Housekeeping, Step
from rmq_store.server.requests.worker_pool import Work, WorkerPool

PATIENCE_S = 60.0


def eventually(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.005)


@pytest.mark.parametrize("error", [StoreLockedError("busy"), OSError(24, "Too many open files"), ZeroDivisionError()])
def test_a_step_that_fails_has_a_pause_and_the_others_go_on(error: Exception) -> None:
    calls = {"bad": 0, "good": 0}

    def fail() -> None:
        calls["bad"] += 1
        raise error

    def work() -> None:
        calls["good"] += 1

    house = Housekeeping("store", [Step("bad", 0.0, fail), Step("good", 0.0, work)])
    house.start()
    eventually(lambda: calls["good"] >= 3)
    house.close()
    assert calls["bad"] == 1


def test_a_step_that_has_failed_is_tried_again() -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise StoreLockedError("busy")

    house = Housekeeping("store", [Step("bad", 0.0, fail)], after_error_s=0.0)
    house.start()
    eventually(lambda: len(calls) >= 2)
    house.close()


def test_work_of_the_server_itself_comes_into_a_full_queue() -> None:
    """A client whose leave is refused would be a member for ever."""
    pool, go_on, done = WorkerPool("test", 1, 0, 60_000), threading.Event(), []
    work = Work(float("inf"), lambda: done.append(go_on.wait(PATIENCE_S)), lambda: None)
    assert not pool.submit(work)
    assert pool.submit(work, force=True)
    go_on.set()
    pool.close()
    assert done == [True]
