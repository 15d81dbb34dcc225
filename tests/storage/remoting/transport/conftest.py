"""Stub servers and clients of one test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from helpers.cluster.stub_server import Handler, StubLoop, StubServer
from rmq_store.remoting.transport.client import RemotingClient
from rmq_store.remoting.transport.settings import ClusterSettings

Serve = Callable[..., StubServer]
Connect = Callable[..., RemotingClient]


@pytest.fixture(scope="session")
def stub_loop() -> Iterator[StubLoop]:
    loop = StubLoop()
    yield loop
    loop.close()


@pytest.fixture
def serve(stub_loop: StubLoop) -> Iterator[Serve]:
    servers: list[StubServer] = []

    def make(handler: Handler, **options: Any) -> StubServer:
        servers.append(StubServer(handler, loop=stub_loop, **options))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def connect() -> Iterator[Connect]:
    clients: list[RemotingClient] = []

    def make(**options: Any) -> RemotingClient:
        clients.append(RemotingClient(ClusterSettings(name_servers=("127.0.0.1:9876",), **options)))
        return clients[-1]

    yield make
    for client in clients:
        client.close()
