"""pytest plugin: a broker in the test's process, for clients of RocketMQ. See docs/server.md, "In tests".

    rmq_broker          a fresh `RmqTestBroker` for each test, with a clock that only the test moves
    rmq_broker_session  one for all tests of the session
    rmq_broker_config   the settings of both stores; override it in conftest.py

pytest loads this module in every run of an environment in which the package is installed. So it imports nothing but
pytest, and the rest when a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rmq_store.broker.metadata.store_config import StoreConfig
    from rmq_store.testing.broker import RmqTestBroker as RmqTestBroker
    from rmq_store.testing.broker import VirtualClock as VirtualClock


def __getattr__(name: str) -> Any:
    if name not in ("RmqTestBroker", "VirtualClock"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_broker_module(), name)


def _broker_module() -> ModuleType:
    from rmq_store.lazy.imports import no_collection

    with no_collection():
        from rmq_store.testing import broker
    return broker


@pytest.fixture(scope="session")
def rmq_broker_config() -> StoreConfig:
    """The settings of the brokers' stores: small files, else RocketMQ's defaults."""
    config: StoreConfig = _broker_module().SCRATCH_CONFIG
    return config


@pytest.fixture
def rmq_broker(tmp_path: Path, rmq_broker_config: StoreConfig) -> Iterator[RmqTestBroker]:
    """A broker and name server at a free port of loopback, over an empty store; it ends with the test."""
    with _broker_module().RmqTestBroker(tmp_path / "rmq-broker", rmq_broker_config) as broker:
        yield broker


@pytest.fixture(scope="session")
def rmq_broker_session(
    tmp_path_factory: pytest.TempPathFactory, rmq_broker_config: StoreConfig
) -> Iterator[RmqTestBroker]:
    """As `rmq_broker`, one for all tests of the session. Topics, groups and the clock are those of all tests."""
    with _broker_module().RmqTestBroker(tmp_path_factory.mktemp("rmq-broker"), rmq_broker_config) as broker:
        yield broker
