"""The short forms of `failing_calls` and `failing_syscalls`, and what they rest on."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from crash.failing_calls import PARTS, Case, Worker
from crash.failing_life import SCENARIOS

if TYPE_CHECKING:
    from .conftest import Run

pytestmark = pytest.mark.harness

_HOOKS = {
    "open": {"open", "fsync_directory", "syncfs"},
    "pwrite": {"write"},
    "write": {"write"},
    "fsync": {"fsync", "fsync_directory"},
    "fdatasync": {"fsync"},
    "syncfs": {"syncfs"},
    "fallocate": {"allocate"},
    "ftruncate": {"allocate"},
    "rename": {"rename"},
    "link": {"link"},
    "unlink": {"unlink"},
    "mkdir": {"mkdir"},
}
"""System call -> the operations by which the file layer announces it."""


def _is_harmless(name: str, path: str) -> bool:
    """The pid of a holder, and a temporary file that is taken away; `failing_syscalls` makes them fail all the same."""
    return (name == "pwrite" and path.endswith("lock")) or (name == "unlink" and path.endswith(".tmp"))


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_nothing_acknowledged_is_lost_whatever_call_fails(run_part: Run, part: object) -> None:
    counters = run_part(part)
    assert counters.violations == 0, counters.first
    assert counters.acknowledged > 10 * counters.cycles
    assert counters.seen["calls that failed"] == counters.cycles
    assert counters.seen["failed fsyncs of the log"] >= 3
    assert all(counters.seen[f"at {name}"] for name in SCENARIOS)


@pytest.mark.parametrize(
    ("part", "protection"),
    [(part, name) for part in PARTS for name in part.protections],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
@pytest.mark.teeth
def test_without_a_protection_it_is_noticed(run_part: Run, part: object, protection: str) -> None:
    assert run_part(part, without_protection=protection).violations > 0


def test_every_system_call_that_changes_a_store_is_announced_to_the_hook(fast_directory: Path) -> None:
    """What tests make fail through the hook is all that can fail."""
    if reason := PARTS[1].cannot_run():
        pytest.skip(reason)
    worker = Worker(fast_directory)
    unannounced = set()
    seen = set()
    try:
        for scenario in SCENARIOS:
            with tempfile.TemporaryDirectory(dir=fast_directory) as directory:
                answer = worker.ask(root=f"{directory}/store", case=list(Case(scenario, "EIO", False, 0)), seed=1)
            announced = ""
            for line in answer["log"].splitlines():
                kind, name, path = line.split("\t")
                if kind == "hook":
                    announced = name
                    continue
                seen.add(name)
                if announced not in _HOOKS[name] and not _is_harmless(name, path):
                    unannounced.add((name, path.removeprefix(directory), f"behind {announced}"))
    finally:
        worker.close()
    assert not unannounced, sorted(unannounced)
    assert seen >= {"open", "pwrite", "fsync", "fdatasync", "syncfs", "fallocate", "rename", "unlink", "mkdir"}
