"""The lives of `clocks` with the system's clock instead of an injected one: libfaketime moves it, for one process.

The machine's clock is never set. The monotonic clock goes on as it does when an administrator sets the other one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from crash import clocks
from crash.part import Counters, Part, Trial

_WORKER = "crash.workers.system_clock"


def library() -> Path | None:
    """libfaketime for programs with threads."""
    return next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)


def cannot_fake() -> str:
    return "" if library() else "no libfaketime (in Debian: package libfaketime)"


def run(trial: Trial) -> Counters:
    """One store and one life of the system's clock in each cycle, all in one process."""
    setting = trial.directory / "faketime"
    setting.write_text("2023-11-14 22:13:20\n")
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library()),
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        "TZ": "UTC",
        "FAKETIME_TIMESTAMP_FILE": str(setting),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }
    arguments = [str(setting), str(trial.directory / "store"), str(trial.seed), str(trial.cycles)]
    process = subprocess.Popen([sys.executable, "-m", _WORKER, *arguments], env=environment, stdout=subprocess.PIPE)
    counters = Counters()
    assert process.stdout is not None
    with process, process.stdout as lines:
        for line in lines:
            found = json.loads(line)
            counters.add(Counters(**{**found, "seen": Counter(found["seen"])}))
            trial.tick(1)
    if process.returncode or counters.cycles != trial.cycles:
        raise RuntimeError(f"the lives ended with {process.returncode} after {counters.cycles} of {trial.cycles}")
    return counters


PARTS = (
    Part(
        "system_clock", "17", "the same, the system's clock moved by libfaketime", "lives of a clock", harness=3,
        crash=100, soak=200, chunk=100, run=run, protections=clocks.PARTS[0].protections, bites_within=5,
        cannot_run=cannot_fake,
    ),
)  # fmt: skip
