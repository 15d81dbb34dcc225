"""A second thread for a part of one call, which has ended before the call does."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import TypeVar

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


class Beside:
    """A second thread for a `with` block. The block does not end before everything has that was begun, however often it
    is interrupted: what is still being written could not be taken back.
    """

    __slots__ = ("_thread",)

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None

    def __enter__(self) -> Beside:
        return self

    def begin(self, work: Callable[[], _Answer]) -> Future[_Answer]:
        """Do this in the second thread, behind what was begun before. RuntimeError: no thread is to be had."""
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


def two_by_two(
    items: Iterable[_Item], work: Callable[[_Item], _Answer]
) -> Iterator[tuple[_Item, Callable[[], _Answer]]]:
    """Yield each item with what answers `work(item)`, or raises what that raised. Of each two items a second thread
    works on the later one, if there are two processors. Nothing is worked on while the caller has an item.
    """
    rest = iter(items)
    for first in rest:
        second = next(rest, None) if len(os.sched_getaffinity(0)) > 1 else None
        if second is None:
            yield first, partial(work, first)
            continue
        own, other = Future[_Answer](), Future[_Answer]()
        thread = threading.Thread(target=_answer, args=(other, work, second))
        try:
            thread.start()
        except RuntimeError:  # none is to be had
            yield first, partial(work, first)
            yield second, partial(work, second)
            continue
        _answer(own, work, first)
        thread.join()
        yield first, own.result
        yield second, other.result


def _answer(future: Future[_Answer], work: Callable[[_Item], _Answer], item: _Item) -> None:
    try:
        future.set_result(work(item))
    except BaseException as error:
        future.set_exception(error)
