"""How a typed header becomes the `extFields` of a command, and back (CommandCustomHeader.java, @CFNotNull).

A header is a frozen dataclass. Its fields are `str`, `int` (Java's long), `Int32`, or `bool`, each perhaps `| None`.
A field without a default is mandatory. The wire's name of a field is its name in camelCase, or what `wire_names` has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import lru_cache
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeAlias

from rmq_store.format.text.names import java_name
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.errors import RemotingCommandError
from rmq_store.protocol.wire.command import RemotingCommand

Int32: TypeAlias = int
"""Java's int: read within its range."""

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_SHOWN: Final = 64


class _Field(NamedTuple):
    """`read` makes a value of a text, or raises ValueError."""

    name: str
    wire_name: str
    read: Callable[[str], Any]
    mandatory: bool


def _integer(bits: int) -> Callable[[str], int]:
    always_fit = 9 if bits == 32 else 18

    def read(text: str) -> int:
        if len(text) <= always_fit and text.isascii() and text.isdigit():
            return int(text)
        value = int(text) if _INTEGER.fullmatch(text) else None
        if value is None or not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise ValueError(f"is no {bits}-bit integer")
        return value

    return read


_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "str": str,
    # Of the fields of many answers most are the same.
    "int": lru_cache(1024)(_integer(64)),
    "Int32": _integer(32),
    # Boolean.parseBoolean: everything else is false.
    "bool": lambda text: text.lower() == "true",
}


_FIELDS: Final[dict[type[_Header], tuple[_Field, ...]]] = {}


def _fields_of(header: type[_Header]) -> tuple[_Field, ...]:
    known = _FIELDS.get(header)
    return known if known is not None else _FIELDS.setdefault(header, _inspected(header))


def _inspected(header: type[_Header]) -> tuple[_Field, ...]:
    return tuple(
        _Field(
            one.name,
            header.wire_names.get(one.name) or java_name(one.name),
            # The modules of headers have `from __future__ import annotations`: a type is its text.
            _READERS[str(one.type).removesuffix(" | None")],
            one.default is MISSING,
        )
        for one in fields(header)
    )


@dataclass(frozen=True, slots=True)
class _Header:
    wire_names: ClassVar[Mapping[str, str]] = {}

    def to_ext(self) -> dict[str, str]:
        """Return the fields as the wire has them; those that are None are left out."""
        ext = {}
        for one in _fields_of(type(self)):
            value = getattr(self, one.name)
            if value is not None:
                ext[one.wire_name] = str(value).lower() if isinstance(value, bool) else str(value)
        return ext

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """Read the fields; unknown ones are ignored.

        Raises:
            RemotingCommandError: a mandatory field is missing, or a text is no value of its field.
        """
        values = {}
        for name, wire_name, read, mandatory in _fields_of(cls):
            text = ext.get(wire_name)
            if text is None:
                if mandatory:
                    raise RemotingCommandError(f"{cls.__name__}: the field {wire_name!r} is missing")
                continue
            try:
                values[name] = read(text)
            except ValueError as error:
                raise RemotingCommandError(f"{cls.__name__}: {wire_name}={text[:_SHOWN]!r} {error}") from error
        return cls(**values)


@dataclass(frozen=True, slots=True)
class RequestHeader(_Header):
    """The typed fields of a request; `code` is the request that they belong to."""

    code: ClassVar[int]


@dataclass(frozen=True, slots=True)
class ResponseHeader(_Header):
    """The typed fields of an answer."""


def mandatory_names(header: type[RequestHeader] | type[ResponseHeader]) -> dict[str, bool]:
    """Return the wire's names of a header's fields, and whether each is mandatory."""
    return {one.wire_name: one.mandatory for one in _fields_of(header)}


def request(header: RequestHeader, body: bytes = b"") -> RemotingCommand:
    """Return the request that a header stands for."""
    return RemotingCommand(int(header.code), header.to_ext(), body)
