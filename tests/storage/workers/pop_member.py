"""Processes of test_pop_processes: `share <store>`, `hoard <store> <count>`, `crash <directory> <step>`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.pop.pop import Popped
from rmq_store.files import durable

GROUP, TOPIC = "g", "T"
HIDDEN_MS = 1000
MESSAGES = 8
START_MS = 1_700_000_000_000
ATTEMPTS_MAX = 2


def body(popped: Popped) -> str:
    return str(popped.row.column("body")[0].as_py().decode())


def share(path: str) -> None:
    """Receive and acknowledge until nothing is left; say what it was. Waits for a word before the first receive, and
    with its first messages in hand.
    """
    mine = []
    with Store.open(path) as store:
        print("ready", flush=True)  # noqa: T201
        sys.stdin.readline()
        popped = store.pop.receive(GROUP, TOPIC, 7, HIDDEN_MS)
        print("received", flush=True)  # noqa: T201
        sys.stdin.readline()
        while popped:
            for one in popped:
                mine.append([body(one), one.delivery_attempt])
                store.pop.ack(GROUP, TOPIC, one.receipt_handle)
            popped = store.pop.receive(GROUP, TOPIC, 7, HIDDEN_MS)
    print(json.dumps(mine))  # noqa: T201 - the answer to the test


def hoard(path: str, count: int) -> None:
    """Receive, acknowledge every other message, and die."""
    store = Store.open(path)
    popped = store.pop.receive(GROUP, TOPIC, count, HIDDEN_MS)
    for one in popped[::2]:
        store.pop.ack(GROUP, TOPIC, one.receipt_handle)
    print(json.dumps([body(one) for one in popped[1::2]]), flush=True)  # noqa: T201
    os.kill(os.getpid(), signal.SIGKILL)


class Ledger:
    """What a process said before it died: it writes by system calls of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def say(self, word: str, name: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{word} {name}\n")

    def names(self, word: str) -> set[str]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return {line.partition(" ")[2] for line in lines if line.startswith(f"{word} ")}


def live(path: Path, ledger: Ledger, die_at: int) -> None:
    """A life with every kind of step, ended before its change `die_at` of a file; status 0: it was not reached."""
    now_ms = START_MS
    count = 0

    def step(operation: str, at: str) -> None:
        nonlocal count
        if operation not in ("write", "rename", "link", "unlink", "mkdir"):
            return  # leaves nothing behind that a killed process could leave half done
        if count == die_at:
            os._exit(1)
        count += 1

    def receive(number: int) -> list[Popped]:
        return store.pop.receive(GROUP, TOPIC, number, HIDDEN_MS, max_delivery_attempts=ATTEMPTS_MAX)

    def ack(one: Popped, handle: str = "") -> None:
        ledger.say("trying", body(one))
        store.pop.ack(GROUP, TOPIC, handle or one.receipt_handle)
        ledger.say("acked", body(one))

    store = Store.open(path, clock=lambda: now_ms)
    durable.hook = step
    popped = receive(4)
    ack(popped[0])
    ack(popped[2])
    hidden = store.pop.change_invisible_duration(GROUP, TOPIC, popped[3].receipt_handle, 20_000)
    now_ms += 5000
    ack(receive(2)[1])  # commits offset 1, with a message behind it that is acknowledged; one comes again, one is new
    ack(popped[3], hidden)
    now_ms += 5000
    receive(4)  # one dead letter, and more messages
    now_ms += 5000
    receive(4)
    durable.hook = None
    os._exit(0)


def check(path: Path, ledger: Ledger) -> None:
    """Whoever comes next: everything is accounted for."""
    now_ms = START_MS + 1_000_000
    received: Counter[str] = Counter()
    with Store.open(path, clock=lambda: now_ms) as store:
        for _ in range(2 * ATTEMPTS_MAX + 2):
            popped = store.pop.receive(GROUP, TOPIC, 32, 10, max_delivery_attempts=ATTEMPTS_MAX)
            received.update(body(one) for one in popped)
            now_ms += 10
        dead: Counter[str] = Counter()
        if "%DLQ%g" in store.topics():
            end = store.queue_range("%DLQ%g", 0).max_offset
            for batch in store.read("%DLQ%g", 0, 0, end, columns=["body"]):
                dead.update(one.decode() for one in batch.column("body").to_pylist())
    with Store.open(path, read_only=True) as store:
        committed = store.committed_offsets(GROUP)
    names = {str(number) for number in range(MESSAGES)}
    lost = names - set(dead) - ledger.names("trying")
    assert not lost, f"lost: {lost}"
    again = ledger.names("acked") & (set(received) | set(dead))
    assert not again, f"acknowledged, and came again: {again}"
    assert max(dead.values()) == 1, f"dead more than once: {dead}"
    assert max(received.values(), default=0) <= ATTEMPTS_MAX, received
    assert committed == {(TOPIC, 0): MESSAGES}, committed


def in_child(call: object, *arguments: object) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            call(*arguments)  # type: ignore[operator]
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(2)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def make(path: Path) -> None:
    config = StoreConfig(
        mapped_file_size_commit_log=64 << 10,
        mapped_file_size_consume_queue=2000,
        max_hash_slot_num=50,
        max_index_num=200,
    )
    with Store.open(path, create=True, config=config, clock=lambda: START_MS) as store:
        store.create_topic(TOPIC, queue_count=1)
        for number in range(MESSAGES):
            store.send(Message(TOPIC, b"%d" % number))


def crash(directory: str, step: int) -> None:
    """Die before every change of a file in turn, or every `step`th; say before how many."""
    root = Path(directory)
    assert in_child(make, root / "made") == 0
    for die_at in range(0, 1000, step):
        path, ledger = root / "store", Ledger(root / f"ledger-{die_at}")
        shutil.copytree(root / "made", path)
        status = in_child(live, path, ledger, die_at)
        assert status in (0, 1), f"change {die_at}: status {status}"
        assert in_child(check, path, ledger) == 0, f"killed before change {die_at}"
        shutil.rmtree(path)
        if status == 0:
            print(die_at // step)  # noqa: T201 - the answer to the test
            return


if __name__ == "__main__":
    if sys.argv[1] == "share":
        share(sys.argv[2])
    elif sys.argv[1] == "hoard":
        hoard(sys.argv[2], int(sys.argv[3]))
    else:
        crash(sys.argv[2], int(sys.argv[3]))
