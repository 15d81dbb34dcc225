"""Waiters for one lock look for it about a thousand times a second together, however many they are."""

from __future__ import annotations

import heapq
import multiprocessing
import os
import random
import signal
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.errors import StoreLockedError
from rmq_store.files.locks.futex import Futex
from rmq_store.files.locks.lock import OfdLock
from rmq_store.files.locks.pace import FIRST_S, SHORT_S, Pace

pytestmark = pytest.mark.long

_FORK = multiprocessing.get_context("fork")


@dataclass
class Seen:
    last_poll_ns: int = 0


@dataclass
class Simulated:
    """Waiters whom nobody wakes, by a clock of their own: how often they woke, and looked, in each second."""

    woken: list[int]
    looks: list[int]


def simulate(monkeypatch: pytest.MonkeyPatch, waiters: int, seconds: int, stopped_from: int | None = None) -> Simulated:
    """`stopped_from`: waiters of this number and above do nothing more after the third second."""
    now_ns = [10**12]
    monkeypatch.setattr("rmq_store.files.locks.pace.real_time.monotonic_ns", lambda: now_ns[0])
    monkeypatch.setattr("rmq_store.files.locks.pace.random.uniform", random.Random(waiters).uniform)
    start_ns, shared = now_ns[0], Seen()
    paces = [Pace() for _ in range(waiters)]
    due = [(start_ns + int(1e9 * pace.sleep_s()), number) for number, pace in enumerate(paces)]
    heapq.heapify(due)
    seen = Simulated([0] * seconds, [0] * seconds)
    while True:
        now_ns[0], number = heapq.heappop(due)
        second = (now_ns[0] - start_ns) // 10**9
        if second >= seconds:
            return seen
        if stopped_from is not None and second >= 3 and number >= stopped_from:
            continue
        seen.woken[second] += 1
        seen.looks[second] += paces[number].is_due(shared)
        heapq.heappush(due, (now_ns[0] + int(1e9 * paces[number].sleep_s()), number))


@pytest.mark.parametrize("waiters", [20, 100, 300, 1000])
def test_waiters_together_look_about_a_thousand_times_a_second(monkeypatch: pytest.MonkeyPatch, waiters: int) -> None:
    """It was 200 times for each: 60,000 for 300 of them."""
    seen = simulate(monkeypatch, waiters, 8)
    # Who comes anew doubles its sleep seven times, at most twelve with what chance adds.
    assert seen.woken[0] <= 1000 + 12 * waiters
    assert max(seen.woken[3:]) <= 2000
    assert max(seen.looks) <= 1000


@pytest.mark.parametrize("waiters", [1, 2, 5])
def test_a_few_waiters_look_as_often_as_ever(monkeypatch: pytest.MonkeyPatch, waiters: int) -> None:
    seen = simulate(monkeypatch, waiters, 4)
    assert min(seen.looks) >= 100


