"""The short forms of `full_disk` and `file_size_limit`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from crash.full_disk import PARTS

if TYPE_CHECKING:
    from .conftest import Run

pytestmark = pytest.mark.harness


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_a_full_disk_refuses_kills_nobody_and_loses_nothing(run_part: Run, part: object) -> None:
    counters = run_part(part)
    assert counters.violations == 0, counters.first
    assert counters.seen["refused"] > counters.cycles
    assert counters.seen["went on"] == 3 * counters.cycles
    assert counters.seen["closed without room"] > 0
    assert counters.seen["opened without room"] > 0
    assert counters.acknowledged > 30 * counters.cycles


def test_files_that_were_not_allocated_kill_who_writes_through_a_map(run_part: Run) -> None:
    counters = run_part(PARTS[0], without_protection="no_fallocate")
    assert counters.seen["killed by a signal"] > 0
    assert counters.violations > 0
