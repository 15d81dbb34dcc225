"""The flood breaker: percentages of a batch, and a minute that slides over batches."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from pyspark_rmq.retry.flood_breaker import FloodBreaker, FloodBreakerError, FloodWatch
from rmq_store import StoreError, UsageError


@pytest.mark.parametrize(
    ("rows", "dead", "trips"), [(100, 10, False), (100, 11, True), (1, 1, True), (0, 0, False), (1000, 0, False)]
)
def test_more_than_a_percentage_of_a_batch_trips(rows: int, dead: int, trips: bool) -> None:
    watch = FloodWatch(FloodBreaker(max_percent=10))
    if not trips:
        watch.check(rows, dead, 0)
        return
    share = f"{dead * 100 / rows:.1f}"
    with pytest.raises(FloodBreakerError, match=rf"{dead} of {rows} rows of the batch \({share} %, limit 10 %\)"):
        watch.check(rows, dead, 0)


def test_small_batches_are_spared_if_asked_for() -> None:
    watch = FloodWatch(FloodBreaker(max_percent=10, min_rows=20))
    watch.check(19, 19, 0)
    with pytest.raises(FloodBreakerError):
        watch.check(20, 19, 0)


def test_the_minute_slides_over_batches_and_counts_only_what_was_sent_back() -> None:
    watch = FloodWatch(FloodBreaker(max_per_minute=10))

    def batch(dead: int, now_ms: int) -> None:
        watch.check(1000, dead, now_ms)
        watch.count(dead, now_ms)

    batch(6, 0)
    batch(4, 59_999)
    with pytest.raises(FloodBreakerError, match=r"11 rows within a minute, 1 of them in this batch \(lim") as raised:
        batch(1, 59_999)
    assert (raised.value.dead, raised.value.rows, raised.value.in_window) == (1, 1000, 11)
    batch(6, 60_000)  # the first six are a minute old, and the refused one was never counted
    with pytest.raises(FloodBreakerError):
        batch(1, 60_001)
    batch(0, 60_001)  # nothing dead: nothing to say


def test_both_limits_are_named_if_both_are_passed() -> None:
    with pytest.raises(FloodBreakerError, match=r"8 of 8 rows.* and 8 rows within a minute.*nothing of this batch"):
        FloodWatch(FloodBreaker(max_percent=50, max_per_minute=5)).check(8, 8, 0)


def test_the_error_is_typed_and_survives_pickling() -> None:
    with pytest.raises(StoreError) as raised:
        FloodWatch(FloodBreaker(max_percent=0)).check(2, 1, 0)
    again = copy.copy(raised.value)  # by __reduce__, as pickle does it
    assert type(again) is FloodBreakerError
    assert (str(again), again.dead, again.rows, again.in_window) == (str(raised.value), 1, 2, 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "needs max_percent or max_per_minute"),
        ({"max_percent": 100}, "no percentage"),
        ({"max_percent": -1}, "no percentage"),
        ({"max_percent": float("nan")}, "no percentage"),
        ({"max_per_minute": -1}, "negative"),
        ({"max_percent": 5, "min_rows": 0}, "not at least 1"),
    ],
)
def test_a_breaker_without_a_sensible_limit_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        FloodBreaker(**given)
