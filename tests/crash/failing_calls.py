"""Calls that fail, one after the other: the first, the second, and so on, until the scenario passes.

`failing_calls`: the hook of the file layer raises, with errors of the disk and with MemoryError. `failing_syscalls`: a
library put in front of libc (failing_calls.c) makes the system call itself fail, so that no call that forgot its hook
escapes. Once only, or from the k-th on.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from crash.part import Counters, Part, Trial
from crash.protections import protection

_HERE = Path(__file__).resolve().parent
_FAILURES = ("EIO", "ENOSPC", "EINTR", "MemoryError")
_SYSCALL_FAILURES = ("EIO", "ENOSPC")


class Case(NamedTuple):
    """One run: call `k` of the scenario fails, all behind it as well if `sticky`."""

    scenario: str
    failure: str
    sticky: bool
    k: int

    @property
    def name(self) -> str:
        return f"{self.scenario}: {self.failure} at call {self.k}{' and all later ones' if self.sticky else ''}"


@protection("no_redirty", "after a failed fsync, the next opener writes what was not flushed again")
def no_redirty() -> Iterator[None]:
    from rmq_store.files.segments.segments import SegmentRun

    with patch.object(SegmentRun, "rewrite", lambda run, start, end: None):
        yield


@protection("no_poison", "a failed fsync ends all writing, in every process")
def no_poison() -> Iterator[None]:
    from rmq_store.files.locks.state_page import StatePage

    with patch.object(StatePage, "poison", property(lambda page: 0, lambda page, value: None)):
        yield


@protection("no_flush", "an acknowledgement under SYNC_FLUSH waits for an fsync")
def no_flush() -> Iterator[None]:
    from rmq_store.log.append import flush

    def pretend(log: Any) -> None:
        log.writing_page.flushed_end = log.writing_page.appended_end

    with patch.object(flush, "_flush_held", pretend):
        yield


class CountDown:
    """The hook: fails the k-th operation, and later ones if sticky; k = 0: none. Counts the fsyncs it let through."""

    def __init__(self, k: int = 0, failure: str = "EIO", *, sticky: bool = False) -> None:
        self._k = k
        self._failure = failure
        self._sticky = sticky
        self.count = 0
        self.fsyncs = 0
        self.fired: tuple[str, str] | None = None
        self._of_log = False

    def __call__(self, operation: str, path: str) -> None:
        self.count += 1
        if self._k and (self.count == self._k or (self._sticky and self.count > self._k)):
            if self._failure == "MemoryError":
                raise MemoryError
            # Sticky: an fsync of the log may fail although it is not the first call that does.
            if self.fired is None or not self._of_log:
                # A file that is being created is synced before it has its name; who cannot do so drops it.
                new = operation == "fsync" and not Path(path).exists()
                self.fired = "fsync of a new file" if new else operation, path
                self._of_log = operation == "syncfs" or (operation == "fsync" and not new and "/commitlog/" in path)
            code = getattr(errno, self._failure)
            raise OSError(code, os.strerror(code))
        self.fsyncs += operation == "fsync"


def run_case(root: Path, case: Case, seed: int, counters: Counters) -> int:
    """One life with the hook; returns how many operations what may fail had."""
    from crash.failing_life import SCENARIOS, Life
    from rmq_store.files import durable

    hook = CountDown(case.k, case.failure, sticky=case.sticky)
    quiet = CountDown()
    life = Life(root, random.Random(seed), counters, lambda: hook.fired, name=f"{case.name}, seed {seed}")
    life.count_fsyncs = lambda: hook.fsyncs + quiet.fsyncs
    try:
        durable.hook = quiet
        body = SCENARIOS[case.scenario](life)
        durable.hook = hook
        body()
        durable.hook = quiet
        life.finish()
    finally:
        durable.hook = None
        if life.store is not None:
            life.abandon()
    counters.seen["calls that failed"] += hook.fired is not None or case.failure == "MemoryError"
    return hook.count


def plan(counts: dict[str, int], failures: tuple[str, ...], chance: random.Random) -> list[Case]:
    """Every call of every scenario, with every failure, in any order."""
    cases = [
        Case(scenario, failure, sticky, k)
        for scenario, count in counts.items()
        for failure in failures
        for sticky in (False, True)
        for k in range(1, count + 1)
    ]
    chance.shuffle(cases)
    return cases


def _run(trial: Trial) -> Counters:
    from crash.failing_life import SCENARIOS

    def once(case: Case, seed: int, counters: Counters) -> int:
        with tempfile.TemporaryDirectory(dir=trial.directory) as directory:
            return run_case(Path(directory) / "store", case, seed, counters)

    with _quiet_log():
        return _run_plan(trial, SCENARIOS, _FAILURES, once)


def _run_plan(
    trial: Trial, scenarios: Any, failures: tuple[str, ...], once: Callable[[Case, int, Counters], int]
) -> Counters:
    """All cases in a random order, and again with other messages, until there were enough cycles."""
    total = Counters()
    chance = random.Random(f"{trial.seed}/plan")
    cases: list[Case] = []
    for _ in range(trial.cycles):
        if not cases:
            seed = chance.getrandbits(32)
            counts = {name: once(Case(name, "EIO", False, 0), seed, Counters()) for name in scenarios}
            cases = plan(counts, failures, chance)
            total.seen["calls in all scenarios"] = sum(counts.values())
        counters = Counters(cycles=1)
        case = cases.pop()
        once(case, seed, counters)
        counters.seen[f"at {case.scenario}"] += 1
        total.add(counters)
        trial.tick(1)
    return total


@contextlib.contextmanager
def _quiet_log() -> Iterator[None]:
    """The engine warns of each append that it takes back."""
    import logging

    logger = logging.getLogger("rmq_store")
    level, logger.level = logger.level, logging.CRITICAL
    try:
        yield
    finally:
        logger.setLevel(level)


# -- system calls ---------------------------------------------------------------------------------------------------


@functools.cache
def _cannot_compile() -> str:
    return "" if shutil.which("gcc") and sys.platform == "linux" else "needs gcc, on Linux"


class Worker:
    """A process with the library in front of libc; runs one case after the other."""

    def __init__(self, directory: Path) -> None:
        library = directory / "failing_calls.so"
        source = _HERE / "failing_calls.c"
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
        self._stores = directory
        self._start(library)

    def _start(self, library: Path) -> None:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        environment = {**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": path}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "crash.workers.failing"], env=environment, cwd=self._stores, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def ask(self, **job: object) -> Any:
        """Do one job; None if the process died of it."""
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        line = self._process.stdout.readline()
        return json.loads(line) if line else None

    def close(self) -> int:
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        return self._process.wait()


def _run_syscalls(trial: Trial) -> Counters:
    from crash.failing_life import SCENARIOS

    worker = Worker(trial.directory)

    def once(case: Case, seed: int, counters: Counters) -> int:
        nonlocal worker
        with tempfile.TemporaryDirectory(dir=trial.directory) as directory:
            answer = worker.ask(root=f"{directory}/store", case=list(case), seed=seed)
        if answer is None:
            counters.broken += 1
            counters.note(f"{case.name}, seed {seed}: the process died with {worker.close()}")
            worker = Worker(trial.directory)
            return 0
        counters.add(Counters(**{**answer["counters"], "seen": Counter(answer["counters"]["seen"])}))
        return int(answer["count"])

    try:
        return _run_plan(trial, SCENARIOS, _SYSCALL_FAILURES, once)
    finally:
        worker.close()


PARTS = (
    Part(
        name="failing_calls",
        number="12, 14",
        title="each call of the file layer fails once, or from then on: errors of the disk, no memory",
        unit="failing calls",
        harness=250,
        crash=4000,
        soak=8000,
        chunk=2000,
        run=_run,
        protections=("no_redirty", "no_poison", "no_flush"),
        bites_within=120,
        by_cycle=True,
    ),
    Part(
        name="failing_syscalls",
        number="12",
        title="each system call of the engine fails in libc, whether or not the file layer knows of it",
        unit="failing system calls",
        harness=150,
        crash=3000,
        soak=6000,
        chunk=2000,
        run=_run_syscalls,
        protections=("no_redirty", "no_poison"),
        bites_within=120,
        by_cycle=True,
        cannot_run=_cannot_compile,
    ),
)
