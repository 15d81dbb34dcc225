"""One chunk of one part, in a process of its own: `python -m crash.chunk PART PROTECTION SEED CYCLES DIRECTORY FD`.

A part that leaks, or dies, harms no other. Lines of JSON go to the descriptor FD: {"tick": n} now and then, then
{"counters": ...} or {"error": "..."}. PROTECTION "" takes none out.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from dataclasses import fields
from pathlib import Path

from crash import catalogue
from crash.part import Trial
from crash.protections import without

TICK_S = 0.5


class Ticks:
    """Adds finished cycles up, and tells them twice a second. Forked children of the part do not tell."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pid = os.getpid()
        self._count = 0
        self._told_s = time.monotonic()

    def __call__(self, cycles: int) -> None:
        self._count += cycles
        if time.monotonic() - self._told_s > TICK_S and os.getpid() == self._pid:
            tell(self._fd, {"tick": self._count})
            self._count, self._told_s = 0, time.monotonic()


def tell(fd: int, answer: dict[str, object]) -> None:
    os.write(fd, json.dumps(answer).encode() + b"\n")


def main() -> None:
    name, protection, seed, cycles, directory, pipe = sys.argv[1:]
    fd = int(pipe)
    os.set_inheritable(fd, False)
    try:
        part = catalogue.found()[0][name]
        with without(protection) if protection else contextlib.nullcontext():
            counters = part.run(Trial(int(cycles), int(seed), Path(directory), Ticks(fd)))
        if not counters.cycles:
            raise RuntimeError(f"{name} says that it did nothing")
    except Exception:
        tell(fd, {"error": traceback.format_exc()})
        sys.exit(1)
    # Not `asdict`: it takes a Counter apart.
    tell(fd, {"counters": {each.name: getattr(counters, each.name) for each in fields(counters)}})


if __name__ == "__main__":
    main()
