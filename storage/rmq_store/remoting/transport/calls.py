"""One call that waits for its answer, the errors that it may end with, and how a thread waits for many calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rmq_store import real_time
from rmq_store.files.locks.guard import Event
from rmq_store.protocol.errors import (
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
    RemotingTooMuchRequestError,
    ResponseCode,
)
from rmq_store.protocol.wire.command import RESPONSE_FLAG, RemotingCommand
from rmq_store.protocol.wire.pull_answers import PullAnswer
from rmq_store.protocol.wire.request_codes import request_name
from rmq_store.remoting.transport.template import TemplateRequest

# The I/O loop ends every call at its deadline; this is for a loop that cannot, on a machine that stands still.
SLACK_S: Final = 10.0


Request = RemotingCommand | TemplateRequest


class Call:
    """A request on its way. `started`: a byte of it may have left this process, so that its outcome is unknown.

    `address` is how errors name the server. `deadline` is on the clock of `real_time.monotonic`. A oneway call is
    complete when its last byte was given to the operating system. `outcome` is None until the call has ended; then
    `done` gets the call, once, mostly in the thread that reads from all connections: it must not wait.
    """

    __slots__ = (
        "address", "deadline", "done", "opaque", "outcome", "repeated", "request", "sent_at", "started", "timeout_ms",
    )  # fmt: skip

    def __init__(
        self, address: str, request: Request, timeout_ms: int, now: float, done: Callable[[Call], object]
    ) -> None:
        self.address = address
        self.request = request
        self.timeout_ms = timeout_ms
        self.deadline = now + timeout_ms / 1000
        self.done = done
        self.outcome: RemotingCommand | PullAnswer | BaseException | None = None
        self.opaque = 0
        self.sent_at = now
        self.started = False
        self.repeated = False

    @property
    def width(self) -> int:
        """So many opaques it takes."""
        return 1

    def start_at(self, opaque: int) -> None:
        """Take the opaques from this one on."""
        self.opaque = opaque

    @property
    def name(self) -> str:
        """How errors name the request."""
        return request_name(self.request.code)

    def end(self, outcome: RemotingCommand | PullAnswer | BaseException) -> None:
        """End the call with its answer, or with an error; does nothing the second time."""
        if self.outcome is None:
            self.outcome = outcome
            self.done(self)

    def sent(self) -> None:
        """End a oneway call."""
        self.end(RemotingCommand(ResponseCode.SUCCESS, flag=RESPONSE_FLAG))

    def answer(self) -> RemotingCommand:
        """Return the answer of a call that has ended, or raise its error."""
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        assert isinstance(self.outcome, RemotingCommand)
        return self.outcome

    def lost(self, reason: str, kind: type[RemotingError] = RemotingError) -> None:
        """End the call because its connection ended: by RemotingConnectError if no byte of it was sent."""
        if self.started:
            self.end(kind(f"{self.address}: the connection was lost before the answer to {self.name}: {reason}"))
        else:
            self.end(RemotingConnectError(f"{self.address}: {self.name} was not sent: {reason}"))

    def expire(self, connected: bool) -> None:
        """End the call because its time is over."""
        if self.started:
            self.end(RemotingTimeoutError(f"{self.address}: no answer to {self.name} within {self.timeout_ms} ms"))
        elif connected:
            self.end(
                RemotingTooMuchRequestError(
                    f"{self.address}: {self.name} was not sent within {self.timeout_ms} ms: the server takes no bytes"
                )
            )
        else:
            self.end(
                RemotingConnectError(
                    f"{self.address}: {self.name} was not sent: no connection within {self.timeout_ms} ms"
                )
            )


class Arrivals:
    """Lets one thread wait for its calls, one after the other: the end of another one does not wake it."""

    def __init__(self) -> None:
        self._arrived = Event()
        self._awaited: Call | None = None

    def notice(self, call: Call) -> None:
        """A call has ended: the `done` of each call that is waited for."""
        if call is self._awaited:
            self._arrived.set()

    def wait(self, call: Call) -> None:
        """Return when a call has ended; at its deadline the I/O loop ends it, or this."""
        self._awaited = call
        while call.outcome is None:
            self._arrived.clear()
            # Only what ends from here on sets it again.
            if call.outcome is None and not self._arrived.wait(call.deadline + SLACK_S - real_time.monotonic()):
                call.end(
                    RemotingTimeoutError(
                        f"{call.address}: no answer to {call.name} within {call.timeout_ms} ms, nor an end of the call"
                    )
                )
