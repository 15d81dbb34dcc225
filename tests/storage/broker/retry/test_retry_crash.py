"""Send-backs and redrives that are killed, fail at any point, or meet each other: nothing is lost, nothing comes twice.

The same files for each try: a child does the work, and is stopped before its k-th operation on a file.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import Message, Store
from rmq_store.broker.dlq import redrive
from rmq_store.broker.dlq.redrive_ledger import REDRIVEN_TOPIC
from rmq_store.files import durable
from rmq_store.verify import verify_store

GROUP = "CG1"
RETRY, DLQ, SCHEDULE = "%RETRY%CG1", "%DLQ%CG1", "SCHEDULE_TOPIC_XXXX"


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    yield
    durable.hook = None


def send(store: Store, count: int) -> pa.RecordBatch:
    """Messages, as rows to send back: every second one straight to the dead letters."""
    sent = [store.send(Message("TopicJ", b"body %d" % n, tags="TagA")) for n in range(count)]
    return pa.record_batch(
        {
            "commitLogOffset": [one.commit_log_offset for one in sent],
            "msgId": [one.msg_id for one in sent],
            "delayLevel": pa.array([-(n % 2) for n in range(count)], pa.int32()),
        }
    )


def bodies_of(store: Store, topic: str, queue_id: int = 0) -> list[bytes]:
    first, last = store.queue_range(topic, queue_id)
    batches = store.read(topic, queue_id, first, last, columns=["body"])
    return [body for batch in batches for body in batch.column(0).to_pylist()]


def save(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def restore(root: Path, saved: dict[Path, bytes]) -> None:
    for path in sorted(root.rglob("*"), reverse=True):
        if path.is_file() and path not in saved:
            path.unlink()
    for path, data in saved.items():
        with path.open("r+b" if path.exists() else "wb") as file:
            file.write(data)
            file.truncate()


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


def stops(parking: Any, work: Callable[[Store], object], act: Callable[[], None], step: int = 3) -> Iterator[int]:
    """Run `work` in children from the same files, with `act` before the k-th operation on a file, until one ends."""
    saved = save(parking.root)
    for stop_at in itertools.count(1, step):
        restore(parking.root, saved)

        def run(stop_at: int = stop_at) -> None:
            countdown = itertools.count(stop_at, -1)
            with parking.open() as store:
                durable.hook = lambda operation, path: act() if next(countdown) == 1 else None
                work(store)

        code = in_child(run)
        yield code
        if code == 0:
            return


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise OSError(5, "injected")


@pytest.mark.parametrize("act", [kill, fail])
@pytest.mark.slow
def test_a_batch_that_is_stopped_anywhere_is_there_whole_or_not_at_all(parking: Any, act: Callable[[], None]) -> None:
    """A kill, or a failing operation; then the caller repeats it, and it is there once."""
    with parking.open() as store:
        store.create_topic("TopicJ", 2)
        rows = send(store, 20)
        store.retry.prepare(GROUP)
    retried, dead = [b"body %d" % n for n in range(0, 20, 2)], [b"body %d" % n for n in range(1, 20, 2)]

    def work(store: Store) -> None:
        store.retry.send_back_all(GROUP, rows, key="q", value=1)

    found = set()
    for _ in stops(parking, work, act):
        with parking.open() as store:
            parked = bodies_of(store, SCHEDULE, 2)
            assert parked in ([], retried)
            assert bodies_of(store, DLQ) == (dead if parked else [])
            found.add(bool(parked))
            store.retry.send_back_all(GROUP, rows, key="q", value=1)
            assert bodies_of(store, SCHEDULE, 2) == retried
            assert bodies_of(store, DLQ) == dead
        assert verify_store(parking.root).status == "clean"
    assert found == {True, False}


@pytest.fixture
def letters(parking: Any, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Twelve dead letters, and units of five."""
    monkeypatch.setattr(redrive, "CHUNK_ROWS", 5)
    with parking.open() as store:
        store.create_topic("TopicJ", 2)
        store.retry.send_back_all(GROUP, send(store, 24))
        found = bodies_of(store, DLQ)
    assert len(found) == 12
    return found


def all_letters() -> pa.RecordBatch:
    return pa.record_batch({"queueId": pa.array([0] * 12, pa.int32()), "queueOffset": list(range(12))})


