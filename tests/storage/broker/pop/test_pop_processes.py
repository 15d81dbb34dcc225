"""store.pop with several processes at once, killed ones among them: nothing is lost, and nothing given out twice while
it is hidden.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_store import ClockFile, Message, Store, StoreConfig
from rmq_store.broker.pop.pop import Pop, Popped
from rmq_store.files import durable

pytestmark = pytest.mark.long

WORKER = Path(__file__).parents[2] / "workers" / "pop_member.py"
TIMEOUT_S = 100


def start(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, str(WORKER), *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


def answer(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=TIMEOUT_S)
    return output


def body(popped: Popped) -> str:
    return str(popped.row.column("body")[0].as_py().decode())


@pytest.fixture
def shared(scratch: Path, small: StoreConfig) -> Iterator[tuple[Store, ClockFile]]:
    """A store whose time stands still until the test moves it."""
    path = scratch / "store"
    (path / "pyrmq").mkdir(parents=True)
    (path / "commitlog").mkdir()
    clock = ClockFile.create(path / "pyrmq" / "clock", 1_700_000_000_000)
    with Store.open(path, config=small) as store:
        store.create_topic("T", queue_count=3)
        yield store, clock


def test_members_of_a_group_share_its_messages(shared: tuple[Store, ClockFile]) -> None:
    store, _ = shared
    names = [str(number) for number in range(600)]
    for name in names:
        store.send(Message("T", name.encode()))
    members = [start("share", str(store.path)) for _ in range(3)]
    for word in ("ready\n", "received\n"):
        for member in members:
            assert member.stdout is not None
            assert member.stdout.readline() == word
        for member in members:
            assert member.stdin is not None
            member.stdin.write("go\n")
            member.stdin.flush()
    found = [json.loads(answer(member)) for member in members]
    assert [member.returncode for member in members] == [0, 0, 0]
    everything = [tuple(pair) for mine in found for pair in mine]
    assert sorted(everything) == sorted((name, 1) for name in names), "each to one member, once"
    assert all(found), "nobody had it all: they were there at the same time"
    assert store.pop.receive("g", "T", 32, 1000) == []


@pytest.mark.statement("E01", "E05")
def test_what_a_killed_member_had_in_hand_comes_to_the_others_when_its_time_is_over(
    shared: tuple[Store, ClockFile],
) -> None:
    store, clock = shared
    names = [str(number) for number in range(40)]
    for name in names:
        store.send(Message("T", name.encode()))
    hoarder = start("hoard", str(store.path), "9")
    in_hand = json.loads(answer(hoarder))
    assert hoarder.returncode == -signal.SIGKILL
    assert len(in_hand) == 4
    received = []
    while popped := store.pop.receive("g", "T", 32, 1000):
        received += [body(one) for one in popped]
        for one in popped:
            store.pop.ack("g", "T", one.receipt_handle)
    assert len(received) == 40 - 9
    clock.advance(999)
    assert store.pop.receive("g", "T", 32, 1000) == []
    clock.advance(1)
    again = store.pop.receive("g", "T", 32, 1000)
    assert sorted((body(one), one.delivery_attempt) for one in again) == sorted((name, 2) for name in in_hand)


class Killed(BaseException):
    """Stands for the end of the process."""


def new_pop(store: Store) -> Pop:
    """What another process would have: nothing in memory."""
    return Pop(
        store._log,
        store.broker_name,
        store._topics,
        store.pop._groups,
        store._offsets,
        store._queues,
        store._writer,  # type: ignore[arg-type]
        store.retry,
    )


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A directory on a file system without a disk: what a killed process leaves is the same there."""
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if os.access(shm, os.W_OK) else tmp_path) as directory:
        yield Path(directory)


