"""Signals at every place where CPython runs a handler: the first instruction of a Python function, and behind a call.

`sys.setprofile` tells of both. What it raises goes on as an exception of a handler would; what it calls is called in
the middle of what was interrupted, as a handler is.

A sweep does its work once for each place, so the hook runs millions of times: it asks little of the
places before the last.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from types import CodeType, FrameType

# Of what else runs, neither locks nor state are ours.
_LOOKED_AT = ("/rmq_store/", "/contextlib.py", "/threading.py", "/queue.py", "/concurrent/futures/", "/weakref.py")

# By id: a code object computes its hash anew each time. The code is kept, so that no other one gets its id.
_known: dict[int, tuple[CodeType, bool]] = {}


class Signal:
    """Calls `handler` once, at the `k`th place (from 1) that comes by in a `with` block, on its thread; if that is in a
    finalizer, at the first one behind it.
    """

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
        if event != "call" and event != "c_return":
            return
        code = frame.f_code
        known = _known.get(id(code))
        if known is None:
            known = _known[id(code)] = code, _is_looked_at(code)
        if not known[1] or argument is sys.setprofile:
            return
        self._left -= 1
        if self._left > 0 or _is_in_finalizer(frame):
            return
        sys.setprofile(None)
        self.where = f"{event} {code.co_filename}:{frame.f_lineno} {code.co_name} {argument or ''}"
        self._handler()


def _is_looked_at(code: CodeType) -> bool:
    """A generator expression that `any` or `all` has not used up has a finalizer; nothing tells its end from its next
    step.
    """
    return code.co_name != "<genexpr>" and any(part in code.co_filename for part in _LOOKED_AT)


def _is_in_finalizer(frame: FrameType) -> bool:
    """Or in what it calls: what is raised there goes nowhere, Python says so on stderr and goes on."""
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
