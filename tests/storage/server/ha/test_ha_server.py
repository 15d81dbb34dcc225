"""The HA port of a master: what slaves get, what they may ask for, and what one of them costs the others."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store import Message, Store, UsageError
from rmq_store.protocol.bodies.routes import RegisterBrokerBody
from rmq_store.protocol.bodies.topics import TopicConfigTable
from rmq_store.protocol.wire.header_fields import request
from rmq_store.protocol.wire.name_server_headers import RegisterBrokerRequestHeader, RegisterBrokerResponseHeader
from rmq_store.remoting.questions.brokers import ask_ha_address, read_ha_address
from rmq_store.remoting.transport.client import RemotingClient
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.replica.follow import Follower
from rmq_store.replica.master import Master
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.ha.settings import AllowedPeers, HASettings
from rmq_store.server.ha.slave_connection import SlaveConnection
from rmq_store.verify import verify_store
from storage.server.ha.conftest import (
    SEGMENT_BYTES,
    Serve,
    Slave,
    acknowledged,
    eventually,
    fill,
    log_bytes,
)

Connect = Callable[..., Slave]


def follow_once(server: BrokerServer, root: Path) -> None:
    with Master(ClusterSettings.of_text(server.address), address=server.address) as master:
        Follower(root, master, should_stop=lambda seconds: bool(time.sleep(seconds))).run(once=True)


def test_a_replica_of_ours_has_every_byte_and_every_table(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    fill(server.store, 600)
    server.store.commit_offsets("billing", {("Orders", 0): 7})
    root = tmp_path / "replica"
    follow_once(server, root)
    fill(server.store, 10)
    follow_once(server, root)
    end = server.store.log_range()[1]
    assert end > 3 * SEGMENT_BYTES
    with Store.open(root, read_only=True) as replica:
        assert replica.log_range() == (0, end)
        assert log_bytes(replica, 0, end) == log_bytes(server.store, 0, end)
        assert replica.queue_range("Orders", 1) == server.store.queue_range("Orders", 1)
        assert len(replica.query.by_key("Orders", "k17")) > 0
        assert replica.committed_offsets("billing") == {("Orders", 0): 7}
    report = verify_store(root)
    assert report.status == "clean", report.problems


def test_an_empty_slave_gets_the_log_from_its_first_byte_on(serve: Serve, connect: Connect) -> None:
    server = serve()
    fill(server.store, 400)
    slave = connect(server, 0)
    slave.read_to(end := server.store.log_range()[1])
    assert end > 2 * SEGMENT_BYTES
    assert (slave.start, slave.log) == (0, log_bytes(server.store, 0, end))


def test_a_follower_may_connect_before_there_is_a_byte(serve: Serve, connect: Connect) -> None:
    """It says FROM_START. So the first send to a SYNC_MASTER has a slave."""
    server = serve(heartbeat_s=0.01)
    slave = connect(server, 1)
    assert slave.read_transfer() == (1, b"")
    acknowledged(server, 1)
    fill(server.store, 3)
    slave.read_to(end := server.store.log_range()[1])
    assert (slave.start, slave.log) == (1, log_bytes(server.store, 1, end))


@pytest.mark.parametrize("begin", [1, 500, SEGMENT_BYTES - 1, SEGMENT_BYTES, SEGMENT_BYTES + 77])
def test_a_slave_gets_the_log_from_where_it_asks(serve: Serve, connect: Connect, begin: int) -> None:
    server = serve()
    fill(server.store, 300)
    slave = connect(server, begin)
    slave.read_to(end := server.store.log_range()[1])
    assert (slave.start, slave.log) == (begin, log_bytes(server.store, begin, end))


def test_what_another_process_appends_comes_too(serve: Serve, connect: Connect) -> None:
    server = serve()
    slave = connect(server)
    pid = os.fork()
    if not pid:
        with Store.open(server.store.path) as other:
            fill(other, 20)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    slave.read_to(end := server.store.log_range()[1])
    assert slave.log == log_bytes(server.store, 0, end)
    fill(server.store, 5)
    slave.read_to(server.store.log_range()[1])


def test_a_silent_master_sends_heartbeats_with_the_offset_that_comes_next(serve: Serve, connect: Connect) -> None:
    server = serve(heartbeat_s=0.01)
    fill(server.store, 3)
    slave = connect(server)
    slave.read_to(end := server.store.log_range()[1])
    assert [slave.read_transfer() for _ in range(2)] == [(end, b"")] * 2


def test_reports_of_slaves_are_kept_and_the_slowest_one_is_known_to_all(serve: Serve, connect: Connect) -> None:
    server = serve()
    fill(server.store, 100)
    end = server.store.log_range()[1]
    fast, slow = connect(server), connect(server)
    for slave in (fast, slow):
        slave.read_to(end)
    fast.report(end)
    slow.report(1000)
    acknowledged(server, 1000, end)
    page = server.store._log.writing_page
    eventually(lambda: (page.slowest_end, page.replicated_end, page.slave_count) == (1000, end, 2))
    slow.close()
    eventually(lambda: page.slowest_end == end)
    fast.close()
    eventually(lambda: (page.slowest_end, page.replicated_end, page.slave_count) == (-1, end, 0))


@pytest.mark.parametrize("cut", [1, 3, 7])
def test_a_report_may_come_in_pieces(serve: Serve, connect: Connect, cut: int) -> None:
    server = serve()
    fill(server.store, 3)
    slave = connect(server, None)
    slave.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end = server.store.log_range()[1]
    for offset in (5, end):
        data = offset.to_bytes(8, "big")
        for low in range(0, len(data), cut):
            slave.socket.sendall(data[low : low + cut])
        acknowledged(server, offset)
        slave.read_to(end)
    assert slave.start == 5


@pytest.mark.parametrize("hello", [-1, -(1 << 63), (1 << 63) - 1])
def test_a_hello_that_no_slave_of_this_log_sends_is_refused(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture, hello: int
) -> None:
    """Java's masters of 5.x take it for the acknowledgement of everything."""
    server = serve()
    fill(server.store, 3)
    with caplog.at_level(logging.WARNING):
        assert connect(server, hello).is_closed()
        assert connect(server, hello).is_closed()
        eventually(lambda: caplog.text)
    assert server.store._log.writing_page.replicated_end == 0
    assert caplog.text.count("is not connected any more") == 1  # a slave tries again every 5 s
    assert str(hello) in caplog.text


