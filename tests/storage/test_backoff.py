"""The one rule for waits between tries."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from rmq_store.backoff import Backoff

SOURCES = Path(__file__).resolve().parents[2] / "storage" / "rmq_store"
# `2 * pause_s`, `_PAUSE_S * 2**number`, `pause_ms << tries`: a wait that doubles by a rule of its own.
WAIT = r"[\w.]*(?i:pause|wait|back_?off)\w*"
DOUBLING = re.compile(rf"\b2 \* {WAIT}|{WAIT} (\*|\*=) 2\b|{WAIT} <<")
# Each of them has one of these. The search for a name would begin at every letter of a line.
SIGNS = ("2 *", "* 2", "*= 2", "<<")


def test_waits_grow_by_the_factor_up_to_the_longest() -> None:
    assert [Backoff(10, 1_000).wait_ms(failures) for failures in (1, 2, 3, 7, 8, 9)] == [10, 20, 40, 640, 1_000, 1_000]
    assert [Backoff(100, 5_000, 1.6).wait_ms(failures) for failures in (1, 2, 3)] == pytest.approx([100, 160, 256])
    assert Backoff(100, 5_000).wait_s(2) == 0.2


def test_without_a_failure_the_wait_is_the_first_one() -> None:
    assert Backoff(10, 1_000).wait_ms(0) == Backoff(10, 1_000).wait_ms(-1) == 10


@pytest.mark.parametrize("factor", [1, 1.0001, 2, 1_000.0])
def test_any_number_of_failures_has_a_wait(factor: float) -> None:
    assert 0 < Backoff(10, 1_000, factor).wait_ms(10**9) <= 1_000


def test_whole_numbers_stay_whole() -> None:
    wait_ms = Backoff(1, 1 << 62, 2).wait_ms(60)
    assert isinstance(wait_ms, int)
    assert wait_ms == 1 << 59


def test_jitter_is_a_part_of_the_wait_both_ways() -> None:
    waits = Backoff(100, 100, jitter=0.25)
    uniform = random.Random(7).uniform
    seen = [waits.wait_ms(1, uniform) for _ in range(500)]
    assert 75 <= min(seen) < 77
    assert 123 < max(seen) <= 125


def test_no_module_doubles_a_wait_by_itself() -> None:
    own = {
        f"{path.relative_to(SOURCES)}: {line.strip()}"
        for path in SOURCES.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if any(sign in line for sign in SIGNS) and DOUBLING.search(line)
    }
    assert own == set()
