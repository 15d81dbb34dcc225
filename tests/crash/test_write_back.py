"""Short form of test 13: a disk that fails behind the page cache. Needs root."""

from __future__ import annotations

import pytest

from crash import failing_calls, write_back  # noqa: F401 - failing_calls defines the protections
from crash.conftest import Run

pytestmark = pytest.mark.harness

WRITE_BACK, READ_ERROR = write_back.PARTS


def test_what_is_shown_after_a_failed_write_back_is_on_the_disk(run_part: Run) -> None:
    counters = run_part(WRITE_BACK)
    assert not counters.violations, counters
    assert counters.acknowledged > 100
    assert counters.seen["writers that a failed flush stopped"]


@pytest.mark.parametrize("protection", WRITE_BACK.protections)
@pytest.mark.teeth
def test_it_would_be_noticed(protection: str, run_part: Run) -> None:
    assert run_part(WRITE_BACK, without_protection=protection).violations


def test_who_reads_what_cannot_be_read_dies_alone_or_is_told(run_part: Run) -> None:
    counters = run_part(READ_ERROR)
    assert not counters.violations, counters
    assert counters.seen["readers killed by SIGBUS"] + counters.seen["readers told"] == READ_ERROR.harness
