"""Which kills there are of a replica's feeder and of its master: the points, and how often each comes.

    feeder    dies at a named point of `rmq follow`, or at a random moment; stands still
    network   the connection to the HA port ends inside of a transfer, after bytes that came one by one
    master    kill -9 and a restart, with units of ours behind its last record; stands still

A point is (stage, operation, kind of file) as in `crash.operations`. HALF_FRAME and HALF_UNIT are those of `feeder`.
"""

from __future__ import annotations

import random
from typing import Final

from rmq_store.lazy.dataclasses import dataclass

HALF_FRAME: Final = "follow: hold half of a frame"
HALF_UNIT: Final = "follow: hold half of a unit"

FEED_POINTS: Final = (
    HALF_FRAME,
    "follow: half of a write of segment",
    "follow: write segment",
    "follow: write queue file",  # stored, and without queues
    "follow: half of a write of queue file",
    "follow: store index slot",
    "follow: half of a write of index file",
    "follow: store intent_start",
    "follow: store intent_end",
    "follow: store appended_end",  # stored, and not published
    "follow: store last_record",  # published, and nothing more
    "follow: store store_timestamp",
)
"""They come with every piece of the log, so that a feeder can meet them at any time."""

ROLL_POINTS: Final = ("follow: allocate segment", "follow: rename segment")
"""They come with every new segment."""

METADATA_POINTS: Final = (
    "follow: half of a write of config/topics.json.tmp",
    "follow: rename config/topics.json",
    "follow: half of a write of config/subscriptionGroup.json.tmp",
    "follow: rename config/subscriptionGroup.json",
    "follow: rename config/consumerOffset.json",
    "follow: fsync config/delayOffset.json.tmp",
)
"""They come after each connection, if the master's tables have changed."""

OPEN_POINTS: Final = (
    "open: store magic",
    "open: store intent_end",
    "open: write pyrmq/feeder.lock",
    "open: fsync pyrmq/progress",
    "open: write lock",
)
"""They come when a killed feeder's replica is opened by the next one."""

MOMENT: Final = "a random moment"
STOPPED: Final = "SIGSTOP of the feeder"
STOPPED_LONG: Final = "SIGSTOP of the feeder until the master has closed the connection"
CUT: Final = "the connection ends inside of a transfer"
CUT_BYTEWISE: Final = "the connection ends after bytes that came one by one"
BYTEWISE: Final = "SIGKILL of the feeder while bytes come one by one"
MASTER: Final = "kill -9 of the master, which comes back"
MASTER_UNIT: Final = "kill -9 of the master, which comes back with units"
MASTER_STOPPED: Final = "SIGSTOP of the master"
MASTER_STOPPED_LONG: Final = "SIGSTOP of the master until the feeder gives it up"

NETWORK: Final = frozenset({CUT, CUT_BYTEWISE})
OF_MASTER: Final = frozenset({MASTER, MASTER_UNIT, MASTER_STOPPED, MASTER_STOPPED_LONG})

COUNTS: Final = {
    **dict.fromkeys(FEED_POINTS, 6),
    **dict.fromkeys(ROLL_POINTS, 4),
    **dict.fromkeys(METADATA_POINTS, 4),
    **dict.fromkeys(OPEN_POINTS, 2),
    HALF_UNIT: 10, MOMENT: 12, BYTEWISE: 6, STOPPED: 7, STOPPED_LONG: 1,
    CUT: 15, CUT_BYTEWISE: 15,
    MASTER: 8, MASTER_UNIT: 8, MASTER_STOPPED: 3, MASTER_STOPPED_LONG: 1,
}  # fmt: skip
"""Of one version: 200."""

SHORT: Final = (HALF_FRAME, "follow: store appended_end", METADATA_POINTS[1], CUT_BYTEWISE, MOMENT)

GENERATIONS: Final = 4
"""So many replicas are made, one after another, each from the start of the master's log."""


@dataclass(frozen=True, slots=True)
class Event:
    """One kill."""

    version: str
    point: str
    number: int

    @property
    def name(self) -> str:
        """For a line of results."""
        return f"{self.version} {self.point} {self.number}"


def events(version: str, counts: dict[str, int] | None = None) -> list[list[Event]]:
    """All events of a version, in random order, and in which generation of the replica they happen. Each generation
    begins with half units: a new replica meets those that the master has.
    """
    counts = COUNTS if counts is None else counts
    chance = random.Random(version)
    found = [
        [Event(version, point, number) for point, count in counts.items() for number in range(g, count, GENERATIONS)]
        for g in range(GENERATIONS)
    ]
    for generation in found:
        chance.shuffle(generation)
        generation.sort(key=lambda event: event.point != HALF_UNIT)
    return found
