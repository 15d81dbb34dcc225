"""Databases that all tests of the consuming half share, for their tables take longer to make than a test takes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from helpers.consuming import Databases
from rmq_store.reliable import Tables

_SERVER = re.compile(r"[\[-](postgresql|mariadb)\b")
# Where SQLite finds nearly all that can be wrong. Files about what databases do differently (inbox, once, stub, outbox,
# transactions, batches) run on every kind in the default run.
_ON_SERVERS_SLOW = {
    "test_async.py", "test_dead_letter_ways.py", "test_dead_letters.py", "test_listeners.py", "test_manual_work.py",
    "test_relay.py", "test_relay_service.py", "test_resending.py", "test_schema.py",
}  # fmt: skip


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        is_here = Path(__file__).parent in item.path.parents and item.path.name in _ON_SERVERS_SLOW
        if is_here and _SERVER.search(item.name):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    made = Databases(tmp_path_factory.mktemp("databases"), Tables())
    yield made
    made.close()


@pytest.fixture
def tmp_path(fast_scratch: Path) -> Path:
    """In memory: nothing here depends on a disk. Tests of `files` and `log`, and of whole stores, are on one."""
    return fast_scratch
