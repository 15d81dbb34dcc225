"""The base of the tables of topics and groups: named entries in one JSON file.

An entry that cannot be used stays in the file, and the others are usable (`odd_entries`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

from rmq_store.broker.metadata.json_table import CachedView, ConfigFile, Stamp, Table
from rmq_store.broker.metadata.odd_entries import OddEntry, usable_entries, with_errors
from rmq_store.errors import CorruptConfigError
from rmq_store.format.tables.config_json import remove

V = TypeVar("V")


class EntryTable(Generic[V]):
    """The entries of one member of a JSON file. Safe for threads; changes of other processes are seen at the next call.

    The subclass of each table sets `part`, the name of the member, and `file_name`, and decodes an entry.
    """

    part: str
    file_name: ClassVar[str]

    def __init__(self, root: str | Path, *, clock: Callable[[], int]) -> None:
        self._file = ConfigFile(root, self.file_name, clock=clock)
        self._view = CachedView(self._file, self._decode)

    def stamp(self) -> Stamp:
        """Identity of the table's files now: equal stamps mean equal entries. UsageError."""
        return self._file.stamp()

    @property
    def paths(self) -> tuple[Path, Path]:
        """The table, and its backup."""
        return self._file.path, self._file.backup

    def all(self) -> Mapping[str, V]:
        """Return every usable entry by name, read-only. A lookup of an unusable entry raises CorruptConfigError.

        Raises:
            CorruptConfigError: the table and its backup are unreadable.
        """
        return self._view.get()[0]

    def odd(self) -> Sequence[OddEntry]:
        """Return the entries that cannot be used. Raises as `all`."""
        return self._view.get()[1]

    def has(self, name: str) -> bool:
        """True if there is an entry of this name, usable or not. Raises as `all`."""
        try:
            return name in self.all()
        except CorruptConfigError:
            return name in self._file.part(self._file.load(), self.part)

    def check(self, table: Table) -> None:
        """CorruptConfigError if `table`, from this file or its backup, is no such table."""
        self._decode(table)

    def odd_keys(self, table: Table) -> list[Any]:
        """The keys of the entries of `table` that cannot be used. CorruptConfigError as `check`."""
        return [*self._usable_entries(table)[1]]

    def _remove(self, name: str) -> bool:
        """Remove an entry durably; False if there was none."""
        found = False

        def mutate(table: Table) -> bool:
            nonlocal found
            found = remove(self._file.part(table, self.part), name)
            return found

        self._file.update(mutate)
        return found

    def _decode(self, table: Table) -> tuple[Mapping[str, V], Sequence[OddEntry]]:
        usable, odd = self._usable_entries(table)
        return MappingProxyType(with_errors(self._completed(usable), odd)), (*odd.values(),)

    def _usable_entries(self, table: Table) -> tuple[dict[str, V], dict[Any, OddEntry]]:
        return usable_entries(str(self._file.path), self._file.part(table, self.part), self._decode_entry)

    def _completed(self, usable: dict[str, V]) -> dict[str, V]:
        """The entries, completed from other files."""
        return usable

    def _usable(self, name: str, entry: Any) -> V:
        """An entry that a caller looks up by its name."""
        try:
            return self._decode_entry(name, entry)
        except CorruptConfigError as error:
            raise OddEntry(error.path, error.reason).error() from None

    def _decode_entry(self, name: str, entry: Any) -> V:
        """Decode an entry. CorruptConfigError: it has a value that no such entry can have."""
        raise NotImplementedError
