"""Leases by the wall clock. A clock that jumps cannot keep a lease alive.

A lease only saves work that two workers would do at the same time. The key of the inbox makes an effect happen once,
never a lease: no two clocks agree, and a worker may sleep longer than its lease and wake up.
"""

from __future__ import annotations

import secrets
import time
from typing import Final

HORIZON_FACTOR: Final = 2
"""What ends later than in so many times its length was written by a clock that has jumped, and is void."""


def now_ms() -> int:
    """The wall clock, ms since 1970."""
    return time.time_ns() // 1_000_000


def is_live(until_ms: int, at_ms: int, length_ms: int) -> bool:
    """True if a lease of at most `length_ms` that ends at `until_ms` still holds."""
    return at_ms < until_ms <= horizon_ms(at_ms, length_ms)


def horizon_ms(at_ms: int, length_ms: int) -> int:
    """The last end that a lease of at most `length_ms` can have: for conditions in SQL."""
    return at_ms + HORIZON_FACTOR * length_ms


def new_token() -> str:
    """A random token that identifies the holder of a lease, or the writer of rows."""
    return secrets.token_hex(16)
