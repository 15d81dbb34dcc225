"""pytest plugin: a store of its own for each test, with a clock that the test moves. See docs/testing.md.

    rmq_store         a fresh `RmqTestStore`
    rmq_clock         its `RmqClock`; Spark's workers see the same time
    rmq_topic         a new topic in it
    rmq_group         the name of a consumer group
    rmq_store_config  the settings of the store; override it in conftest.py

pytest loads this module in every run of an environment in which the package is installed, also for projects that do not
use it. So it imports nothing but pytest and small modules, and the rest when a test asks for a fixture.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark_rmq.testing.store import RmqClock as RmqClock
    from pyspark_rmq.testing.store import RmqTestStore as RmqTestStore
    from rmq_store import StoreConfig

# Part of a topic's name; with what is added it stays below RocketMQ's 127 characters.
_NAME_LENGTH_MAX = 80


def __getattr__(name: str) -> Any:
    if name not in ("RmqClock", "RmqTestStore"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pyspark_rmq.testing import store

    return getattr(store, name)


@pytest.fixture
def rmq_store_config() -> StoreConfig:
    """The settings of `rmq_store`: small files, else the defaults. Override it for other delay levels, for example."""
    from pyspark_rmq.testing.store import SMALL

    return SMALL


@pytest.fixture
def rmq_clock(tmp_path: Path, rmq_store_config: StoreConfig) -> RmqClock:
    """The clock of `rmq_store`, for every process. It starts at the present time, and only the test moves it."""
    from pyspark_rmq.testing.store import create

    return create(tmp_path / "rmq-store", rmq_store_config)


@pytest.fixture
def rmq_store(tmp_path: Path, rmq_clock: RmqClock) -> Iterator[RmqTestStore]:
    """A fresh store, open for writing; closed after the test."""
    from pyspark_rmq.testing.store import RmqTestStore

    with RmqTestStore(tmp_path / "rmq-store", rmq_clock) as store:
        yield store


@pytest.fixture
def rmq_topic(request: pytest.FixtureRequest, rmq_store: RmqTestStore) -> str:
    """A new topic with four queues; its name begins with that of the test."""
    name = _unique(request)
    rmq_store.store.create_topic(name, 4)
    return name


@pytest.fixture
def rmq_group(request: pytest.FixtureRequest) -> str:
    """The name of an unused consumer group."""
    return f"cg_{_unique(request)}"


def _unique(request: pytest.FixtureRequest) -> str:
    readable = re.sub(r"[^A-Za-z0-9_]+", "-", request.node.name)[:_NAME_LENGTH_MAX]
    return f"{readable}-{secrets.token_hex(4)}"
