"""The short form of every part, and its teeth."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crash.part import TEETH_SEEDS, Counters, Part, Trial
from crash.protections import without

SEED = 20261121
SOON = 8
"""Without a protection the first violation mostly comes in this part of the cycles: it is tried before all of them."""

MORE_RUNS = 6
"""Of a part in which processes meet by chance."""


@pytest.fixture
def fast_directory() -> Iterator[Path]:
    """An empty directory in memory, where there is such a file system: a kill does not care what is on the disk."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="rmq-crash-", dir=base))
    yield path
    shutil.rmtree(path, ignore_errors=True)


Run = Callable[..., Counters]


@pytest.fixture
def run_part(fast_directory: Path, tmp_path: Path) -> Iterator[Run]:
    """run_part(part, cycles=None, without_protection=None, until=None): the counters of a short run; without a
    protection, of as few as it takes. `until(counters)` says whether chance has shown all that the test looks for: on
    a slow machine it may need some more runs.
    """

    def run(
        part: Part,
        cycles: int | None = None,
        *,
        without_protection: str | None = None,
        until: Callable[[Counters], bool] | None = None,
    ) -> Counters:
        if reason := part.cannot_run():
            pytest.skip(reason)
        directory = tmp_path if part.on_disk else fast_directory

        def trial(count: int, seed: int) -> Trial:
            return Trial(cycles or count, seed, Path(tempfile.mkdtemp(dir=directory)))

        found = Counters()
        if without_protection is None:
            for number in range(MORE_RUNS if until else 1):
                found.add(part.run(trial(part.harness, SEED + number)))
                if found.violations or (until and until(found)):
                    break
            return found
        with without(without_protection):
            tries = [(part.bites_within, SEED + number) for number in range(TEETH_SEEDS)]
            if part.by_cycle:
                tries.insert(0, (part.bites_within // SOON, SEED))
            for count, seed in tries:
                found.add(part.run(trial(count, seed)))
                if found.violations:
                    break
        return found

    log = logging.getLogger("rmq_store")
    level = log.level
    yield run
    log.setLevel(level)  # parts make it quiet for their process
