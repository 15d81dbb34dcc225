"""Checks of a value against a type that a function declares, for `arguments`: one function for each kind of type.

Each returns the value to use, or raises Wrong. A type that says nothing (Any, a protocol) has none.
"""

from __future__ import annotations

import enum
import functools
import operator
import os
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, Union

Converter = Callable[[Any], Any]
"""Returns the value to use, or raises Wrong."""

_INT64_END: Final = 1 << 63
_NAME_BYTES_MAX: Final = 255  # of one name in a path: NAME_MAX
_PATH_BYTES_MAX: Final = 4095  # PATH_MAX, without the NUL


class Wrong(Exception):
    """A value is not what `expected` says."""

    def __init__(self, expected: str) -> None:
        super().__init__(expected)
        self.expected = expected


def converters_of(function: Callable[..., Any]) -> dict[str, Converter]:
    """Of every parameter whose annotation says something."""
    hints = typing.get_type_hints(function)
    hints.pop("return", None)
    return {name: convert for name, hint in hints.items() if (convert := _converter(hint)) is not None}


def _converter(hint: Any) -> Converter | None:
    """The check of a value of this type; None if any value will do."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint is object or isinstance(hint, TypeVar):
        return None
    if origin in (Union, types.UnionType):
        return _one_of(parts)
    if origin is Literal:
        return functools.partial(_literal, parts)
    if hint is None or hint is type(None):
        return _none
    if hint in _PLAIN:
        return _PLAIN[hint]
    if origin is not None:
        return _generic(origin, parts)
    if not isinstance(hint, type) or getattr(hint, "_is_protocol", False):
        return None
    return functools.partial(_of_class, hint)


def _generic(origin: Any, parts: tuple[Any, ...]) -> Converter | None:
    if origin is Callable:
        return _callable
    if not isinstance(origin, type):
        return None
    if issubclass(origin, tuple):
        if len(parts) == 2 and parts[1] is Ellipsis:
            return functools.partial(_elements, tuple, _converter(parts[0]))
        return functools.partial(_tuple, tuple(_converter(part) for part in parts))
    if issubclass(origin, Mapping):
        return functools.partial(_mapping, *(_converter(part) for part in parts))
    if issubclass(origin, Iterable):
        return functools.partial(_elements, origin, _converter(parts[0]))
    return functools.partial(_of_class, origin)


def _one_of(parts: tuple[Any, ...]) -> Converter | None:
    if str in parts and Path in parts:
        parts = (*(part for part in parts if part not in (str, Path)), Path)
    converters = [_converter(part) for part in parts]
    if None in converters:
        return None

    def convert(value: object) -> Any:
        expected = []
        for one in converters:
            assert one is not None
            try:
                return one(value)
            except Wrong as wrong:
                expected.append(wrong.expected)
        raise Wrong(" or ".join(expected))

    return convert


def _none(value: object) -> None:
    if value is not None:
        raise Wrong("None")


def an_integer(value: object) -> int:
    """Numpy's integers overflow in sums, and cannot be written as JSON."""
    if type(value) is int and -_INT64_END <= value < _INT64_END:
        return value
    number = value if isinstance(value, int) and not isinstance(value, bool) else None
    if number is None and not isinstance(value, bool) and hasattr(value, "__index__") and not isinstance(value, type):
        try:
            number = operator.index(value)
        except TypeError:
            number = None
    if number is None:
        raise Wrong("an integer")
    if not -_INT64_END <= number < _INT64_END:
        raise Wrong("an integer of 64 bits")
    return number


def _number(value: object) -> float:
    if isinstance(value, float):
        return value
    try:
        return an_integer(value)
    except Wrong:
        raise Wrong("a number") from None


def _flag(value: object) -> bool:
    if type(value) is not bool:
        raise Wrong("True or False")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise Wrong("text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Wrong("text without lone surrogates") from None
    return value


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise Wrong("bytes")
    return value


def a_path(value: object) -> str | os.PathLike[str]:
    """Names that are no UTF-8 are in order; what no system call would take is not."""
    if isinstance(value, os.PathLike) and isinstance(os.fspath(value), bytes):
        raise Wrong("a path as text")
    if not isinstance(value, str | os.PathLike):
        raise Wrong("a path")
    try:
        raw = os.fsencode(value)
    except UnicodeEncodeError:
        raise Wrong("a path without lone surrogates") from None
    if not raw:
        raise Wrong("a path that is not empty")
    if b"\0" in raw:
        raise Wrong("a path without NUL")
    if max(map(len, raw.split(b"/"))) > _NAME_BYTES_MAX or len(raw) > _PATH_BYTES_MAX:
        raise Wrong(f"a path of at most {_PATH_BYTES_MAX} bytes, with names of at most {_NAME_BYTES_MAX}")
    return value


def _callable(value: object) -> object:
    if not callable(value):
        raise Wrong("a function")
    return value


def _of_class(kind: type, value: object) -> object:
    if isinstance(value, kind):
        return value
    if issubclass(kind, enum.Enum) and isinstance(value, str | int) and not isinstance(value, bool | enum.Enum):
        try:
            return kind(value)  # a text equals the member of its name, but is not it
        except ValueError:
            raise Wrong(f"one of {', '.join(kind.__members__)}") from None
    raise Wrong(f"a {kind.__name__}")


def _literal(values: tuple[Any, ...], value: object) -> object:
    if not any(type(value) is type(known) and value == known for known in values):
        raise Wrong(" or ".join(map(repr, values)))
    return value


def _tuple(converters: tuple[Converter | None, ...], value: object) -> object:
    if not isinstance(value, tuple) or len(value) != len(converters):
        raise Wrong(f"a tuple of {len(converters)}")
    return _same_or(value, tuple(map(_convert_one, converters, value)))


def _elements(kind: type, convert: Converter | None, value: object) -> object:
    if isinstance(value, str | bytes) or not isinstance(value, kind):
        raise Wrong("a list" if issubclass(kind, Sequence) else "a collection")
    if convert is None or not isinstance(value, Collection):
        return value  # what can be gone through only once is looked at by who does it
    changed = [_convert_one(convert, part) for part in value]
    if all(map(operator.is_, changed, value)):
        return value
    return type(value)(changed) if isinstance(value, tuple | set | frozenset) else changed


def _mapping(key: Converter | None, item: Converter | None, value: object) -> object:
    if not isinstance(value, Mapping):
        raise Wrong("a mapping")
    changed = {_convert_one(key, name): _convert_one(item, one) for name, one in value.items()}
    return value if all(map(operator.is_, changed.values(), value.values())) and _same_keys(changed, value) else changed


def _same_keys(changed: Mapping[Any, Any], value: Mapping[Any, Any]) -> bool:
    return all(map(operator.is_, changed, value))


def _same_or(value: tuple[Any, ...], changed: tuple[Any, ...]) -> tuple[Any, ...]:
    return value if all(map(operator.is_, changed, value)) else changed


def _convert_one(convert: Converter | None, value: object) -> Any:
    if convert is None:
        return value
    try:
        return convert(value)
    except Wrong as wrong:
        raise Wrong(f"{wrong.expected} in it") from None


_PLAIN: Final[dict[Any, Converter]] = {
    int: an_integer, float: _number, bool: _flag, str: _text, bytes: _bytes, Path: a_path,
}  # fmt: skip
