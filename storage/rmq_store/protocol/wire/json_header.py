"""The JSON form of a frame's header (RemotingSerializable.java), read as tolerantly as real peers require.

    {"code":310,"extFields":{"a":"pg","e":"0"},"flag":0,"language":"PYTHON","opaque":7,"serializeTypeCurrentRPC":"JSON",
     "version":409}

Values of `extFields` may be numbers or booleans (C++ 1.x), `language` may be a number (pyrocketmq), `extFields` and
`remark` may be missing or null, and unknown members are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any, Final

from rmq_store.protocol.errors import RemotingCommandError
from rmq_store.protocol.wire.command import VERSION, LanguageCode, RemotingCommand

_quoted: Final = encode_basestring
_LANGUAGES: Final = {language.name: int(language) for language in LanguageCode}
_LANGUAGE_NAMES: Final = {int(language): language.name for language in LanguageCode}
_ONLY_TEXT: Final = frozenset((str,))
_INT32_DIGITS_MAX: Final = 11
_NUMBER_MAX: Final = 64
_NUMBER_END: Final = 10**_NUMBER_MAX


class _Number(str):
    """A number with a fraction, as it is spelled: a value of `extFields` keeps its spelling."""

    __slots__ = ()


def _constant(name: str) -> _Number:
    raise ValueError(f"{name} is no number of JSON")


def _number(token: str) -> _Number:
    if len(token) > _NUMBER_MAX:
        raise ValueError(f"a number of {len(token)} digits")
    return _Number(token)


_DECODER: Final = json.JSONDecoder(parse_float=_number, parse_constant=_constant)


def encode(command: RemotingCommand) -> bytes:
    """Return the header. A lone surrogate becomes "?", as in Java."""
    remark = "" if command.remark is None else f'"remark":{_quoted(command.remark)},'
    return _header(command, _pairs(command.ext_fields), f"{command.opaque:d},{remark}").encode("utf-8", "replace")


def template(command: RemotingCommand, varying: Sequence[str]) -> tuple[bytes, ...]:
    """Return the parts of the header of a command, between which the values of the fields `varying` stand, and then the
    opaque. A value is a number, or a text that needs no escape. Fields that the command has keep their places.
    """
    places = {name: f'{_quoted(name)}:"\0"' for name in varying}
    fixed = [places.pop(name, "") or _pairs({name: value}) for name, value in command.ext_fields.items()]
    header = _header(command, ",".join([*fixed, *places.values()]), "\0,")
    # Quoted text has no such character of its own.
    return tuple(part.encode("utf-8", "replace") for part in header.split("\0"))


def _pairs(fields: Mapping[str, str]) -> str:
    return ",".join([f"{_quoted(name)}:{_quoted(value)}" for name, value in fields.items()])


def _header(command: RemotingCommand, pairs: str, opaque: str) -> str:
    extension = f'"extFields":{{{pairs}}},' if pairs else ""
    language = _LANGUAGE_NAMES.get(command.language, LanguageCode.OTHER.name)
    return (
        f'{{"code":{command.code:d},{extension}"flag":{command.flag:d},"language":"{language}","opaque":{opaque}'
        f'"serializeTypeCurrentRPC":"JSON","version":{command.version:d}}}'
    )


def decode(header: bytes, body: bytes) -> RemotingCommand:
    """Read a header.

    Raises:
        RemotingCommandError: not UTF-8, not JSON, `code` is missing, or a member has a wrong type.
    """
    try:
        members = _members(header.decode())
    except UnicodeDecodeError as error:
        raise RemotingCommandError(f"JSON header: not UTF-8 at byte {error.start}") from error
    except RecursionError as error:
        raise RemotingCommandError("JSON header: nested too deeply") from error
    except ValueError as error:
        raise RemotingCommandError(f"JSON header: {error}") from error
    if not isinstance(members, dict):
        raise RemotingCommandError("JSON header: an object is expected")
    if members.get("code") is None:
        raise RemotingCommandError("JSON header: no member 'code'")
    remark = members.get("remark")
    if remark is not None and not isinstance(remark, str):
        raise RemotingCommandError("JSON header: 'remark' is no text")
    return RemotingCommand(
        _int32(members, "code", 0),
        _ext_fields(members.get("extFields")),
        body,
        _int32(members, "opaque", 0),
        _int32(members, "flag", 0),
        None if remark is None else str(remark),
        _language(members.get("language")),
        _int32(members, "version", VERSION),
    )


def _members(text: str) -> Any:
    """The value of a text. `decode` does the same, and looks for white space around it first."""
    if text.startswith("{"):
        members, end = _DECODER.raw_decode(text)
        if end == len(text):
            return members
    return _DECODER.decode(text)


def _int32(members: dict[str, Any], name: str, default: int) -> int:
    value = members.get(name)
    if type(value) is int and -(1 << 31) <= value < 1 << 31:
        return value
    if value is None:
        return default
    # Integers come as numbers; a text of digits is accepted, as fastjson accepts it.
    if isinstance(value, str) and len(value) <= _INT32_DIGITS_MAX and value.isascii():
        digits = value.removeprefix("-")
        if digits.isdigit() and -(1 << 31) <= int(value) < 1 << 31:
            return int(value)
    raise RemotingCommandError(f"JSON header: {name!r} is no 32-bit integer")


def _language(value: Any) -> int:
    if value is None or type(value) is str:
        return _LANGUAGES.get(value or "", LanguageCode.OTHER)
    if isinstance(value, int | _Number) and not isinstance(value, bool):
        return _int32({"language": value}, "language", 0)
    raise RemotingCommandError("JSON header: 'language' is neither a name nor a number")


def _ext_fields(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RemotingCommandError("JSON header: 'extFields' is no object")
    if _ONLY_TEXT.issuperset(map(type, value.values())):  # as of most peers
        return value
    fields = {}
    for name, item in value.items():
        if type(item) is str:
            fields[name] = item
        elif isinstance(item, str):
            fields[name] = str(item)
        elif isinstance(item, bool):
            fields[name] = "true" if item else "false"
        elif isinstance(item, int) and -_NUMBER_END < item < _NUMBER_END:
            fields[name] = str(item)
        elif item is not None:
            raise RemotingCommandError(f"JSON header: 'extFields' has no text as {name[:64]!r}")
    return fields
