"""One call that waits for its answer, and the errors that it may end with."""

from __future__ import annotations

from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

from rmq_store.protocol.errors import (
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
    RemotingTooMuchRequestError,
)
from rmq_store.protocol.wire.command import RemotingCommand, response_to
from rmq_store.protocol.wire.request_codes import request_name


class Call:
    """A request on its way. `started`: a byte of it may have left this process, so that its outcome is unknown.

    `address` is how errors name the server. `deadline` is on the clock of `time.monotonic`. A oneway call is complete
    when its last byte was given to the operating system.
    """

    __slots__ = ("address", "deadline", "future", "opaque", "repeated", "request", "sent_at", "started", "timeout_ms")

    def __init__(self, address: str, request: RemotingCommand, timeout_ms: int, now: float) -> None:
        self.address = address
        self.request = request
        self.timeout_ms = timeout_ms
        self.deadline = now + timeout_ms / 1000
        self.future: Future[RemotingCommand] = Future()
        self.opaque = 0
        self.sent_at = now
        self.started = False
        self.repeated = False

    @property
    def name(self) -> str:
        """How errors name the request."""
        return request_name(self.request.code)

    def answer(self, response: RemotingCommand) -> None:
        """Complete the call; it may have been completed, or cancelled by its caller, before."""
        with suppress(InvalidStateError):
            self.future.set_result(response)

    def sent(self) -> None:
        """Complete a oneway call."""
        self.answer(response_to(self.request, 0))

    def fail(self, error: BaseException) -> None:
        """End the call with an error."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)

    def lost(self, reason: str, kind: type[RemotingError] = RemotingError) -> None:
        """End the call because its connection ended: by RemotingConnectError if no byte of it was sent."""
        if self.started:
            self.fail(kind(f"{self.address}: the connection was lost before the answer to {self.name}: {reason}"))
        else:
            self.fail(RemotingConnectError(f"{self.address}: {self.name} was not sent: {reason}"))

    def expire(self, connected: bool) -> None:
        """End the call because its time is over."""
        if self.started:
            self.fail(RemotingTimeoutError(f"{self.address}: no answer to {self.name} within {self.timeout_ms} ms"))
        elif connected:
            self.fail(
                RemotingTooMuchRequestError(
                    f"{self.address}: {self.name} was not sent within {self.timeout_ms} ms: the server takes no bytes"
                )
            )
        else:
            self.fail(
                RemotingConnectError(
                    f"{self.address}: {self.name} was not sent: no connection within {self.timeout_ms} ms"
                )
            )
