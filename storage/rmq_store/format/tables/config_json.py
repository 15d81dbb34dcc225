"""JSON as RocketMQ's config files hold it: maps with integer keys are written without quotes (control plane).

    "offsetTable":{"orders@billing":{0:33,1:32}}

Strict otherwise, and bounded: no NaN, a limited depth and size. Key order is kept: `dumps(loads(text), style) == text`
for what a broker of that style wrote. The file may be rewritten for one entry, so what no entry of ours holds survives
as its text: numbers beyond int64 or double and numbers in another spelling (`Verbatim`), strings in another spelling
(`Spelled`), and the earlier members of a name that comes again (`Shadowed`; the last one counts, as in Java).
Source: files of 5.5.0 and 4.9.7 brokers; RemotingSerializable.java (toJson), fastjson's pretty format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any, Literal, NoReturn

from rmq_store.format.tables.fastjson import DEPTH_MAX, NUMBER, STRING, FastjsonReader
from rmq_store.lazy.dataclasses import dataclass

Style = Literal["4.x", "5.x", "compact"]

SIZE_MAX = 64 * 1024 * 1024

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_NAMES = {True: "true", False: "false", None: "null"}
_CONTAINERS = (dict, list, tuple)
_SHOWN = 40
_FLOAT_TEXT_MAX = 30
_MISSING = object()
_PLAIN = (str, bool, int, type(None))


class ConfigJsonError(ValueError):
    """The text is no JSON of a config file, or a value cannot be written as such; the message says where."""


@dataclass(frozen=True, slots=True)
class Verbatim:
    """A number, as value or key, that Java's types cannot hold, or whose spelling we would not write."""

    text: str

    def __repr__(self) -> str:
        return self.text if len(self.text) <= _SHOWN else self.text[:_SHOWN] + "..."


class Spelled(str):
    """A string whose escapes we would not write; `token` is its text in the file."""

    __slots__ = ("token",)
    token: str


@dataclass(frozen=True, slots=True, eq=False)
class Shadowed:
    """The key of an earlier member whose key comes again in the same object. It equals only itself."""

    key: Hashable

    def __repr__(self) -> str:
        return f"an earlier {self.key!r}"


def remove(members: dict[Any, Any], key: Hashable) -> bool:
    """Delete a member and the earlier members that it shadows, which would count again without it. False if there was
    none.
    """
    for shadowed in [other for other in members if isinstance(other, Shadowed) and other.key == key]:
        del members[shadowed]
    return members.pop(key, _MISSING) is not _MISSING


def as_json_value(value: Any) -> Any:
    """A loaded value in a form that any JSON writer accepts: without shadowed members; numbers without a value become
    text.
    """
    if isinstance(value, dict):
        return {
            key.text if isinstance(key, Verbatim) else key: as_json_value(item)
            for key, item in value.items()
            if not isinstance(key, Shadowed)
        }
    if isinstance(value, list):
        return [as_json_value(item) for item in value]
    return value.text if isinstance(value, Verbatim) else value


def loads(text: str | bytes) -> dict[Any, Any]:
    """Read one object; quoted keys become str, unquoted ones int. The module says how unusual values are kept.

    Raises:
        ConfigJsonError: not UTF-8, not such JSON, over 64 MiB, deeper than 64.
    """
    if len(text) > SIZE_MAX:
        raise ConfigJsonError(f"{len(text)} bytes, more than {SIZE_MAX}")
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError as error:
            raise ConfigJsonError(f"at byte {error.start}: not UTF-8") from error
    return _plain(text) or _Reader(text).document()


def _plain(text: str) -> dict[Any, Any] | None:
    """The object, if `text` is JSON as everybody knows it (most tables are; this is far faster), else None."""
    if "\\" in text:  # this reader does not tell how a string is spelled
        return None
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and not _is_deeper(value, DEPTH_MAX) else None


def _is_deeper(value: Any, depth: int) -> bool:
    """Whether there are more than `depth` levels of objects and lists."""
    if depth == 0:
        return True
    inner = value.values() if isinstance(value, dict) else value
    return any(_is_deeper(item, depth - 1) for item in inner if isinstance(item, _CONTAINERS))


def _integer(token: str) -> int | Verbatim:
    # The length first: int() of a long text takes quadratic time.
    value = int(token) if len(token) <= len(str(_INT64_MIN)) else _INT64_MAX + 1
    return value if _INT64_MIN <= value <= _INT64_MAX and token != "-0" else Verbatim(token)


