"""One writer killed at a random moment, again and again: while it opens, appends, flushes, saves its progress, closes,
recovers. What a process wrote is in the page cache and outlives it, so nothing acknowledged may be missing, whatever
the flush type. (A power cut is another part. In some cycles the store is taken for one of an earlier boot, so that it
is scanned from its progress record; the page cache does not vanish with that.)

Method A of the plan: a warm parent forks the writer, acknowledgements come over a pipe. One store lives for many
cycles, so that what a recovery left is recovered again.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest import mock

from crash.dying import BEFORE_BOOT, PATIENCE_S, Child, pause, quiet
from crash.oracle import ACK, CLOSED, CLOSING, OPENED, Ledger, Told, compare, read_queues, tell, verify
from crash.part import Counters, Part, Trial
from crash.protections import protection
from crash.traffic import QUEUES, TOPIC, Traffic, tiny_config

# Cycles in which one store is used before a fresh one is made.
LIFE = 8
CALLS_MAX = 10
FIRST_PRODUCER = (1 << 32) - 1
PHASES = ("opening", "writing", "closing")


def run(flush_disk_type: str, trial: Trial) -> Counters:
    """Kill a writer in every cycle; compare after every one."""
    quiet()
    counters = Counters()
    life: Life | None = None
    for cycle in range(trial.cycles):
        chance = random.Random(f"{trial.seed}/{cycle}")
        if life is None or life.cycles == LIFE:
            shutil.rmtree(trial.directory / "store", ignore_errors=True)
            life = Life(trial.directory, flush_disk_type)
        found = life.cycle(chance, cycle)
        if found.violations:
            found.first = f"cycle {cycle}: {found.first}"
            life = None
        counters.add(found)
        trial.tick(1)
    return counters


class Life:
    """One store, and what was acknowledged in it."""

    def __init__(self, directory: Path, flush_disk_type: str) -> None:
        from rmq_store import Store

        self.root = directory / "store"
        self.cycles = 0
        self._notes = directory / "error"
        self._ledger = Ledger()
        config = tiny_config(flush_disk_type=flush_disk_type, flush_interval_commit_log=3)
        with Store.open(self.root, create=True, config=config) as store:
            store.create_topic(TOPIC, queue_count=QUEUES)
            # One call of each kind: what they import is imported here, not in every child.
            first = Traffic(store, FIRST_PRODUCER, random.Random(0))
            for call in (first.send, first.send_all, first.append, first.commit_unit):
                call()
            self._ledger.acknowledged[FIRST_PRODUCER] = first.sent

    def cycle(self, chance: random.Random, producer: int) -> Counters:
        """Write and be killed, perhaps recover and be killed, then look."""
        self.cycles += 1
        found = Counters(cycles=1)
        files = self._files()
        phase = chance.choices(PHASES, (15, 75, 10))[0]
        calls = {"opening": 0, "writing": chance.randrange(0, CALLS_MAX), "closing": CALLS_MAX}[phase]
        writer = Child(partial(write, self.root, random.Random(chance.random()), producer, calls), self._notes)
        self._kill(writer, phase, calls, chance, found)
        found.acknowledged += self._ledger.note(writer.told)
        for kind, before in files.items():
            found.seen[f"{kind} begun"] += len(self._files()[kind] - before)
        if chance.random() < 0.2:
            forget_boot(self.root)
            self._ledger.torn.add(producer)
            found.seen["taken for an earlier boot"] += 1
        while chance.random() < 0.3:
            opener = Child(partial(open_and_close, self.root), self._notes)
            pause(chance, 0.008)
            if opener.kill() < 0:
                found.seen["killed while it recovered" if not opener.told.words[OPENED] else "killed closing"] += 1
            self._failed(opener, found)
        self._look(found, read_only=chance.random() < 0.25)
        return found

    def _kill(self, writer: Child, phase: str, calls: int, chance: random.Random, found: Counters) -> None:
        if phase != "opening":
            writer.told.wait(lambda told: told.words[OPENED] > 0 and told.words[ACK] >= calls, PATIENCE_S)
        pause(chance, 0.006)
        ended = writer.kill()
        self._failed(writer, found)
        found.seen["ended before it was killed" if ended >= 0 else f"killed {phase_of(writer.told)}"] += 1

    def _failed(self, child: Child, found: Counters) -> None:
        if child.error:
            found.broken += 1
            found.note(child.error)

    def _look(self, found: Counters, *, read_only: bool) -> None:
        """Open the store and compare; read-only, it stays as the dead left it for the next cycle."""
        from rmq_store import Store

        try:
            with Store.open(self.root, read_only=read_only) as store:
                queues, wrong = read_queues(store, TOPIC)
        except Exception as error:
            found.broken += 1
            found.note(f"cannot be opened or read (read_only={read_only}): {type(error).__name__}: {error}")
            return
        found.add(compare(queues, self._ledger))
        if wrong:
            found.broken += 1
            found.note(wrong[0])
        if not read_only:
            verify(self.root, found)

    def _files(self) -> dict[str, set[str]]:
        places = {"segments": "commitlog", "queue files": f"consumequeue/{TOPIC}/0", "index files": "index"}
        return {kind: _names(self.root / place) for kind, place in places.items()}


def _names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} if directory.is_dir() else set()


def phase_of(told: Told) -> str:
    """What a process was at when it was killed, by what it had told."""
    return "closing" if told.words[CLOSING] else "writing" if told.words[OPENED] else "opening"


def write(root: Path, chance: random.Random, producer: int, calls: int, pipe: int) -> None:
    """The writer: everything that appends, under a flush thread that saves its progress all the time. It will be killed
    after so many calls.
    """
    from rmq_store import Store
    from rmq_store.broker.write import flusher

    with mock.patch.object(flusher, "PROGRESS_INTERVAL_BYTES", 20_000), Store.open(root) as store:
        tell(pipe, OPENED)
        traffic = Traffic(store, producer, chance)
        for call in range(CALLS_MAX):
            if call == calls:
                dawdle(chance)
            tell(pipe, ACK, producer, traffic.call())
        dawdle(chance)
        tell(pipe, CLOSING)
    tell(pipe, CLOSED)


def dawdle(chance: random.Random) -> None:
    """Stay a while between some operations on files, above all those of appends: these take microseconds, and would
    rarely be met halfway.
    """
    from rmq_store.files import durable

    def stay(operation: str, path: str) -> None:
        if chance.random() < (0.6 if operation == "write" else 0.1):
            time.sleep(0.001)

    durable.hook = stay


def open_and_close(root: Path, pipe: int) -> None:
    from rmq_store import Store

    with Store.open(root):
        tell(pipe, OPENED)


def forget_boot(root: Path) -> None:
    """Make the state page one of an earlier boot of the kernel."""
    path = root / "pyrmq" / "state"
    with path.open("r+b") as page:
        page.seek(8)
        page.write(b"another boot id.")
    os.utime(path, BEFORE_BOOT)


@protection("no_undo", "leaves there what a writer that died in the middle of an append has written")
def no_undo() -> Iterator[None]:
    from rmq_store.log.append import append
    from rmq_store.log.recovery import recovery

    with mock.patch.object(append, "undo", lambda log: None), mock.patch.object(recovery, "undo", lambda log: None):
        yield


@protection("no_intent", "does not write down what it is about to append")
def no_intent() -> Iterator[None]:
    from rmq_store.files.locks.state_page import StatePage

    with mock.patch.object(StatePage, "declare", lambda *_: None):
        yield


PARTS = tuple(
    Part(
        f"kill_{name}", number, f"one writer killed at a random moment, {flush_disk_type}", "kills",
        harness=300, crash=1500, soak=10_000, chunk=1000, run=partial(run, flush_disk_type),
        protections=(tooth,), bites_within=80,
    )
    for name, number, flush_disk_type, tooth in (
        ("sync", "1", "SYNC_FLUSH", "no_undo"), ("async", "2", "ASYNC_FLUSH", "no_intent")
    )
)  # fmt: skip
