"""Frames: a command as bytes, and a decoder for bytes that arrive in any pieces (NettyDecoder.java).

    length int32, without itself | serialize type int8, header length int24 | header | body

The decoder checks both lengths and the type as soon as these 8 bytes are there, before it keeps anything of the frame.
A server takes shorter headers than the form allows: it reads them before it knows who asks, in the thread of all.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from rmq_store.protocol.errors import RemotingCommandError
from rmq_store.protocol.wire import binary_header, json_header
from rmq_store.protocol.wire.command import RemotingCommand, SerializeType

FRAME_BYTES_MAX: Final = 16 << 20
"""The largest value of `length` that Java's peers accept (com.rocketmq.remoting.frameMaxLength)."""

SERVED_HEADER_BYTES_MAX: Final = 256 << 10
"""The largest header that a server takes: 32 KiB of properties, of which JSON may make six times as much."""

FIELDS_MAX: Final = 1024
"""The most fields of a header; RocketMQ's own have fewer than 40."""

ROOM_BYTES: Final = 320 << 10
"""So much is kept for the frames of a connection that come in pieces: an answer to a pull has 256 KiB."""

_KINDS: Final = (int(SerializeType.JSON), int(SerializeType.ROCKETMQ))
_HEADER_BYTES_MAX: Final = (1 << 24) - 1
_PREFIX: Final = struct.Struct(">iI")
_LENGTH_BYTES: Final = 4
_MARK_BYTES: Final = 4


def encode_command(command: RemotingCommand, max_frame_bytes: int = FRAME_BYTES_MAX) -> bytes:
    """Return the frame of a command. A code that the binary header cannot hold goes as JSON.

    Raises:
        RemotingCommandError: the frame is larger than `max_frame_bytes`, or a field does not fit the header.
    """
    return b"".join(frame_pieces(command, max_frame_bytes))


def frame_pieces(command: RemotingCommand, max_frame_bytes: int = FRAME_BYTES_MAX) -> tuple[bytes, bytes]:
    """Return the frame of a command as what is before its body, and the body itself, which is not copied. Raises as
    `encode_command`.
    """
    if command.serialize_type == SerializeType.ROCKETMQ and -1 <= command.code <= binary_header.CODE_MAX:
        kind, header = SerializeType.ROCKETMQ, binary_header.encode(command)
    else:
        kind, header = SerializeType.JSON, json_header.encode(command)
    return framed(kind, header, len(command.body), command.code, max_frame_bytes), command.body


def framed(
    kind: SerializeType, header: bytes, body_bytes: int, code: int, max_frame_bytes: int = FRAME_BYTES_MAX
) -> bytes:
    """Return the frame of an encoded header and a body of so many bytes, up to the body. Raises as `encode_command`,
    for a command of `code`.
    """
    length = _MARK_BYTES + len(header) + body_bytes
    if length > max_frame_bytes or len(header) > _HEADER_BYTES_MAX:
        raise RemotingCommandError(
            f"a frame of {length} bytes (header {len(header)}, body {body_bytes}) for code {code}; "
            f"at most {max_frame_bytes} are allowed"
        )
    return _PREFIX.pack(length, kind << 24 | len(header)) + header