@pytest.mark.slow
def test_ended_before_any_change_of_a_file_nothing_is_lost(
    memory: Path, small: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every kind of step in one life: receive, acknowledge, hide, commit, dead letter. A life for each change; what
    # was acknowledged never comes again, what was not comes again or is dead, once.
    now_ms = 1_700_000_000_000
    names = {str(number) for number in range(8)}

    def life(pop: Pop, group: str, tried: set[str], acked: set[str]) -> None:
        nonlocal now_ms

        def receive(count: int) -> list[Popped]:
            return pop.receive(group, "T", count, 1000, max_delivery_attempts=2)

        def ack(one: Popped, handle: str | None = None) -> None:
            tried.add(body(one))
            pop.ack(group, "T", handle or one.receipt_handle)
            acked.add(body(one))

        popped = receive(4)
        ack(popped[0])
        ack(popped[2])
        hidden = pop.change_invisible_duration(group, "T", popped[3].receipt_handle, 20_000)
        now_ms += 5000
        ack(receive(2)[1])  # commits 1, with a message behind it that is acknowledged
        ack(popped[3], hidden)
        for _ in range(2):
            now_ms += 5000
            receive(4)

    def dead_of(store: Store, group: str) -> Counter[str]:
        topic = f"%DLQ%{group}"
        if topic not in store.topics():
            return Counter()
        batches = store.read(topic, 0, *store.queue_range(topic, 0), columns=["body"])
        return Counter(one.decode() for batch in batches for one in batch.column("body").to_pylist())

    with Store.open(memory / "store", create=True, config=small, clock=lambda: now_ms) as store:
        store.create_topic("T", queue_count=1)
        for name in sorted(names):
            store.send(Message("T", name.encode()))
        for end_at in range(1000):
            group = f"g{end_at}"
            tried: set[str] = set()
            acked: set[str] = set()
            left = end_at

            def step(operation: str, path: str) -> None:
                nonlocal left
                if operation not in ("write", "rename", "link", "unlink", "mkdir"):
                    return  # changes nothing that the end of a process could leave half done
                left -= 1
                if left < 0:
                    raise Killed

            with monkeypatch.context() as patched:
                patched.setattr(durable, "hook", step)
                try:
                    life(new_pop(store), group, tried, acked)
                except Killed:
                    pass
            ended = left >= 0
            now_ms += 100_000
            pop = new_pop(store)
            received: Counter[str] = Counter()
            for _ in range(5):
                received.update(body(one) for one in pop.receive(group, "T", 32, 10, max_delivery_attempts=2))
                now_ms += 10
            pop.close()
            dead = dead_of(store, group)
            assert names <= set(dead) | tried, f"lost at operation {end_at}"
            assert not acked & (set(received) | set(dead)), f"came again after operation {end_at}"
            assert set(dead.values()) == {1}, f"dead twice at operation {end_at}"
            assert store.committed_offsets(group) == {("T", 0): 8}
            if ended:
                break
    assert end_at > 50


@pytest.mark.slow
def test_dead_letters_of_which_one_is_refused_are_stored_once_each(
    memory: Path, small: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # They are one unit at first; message 0 leaves no room for the properties of a dead letter, and so each gets a unit.
    now_ms = 1_700_000_000_000
    with Store.open(memory / "store", create=True, config=small, clock=lambda: now_ms) as store:
        store.create_topic("T", queue_count=1)
        store.send(Message("T", b"0", properties={"p": "v" * 32_680}))
        for name in (b"1", b"2"):
            store.send(Message("T", name))
        for end_at in range(100):
            group = f"g{end_at}"
            store.pop.receive(group, "T", 3, 30, max_delivery_attempts=1)
            now_ms += 30
            left = end_at

            def step(operation: str, path: str) -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Killed

            with monkeypatch.context() as patched:
                patched.setattr(durable, "hook", step)
                with contextlib.suppress(Killed):
                    new_pop(store).receive(group, "T", 3, 30, max_delivery_attempts=1)
            ended = left >= 0
            for _ in range(3):
                now_ms += 60_000
                pop = new_pop(store)
                assert pop.receive(group, "T", 3, 30, max_delivery_attempts=1) == []
                pop.close()
            topic = f"%DLQ%{group}"
            batches = store.read(topic, 0, *store.queue_range(topic, 0), columns=["body"])
            assert sorted(body for batch in batches for body in batch.column("body").to_pylist()) == [b"1", b"2"]
            assert store.committed_offsets(group) == {("T", 0): 0}, "message 0 is still there"
            if ended:
                break
    assert end_at > 20


def crash(stride: int, memory: Path) -> int:
    process = start("crash", str(memory), str(stride))
    output = answer(process)
    assert process.returncode == 0
    return int(output)


def test_killed_processes_lose_nothing(memory: Path) -> None:
    assert crash(19, memory) >= 3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_processes_killed_before_every_change_of_a_file_lose_nothing(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "TIMEOUT_S", 600)
    assert crash(1, memory) > 50
