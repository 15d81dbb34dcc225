"""New message ids, in the form of a UNIQ_KEY: RocketMQ's tools read the born time from it.

    10 random bytes | ms since the local start of the month, uint32 | counter, uint16        32 upper-case hex digits

`mqadmin queryMsgById` and `rmq trace` look for a unique key only around that time (MessageClientIDSetter.java,
getNearlyTimeFromID). And ascending ids cost the index of a database less than random ones.
"""

from __future__ import annotations

import secrets
import threading
import time
from typing import Final

_RANDOM_BYTES: Final = 10
_COUNTER_BITS: Final = 16
_SEQUENCE_BYTES: Final = 6
_LOOK_EVERY_MS: Final = 60_000


class MessageIds:
    """Generates ids. No id is repeated, whatever the clock does: milliseconds and counter are one number that only
    grows, and each month has random bytes of its own. Safe for threads, not across fork.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._month_ms = -1
        self._prefix = ""
        self._next = 0
        self._look_ms = -1

    def new(self, now_ms: int) -> str:
        """The id of a message whose born time is `now_ms`."""
        with self._lock:
            if now_ms >= self._look_ms:
                self._begin_month(now_ms)
            sequence = max(self._next, max(0, now_ms - self._month_ms) << _COUNTER_BITS)
            self._next = sequence + 1
            return f"{self._prefix}{sequence & ((1 << 8 * _SEQUENCE_BYTES) - 1):012X}"

    def _begin_month(self, now_ms: int) -> None:
        """Begin a new month, if one has come."""
        self._look_ms = now_ms + _LOOK_EVERY_MS
        today = time.localtime(now_ms / 1_000)
        month_ms = int(time.mktime((today.tm_year, today.tm_mon, 1, 0, 0, 0, 0, 0, -1))) * 1_000
        if month_ms > self._month_ms:
            self._month_ms, self._next = month_ms, 0
            self._prefix = secrets.token_hex(_RANDOM_BYTES).upper()
