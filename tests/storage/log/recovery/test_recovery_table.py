"""Every situation that a recovery can meet has exactly one row of the table."""

from __future__ import annotations

from itertools import product

import pytest

from rmq_store.log.recovery.recovery_table import RECOVERY_TABLE, Action, Follows, decide

SITUATIONS = [
    (follows, durable, in_unit, foreign)
    for follows, durable, in_unit, foreign in product(Follows, (False, True), (False, True), (False, True))
    if not (durable and foreign)  # a store that a broker wrote last has no durable point
]


def expected(follows: Follows, durable: bool, in_unit: bool, foreign: bool) -> tuple[str, Action]:
    """The table of the specification, told a second time."""
    if foreign:
        return "foreign", Action.CUT_AS_JAVA
    if durable:
        lost = {Follows.RECORDS: "corruption", Follows.NO_SEGMENT: "missing segment"}
        return lost.get(follows, "lost durable tail"), Action.REFUSE
    if in_unit:
        return "torn unit", Action.DROP_UNIT
    if follows is Follows.ZEROS:
        return "clean", Action.NOTHING
    return "torn tail" if follows is Follows.GARBAGE else "hole", Action.CUT_TAIL


def test_every_combination_is_a_situation() -> None:
    assert len(SITUATIONS) == 4 * 3 * 2


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_exactly_one_row_fits_and_says_what_to_do(situation: tuple[Follows, bool, bool, bool]) -> None:
    follows, durable, in_unit, foreign = situation
    fitting = [
        case
        for case in RECOVERY_TABLE
        if follows in case.follows
        and (case.durable, case.foreign) == (durable, foreign)
        and case.in_unit in (None, in_unit)
    ]
    assert len(fitting) == 1
    assert decide(follows, durable=durable, in_unit=in_unit, foreign=foreign) is fitting[0]
    assert (fitting[0].name, fitting[0].action) == expected(*situation)


def test_names_are_different_and_every_action_occurs() -> None:
    assert len({case.name for case in RECOVERY_TABLE}) == len(RECOVERY_TABLE)
    assert {case.action for case in RECOVERY_TABLE} == set(Action)
