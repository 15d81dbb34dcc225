"""Short form of test 30: a server killed at each point of a request, for each kind of request."""

from __future__ import annotations

from itertools import product

import pytest

from crash.conftest import Run
from crash.served import kills, points
from crash.served.works import WORKS

pytestmark = pytest.mark.harness

(PART,) = kills.PARTS
EACH = {f"{work.name}: {point}" for work, point in product(WORKS, points.POINTS)}


def test_an_answered_request_has_its_effect_and_a_repeated_one_at_most_once_more(run_part: Run) -> None:
    counters = run_part(PART)
    assert not counters.violations, counters
    killed = {name.removeprefix("at ") for name in counters.seen}
    assert killed >= EACH
    assert counters.acknowledged > PART.harness // 2


@pytest.mark.slow
def test_the_same_inside_of_the_store_at_many_operations(run_part: Run) -> None:
    counters = run_part(PART, 3 * PART.harness)
    assert not counters.violations, counters
    operations = {name.partition(": ")[2] for name in counters.seen} - set(points.POINTS)
    assert {"store appended_end", "write segment", "rename config/consumerOffset.json"} <= operations


@pytest.mark.parametrize("protection", PART.protections)
def test_it_would_be_noticed(protection: str, run_part: Run) -> None:
    assert run_part(PART, without_protection=protection).violations
