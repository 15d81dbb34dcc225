"""Bits of records, views, tables and our own files: the short form, and its teeth."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from crash.conftest import fast_directory, run_part  # noqa: F401 - fixtures
from crash.part import Counters
from fuzz.flips import BITS, PART, all_bits
from fuzz.records import MODES, victims
from fuzz.view_flips import PART as VIEW_FLIPS

pytestmark = pytest.mark.harness

Run = Callable[..., Counters]


@pytest.mark.minutes
def test_every_bit_of_a_record_of_every_kind_is_seen_with_a_crc_of_the_record(run_part: Run) -> None:  # noqa: F811
    assert len(all_bits()) == BITS
    assert len({(victim.kind, victim.mode) for victim in victims()}) == 16 * len(MODES)
    counters = run_part(PART)
    assert counters.violations == 0, counters.first
    assert counters.cycles == BITS
    fields = {name for victim in victims() for name, _ in victim.fields}
    for field in fields:
        assert counters.seen[f"detected crc {field}"] > 0
        assert counters.seen[f"missed crc {field}"] == 0
    # What RocketMQ's own checks cannot see: the price of byte-identical mode.
    missed = {name.split()[2] for name in counters.seen if name.startswith("missed plain ")}
    assert "body" not in missed and {"flag", "bornTimestamp", "storeHost"} <= missed
    assert counters.seen["detected crc, in a whole store"] > 50
    assert counters.seen["detected plain, in a whole store"] > 50


def test_without_the_crc_of_the_record_flips_are_missed(run_part: Run) -> None:  # noqa: F811
    (name,) = PART.protections
    assert run_part(PART, without_protection=name).altered > 0


@pytest.mark.minutes
def test_no_flip_of_anything_else_gives_a_wrong_message(run_part: Run) -> None:  # noqa: F811
    counters = run_part(VIEW_FLIPS)
    assert counters.violations == 0, counters.first
    assert counters.cycles == VIEW_FLIPS.harness
    for kind in ("consumequeue", "index", "pyrmq/store.json"):
        assert counters.seen[f"detected clean {kind}"] > 0, kind
    assert counters.seen["rebuilt views"] > 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", VIEW_FLIPS.protections)
@pytest.mark.teeth
def test_without_a_check_flips_give_wrong_or_lost_messages(run_part: Run, name: str) -> None:  # noqa: F811
    assert run_part(VIEW_FLIPS, without_protection=name).violations > 0
