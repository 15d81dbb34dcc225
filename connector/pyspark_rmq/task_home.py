"""The open home that the tasks of one worker process share, one after the other. Data plane.

Spark keeps a worker for many tasks. Opening a store costs little, but of one that was not stopped cleanly the end has
to be found, and every task looks at most pages of the log, because queues lie side by side there. So a home stays open
for a moment after a task, with all that it has mapped; the next task only looks at what was written since. Retention
does not wait for it, but what it deletes in that moment takes its space for so much longer.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark_rmq.home import Home, open_to_read
from pyspark_rmq.options import SourceOptions

KEPT_S = 5.0


class _OpenHome:
    """A home and the directories that it was found in: while they are open, no others can have their inodes."""

    def __init__(self, options: SourceOptions) -> None:
        self.home = open_to_read(options)
        places = [Path(options.path), Path(options.path, "commitlog")]
        self._directories = {place: os.open(place, os.O_RDONLY | os.O_DIRECTORY) for place in places if place.is_dir()}
        self.timer: threading.Timer | None = None

    def is_current(self) -> bool:
        """Look at what others have written. False if the path has another home now, or none that can be read."""
        from rmq_store import StoreError

        try:
            if not all(os.path.samestat(os.fstat(fd), place.stat()) for place, fd in self._directories.items()):
                return False
            self.home.refresh()
        except (OSError, StoreError):
            return False  # whoever opens it is told
        return True

    def close(self) -> None:
        self.home.close()
        while self._directories:
            os.close(self._directories.popitem()[1])


_lock = threading.Lock()
_kept: dict[tuple[str, str | None], _OpenHome] = {}


@contextmanager
def task_home(options: SourceOptions) -> Iterator[Home]:
    """The home, open for reading and up to date. Raises what `open_to_read` raises."""
    key = options.path, options.broker_name
    found = _take(key)
    if found is not None and not found.is_current():
        found.close()
        found = None
    opened = found or _OpenHome(options)
    try:
        yield opened.home
    except Exception:
        opened.close()
        raise
    except GeneratorExit:
        _keep(key, opened)
        raise
    _keep(key, opened)


def _take(key: tuple[str, str | None]) -> _OpenHome | None:
    with _lock:
        kept = _kept.pop(key, None)
    if kept is not None and kept.timer is not None:
        kept.timer.cancel()
    return kept


def _keep(key: tuple[str, str | None], opened: _OpenHome) -> None:
    """Close it in a moment, unless somebody takes it before."""
    opened.home.rest()
    opened.timer = threading.Timer(KEPT_S, _let_go, (key, opened))
    opened.timer.daemon = True
    with _lock:
        other = _kept.get(key)
        _kept[key] = opened
        opened.timer.start()
    if other is not None and other.timer is not None:  # of another task in this process, at the same time
        other.timer.cancel()
        other.close()


def _let_go(key: tuple[str, str | None], opened: _OpenHome) -> None:
    with _lock:
        if _kept.get(key) is not opened:
            return
        del _kept[key]
    opened.close()


def _forget_in_child() -> None:
    """A store does not live across fork, and its descriptors are the parent's."""
    global _lock
    _lock = threading.Lock()
    _kept.clear()


os.register_at_fork(after_in_child=_forget_in_child)
