"""TLS between a master and a slave of ours at the HA port: who is let in, and what one that never finishes costs."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.certificates import make_authority, make_certificate
from rmq_store import Message, SendStatus, Store, UsageError
from rmq_store.log.broker_role import BrokerRole
from rmq_store.protocol.errors import RemotingConnectError, RemotingError
from rmq_store.remoting.transport.settings import ClusterSettings, TlsSettings
from rmq_store.replica.follow import Follower
from rmq_store.replica.ha_connection import HAConnection
from rmq_store.replica.master import Master, MasterSettings
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.ha.settings import AllowedPeers, HASettings
from rmq_store.server.slave.slave_server import SlaveServer
from rmq_store.server.transport.tls import TlsFiles
from storage.server.ha.conftest import (
    CONFIG,
    Serve,
    Slave,
    acknowledged,
    eventually,
    fill,
    log_bytes,
)

Connect = Callable[..., Slave]
Begin = Callable[..., BrokerServer]


@pytest.fixture(scope="session")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem and other-ca.pem; server.pem and slave.pem of the first, stranger.pem of the other one."""
    folder = tmp_path_factory.mktemp("ha-certificates")
    for authority in ("ca", "other-ca"):
        make_authority(folder, authority)
    make_certificate(folder, "server", "ca", "IP:127.0.0.1")
    make_certificate(folder, "slave", "ca", "DNS:slave")
    make_certificate(folder, "stranger", "other-ca", "DNS:slave")
    return folder


@pytest.fixture
def begin(tmp_path: Path, pems: Path) -> Iterator[Begin]:
    """A master over TLS, on both ports. `asks`: slaves must show a certificate. Settings of HA by keyword."""
    servers: list[BrokerServer] = []

    def start(*, asks: bool = False, **settings: object) -> BrokerServer:
        tls = TlsFiles(pems / "server.pem", pems / "server.key")
        ha_tls = TlsFiles(tls.cert_file, tls.key_file, pems / "ca.pem") if asks else tls
        ha = HASettings(tls=ha_tls, **settings)  # type: ignore[arg-type]
        server = BrokerServer(tmp_path / "master", config=CONFIG, create=True, tls=tls, ha=ha, vip_channel=False)
        servers.append(server)
        server.store.create_topic("Orders", queue_count=2)
        return server

    yield start
    for server in servers:
        server.close()


def way(server: BrokerServer, pems: Path, ca: str = "ca", own: str = "") -> ClusterSettings:
    """Settings of the way to the master; `own`: the certificate that is shown."""
    files = {"cert_file": str(pems / f"{own}.pem"), "key_file": str(pems / f"{own}.key")} if own else {}
    return ClusterSettings.of_text(server.address, tls=TlsSettings(ca_file=str(pems / f"{ca}.pem"), **files))


def dial(server: BrokerServer, settings: ClusterSettings, first: int = 1) -> HAConnection:
    return HAConnection(server.ha_address, settings, first, lambda: first, tls=settings.tls)


def follow_once(server: BrokerServer, root: Path, settings: ClusterSettings) -> None:
    with Master(settings, address=server.address) as master:
        Follower(root, master, should_stop=lambda seconds: bool(time.sleep(seconds))).run(once=True)


def end_of(connection: HAConnection) -> str:
    """Why the connection ends."""
    while True:
        try:
            for _ in connection.transfers(0.1):
                pass
        except RemotingError as error:
            return str(error)


def test_a_copy_over_tls_has_every_byte(begin: Begin, pems: Path, tmp_path: Path) -> None:
    server = begin(asks=True)
    fill(server.store, 600)
    follow_once(server, tmp_path / "replica", way(server, pems, own="slave"))
    fill(server.store, 30, 40_000)
    follow_once(server, tmp_path / "replica", way(server, pems, own="slave"))
    end = server.store.log_range()[1]
    with Store.open(tmp_path / "replica", read_only=True) as replica:
        assert replica.log_range() == (0, end)
        assert log_bytes(replica, 0, end) == log_bytes(server.store, 0, end)


