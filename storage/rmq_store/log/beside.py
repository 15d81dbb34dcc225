"""A second thread that works on an append, and has ended before anything of it is taken back."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType


class Beside:
    """A second thread for a `with` block. The block does not end before everything has that was begun, however often it
    is interrupted: what is still being written could not be taken back.
    """

    __slots__ = ("_thread",)

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None

    def __enter__(self) -> Beside:
        return self

    def begin(self, work: Callable[[], None]) -> Future[None]:
        """Do this in the second thread, behind what was begun before."""
        if self._thread is None:
            thread = ThreadPoolExecutor(1)
            # Once it has done something it is known: were its start interrupted, a second one would be started.
            thread.submit(_nothing).result()
            self._thread = thread
        return self._thread.submit(work)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is None:
            return
        interrupt: BaseException | None = None
        is_through = False
        while not is_through:
            try:
                # One thing is done after the other, so this one behind all. Not `join`: once interrupted, it takes the
                # thread for ended (CPython 3.11, 3.12).
                self._thread.submit(_nothing).result()
                is_through = True
            except RuntimeError as refused:  # nothing new is begun while the interpreter ends
                interrupt = refused
                self._thread.shutdown()
                is_through = True
            except BaseException as again:
                interrupt = again
        self._thread.shutdown(wait=False)
        if interrupt is not None:
            raise interrupt


def _nothing() -> None:
    pass
