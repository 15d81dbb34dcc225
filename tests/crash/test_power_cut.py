"""Short form of test 5: power cuts of a file system on a device that is cloned. Needs root and xfsprogs."""

from __future__ import annotations

from pathlib import Path

import pytest

from crash import failing_calls, power_cut  # noqa: F401 - failing_calls defines `no_flush`
from crash.conftest import Run
from crash.loops import devices_of
from crash.part import Trial

pytestmark = pytest.mark.harness

(PART,) = power_cut.PARTS


def test_a_power_cut_loses_nothing_that_was_acknowledged(run_part: Run) -> None:
    counters = run_part(PART)
    assert not counters.violations, counters
    assert counters.cycles == PART.harness
    assert counters.acknowledged > 100
    assert counters.seen["recovered from OWN"] == 2 * PART.harness


@pytest.mark.parametrize("protection", PART.protections)
@pytest.mark.teeth
def test_it_would_be_noticed(protection: str, run_part: Run) -> None:
    assert run_part(PART, without_protection=protection).lost


def test_nothing_is_left_mounted_by_a_part_that_fails(fast_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := PART.cannot_run():
        pytest.skip(reason)

    def fail(*arguments: object) -> None:
        assert len(devices_of(fast_directory)) == 2
        raise ValueError("in the middle")

    monkeypatch.setattr(power_cut, "_live_and_cut", fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        PART.run(Trial(1, 0, fast_directory))
    assert not devices_of(fast_directory)
