"""Short form of test 18: readers against retention."""

from __future__ import annotations

import pytest

from crash import retention_race
from crash.conftest import Run

pytestmark = pytest.mark.harness

(PART,) = retention_race.PARTS

MEETINGS = (
    "segments deleted", "files of views deleted", "taken by force", "kept by a reader", "messages read",
    "out of range", "views that outlived their file", "pinned ranges read", "pins taken by force",
)  # fmt: skip


def test_readers_get_the_right_bytes_or_are_told_what_is_left(run_part: Run) -> None:
    counters = run_part(PART, until=lambda found: all(found.seen[each] >= 3 for each in MEETINGS))
    assert not counters.violations, counters
    assert counters.acknowledged > 100 * counters.cycles
    assert [each for each in MEETINGS if counters.seen[each] < 3] == [], dict(counters.seen)


@pytest.mark.parametrize("protection", PART.protections)
@pytest.mark.teeth
def test_it_would_be_noticed(protection: str, run_part: Run) -> None:
    assert run_part(PART, without_protection=protection).violations
