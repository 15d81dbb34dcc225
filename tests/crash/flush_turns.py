"""The flush thread's turns as steps of whoever drives a store: what it does comes at the same place each time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest.mock import patch

from rmq_store import Store
from rmq_store.broker.flusher import Flusher
from rmq_store.errors import StoreError


@contextlib.contextmanager
def without_flush_thread() -> Iterator[None]:
    """Stores that are opened and closed in this block have none."""
    with patch.object(Flusher, "start", lambda self: None), patch.object(Flusher, "stop", lambda self: None):
        yield


def take_turn(store: Store) -> None:
    """What the thread would do now. An error is its own affair: writers hear of it by their own flush."""
    assert store._flusher is not None
    with contextlib.suppress(StoreError):
        store._flusher.flush_if_due()
        store._flusher._save_progress_if_due()
