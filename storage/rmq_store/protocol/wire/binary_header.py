"""The binary form of a frame's header, serialize type 1 (RocketMQSerializable.java).

    code int16 | language int8 | version int16 | opaque int32 | flag int32 | remark length int32 | remark
    | length of the fields int32 | for each field: key length int16 | key | value length int32 | value

All integers are big-endian and signed, all texts UTF-8.
"""

from __future__ import annotations

import struct
from typing import Final

from rmq_store.protocol.errors import RemotingCommandError
from rmq_store.protocol.wire.command import RemotingCommand, SerializeType

CODE_MAX: Final = 32767
"""The largest code that the int16 of this form holds. The POP requests (200050 and above) go as JSON."""

_HEAD: Final = struct.Struct(">hbhii")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


def encode(command: RemotingCommand) -> bytes:
    """Return the header. An empty remark is the same as none.

    Raises:
        RemotingCommandError: a number or a key is too large for this form.
    """
    remark = (command.remark or "").encode("utf-8", "replace")
    pieces = []
    for name, text in command.ext_fields.items():
        key, value = name.encode("utf-8", "replace"), text.encode("utf-8", "replace")
        if len(key) > CODE_MAX:
            raise RemotingCommandError(f"binary header: a key of {len(key)} bytes, at most {CODE_MAX} are allowed")
        pieces += [_INT16.pack(len(key)), key, _INT32.pack(len(value)), value]
    fields = b"".join(pieces)
    try:
        head = _HEAD.pack(command.code, command.language, command.version, command.opaque, command.flag)
    except struct.error as error:
        raise RemotingCommandError(f"binary header: {error}") from error
    return b"".join((head, _INT32.pack(len(remark)), remark, _INT32.pack(len(fields)), fields))


def decode(header: bytes, body: bytes) -> RemotingCommand:
    """Read a header.

    Raises:
        RemotingCommandError: a length points outside the header, bytes are left over, or a text is not UTF-8.
    """
    if len(header) < _HEAD.size:
        raise RemotingCommandError(f"binary header: {len(header)} bytes, fewer than {_HEAD.size}")
    code, language, version, opaque, flag = _HEAD.unpack_from(header)
    remark, at = _text(header, _HEAD.size, _INT32, "the remark")
    fields: dict[str, str] = {}
    length, at = _length(header, at, _INT32, "the fields")
    end = at + length
    while at < end:
        key, at = _text(header, at, _INT16, "a key")
        fields[key], at = _text(header, at, _INT32, "a value")
    if at != end or end != len(header):
        raise RemotingCommandError(f"binary header: the fields end at byte {at} of {len(header)}, not at byte {end}")
    return RemotingCommand(
        code=code,
        ext_fields=fields,
        body=body,
        opaque=opaque,
        flag=flag,
        remark=remark or None,
        language=language,
        version=version,
        serialize_type=SerializeType.ROCKETMQ,
    )


def _length(header: bytes, at: int, form: struct.Struct, what: str) -> tuple[int, int]:
    """(length, position after it), checked against the end of the header."""
    if at + form.size > len(header):
        raise RemotingCommandError(f"binary header: it ends before the length of {what}, at byte {at}")
    length: int = form.unpack_from(header, at)[0]
    at += form.size
    if not 0 <= length <= len(header) - at:
        raise RemotingCommandError(f"binary header: {length} bytes for {what} at byte {at} of {len(header)}")
    return length, at


def _text(header: bytes, at: int, form: struct.Struct, what: str) -> tuple[str, int]:
    length, at = _length(header, at, form, what)
    try:
        return header[at : at + length].decode(), at + length
    except UnicodeDecodeError as error:
        raise RemotingCommandError(f"binary header: {what} is not UTF-8 at byte {at + error.start}") from error
