"""Short form of test 19: two processes do anything, and the store is what a model of dictionaries says."""

from __future__ import annotations

import pytest

from crash import kill, model  # kill: the protection of another part that this one notices, too
from crash.conftest import Run

pytestmark = pytest.mark.harness
PART = model.PARTS[0]

assert kill.PARTS


@pytest.mark.minutes
def test_no_walk_of_calls_kills_and_power_cuts_leaves_the_model(run_part: Run) -> None:
    counters = run_part(PART)
    assert (counters.violations, counters.first) == (0, "")
    assert counters.cycles == PART.harness
    assert counters.acknowledged > 20 * PART.harness
    for seen in (
        "send", "append", "send_together", "commit_unit", "repeat_unit", "read", "commit_offsets", "send_back",
        "messages delivered", "look", "restart", "kill", "kill_both", "reboot", "power cut with loss", "pop", "ack",
        "segments removed", "died in a call", "died, and it had happened", "power cut in a unit",
        "recovered CLEAN", "recovered SAME_BOOT", "recovered OWN",
    ):  # fmt: skip
        assert counters.seen[seen] > 0, (seen, counters.seen)


@pytest.mark.parametrize("protection", PART.protections)
@pytest.mark.teeth
def test_it_would_be_noticed(protection: str, run_part: Run) -> None:
    assert run_part(PART, without_protection=protection).violations
