"""A request that is sent many times, with other numbers in some of its fields: its header is made once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from rmq_store.format.bytes import native
from rmq_store.protocol.wire import json_header
from rmq_store.protocol.wire.command import RemotingCommand, SerializeType
from rmq_store.protocol.wire.frames import framed


class RequestTemplate:
    """`command` has all other fields, a JSON header and no body; the fields `varying` get whole numbers."""

    def __init__(self, command: RemotingCommand, varying: Sequence[str]) -> None:
        assert command.serialize_type is SerializeType.JSON and not command.body
        self.command = command
        self.varying = tuple(varying)
        self._parts = json_header.template(command, varying)
        self._header = b"%d".join([part.replace(b"%", b"%%") for part in self._parts])

    def request(self, *numbers: int) -> TemplateRequest:
        """Return the request with a number for each field of `varying`."""
        return TemplateRequest(self, numbers)

    def frames(self, rows: list[tuple[int, ...]]) -> bytes:
        """Return the frames of requests, one behind another: of each the numbers, and its opaque.

        Raises:
            RemotingCommandError: a frame is too large.
        """
        made = native.functions.request_frames(self._parts, rows) if native.LOADED else None
        if made is None:
            made = b"".join([framed(SerializeType.JSON, self._header % row, 0, self.command.code) for row in rows])
        return made


class TemplateRequest(NamedTuple):
    """One request of a template; twice as cheap to send as its command, if it carries no signature."""

    template: RequestTemplate
    numbers: tuple[int, ...]

    @property
    def code(self) -> int:
        """The RequestCode."""
        return self.template.command.code

    @property
    def is_oneway(self) -> bool:
        """Whether no answer is wanted."""
        return self.template.command.is_oneway

    def command(self) -> RemotingCommand:
        """Return the same request as a command, for who reads its fields: a signature covers them."""
        numbers = dict(zip(self.template.varying, map(str, self.numbers), strict=True))
        return replace(self.template.command, ext_fields=self.template.command.ext_fields | numbers)

    def frame(self, opaque: int) -> bytes:
        """Return the frame, the same bytes as that of `command` with this opaque.

        Raises:
            RemotingCommandError: the frame is too large.
        """
        return self.template.frames([(*self.numbers, opaque)])
