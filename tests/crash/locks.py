"""Processes that stop instead of dying, and processes that are copied.

A stopped holder of a lock: others wait for their time and are told its pid; the lock is never broken; when the holder
is killed it is free at once, and what the holder had begun is taken back. A forked child of a writer: it holds nothing,
and cannot write.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest import mock

from crash.dying import PATIENCE_S, Child, quiet
from crash.operations import kind_of, watched
from crash.oracle import ACK, OPENED, Ledger, compare, read_queues, tell, verify
from crash.part import Counters, Part, Trial
from crash.protections import protection
from crash.traffic import QUEUES, TOPIC, Traffic, tiny_config

PATIENCE_MS = 40
LIFE = 10
# Told like a producer: the pid of a child.
_CHILD = (1 << 32) - 1


def run_stopped(trial: Trial) -> Counters:
    """A process stops in the middle of an append, or of a recovery."""
    return _run(trial, _stopped)


def run_forked(trial: Trial) -> Counters:
    """A process with an open store forks."""
    return _run(trial, _forked)


def _run(trial: Trial, cycle: object) -> Counters:
    from rmq_store import Store

    quiet()
    counters = Counters()
    ledger = Ledger()
    root = trial.directory / "store"
    for number in range(trial.cycles):
        if number % LIFE == 0:
            shutil.rmtree(root, ignore_errors=True)
            ledger = Ledger()
            with Store.open(root, create=True, config=tiny_config()) as store:
                store.create_topic(TOPIC, queue_count=QUEUES)
        chance = random.Random(f"{trial.seed}/{number}")
        found = Counters(cycles=1)
        try:
            cycle(root, chance, number, ledger, found)  # type: ignore[operator]
            with Store.open(root) as store:
                queues, wrong = read_queues(store, TOPIC)
            found.add(compare(queues, ledger))
            _require(not wrong, str(wrong), found)
            verify(root, found)
        except Exception as error:
            _require(False, f"{type(error).__name__}: {error}", found)
        found.first = found.first and f"cycle {number}: {found.first}"
        counters.add(found)
        trial.tick(1)
    return counters


def _require(holds: bool, what: str, found: Counters) -> None:
    if not holds:
        found.broken += 1
        found.note(what)


def _stopped(root: Path, chance: random.Random, number: int, ledger: Ledger, found: Counters) -> None:
    from rmq_store import Store, StoreLockedError
    from rmq_store.log.recovery import opening

    recovers = chance.random() < 0.4
    store = None if recovers else Store.open(root)
    work = partial(_write_and_stop, root, random.Random(chance.random()), number, recovers)
    child = Child(work, root.parent / "error")
    os.waitpid(child.pid, os.WUNTRACED)
    try:
        if store is None:
            with mock.patch.object(opening.open_for_writing, "__defaults__", (PATIENCE_MS, *_rest(opening))):
                Store.open(root).close()
        else:
            traffic = Traffic(store, number + (1 << 20), chance)
            with mock.patch.object(store, "send", partial(store.send, lock_timeout_ms=PATIENCE_MS)):
                traffic.send()
        _require(False, "a lock whose holder was stopped was broken", found)
    except StoreLockedError as error:
        _require(error.pid == child.pid, f"the holder is {child.pid}, not {error.pid}", found)
        found.seen["recovery stopped" if recovers else "append stopped"] += 1
    child.signal(signal.SIGKILL)
    child.wait()
    ledger.note(child.told)
    # Free at once: now without any patience.
    with store or Store.open(root) as writer:
        traffic = Traffic(writer, number + (1 << 21), chance)
        with mock.patch.object(writer, "send", partial(writer.send, lock_timeout_ms=0)):
            traffic.send()
        ledger.acknowledged[number + (1 << 21)] = traffic.sent
    found.acknowledged += sum(child.told.acknowledged.values()) + traffic.sent


def _rest(opening: object) -> tuple[object, ...]:
    return opening.open_for_writing.__defaults__[1:]  # type: ignore[attr-defined,no-any-return]


def _write_and_stop(root: Path, chance: random.Random, producer: int, recovers: bool, pipe: int) -> None:
    """Stop while a segment or a queue is written in the middle of an append, or in the middle of opening the store."""
    from rmq_store import Store

    left = chance.randrange(1, 6)

    def stop(operation: str, path: str) -> None:
        nonlocal left
        kind = kind_of(path, root)
        inside = kind in ("magic", "boot_low", "appended_end") if recovers else kind in ("segment", "queue file")
        if inside and operation in ("write", "store"):
            left -= 1
            if recovers or not left:
                os.kill(os.getpid(), signal.SIGSTOP)

    if recovers:
        with watched(stop):
            Store.open(root)
    with Store.open(root) as store, watched(stop):
        traffic = Traffic(store, producer, chance)
        while True:
            tell(pipe, ACK, producer, traffic.call())


def _forked(root: Path, chance: random.Random, number: int, ledger: Ledger, found: Counters) -> None:
    (_survived_by_child if chance.random() < 0.5 else _beside_child)(root, chance, number, ledger, found)


def _survived_by_child(root: Path, chance: random.Random, number: int, ledger: Ledger, found: Counters) -> None:
    """The parent is killed, and its child lives on: it must not keep the parent's locks."""
    from rmq_store import Store

    def in_parent(pipe: int) -> None:
        store = Store.open(root)
        tell(pipe, ACK, number, Traffic(store, number, chance).call())
        child = os.fork()
        if not child:
            os.close(pipe)
            signal.pause()
        tell(pipe, ACK, _CHILD, child)
        signal.pause()

    parent = Child(in_parent, root.parent / "error")
    parent.told.wait(lambda told: _CHILD in told.acknowledged, PATIENCE_S)
    parent.kill()
    child = parent.told.acknowledged.pop(_CHILD)
    try:
        found.acknowledged += ledger.note(parent.told)
        with Store.open(root) as store:
            _require(store.recovery is not None, "a child kept the lock of its dead parent", found)
        found.seen["survived by a child"] += 1
    finally:
        os.kill(child, signal.SIGKILL)


