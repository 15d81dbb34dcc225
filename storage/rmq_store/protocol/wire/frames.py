"""Frames: a command as bytes, and a decoder for bytes that arrive in any pieces (NettyDecoder.java).

    length int32, without itself | serialize type int8, header length int24 | header | body

The decoder checks both lengths and the type as soon as these 8 bytes are there, before it keeps anything of the frame.
"""

from __future__ import annotations

import struct
from typing import Final

from rmq_store.protocol.errors import RemotingCommandError
from rmq_store.protocol.wire import binary_header, json_header
from rmq_store.protocol.wire.command import RemotingCommand, SerializeType

FRAME_BYTES_MAX: Final = 16 << 20
"""The largest value of `length` that Java's peers accept (com.rocketmq.remoting.frameMaxLength)."""

_HEADER_BYTES_MAX: Final = (1 << 24) - 1
_PREFIX: Final = struct.Struct(">iI")
_LENGTH_BYTES: Final = 4
_MARK_BYTES: Final = 4


def encode_command(command: RemotingCommand, max_frame_bytes: int = FRAME_BYTES_MAX) -> bytes:
    """Return the frame of a command. A code that the binary header cannot hold goes as JSON.

    Raises:
        RemotingCommandError: the frame is larger than `max_frame_bytes`, or a field does not fit the header.
    """
    if command.serialize_type == SerializeType.ROCKETMQ and -1 <= command.code <= binary_header.CODE_MAX:
        kind, header = SerializeType.ROCKETMQ, binary_header.encode(command)
    else:
        kind, header = SerializeType.JSON, json_header.encode(command)
    length = _MARK_BYTES + len(header) + len(command.body)
    if length > max_frame_bytes or len(header) > _HEADER_BYTES_MAX:
        raise RemotingCommandError(
            f"a frame of {length} bytes (header {len(header)}, body {len(command.body)}) for code {command.code}; "
            f"at most {max_frame_bytes} are allowed"
        )
    return b"".join((_PREFIX.pack(length, kind << 24 | len(header)), header, command.body))


class FrameDecoder:
    """Turns the bytes of one connection into commands. Not thread-safe.

    Memory is bounded by one frame and the bytes of one `feed`. After the first bad frame the place of the next one is
    unknown, so that the decoder refuses everything else: `failure` is the error.
    """

    def __init__(self, max_frame_bytes: int = FRAME_BYTES_MAX) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.failure: RemotingCommandError | None = None
        self._buffer = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> list[RemotingCommand]:
        """Take the next bytes and return the commands that are complete.

        Commands before a bad frame are returned; `failure` is set then, and the next call raises it.

        Raises:
            RemotingCommandError: a bad frame: its length, its type, or its header.
        """
        if self.failure is not None:
            raise self.failure
        self._buffer += data
        commands: list[RemotingCommand] = []
        at = 0
        try:
            while (end := self._end_of_frame(at)) is not None:
                commands.append(self._command(at, end))
                at = end
        except RemotingCommandError as error:
            self.failure = error
            self._buffer = bytearray()
            if not commands:
                raise
            return commands
        if at:
            del self._buffer[:at]
        return commands

    def finish(self) -> None:
        """Say that the connection has ended.

        Raises:
            RemotingCommandError: it ended within a frame.
        """
        if self.failure is None and self._buffer:
            wanted = _LENGTH_BYTES + self._prefix(0)[0] if len(self._buffer) >= _PREFIX.size else _PREFIX.size
            self.failure = RemotingCommandError(
                f"torn frame: the connection ended after {len(self._buffer)} bytes of at least {wanted}"
            )
        if self.failure is not None:
            raise self.failure

    def _prefix(self, at: int) -> tuple[int, int, int]:
        """(length, serialize type, header length)."""
        length, mark = _PREFIX.unpack_from(self._buffer, at)
        return length, mark >> 24, mark & _HEADER_BYTES_MAX

    def _end_of_frame(self, at: int) -> int | None:
        """Where the frame at `at` ends; None if it is not complete."""
        there = len(self._buffer) - at
        if there < _PREFIX.size:
            return None
        length, kind, header_bytes = self._prefix(at)
        if length > self.max_frame_bytes:
            raise RemotingCommandError(f"oversized frame: {length} bytes, at most {self.max_frame_bytes} are allowed")
        if length < _MARK_BYTES or header_bytes > length - _MARK_BYTES:
            raise RemotingCommandError(f"bad lengths: a header of {header_bytes} bytes in a frame of {length}")
        if kind not in (SerializeType.JSON, SerializeType.ROCKETMQ):
            raise RemotingCommandError(f"unknown serialize type {kind}")
        return at + _LENGTH_BYTES + length if there >= _LENGTH_BYTES + length else None

    def _command(self, at: int, end: int) -> RemotingCommand:
        _, kind, header_bytes = self._prefix(at)
        start = at + _PREFIX.size
        with memoryview(self._buffer) as view:
            header, body = bytes(view[start : start + header_bytes]), bytes(view[start + header_bytes : end])
        decode = json_header.decode if kind == SerializeType.JSON else binary_header.decode
        return decode(header, body)
