"""Homes that stay open for a moment after their use, for the next task or commit in the same process; and how homes are
closed of which nobody wants to hear any more. Control plane.

Spark keeps its Python workers, and gives them one task after the other. Opening a home to read costs little, but of a
store that was not stopped cleanly the end has to be found, and every task looks at most pages of the log, because
queues lie side by side there: so what is mapped is worth keeping. And a home that was written is closed with progress
record and checkpoint, several waits for the disk that a stream of small batches need not have for each of them.

Who gets a kept home sees what was written since. Retention does not wait for it, but what it deletes in that moment
takes its space for so much longer. A worker that has committed closes what it keeps before it ends with its session
(`worker.close_before_it_ends`). But Spark may also kill it at any moment: what is kept then stays as a killed process
leaves it, locks free and the store for the next opener to recover. So nothing may be kept that would be lost with the
process, and what was written is flushed at once: see `store_writer.commit_staged`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, Protocol, TypeVar


class Poolable(Protocol):
    """What can be kept."""

    def refresh(self) -> None:
        """Look at what others have written since."""

    def unpin(self) -> None:
        """Keep nothing from retention until something is read again."""

    def close(self) -> None:
        """Let go of it."""


K = TypeVar("K", bound=Poolable)


class DirectoryIdentity:
    """The directories of a home, and the file by which its openers know each other, as they are found: while they are
    open, no others can have their inodes.
    """

    def __init__(self, directory: Path) -> None:
        self._descriptors: list[int] = []
        self._identities: dict[str, tuple[int, int]] = {}
        try:
            for path in (directory, directory / "commitlog"):
                if path.is_dir():
                    self._open(path, os.O_RDONLY | os.O_DIRECTORY)
            state = directory / "pyrmq" / "state"
            if state.is_file():
                self._open(state, os.O_PATH)
        except OSError:
            self.close()
            raise

    def _open(self, path: Path, flags: int) -> None:
        fd = os.open(path, flags)
        self._descriptors.append(fd)
        self._identities[str(path)] = _identity(os.fstat(fd))

    def is_unchanged(self) -> bool:
        """Whether the same ones are still there."""
        try:
            return all(_identity(os.stat(path)) == own for path, own in self._identities.items())  # noqa: PTH116
        except OSError:
            return False

    def close(self) -> None:
        """Let go of them; may be called again."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


class _Open(Generic[K]):
    """A home and the directories that it was found in."""

    def __init__(self, directory: Path, store: K) -> None:
        self.store = store
        self.directory = directory
        self.timer: threading.Timer | None = None
        try:
            self.identity = DirectoryIdentity(directory)
        except OSError:
            self.store.close()
            raise

    def is_current(self) -> bool:
        """Look at what others have written. False if the place has another home now, or none that can be read."""
        from rmq_store import StoreError

        if not self.identity.is_unchanged():
            return False
        try:
            self.store.refresh()
        except (OSError, StoreError):
            return False  # whoever opens it is told
        return True

    def refuse_if_replaced(self) -> None:
        """StoreFailedError if the place has another home now: what was written is not in it."""
        if not self.identity.is_unchanged():
            from rmq_store import StoreFailedError

            raise StoreFailedError(
                f"{self.directory} was deleted or replaced while it was written: nothing of it is there"
            )

    def close(self) -> None:
        try:
            self.store.close()
        finally:
            self.identity.close()

    def close_quietly(self, name: str | None) -> None:
        """As `close`, where nobody waits for it any more. Who opens the home next recovers it, and is told what is
        wrong with it.
        """
        try:
            self.close()
        except Exception:
            _log.exception("%s could not be closed", name)


_log = logging.getLogger(__name__)

_Key = tuple[str | None, ...]

_lock = threading.RLock()
_pool: dict[_Key, _Open[Poolable]] = {}

# Threads that close, or will, and those of `run_in_thread`.
_at_work: set[threading.Thread] = set()


