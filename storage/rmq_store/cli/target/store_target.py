"""A store as the target of a command."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmq_store.cli.shared.name_lookup import require_topic
from rmq_store.cli.shared.output import open_store, open_to_write
from rmq_store.lazy.dataclasses import dataclass

if TYPE_CHECKING:
    from rmq_store import Store
    from rmq_store.cli.target.store.clients import StoreConsuming, StoreSender
    from rmq_store.cli.target.store.letters import StoreRedrive
    from rmq_store.cli.target.store.view import StoreView
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
        from rmq_store.cli.target.store.view import StoreView

        with self.open() as store:
            yield StoreView(store, tell)

    @contextlib.contextmanager
    def sender(self) -> Iterator[StoreSender]:
        """As `Target`. The store is opened for writing."""
        from rmq_store import Store
        from rmq_store.cli.target.store.clients import StoreSender

        with Store.open(self.root) as store:
            yield StoreSender(store)

    @contextlib.contextmanager
    def consuming(self, topic: str) -> Iterator[StoreConsuming]:
        """As `Target`. The store is opened for writing."""
        from rmq_store.cli.target.store.clients import StoreConsuming

        with open_to_write(self.root) as store:
            require_topic(store, topic)
            yield StoreConsuming(store)

    @contextlib.contextmanager
    def redrive(self, group: str, **goals: Any) -> Iterator[StoreRedrive]:
        """As `Target`. The store is opened for writing."""
        from rmq_store import Store
        from rmq_store.cli.target.store.letters import StoreRedrive

        with Store.open(self.root) as store:
            yield StoreRedrive(store, group, goals)
