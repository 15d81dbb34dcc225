"""The short form of test 25: four kills, one of them with the marker off."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from crash import spark_kills
from crash.part import Counters

pytestmark = [pytest.mark.harness, pytest.mark.spark, pytest.mark.timeout(400)]

Run = Callable[..., Counters]
(KILLS,) = spark_kills.PARTS


@pytest.mark.minutes
def test_killed_drivers_lose_nothing_and_double_nothing(run_part: Run) -> None:
    counters = run_part(KILLS)
    assert counters.violations == 0, counters.first
    assert counters.acknowledged > 0
    assert counters.seen["kills"] == KILLS.harness
    assert counters.seen["killed: before commit log"] == 1
    assert counters.seen["batches hit"] > 0


@pytest.mark.parametrize("protection", KILLS.protections)
@pytest.mark.teeth
def test_killed_drivers_are_noticed_without(protection: str, run_part: Run) -> None:
    counters = run_part(KILLS, without_protection=protection)
    assert counters.duplicated > 0
    assert counters.lost + counters.altered + counters.broken == 0, counters.first
