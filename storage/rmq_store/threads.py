"""Threads: how many run at once, the same work for several items on all processors, and a claim for one at a time.

Several threads help, because numpy, Arrow and the C extension release the interpreter lock while they work.
"""

from __future__ import annotations

import _thread
import os
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Claim(dict[int, T]):
    """A claim that one owner holds at a time. Its truth value is True while it is held.

    Taking it and recording the holder is one step of a dict: neither another thread nor a signal handler comes between.
    A caller that was interrupted asks `holder` whether it has the claim.
    """

    __slots__ = ()

    def take(self, own: T) -> T:
        """Return the holder: `own` if the claim was free, or if `own` held it already."""
        return self.setdefault(0, own)

    def holder(self) -> T | None:
        """Return the holder; None if it is free."""
        return self.get(0)

    def give_up(self) -> None:
        """Free the claim, whoever holds it."""
        self.pop(0, None)


def processor_count() -> int:
    """Return how many processors this process may use (affinity mask): a container may have fewer than the machine."""
    return len(os.sched_getaffinity(0))


def map_in_threads(work: Callable[[T], R], things: Sequence[T]) -> list[R]:
    """Return `work` of each thing, in their order; a single thing is worked on in the calling thread.

    If calls raise, the error of the first thing is raised, after every call that was begun has ended. The same holds if
    a signal handler raises (Ctrl-C). No executor is used: it waits under locks which an interrupt leaves taken.
    """
    if len(things) < 2:
        return [work(thing) for thing in things]
    numbers = range(len(things))
    claims: list[Claim[object]] = [Claim() for _ in things]
    answers: dict[int, tuple[R | None, BaseException | None]] = {}
    finished: SimpleQueue[None] = SimpleQueue()

    def run() -> None:
        own = object()
        for number in numbers:
            if claims[number].take(own) is not own:
                continue
            try:
                answers[number] = work(things[number]), None
            except BaseException as error:
                answers[number] = None, error
                skip_unclaimed(own)
            finished.put(None)

    def skip_unclaimed(own: object) -> None:
        for number in numbers:
            if claims[number].take(own) is own:
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
                skip_unclaimed(finished)
            while len(answers) < len(things):
                finished.get()
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