def _float(token: str) -> float | Verbatim:
    value = float(token) if len(token) <= _FLOAT_TEXT_MAX else math.inf
    return value if math.isfinite(value) and repr(value) == token else Verbatim(token)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _members(pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    last = {key: number for number, (key, _) in enumerate(pairs)}
    return {key if last[key] == number else Shadowed(key): value for number, (key, value) in enumerate(pairs)}


_DECODER = json.JSONDecoder(
    parse_int=_integer, parse_float=_float, parse_constant=_no_constant, object_pairs_hook=_members
)


class _Reader(FastjsonReader):
    """One object, every spelling of which is kept."""

    def document(self) -> dict[Any, Any]:
        if self.token != "{":
            self.fail("an object is expected")
        value: dict[Any, Any] = super().document()
        return value

    def error(self, reason: str) -> Exception:
        return ConfigJsonError(reason)

    def integer(self, token: str) -> int | Verbatim:
        return _integer(token)

    def real(self, token: str) -> float | Verbatim:
        return _float(token)

    def string(self) -> str:
        text = super().string()
        if "\\" not in self.token or _string(text) == self.token:
            return text
        spelled = Spelled(text)
        spelled.token = self.token
        return spelled

    def key(self, depth_left: int) -> str | int | Verbatim:
        key: str | int | Verbatim
        if self.kind == STRING:
            key = self.string()
        elif self.kind == NUMBER and self.token.lstrip("-").isdigit():
            key = _integer(self.token)
        else:
            self.fail("a key is expected, quoted or an integer")
        self.advance()
        return key

    def members(self, pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
        return _members(pairs)


def dumps(value: dict[Any, Any], style: Style = "5.x") -> str:
    """Write `value` as a broker of that version does, without a newline at the end.

    Both styles: a tab for each level, no space after colons, empty containers closed at once, keys in their order. 5.x:
    each element of a list and each integer key on its own line. 4.x: lists, and maps with integer keys and everything
    below them, in one line. compact: everything in one line (timermetrics, transactionMetrics).

    Raises:
        ConfigJsonError: a key or a value that the files cannot hold.
    """
    if style == "compact":
        return _inline(value, DEPTH_MAX)
    return _pretty(value, "\n", DEPTH_MAX, in_one_line=style == "4.x")


def _pretty(value: Any, line_start: str, depth_left: int, *, in_one_line: bool) -> str:
    if depth_left < 0:
        raise ConfigJsonError(f"nested deeper than {DEPTH_MAX}")
    if not value or not isinstance(value, _CONTAINERS):
        return _inline(value, depth_left)
    inner, below = line_start + "\t", depth_left - 1
    if isinstance(value, dict):
        if in_one_line and all(isinstance(key, int) for key in value):
            return _inline(value, depth_left)[:-1] + line_start + "}"
        if below >= 0 and (text := _flat(value, inner)):
            return "{" + inner + text[1:-1] + line_start + "}"
        items = [f"{_key(key)}:{_pretty(item, inner, below, in_one_line=in_one_line)}" for key, item in value.items()]
        return "{" + inner + f",{inner}".join(items) + line_start + "}"
    if in_one_line:
        return _inline(value, depth_left)
    items = [_pretty(item, inner, below, in_one_line=in_one_line) for item in value]
    return "[" + inner + f",{inner}".join(items) + line_start + "]"


def _flat(value: dict[Any, Any], inner: str) -> str:
    """The object with each member behind `inner`, if the standard JSON writer, which is far faster, writes it as we do:
    texts as keys, and nothing in it that has members itself; else "".
    """
    for key, item in value.items():
        kind = type(item)
        if type(key) is not str or (item if kind in _CONTAINERS else kind not in _PLAIN):
            return ""
        if kind is int and not _INT64_MIN <= item <= _INT64_MAX:
            return ""
    text = _flat_encoder(inner).encode(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return ""
    return text


@lru_cache(DEPTH_MAX)
def _flat_encoder(inner: str) -> json.JSONEncoder:
    return json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(f",{inner}", ":"))


def _inline(value: Any, depth_left: int) -> str:
    if depth_left < 0:
        raise ConfigJsonError(f"nested deeper than {DEPTH_MAX}")
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{_key(key)}:{_inline(item, depth_left - 1)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_inline(item, depth_left - 1) for item in value) + "]"
    if value is None or isinstance(value, bool):
        return _NAMES[value]
    if isinstance(value, int) and _INT64_MIN <= value <= _INT64_MAX:
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    if isinstance(value, Verbatim):
        return value.text
    raise ConfigJsonError(f"a config file cannot hold {value!r}")


def _key(key: Any) -> str:
    if isinstance(key, str):
        return _string(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return _inline(key, 0)
    if isinstance(key, Shadowed):
        return _key(key.key)
    if isinstance(key, Verbatim):
        return key.text
    raise ConfigJsonError(f"a config file cannot hold the key {key!r}")


_ENCODER = json.JSONEncoder(ensure_ascii=False)


def _string(text: str) -> str:
    if isinstance(text, Spelled):
        return text.token
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate: as an escape it is legal
        return json.dumps(text)
    return _ENCODER.encode(text)
