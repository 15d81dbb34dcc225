"""Processes that die: a child of a warm parent, so that a cycle costs no import, killed at a moment of our choice."""

from __future__ import annotations

import gc
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from crash.oracle import FAILED, Told, tell

# A guard against hanging only.
PATIENCE_S = 60.0
# When a file was read and written that nobody has touched since the machine was started: for os.utime.
BEFORE_BOOT = (1, 1)


class Child:
    """A forked process that runs `work(pipe)` and ends; what it tells is in `told`."""

    def __init__(self, work: Callable[[int], None], notes: Path) -> None:
        self.told = Told()
        self._notes = notes
        self.pid = os.fork()
        if self.pid == 0:
            gc.freeze()  # a collection would copy every page of the parent
            code = 1
            try:
                work(self.told.pipe)
                code = 0
            except BaseException as error:
                notes.write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
                tell(self.told.pipe, FAILED)
            finally:
                os._exit(code)
        self.told.for_parent()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> int:
        """Kill it if it still lives, and wait; returns how it ended: -9, or 0 if it was done before."""
        os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def wait(self) -> int:
        self.told.drain()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    @property
    def error(self) -> str:
        """Why it failed; "" if it did not."""
        if not self.told.words[FAILED]:
            return ""
        return self._notes.read_text(encoding="utf-8")


def pause(chance: random.Random, longest_s: float) -> None:
    """Wait a random time."""
    time.sleep(chance.uniform(0, longest_s))


def quiet() -> None:
    """Warnings of recoveries are what is wanted here; thousands of them are not."""
    import logging

    logging.getLogger("rmq_store").setLevel(logging.ERROR)
