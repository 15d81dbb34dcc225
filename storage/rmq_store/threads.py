"""The same work for several things at once, on all processors: numpy, Arrow and the C extension let go of the GIL."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def processor_count() -> int:
    """How many things can be worked on at the same time."""
    return os.cpu_count() or 1


def map_in_threads(work: Callable[[T], R], things: Sequence[T]) -> list[R]:
    """`work` of each thing, in their order; of a single one right here. Raises what the first of them raises, when all
    that was begun has ended.
    """
    if len(things) < 2:
        return [work(thing) for thing in things]
    with ThreadPoolExecutor(min(len(things), processor_count())) as helpers:
        return list(helpers.map(work, things))
