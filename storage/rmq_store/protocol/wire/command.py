"""One request or answer of the remoting protocol (RemotingCommand.java, LanguageCode.java, SerializeType.java)."""

from __future__ import annotations

from dataclasses import field
from enum import IntEnum
from typing import Final

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.versions import V4_9_8

RESPONSE_FLAG: Final = 1
ONEWAY_FLAG: Final = 2

# Brokers write route keys in quotes for V4_9_4 and above, and send GO_AWAY above V5_3_1.
VERSION: Final = V4_9_8

SECRET_FIELDS: Final = frozenset(("AccessKey", "SecurityToken", "Signature"))


class SerializeType(IntEnum):
    """The form of a frame's header."""

    JSON = 0
    ROCKETMQ = 1


class LanguageCode(IntEnum):
    """The language of a peer. A peer may send a number that is not listed here."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13


@dataclass(slots=True, repr=False)
class RemotingCommand:
    """A request or an answer. `code` is the RequestCode of a request, or the ResponseCode of an answer.

    `opaque` matches an answer with its request on one connection; the transport sets it. `serialize_type` is the form
    in which the command came, or is to be sent; a code that the binary form cannot hold is sent as JSON. `came_from` is
    the `ip:port` of the peer, for errors; the transport sets it in answers.
    """

    code: int
    ext_fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    language: int = LanguageCode.PYTHON
    version: int = VERSION
    serialize_type: SerializeType = SerializeType.JSON
    came_from: str = field(default="", compare=False)

    @property
    def is_response(self) -> bool:
        """Whether this is an answer."""
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        """Whether no answer to this request is wanted."""
        return bool(self.flag & ONEWAY_FLAG)

    def __repr__(self) -> str:
        """The fields without what is secret or large: the values of signatures and the bytes of the body."""
        shown = {name: "***" if name in SECRET_FIELDS else value for name, value in self.ext_fields.items()}
        return (
            f"RemotingCommand(code={self.code}, ext_fields={shown}, body={len(self.body)} bytes, opaque={self.opaque}, "
            f"flag={self.flag}, remark={self.remark!r}, language={self.language}, version={self.version}, "
            f"serialize_type={self.serialize_type.name})"
        )


def response_to(
    request: RemotingCommand,
    code: int,
    remark: str | None = None,
    ext_fields: dict[str, str] | None = None,
    body: bytes = b"",
) -> RemotingCommand:
    """Return the answer to `request`: the same opaque and the same form of header."""
    return RemotingCommand(
        code, ext_fields or {}, body, request.opaque, RESPONSE_FLAG, remark, serialize_type=request.serialize_type
    )
