"""What the extension takes of the bytes of a connection, beside the commands that Python makes of the same bytes."""

from __future__ import annotations

from collections.abc import Collection

from rmq_store.protocol.errors import RemotingCommandError
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.frames import FrameDecoder
from rmq_store.protocol.wire.pull_answers import FrameArea, PullAnswer, PulledRound, PullTaker

AREA_BYTES = 20_000


class TakenPulls:
    """A decoder whose rounds wait for the opaques `wanted`. Answers that go on at `next_offset` are placed, as long as
    there is room; the others are taken only.
    """

    def __init__(self, wanted: Collection[int], next_offset: int = 64) -> None:
        self.taker = PullTaker()
        self.decoder = FrameDecoder(take=self.taker.take)
        self.round = PulledRound([next_offset] * (max(wanted, default=0) + 1), FrameArea(AREA_BYTES))
        self.round.first_opaque = 0
        self.next_offset = next_offset
        for opaque in set(self.round.waiting()) - set(wanted):
            self.round.leave(opaque)
        self.taker.rounds = [self.round]

    def answers(self) -> dict[int, PullAnswer | tuple[int, int, bytes]]:
        """By opaque the answers so far: of those in the area where they go on, what they suggest, and the frames."""
        found: dict[int, PullAnswer | tuple[int, int, bytes]] = {}
        taken, placed = self.taker.taken()
        found.update(taken)
        assert len(found) == len(taken), "an answer was taken twice"
        for opaque, (start, end) in enumerate(self.round.places().tolist()):
            if start >= 0:
                assert opaque not in found
                frames = self.round.area.data[start:end].tobytes()
                found[opaque] = self.next_offset, self.round.suggested(opaque), frames
        assert placed == self.round.placed == len(found) - len(taken)
        return found


def is_taken(command: RemotingCommand, answer: PullAnswer | tuple[int, int, bytes] | None) -> bool:
    """Whether an answer that was taken is that of this command."""
    try:
        whole = PullAnswer.of(command)
    except RemotingCommandError:
        return False
    if not command.is_response or whole.code or not whole.frames:
        return False
    return answer in (whole, (whole.next_offset, whole.suggest_broker_id, whole.frames))
