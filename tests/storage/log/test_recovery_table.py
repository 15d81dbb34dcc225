"""Every situation that a recovery can meet has exactly one row of the table."""

from __future__ import annotations

from itertools import product

import pytest

from rmq_store.log.recovery_table import RECOVERY_TABLE, Action, Follows, decide

SITUATIONS = [
    (follows, durable, foreign)
    for follows, durable, foreign in product(Follows, (False, True), (False, True))
    if not (durable and foreign)  # a store that a broker wrote last has no durable point
]

EXPECTED = {
    (Follows.ZEROS, False, False): ("clean", Action.NOTHING),
    (Follows.GARBAGE, False, False): ("torn tail", Action.CUT_TAIL),
    (Follows.RECORDS, False, False): ("hole", Action.CUT_TAIL),
    (Follows.ZEROS, True, False): ("damaged", Action.REFUSE),
    (Follows.GARBAGE, True, False): ("damaged", Action.REFUSE),
    (Follows.RECORDS, True, False): ("damaged", Action.REFUSE),
    (Follows.ZEROS, False, True): ("foreign", Action.CUT_AS_JAVA),
    (Follows.GARBAGE, False, True): ("foreign", Action.CUT_AS_JAVA),
    (Follows.RECORDS, False, True): ("foreign", Action.CUT_AS_JAVA),
}


def test_the_situations_are_all_listed_here() -> None:
    assert set(SITUATIONS) == set(EXPECTED)
    assert len(SITUATIONS) == 9


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_exactly_one_row_fits_and_says_what_to_do(situation: tuple[Follows, bool, bool]) -> None:
    follows, durable, foreign = situation
    fitting = [
        case
        for case in RECOVERY_TABLE
        if follows in case.follows and (case.durable, case.foreign) == (durable, foreign)
    ]
    assert len(fitting) == 1
    assert decide(follows, durable=durable, foreign=foreign) is fitting[0]
    assert (fitting[0].name, fitting[0].action) == EXPECTED[situation]


def test_names_are_different_and_every_action_occurs() -> None:
    assert len({case.name for case in RECOVERY_TABLE}) == len(RECOVERY_TABLE)
    assert {case.action for case in RECOVERY_TABLE} == set(Action)
