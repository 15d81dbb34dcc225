"""Leases by wall clock, which clocks that jump cannot keep alive.

A lease only saves work that two would do at one time. That an effect happens once rests on the key of the inbox, never
on a lease, because no two clocks agree, and a worker may sleep through its lease and wake up.
"""

from __future__ import annotations

import secrets
import time
from typing import Final

HORIZON_FACTOR: Final = 2
"""What ends later than in so many times its length was written by a clock that has jumped, and is void."""


def now_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


def is_live(until_ms: int, at_ms: int, length_ms: int) -> bool:
    """Whether something of at most `length_ms` that ends at `until_ms` still holds."""
    return at_ms < until_ms <= horizon_ms(at_ms, length_ms)


def horizon_ms(at_ms: int, length_ms: int) -> int:
    """The last end that a lease of at most `length_ms` can have: for conditions in SQL."""
    return at_ms + HORIZON_FACTOR * length_ms


def new_token() -> str:
    """Tells the holder of a lease, or the writer of rows, from everybody else."""
    return secrets.token_hex(16)
