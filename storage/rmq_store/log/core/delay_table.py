"""The delay of each delay level of a store."""

from __future__ import annotations

from rmq_store.lazy.dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DelayTable:
    """`delays_ms[k]` is the delay of level k + 1. `inferred`: the levels whose delay was derived from stored messages;
    None: the store's settings give all delays.
    """

    delays_ms: tuple[int, ...]
    inferred: frozenset[int] | None = None

    def is_assumed(self, level: int) -> bool:
        """True if neither settings nor messages give the delay of this level."""
        return self.inferred is not None and level not in self.inferred
