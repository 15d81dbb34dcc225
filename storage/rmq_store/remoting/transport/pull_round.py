"""Pulls that leave together and are waited for together: a round.

The connection keeps one object for all of them. Usual answers reach `answers` without an object of their own. A pull
whose answer is not usual gets a call of its own when that answer comes, and goes the way of all calls from there on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.pull_answers import FrameArea, PullAnswer, PulledRound
from rmq_store.remoting.transport.calls import Call
from rmq_store.remoting.transport.template import RequestTemplate


class PullRound(Call):
    """A call for all pulls of a round. It has ended, and `outcome` is there, when each of them has an answer or an
    error; `outcome` says nothing of them: `answers` and `outcome_of` do.

    `pulls` are (offset, count): where each begins, and how many messages it asks for.
    """

    __slots__ = ("_own", "answers", "opaques", "pulls", "template")

    def __init__(
        self,
        address: str,
        template: RequestTemplate,
        pulls: Sequence[tuple[int, int]],
        area: FrameArea,
        timeout_ms: int,
        now: float,
        done: Callable[[Call], object],
    ) -> None:
        super().__init__(address, template.command, timeout_ms, now, done)
        self.template = template
        self.pulls = pulls
        self.answers = PulledRound([offset + count for offset, count in pulls], area)
        self.opaques = range(0)
        # Calls of pulls that have left the round, by their number in it.
        self._own: dict[int, Call] = {}

    @classmethod
    def unsent(
        cls,
        template: RequestTemplate,
        pulls: Sequence[tuple[int, int]],
        area: FrameArea,
        error: BaseException,
        done: Callable[[Call], object],
    ) -> PullRound:
        """A round that has ended with an error before there was an address for it."""
        made = cls("", template, pulls, area, 0, 0.0, done)
        made.end(error)
        return made

    @property
    def width(self) -> int:
        """So many opaques it takes."""
        return len(self.pulls)

    def start_at(self, opaque: int) -> None:
        """Take the opaques from this one on."""
        self.opaque = self.answers.first_opaque = opaque
        self.opaques = range(opaque, opaque + len(self.pulls))

    def frames(self) -> bytes:
        """The requests, one behind another. RemotingCommandError: a frame is too large."""
        return self.template.frames(
            [(offset, count, opaque) for (offset, count), opaque in zip(self.pulls, self.opaques, strict=True)]
        )

    def alone(self, opaque: int, *, is_taken: bool = False) -> Call | None:
        """Return a call for one pull of the round, which leaves it; None: it has its answer already. `is_taken`: its
        answer was taken from the bytes, but found no place.
        """
        number = opaque - self.opaque
        if number in self._own or not (self.answers.leave(number) or is_taken):
            return None
        request = self.template.request(*self.pulls[number])
        call = Call(self.address, request, self.timeout_ms, self.sent_at, self._ended)
        call.deadline, call.opaque, call.started = self.deadline, opaque, self.started
        self._own[number] = call
        return call

    def end(self, outcome: RemotingCommand | PullAnswer | BaseException) -> None:
        """End all pulls that wait in the round with an error."""
        for number in self.answers.waiting():
            call = self.alone(self.opaque + number)
            if call is not None:
                call.end(outcome)
        self.check()

    @property
    def is_whole(self) -> bool:
        """Whether no pull waits in the round itself."""
        return self.answers.placed + len(self._own) == len(self.pulls)

    def check(self) -> bool:
        """Look whether all pulls have ended; returns `is_whole`."""
        is_whole = self.is_whole
        if is_whole and self.outcome is None and all(call.outcome is not None for call in list(self._own.values())):
            super().end(self._complete)
        return is_whole

    def outcome_of(self, number: int) -> RemotingCommand | PullAnswer | BaseException | None:
        """The answer of a pull that has left the round, or its error; None: it waits, or its frames are in the area."""
        call = self._own.get(number)
        return None if call is None else call.outcome

    def _ended(self, _: Call) -> None:
        self.check()

    _complete = RemotingCommand(0)
