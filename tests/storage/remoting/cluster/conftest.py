"""A cluster in memory, and a clock that only tests move."""

from __future__ import annotations

import pytest

from .fake_cluster import FakeNet


class Timer:
    """A time in ms; `sleep` (seconds) moves it, and `slept` has every sleep in ms."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now_ms

    def sleep(self, duration_s: float) -> None:
        self.slept.append(duration_s * 1000)
        self.now_ms += duration_s * 1000


@pytest.fixture
def net() -> FakeNet:
    return FakeNet()


@pytest.fixture
def timer() -> Timer:
    return Timer()
