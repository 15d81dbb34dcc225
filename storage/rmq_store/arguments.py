"""What a caller passes to a public method, checked against the types that the method declares.

    @checked_methods("send")            every public method but those that are named; with `constructor`, that, too
    class Store: ...

    @checked
    def backup(source: str | Path, ...): ...

A wrong value is a UsageError that names the argument, before anything is done; an integer of numpy becomes Python's.
What only the method knows (which queue ids a topic has) stays its business. A method that is called once per message
is left out and looks itself: this costs a microsecond.
"""

from __future__ import annotations

import enum
import functools
import inspect
import operator
import os
import reprlib
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, ParamSpec, TypeVar, Union

from rmq_store.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

_Converter = Callable[[Any], Any]
"""Returns the value to use, or raises _Wrong."""

_INT64_END: Final = 1 << 63
_NAME_BYTES_MAX: Final = 255  # of one name in a path: NAME_MAX
_PATH_BYTES_MAX: Final = 4095  # PATH_MAX, without the NUL


class _Wrong(Exception):
    """A value is not what `expected` says."""

    def __init__(self, expected: str) -> None:
        super().__init__(expected)
        self.expected = expected


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function, with its arguments checked first."""
    names = list(inspect.signature(function).parameters)
    converters: dict[str, _Converter] = {}

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not converters:  # the types may be of modules that are not imported before
            converters.update(_converters(function))
        positional = list(args)
        for place, (name, value) in enumerate(zip(names, args, strict=False)):
            if name in converters:
                positional[place] = _converted(name, value, converters[name])
        for name, value in kwargs.items():
            if name in converters:
                kwargs[name] = _converted(name, value, converters[name])
        return function(*positional, **kwargs)  # type: ignore[arg-type]

    return call


def checked_methods(*left_out: str, constructor: bool = False) -> Callable[[type[C]], type[C]]:
    """A class whose public methods check their arguments, but for those that look themselves. `constructor`: it is
    called by users, and checks its arguments too.
    """

    def decorate(cls: type[C]) -> type[C]:
        for name, found in list(vars(cls).items()):
            if name in left_out or (name.startswith("_") and not (constructor and name == "__init__")):
                continue
            if isinstance(found, classmethod):
                if _takes_arguments(found.__func__):
                    setattr(cls, name, classmethod(checked(found.__func__)))
            elif inspect.isfunction(found) and _takes_arguments(found):
                setattr(cls, name, checked(found))
        return cls

    return decorate


def check_fields(made: object, *left_out: str) -> None:
    """For the `__post_init__` of a frozen dataclass: its fields, but for those that it looks at itself, against their
    types. UsageError.
    """
    for name, convert in _field_converters(type(made)).items():
        if name not in left_out:
            value = getattr(made, name)
            converted = _converted(name, value, convert)
            if converted is not value:
                object.__setattr__(made, name, converted)


def integer(name: str, value: object) -> int:
    """An argument that must be an integer of 64 bits. UsageError."""
    return int(_converted(name, value, _integer))


def path_text(name: str, value: object) -> str:
    """An argument that must be a path, as text. UsageError."""
    return os.fspath(_converted(name, value, _path))  # type: ignore[no-any-return]


def instance(name: str, value: object, kind: type[R]) -> R:
    """An argument that must be of a class. UsageError."""
    if isinstance(value, kind):
        return value
    raise _refusal(name, value, f"a {kind.__name__}")


def _refusal(name: str, value: object, expected: str) -> UsageError:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if value is None or type(value) in (bool, int, float, str, bytes, list, tuple, dict, set):
        text = f"{name}={reprlib.repr(value)}: {expected} is expected"
    else:
        text = f"{name}: {expected} is expected, got {type(value).__name__}"
    return UsageError(text + (_way_to_batch(value) if expected == "a RecordBatch" else ""))


def _converted(name: str, value: object, convert: _Converter) -> Any:
    try:
        return convert(value)
    except _Wrong as wrong:
        raise _refusal(name, value, wrong.expected) from None


def _takes_arguments(function: Callable[..., Any]) -> bool:
    return len(inspect.signature(function).parameters) > 1


_of_fields: dict[type, dict[str, _Converter]] = {}


def _field_converters(kind: type) -> dict[str, _Converter]:
    if kind not in _of_fields:
        _of_fields[kind] = _converters(kind)
    return _of_fields[kind]


def _converters(function: Callable[..., Any]) -> dict[str, _Converter]:
    """Of every parameter whose annotation says something."""
    hints = typing.get_type_hints(function)
    hints.pop("return", None)
    return {name: convert for name, hint in hints.items() if (convert := _converter(hint)) is not None}


def _converter(hint: Any) -> _Converter | None:
    """What checks a value of this type; None if any value will do."""
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


def _generic(origin: Any, parts: tuple[Any, ...]) -> _Converter | None:
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


def _one_of(parts: tuple[Any, ...]) -> _Converter | None:
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
            except _Wrong as wrong:
                expected.append(wrong.expected)
        raise _Wrong(" or ".join(expected))

    return convert


def _none(value: object) -> None:
    if value is not None:
        raise _Wrong("None")


def _integer(value: object) -> int:
    """Numpy's integers overflow in sums, and cannot be written as JSON."""
    number = value if isinstance(value, int) and not isinstance(value, bool) else None
    if number is None and not isinstance(value, bool) and hasattr(value, "__index__") and not isinstance(value, type):
        try:
            number = operator.index(value)
        except TypeError:
            number = None
    if number is None:
        raise _Wrong("an integer")
    if not -_INT64_END <= number < _INT64_END:
        raise _Wrong("an integer of 64 bits")
    return number


