"""A store as the target of a command."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rmq_store.cli.shared.output import open_store
from rmq_store.late.dataclasses import dataclass

if TYPE_CHECKING:
    from rmq_store import Store
    from rmq_store.cli.store.view import StoreView
    from rmq_store.cli.target.view import Tell


@dataclass(frozen=True, slots=True)
class StoreTarget:
    """The directory of a store."""

    root: Path

    def open(self) -> Store:
        """Open it read-only, see `open_store`; a context manager."""
        return open_store(self.root)

    @contextlib.contextmanager
    def view(self, tell: Tell) -> Iterator[StoreView]:
        """As `Target`."""
        from rmq_store.cli.store.view import StoreView

        with self.open() as store:
            yield StoreView(store, tell)
