"""Lanes of a range that is pulled, and the frames that came through them, in the order of the queue.

A lane is one pull and its answer. Lanes whose pulls leave together stay together, as a run, as long as each answer has
all that was asked for. Any other answer makes a lane of its own of its pull.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.pull_answers import FrameArea, PullAnswer
from rmq_store.remoting.cluster.routes import MASTER_ID
from rmq_store.remoting.transport.pull_round import PullRound

Int64 = npt.NDArray[np.int64]


class Lane:
    """A piece [next, end) of the range that is still to come. `parts` came, and wait for what is before them. `round`
    and `number` are the pull that is under way.
    """

    __slots__ = ("asked", "attempt", "broker_id", "end", "next", "number", "parts", "parts_bytes", "round")

    def __init__(self, start: int, end: int) -> None:
        self.next = start
        self.end = end
        self.parts: list[bytes] = []
        self.parts_bytes = 0
        self.round: PullRound | None = None
        self.number = 0
        self.asked = 0
        self.attempt = -1
        # The process that was asked: later answers may send reads to another one.
        self.broker_id = MASTER_ID

    @property
    def width(self) -> int:
        """The number of lanes."""
        return 1

    @property
    def outcome(self) -> RemotingCommand | PullAnswer | BaseException | None:
        """The answer of the pull that is under way, or its error; None while there is none."""
        return None if self.round is None else self.round.outcome_of(self.number)

    @property
    def is_complete(self) -> bool:
        """Whether all of it came."""
        return self.next >= self.end


class LaneRun:
    """The pulls [first, last) of a round. `reserved_bytes` is what they may need of the area."""

    __slots__ = ("attempt", "broker_id", "first", "last", "reserved_bytes", "round")

    def __init__(
        self, pulled: PullRound, first: int, last: int, attempt: int, broker_id: int, reserved_bytes: int = 0
    ) -> None:
        self.round = pulled
        self.first = first
        self.last = last
        self.attempt = attempt
        self.broker_id = broker_id
        self.reserved_bytes = reserved_bytes

    @property
    def width(self) -> int:
        """The number of lanes."""
        return self.last - self.first

    @property
    def end(self) -> int:
        """The offset behind the last lane."""
        return sum(self.round.pulls[self.last - 1])

    @property
    def has_ended(self) -> bool:
        """Whether each pull of the round has an answer or an error."""
        return self.round.outcome is not None

    @property
    def is_unusual(self) -> bool:
        """Whether the round has ended, and answers are not in its area."""
        return self.has_ended and bool((self.places()[:, 0] < 0).any())

    def places(self) -> Int64:
        """The places of the frames of each lane in the area, (n, 2)."""
        return self.round.answers.places()[self.first : self.last]

    def split(self) -> Iterator[LaneRun | Lane]:
        """The same lanes after the round has ended: those whose answers are in the area as runs, the others alone."""
        is_placed = self.places()[:, 0] >= 0
        borders = np.flatnonzero(np.diff(is_placed, prepend=~is_placed[:1])).tolist()
        for first, last in zip(borders, [*borders[1:], self.width], strict=True):
            if is_placed[first]:
                yield LaneRun(self.round, self.first + first, self.first + last, self.attempt, self.broker_id)
                continue
            for number in range(self.first + first, self.first + last):
                start, count = self.round.pulls[number]
                lane = Lane(start, start + count)
                lane.round, lane.number, lane.asked = self.round, number, count
                lane.attempt, lane.broker_id = self.attempt, self.broker_id
                yield lane


class GatheredFrames:
    """The frames of the messages [start, end) of a queue, in its order: pieces of areas, and bytes."""

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self.size_bytes = 0
        self._pieces: list[bytes | tuple[FrameArea, Int64]] = []

    def add(self, frames: Sequence[bytes], end: int) -> None:
        """Go on to `end` with these bytes."""
        self._pieces += frames
        self.size_bytes += sum(map(len, frames))
        self.end = end

    def add_places(self, area: FrameArea, places: Int64, end: int) -> None:
        """Go on to `end` with pieces of an area, (n, 2) beginnings and ends."""
        self._pieces.append((area, places))
        self.size_bytes += int((places[:, 1] - places[:, 0]).sum())
        self.end = end

    def in_one_area(self) -> tuple[FrameArea, Int64] | None:
        """The area and all places in it, if there is nothing else."""
        areas = {id(piece) if isinstance(piece, bytes) else id(piece[0]) for piece in self._pieces}
        if len(areas) != 1 or isinstance(self._pieces[0], bytes):
            return None
        return self._pieces[0][0], np.concatenate([piece[1] for piece in self._pieces if not isinstance(piece, bytes)])

    def goes_on_in(self, area: FrameArea) -> bool:
        """Whether the last piece lies in this area."""
        last = self._pieces[-1] if self._pieces else None
        return last is None or (not isinstance(last, bytes) and last[0] is area)

    def joined(self) -> bytes:
        """The bytes one behind another."""
        found: list[bytes | memoryview] = []
        for piece in self._pieces:
            if isinstance(piece, bytes):
                found.append(piece)
            else:
                data = piece[0].view
                found += [data[first:last] for first, last in piece[1].tolist()]
        return found[0] if len(found) == 1 and isinstance(found[0], bytes) else b"".join(found)
