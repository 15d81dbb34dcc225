"""Ctrl-C and SIGTERM for commands that run until they are stopped."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

from rmq_store.cli.shared.output import remarks_with_time

_INPUT_BYTES: Final = 4096


class StopSignal:
    """A request to stop, sent by a signal handler as a byte through a pipe. It is no threading.Event: the handler
    interrupts the main thread anywhere, also inside the event's own `wait`, and would deadlock on the lock that `wait`
    holds.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._inputs: list[int] = []

    def ask(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        with contextlib.suppress(BlockingIOError):  # full: it was asked often enough
            os.write(self._writer, b"!")

    def ends_with(self, fd: int) -> None:
        """Let the end of this input request a stop, too. Bytes before it are read and dropped."""
        self._inputs.append(fd)

    def wait(self, seconds: float) -> bool:
        """True at once if a stop was requested; else False after `seconds`, or earlier if an input had something."""
        ready = select.select([self._reader, *self._inputs], [], [], seconds)[0]
        if self._reader in ready:
            return True
        for fd in ready:
            if not os.read(fd, _INPUT_BYTES):
                self.ask(0, None)
                return True
        return False

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._reader)
        os.close(self._writer)


class StopEvent(threading.Event):
    """A `StopSignal` for code that polls an event, and does not wait on it."""

    def __init__(self, stop: StopSignal) -> None:
        super().__init__()
        self._stop = stop

    def is_set(self) -> bool:
        """True if a stop was requested."""
        return self._stop.wait(0)


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[StopSignal]:
    """Inside the block SIGTERM and Ctrl-C do not end the process: they request a stop of the yielded `StopSignal`.
    Lines of the log have their time: somebody reads them later.
    """
    with contextlib.closing(StopSignal()) as stop, remarks_with_time():
        before = {number: signal.signal(number, stop.ask) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield stop
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
