"""Delay levels: the waits that a broker has in a table, and the level that follows a failed attempt.

    level             1    2    3    4   ...  18
    wait             1s   5s  10s  30s   ...  2h    messageDelayLevel (MessageStoreConfig.java)
    retries so far             0    1   ...  15    3 + reconsumeTimes (AbstractSendMessageProcessor.java)

A broker may have another table. A level above it counts as its last one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Final

from rmq_store.errors import UsageError

MESSAGE_DELAY_LEVEL: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""RocketMQ's table."""

FIRST_RETRY_LEVEL: Final = 3
"""Level of the first retry if the broker chooses: retries do not use the two shortest levels."""

_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DELAY: Final = re.compile(r"([0-9]{1,9})([smhd])", re.ASCII)


def retry_level(reconsume_times: int) -> int:
    """Level of the next retry of a message that was retried `reconsume_times` times, if the broker chooses it."""
    return FIRST_RETRY_LEVEL + reconsume_times


def retry_delays_ms(delay_levels_ms: Sequence[int]) -> tuple[int, ...]:
    """The delays in ms of the first, second, ... retry; the last one repeats. `delay_levels_ms`: level 1 first."""
    return tuple(delay_levels_ms[FIRST_RETRY_LEVEL - 1 :] or delay_levels_ms[-1:])


@functools.lru_cache(maxsize=16)
def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Delay of each level in ms, level 1 first (DefaultMessageStore#parseDelayLevel). UsageError."""
    levels = []
    for item in text.split(" "):
        match = _DELAY.fullmatch(item)
        if match is None:
            raise UsageError(f"messageDelayLevel={text!r}: {item!r} is no delay such as 10s, 5m, 2h or 1d")
        if not int(match[1]):
            raise UsageError(f"messageDelayLevel={text!r}: {item!r} is no delay; the shortest one is 1s")
        levels.append(int(match[1]) * _UNIT_MS[match[2]])
    return tuple(levels)


def delay_levels_text(delays_ms: Sequence[int]) -> str:
    """The table as RocketMQ writes it: each delay in the largest unit that gives a whole number."""
    return " ".join(map(_delay_text, delays_ms))


def _delay_text(delay_ms: int) -> str:
    unit = max((unit for unit, unit_ms in _UNIT_MS.items() if delay_ms % unit_ms == 0), key=_UNIT_MS.__getitem__)
    return f"{delay_ms // _UNIT_MS[unit]}{unit}"


DELAY_LEVELS_MS: Final = parse_delay_levels(MESSAGE_DELAY_LEVEL)
