"""Which kills there are of a SYNC_MASTER and of its slave, both ours: the points, and how often each comes.

    slave      dies at a named point of its feed, metadata or recovery, or at a random moment; stands still
    master     dies at a named point of its service, or at a random moment; stands still
    both       die one after the other, and whoever appends to the master's store in its own process with them
    network    the connection to the HA port ends inside of a transfer, after bytes that came one by one
    take-over  the promotion of the slave is killed, and then the rejoining of the old master

Our slave has no moment at which bytes are reported and their queues are not built: it makes the entries before the
bytes are visible, puts them on disk, and reports then. Its points lie on both sides of each of these steps.
A point is (stage, operation, kind of file) as in `crash.operations`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final, NamedTuple

from helpers.cluster.followed.plan import METADATA_POINTS, OPEN_POINTS
from helpers.take_over_points import PROMOTE_POINTS, REJOIN_POINTS

SEND_REPORT: Final = "follow: send report"

FEED_POINTS: Final = (
    "follow: half of a write of segment",
    "follow: write queue file",  # stored, and without queues
    "follow: half of a write of queue file",
    "follow: store intent_end",
    "follow: store appended_end",  # with queues, and not visible
    "follow: store last_record",  # visible, and nothing more
    "follow: store flushing",  # not on disk
    "follow: store flushed_end",  # on disk
    SEND_REPORT,  # stored, and not reported
    "follow: have sent report",
)

MASTER_POINTS: Final = (
    "serve: store replicated_end",  # the slave has reported, and no sender knows
    "serve: write queue file",  # a message is stored, and without its queue
    "serve: store appended_end",  # with it, and not visible
)

MOMENT: Final = "the slave, at a random moment"
MASTER: Final = "the master, at a random moment"
MASTER_FIRST: Final = "both, the master first"
SLAVE_FIRST: Final = "both, the slave first"
STOPPED: Final = "SIGSTOP of the slave until sends get 12"
MASTER_STOPPED: Final = "SIGSTOP of the master"
CUT: Final = "the connection ends inside of a transfer"
CUT_BYTEWISE: Final = "the connection ends after bytes that came one by one"
PROMOTION: Final = "the promotion, at a random moment"
REJOINING: Final = "the rejoining, at a random moment"

IN_SERVICE: Final[Mapping[str, int]] = {
    **dict.fromkeys(FEED_POINTS, 12),
    **dict.fromkeys(METADATA_POINTS, 6),
    **dict.fromkeys(OPEN_POINTS, 4),
    **dict.fromkeys(MASTER_POINTS, 12),
    MOMENT: 32, MASTER: 40, MASTER_FIRST: 28, SLAVE_FIRST: 28, STOPPED: 20, MASTER_STOPPED: 10, CUT: 15,
    CUT_BYTEWISE: 15,
}  # fmt: skip
OF_PROMOTION: Final[Mapping[str, int]] = {**dict.fromkeys(PROMOTE_POINTS, 6), PROMOTION: 2}
OF_REJOINING: Final[Mapping[str, int]] = {**dict.fromkeys(REJOIN_POINTS, 4), REJOINING: 6}
COUNTS: Final = {**IN_SERVICE, **OF_PROMOTION, **OF_REJOINING}
"""500 in all."""

SHORT: Final = (FEED_POINTS[0], FEED_POINTS[4], SEND_REPORT, FEED_POINTS[9], METADATA_POINTS[1], MASTER_POINTS[0],
                MASTER_FIRST, STOPPED, CUT_BYTEWISE)  # fmt: skip

GENERATIONS: Final = sum(OF_PROMOTION.values())
"""A take-over ends each of them: the roles change so often."""


class Event(NamedTuple):
    """One kill."""

    point: str
    number: int

    @property
    def name(self) -> str:
        """For a line of results."""
        return f"{self.point} {self.number}"


class Generation(NamedTuple):
    """What happens to a master, and the kills of the take-over that follows."""

    in_service: tuple[Event, ...]
    promotion: Event
    rejoining: Event


def generations() -> list[Generation]:
    """All events, each once, in an order that is random and always the same."""
    chance = random.Random(56)
    in_service, promotions, rejoinings = (
        [Event(point, number) for point, count in counts.items() for number in range(count)]
        for counts in (IN_SERVICE, OF_PROMOTION, OF_REJOINING)
    )
    for events in (in_service, promotions, rejoinings):
        chance.shuffle(events)
    return [
        Generation(tuple(in_service[number::GENERATIONS]), promotions[number], rejoinings[number])
        for number in range(GENERATIONS)
    ]