def test_those_who_are_left_look_more_often_when_the_others_do_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped, say, or served."""
    seen = simulate(monkeypatch, 300, 10, stopped_from=3)
    assert min(seen.looks[6:]) >= 100


def test_a_clock_of_another_container_slows_nobody_down() -> None:
    pace, shared = Pace(), Seen(2 * time.monotonic_ns())
    for _ in range(20):
        assert pace.is_due(shared)
        shared.last_poll_ns = 2 * time.monotonic_ns()
    assert pace.sleep_s() < 2 * SHORT_S


def test_the_first_looks_without_a_futex_come_soon_and_ask_nobody() -> None:
    pace, shared = Pace(FIRST_S), Seen()
    slept = []
    while pace.sleep_s() < SHORT_S / 2:
        slept.append(pace.sleep_s())
        shared.last_poll_ns = time.monotonic_ns()
        assert pace.is_due(shared)
    assert slept[0] == FIRST_S
    assert sum(slept) < 2 * SHORT_S


def _wait_and_count(path: Path, words: np.ndarray | None, begin: Event, counts: Connection) -> None:
    tries = 0
    lock = OfdLock(path)
    if words is not None:
        lock.futex = Futex(words[:2], words[2:], wake_all=False)
    taking = lock._try

    def counted(*arguments: Any) -> bool:
        nonlocal tries
        tries += 1
        return taking(*arguments)

    lock._try = counted  # type: ignore[method-assign, assignment]
    begin.wait()
    lock.acquire_exclusive(60_000)
    counts.send(tries)
    lock.release()


@pytest.mark.parametrize("has_futex", [True, False])
def test_many_processes_that_wait_try_a_bounded_number_of_times(tmp_path: Path, has_futex: bool) -> None:
    """Each of the 60 tried 200 times a second: 24,000 in the two seconds, and the holder did not get on."""
    import mmap

    path, held_s, count = tmp_path / "lock", 2.0, 60
    words = np.frombuffer(mmap.mmap(-1, 4096), np.int64, 3) if has_futex else None
    holder = OfdLock(path)
    if words is not None:
        holder.futex = Futex(words[:2], words[2:], wake_all=False)
    assert holder.try_exclusive()
    begin = _FORK.Event()
    counts, count_to = _FORK.Pipe(duplex=False)
    waiters = [_FORK.Process(target=_wait_and_count, args=(path, words, begin, count_to)) for _ in range(count)]
    for waiter in waiters:
        waiter.start()
    begin.set()
    started_s = time.monotonic()
    time.sleep(held_s)
    held_s = time.monotonic() - started_s
    holder.release()
    tries = sum(counts.recv() for _ in waiters)
    for waiter in waiters:
        waiter.join()
    served_s = time.monotonic() - started_s - held_s
    assert all(waiter.exitcode == 0 for waiter in waiters)
    # In a thousandth of a second one, and of each waiter those of its first and of its last moment.
    assert tries <= 1000 * (held_s + served_s) + 40 * count


def _hold(path: Path, words: np.ndarray, ready: Connection) -> None:
    lock = OfdLock(path)
    lock.futex = Futex(words[:2], words[2:], wake_all=False)
    lock.acquire_exclusive(60_000)
    ready.send(os.getpid())
    time.sleep(600)


def test_stopped_waiters_and_a_killed_holder_keep_nobody_from_the_lock(tmp_path: Path) -> None:
    """The holder rings for nobody, and who would be rung for first does not run."""
    import mmap

    path = tmp_path / "lock"
    words = np.frombuffer(mmap.mmap(-1, 4096), np.int64, 3)
    ready, say = _FORK.Pipe(duplex=False)
    children = [_FORK.Process(target=_hold, args=(path, words, say)) for _ in range(8)]
    try:
        for child in children:
            child.start()
        first = ready.recv()
        lock = OfdLock(path)
        with pytest.raises(StoreLockedError):
            lock.acquire_exclusive(200)
        for child in children:
            if child.pid != first:
                os.kill(child.pid or 0, signal.SIGSTOP)
        os.kill(first, signal.SIGKILL)
        lock.futex = Futex(words[:2], words[2:], wake_all=False)
        lock.acquire_exclusive(30_000)
        assert lock.held == "exclusive"
        lock.release()
    finally:
        for child in children:
            child.kill()
            child.join()


def _open_send_close(root: Path, begin: Event) -> None:
    begin.wait()
    with Store.open(root) as store:
        store.send(Message("T", b"x"))


def test_many_processes_that_open_send_and_close_at_once_all_get_through(scratch: Path, small: StoreConfig) -> None:
    root, count = scratch / "store", 40
    with Store.open(root, create=True, config=small) as store:
        store.create_topic("T", queue_count=1)
    begin = _FORK.Event()
    openers = [_FORK.Process(target=_open_send_close, args=(root, begin)) for _ in range(count)]
    for opener in openers:
        opener.start()
    begin.set()
    for opener in openers:
        opener.join(120)
    assert [opener.exitcode for opener in openers] == [0] * count
    with Store.open(root, read_only=True) as store:
        assert store.queue_range("T", 0).max_offset == count
