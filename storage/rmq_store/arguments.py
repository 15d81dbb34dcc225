"""Arguments of public methods, checked against the types that the method declares.

    @checked_methods("send")            every public method except the named ones; `constructor`: `__init__` too
    class Store: ...

    @checked
    def backup(source: str | Path, ...): ...

A wrong value raises a UsageError that names the argument, before anything is done. An integer of numpy becomes
Python's. The method itself checks facts that only it knows, such as the queue ids of a topic. A method that is called
once per message is left out and checks its own arguments, because this check costs a microsecond.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType
from typing import Any, ParamSpec, TypeVar

from rmq_store.argument_types import Converter, Wrong, a_path, an_integer, converters_of
from rmq_store.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")


_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_ADDRESSES = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{3,5}(?:[;,].*)?")
_FILE_URI = re.compile(r"file:(?://)?(/(?!/).*)", re.IGNORECASE | re.DOTALL)


def local_path(location: str) -> Path:
    """The path that a text names: it may be a file: URI, as Hadoop reads it (three slashes or one, nothing is decoded).

    Raises:
        UsageError: a URI of another file system, a file: URI without an absolute path, or the address of a broker.
    """
    if _ADDRESSES.fullmatch(location):
        raise UsageError(
            f"{location!r} is an address, and no directory: clients and `rmq` take rmq://{location}, and Spark the "
            "option nameServer"
        )
    scheme = _SCHEME.match(location)
    if scheme is None:
        return Path(location)
    if scheme[1] == "rmq":
        raise names_a_cluster(location)
    if (local := _FILE_URI.fullmatch(location)) is not None:
        return Path(local[1])
    cure = "a store cannot be on {0}" if location[scheme.end() :].startswith("/") else "a relative path begins with ./"
    if scheme[1].lower() == "file":
        cure = "write file:///data/store, or the path alone"
    raise UsageError(f"{location!r} is not a local directory; {cure.format(scheme[1])}")


def names_a_cluster(location: str) -> UsageError:
    """The error for a cluster where a directory is expected."""
    return UsageError(
        f"{location}: this names a cluster, and a Store is a directory. Producers, consumers and `rmq --store` "
        "take it; for Spark write option('nameServer', 'ns1:9876')"
    )


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that its arguments are checked first."""
    # All are filled by the first call: a program imports hundreds of these functions, and calls a few.
    names: list[str] = []
    converters: dict[str, Converter] = {}
    by_place: list[Converter] = []

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not converters:  # the types may be of modules that are not imported before
            names[:] = inspect.signature(function).parameters
            found = converters_of(function)
            by_place[:] = [found.get(name, _as_it_is) for name in names]
            converters.update(found)  # last: another thread looks whether it is there
        try:
            positional = [convert(value) for convert, value in zip(by_place, args, strict=False)]
            named = {name: converters.get(name, _as_it_is)(value) for name, value in kwargs.items()}
        except Wrong:  # the same once more, to say which one: nearly no call pays for that
            for name, value in (*zip(names, args, strict=False), *kwargs.items()):
                _converted(name, value, converters.get(name, _as_it_is))
            raise
        return function(*positional, *args[len(positional) :], **named)  # type: ignore[arg-type]

    return call


def checked_methods(*left_out: str, constructor: bool = False) -> Callable[[type[C]], type[C]]:
    """Decorate a class so that its public methods check their arguments, except the named ones, which check their own.
    `constructor`: users call it, and its arguments are checked too.
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
    """Check the fields of a frozen dataclass against their types, in its `__post_init__`. Fields that it checks itself
    are left out. UsageError.
    """
    for name, convert in _field_converters(type(made)).items():
        if name not in left_out:
            value = getattr(made, name)
            converted = _converted(name, value, convert)
            if converted is not value:
                object.__setattr__(made, name, converted)


def integer(name: str, value: object) -> int:
    """Check that an argument is an integer of 64 bits. UsageError."""
    return int(_converted(name, value, an_integer))


def path_text(name: str, value: object) -> str:
    """Check that an argument is a path, and return it as text. UsageError."""
    return os.fspath(_converted(name, value, a_path))  # type: ignore[no-any-return]


def instance(name: str, value: object, kind: type[R]) -> R:
    """Check that an argument is an instance of a class. UsageError."""
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


def _as_it_is(value: Any) -> Any:
    return value


def _converted(name: str, value: object, convert: Converter) -> Any:
    try:
        return convert(value)
    except Wrong as wrong:
        raise _refusal(name, value, wrong.expected) from None


def _takes_arguments(function: Callable[..., Any]) -> bool:
    # As len(inspect.signature(function).parameters) > 1 in a twentieth of the time: every import asks this.
    code: CodeType = inspect.unwrap(function).__code__
    rest = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_argcount + code.co_kwonlyargcount + rest > 1


_of_fields: dict[type, dict[str, Converter]] = {}


def _field_converters(kind: type) -> dict[str, Converter]:
    if kind not in _of_fields:
        _of_fields[kind] = converters_of(kind)
    return _of_fields[kind]


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
