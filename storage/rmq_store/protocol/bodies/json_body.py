"""How a typed body becomes JSON, and back.

A body is a frozen dataclass. Its fields have the types str, int (Java's long), float, bool, Any, MessageQueue, another
body, `tuple[T, ...]` or `Mapping[K, T]`, each perhaps `| None`. A field without a default is mandatory. The wire's name
of a field is its name in camelCase, or what `wire_names` has. Members are written in the order of their names, as
fastjson does, and None is left out. Reading is tolerant: unknown members are ignored, null is "missing", numbers and
booleans may be texts, and an enum may be its ordinal (C++ 1.x).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, ClassVar, Final, NamedTuple, Self, Union, get_args, get_origin, get_type_hints

from rmq_store.format.text.names import java_name
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.bodies import java_json
from rmq_store.protocol.bodies.java_json import ObjectKey
from rmq_store.protocol.errors import RemotingCommandError
from rmq_store.protocol.messages import MessageQueue

_INTEGER_DIGITS_MAX: Final = 20
_INT64: Final = range(-(1 << 63), 1 << 63)


class _WrongValueError(ValueError):
    """`place` is the path to the value: `.queueDatas[0].perm`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.place = ""

    def inside(self, step: str) -> _WrongValueError:
        self.place = step + self.place
        return self


class _Kind(NamedTuple):
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


def _read_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    raise _WrongValueError("is no text")


def _read_integer(value: Any) -> int:
    if isinstance(value, str) and len(value) <= _INTEGER_DIGITS_MAX and value.isascii():
        digits = value.removeprefix("-")
        value = int(value) if digits.isdigit() else None
    if not isinstance(value, int) or isinstance(value, bool) or value not in _INT64:
        raise _WrongValueError("is no integer of 64 bits")
    return value


def _read_float(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise _WrongValueError("is no number")


def _read_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise _WrongValueError("is no boolean")


_PLAIN: Final[dict[Any, _Kind]] = {
    str: _Kind(_read_text, _same),
    int: _Kind(_read_integer, _same),
    float: _Kind(_read_float, _same),
    bool: _Kind(_read_bool, _same),
    Any: _Kind(_same, _same),
}


def _read_queue(value: Any) -> MessageQueue:
    """Read a MessageQueue: an object, or its JSON as a text (a key that standard JSON can hold)."""
    if isinstance(value, str):
        value = java_json.loads(value)
    members = value.members() if isinstance(value, ObjectKey) else value
    if not isinstance(members, dict):
        raise _WrongValueError("is no queue")
    for name in ("topic", "brokerName", "queueId"):
        if members.get(name) is None:
            raise _WrongValueError(f"has no member {name!r}")
    return MessageQueue(
        _read_text(members["topic"]), _read_text(members["brokerName"]), _read_integer(members["queueId"])
    )


def _write_queue(queue: MessageQueue) -> ObjectKey:
    return ObjectKey((("brokerName", queue.broker_name), ("queueId", queue.queue_id), ("topic", queue.topic)))


def _kind_of(annotation: Any) -> _Kind:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (types.UnionType, Union):
        return _kind_of(next(each for each in arguments if each is not types.NoneType))
    if origin is tuple:
        return _list_of(_kind_of(arguments[0]))
    if origin is Mapping:
        return _map_of(_kind_of(arguments[0]), _kind_of(arguments[1]))
    if annotation is MessageQueue:
        return _Kind(_read_queue, _write_queue)
    if isinstance(annotation, type) and issubclass(annotation, JsonBody):
        return _Kind(annotation._from_value, JsonBody.to_json)
    return _PLAIN[annotation]


def _list_of(kind: _Kind) -> _Kind:
    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _WrongValueError("is no list")
        found = []
        for number, item in enumerate(value):
            try:
                found.append(kind.read(item))
            except _WrongValueError as error:
                raise error.inside(f"[{number}]") from None
        return tuple(found)

    return _Kind(read, lambda values: [kind.write(value) for value in values])


def _map_of(key_kind: _Kind, kind: _Kind) -> _Kind:
    def read(value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise _WrongValueError("is no object")
        found = {}
        for key, item in value.items():
            try:
                name = key_kind.read(key)
                found[name] = kind.read(item)
            except _WrongValueError as error:
                raise error.inside(f"[{str(key)[:80]}]") from None
        return found

    return _Kind(read, lambda values: {key_kind.write(key): kind.write(item) for key, item in values.items()})


class _Field(NamedTuple):
    name: str
    wire_name: str
    kind: _Kind
    mandatory: bool
    ordinals: tuple[str, ...]
    other_name: str | None


_FIELDS: Final[dict[type[JsonBody], tuple[_Field, ...]]] = {}


def _fields_of(body: type[JsonBody]) -> tuple[_Field, ...]:
    known = _FIELDS.get(body)
    return known if known is not None else _FIELDS.setdefault(body, _inspected(body))


def _inspected(body: type[JsonBody]) -> tuple[_Field, ...]:
    hints = get_type_hints(body)
    found = [
        _Field(
            one.name,
            body.wire_names.get(one.name) or java_name(one.name),
            _kind_of(hints[one.name]),
            one.default is MISSING and one.default_factory is MISSING,
            body.ordinals.get(one.name, ()),
            body.other_names.get(one.name),
        )
        for one in fields(body)
    ]
    return tuple(sorted(found, key=lambda one: one.wire_name))


@dataclass(frozen=True, slots=True)
class JsonBody:
    """A body, or an object within one."""

    wire_names: ClassVar[Mapping[str, str]] = {}
    ordinals: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Field -> the names of its enum, in Java's order: C++ 1.x sends the ordinal."""
    other_names: ClassVar[Mapping[str, str]] = {}
    """Field -> a name that is read in the place of its wire name; a body with both is refused."""

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Read a body.

        Raises:
            RemotingCommandError: no JSON, a mandatory member is missing, or a value has a wrong type.
        """
        try:
            return cls._from_value(java_json.loads(body))
        except _WrongValueError as error:
            raise RemotingCommandError(f"{cls.__name__}{error.place}: {error}") from error

    def encode(self, *, quoted_keys: bool = False) -> bytes:
        """Return the body as fastjson writes it; `quoted_keys` quotes integers that are keys."""
        return java_json.dumps(self.to_json(), quoted_keys=quoted_keys).encode("utf-8", "replace")

    def to_json(self) -> dict[str, Any]:
        """Return the members as the wire has them."""
        found = {}
        for one in _fields_of(type(self)):
            value = getattr(self, one.name)
            if value is not None:
                found[one.wire_name] = one.kind.write(value)
        return found

    @classmethod
    def _from_value(cls, value: Any) -> Self:
        if not isinstance(value, dict):
            raise _WrongValueError("is no object")
        values = {}
        for one in _fields_of(cls):
            item = value.get(one.wire_name)
            if one.other_name is not None and one.other_name in value:
                if one.wire_name in value:  # a check of rights and a processor might take different ones
                    raise _WrongValueError(f"has both {one.wire_name!r} and {one.other_name!r}")
                item = value[one.other_name]
            if item is None:
                if one.mandatory:
                    raise _WrongValueError(f"has no member {one.wire_name!r}")
                continue
            if one.ordinals and isinstance(item, int) and 0 <= item < len(one.ordinals):
                item = one.ordinals[item]
            try:
                values[one.name] = one.kind.read(item)
            except _WrongValueError as error:
                raise error.inside(f".{one.wire_name}") from None
        return cls(**values)
