"""What a part of the proof is: it runs so many cycles of one kind of failure, and counts what went wrong.

A part must fail when the protection that it is about is taken out: see `protections`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


@dataclass(slots=True)
class Counters:
    """What happened in some cycles. The first four violations are about acknowledged messages.

    `lost`: acknowledged and not there. `duplicated`: there more often than acknowledged. `reordered`: there in another
    order. `altered`: there with other bytes. `broken`: anything else that must not be (a store that cannot be opened, a
    gap in a queue, a view unlike the log, an error of no type of ours, memory beyond its bound). `seen`: figures
    that are no violations, by name. `first`: the first violation, with the seed that shows it again.
    """

    cycles: int = 0
    acknowledged: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    altered: int = 0
    broken: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    first: str = ""

    @property
    def violations(self) -> int:
        return self.lost + self.duplicated + self.reordered + self.altered + self.broken

    def note(self, violation: str) -> None:
        """Remember what the first violation was."""
        self.first = self.first or violation

    def add(self, other: Counters) -> None:
        """Count other cycles in."""
        for name in ("cycles", "acknowledged", "lost", "duplicated", "reordered", "altered", "broken"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.seen.update(other.seen)
        self.first = self.first or other.first


class Trial(NamedTuple):
    """What a part is asked to do.

    `cycles` of them, all randomness from `seed`, in the empty directory `directory` (memory-backed unless the part says
    that it needs a disk); `tick(n)` after every n finished cycles. The part sums up and returns; it raises only if it
    could not be run.
    """

    cycles: int
    seed: int
    directory: Path
    tick: Callable[[int], None] = lambda cycles: None


# Parts are made to notice with every seed; but where processes are killed at random the machine has its part in it.
TEETH_SEEDS = 3


class Part(NamedTuple):
    """One line of the test list: `number` there, cycles in each of the three scales, cycles between two savings of the
    state (what an interrupted soak repeats at most).

    `protections`: names of `protections.PROTECTIONS`; without any one of them the part must count violations within
    `bites_within` cycles of one of TEETH_SEEDS seeds. `cannot_run`: why not on this machine ("" = it can). `on_disk`:
    needs a real file system. `alone`: no other part runs beside it. `by_cycle`: a run begins with the cycles of a
    shorter one with the same seed, which finds the same in them.
    """

    name: str
    number: str
    title: str
    unit: str
    harness: int
    crash: int
    soak: int
    chunk: int
    run: Callable[[Trial], Counters]
    protections: tuple[str, ...] = ()
    bites_within: int = 50
    cannot_run: Callable[[], str] = lambda: ""
    on_disk: bool = False
    alone: bool = False
    by_cycle: bool = False
