"""A lock that is made for one call, and closed after it.

An exception from a signal handler (Ctrl-C) can come at the first instruction of an `__exit__`, which is then skipped.
So a `finally` around the block closes the lock: one interrupt can skip the `__exit__` or the `finally`, not both.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

from rmq_store.files.locks.lock import OfdLock, is_running, reentered

T = TypeVar("T")

# The call that each thread is in. An entry that an interrupt left behind names a call that has ended.
_calls: dict[tuple[int, str, int], FrameType] = {}


def call_locked(lock: OfdLock, timeout_ms: int, work: Callable[[], T]) -> T:
    """Call `work` while `lock` is held exclusively. Nobody else may use `lock`: it is closed on return, however the
    call ends.

    Raises:
        StoreLockedError: not free in time.
        UsageError: a signal handler has interrupted such a call of its own thread with a lock on the same byte. It
            would
            wait for itself. Nothing was done.
    """
    key = threading.get_ident(), str(lock.path), lock.byte
    before = _calls.get(key)
    if before is not None and is_running(before):
        raise reentered(lock.path)
    try:
        _calls[key] = sys._getframe()
        with lock.exclusive(timeout_ms):
            return work()
    finally:
        _calls.pop(key, None)
        lock.close()
