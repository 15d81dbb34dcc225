"""Which kills there are: (version, victim, point, number), and the query of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BEFORE: Final = "before the first send"
DROPPED: Final = "stored but answer dropped"
MIDDLE: Final = "mid-batch"
SENT: Final = "all sent, uncommitted"
COMMITTED: Final = "committed, not in Spark's log"

POINTS: Final = (BEFORE, DROPPED, MIDDLE, SENT, COMMITTED)
FOUND_POINTS: Final = (DROPPED, MIDDLE, SENT)
"""A kill there counts only if the repetition has found rows of the batch."""

VICTIMS: Final = ("driver", "broker")
QUERIES: Final = ("shuffle", "topics by column", "delayed rows", "foreachBatch", "failing tasks", "a queue is added")


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill."""

    version: str
    victim: str
    point: str
    number: int

    @property
    def query(self) -> str:
        """The query that runs: each point meets all of them."""
        shift = POINTS.index(self.point) + VICTIMS.index(self.victim)
        return QUERIES[(self.number + shift) % len(QUERIES)]

    @property
    def name(self) -> str:
        """As the name of a file."""
        point = "".join(letter if letter.isalnum() else "-" for letter in self.point)
        return f"{self.version}-{self.victim}-{point}-{self.number:02}"


def kills(version: str, victim: str, per_point: int) -> list[Kill]:
    """All kills of one version and victim."""
    return [Kill(version, victim, point, number) for number in range(per_point) for point in POINTS]
