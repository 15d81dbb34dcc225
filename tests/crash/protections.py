"""Protections of the engine that can be taken out, so that a part can show that it would notice.

Each is a context manager that patches the engine in this process; children that are forked inside it lack the
protection as well. Programs that are started take the name from the environment variable WITHOUT.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

WITHOUT = "RMQ_HARNESS_WITHOUT"


class Protection(NamedTuple):
    """`what` is one sentence: what the engine does, and then does not."""

    name: str
    what: str
    remove: Callable[[], AbstractContextManager[None]]


PROTECTIONS: dict[str, Protection] = {}


def protection(name: str, what: str) -> Callable[[Callable[[], Iterator[None]]], Callable[[], Iterator[None]]]:
    """Enter a generator that takes a protection out, yields, and puts it back."""

    def enter(remove: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
        assert name not in PROTECTIONS
        PROTECTIONS[name] = Protection(name, what, contextlib.contextmanager(remove))
        return remove

    return enter


@contextlib.contextmanager
def without(name: str) -> Iterator[None]:
    """Run a block in an engine without one protection; programs started in it are told by their environment."""
    os.environ[WITHOUT] = name
    try:
        with PROTECTIONS[name].remove():
            yield
    finally:
        del os.environ[WITHOUT]


# A generator that is forgotten puts back what it took out.
_FOR_GOOD = contextlib.ExitStack()


def remove_as_told() -> None:
    """In a started program: take out, for good, what its environment names."""
    if name := os.environ.get(WITHOUT):
        _FOR_GOOD.enter_context(PROTECTIONS[name].remove())
