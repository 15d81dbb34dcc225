"""The end of the process that plans a stream's batches: it closes its store before Spark's signal kills it. Control
plane.

`query.stop()` sends SIGTERM to that process and does not wait for it (PythonStreamingSourceRunner.stop). Without a
handler the signal would kill a process that commits a group's offsets, and the store would need recovery. If the driver
dies instead, PySpark's loop reads the end of its socket, and calls the reader's `stop`.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final

from rmq_store.real_time import monotonic

_log = logging.getLogger(__name__)

_PROCESS: Final = "pyspark.sql.streaming.python_streaming_source_runner"

# How long a call of Spark's may go on behind the signal. A lock that never comes must not keep the process for ever.
_CALL_ENDS_WITHIN_S = 5.0
_CHECK_INTERVAL_S = 0.02


def stop_when_terminated(stop: Callable[[], None]) -> None:
    """Install a handler of SIGTERM that calls `stop` and ends this process. Does nothing in other processes than those
    that Spark starts to plan a stream, or if the signal has another handler already.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is None or spec.name != _PROCESS or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _Ending(stop))


class _Ending:
    """The handler of the signal. It never stops the reader in the middle of a call: that may hold locks."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._terminated_s: float | None = None
        self._stopping = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Stop the reader if the signal came between two calls; otherwise check again in a moment."""
        if self._stopping:
            return
        now_s = monotonic()
        if self._terminated_s is None:
            self._terminated_s = now_s
            signal.signal(signal.SIGALRM, self)
        if _is_in_a_call(frame):
            if now_s - self._terminated_s < _CALL_ENDS_WITHIN_S:
                signal.setitimer(signal.ITIMER_REAL, _CHECK_INTERVAL_S)
                return
        else:
            self._stopping = True
            try:
                self._stop()
            except Exception:  # the process ends: who opens the store next recovers it, and is told what is wrong
                _log.exception("a store could not be closed")
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


def _is_in_a_call(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] in ("pyspark_rmq", "rmq_store"):
            return True
        frame = frame.f_back
    return False
