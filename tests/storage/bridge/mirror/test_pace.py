"""When a mirror may copy, and how fast."""

from __future__ import annotations

import pytest

from rmq_store import UsageError
from rmq_store.bridge.mirror.pace import Pace, Window

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@pytest.mark.parametrize(
    ("text", "hour", "wait_hours"),
    [
        ("08:00-18:00", 8, 0), ("08:00-18:00", 17.99, 0), ("08:00-18:00", 18, 14), ("08:00-18:00", 7, 1),
        ("22:00-06:00", 23, 0), ("22:00-06:00", 5, 0), ("22:00-06:00", 6, 16), ("22:00-06:00", 21.5, 0.5),
        ("00:00-12:30", 12.25, 0), ("00:00-12:30", 12.5, 11.5),
    ],
)  # fmt: skip
def test_a_window_says_how_long_until_it_opens(text: str, hour: float, wait_hours: float) -> None:
    now_ms = 20_000 * DAY_MS + int(hour * HOUR_MS)
    assert Window.parse(text).wait_ms(now_ms) == wait_hours * HOUR_MS


@pytest.mark.parametrize("text", ["", "8-18", "24:00-01:00", "08:00-08:00", "08:60-09:00", "08:00-18:00x"])
def test_what_is_no_window_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--window"):
        Window.parse(text)


def test_a_rate_holds_on_average_and_does_not_save_up_for_later() -> None:
    now_s = 100.0
    pace = Pace(50, lambda: now_s)
    assert pace.wait_s() == 0 and pace.unit_rows == 50
    pace.took(100)
    assert pace.wait_s() == 2.0
    now_s = 101.5
    assert pace.wait_s() == 0.5
    now_s = 1000.0
    assert pace.wait_s() == 0
    pace.took(50)
    assert pace.wait_s() == 1.0


def test_less_than_a_record_per_second_is_a_rate_too() -> None:
    now_s = 0.0
    pace = Pace(0.1, lambda: now_s)
    assert pace.unit_rows == 1
    pace.took(1)
    assert pace.wait_s() == 10.0


def test_without_a_rate_nobody_waits() -> None:
    pace = Pace(None)
    pace.took(10**9)
    assert pace.wait_s() == 0 and pace.unit_rows is None
