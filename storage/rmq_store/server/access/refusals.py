"""Refused access: its error, and its lines in the log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from rmq_store import real_time
from rmq_store.protocol.errors import MQBrokerError, ResponseCode

_log: Final = logging.getLogger(__name__)

INTERVAL_S: Final = 60.0
"""At most so often the log has one refusal: a client without a right repeats its request without end."""
LINES_MAX: Final = 200
"""At most so many refusals are logged in an interval: the texts are the clients', and may all differ."""

_USER_CHARACTERS_MAX: Final = 64
_REASON_CHARACTERS_MAX: Final = 300


class NoAccessError(MQBrokerError):
    """Code 16: `user`, the access key that the request names, "" if it names none, may not make it."""

    def __init__(self, user: str, remark: str) -> None:
        super().__init__(ResponseCode.NO_PERMISSION, remark)
        self.user = user


class RefusalLog:
    """Writes a warning for a refusal, unless one with the same address (without port), user and reason was written in
    the last `INTERVAL_S`. `clock`: monotonic seconds. Safe for threads.
    """

    def __init__(self, clock: Callable[[], float] = real_time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # When each line was written, the oldest first.
        self._written_s: dict[tuple[str, str, str], float] = {}

    def tell(self, address: str, user: str, request: str, reason: str) -> None:
        """`address`: the client's `ip:port`. `user` is an access key, never a secret; "" for a request without one."""
        user, reason = _one_line(user, _USER_CHARACTERS_MAX), _one_line(reason, _REASON_CHARACTERS_MAX)
        key, now_s = (address.rpartition(":")[0], user, reason), self._clock()
        with self._lock:
            while self._written_s and next(iter(self._written_s.values())) <= now_s - INTERVAL_S:
                del self._written_s[next(iter(self._written_s))]
            if key in self._written_s or len(self._written_s) > LINES_MAX:
                return
            self._written_s[key] = now_s
            is_one_too_many = len(self._written_s) > LINES_MAX
        if is_one_too_many:
            _log.warning("more than %d refusals in %.0f s: the others are not logged", LINES_MAX, INTERVAL_S)
            return
        who = f"user {user}" if user else "no user"
        _log.warning("%s: %s of %s is refused: %s", address, request, who, reason)


def _one_line(text: str, characters_max: int) -> str:
    """The beginning of a client's text, with escapes for all that is no plain ASCII."""
    short = text if len(text) <= characters_max else f"{text[:characters_max]}..."
    return short.encode("unicode_escape").decode()
