"""Signals at every place where CPython runs a handler: the first instruction of a Python function, and behind a call.

`sys.setprofile` tells of both. What it raises goes on as an exception of a handler would; what it calls is called in
the middle of what was interrupted, as a handler is.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from types import CodeType, FrameType

# Of what else runs, neither locks nor state are ours.
_LOOKED_AT = ("/rmq_store/", "/contextlib.py", "/threading.py", "/queue.py", "/concurrent/futures/", "/weakref.py")
_EVENTS = ("call", "c_return")


class Signal:
    """Calls `handler` once, at the `k`th place (from 1) that comes by in a `with` block, on its thread."""

    def __init__(self, k: int, handler: Callable[[], object]) -> None:
        self._left = k
        self._handler = handler
        self._hook = self._look  # CPython does not keep it while it runs
        self.where = ""

    @property
    def came(self) -> bool:
        """Whether there were so many places."""
        return bool(self.where)

    def __enter__(self) -> Signal:
        sys.setprofile(self._hook)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, argument: object) -> None:
        if event not in _EVENTS or argument is sys.setprofile or not _is_looked_at(frame.f_code) or _is_final(frame):
            return
        code = frame.f_code
        self._left -= 1
        if self._left == 0:
            sys.setprofile(None)
            self.where = f"{event} {code.co_filename}:{frame.f_lineno} {code.co_name} {argument or ''}"
            self._handler()


@functools.cache
def _is_looked_at(code: CodeType) -> bool:
    return any(part in code.co_filename for part in _LOOKED_AT)


def _is_final(frame: FrameType) -> bool:
    """In a finalizer, or in what it calls: what is raised there goes nowhere, Python says so on stderr and goes on.

    A generator expression that `any` or `all` has not used up has one, too; nothing tells its end from its next step.
    """
    if frame.f_code.co_name == "<genexpr>":
        return True
    callers = frame, frame.f_back, frame.f_back and frame.f_back.f_back
    return any(caller is not None and caller.f_code.co_name == "__del__" for caller in callers)


def ctrl_c() -> None:
    """A handler: that of SIGINT."""
    raise KeyboardInterrupt


def interrupted(k: int, act: Callable[[], object]) -> Signal:
    """Do something that Ctrl-C ends at the `k`th place; nothing else may come out of it."""
    with contextlib.suppress(KeyboardInterrupt), Signal(k, ctrl_c) as signal:
        act()
    return signal
