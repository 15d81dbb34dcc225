"""Short forms of tests 3, 15, 16, 17: many processes killed, one stopped, one forked; clocks."""

from __future__ import annotations

import pytest

from crash import clocks, locks, points, processes  # noqa: F401 - `points` defines a protection
from crash.conftest import Run
from crash.part import Part

pytestmark = pytest.mark.harness

(PROCESSES,) = processes.PARTS
STOPPED, FORKED = locks.PARTS
(CLOCK,) = clocks.PARTS


def test_processes_killed_in_random_combination_lose_nothing_and_leave_views_like_rebuilt_ones(run_part: Run) -> None:
    counters = run_part(PROCESSES)
    assert not counters.violations, counters
    assert counters.acknowledged > 10 * counters.cycles
    for role in ("producer", "delayer", "deliverer", "committer", "cleaner", "reader"):
        assert counters.seen[f"{role} killed"] > counters.cycles // 3, counters.seen
    # Each life in which something is deleted begins with a deletion.
    assert counters.seen["looks after deletions"] == processes.LIFE
    assert counters.seen["kills behind a deletion"] > 0
    assert counters.seen["views compared byte for byte"] > counters.cycles // 3


def test_a_stopped_holder_keeps_its_lock_and_is_named_and_a_killed_one_leaves_it_free(run_part: Run) -> None:
    counters = run_part(STOPPED)
    assert not counters.violations, counters
    assert counters.seen["append stopped"] > 3
    assert counters.seen["recovery stopped"] > 3


def test_a_forked_child_holds_nothing_and_cannot_write(run_part: Run) -> None:
    counters = run_part(FORKED)
    assert not counters.violations, counters
    assert counters.seen["beside a child"] > 3
    assert counters.seen["survived by a child"] > 3


def test_no_clock_loses_or_doubles_messages_or_changes_their_order(run_part: Run) -> None:
    counters = run_part(CLOCK)
    assert not counters.violations, counters
    assert counters.seen["delivered"] > 5 * CLOCK.harness
    for way in ("back", "forward", "creeps back", "stands still"):
        assert counters.seen[f"clock {way}"] > 3, counters.seen


@pytest.mark.parametrize(
    ("part", "protection"),
    [(part, name) for part in (PROCESSES, STOPPED, FORKED, CLOCK) for name in part.protections],
    ids=lambda value: getattr(value, "name", value),
)
@pytest.mark.teeth
def test_it_would_be_noticed(part: Part, protection: str, run_part: Run) -> None:
    assert run_part(part, without_protection=protection).violations
