"""Leases by wall clock, which clocks that jump cannot keep alive.

A lease only saves work that two would do at one time. That an effect happens once rests on the key of the inbox, never
on a lease, because no two clocks agree, and a worker may sleep through its lease and wake up.
"""

from __future__ import annotations

import secrets
import time
from typing import Final

HORIZON_MS: Final = 24 * 3_600_000
"""No lease and no wait of the kit is longer. What ends later was written by a clock that has jumped, and is void."""


def now_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


def is_live(until_ms: int, at_ms: int) -> bool:
    """Whether something that ends at `until_ms` still holds."""
    return at_ms < until_ms <= at_ms + HORIZON_MS


def new_token() -> str:
    """Tells the holder of a lease, or the writer of rows, from everybody else."""
    return secrets.token_hex(16)
