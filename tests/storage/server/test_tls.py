"""TLS of a served store: what is taken, and what is closed, with a reason in the log."""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.cluster.security import Tls
from rmq_store import StoreConfig, UsageError
from rmq_store.client import Message, Producer, RemotingError
from rmq_store.client.backend.remote import RemoteBackend
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.frames import encode_command
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings, TlsSettings
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.name_server.name_server import NameServer
from rmq_store.server.transport.limits import ListenerLimits
from rmq_store.server.transport.tls import TlsFiles, server_context

ROUTES = encode_command(RemotingCommand(206), 1 << 20)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """Certificates that are made for this module and thrown away."""
    return Tls(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def files(authority: Tls) -> TlsFiles:
    return TlsFiles(authority.path / "server.pem", authority.path / "server.key")


@pytest.fixture
def secured(root: Path, small: StoreConfig, files: TlsFiles) -> Iterator[BrokerServer]:
    limits = ListenerLimits(connections_max=20, tls_handshake_ms=300)
    with BrokerServer(root, config=small, create=True, tls=files, limits=limits) as server:
        yield server


def plain(server: BrokerServer) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def settings(server: BrokerServer, authority: Tls, **rest: str) -> ClusterSettings:
    return ClusterSettings.of_text(server.address, tls=TlsSettings(ca_file=str(authority.ca_file), **rest))


def is_closed(connection: socket.socket) -> bool:
    """Whether the server ends the connection, and has sent nothing but perhaps an alert of TLS."""
    try:
        data = b"".join(iter(lambda: connection.recv(4096), b""))
    except ConnectionError:
        return True
    return len(data) < 16


def eventually(condition: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return condition()


def test_our_clients_produce_over_tls(secured: BrokerServer, authority: Tls) -> None:
    backend = RemoteBackend(settings(secured, authority))
    with Producer("pg", backend) as producer:
        for number in range(10):
            assert producer.send(Message("Orders", b"x" * 100_000)).queue_offset is not None, number
    backend.close()
    assert sum(last for _, last in secured.store.queue_ranges("Orders").values()) == 10


def test_a_client_without_tls_is_closed_and_the_log_says_why(
    secured: BrokerServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), plain(secured) as connection:
        connection.sendall(ROUTES)
        assert is_closed(connection)
        own = connection.getsockname()
    assert eventually(lambda: "no TLS handshake" in caplog.text)
    (line,) = [record.getMessage() for record in caplog.records]
    assert str(own[1]) in line and "this port takes TLS only" in line


def test_our_client_without_tls_gets_no_answer(secured: BrokerServer) -> None:
    with Cluster(ClusterSettings.of_text(secured.address)) as cluster, pytest.raises(RemotingError):
        cluster.client.call(secured.address, RemotingCommand(206), 10_000)


def test_old_versions_of_tls_are_refused(secured: BrokerServer, authority: Tls) -> None:
    context = authority.client_context()
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with plain(secured) as connection, pytest.raises((ssl.SSLError, ConnectionError)):
        context.wrap_socket(connection, server_hostname="127.0.0.1")
    context = authority.client_context()
    with plain(secured) as connection, context.wrap_socket(connection, server_hostname="127.0.0.1") as wrapped:
        assert wrapped.version() in ("TLSv1.2", "TLSv1.3")


def test_the_server_accepts_no_old_version(files: TlsFiles) -> None:
    assert server_context(files).minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_request_that_comes_with_the_end_of_the_handshake_is_answered(
    secured: BrokerServer, authority: Tls
) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = authority.client_context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with plain(secured) as connection:
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                connection.sendall(outgoing.read())
                incoming.write(connection.recv(1 << 16))
        client.write(ROUTES)
        connection.sendall(outgoing.read())  # the client's last message of the handshake, and the request
        while True:
            try:
                answer = client.read(1 << 16)
                break
            except ssl.SSLWantReadError:
                incoming.write(connection.recv(1 << 16))
    assert b"topicList" in answer


def test_half_open_handshakes_end_and_count_as_connections(
    secured: BrokerServer, authority: Tls, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = [plain(secured) for _ in range(25)]
    for connection in waiting:
        assert is_closed(connection)
        connection.close()
    listener = secured._listener
    assert eventually(lambda: not listener._handshakes) and not listener.connections
    with Cluster(settings(secured, authority)) as cluster:
        assert cluster.client.call(secured.address, RemotingCommand(206), 20_000).code == 0


def test_a_full_server_takes_no_more_handshakes(root: Path, small: StoreConfig, files: TlsFiles) -> None:
    limits = ListenerLimits(connections_max=2, tls_handshake_ms=60_000)
    with BrokerServer(root, config=small, create=True, tls=files, limits=limits) as server:
        listener = server._listener
        first = [plain(server) for _ in range(2)]
        assert eventually(lambda: len(listener._handshakes) == 2)
        with plain(server) as third:
            assert is_closed(third)
        assert len(listener._handshakes) == 2
        for connection in first:
            connection.close()


def test_a_server_ends_while_clients_shake_hands(root: Path, small: StoreConfig, files: TlsFiles) -> None:
    limits = ListenerLimits(tls_handshake_ms=60_000)
    with BrokerServer(root, config=small, create=True, tls=files, limits=limits) as server:
        connection = plain(server)
        assert eventually(lambda: len(server._listener._handshakes) == 1)
    assert is_closed(connection)
    connection.close()


def test_clients_must_show_a_certificate_of_the_authority(
    root: Path, small: StoreConfig, authority: Tls, files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    asks = TlsFiles(files.cert_file, files.key_file, authority.ca_file)
    certificate, key = map(str, authority.client_files)
    with BrokerServer(root, config=small, create=True, tls=asks) as server:
        with Cluster(settings(server, authority, cert_file=certificate, key_file=key)) as cluster:
            assert cluster.client.call(server.address, RemotingCommand(206), 20_000).code == 0
        with Cluster(settings(server, authority)) as cluster, pytest.raises(RemotingError):
            cluster.client.call(server.address, RemotingCommand(206), 20_000)
        assert eventually(lambda: "PEER_DID_NOT_RETURN_A_CERTIFICATE" in caplog.text)


@pytest.mark.parametrize("missing", ["cert_file", "key_file", "client_ca_file"])
def test_files_that_do_not_fit_are_refused(scratch: Path, files: TlsFiles, missing: str) -> None:
    (scratch / "no.pem").write_text("no certificate")
    given = {"cert_file": files.cert_file, "key_file": files.key_file} | {missing: scratch / "no.pem"}
    with pytest.raises(UsageError, match=r"TLS: cannot use .*no\.pem"):
        server_context(TlsFiles(**given))


def test_a_store_registers_with_a_name_server_over_tls_and_not_without(
    root: Path, small: StoreConfig, authority: Tls, files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    """Both ask the other side for a certificate: of the store, too, when it registers."""
    asks = TlsFiles(files.cert_file, files.key_file, authority.ca_file)
    certificate, key = map(str, authority.client_files)
    tls = TlsSettings(ca_file=str(authority.ca_file), cert_file=certificate, key_file=key)
    with NameServer(tls=asks) as name_server:
        named = ClusterSettings.of_text(name_server.address, tls=tls)
        with BrokerServer(root, config=small, create=True, tls=asks, name_servers=named) as server:
            backend = RemoteBackend(named)
            with Producer("pg", backend) as producer:
                producer.send(Message("Orders", b"tea"))
            backend.close()
            assert server.store.queue_ranges("Orders")
        assert name_server.routes.clusters().broker_addr_table == {}
        assert not caplog.records
        with BrokerServer(root, config=small, name_servers=name_server.address):
            assert name_server.routes.clusters().broker_addr_table == {}
        assert "is not registered with name server" in caplog.text


def test_a_wrong_file_for_name_servers_stops_the_server(root: Path, small: StoreConfig, scratch: Path) -> None:
    named = ClusterSettings.of_text("127.0.0.1:9", tls=TlsSettings(ca_file=str(scratch / "missing.pem")))
    with pytest.raises(UsageError, match=r"cannot use .*missing\.pem"):
        BrokerServer(root, config=small, create=True, name_servers=named)
