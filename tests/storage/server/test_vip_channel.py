"""Clients with a VIP channel dial the port - 2 of a broker: before 4.5.1 by default, later by a setting."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from helpers.cluster import requests
from helpers.cluster.asking import Connection
from rmq_store import StoreConfig
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.server.broker_server import BrokerServer
from rmq_store.testing import RmqTestBroker


def served(root: Path, config: StoreConfig, stack: ExitStack, **settings: object) -> BrokerServer:
    """With the port before its last one free; another test may have it."""
    while True:
        server = BrokerServer(root, config=config, create=True, **settings)  # type: ignore[arg-type]
        if server.vip_port is not None:
            return stack.enter_context(server)
        server.close()


def test_a_client_sends_and_pulls_at_the_port_before_the_last(root: Path, small: StoreConfig) -> None:
    with ExitStack() as stack:
        server = served(root, small, stack)
        assert server.vip_port == server.port - 2 == int(server.address.rpartition(":")[2]) - 2
        server.store.create_topic("Orders", 1)
        with Connection(f"127.0.0.1:{server.vip_port}") as client:
            assert requests.send(client, "Orders", body=b"paid").code == 0
            found = client.ask(RequestCode.PULL_MESSAGE, requests.pull_fields("Orders", offset=0, sys_flag=4))
            assert [requests.body_of(frame) for frame in requests.frames(found)] == [b"paid"]
        stored = next(iter(server.store.read("Orders", 0, 0, 1))).to_pylist()[0]
        assert stored["storeHost"] == server.address
        vip_port = server.vip_port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", vip_port), 5)


def test_a_port_that_is_taken_is_left_alone(root: Path, small: StoreConfig) -> None:
    with ExitStack() as stack:
        first = served(root, small, stack)
        port, before = first.port, first.vip_port
    with socket.create_server(("127.0.0.1", before)):
        with BrokerServer(root, port=port) as server:
            assert server.vip_port is None
            with Connection(server.address) as client:
                assert requests.send(client, "Orders").code == 0


def test_no_other_port_is_taken_where_none_is_wanted(root: Path, small: StoreConfig) -> None:
    with BrokerServer(root, config=small, create=True, vip_channel=False) as server:
        assert server.vip_port is None


def test_the_port_for_grpc_may_be_the_one_before_the_last(root: Path, small: StoreConfig) -> None:
    pytest.importorskip("grpc")
    with ExitStack() as stack:
        server = served(root, small, stack)
        port, before = server.port, server.vip_port
    with BrokerServer(root, port=port, grpc_port=before) as again:
        assert again.vip_port is None and again.grpc_address == f"127.0.0.1:{before}"


def test_rights_count_at_both_ports(root: Path, small: StoreConfig, scratch: Path) -> None:
    users = scratch / "acl.toml"
    users.write_text('[[user]]\naccess_key = "a"\nsecret_key = "secret-of-a"\nadmin = true\n')
    users.chmod(0o600)
    with ExitStack() as stack:
        server = served(root, small, stack, acl_file=users)
        with Connection(f"127.0.0.1:{server.vip_port}") as client:
            assert requests.send(client, "Orders").code == 16


def test_a_test_broker_has_it_too(scratch: Path) -> None:
    with RmqTestBroker(scratch / "broker") as broker:
        server = broker._server
        assert server.vip_port in (None, server.port - 2)
