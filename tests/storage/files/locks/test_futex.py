"""The futex of a lock: it wakes a waiter, and not only by the end of its sleep (futex(2))."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from rmq_store.files.locks.futex import Futex

_HANG_S = 20.0


@pytest.mark.parametrize("wake_all", [False, True])
def test_a_ring_wakes_who_sleeps(wake_all: bool) -> None:
    words = np.zeros(2, np.int64)
    futex = Futex(words, np.zeros(1, np.int64), wake_all=wake_all)
    futex.announce()
    waiters = [threading.Thread(target=futex.wait, args=(3 * _HANG_S,), daemon=True) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    deadline = time.monotonic() + _HANG_S
    while any(waiter.is_alive() for waiter in waiters) and time.monotonic() < deadline:
        futex.wake()
        for waiter in waiters:
            waiter.join(0.01)
        words[0] = any(waiter.is_alive() for waiter in waiters)  # what the woken one does: it announces itself again
    assert not any(waiter.is_alive() for waiter in waiters)


def test_a_ring_that_nobody_waits_for_is_not_kept() -> None:
    words = np.zeros(2, np.int64)
    Futex(words, np.zeros(1, np.int64), wake_all=False).wake()
    assert not words.any()


def test_nobody_sleeps_who_was_rung_for_before() -> None:
    """Between the announcement and the sleep the holder may have let go."""
    futex = Futex(np.zeros(2, np.int64), np.zeros(1, np.int64), wake_all=False)
    futex.announce()
    futex.wake()
    waiter = threading.Thread(target=futex.wait, args=(3 * _HANG_S,), daemon=True)
    waiter.start()
    waiter.join(_HANG_S)
    assert not waiter.is_alive()
