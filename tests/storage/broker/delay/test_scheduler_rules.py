"""Which messages ask for a time, and when: HookUtils#transformTimerMessage."""

from __future__ import annotations

import pytest

from rmq_store import UsageError
from rmq_store.broker.rules.timer import DELAY_MS_MAX, TIMER_QUEUES, due_ms, timer_queue_id

NOW = 1_700_000_000_123


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, None),
        ({"TIMER_DELIVER_MS": str(NOW + 1)}, NOW + 1),
        ({"TIMER_DELIVER_MS": str(NOW)}, None),
        ({"TIMER_DELIVER_MS": "0"}, None),
        ({"TIMER_DELIVER_MS": "-5"}, None),
        ({"TIMER_DELAY_MS": "1500"}, NOW + 1500),
        ({"TIMER_DELAY_SEC": "2"}, NOW + 2000),
        ({"TIMER_DELAY_SEC": "2", "TIMER_DELAY_MS": "1", "TIMER_DELIVER_MS": str(NOW + 9)}, NOW + 2000),
        ({"TIMER_DELAY_MS": "1", "TIMER_DELIVER_MS": str(NOW + 9)}, NOW + 1),
        ({"TIMER_DELAY_SEC": "259200"}, NOW + DELAY_MS_MAX),
        ({"TIMER_DELIVER_MS": str(NOW + 1), "TIMER_OUT_MS": "7"}, None),
    ],
)
@pytest.mark.statement("C10")
def test_the_first_of_the_three_properties_says_when(properties: dict[str, str], expected: int | None) -> None:
    assert due_ms(properties, NOW) == expected


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ({"TIMER_DELIVER_MS": str(NOW + DELAY_MS_MAX + 1)}, "more than 259200 s ahead"),
        ({"TIMER_DELAY_SEC": "259201"}, "more than 259200 s ahead"),
        ({"TIMER_DELAY_MS": "soon"}, "TIMER_DELAY_MS='soon' is no number"),
        ({"TIMER_DELAY_MS": "1e3"}, "no number"),
        ({"TIMER_DELAY_MS": "9" * 5000}, "no number"),
        ({"TIMER_DELAY_MS": "5", "TIMER_DEL_UNIQKEY": "T+id"}, "cannot be cancelled"),
    ],
)
def test_a_time_that_cannot_be_kept_is_refused(properties: dict[str, str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        due_ms(properties, NOW)


def test_the_queue_of_a_timer_is_chosen_by_how_long_it_waits() -> None:
    minute, hour, day = 60_000, 3_600_000, 86_400_000
    waits = [1, minute, minute + 1, hour, hour + 1, day, day + 1, DELAY_MS_MAX]
    assert [timer_queue_id(wait) for wait in waits] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert TIMER_QUEUES == 4
