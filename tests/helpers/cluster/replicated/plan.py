"""Which kills there are of a SYNC_MASTER and its slave, and how often each comes."""

from __future__ import annotations

import random
from typing import Final

from rmq_store.lazy.dataclasses import dataclass

JAVA_MASTER: Final = "java-ours"
OUR_MASTER: Final = "ours-java"
PAIRS: Final = (JAVA_MASTER, OUR_MASTER)
"""The master's side first."""

MASTER: Final = "kill -9 of the master"
SLAVE: Final = "kill -9 of the slave"
BOTH: Final = "kill -9 of both"
MASTER_STOPPED: Final = "SIGSTOP of the master"
SLAVE_STOPPED: Final = "SIGSTOP of the slave"
CUT: Final = "the connection ends inside of a transfer"

COUNTS: Final = {
    JAVA_MASTER: {MASTER: 6, SLAVE: 36, BOTH: 6, MASTER_STOPPED: 8, SLAVE_STOPPED: 14, CUT: 30},
    OUR_MASTER: {MASTER: 36, SLAVE: 6, BOTH: 6, MASTER_STOPPED: 14, SLAVE_STOPPED: 8, CUT: 30},
}
"""Of one version: 100. A released broker takes many seconds to start, so it is killed less often than ours."""

SHORT: Final = (MASTER, CUT, SLAVE_STOPPED)

GENERATIONS: Final = 4
"""So many pairs are made, one after another. At the end of each the master's directory is deleted."""


@dataclass(frozen=True, slots=True)
class Event:
    """One kill."""

    pair: str
    version: str
    point: str
    number: int

    @property
    def name(self) -> str:
        """For a line of results."""
        return f"{self.pair} {self.version} {self.point} {self.number}"


def events(pair: str, version: str) -> list[list[Event]]:
    """All events of a pair, in random order, and in which generation they happen."""
    chance = random.Random(f"{pair} {version}")
    found = [
        [Event(pair, version, point, number) for point, count in COUNTS[pair].items()
         for number in range(generation, count, GENERATIONS)]
        for generation in range(GENERATIONS)
    ]  # fmt: skip
    for generation in found:
        chance.shuffle(generation)
    return found
