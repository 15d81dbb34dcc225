"""The same work for several things at once, on all processors: numpy, Arrow and the C extension let go of the GIL."""

from __future__ import annotations

import _thread
import os
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def processor_count() -> int:
    """How many things this process can work on at the same time: a container may have fewer processors than the
    machine.
    """
    return len(os.sched_getaffinity(0))


def map_in_threads(work: Callable[[T], R], things: Sequence[T]) -> list[R]:
    """`work` of each thing, in their order; of a single one right here. Raises what the first of them raises, when all
    that was begun has ended: so it is, too, if a signal handler raises (Ctrl-C). No executor: that waits under locks
    which an interrupt leaves taken.
    """
    if len(things) < 2:
        return [work(thing) for thing in things]
    numbers = range(len(things))
    claims: dict[int, object] = {}  # whose each thing is, by `setdefault`: asked and taken in one step
    answers: dict[int, tuple[R | None, BaseException | None]] = {}
    told: SimpleQueue[None] = SimpleQueue()

    def run() -> None:
        own = object()
        for number in numbers:
            if claims.setdefault(number, own) is not own:
                continue
            try:
                answers[number] = work(things[number]), None
            except BaseException as error:
                answers[number] = None, error
                leave_the_rest(own)
            told.put(None)

    def leave_the_rest(own: object) -> None:
        for number in numbers:
            if claims.setdefault(number, own) is own:
                answers.setdefault(number, (None, None))

    interrupt: BaseException | None = None
    try:
        for _ in range(min(len(things), processor_count())):
            _thread.start_new_thread(run, ())
    except BaseException as error:
        interrupt = error
    while True:
        try:
            if interrupt is not None:
                leave_the_rest(told)
            while len(answers) < len(things):
                told.get()
            break
        except BaseException as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt
    for number in numbers:
        failure = answers[number][1]
        if failure is not None:
            raise failure
    return [answers[number][0] for number in numbers]  # type: ignore[misc]
