"""Short form of test 29: both sides of rmq_store.reliable killed at named points, on each kind of database."""

from __future__ import annotations

import pytest

from crash.business import kills, points
from crash.conftest import Run
from crash.part import Part
from helpers import servers

pytestmark = [pytest.mark.harness, pytest.mark.timeout(800)]


@pytest.fixture(autouse=True)
def servers_are_there(part: Part) -> None:
    """In CI nothing is skipped."""
    if servers.REQUIRED and (reason := part.cannot_run()):
        pytest.fail(reason)


@pytest.mark.minutes
@pytest.mark.parametrize("part", kills.PARTS, ids=lambda part: part.name)
def test_each_group_has_one_effect_of_what_was_committed_wherever_processes_die(part: Part, run_part: Run) -> None:
    counters = run_part(part)
    assert not counters.violations, counters
    assert counters.acknowledged > 5 * part.harness
    killed = {name.removeprefix("at ") for name in counters.seen if name.startswith("at ")}
    assert len(killed) > 0.8 * len(points.ALL), counters.seen
    for seen in (
        "Redis flushed", "Redis restarted", "answers lost", "sent twice", "acknowledged and gone", "clock jumped",
        "rolled back", "redriven", "stopped with a lease", "killed by a message", "manual: maximum",
    ):  # fmt: skip
        assert counters.seen[seen], (seen, counters.seen)
    assert bool(counters.seen["database restarted"]) == (part.name != "business_sqlite")


@pytest.mark.parametrize(
    ("part", "protection"),
    [(part, name) for part in kills.PARTS for name in part.protections],
    ids=lambda value: getattr(value, "name", value),
)
@pytest.mark.teeth
def test_it_would_be_noticed(part: Part, protection: str, run_part: Run) -> None:
    assert run_part(part, without_protection=protection).violations
