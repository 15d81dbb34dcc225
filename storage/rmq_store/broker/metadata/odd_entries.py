"""Entries of RocketMQ's tables that cannot be used: an impossible name, a value of a wrong type, a number out of range.

A broker writes some of them itself: up to 5.3.3 a group with an empty name, as soon as a C++ client has produced. One
such entry must not make the others unusable. It stays in the file unchanged, and lists leave it out. Only a caller that
asks for this entry by name gets an error. `rmq doctor`, `rmq verify` and `rmq repair` name it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from rmq_store.errors import CorruptConfigError, StoreError
from rmq_store.format.tables.config_json import Shadowed
from rmq_store.lazy.dataclasses import dataclass

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

AGAIN = "the name comes again below, and the last entry counts, as for a broker"


class Refusal(Protocol):
    """The reason why an existing entry cannot be used."""

    @property
    def reason(self) -> str:
        """The entry and its defect, as a text."""

    def error(self) -> StoreError:
        """The error for a caller that looks up the entry."""


@dataclass(frozen=True, slots=True)
class OddEntry:
    """One unusable entry: its file, and a text that names the entry and its defect."""

    path: str
    reason: str

    def error(self) -> CorruptConfigError:
        """The error for a caller that looks up the entry."""
        text = f"{self.reason}. The entry is kept as it is, and the others can be used; mend or delete it in the file"
        return CorruptConfigError(self.path, 0, text)


class Entries(dict[K, V]):
    """The usable entries of a table. A lookup of an unusable one raises CorruptConfigError; iteration skips them. `odd`
    is True for the key of an unusable entry.
    """

    __slots__ = ("_odd",)

    def __init__(self, usable: Mapping[K, V] | Iterable[tuple[K, V]], odd: Callable[[Any], Refusal | None]) -> None:
        super().__init__(usable)
        self._odd = odd

    def __missing__(self, key: Any) -> V:
        self._refuse(key)
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        if super().__contains__(key):
            return True
        self._refuse(key)
        return False

    def get(self, key: Any, default: Any = None) -> Any:
        """As `dict.get`. CorruptConfigError: the entry exists and cannot be used."""
        found = super().get(key, self)
        if found is not self:
            return found
        self._refuse(key)
        return default

    def copy(self) -> Entries[K, V]:
        """A copy for the caller."""
        return Entries(self, self._odd)

    def _refuse(self, key: object) -> None:
        found = self._odd(key)
        if found is not None:
            raise found.error()


def usable_entries(
    path: str, entries: Mapping[Any, Any], decode: Callable[[Any, Any], V]
) -> tuple[dict[Any, V], dict[Any, OddEntry]]:
    """Return (results of `decode`, entries for which it raised CorruptConfigError), both by the entries' keys."""
    usable: dict[Any, V] = {}
    odd: dict[Any, OddEntry] = {}
    for key, entry in entries.items():
        if isinstance(key, Shadowed):
            odd[key] = OddEntry(path, f"{shown(key.key)}: {AGAIN}")
            continue
        try:
            usable[key] = decode(key, entry)
        except CorruptConfigError as error:
            odd[key] = OddEntry(path, error.reason)
    return usable, odd


def with_errors(usable: dict[K, V], odd: Mapping[Any, OddEntry]) -> dict[K, V]:
    """`usable` with errors for lookups of the `odd` entries; `usable` itself if there are none."""
    return Entries(usable, odd.get) if odd else usable


def shown(value: object) -> str:
    """A name or a value of a file, in the form that an error shows."""
    return repr(value[:255] if isinstance(value, str) else value)[:300]
