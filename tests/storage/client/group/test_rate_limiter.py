"""Throttling in front of the listener (B16, "Do not use retry instead of throttling")."""

from __future__ import annotations

import pytest

from rmq_store import UsageError
from rmq_store.client.group.rate_limiter import RateLimiter


class Clock:
    now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.mark.statement("B16")
def test_permits_come_at_the_rate() -> None:
    """B16: RateLimiter.create(50) is 50 messages a second. The first is free, each further one 20 ms later."""
    clock = Clock()
    limiter = RateLimiter(50, clock=clock)
    assert [limiter.reserve() - clock.now_ms for _ in range(4)] == [0, 20, 40, 60]
    clock.now_ms += 70
    assert limiter.reserve() - clock.now_ms == 10


def test_a_pause_saves_up_one_second_at_most() -> None:
    """Guava's SmoothBursty: maxBurstSeconds 1."""
    clock = Clock()
    limiter = RateLimiter(10, clock=clock)
    clock.now_ms += 60_000
    waits = [limiter.reserve() - clock.now_ms for _ in range(13)]
    assert waits == [0] * 11 + [100, 200]


def test_a_large_request_is_paid_by_the_next_one() -> None:
    clock = Clock()
    limiter = RateLimiter(10, clock=clock)
    assert limiter.reserve(5) == clock.now_ms
    assert limiter.reserve(1) == clock.now_ms + 500


def test_a_clock_set_back_makes_nobody_wait() -> None:
    clock = Clock()
    limiter = RateLimiter(10, clock=clock)
    assert limiter.wait_ms() == 0
    clock.now_ms -= 3_600_000
    assert [limiter.wait_ms() for _ in range(2)] == [100, 200]


def test_acquire_sleeps_for_the_time_reserved() -> None:
    clock, slept = Clock(), []
    limiter = RateLimiter(4, clock=clock)
    assert [limiter.acquire(sleep=slept.append) for _ in range(3)] == [0, 0.25, 0.5]
    assert slept == [0.25, 0.5]


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_a_rate_is_above_zero(rate: float) -> None:
    with pytest.raises(UsageError, match="permits_per_second"):
        RateLimiter(rate)
    with pytest.raises(UsageError, match="permits"):
        RateLimiter(1).reserve(0)
