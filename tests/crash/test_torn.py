"""A log with a torn tail, and one with damage in the middle: the short forms of parts 7 and 10, and their teeth."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from crash.part import Counters, Part
from crash.torn import PARTS

pytestmark = pytest.mark.harness

TORN_TAIL, MID_LOG = PARTS


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of recoveries, each of which has something to say."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_a_tail_torn_at_any_byte_costs_no_record_before_it_and_invents_none(run_part: Callable[..., Counters]) -> None:
    """#7437 (torn properties), #10017/#10018 (records of a file's earlier life), #10666/#10816 (what was cut)."""
    counters = run_part(TORN_TAIL)
    assert (counters.violations, counters.first) == (0, "")
    assert counters.seen["laps"] >= 1  # every byte of the last three records, six fills
    assert counters.acknowledged > 5000


def test_damage_between_records_costs_no_other_record_and_is_named_byte_by_byte(
    run_part: Callable[..., Counters],
) -> None:
    """#467/#501: a damaged record, and everything behind it is gone."""
    counters = run_part(MID_LOG)
    assert (counters.violations, counters.first) == (0, "")
    assert counters.seen["damaged"] > 200
    assert counters.seen["verified kept"] > 200
    assert counters.seen["lost messages named"] > 1000


@pytest.mark.parametrize(("part", "name"), [(part, name) for part in PARTS for name in part.protections])
@pytest.mark.teeth
def test_it_would_be_noticed(run_part: Callable[..., Counters], part: Part, name: str) -> None:
    assert run_part(part, without_protection=name).violations > 0
