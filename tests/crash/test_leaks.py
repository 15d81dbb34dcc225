"""Short form of test 22: nothing is held that was let go of."""

from __future__ import annotations

import pytest

from crash.conftest import Run
from crash.leaks import PARTS

pytestmark = pytest.mark.harness
PART = PARTS[0]


def test_a_process_holds_as_much_after_hundreds_of_openings_as_after_some(run_part: Run) -> None:
    counters = run_part(PART)
    assert (counters.violations, counters.first) == (0, "")
    assert counters.seen["openings"] == counters.cycles == PART.harness
    assert counters.seen["segments deleted"] > PART.harness / 10
    assert counters.seen["most maps"] > 200, "fewer than there may be: the bound was not reached"


@pytest.mark.parametrize("protection", PART.protections)
@pytest.mark.teeth
def test_it_would_be_noticed(protection: str, run_part: Run) -> None:
    assert run_part(PART, without_protection=protection).violations