def _number(value: object) -> float:
    if isinstance(value, float):
        return value
    try:
        return _integer(value)
    except _Wrong:
        raise _Wrong("a number") from None


def _flag(value: object) -> bool:
    if type(value) is not bool:
        raise _Wrong("True or False")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _Wrong("text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _Wrong("text without lone surrogates") from None
    return value


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise _Wrong("bytes")
    return value


def _path(value: object) -> str | os.PathLike[str]:
    """Names that are no UTF-8 are in order; what no system call would take is not."""
    if isinstance(value, os.PathLike) and isinstance(os.fspath(value), bytes):
        raise _Wrong("a path as text")
    if not isinstance(value, str | os.PathLike):
        raise _Wrong("a path")
    try:
        raw = os.fsencode(value)
    except UnicodeEncodeError:
        raise _Wrong("a path without lone surrogates") from None
    if not raw:
        raise _Wrong("a path that is not empty")
    if b"\0" in raw:
        raise _Wrong("a path without NUL")
    if max(map(len, raw.split(b"/"))) > _NAME_BYTES_MAX or len(raw) > _PATH_BYTES_MAX:
        raise _Wrong(f"a path of at most {_PATH_BYTES_MAX} bytes, with names of at most {_NAME_BYTES_MAX}")
    return value


def _callable(value: object) -> object:
    if not callable(value):
        raise _Wrong("a function")
    return value


def _of_class(kind: type, value: object) -> object:
    if isinstance(value, kind):
        return value
    if issubclass(kind, enum.Enum) and isinstance(value, str | int) and not isinstance(value, bool | enum.Enum):
        try:
            return kind(value)  # a text equals the member of its name, but is not it
        except ValueError:
            raise _Wrong(f"one of {', '.join(kind.__members__)}") from None
    raise _Wrong(f"a {kind.__name__}")


def _way_to_batch(value: object) -> str:
    """For who has the rows in another form: what makes a batch of them. Nothing of it is imported here."""
    package, name = type(value).__module__.partition(".")[0], type(value).__name__
    if (package, name) == ("pandas", "DataFrame"):
        return "; pyarrow.RecordBatch.from_pandas(frame, preserve_index=False) makes one"
    if isinstance(value, Mapping):
        return "; pyarrow.RecordBatch.from_pydict(columns) makes one"
    if isinstance(value, list | tuple):
        return "; pyarrow.RecordBatch.from_pylist(rows) makes one of dicts, Store.send_all takes a list of Message"
    if (package, name) == ("pyarrow", "Table"):
        return "; table.to_batches() gives several, table.combine_chunks().to_batches() one"
    return "; pyarrow makes one"


def _literal(values: tuple[Any, ...], value: object) -> object:
    if not any(type(value) is type(known) and value == known for known in values):
        raise _Wrong(" or ".join(map(repr, values)))
    return value


def _tuple(converters: tuple[_Converter | None, ...], value: object) -> object:
    if not isinstance(value, tuple) or len(value) != len(converters):
        raise _Wrong(f"a tuple of {len(converters)}")
    return _same_or(value, tuple(map(_convert_one, converters, value)))


def _elements(kind: type, convert: _Converter | None, value: object) -> object:
    if isinstance(value, str | bytes) or not isinstance(value, kind):
        raise _Wrong("a list" if issubclass(kind, Sequence) else "a collection")
    if convert is None or not isinstance(value, Collection):
        return value  # what can be gone through only once is looked at by who does it
    changed = [_convert_one(convert, part) for part in value]
    if all(map(operator.is_, changed, value)):
        return value
    return type(value)(changed) if isinstance(value, tuple | set | frozenset) else changed


def _mapping(key: _Converter | None, item: _Converter | None, value: object) -> object:
    if not isinstance(value, Mapping):
        raise _Wrong("a mapping")
    changed = {_convert_one(key, name): _convert_one(item, one) for name, one in value.items()}
    return value if all(map(operator.is_, changed.values(), value.values())) and _same_keys(changed, value) else changed


def _same_keys(changed: Mapping[Any, Any], value: Mapping[Any, Any]) -> bool:
    return all(map(operator.is_, changed, value))


def _same_or(value: tuple[Any, ...], changed: tuple[Any, ...]) -> tuple[Any, ...]:
    return value if all(map(operator.is_, changed, value)) else changed


def _convert_one(convert: _Converter | None, value: object) -> Any:
    if convert is None:
        return value
    try:
        return convert(value)
    except _Wrong as wrong:
        raise _Wrong(f"{wrong.expected} in it") from None


_PLAIN: Final[dict[Any, _Converter]] = {
    int: _integer, float: _number, bool: _flag, str: _text, bytes: _bytes, Path: _path,
}  # fmt: skip
