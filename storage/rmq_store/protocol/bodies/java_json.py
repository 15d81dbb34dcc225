"""JSON as Java's fastjson writes it: maps may have integers, or whole objects, as keys (RemotingSerializable.java).

    {"brokerAddrs":{0:"10.0.0.3:10911"}}
    {"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"Orders"}:{"maxOffset":7,"minOffset":0}}}

`loads` reads this and standard JSON. `dumps` writes compact text, as fastjson does without features.
"""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any, Final, NoReturn

from rmq_store.format.tables.fastjson import DEPTH_MAX, MARK, NUMBER, STRING, WORD, FastjsonReader
from rmq_store.protocol.errors import RemotingCommandError

SIZE_MAX: Final = 16 << 20

_INT64: Final = range(-(1 << 63), 1 << 63)


class ObjectKey(tuple[tuple[str, Any], ...]):
    """An object that is the key of a map: its members in their order."""

    __slots__ = ()

    def members(self) -> dict[str, Any]:
        """Return the members as a dict."""
        return dict(self)


def loads(text: str | bytes) -> Any:
    """Read one value. Objects become dicts whose keys are str, int or ObjectKey; the last of equal keys counts.

    An unquoted true, false or null as a key is read as a text.

    Raises:
        RemotingCommandError: not UTF-8, not such JSON, over 16 MiB, or deeper than 64.
    """
    if len(text) > SIZE_MAX:
        raise RemotingCommandError(f"JSON body: {len(text)} bytes, more than {SIZE_MAX}")
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError as error:
            raise RemotingCommandError(f"JSON body: not UTF-8 at byte {error.start}") from error
    # Most bodies are standard JSON, for which the decoder in C is far faster.
    if text.count("{") + text.count("[") <= DEPTH_MAX or not _is_deep(text):
        try:
            return _DECODER.decode(text)
        except (ValueError, RecursionError):
            pass  # the reader says why, or reads what is not standard
        if "\\" not in text and not _BRACES & set("".join(text.split('"')[1::2])):
            try:
                return _KEYS_DECODER.decode(_OBJECT_KEY.sub(_quoted_key, text))
            except (ValueError, RecursionError):
                pass
    return _Reader(text).document()


# In a text without escapes and without braces in its strings, a flat object before a colon is a key. As a string with
# a mark that no string of such a text can hold, it is read by the decoder in C: tables of offsets are read with every
# trigger of a stream.
_BRACES: Final = frozenset("{}")
_OBJECT_KEY: Final = re.compile(r"\{([^{}]*)\}(?=[ \t\r\n]*:)")
_KEY_MARK: Final = "\x01"


def _quoted_key(match: re.Match[str]) -> str:
    members = match[1].replace('"', '\\"')
    return f'"\\u0001{members}"'


def _with_object_keys(pairs: list[tuple[str, Any]]) -> dict[Any, Any]:
    if not pairs or not any(key[:1] == _KEY_MARK for key, _ in pairs):
        return dict(pairs)
    return {
        _hashable(_DECODER.decode("{" + key[1:] + "}")) if key[:1] == _KEY_MARK else key: value for key, value in pairs
    }


def _is_deep(text: str) -> bool:
    depth = 0
    for mark in _STRINGS_AND_MARKS.findall(text):
        if mark in "[{":
            depth += 1
        elif mark in "]}":
            depth -= 1
        if depth > DEPTH_MAX:
            return True
    return False


_STRINGS_AND_MARKS: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"|[][{}]')


def _float(token: str) -> float:
    value = float(token)
    if math.isfinite(value):
        return value
    raise ValueError("a number beyond double")


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


_DECODER: Final = json.JSONDecoder(parse_float=_float, parse_constant=_constant)
_KEYS_DECODER: Final = json.JSONDecoder(
    parse_float=_float, parse_constant=_constant, object_pairs_hook=_with_object_keys
)


class _Reader(FastjsonReader):
    """Any value; integers, words and objects may be keys."""

    def error(self, reason: str) -> Exception:
        return RemotingCommandError(f"JSON body: {reason}")

    def integer(self, token: str) -> int:
        return int(token)

    def real(self, token: str) -> float:
        return _float(token)

    def key(self, depth_left: int) -> Any:
        if self.kind == MARK and self.token == "{":
            return _hashable(self.value(depth_left))
        key: str | int | float = self.token
        if self.kind == NUMBER:
            key = self.number()
        elif self.kind == STRING:
            key = self.string()
        if isinstance(key, float) or self.kind not in (NUMBER, STRING, WORD):
            self.fail("a key is expected: a text, an integer or an object")
        self.advance()
        return key


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return ObjectKey((key, _hashable(item)) for key, item in value.items())
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


# fastjson's escapes: controls with four upper-case digits, also 0x7F to 0x9F and the two line separators.
_ESCAPES: Final = str.maketrans(
    {chr(code): f"\\u{code:04X}" for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}
    | {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
)
_SPECIAL: Final = re.compile(r'["\\\x00-\x1f\x7f-\x9f\u2028\u2029]')


def dumps(value: Any, *, quoted_keys: bool = False) -> str:
    """Write a value: without blanks, integer keys unquoted (`quoted_keys` quotes them, as for clients from 4.9.4).

    Raises:
        RemotingCommandError: a key or a value that JSON cannot hold, or more than 64 levels.
    """
    return _written(value, quoted_keys, DEPTH_MAX)


def _written(value: Any, quoted_keys: bool, depth_left: int) -> str:
    if isinstance(value, str):
        return _string(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and value in _INT64:
        return str(int(value))
    if isinstance(value, float) and math.isfinite(value):
        return _double(value)
    if depth_left == 0:
        raise RemotingCommandError(f"JSON body: nested deeper than {DEPTH_MAX}")
    if isinstance(value, ObjectKey):
        value = value.members()
    if isinstance(value, dict):
        members = (
            f"{_key(key, quoted_keys, depth_left)}:{_written(item, quoted_keys, depth_left - 1)}"
            for key, item in value.items()
        )
        return "{" + ",".join(members) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_written(item, quoted_keys, depth_left - 1) for item in value) + "]"
    raise RemotingCommandError(f"JSON body: it cannot hold a {type(value).__name__}")


def _double(value: float) -> str:
    """Double.toString: 1.5, 1.0E10, 1.0E-5."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    text = "".join(map(str, digits)).rstrip("0")
    return f"{'-' * sign}{text[0]}.{text[1:] or '0'}E{int(exponent) + len(digits) - 1}"


def _key(key: Any, quoted_keys: bool, depth_left: int) -> str:
    if isinstance(key, int) and not isinstance(key, bool):
        return f'"{key}"' if quoted_keys else _written(key, quoted_keys, 0)
    if isinstance(key, str | ObjectKey):
        return _written(key, quoted_keys, depth_left - 1)
    raise RemotingCommandError(f"JSON body: it cannot hold a {type(key).__name__} as a key")


def _string(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"' if _SPECIAL.search(text) else f'"{text}"'
