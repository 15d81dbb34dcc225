"""The verifier beside others: whoever opens, writes, closes, cleans up or repairs a sound store meanwhile, it is not
called damaged; and damage is found all the same.

A store that was closed when the check began, and then opened and written, had a hundred wrong slots in its index.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.backup.backup import backup
from rmq_store.broker.repair.repair import carry_out, examine
from rmq_store.verify import Report, verify_store
from rmq_store.verify.in_use import lock_use

pytestmark = pytest.mark.long

SEGMENT_BYTES = 8192
CONFIG = StoreConfig(
    mapped_file_size_commit_log=SEGMENT_BYTES, mapped_file_size_consume_queue=2000, max_hash_slot_num=50,
    max_index_num=200,
)  # fmt: skip


class Others:
    """What somebody does with the store at `root` during a check; `opened` stay open until the test ends."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.opened: list[Store] = []

    def open_and_write(self) -> None:
        store = Store.open(self.root)
        self.opened.append(store)
        self.send(store)

    def write_and_close(self) -> None:
        with Store.open(self.root) as store:
            self.send(store)

    def write_and_be_killed(self) -> None:
        pid = os.fork()
        if pid == 0:
            self.send(Store.open(self.root))
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(pid, 0)

    def be_killed_and_recovered(self) -> None:
        self.write_and_be_killed()
        self.open_and_write()

    def write_many_at_once(self) -> None:
        with Store.open(self.root) as store:
            store.append(pa.record_batch({"body": [b"x" * 50] * 500, "keys": [f"b{n}" for n in range(500)]}), "Orders")

    def clean_up(self) -> None:
        for path in sorted((self.root / "commitlog").iterdir())[:3]:
            os.utime(path, (1, 1))
        with Store.open(self.root) as store:
            assert store.retention.run(manual=True).removed

    def repair(self) -> None:
        carry_out(examine(self.root, queues=True, index=True))

    def back_up(self) -> None:
        backup(self.root, self.root.parent / f"backup-{time.time_ns()}")

    def make_and_delete_topics(self) -> None:
        with Store.open(self.root) as store:
            store.create_topic(f"New{time.time_ns()}", queue_count=1)
            self.send(store)
            if "Orders" in store.topics():
                store.admin.delete_topic("Orders")

    def delete_a_topic_as_a_broker(self) -> None:
        """The table, then the files of the queues; `lock` says who it was."""
        (self.root / "lock").write_bytes(b"lock")
        table = json.loads((self.root / "config" / "topics.json").read_text())
        table["topicConfigTable"].pop("Orders", None)
        (self.root / "config" / "topics.json").unlink()
        (self.root / "config" / "topics.json").write_text(json.dumps(table))
        shutil.rmtree(self.root / "consumequeue" / "Orders", ignore_errors=True)

    def send(self, store: Store) -> None:
        for number in range(60):
            store.send(Message("Payments", bytes(100), keys=f"n{number}"))
        store.flush()


KINDS = [name for name in vars(Others) if not name.startswith("_") and name != "send"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store of several segments, stopped cleanly."""
    with Store.open(tmp_path / "store", create=True, config=CONFIG) as store:
        for number in range(120):
            store.send(Message(("Orders", "Payments")[number % 2], bytes(300), keys=f"k{number} all"))
    assert verify_store(tmp_path / "store").status == "clean"
    return tmp_path / "store"


@pytest.fixture
def others(root: Path) -> Iterator[Others]:
    found = Others(root)
    yield found
    for store in found.opened:
        store.close()


def at_call(number: int, act: Callable[[], None]) -> Callable[[int, int, int], None]:
    """Does `act` at a call of `progress`, of all passes."""
    calls = 0

    def progress(messages: int, done_bytes: int, total_bytes: int) -> None:
        nonlocal calls
        calls += 1
        if calls == number:
            act()

    return progress


def texts(report: Report) -> list[str]:
    return [f"{problem.path}: {problem.text}" for problem in report.problems]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", [1, 3, 6])
def test_whatever_others_do_with_a_sound_store_it_is_not_called_damaged(
    root: Path, others: Others, kind: str, call: int
) -> None:
    report = verify_store(root, at_call(call, getattr(others, kind)))
    assert (report.problem_count, texts(report)) == (0, [])
    for store in others.opened:
        store.close()
    assert verify_store(root).problem_count == 0


@pytest.mark.parametrize("kind", ["open_and_write", "write_and_close", "be_killed_and_recovered"])
def test_damage_is_found_whatever_others_do(root: Path, others: Others, kind: str) -> None:
    with (root / "commitlog" / f"{SEGMENT_BYTES:020d}").open("r+b") as file:
        file.seek(2000)
        file.write(b"\xff" * 40)
    report = verify_store(root, at_call(2, getattr(others, kind)))
    assert report.status == "damaged"
    assert len(report.bad_ranges) == 1
    assert SEGMENT_BYTES <= report.bad_ranges[0].start <= SEGMENT_BYTES + 2000


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_store_that_never_stands_still_is_judged_by_what_two_passes_found(
    root: Path, others: Others, is_damaged: bool
) -> None:
    if is_damaged:
        path = next((root / "consumequeue" / "Orders").rglob("0*"))
        with next(path.glob("0*") if path.is_dir() else iter([path])).open("r+b") as file:
            file.seek(40)
            file.write(b"\xff" * 12)

    def progress(messages: int, done_bytes: int, total_bytes: int) -> None:
        if done_bytes == SEGMENT_BYTES * 2:
            others.write_and_close()

    report = verify_store(root, progress)
    assert report.status == ("damaged" if is_damaged else report.status)
    assert bool(report.problem_count) == is_damaged
    assert all(path.startswith("consumequeue/Orders") for path in texts(report))


def test_a_store_that_is_open_is_unclean_and_lacks_nothing(root: Path) -> None:
    """Entries of what was appended since the check began were named as work for a recovery."""
    with Store.open(root) as store:

        def write() -> None:
            for number in range(60):
                store.send(Message("Orders", b"", keys=f"n{number}"))

        report = verify_store(root, at_call(2, write))
    assert report.status == "unclean"
    assert [text[:14] for text in report.recovery] == ["`abort` exists"]


def test_who_has_the_store_open_is_known_without_changing_it(root: Path) -> None:
    assert lock_use(root) == "free"
    with Store.open(root):
        assert lock_use(root) == "shared"
    assert lock_use(root) == "free"
    (root / "lock").unlink()
    assert lock_use(root) == "free"
    assert not (root / "lock").exists()
