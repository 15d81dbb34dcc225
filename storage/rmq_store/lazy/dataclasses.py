"""`dataclass` of the standard library, with methods that are compiled when they are first used.

The standard library compiles up to six methods for each class, 1.5 ms, when its module is imported. A broker's start
imports 250 such classes, most of them headers of requests that nobody sends: they took a third of the start. Here a
class costs a tenth of that. Each method becomes the standard library's own when it is first used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

__all__ = ["dataclass"]

_ORDER: Final = ("__lt__", "__le__", "__gt__", "__ge__")


class _LateMethod:
    """Stands for a method of a class until somebody looks it up."""

    def __init__(self, cls: type, name: str, *, frozen: bool) -> None:
        self._cls, self._name, self._frozen = cls, name, frozen

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        method = self._compiled()
        # Two threads may both do so: the methods are the same.
        setattr(self._cls, self._name, method)
        return method.__get__(instance, owner)

    def _compiled(self) -> Any:
        """The method as the standard library makes it, of a class that has the same fields and nothing else."""
        cls, name = self._cls, self._name
        namespace = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
        if hasattr(cls, "__post_init__"):
            namespace["__post_init__"] = cls.__post_init__
        twin = dataclasses.make_dataclass(
            cls.__name__,
            [(field.name, field.type, field) for field in dataclasses.fields(cls)],
            namespace=namespace,
            init=name == "__init__",
            repr=name == "__repr__",
            eq=name in ("__eq__", "__hash__", *_ORDER),
            order=name in _ORDER,
            # Decides how `__init__` sets a field, and whether there is a hash.
            frozen=self._frozen,
        )
        return vars(twin)[name]


def _refuse_to_set(self: object, name: str, value: object) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: object, name: str) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


# Of a class that is frozen and has slots: copies of it are set by field.
def _state(self: Any) -> list[object]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[object]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


def _with_late_methods(
    cls: type, *, frozen: bool, slots: bool, kw_only: bool, eq: bool, order: bool, repr_: bool
) -> type:
    own = set(vars(cls))
    # Not frozen for the standard library, which would compile the two methods that refuse.
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(cls)
    late = ["__init__"]
    late += ["__repr__"] if repr_ else []
    late += ["__eq__"] if eq else []
    late += ["__hash__"] if eq and frozen else []
    late += _ORDER if order else []
    for name in late:
        if name not in own:
            setattr(made, name, _LateMethod(made, name, frozen=frozen))
    if eq and not frozen and "__hash__" not in own:
        made.__hash__ = None
    if frozen:
        made.__setattr__ = _refuse_to_set
        made.__delattr__ = _refuse_to_delete
        if slots:
            made.__getstate__ = _state
            made.__setstate__ = _set_state
    return made  # type: ignore[no-any-return]


def _dataclass(
    cls: type | None = None,
    /,
    *,
    frozen: bool = False,
    slots: bool = False,
    kw_only: bool = False,
    eq: bool = True,
    order: bool = False,
    repr: bool = True,
) -> type | Callable[[type], type]:
    """Make `cls` a dataclass, as that of the standard library with the same arguments.

    Use it for classes that derive from such a class, too. A frozen class refuses changes also to a derived class
    without this decorator.
    """

    def decorate(cls: type) -> type:
        return _with_late_methods(cls, frozen=frozen, slots=slots, kw_only=kw_only, eq=eq, order=order, repr_=repr)

    return decorate if cls is None else decorate(cls)


if TYPE_CHECKING:
    # A type checker knows that one by its name.
    from dataclasses import dataclass
else:
    dataclass = _dataclass