def _beside_child(root: Path, chance: random.Random, number: int, ledger: Ledger, found: Counters) -> None:
    from rmq_store import Store, UsageError

    store = Store.open(root)
    traffic = Traffic(store, number, chance)
    for _ in range(chance.randrange(1, 4)):
        traffic.call()

    def in_child(pipe: int) -> None:
        try:
            Traffic(store, number + (1 << 20), chance).send()
        except UsageError:
            store.close()
            tell(pipe, OPENED)
            signal.pause()

    child = Child(in_child, root.parent / "error")
    try:
        refused = child.told.wait(lambda told: told.words[OPENED] > 0, PATIENCE_S)
        _require(refused, f"a child could write: {child.error}", found)
        traffic.send()
        ledger.acknowledged[number] = traffic.sent
        store.close()
        _require(not (root / "abort").exists(), "a child kept its parent's store from being closed cleanly", found)
        with Store.open(root) as again:
            _require(again.recovery is not None, "a child kept its parent's lock", found)
        found.seen["beside a child"] += 1
    finally:
        child.kill()
    found.acknowledged += traffic.sent


@protection("breaks_locks", "takes a lock that is held after it has waited for it")
def breaks_locks() -> Iterator[None]:
    from rmq_store import StoreLockedError
    from rmq_store.files.locks.lock import OfdLock

    acquire = OfdLock.acquire_exclusive

    def acquire_anyway(lock: OfdLock, timeout_ms: int, *rest: object) -> None:
        try:
            acquire(lock, timeout_ms, *rest)  # type: ignore[arg-type]
        except StoreLockedError:
            pass

    with mock.patch.object(OfdLock, "acquire_exclusive", acquire_anyway):
        yield


@protection("shared_after_fork", "lets a forked child keep the descriptors of its parent's locks")
def shared_after_fork() -> Iterator[None]:
    from rmq_store.files.locks.lock import OfdLock

    with mock.patch.object(OfdLock, "_forget", lambda lock: None):
        yield


PARTS = (
    Part(
        "stopped_holder", "15", "a process stopped while it appends or recovers, others meanwhile", "cycles",
        harness=20, crash=200, soak=400, chunk=200, run=run_stopped,
        protections=("breaks_locks",), bites_within=8,
    ),
    Part(
        "forked_writer", "16", "a process with an open store forks", "cycles",
        harness=20, crash=200, soak=400, chunk=500, run=run_forked,
        protections=("shared_after_fork",), bites_within=8,
    ),
)  # fmt: skip
