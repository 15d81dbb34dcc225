"""A pool of open stores. A store stays open for a few seconds after a task or commit, because the next one in this
process usually needs it. Errors on close are logged, not raised. Control plane.

Spark reuses its Python workers. Opening a store for reading costs little, except after an unclean stop, when the end
has to be found. But every task reads most pages of the log, because the queues are interleaved there, so the mappings
are worth keeping. Closing a store that was written costs several fsyncs (progress record, checkpoint). A stream of
small batches need not pay them for each batch.

A pooled store is refreshed before each use. Retention does not wait for it, but the disk space of a deleted file is
free only when the store is closed. A worker that has committed closes its pooled stores before it ends with its session
(`spark_worker.close_before_it_ends`). Spark may also kill a worker at any moment. Its stores are then in the state that
any killed process leaves: locks are free, and the next opener recovers. So a pooled store holds nothing that would be
lost with the process. Commits flush at once: see `store_writer.append_staged`.
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
    """The methods of an open store that the pool calls."""

    def refresh(self) -> None:
        """See the appends of other processes since the last call."""

    def unpin(self) -> None:
        """Release all pins, so that retention may delete files, until the next read."""

    def close(self) -> None:
        """Close the store."""


K = TypeVar("K", bound=Poolable)


class DirectoryIdentity:
    """Identity of a store's directory: device and inode of the directory, of `commitlog` and of the shared state file.

    Their descriptors stay open, so no other file can get the same inode.
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
        """True if the paths still lead to the same directories and file."""
        try:
            return all(_identity(os.stat(path)) == own for path, own in self._identities.items())  # noqa: PTH116
        except OSError:
            return False

    def close(self) -> None:
        """Close the descriptors; may be called again."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


class _Open(Generic[K]):
    """An open store, and the identity of its directories."""

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
        """Refresh the store. False if another store is at its path now, or none that can be read."""
        from rmq_store import StoreError

        if not self.identity.is_unchanged():
            return False
        try:
            self.store.refresh()
        except (OSError, StoreError):
            return False  # whoever opens it is told
        return True

    def refuse_if_replaced(self) -> None:
        """Raise StoreFailedError if another store is at the path now: the writes are not in it."""
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
        """Close, and log errors: no caller waits for them. The next opener recovers the store.

        If the store was deleted, the log has one line: tests delete their directories while a worker has the store
        open.
        """
        try:
            self.close()
        except Exception as error:
            from rmq_store.errors import StoreReplacedError

            if self.identity.is_unchanged() and not isinstance(error, StoreReplacedError):
                _log.exception("%s could not be closed", name)
            else:
                _log.warning("%s could not be closed, it was deleted or replaced before: %s", name, error)


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
    """Yield the pooled store of this key, refreshed, or a new one. Raises what `opening` raises.

    After the block the store stays open for `pool_s` seconds; then a thread closes it. With 0.0 the block waits up to
    `close_wait_s` seconds for that thread. With None, or if the block fails, the store is closed at the end of the
    block.

    Raises:
        StoreFailedError: as `briefly`, if the block has `written` to the store.
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
    """Yield a store for this block alone; raises what `opening` raises. The block itself completes its work, or fails:
    an error on close is only logged.

    Raises:
        StoreFailedError: the directory was deleted or replaced during the block: the writes are not in it.
    """
    opened = _Open(directory, opening())
    try:
        yield opened.store
        opened.refuse_if_replaced()
    finally:
        opened.close_quietly(str(directory))


def close_pooled() -> None:
    """Close all stores that are in the pool now."""
    for key in list(_pool):
        opened = _take(key)
        if opened is not None:
            opened.close_quietly(key[1])


def close_all() -> None:
    """Close all pooled stores, and wait for the threads that close or sweep. Called right before the process ends."""
    close_pooled()
    for thread in list(_at_work):
        thread.join()


def run_in_thread(work: Callable[[], None]) -> None:
    """Run `work`, which waits for a busy disk, in a thread. If no thread can be started, run it here: the commit has
    succeeded and must not fail now.
    """
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
    """Close the store after `pool_s`, unless a task takes it first. Errors are logged: the task has ended."""
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
    """Empty the pool after a fork: its stores and their descriptors belong to the parent."""
    global _lock
    _lock = threading.RLock()
    _at_work.clear()
    while _pool:
        _pool.popitem()[1].identity.close()


os.register_at_fork(after_in_child=_forget_in_child)
