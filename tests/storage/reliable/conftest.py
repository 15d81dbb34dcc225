"""Databases that all tests of the consuming half share, for their tables take longer to make than a test takes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from consuming import Databases
from rmq_store.reliable import Tables


@pytest.fixture(scope="session")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    made = Databases(tmp_path_factory.mktemp("databases"), Tables())
    yield made
    made.close()
