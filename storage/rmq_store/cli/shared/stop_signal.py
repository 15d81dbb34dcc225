"""Ctrl-C and SIGTERM for commands that run until somebody stops them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class StopSignal:
    """The wish of a signal, sent as a byte through a pipe. Not a threading.Event: the handler runs in the middle of
    whatever
    the main thread does, `wait` too, and would wait for ever for the lock that the event's own `wait` holds.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)

    def ask(self, number: int, frame: FrameType | None) -> None:
        """The handler of a signal."""
        with contextlib.suppress(BlockingIOError):  # full: it was asked often enough
            os.write(self._writer, b"!")

    def wait(self, seconds: float) -> bool:
        """Whether somebody has asked; at once if so, else after `seconds`."""
        return bool(select.select([self._reader], [], [], seconds)[0])

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._reader)
        os.close(self._writer)


class StopEvent(threading.Event):
    """The same for code that asks an event, and does not wait on it."""

    def __init__(self, stop: StopSignal) -> None:
        super().__init__()
        self._stop = stop

    def is_set(self) -> bool:
        """Whether somebody has asked to stop."""
        return self._stop.wait(0)


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[StopSignal]:
    """While it is open, SIGTERM and Ctrl-C end nothing: they are what its value waits for."""
    with contextlib.closing(StopSignal()) as stop:
        before = {number: signal.signal(number, stop.ask) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield stop
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