class FrameDecoder:
    """Turns the bytes of one connection into commands. Not thread-safe.

    Bytes come by `feed`; or, while a frame is incomplete, into `room`, and `fill` says how many came. Of an incomplete
    frame the decoder keeps what came, in memory that grows in steps with it: a length alone makes it allocate
    ROOM_BYTES at most. Between two frames it keeps that room, unless `keeps_room` is False. After the first bad frame
    the place of the next one is unknown, so that the decoder refuses everything else: `failure` is the error.

    `take` may take whole frames for itself: it gets bytes and the place where a frame begins, and returns the place of
    the first one that it leaves. Those become no commands.
    """

    def __init__(
        self,
        max_frame_bytes: int = FRAME_BYTES_MAX,
        *,
        max_header_bytes: int = _HEADER_BYTES_MAX,
        keeps_room: bool = True,
        take: Callable[[memoryview, int], int] | None = None,
    ) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.max_header_bytes = max_header_bytes
        self._room_bytes_kept = ROOM_BYTES if keeps_room else _PREFIX.size
        self.failure: RemotingCommandError | None = None
        self._take = take
        # The incomplete frame: `_there` bytes of `_wanted`, or of its prefix while that is incomplete.
        self._room = bytearray(_PREFIX.size)
        self._there = 0
        self._wanted = _PREFIX.size

    @property
    def kept_bytes(self) -> int:
        """The memory of the incomplete frame, whether bytes are in it or not yet; 0: there is no such frame."""
        return len(self._room) if self._there else 0

    @property
    def is_between_frames(self) -> bool:
        """Whether the next bytes are the beginning of a frame."""
        return not self._there and self.failure is None

    def feed(self, data: bytes | bytearray | memoryview) -> list[RemotingCommand]:
        """Take the next bytes and return the commands that are complete.

        Commands before a bad frame are returned; `failure` is set then, and the next call raises it.

        Raises:
            RemotingCommandError: a bad frame: its lengths, its type, or its header.
        """
        if self.failure is not None:
            raise self.failure
        commands: list[RemotingCommand] = []
        try:
            with memoryview(data) as view:
                at = self._taken(view, self._feed_incomplete(view, commands) if self._there else 0)
                while len(view) - at >= _PREFIX.size and len(view) - at >= (size := self._size(view, at)):
                    commands.append(_command(view, at, at + size))
                    at = self._taken(view, at + size)
                if at < len(view):
                    self._begin(view[at:])
        except RemotingCommandError as error:
            self._fail(error)
            if not commands:
                raise
        return commands

    def room(self) -> memoryview | None:
        """Return where the next bytes of the incomplete frame belong; None: `feed` takes the next bytes.

        It is valid until the next call.
        """
        if self._wanted == _PREFIX.size:
            return None
        return memoryview(self._room)[self._there : self._wanted]

    def fill(self, size: int) -> list[RemotingCommand]:
        """Say that `size` bytes came into `room`; returns the command if it is complete now.

        Raises:
            RemotingCommandError: its header is bad.
        """
        commands: list[RemotingCommand] = []
        self._there += size
        try:
            self._complete(commands)
        except RemotingCommandError as error:
            self._fail(error)
            raise
        return commands

    def finish(self) -> None:
        """Say that the connection has ended.

        Raises:
            RemotingCommandError: it ended within a frame.
        """
        if self.failure is None and self._there:
            self.failure = RemotingCommandError(
                f"torn frame: the connection ended after {self._there} bytes of at least {self._wanted}"
            )
        if self.failure is not None:
            raise self.failure

    def _taken(self, view: memoryview, at: int) -> int:
        return at if self._take is None else self._take(view, at)

    def _fail(self, error: RemotingCommandError) -> None:
        self.failure = error
        self._reset(bytearray(_PREFIX.size))

    def _reset(self, room: bytearray) -> None:
        self._room, self._there, self._wanted = room, 0, _PREFIX.size

    def _begin(self, view: memoryview) -> None:
        """Keep the beginning of a frame."""
        if len(view) >= _PREFIX.size:
            self._wanted = self._size(view, 0)
            self._grow(len(view))
        self._room[: len(view)] = view
        self._there = len(view)

    def _feed_incomplete(self, view: memoryview, commands: list[RemotingCommand]) -> int:
        """Give the incomplete frame what belongs to it; how many bytes these are."""
        at = 0
        while at < len(view) and self._there:
            taken = min(len(view) - at, min(self._wanted, len(self._room)) - self._there)
            self._room[self._there : self._there + taken] = view[at : at + taken]
            self._there += taken
            at += taken
            self._complete(commands)
        return at

    def _complete(self, commands: list[RemotingCommand]) -> None:
        """Go on after bytes came: the size of the frame may be known now, its memory full, or all of it there."""
        if self._there < len(self._room) and self._there < self._wanted:
            return
        if self._wanted == _PREFIX.size:
            self._wanted = self._size(self._room, 0)
        if self._there < self._wanted:
            self._grow(self._there)
            return
        with memoryview(self._room) as room, room[: self._wanted] as view:
            if self._taken(view, 0) < self._wanted:
                commands.append(_command(view, 0, self._wanted))
        self._reset(self._room if len(self._room) <= self._room_bytes_kept else bytearray(_PREFIX.size))

    def _grow(self, needed: int) -> None:
        """Make the memory of the incomplete frame larger than what is there, `needed` bytes, unless it is complete."""
        if len(self._room) > needed or len(self._room) >= self._wanted:
            return
        grown = bytearray(min(self._wanted, max(ROOM_BYTES, 2 * needed)))
        grown[: self._there] = memoryview(self._room)[: self._there]
        self._room = grown

    def _size(self, data: bytearray | memoryview, at: int) -> int:
        """The bytes of the frame at `at`, whose prefix is checked."""
        length, mark = _PREFIX.unpack_from(data, at)
        header_bytes = mark & _HEADER_BYTES_MAX
        if length > self.max_frame_bytes:
            raise RemotingCommandError(f"oversized frame: {length} bytes, at most {self.max_frame_bytes} are allowed")
        if length < _MARK_BYTES or header_bytes > length - _MARK_BYTES:
            raise RemotingCommandError(f"bad lengths: a header of {header_bytes} bytes in a frame of {length}")
        if header_bytes > self.max_header_bytes:
            text = f"oversized header: {header_bytes} bytes, at most {self.max_header_bytes} are allowed"
            raise RemotingCommandError(text)
        if mark >> 24 not in _KINDS:
            raise RemotingCommandError(f"unknown serialize type {mark >> 24}")
        return _LENGTH_BYTES + int(length)


def _command(view: memoryview, at: int, end: int) -> RemotingCommand:
    mark: int = _PREFIX.unpack_from(view, at)[1]
    start = at + _PREFIX.size
    body_start = start + (mark & _HEADER_BYTES_MAX)
    decode = json_header.decode if mark >> 24 == SerializeType.JSON else binary_header.decode
    command = decode(bytes(view[start:body_start]), bytes(view[body_start:end]))
    if len(command.ext_fields) > FIELDS_MAX:
        raise RemotingCommandError(f"a header of {len(command.ext_fields)} fields, at most {FIELDS_MAX} are allowed")
    return command
