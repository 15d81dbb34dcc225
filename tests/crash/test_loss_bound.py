"""Short form of the bound that test 5 names: what a power cut may take under ASYNC_FLUSH."""

from __future__ import annotations

import pytest

from crash import loss_bound
from crash.conftest import Run

pytestmark = pytest.mark.harness

(PART,) = loss_bound.PARTS


def test_a_power_cut_takes_what_the_flusher_was_not_due_to_write_and_no_more(run_part: Run) -> None:
    """docs/guarantees.md, "power cut, ASYNC_FLUSH"."""
    counters = run_part(PART)
    assert not counters.violations, counters
    assert counters.cycles == PART.harness
    assert counters.acknowledged > PART.harness
    assert counters.seen["lost of what waited for a flush"] > PART.harness // 10, "what may be lost was not lost"


@pytest.mark.parametrize("protection", PART.protections)
@pytest.mark.teeth
def test_it_would_be_noticed(protection: str, run_part: Run) -> None:
    assert run_part(PART, without_protection=protection).lost
