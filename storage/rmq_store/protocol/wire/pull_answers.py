"""Answers to pulls: values of a decoded command, or taken from the bytes of a connection as they come.

A reader of a range gets thousands of answers in a second. The extension takes the usual ones, code 0 with messages,
from a whole buffer in one call, and makes no command of them. All others, and all without the extension, are commands.
Pulls that leave together are a round. The frames of an answer that has all that was asked for go into the area of the
round, and no object is made for that answer.
Sources: PullMessageResponseHeader.java, PullMessageProcessor.java.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

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


Int64 = npt.NDArray[np.int64]

_WORD_BYTES: Final = 8
# As in native/pull_answers.c: the words of a round, and those of each pull.
_FIRST_OPAQUE, _PLACED, _GONE, _ROUND_WORDS = range(4)
_EXPECTED_OFFSET, _START, _END, _SUGGESTED, _PULL_WORDS = range(5)
_WAITING, _LEFT = -1, -2


class FrameArea:
    """Memory for the frames of many answers. `data` (capacity,) uint8 begins with the number of bytes in use, and has
    undefined content behind them. No byte that is in use is moved.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._words: Int64 = np.empty(-(-capacity_bytes // _WORD_BYTES) + 1, np.int64)
        self._words[0] = _WORD_BYTES
        self.data: npt.NDArray[np.uint8] = self._words.view(np.uint8)

    @property
    def view(self) -> memoryview:
        """The same memory, as bytes."""
        return memoryview(self.data)  # type: ignore[arg-type]

    @property
    def words(self) -> Int64:
        """The same memory, as the extension takes it."""
        return self._words


class PulledRound:
    """The answers of n pulls with consecutive opaques. `next_offsets` (n,) is where a pull goes on if its answer has
    all that was asked for; the frames of such an answer are put into `area`.
    """

    def __init__(self, next_offsets: Sequence[int], area: FrameArea) -> None:
        self.count = len(next_offsets)
        self.area = area
        self._words: Int64 = np.empty(_ROUND_WORDS + self.count * _PULL_WORDS, np.int64)
        self._words[:_ROUND_WORDS] = 0
        self._rows = self._words[_ROUND_WORDS:].reshape(self.count, _PULL_WORDS)
        self._rows[:, _EXPECTED_OFFSET] = next_offsets
        self._rows[:, _START] = _WAITING

    @property
    def first_opaque(self) -> int:
        """The opaque of the first pull."""
        return int(self._words[_FIRST_OPAQUE])

    @first_opaque.setter
    def first_opaque(self, opaque: int) -> None:
        self._words[_FIRST_OPAQUE] = opaque

    @property
    def buffers(self) -> tuple[Int64, Int64]:
        """The memory that the extension writes to."""
        return self._words, self.area.words

    @property
    def placed(self) -> int:
        """So many answers are in the area."""
        return int(self._words[_PLACED])

    def places(self) -> Int64:
        """Of each pull the bounds of its frames in the area, (n, 2); a beginning below 0: they are not there."""
        return self._rows[:, _START : _END + 1]

    def leave(self, number: int) -> bool:
        """Take one pull out of this: its answer comes elsewhere. False: it is not waited for any more."""
        is_waiting = bool(self._rows[number, _START] == _WAITING)
        if is_waiting:
            self._rows[number, _START] = _LEFT
            self._words[_GONE] += 1
        return is_waiting

    def waiting(self) -> list[int]:
        """The pulls without an answer that have not left."""
        found: list[int] = np.flatnonzero(self._rows[:, _START] == _WAITING).tolist()
        return found

    def suggested(self, number: int) -> int:
        """The broker id that an answer in the area suggests."""
        return int(self._rows[number, _SUGGESTED])


class PullTaker:
    """The rounds of one connection that wait for answers, and the answers that were taken, but not placed."""

    def __init__(self) -> None:
        self.rounds: list[PulledRound] = []
        self._placed = 0
        self._taken: list[tuple[int, tuple[int, int, int, int, int, bytes, str]]] = []

    def take(self, data: bytes | bytearray | memoryview, position: int) -> int:
        """Take whole answers from `position` on, and return where the first frame begins that is no usual one."""
        if not self.rounds or not native.LOADED:
            return position
        rounds = self.rounds
        before = sum([waiting.placed for waiting in rounds])
        end = native.functions.take_pull_answers(
            data, position, [waiting.buffers for waiting in rounds], self._taken
        )
        self._placed += sum([waiting.placed for waiting in rounds]) - before
        return end

    def taken(self) -> tuple[list[tuple[int, PullAnswer]], int]:
        """Of the answers since the last call those that found no place, each with its opaque, and the number of the
        others.
        """
        placed, self._placed = self._placed, 0
        if not self._taken:
            return [], placed
        found, self._taken = self._taken, []
        return [(opaque, PullAnswer._make(values)) for opaque, values in found], placed
