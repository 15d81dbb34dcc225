"""The machine's time, also in a test that freezes time with freezegun or time-machine.

Both replace what the functions of the module `time` return, and freezegun the classes of `datetime`. The times that are
stored in messages follow them: a test freezes time for that. The names of this module do not follow them:

    monotonic, monotonic_ns   for waits, which would never end
    file_time_ns              since 1970; beside times of files and of the kernel, which no test freezes
    new_event_loop            the timers of asyncio
    load_under_real_time      libraries in C that crash if they meet other classes when they are loaded
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import importlib.util
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

# The clock of `time.monotonic` on Linux. freezegun finds the functions that it replaces by identity, in every module;
# it does not know these.
monotonic: Final = partial(time.clock_gettime, time.CLOCK_MONOTONIC)
monotonic_ns: Final = partial(time.clock_gettime_ns, time.CLOCK_MONOTONIC)

# CLOCK_REALTIME_COARSE of Linux, from which file systems take the times of files: at most one tick of the kernel
# (10 ms) old, so a file may have a time a little later. time-machine replaces CLOCK_REALTIME.
file_time_ns: Final = partial(time.clock_gettime_ns, 5)

# pyarrow loads pandas, if it is there, for its first array that is made from a list.
_MADE_OF_C: Final = ("pyarrow.compute", "pandas")
# To load them from two threads at once, each with other classes in `datetime`, would bring the danger back.
_loading = threading.RLock()
_is_loaded = False


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop of asyncio whose timers follow `monotonic`."""
    import asyncio

    loop = asyncio.new_event_loop()
    loop.time = monotonic  # type: ignore[method-assign]
    return loop


def load_if_time_is_frozen() -> None:
    """Load the same libraries if the present time is frozen. Called where this package is imported: pyarrow is next."""
    if "freezegun" in sys.modules and datetime.datetime is not _class_of_the_library(datetime.datetime):
        load_under_real_time()


def load_under_real_time() -> None:
    """Load, if freezegun is there, the libraries that check the classes of `datetime` when they are loaded.

    Called where a store, a cluster or a database is opened: later, the test may have frozen time. Without freezegun
    they are loaded when they are first used, which saves most programs half a second.
    """
    global _is_loaded
    if _is_loaded or "freezegun" not in sys.modules:
        return
    with _loading, real_datetime():
        for name in _MADE_OF_C:
            if importlib.util.find_spec(name.partition(".")[0]) is not None:
                importlib.import_module(name)
        _is_loaded = True


@contextlib.contextmanager
def real_datetime() -> Iterator[None]:
    """Inside the block, the module `datetime` has the classes of the standard library again, for every thread."""
    with _loading:
        seen = datetime.date, datetime.datetime
        # freezegun's classes derive from the real ones.
        datetime.date, datetime.datetime = map(_class_of_the_library, seen)  # type: ignore[misc, assignment]
        try:
            yield
        finally:
            datetime.date, datetime.datetime = seen  # type: ignore[misc]


def _class_of_the_library(seen: type) -> type:
    return next(each for each in seen.__mro__ if each.__module__ == "datetime")
