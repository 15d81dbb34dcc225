"""How long a test suite waits for a broker: the fixture `rmq_broker`, and the command."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from bench.case import Case, Pair, Target
from bench.scratch import Scratch
from bench.served import environment, started

FIXTURE_MS_MAX: Final = 500.0
COMMAND_MS_MAX: Final = 1_500.0
# Of bare starts of Python, 20 ms each: what the two bounds are on a machine of today.
FIXTURE_STARTS, COMMAND_STARTS = 25, 75

# What the fixture does for the first test of a suite: pytest is there, and nothing else.
_FIXTURE: Final = """
import sys, time
from pathlib import Path
import pytest
begin = time.perf_counter()
from rmq_store.testing import RmqTestBroker
with RmqTestBroker(Path(sys.argv[1])):
    print(time.perf_counter() - begin)
"""


def fixture_ms(directory: Path) -> float:
    """From the import to a broker that takes connections, in a fresh process that has pytest."""
    command = [sys.executable, "-c", _FIXTURE, str(directory / "broker")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    return 1000 * float(done.stdout)


def command_ms(directory: Path) -> float:
    """From the start of the process until its port answers."""
    begin = time.perf_counter()
    with started(directory, "--ephemeral"):
        return 1000 * (time.perf_counter() - begin)


def bare_ms() -> float:
    """A start of Python that does nothing, and its end."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True, env=environment())
    return 1000 * (time.perf_counter() - begin)


@contextlib.contextmanager
def starting(scratch: Scratch, ours: Callable[[Path], float]) -> Iterator[Pair]:
    """Milliseconds."""
    numbers = itertools.count()

    def in_new_directory() -> float:
        directory = scratch.directory / str(next(numbers))
        directory.mkdir()
        return ours(directory)

    yield Pair(in_new_directory, bare_ms)


CASES = (
    Case(
        name="server-start-fixture",
        title="the fixture `rmq_broker`, from its import on",
        group="server",
        body_bytes=None,
        yardstick="`python -c pass`",
        unit="ms",
        target=Target(FIXTURE_STARTS, at_least=False, ours_at_most=FIXTURE_MS_MAX),
        settings="In a fresh process that has imported pytest only: what the first test of a suite waits for.",
        prepare=lambda scratch: starting(scratch, fixture_ms),
    ),
    Case(
        name="server-start-command",
        title="`rmq broker run --ephemeral`, until its port answers",
        group="server",
        body_bytes=None,
        yardstick="`python -c pass`",
        unit="ms",
        target=Target(COMMAND_STARTS, at_least=False, ours_at_most=COMMAND_MS_MAX),
        settings="From the start of the process to the address in the port file.",
        prepare=lambda scratch: starting(scratch, command_ms),
    ),
)
