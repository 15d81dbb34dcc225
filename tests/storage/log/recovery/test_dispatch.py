"""Dispatch writes with a second thread: what that may never change."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from rmq_store import StoreFullError
from rmq_store.files import durable
from rmq_store.files.locks.background import HelperThread
from rmq_store.log.core import scan
from rmq_store.log.recovery.dispatch import Dispatch


class Disk:
    """Lets no write through before `go_on` is set; a full one refuses it then."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.is_full = False
        self.is_writing = False
        self.writes = 0

    def __call__(self, operation: str, path: str) -> None:
        if operation == "write":
            self.writes += 1
            self.is_writing = True
            self.go_on.wait(60)
            self.is_writing = False
            if self.is_full:
                raise OSError(28, "No space left on device")


@pytest.fixture
def store(lab: Any) -> Iterator[Any]:
    with lab.open() as made:
        made.append(lab.batch(200, body_bytes=100))
        yield made


@pytest.fixture
def disk(store: Any) -> Iterator[Disk]:
    durable.hook = made = Disk()
    yield made
    durable.hook = None


def dispatch_of(store: Any) -> Dispatch:
    return Dispatch(store._log, 0, believes_views=False)


def put(dispatch: Dispatch, store: Any, count: int) -> None:
    """The first stretches of the log; their entries are there."""
    stretches = [stretch for stretch in scan.walk(store._log, 0) if len(stretch.positions)]
    for stretch in stretches[:count]:
        dispatch.put(stretch, scan.columns_of(store._log, stretch))


def test_nothing_is_put_behind_what_could_not_be_put(store: Any, disk: Disk) -> None:
    """Or the index would have entries out of order, and queues entries behind holes."""
    disk.is_full = True
    with pytest.raises(StoreFullError), dispatch_of(store) as dispatch:
        put(dispatch, store, 2)
        disk.go_on.set()
        dispatch.end()
    assert disk.writes == 1


def test_whoever_leaves_with_an_error_leaves_nothing_that_is_still_being_written(store: Any, disk: Disk) -> None:
    """Another process may open a store at once that a recovery has given up. What only waited is not begun any more."""
    leave = HelperThread.__exit__

    def leaving(second: HelperThread, *error: Any) -> None:
        disk.go_on.set()
        leave(second, *error)

    with (
        patch.object(HelperThread, "__exit__", leaving),
        pytest.raises(KeyboardInterrupt),
        dispatch_of(store) as dispatch,
    ):
        put(dispatch, store, 2)
        while not disk.is_writing:
            time.sleep(0.001)
        raise KeyboardInterrupt
    interrupted, disk.writes = disk.writes, 0
    with dispatch_of(store) as dispatch:
        put(dispatch, store, 1)
        dispatch.end()
    assert (interrupted, disk.is_writing) == (disk.writes, False)
