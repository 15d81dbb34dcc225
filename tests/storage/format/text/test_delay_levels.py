"""RocketMQ's delay levels, and the level that follows a failed attempt."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rmq_store import StoreConfig
from rmq_store.format.text.delay_levels import (
    DELAY_LEVELS_MS,
    delay_levels_text,
    parse_delay_levels,
    retry_delays_ms,
    retry_level,
)

ROOT = Path(__file__).resolve().parents[4]
SOURCES = (ROOT / "storage" / "rmq_store", ROOT / "connector" / "pyspark_rmq")
AGAIN = re.compile(r"1_?800, 3_?600, 7_?200|1m 2m 3m 4m|FIRST_RETRY_LEVEL\b.* =|\b3 \+ \w*\.?reconsume_times")


def test_the_table_is_rocketmqs() -> None:
    assert len(DELAY_LEVELS_MS) == 18
    assert [ms // 1000 for ms in DELAY_LEVELS_MS[:5]] == [1, 5, 10, 30, 60]
    assert DELAY_LEVELS_MS[-1] == 7_200_000
    assert StoreConfig().delay_levels_ms() == DELAY_LEVELS_MS


@pytest.mark.parametrize("text", ["1s 5s 10s", "90s", "1d 2h 30m", "1s 1s"])
def test_a_table_is_written_as_it_is_read(text: str) -> None:
    assert delay_levels_text(parse_delay_levels(text)) == text


def test_the_first_retry_has_the_third_level() -> None:
    assert [retry_level(times) for times in (0, 1, 15)] == [3, 4, 18]


def test_the_delays_of_retries_are_those_of_their_levels() -> None:
    delays_ms = retry_delays_ms(DELAY_LEVELS_MS)
    assert delays_ms == tuple(DELAY_LEVELS_MS[retry_level(times) - 1] for times in range(16))
    assert StoreConfig().retry_delays_ms() == delays_ms


@pytest.mark.parametrize(("table", "delays_ms"), [("1s", (1_000,)), ("1s 5s", (5_000,)), ("1s 5s 7s", (7_000,))])
def test_retries_of_a_short_table_use_its_last_level(table: str, delays_ms: tuple[int, ...]) -> None:
    assert StoreConfig(message_delay_level=table).retry_delays_ms() == delays_ms


def test_the_table_and_the_first_level_are_written_once() -> None:
    """The verifier has its own, on purpose."""
    again = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for source in SOURCES
        for path in source.rglob("*.py")
        if path.name != "delay_levels.py" and "verify" not in path.parts
        for found in AGAIN.finditer(path.read_text(encoding="utf-8"))
    ]
    assert again == []
