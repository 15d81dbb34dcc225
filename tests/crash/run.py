"""Runs parts, chunk by chunk, each chunk in a process and a directory of its own, and saves the state after each."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from crash.part import TEETH_SEEDS, Counters, Part
from crash.state import ROOT, Record, State, counters_of

# Chunk i of seed s has the seed s * SEEDS + i: it can be shown again alone, and chunks of two seeds never meet.
SEEDS = 1_000_000
# A chunk is meant to take a minute. One that takes this long hangs, which is a finding, not a reason to wait all night.
HANGS_AFTER_S = 2 * 3600

Scale = Literal["harness", "crash", "soak"]
SCALES: tuple[Scale, ...] = ("harness", "crash", "soak")


@dataclass(slots=True)
class Job:
    """A part to be run, whole or without one protection, and what became of it."""

    part: Part
    record: Record
    problem: str = ""

    @property
    def label(self) -> str:
        return self.part.name + (f" without {self.record.without}" if self.record.without else "")

    @property
    def ended(self) -> bool:
        has_bitten = bool(self.record.without and self.record.violations)
        return has_bitten or self.record.done or bool(self.problem)


class Display(Protocol):
    """Told what happens; `ticks` cycles of a chunk that has not ended yet may still be taken back."""

    def started(self, job: Job) -> None: ...

    def ticked(self, job: Job, ticks: int) -> None: ...

    def ended(self, job: Job) -> None: ...


@dataclass(slots=True)
class Chunk:
    """A process that runs some cycles of a job."""

    job: Job
    process: subprocess.Popen[bytes]
    pipe: int
    directory: Path
    errors: Path
    begun_s: float
    unread: bytes = b""
    ticks: int = 0
    counters: Counters | None = None
    problem: str = ""

    def read(self) -> bool:
        """Take what the process tells; False at the end."""
        data = os.read(self.pipe, 1 << 16)
        *lines, self.unread = (self.unread + data).split(b"\n")
        for line in lines:
            answer: dict[str, Any] = json.loads(line)
            self.ticks += answer.get("tick", 0)
            self.problem = answer.get("error", self.problem)
            if "counters" in answer:
                self.counters = counters_of(answer["counters"])
        return bool(data)

    def end(self) -> None:
        """Wait for the process, and leave nothing of it: no child, no directory."""
        os.close(self.pipe)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=10)
        # Its own children first lose their leader, then their lives: the group is of our making.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        if self.counters is None and not self.problem:
            tail = self.errors.read_text(encoding="utf-8", errors="replace")[-2000:]
            self.problem = f"the process ended with {code} and no answer\n{tail}"
        shutil.rmtree(self.directory, ignore_errors=True)
        self.errors.unlink(missing_ok=True)


@dataclass(slots=True)
class Runner:
    """Runs jobs in their order, `slots` at once; one whose part is `alone` runs while no other does."""

    jobs: Sequence[Job]
    state: State
    slots: int
    display: Display
    clock: Callable[[], float] = time.monotonic
    _running: list[Chunk] = field(default_factory=list)

    def run(self) -> None:
        """Run everything that is not done. KeyboardInterrupt passes; the state is of the last chunk that ended."""
        waiting = [job for job in self.jobs if not job.ended]
        with selectors.DefaultSelector() as selector:
            try:
                while waiting or self._running:
                    while waiting and self._fits(waiting[0]):
                        job = waiting.pop(0)
                        self.display.started(job)
                        self._begin(job, selector)
                    for key, _ in selector.select(timeout=1):
                        self._read(key.data, selector)
                    for chunk in [each for each in self._running if self.clock() - each.begun_s > HANGS_AFTER_S]:
                        chunk.problem = f"hangs: {self._position(chunk.job)}"
                        self._finish(chunk, selector)
            finally:
                for chunk in list(self._running):
                    os.killpg(chunk.process.pid, signal.SIGKILL)
                    chunk.end()

    def _fits(self, job: Job) -> bool:
        alone = job.part.alone or any(chunk.job.part.alone for chunk in self._running)
        return len(self._running) < (1 if alone else self.slots)

    def _begin(self, job: Job, selector: selectors.BaseSelector) -> None:
        with _ctrl_c_later():
            chunk = begin_chunk(job, chunk_seed(job.record), chunk_cycles(job))
            self._running.append(chunk)
        selector.register(chunk.pipe, selectors.EVENT_READ, chunk)

    def _read(self, chunk: Chunk, selector: selectors.BaseSelector) -> None:
        goes_on = chunk.read()
        self.display.ticked(chunk.job, chunk.ticks)
        if not goes_on:
            self._finish(chunk, selector)

    def _finish(self, chunk: Chunk, selector: selectors.BaseSelector) -> None:
        selector.unregister(chunk.pipe)
        self._running.remove(chunk)
        job = chunk.job
        seconds = self.clock() - chunk.begun_s
        position = self._position(job)
        chunk.end()
        if chunk.problem or chunk.counters is None:
            job.problem = f"{position}: {chunk.problem}"
        else:
            if chunk.counters.first:
                first = chunk.counters.first.replace(str(chunk.directory), "...")
                chunk.counters.first = f"{position}: {first}"
            job.record.add(chunk.counters, seconds)
            self.state.save()
        self.display.ticked(job, 0)
        if job.ended:
            self.display.ended(job)
        else:
            self._begin(job, selector)

    def _position(self, job: Job) -> str:
        return f"chunk seed {chunk_seed(job.record)}, {chunk_cycles(job)} cycles"


@contextlib.contextmanager
def _ctrl_c_later() -> Iterator[None]:
    """A process that was started and is in no list would outlive this one."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def chunk_seed(record: Record) -> int:
    """The seed of the chunk that comes next."""
    return record.seed * SEEDS + record.chunks


def chunk_cycles(job: Job) -> int:
    """How many cycles that one has."""
    chunk = job.part.bites_within if job.record.without else job.part.chunk
    return min(chunk, job.record.target - job.record.cycles)


def begin_chunk(job: Job, seed: int, cycles: int) -> Chunk:
    """Start a chunk in an empty directory: in memory, unless the part needs a disk."""
    scratch = ROOT / "build" / "reliability"
    scratch.mkdir(parents=True, exist_ok=True)
    base = scratch if job.part.on_disk or not os.access("/dev/shm", os.W_OK) else Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix=f"rmq-crash-{os.getpid()}-", dir=base))
    roots = [str(ROOT / name) for name in ("tests", "storage", "connector")]
    path = os.pathsep.join([*roots, *filter(None, [os.environ.get("PYTHONPATH")])])
    ours, theirs = os.pipe()
    # Beside the directory, which the part wants to be empty.
    errors = directory.with_name(f"{directory.name}.err")
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "crash.chunk", job.part.name, job.record.without, str(seed), str(cycles),
             str(directory), str(theirs)],
            pass_fds=[theirs],
            stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )  # fmt: skip
    os.close(theirs)
    return Chunk(job, process, ours, directory, errors, time.monotonic())


def plan(
    parts: Sequence[Part], state: State, scale: Scale, seed: int | None, *, teeth: bool, without: str = ""
) -> Iterator[Job]:
    """The jobs of a run; a part that cannot run here has a problem from the start.

    `teeth`: each part once more without each of its protections; `without`: only the parts that name this one, and
    only without it.
    """
    for part in parts:
        targets = {} if without else {"": getattr(part, scale)}
        if teeth or without:
            targets |= {name: TEETH_SEEDS * part.bites_within for name in part.protections if without in ("", name)}
        for name, target in targets.items():
            if target:
                yield Job(part, state.record(part, name, scale, seed, target))
