"""One thing that is wrong with a store, and what `rmq repair` does about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

Area = Literal["config", "own files", "log", "queues", "names"]
"""What is damaged; "names": nothing is, but something lies there that does not belong to the store."""


class Finding(NamedTuple):
    """A fault of a store: `path` relative to the store, and the action of `repair`."""

    area: Area
    path: str
    problem: str
    action: str
    apply: Callable[[], None]