def test_a_hello_one_byte_beyond_the_end_is_refused_and_names_both_ends(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve()
    fill(server.store, 3)
    end = server.store.log_range()[1]
    with caplog.at_level(logging.WARNING):
        assert connect(server, end + 1).is_closed()
        eventually(lambda: caplog.text)
    assert f"it has the log up to {end + 1}, which ends at {end} here" in caplog.text
    slave = connect(server, end)
    acknowledged(server, end)
    slave.close()


@pytest.mark.parametrize("beyond", [1, 1 << 40, -(1 << 40)])
def test_a_slave_acknowledges_nothing_that_it_was_not_sent(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture, beyond: int
) -> None:
    server = serve()
    fill(server.store, 3)
    first = server.store.log_range()[1]
    slave = connect(server)
    slave.read_to(first)
    slave.report(first)
    acknowledged(server, first)
    with caplog.at_level(logging.WARNING):
        slave.report(first + beyond)
        assert slave.is_closed()
        eventually(lambda: caplog.text)
    assert "was sent what lies below" in caplog.text
    assert server.store._log.writing_page.replicated_end == first


def test_what_the_kernel_has_not_taken_was_not_sent(serve: Serve, connect: Connect) -> None:
    """A transfer that is under way does not count as a whole."""
    server = serve(transfer_bytes=SEGMENT_BYTES)
    fill(server.store, 100)
    assert server.ha is not None
    slave = connect(server, None)
    eventually(lambda: server.ha is not None and server.ha._slaves)
    (connection,) = server.ha._slaves.values()
    connection.position, connection._payload_bytes = 500, 400
    connection._unsent = [memoryview(bytes(12)), memoryview(bytes(400))]
    assert connection._sent_end() == 100
    connection._unsent = [memoryview(bytes(150))]
    assert connection._sent_end() == 350
    connection._unsent = []
    slave.close()


def test_a_slave_that_lacks_what_was_deleted_is_told_so_in_the_log(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """A Java master sends it heartbeats for ever."""
    server = serve()
    fill(server.store, 600)
    server.store.flush()
    log = server.store._log
    for base in log.segments.bases()[:2]:
        log.segments.remove(base)
    with caplog.at_level(logging.WARNING):
        assert connect(server, 1).is_closed()
        eventually(lambda: caplog.text)
    assert f"it asks for the log from 1 on, which begins at {2 * SEGMENT_BYTES}" in caplog.text
    slave = connect(server, 0)
    slave.read_to(server.store.log_range()[1])
    assert slave.start == 2 * SEGMENT_BYTES


def test_a_slave_that_never_reads_costs_the_others_nothing_and_is_given_up(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(housekeeping_s=0.5)
    fill(server.store, 2000, 4000)
    lazy = connect(server, None)
    lazy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    lazy.report(0)
    slave = connect(server)
    stop = threading.Event()

    def keep_reporting() -> None:
        while not stop.wait(0.05):
            for each in (lazy, slave):
                with contextlib.suppress(OSError):
                    each.report(0)

    reporter = threading.Thread(target=keep_reporting)
    reporter.start()
    try:
        with caplog.at_level(logging.WARNING):
            slave.read_to(end := server.store.log_range()[1])
            eventually(lambda: "it has taken nothing for" in caplog.text)
    finally:
        stop.set()
        reporter.join()
    assert server.ha is not None
    assert len(server.ha.slaves()) == 1
    assert slave.log == log_bytes(server.store, 0, end)


def test_a_slave_that_reports_nothing_is_given_up(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(housekeeping_s=0.1)
    with caplog.at_level(logging.WARNING):
        assert connect(server, 0).is_closed()
        assert connect(server, None).is_closed()
        eventually(lambda: "it has reported nothing for" in caplog.text)


def test_a_hundred_slaves_have_the_whole_log_and_one_more_than_may_is_refused(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(connections_max=100)
    fill(server.store, 50)
    slaves = [connect(server) for _ in range(100)]
    end = server.store.log_range()[1]
    for slave in slaves:
        slave.read_to(end)
        slave.report(end)
    acknowledged(server, *[end] * 100)
    assert {slave.log for slave in slaves} == {log_bytes(server.store, 0, end)}
    with caplog.at_level(logging.WARNING):
        assert connect(server).is_closed()
        eventually(lambda: "100 slaves are connected" in caplog.text)


def test_a_peer_that_nobody_names_is_refused_by_name(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    monkeypatch.setattr(AllowedPeers, "has", lambda self, address: False)
    with caplog.at_level(logging.WARNING):
        assert connect(server).is_closed()
        eventually(lambda: "--ha-allow does not name 127.0.0.1" in caplog.text)


def test_who_may_connect() -> None:
    peers = AllowedPeers.parse(["10.0.0.0/24", "192.168.7.7", "fd00::/8"])
    allowed = ["127.0.0.1", "::1", "10.0.0.9", "192.168.7.7", "fd00::7", "::ffff:10.0.0.9", "::ffff:127.0.0.1"]
    assert [one for one in allowed if not peers.has(one)] == []
    assert [one for one in ["10.0.1.9", "192.168.7.8", "fe80::1%eth0", "::ffff:8.8.8.8"] if peers.has(one)] == []
    assert not AllowedPeers().has("10.0.0.9")
    for wrong in ("slave1", "10.0.0.1/24", "10.0.0.256"):
        with pytest.raises(UsageError, match="--ha-allow"):
            AllowedPeers.parse([wrong])


def test_an_address_that_others_reach_needs_names_of_slaves() -> None:
    with pytest.raises(UsageError, match="--ha-allow"):
        HASettings(host="0.0.0.0")
    assert HASettings(host="0.0.0.0", allowed=AllowedPeers.parse(["10.0.0.7"])).port == 0


def test_a_port_that_is_taken_is_refused_and_the_store_stays_usable(serve: Serve, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(UsageError, match="cannot listen for slaves"):
            serve(port=taken.getsockname()[1])
    serve().store.send(Message("Orders", b"1"))


def test_the_port_is_free_again_when_the_server_is_closed(serve: Serve, connect: Connect) -> None:
    server = serve()
    slave = connect(server)
    eventually(lambda: server.ha is not None and server.ha.slaves())
    before = threading.active_count()
    server.close()
    assert slave.is_closed()
    assert threading.active_count() < before
    serve(port=int(server.ha_address.rsplit(":", 1)[1]))


def test_an_error_of_ours_ends_one_connection_and_no_other(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    slave, other = connect(server, 0), connect(server, 0)
    acknowledged(server, 0, 0)
    asked = SlaveConnection.receive

    def fail(connection: SlaveConnection, now: float) -> bool:
        if connection.address.endswith(f":{slave.socket.getsockname()[1]}"):
            raise ZeroDivisionError
        return asked(connection, now)

    monkeypatch.setattr(SlaveConnection, "receive", fail)
    slave.report(0)
    assert slave.is_closed()
    fill(server.store, 3)
    other.read_to(server.store.log_range()[1])


def test_one_connection_that_breaks_ends_alone(serve: Serve, connect: Connect) -> None:
    server = serve()
    broken, other = connect(server, None), connect(server)
    eventually(lambda: server.ha is not None and len(server.ha.slaves()) == 2)
    broken.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    broken.close()
    fill(server.store, 3)
    other.read_to(server.store.log_range()[1])
    eventually(lambda: server.ha is not None and len(server.ha.slaves()) == 1)


def test_retention_warns_before_it_passes_a_slave(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve()
    fill(server.store, 600)
    slave = connect(server)
    page = server.store._log.writing_page
    eventually(lambda: page.slowest_end == 0)
    with caplog.at_level(logging.WARNING):
        report = server.store.retention.run(manual=True, file_reserved_time=0)
        assert report.removed
    assert "a slave has copied those below 0 only" in caplog.text
    caplog.clear()
    slave.close()
    eventually(lambda: page.slowest_end == -1)
    server.store.retention.run(manual=True, file_reserved_time=0)
    assert "a slave has copied" not in caplog.text


def test_a_slave_that_registers_is_told_its_master_and_is_in_the_routes(serve: Serve) -> None:
    server = serve()
    client = RemotingClient(ClusterSettings.of_text(server.address))
    body = RegisterBrokerBody(topic_config_serialize_wrapper=TopicConfigTable()).encode()
    header = RegisterBrokerRequestHeader(
        broker_name=server.store.broker_name, broker_addr="127.0.0.1:7", cluster_name="DefaultCluster",
        ha_server_addr="127.0.0.1:8", broker_id=1,
    )  # fmt: skip
    try:
        answer = client.call(server.address, request(header, body), 10_000)
        told = RegisterBrokerResponseHeader.from_ext(answer.ext_fields)
        assert (told.ha_server_addr, told.master_addr) == (server.ha_address, server.address)
        route = server.routes.route("Orders")
        assert route is not None
        assert dict(route.broker_datas[0].broker_addrs) == {0: server.address, 1: "127.0.0.1:7"}
        asked = client.call(server.address, ask_ha_address(), 10_000)
        assert read_ha_address(asked, "broker") == server.ha_address
    finally:
        client.close()


def test_a_broker_without_an_ha_port_tells_none(tmp_path: Path) -> None:
    with BrokerServer(tmp_path / "store", create=True, vip_channel=False) as server:
        client = RemotingClient(ClusterSettings.of_text(server.address))
        try:
            assert read_ha_address(client.call(server.address, ask_ha_address(), 10_000), "broker") is None
        finally:
            client.close()