def test_a_sync_master_waits_for_a_served_slave_over_tls(begin: Begin, pems: Path, tmp_path: Path) -> None:
    server = begin(asks=True, role=BrokerRole.SYNC_MASTER, slave_timeout_ms=20_000)
    with (
        Master(way(server, pems, own="slave"), address=server.address) as master,
        SlaveServer(tmp_path / "slave", master, should_stop=lambda seconds: bool(time.sleep(seconds))) as slave,
    ):
        eventually(lambda: server.store._log.writing_page.slave_count == 1)
        for number in range(20):
            assert server.store.send(Message("Orders", b"x" * 1000, queue_id=0)).status is SendStatus.SEND_OK
            assert slave.store.queue_range("Orders", 0)[1] == number + 1


@pytest.mark.parametrize("ca", ["other-ca", "ca"])
def test_a_master_of_another_authority_or_name_is_refused(begin: Begin, pems: Path, ca: str) -> None:
    server = begin()
    settings = way(server, pems, ca)
    if ca == "ca":
        wrong = TlsSettings(ca_file=str(pems / "ca.pem"), server_name="elsewhere")
        settings = ClusterSettings.of_text(server.address, tls=wrong)
    with pytest.raises(RemotingConnectError, match="its certificate is not accepted for the name"):
        dial(server, settings)


@pytest.mark.parametrize("own", ["", "stranger"])
def test_a_slave_without_a_certificate_of_the_authority_gets_nothing(
    begin: Begin, pems: Path, caplog: pytest.LogCaptureFixture, own: str
) -> None:
    server = begin(asks=True)
    fill(server.store, 3)
    with caplog.at_level(logging.WARNING):
        with pytest.raises(RemotingError), dial(server, way(server, pems, own=own), 0) as connection:
            while True:
                assert not [data for _, data in connection.transfers(0.1) if len(data)]
        eventually(lambda: "no TLS handshake" in caplog.text)
    assert "CERTIFICATE" in caplog.text
    assert server.store._log.writing_page.slowest_end == -1


