"""Ends of transactions that are killed, fail or lose power anywhere: nothing is lost, nothing is committed twice."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_store import Message, Store
from rmq_store.files import durable
from rmq_store.verify import verify_store

OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC"


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    yield
    durable.hook = None


def save(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def restore(root: Path, saved: dict[Path, bytes]) -> None:
    for path in root.rglob("*"):
        if path.is_file() and path not in saved:
            path.unlink()
    for path, data in saved.items():
        path.write_bytes(data)


def in_child(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise OSError(5, "injected")


def check(parking: Any, end: Callable[[Store], object]) -> bool:
    """Both records are there, or none; a repetition makes it one commit. Returns if they were there."""
    with parking.open() as store:
        bodies, waiting = parking.bodies(store), store.transactions.pending()
        ends = store.queue_range(OP, 0).max_offset
        assert (bodies, ends, len(waiting)) in ([[b"paid"], 1, 0], ([b"paid"], 1, 0), ([], 0, 1))
        end(store)
        assert parking.bodies(store) == [b"paid"]
        assert store.transactions.pending() == []
    assert verify_store(parking.root).status == "clean"
    return bool(bodies)


@pytest.mark.parametrize("act", [kill, fail])
@pytest.mark.slow
def test_a_commit_that_is_stopped_anywhere_is_there_once_or_not_at_all(parking: Any, act: Callable[[], None]) -> None:
    with parking.open() as store:
        sent = store.transactions.prepare(Message("T", b"paid"), 0, "pg")

    def end(store: Store) -> None:
        store.transactions.end("pg", sent.queue_offset, sent.commit_log_offset, commit=True)

    saved, found = save(parking.root), set()
    for stop_at in itertools.count(1, 3):
        restore(parking.root, saved)

        def run(stop_at: int = stop_at) -> None:
            countdown = itertools.count(stop_at, -1)
            with parking.open() as store:
                durable.hook = lambda operation, path: act() if next(countdown) == 1 else None
                end(store)

        code = in_child(run)
        found.add(check(parking, end))
        if code == 0:
            break
    assert found == {True, False}


def test_a_power_cut_at_any_byte_of_a_commit_leaves_all_of_it_or_nothing(parking: Any) -> None:
    with parking.open() as store:
        sent = store.transactions.prepare(Message("T", b"paid"), 0, "pg")
        store.flush()
        flushed = store.log_range()[1]
    note = parking.root.parent / "end"

    def die() -> None:
        store = parking.open()
        store.transactions.end("pg", sent.queue_offset, sent.commit_log_offset, commit=True)
        note.write_text(str(store.log_range()[1]))
        kill()

    def end(store: Store) -> None:
        store.transactions.end("pg", sent.queue_offset, sent.commit_log_offset, commit=True)

    assert in_child(die) == -signal.SIGKILL
    saved, last, found = save(parking.root), int(note.read_text()), set()
    for cut in (*range(flushed, last, 61), last - 1, last):
        restore(parking.root, saved)
        segment = next((parking.root / "commitlog").iterdir())
        data = segment.read_bytes()
        segment.write_bytes(data[:cut] + bytes(len(data) - cut))
        page = parking.root / "pyrmq" / "state"
        state = bytearray(page.read_bytes())
        state[8:24] = b"another boot id."
        page.write_bytes(bytes(state))
        found.add(check(parking, end))
    assert found == {True, False}