@pytest.mark.parametrize("act", [kill, fail])
@pytest.mark.slow
def test_a_redrive_that_is_stopped_anywhere_goes_on_where_it_was(
    parking: Any, letters: list[bytes], act: Callable[[], None]
) -> None:
    """B19: resumable, commit after publish. Whole units are there; a second run moves the rest, and nothing twice."""

    def work(store: Store) -> None:
        store.dead_letters.redrive(GROUP, all_letters())

    moved_before = set()
    for _ in stops(parking, work, act, step=5):
        with parking.open() as store:
            moved = bodies_of(store, RETRY)
            assert moved in (letters[:0], letters[:5], letters[:10], letters)
            assert store.dead_letters.redriven(GROUP) == ({0: [(0, len(moved))]} if moved else {})
            moved_before.add(len(moved))
            outcomes = store.dead_letters.redrive(GROUP, all_letters()).column("outcome").to_pylist()
            assert outcomes == ["ALREADY_REDRIVEN"] * len(moved) + ["REDRIVEN"] * (12 - len(moved))
            assert bodies_of(store, RETRY) == letters
            assert bodies_of(store, DLQ) == letters
        assert verify_store(parking.root).status == "clean"
    assert moved_before >= {0, 5, 12}


def test_the_record_of_what_was_moved_lies_behind_all_copies(parking: Any, letters: list[bytes]) -> None:
    """A broker may keep half a unit after a power cut. Where the record is, all copies are: nothing is taken for moved
    that is not there.
    """
    with parking.open() as store:
        copies = store.dead_letters.redrive(GROUP, all_letters()).column("newCommitLogOffset").to_pylist()
        (batch,) = store.read(REDRIVEN_TOPIC, 0, 0, 3, columns=["commitLogOffset"])
        records = batch.column(0).to_pylist()
    assert [sum(copy < record for copy in copies) for record in records] == [5, 10, 12]


def test_a_cut_log_takes_what_it_knew_of_the_moved_with_it(parking: Any, letters: list[bytes]) -> None:
    """A power cut took the last unit. Nothing on disk is ahead of the log: the letters of that unit go again."""
    with parking.open() as store:
        store.dead_letters.redrive(GROUP, all_letters().slice(0, 5))
    saved = save(parking.root)
    with parking.open() as store:
        store.dead_letters.redrive(GROUP, all_letters())
    late = {path: path.read_bytes() for path in (parking.root / "pyrmq").glob("*.json")}
    restore(parking.root, saved)
    for path, data in late.items():
        path.write_bytes(data)
    with parking.open() as store:
        assert store.dead_letters.redriven(GROUP) == {0: [(0, 5)]}
        store.dead_letters.redrive(GROUP, all_letters())
        assert bodies_of(store, RETRY) == letters


def test_processes_that_redrive_the_same_letters_share_them(parking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three at the same moment, each in an order of its own, one of them killed on the way."""
    monkeypatch.setattr(redrive, "CHUNK_ROWS", 4)
    with parking.open() as store:
        store.create_topic("TopicJ", 2)
        store.retry.send_back_all(GROUP, send(store, 120))
        letters = bodies_of(store, DLQ)
    ready, go = os.pipe(), os.pipe()

    def work(number: int) -> None:
        order = random.Random(number).sample(range(60), 60)
        rows = pa.record_batch({"queueId": pa.array([0] * 60, pa.int32()), "queueOffset": order})
        with parking.open() as store:
            os.write(ready[1], b".")
            os.read(go[0], 1)
            countdown = itertools.count(8, -1)  # soon: there is less to do for it the more the others do
            durable.hook = lambda operation, path: kill() if number == 0 and next(countdown) == 1 else None
            for first in range(0, 60, 4):
                store.dead_letters.redrive(GROUP, rows.slice(first, 4))

    pids = []
    for number in range(3):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                work(number)
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    for _ in pids:
        os.read(ready[0], 1)
    os.write(go[1], b"...")
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert codes == [-signal.SIGKILL, 0, 0]
    with parking.open() as store:
        assert sorted(bodies_of(store, RETRY)) == sorted(letters)
        assert store.dead_letters.redriven(GROUP) == {0: [(0, 60)]}
    assert verify_store(parking.root).status == "clean"
