"""A store served over gRPC on loopback, and a stub for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("grpc")

from helpers.grpc_stub import Stub
from rmq_store import StoreConfig
from rmq_store.server.broker_server import BrokerServer


@pytest.fixture
def server(root: Path, small: StoreConfig) -> Iterator[BrokerServer]:
    with BrokerServer(root, config=small, create=True, grpc_port=0) as server:
        yield server


@pytest.fixture
def stub(server: BrokerServer) -> Iterator[Stub]:
    assert server.grpc_address is not None
    stub = Stub(server.grpc_address)
    yield stub
    stub.close()


@pytest.fixture
def client_loop() -> None:
    """This thread has the event loop of RocketMQ's official Python client.

    The client opens its stream in the thread that asks for a route, if the answer is there at once. That thread then
    needs an event loop, and any `asyncio.run` of another test has taken it away.
    """
    from rocketmq.v5.client.connection.rpc_client import RpcClient

    RpcClient()
    asyncio.set_event_loop(RpcClient.get_channel_io_loop())
