"""One request of a client, as processors see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from enum import Enum
from typing import Final, Protocol, TypeVar

from rmq_store import real_time
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.errors import MQBrokerError, ResponseCode
from rmq_store.protocol.wire.command import RemotingCommand, response_to
from rmq_store.protocol.wire.header_fields import RequestHeader, ResponseHeader

H = TypeVar("H", bound=RequestHeader)

# An error may repeat a field of its request, which has up to 16 MiB; a header has room for little.
_REMARK_CHARACTERS_MAX: Final = 1024


def _nothing() -> None:
    """Nobody counts this request."""


class Later(Enum):
    """A processor returns it if it keeps the body until it answers: it then calls `Request.done` itself."""

    IN_WORK = "in work"


class Peer(Protocol):
    """The connection of a client. Safe for threads."""

    @property
    def address(self) -> str:
        """The client's `ip:port`."""

    def send(self, *commands: RemotingCommand) -> None:
        """Send answers, or requests of the server, in one piece. Nothing happens if the connection has ended."""


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """`arrived_s` is the monotonic time at which the frame was complete. `done` is called when it is answered, or held
    without a body; it may be called again.
    """

    command: RemotingCommand
    peer: Peer
    arrived_s: float = field(default_factory=real_time.monotonic)
    done: Callable[[], None] = _nothing

    def header(self, kind: type[H]) -> H:
        """The typed fields.

        Raises:
            RemotingCommandError: a mandatory field is missing, or a text is no value of its field.
        """
        return kind.from_ext(self.command.ext_fields)

    def answer(
        self, code: int = 0, remark: str | None = None, *, header: ResponseHeader | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """The answer with this code, typed fields and body. A long remark is cut."""
        if remark is not None and len(remark) > _REMARK_CHARACTERS_MAX:
            remark = f"{remark[:_REMARK_CHARACTERS_MAX]}..."
        return response_to(self.command, code, remark, header.to_ext() if header is not None else None, body)

    def reply(self, command: RemotingCommand) -> None:
        """Send an answer, unless the client wants none."""
        if not self.command.is_oneway:
            self.peer.send(command)


def refusal(code: int, remark: str) -> MQBrokerError:
    """The error that a processor raises for an answer other than success."""
    return MQBrokerError(code, remark, "")


def refuse_body(request: Request) -> None:
    """MQBrokerError 29: a request that may be held has a body. No client sends one, and it would be kept uncounted."""
    if request.command.body:
        remark = f"request {request.command.code} has no body; this one has {len(request.command.body)} bytes"
        raise refusal(ResponseCode.INVALID_PARAMETER, remark)
