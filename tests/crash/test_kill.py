"""Short form of tests 1 and 2: one writer killed at a random moment."""

from __future__ import annotations

import pytest

from crash import kill
from crash.conftest import Run
from crash.part import Part

pytestmark = pytest.mark.harness


@pytest.mark.parametrize("part", kill.PARTS, ids=lambda part: part.name)
def test_a_writer_killed_at_any_moment_has_lost_nothing_that_was_acknowledged(part: Part, run_part: Run) -> None:
    counters = run_part(part)
    assert not counters.violations, counters
    assert counters.cycles == part.harness
    assert counters.acknowledged > 5 * part.harness
    for seen in (
        *(f"killed {phase}" for phase in kill.PHASES), "killed while it recovered", "taken for an earlier boot",
        "segments begun", "queue files begun", "index files begun",
    ):  # fmt: skip
        assert counters.seen[seen] > 5, counters.seen


@pytest.mark.parametrize(
    ("part", "protection"),
    [(part, name) for part in kill.PARTS for name in part.protections],
    ids=lambda value: getattr(value, "name", value),
)
@pytest.mark.teeth
def test_it_would_be_noticed(part: Part, protection: str, run_part: Run) -> None:
    assert run_part(part, without_protection=protection).violations
