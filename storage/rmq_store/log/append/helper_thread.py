"""A second thread for a part of one call, which has ended before the call does."""

from __future__ import annotations

import _thread
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import TypeVar

from rmq_store.files.locks.background import Answer, Background
from rmq_store.threads import processor_count

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


class HelperThread:
    """A second thread for a `with` block. The block does not end before everything has that was begun, however often it
    is interrupted: what is still being written could not be taken back.
    """

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Callable[[], None] | None] | None = None

    def __enter__(self) -> HelperThread:
        return self

    def begin(self, work: Callable[[], _Answer]) -> Answer[_Answer]:
        """Do this in the second thread, behind what was begun before. RuntimeError: no thread is to be had."""
        if self._tasks is None:
            tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
            Background(partial(_run, tasks), "rmq-beside").start()
            self._tasks = tasks  # behind it: a thread that nobody knows of gets nothing to do
        answer: Answer[_Answer] = Answer()
        self._tasks.put(partial(answer.work_out, work))
        return answer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tasks is None:
            return
        interrupt: BaseException | None = None
        last: Answer[None] = Answer()
        is_asked = False
        while True:
            try:
                if not is_asked:
                    # One thing is done after the other, so this one behind all. Asked twice it is answered twice.
                    self._tasks.put(partial(last.work_out, _nothing))
                    is_asked = True
                last.wait()
                break
            except BaseException as again:
                interrupt = again
        self._tasks.put(None)
        if interrupt is not None:
            raise interrupt


def _run(tasks: SimpleQueue[Callable[[], None] | None]) -> None:
    while (task := tasks.get()) is not None:
        task()


def _nothing() -> None:
    pass


def map_in_pairs(
    items: Iterable[_Item], work: Callable[[_Item], _Answer]
) -> Iterator[tuple[_Item, Callable[[], _Answer]]]:
    """Yield each item with what answers `work(item)`, or raises what that raised. Of each two items a second thread
    works on the later one, if there are two processors. Nothing is worked on while the caller has an item.
    """
    rest = iter(items)
    for first in rest:
        second = next(rest, None) if processor_count() > 1 else None
        if second is None:
            yield first, partial(work, first)
            continue
        own: Answer[_Answer] = Answer()
        other: Answer[_Answer] = Answer()
        try:
            _thread.start_new_thread(other.work_out, (partial(work, second),))
        except RuntimeError:  # none is to be had
            yield first, partial(work, first)
            yield second, partial(work, second)
            continue
        own.work_out(partial(work, first))
        other.wait()
        yield first, own.result
        yield second, other.result