def test_a_plain_slave_is_refused_by_a_sentence_at_once(
    begin: Begin, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """As one of RocketMQ, which sends its first report without TLS."""
    server = begin()
    fill(server.store, 3)
    with caplog.at_level(logging.WARNING):
        for hello in (0, 1, 500):
            slave = connect(server, hello)
            assert slave.is_closed()
        eventually(lambda: caplog.text)
    assert "this port takes TLS only (--ha-tls)" in caplog.text
    assert server.ha is not None
    assert server.ha.slaves() == []


def test_a_slave_over_tls_at_a_plain_port_is_refused_by_a_sentence(
    serve: Serve, pems: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve()
    fill(server.store, 3)
    with caplog.at_level(logging.WARNING):
        with pytest.raises(RemotingConnectError, match="TLS was not agreed on"):
            dial(server, way(server, pems))
        eventually(lambda: caplog.text)
    assert "it begins a TLS handshake, and this port has none (--ha-tls)" in caplog.text


def test_a_slave_without_settings_of_tls_is_told_what_to_say(begin: Begin, pems: Path, tmp_path: Path) -> None:
    """And one that has them speaks TLS only where the master says that its HA port does: Java's never does."""
    server = begin()
    with Master(way(server, pems), address=server.address) as master:
        assert master.look().ha_tls == way(server, pems).tls
    plain = BrokerServer(
        tmp_path / "mixed", config=CONFIG, create=True, vip_channel=False,
        ha=HASettings(tls=TlsFiles(pems / "server.pem", pems / "server.key")),
    )  # fmt: skip
    with plain, Master(ClusterSettings.of_text(plain.address), address=plain.address) as master:
        with pytest.raises(UsageError, match=r"takes TLS only \(haTlsEnable\).*--tls-ca-file"):
            master.look()


def test_a_master_over_tls_without_it_at_the_ha_port_is_followed(pems: Path, tmp_path: Path) -> None:
    """So are Java's masters."""
    tls = TlsFiles(pems / "server.pem", pems / "server.key")
    with BrokerServer(
        tmp_path / "master", config=CONFIG, create=True, tls=tls, ha=HASettings(), vip_channel=False
    ) as server:
        server.store.create_topic("Orders", queue_count=2)
        fill(server.store, 3)
        follow_once(server, tmp_path / "replica", way(server, pems))
        with Store.open(tmp_path / "replica", read_only=True) as replica:
            assert replica.log_range() == server.store.log_range()


def test_a_handshake_that_is_never_finished_costs_the_others_nothing_and_ends_in_time(
    begin: Begin, connect: Connect, pems: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = begin(handshake_s=0.3, housekeeping_s=60)
    fill(server.store, 50)
    hello = ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=str(pems / "ca.pem"))
    shaking = client.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        shaking.do_handshake()
    silent, half, unread = (connect(server, None) for _ in range(3))
    whole = hello.read()
    half.socket.sendall(whole[: len(whole) // 2])
    unread.socket.sendall(whole)
    with caplog.at_level(logging.WARNING), dial(server, way(server, pems), 1) as connection:
        log, end = b"", server.store.log_range()[1]
        while len(log) < end - 1:
            for _, data in connection.transfers(1):
                log += data
        assert log == log_bytes(server.store, 1, end)
        assert all(slave.is_closed() for slave in (silent, half, unread))
        eventually(lambda: "no TLS handshake in 0.3 s" in caplog.text)
        acknowledged(server, 1)


@pytest.mark.parametrize("size", [1, 5, 300, 70_000])
def test_garbage_is_no_handshake(begin: Begin, connect: Connect, pems: Path, size: int) -> None:
    server = begin(handshake_s=0.3)
    fill(server.store, 3)
    for first in (b"\x16\x03\x01\x40\x00", b"\x16\x03\x03\x00\x00", b"GET / HTTP/1.1\r\n", b"\xff" * 5):
        slave = connect(server, None)
        slave.socket.sendall((first + os.urandom(size))[:size])
        assert slave.is_closed()
    with dial(server, way(server, pems)):
        acknowledged(server, 1)


def test_what_comes_after_the_handshake_is_judged_as_in_plain_text(
    begin: Begin, pems: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = begin()
    fill(server.store, 3)
    end = server.store.log_range()[1]
    with caplog.at_level(logging.WARNING), dial(server, way(server, pems), end + 1) as connection:
        assert "closed" in end_of(connection)
        eventually(lambda: f"it has the log up to {end + 1}, which ends at {end} here" in caplog.text)


def test_a_slave_that_reads_slowly_over_tls_gets_every_byte_and_may_report_within_a_transfer(
    begin: Begin, pems: Path
) -> None:
    """The kernel takes a transfer in parts: each report of what was read lies below what was sent."""
    server = begin()
    fill(server.store, 400, 4000)
    end = server.store.log_range()[1]
    context = ssl.create_default_context(cafile=str(pems / "ca.pem"))
    host, port = server.ha_address.rsplit(":", 1)
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.connect((host, int(port)))
    with context.wrap_socket(plain, server_hostname=host) as slave:
        slave.sendall(struct.pack(">q", 1))
        data, log, left = b"", b"", 0
        while len(log) < end - 1:
            data += slave.recv(3000)
            while data:
                if not left:
                    if len(data) < 12:
                        break
                    offset, left = struct.unpack(">qi", data[:12])
                    assert offset == 1 + len(log)
                    data = data[12:]
                    continue
                log, left, data = log + data[:left], left - len(data[:left]), data[left:]
            slave.sendall(struct.pack(">q", 1 + len(log)))
        assert log == log_bytes(server.store, 1, end)
        acknowledged(server, end)


def test_certificates_stand_for_addresses(pems: Path) -> None:
    files = TlsFiles(pems / "server.pem", pems / "server.key", pems / "ca.pem")
    open_to_all = HASettings(host="0.0.0.0", tls=files)
    named = HASettings(host="0.0.0.0", tls=files, allowed=AllowedPeers.parse(["10.0.0.7"]))
    assert open_to_all.allows("10.0.0.8")
    assert named.allows("10.0.0.7")
    assert not named.allows("10.0.0.8")
    with pytest.raises(UsageError, match="--ha-tls-client-ca"):
        HASettings(host="0.0.0.0", tls=TlsFiles(pems / "server.pem", pems / "server.key"))


def test_a_master_whose_answer_says_nothing_of_tls_has_none() -> None:
    assert MasterSettings("cluster", "broker", "127.0.0.1:1", CONFIG).ha_tls is None
