"""One store for the tests of a module: they append to it and read what they have appended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from helpers.mirrored import new_store
from rmq_store import Store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(tmp_path_factory.mktemp("mirror") / "store") as opened:
        yield opened
