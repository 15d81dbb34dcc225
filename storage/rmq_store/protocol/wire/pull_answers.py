"""Answers to pulls: values of a decoded command, or taken from the bytes of a connection as they come.

A reader of a range gets thousands of answers in a second. The extension takes the usual ones, code 0 with messages,
from a whole buffer in one call, and makes no command of them. All others, and all without the extension, are commands.
Sources: PullMessageResponseHeader.java, PullMessageProcessor.java.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from rmq_store.format.bytes import native
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.headers import PullMessageResponseHeader


class PullAnswer(NamedTuple):
    """The answer to a pull: `frames` are messages one behind another, as the broker's log has them.

    `code`: 0 frames, 19 the end, 20 nothing matched up to `next_offset` (or, from a slave, nothing there yet), 21 the
    queue does not have the offset. The queue holds [min_offset, max_offset). `suggest_broker_id` is the id of the
    process that should be asked next. `remark` is the broker's.
    """

    code: int
    next_offset: int
    min_offset: int
    max_offset: int
    suggest_broker_id: int
    frames: bytes
    remark: str = ""

    @classmethod
    def of(cls, command: RemotingCommand) -> Self:
        """The values of a command. RemotingCommandError: it does not tell the range of the queue."""
        header = PullMessageResponseHeader.from_ext(command.ext_fields)
        return cls(
            command.code,
            header.next_begin_offset,
            header.min_offset,
            header.max_offset,
            header.suggest_which_broker_id,
            command.body if command.code == ResponseCode.SUCCESS else b"",
            command.remark or "",
        )


class PullTaker:
    """The opaques of pulls that wait for their answers in one connection, and the answers that were taken."""

    def __init__(self) -> None:
        self.wanted: set[int] = set()
        self._taken: list[tuple[int, tuple[int, int, int, int, int, bytes, str]]] = []

    def take(self, data: bytes | bytearray | memoryview, position: int) -> int:
        """Take whole answers from `position` on, and return where the first frame begins that is no usual one."""
        if not self.wanted or not native.LOADED:
            return position
        return native.functions.take_pull_answers(data, position, self.wanted, self._taken)

    def taken(self) -> list[tuple[int, PullAnswer]]:
        """The answers since the last call, each with its opaque; they are no longer wanted."""
        if not self._taken:
            return []
        found, self._taken = self._taken, []
        self.wanted.difference_update([opaque for opaque, _ in found])
        return [(opaque, PullAnswer._make(values)) for opaque, values in found]
