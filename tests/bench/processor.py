"""Processor time of this process and everything below it: the driver, Spark's JVM, and its Python workers."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path


def family() -> list[int]:
    """The process ids of this process and of all its descendants."""
    parents = {}
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            with contextlib.suppress(OSError):
                # The name is in parentheses and may have spaces in it.
                parents[int(directory.name)] = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def used_s(pids: list[int]) -> float:
    """The processor time of these processes, in seconds; of one that has ended, none."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            # clock_getcpuclockid(3) of another process, which Python lacks: in ns, where /proc has ticks of 10 ms.
            total += time.clock_gettime((~pid << 3) | 2)
    return total
