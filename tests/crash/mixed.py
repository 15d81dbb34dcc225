"""A day of everything: chunks of kills, power cuts, full disks, readers against retention and killed Spark drivers, in
random alternation in one process, whose memory and descriptors must not grow.

A cycle is one chunk of a few cycles of one of the parts. A whole day of it is the business of a soak; shorter runs only
show that it works.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
from pathlib import Path

from crash.part import Counters, Part, Trial

NUMBERS = ("1", "5", "11", "18", "25")
# What the process may need beyond its size after some cycles.
GROWTH_BYTES = 64 << 20
WARM_ROUNDS = 2


def run(trial: Trial) -> Counters:
    """Run some cycles of a random part again and again."""
    from crash import catalogue

    known = [part for part in catalogue.found()[0].values() if part.number in NUMBERS]
    able = [part for part in known if not part.cannot_run()]
    counters = Counters()
    base_bytes = base_files = 0
    for cycle in range(trial.cycles):
        chance = random.Random(f"{trial.seed}/{cycle}")
        # First each once, for what they import.
        part = able[cycle] if cycle < len(able) else chance.choice(able)
        directory = trial.directory / "mixed"
        directory.mkdir()
        found = part.run(Trial(max(1, part.bites_within // 10), chance.getrandbits(40), directory))
        shutil.rmtree(directory)
        found.seen["cycles of parts"] += found.cycles
        found.seen[f"chunks of {part.name}"] += 1
        found.cycles = 1
        gc.collect()  # a store that is closed while batches of it live lets go of its files with the last of them
        files, size_bytes = len(os.listdir("/proc/self/fd")), resident_bytes()  # noqa: PTH208
        if cycle == WARM_ROUNDS * len(able):
            base_files, base_bytes = files, size_bytes
        elif base_bytes and (files > base_files or size_bytes > base_bytes + GROWTH_BYTES):
            found.broken += 1
            found.note(f"{files} files (at first {base_files}), {size_bytes} bytes of memory ({base_bytes})")
        found.first = found.first and f"cycle {cycle}, {part.name}: {found.first}"
        counters.add(found)
        trial.tick(1)
    if base_bytes:
        counters.seen["MiB that memory grew by"] += max(0, resident_bytes() - base_bytes) >> 20
    return counters


def resident_bytes() -> int:
    """RSS of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


PARTS = (
    Part(
        "mixed", "28", "kills, power cuts, full disks, retention and Spark in random alternation", "chunks",
        harness=0, crash=20, soak=50_000, chunk=100, run=run, on_disk=True, alone=True,
    ),
)  # fmt: skip
