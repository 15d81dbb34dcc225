"""A served store on loopback, and calls that reach it by the wire only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_store import StoreConfig
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.server.broker_server import BrokerServer


@pytest.fixture
def root(scratch: Path) -> Path:
    return scratch / "store"


@pytest.fixture
def server(root: Path, small: StoreConfig) -> Iterator[BrokerServer]:
    with BrokerServer(root, config=small, create=True, admin=True) as server:
        yield server


@pytest.fixture
def place(server: BrokerServer) -> str:
    """The server for a client: `rmq://...`."""
    return f"rmq://{server.address}"


@pytest.fixture
def cluster(server: BrokerServer) -> Iterator[Cluster]:
    cluster = Cluster(ClusterSettings.of_text(server.address))
    yield cluster
    cluster.close()
