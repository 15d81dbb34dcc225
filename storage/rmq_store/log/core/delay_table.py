"""The delay of each level, as a store works with it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DelayTable:
    """`delays_ms[k]` is the delay of level k + 1. `inferred`: the levels whose messages tell it; None: the settings of
    the store tell them all.
    """

    delays_ms: tuple[int, ...]
    inferred: frozenset[int] | None = None

    def is_assumed(self, level: int) -> bool:
        """Whether nothing tells the delay of a level."""
        return self.inferred is not None and level not in self.inferred