@contextlib.contextmanager
def pooled(
    key: _Key,
    directory: Path,
    opening: Callable[[], K],
    pool_s: Callable[[K], float | None],
    *,
    written: bool = False,
    close_wait_s: float = 0.0,
) -> Iterator[K]:
    """The home that was opened under this key before, up to date, or a new one. Afterwards it is kept for `pool_s`, and
    closed behind the block by a thread, for which the block waits `close_wait_s` if nothing is to be kept (0.0). If
    that is None, or the block fails, it is closed at the end of the block. Raises what `opening` raises.

    Raises:
        StoreFailedError: as `briefly`, if the home is `written` in the block.
    """
    found = _take(key)
    if found is not None and not found.is_current():
        found.close_quietly(key[1])
        found = None
    opened: _Open[K] = found or _Open(directory, opening())  # type: ignore[assignment]
    try:
        yield opened.store
        if written:
            opened.refuse_if_replaced()
    except GeneratorExit:
        _return_to_pool(key, opened, pool_s(opened.store), 0.0)
        raise
    except BaseException:
        opened.close_quietly(key[1])
        raise
    _return_to_pool(key, opened, pool_s(opened.store), close_wait_s)


@contextlib.contextmanager
def briefly(directory: Path, opening: Callable[[], K]) -> Iterator[K]:
    """A home for the block alone; raises what `opening` raises. What was done in the block is done, or has failed, by
    the end of it: that the home cannot be closed then is logged.

    Raises:
        StoreFailedError: the directory was deleted or replaced meanwhile: what was written is not in it.
    """
    opened = _Open(directory, opening())
    try:
        yield opened.store
        opened.refuse_if_replaced()
    finally:
        opened.close_quietly(str(directory))


def close_pooled() -> None:
    """Close what is kept now, of whatever key."""
    for key in list(_pool):
        opened = _take(key)
        if opened is not None:
            opened.close_quietly(key[1])


def close_all() -> None:
    """Close what is kept, and wait until whatever is closed or done beside is done: the process ends behind this."""
    close_pooled()
    for thread in list(_at_work):
        thread.join()


def run_in_thread(work: Callable[[], None]) -> None:
    """Do it in a thread: it waits for a busy disk. What was committed must not fail because none can be started."""
    try:
        _start(threading.Thread(target=work, name="rmq-sweep", daemon=True))
    except RuntimeError:
        work()


def _start(thread: threading.Thread) -> None:
    thread.start()
    for ended in [thread for thread in _at_work if not thread.is_alive()]:
        _at_work.discard(ended)
    _at_work.add(thread)


def _take(key: _Key) -> _Open[Poolable] | None:
    with _lock:
        opened = _pool.pop(key, None)
    if opened is not None and opened.timer is not None:
        opened.timer.cancel()
    return opened


def _return_to_pool(key: _Key, opened: _Open[K], pool_s: float | None, close_wait_s: float) -> None:
    """Close it in a moment, unless somebody takes it before. What was done with it is done: nothing is raised."""
    if pool_s is None:
        opened.close_quietly(key[1])
        return
    try:
        opened.store.unpin()
        opened.timer = threading.Timer(pool_s, _let_go, (key, opened))
        opened.timer.daemon = True
        with _lock:
            _start(opened.timer)
            other = _pool.get(key)
            _pool[key] = opened  # type: ignore[assignment]
    except Exception:
        _log.exception("%s cannot be kept open", key[1])
        opened.close_quietly(key[1])
        return
    if other is not None and other.timer is not None:  # of another task in this process, at the same time
        other.timer.cancel()
        other.close_quietly(key[1])
    if pool_s == 0.0:
        opened.timer.join(close_wait_s)


def _let_go(key: _Key, opened: _Open[K]) -> None:
    with _lock:
        if _pool.get(key) is not opened:
            return
        del _pool[key]
    opened.close_quietly(key[1])


def _forget_in_child() -> None:
    """A store does not live across fork, and its descriptors are the parent's."""
    global _lock
    _lock = threading.RLock()
    _at_work.clear()
    while _pool:
        _pool.popitem()[1].identity.close()


os.register_at_fork(after_in_child=_forget_in_child)
