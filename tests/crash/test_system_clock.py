"""Short form of test 17 with the system's clock, which libfaketime moves. Needs Debian's package libfaketime."""

from __future__ import annotations

import pytest

from crash import system_clock
from crash.conftest import Run

pytestmark = pytest.mark.harness

(PART,) = system_clock.PARTS


def test_a_system_clock_that_jumps_loses_nothing_and_brings_nothing_twice(run_part: Run) -> None:
    counters = run_part(PART)
    assert not counters.violations, counters
    assert counters.acknowledged > 10 * counters.cycles
    for kind in ("back", "forward", "creeps back", "stands still"):
        assert counters.seen[f"clock {kind}"] > 0, counters.seen
    assert counters.seen["delivered"] > 0


@pytest.mark.parametrize("protection", PART.protections)
@pytest.mark.teeth
def test_it_would_be_noticed(protection: str, run_part: Run) -> None:
    assert run_part(PART, without_protection=protection).violations
