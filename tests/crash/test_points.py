"""Short form of test 4: a kill at every operation."""

from __future__ import annotations

import pytest

from crash import points
from crash.conftest import Run

pytestmark = pytest.mark.harness

(PART,) = points.PARTS

# What the test list names, and where in the day it comes; and what decides after a reboot.
NAMED = {
    "append: write segment", "append: half of a write of segment", "append: store intent_end",
    "append: store appended_end",
    "flush: fsync segment", "flush: store flushed_end",
    "append: rename segment", "append: rename queue file", "append: allocate index file",
    "append: write queue file", "append: write index file", "append: store index slot", "append: store index header",
    "progress: write pyrmq/progress", "close: write checkpoint", "close: rename pyrmq/queue_ends.json",
    "close: unlink abort", "close: store magic",
    "offsets: rename config/consumerOffset.json", "offsets: rename config/consumerOffset.json.bak",
    "delay: write segment", "delay: rename config/delayOffset.json",
    "retention: unlink segment", "retention: unlink queue file", "retention: unlink index file",
    "recovery: write segment", "recovery: store magic", "recovery: syncfs .", "recovery: write pyrmq/progress",
    "recovery after a reboot: store magic", "recovery after a reboot: store appended_end",
    "recovery after a reboot: write segment", "recovery after a reboot: syncfs .",
    "recovery after a reboot: unlink index file", "recovery after a reboot: write queue file",
    "recovery after a reboot: fsync removed bytes", "recovery after a reboot: write pyrmq/progress",
    "append after a reboot: store appended_end", "close after a reboot: store magic",
}  # fmt: skip


@pytest.mark.minutes
def test_a_kill_at_any_point_loses_nothing(run_part: Run) -> None:
    counters = run_part(PART)
    assert not counters.violations, counters
    reached = {name.removeprefix("at ") for name in counters.seen}
    assert not NAMED - reached
    # The points come in turn: one that came twice says that all of them came.
    assert sum(counters.seen.values()) == PART.harness > len(reached) > 300


@pytest.mark.parametrize("protection", PART.protections)
@pytest.mark.teeth
def test_it_would_be_noticed(protection: str, run_part: Run) -> None:
    assert run_part(PART, without_protection=protection).violations
