"""A SYNC_MASTER: what senders of the server and of other processes are told about slaves."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_store import Message, SendStatus, StagingArea, Store
from rmq_store.client import Producer, ProducerConfig
from rmq_store.log.broker_role import BrokerRole
from rmq_store.log.replication import Replicated, Replication
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.ha.held_answers import HeldAnswers
from rmq_store.server.ha.settings import HASettings
from storage.server.ha.conftest import CONFIG, HANG_S, Serve, Slave, acknowledged, eventually

SYNC = BrokerRole.SYNC_MASTER
OK, LATE, NO_SLAVE = SendStatus.SEND_OK, SendStatus.FLUSH_SLAVE_TIMEOUT, SendStatus.SLAVE_NOT_AVAILABLE
SHORT_MS = 200
Connect = Callable[..., Slave]


class Acknowledging:
    """A slave that takes everything and says so at once, until the test ends."""

    def __init__(self, slave: Slave) -> None:
        self._slave = slave
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                offset, data = self._slave.read_transfer()
                self._slave.report(offset + len(data))

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._slave.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._slave.close()


@pytest.fixture
def acknowledging() -> Iterator[Callable[[BrokerServer], Acknowledging]]:
    """Connects slaves that take part, and waits until they count."""
    with contextlib.ExitStack() as ends:

        def connect(server: BrokerServer) -> Acknowledging:
            page = server.store._log.writing_page
            before = page.slave_count
            slave = Acknowledging(Slave(server.ha_address))
            ends.callback(slave.stop)
            eventually(lambda: page.slave_count > before)
            return slave

        yield connect


Acknowledge = Callable[[BrokerServer], Acknowledging]
Send = Callable[..., SendStatus]


@pytest.fixture
def send() -> Iterator[Callable[..., SendStatus]]:
    """Sends by the wire."""
    with contextlib.ExitStack() as ends:

        def send(server: BrokerServer, **properties: str) -> SendStatus:
            config = ProducerConfig(send_msg_timeout=30_000, retry_times_when_send_failed=0)
            producer = ends.enter_context(Producer("p", f"rmq://{server.address}", config))
            return producer.send(Message("Orders", b"1", properties=properties)).status

        yield send


def in_another_process(root: Path, work: Callable[[Store], list[SendStatus]]) -> list[SendStatus]:
    """What `work` returns in a process of its own that has the store open, too."""
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.SimpleQueue[list[str]] = context.SimpleQueue()

    def run() -> None:
        with Store.open(root) as store:
            queue.put([status.name for status in work(store)])

    process = context.Process(target=run)
    process.start()
    try:
        names = queue.get()
    finally:
        process.join()
    return [SendStatus[name] for name in names]


def all_kinds(store: Store) -> list[SendStatus]:
    """The status of each way to append."""
    rows = pa.RecordBatch.from_pydict({"body": pa.array([b"1", b"2"], pa.binary())})
    with StagingArea.for_task(store.path, "w1", 0, 0, topic="Orders") as area:
        area.write(rows)
        files = [area.finish()]
    body = b"".join(struct.pack(">iiiii", 25, 0, 0, 0, 3) + b"abc" + struct.pack(">h", 0) for _ in range(2))
    return [
        store.send(Message("Orders", b"1")).status,
        *(result.status for result in store.send_all([Message("Orders", b"2"), Message("Orders", b"3")])),
        store.send_batch("Orders", body, 0).status,
        store.append(rows, "Orders").status,
        store.commit_staged(files, key="query", value=1).status,
        store.commit_staged(files, key="query", value=1).status,
    ]


KINDS = 7


@pytest.mark.statement("G21")
def test_a_send_is_answered_when_a_slave_has_it(serve: Serve, acknowledging: Acknowledge, send: Send) -> None:
    server = serve(SYNC)
    acknowledging(server)
    assert send(server) is OK
    assert server.store._log.writing_page.replicated_end == server.store.log_range()[1]
    assert all_kinds(server.store) == [OK] * KINDS


@pytest.mark.statement("G21")
def test_without_a_slave_nobody_waits(serve: Serve, send: Send) -> None:
    """By the rules of 4.x. The messages are stored."""
    server = serve(SYNC, slave_timeout_ms=60_000)
    assert send(server) is NO_SLAVE
    assert all_kinds(server.store) == [NO_SLAVE] * KINDS
    assert in_another_process(server.store.path, all_kinds) == [NO_SLAVE] * KINDS
    assert send(server, WAIT="false") is OK
    assert server.store.queue_range("Orders", 0).max_offset > 0


def test_a_slave_that_says_nothing_costs_the_time_and_no_more(
    serve: Serve, connect: Connect, send: Send
) -> None:
    server = serve(SYNC, slave_timeout_ms=SHORT_MS)
    connect(server)
    page = server.store._log.writing_page
    eventually(lambda: page.slave_count == 1)
    assert send(server) is LATE
    assert all_kinds(server.store) == [LATE] * KINDS
    assert send(server, WAIT="false") is OK
    assert server.store.send(Message("Orders", b"1", properties={"WAIT": "false"})).status is OK


def test_sends_that_wait_keep_no_thread(serve: Serve, connect: Connect) -> None:
    """16 senders at once are answered after one timeout, and none is told that the broker is busy."""
    server = serve(SYNC, slave_timeout_ms=1000)
    connect(server)
    eventually(lambda: server.store._log.writing_page.slave_count == 1)
    found: list[SendStatus] = []
    config = ProducerConfig(send_msg_timeout=30_000, retry_times_when_send_failed=0)
    with Producer("p", f"rmq://{server.address}", config) as producer:
        threads = [
            threading.Thread(target=lambda: found.append(producer.send(Message("Orders", b"1")).status))
            for _ in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [LATE] * 16
        # Also those that the extension answers from their bytes, for a queue that it knows.
        assert [producer.send(Message("Orders", b"1")).status for _ in range(3)] == [LATE] * 3


def test_a_slave_that_is_too_far_behind_does_not_count(serve: Serve, connect: Connect) -> None:
    server = serve(SYNC, slave_timeout_ms=SHORT_MS, fallbehind_bytes_max=1000)
    page = server.store._log.writing_page
    while server.store.log_range()[1] < 3000:
        assert server.store.send(Message("Orders", bytes(100))).status is NO_SLAVE
    slave = connect(server)
    assert server.ha is not None
    ha = server.ha
    eventually(lambda: ha.slaves())
    acknowledged(server, 0)
    assert server.store.send(Message("Orders", b"1")).status is NO_SLAVE
    end = server.store.log_range()[1]
    slave.read_to(end)
    slave.report(end)
    eventually(lambda: page.slave_count == 1)
    # Nor does one that was near, and takes nothing while the log grows.
    for _ in range(10):
        server.store.send(Message("Orders", bytes(300), properties={"WAIT": "false"}))
    eventually(lambda: page.slave_count == 0)
    assert len(ha.slaves()) == 1  # it is connected
    assert server.store.send(Message("Orders", b"1")).status is NO_SLAVE


@pytest.mark.parametrize(
    ("replicas", "slaves", "expected"), [(1, 0, OK), (2, 0, LATE), (2, 1, OK), (3, 1, LATE), (3, 2, OK)]
)
def test_the_rules_of_5_count_replicas(
    serve: Serve, acknowledging: Acknowledge, send: Send, replicas: int, slaves: int, expected: SendStatus
) -> None:
    server = serve(SYNC, in_sync_replicas=replicas, slave_timeout_ms=60_000 if expected is OK else SHORT_MS)
    for _ in range(slaves):
        acknowledging(server)
    assert send(server) is expected
    assert in_another_process(server.store.path, all_kinds) == [expected] * KINDS


def test_another_process_waits_for_the_slave_of_the_server(serve: Serve, acknowledging: Acknowledge) -> None:
    server = serve(SYNC, slave_timeout_ms=60_000)
    acknowledging(server)
    assert in_another_process(server.store.path, all_kinds) == [OK] * KINDS


SERVER = """
import sys
from rmq_store.log.broker_role import BrokerRole
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.ha.settings import HASettings
with BrokerServer(sys.argv[1], ha=HASettings(role=BrokerRole.SYNC_MASTER, slave_timeout_ms=60_000)) as server:
    print(server.ha_address, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("way", ["killed", "stopped", "stopped, and the store closed"])
def test_without_its_server_a_store_says_that_no_slave_has_it(tmp_path: Path, way: str) -> None:
    root = tmp_path / "store"
    with contextlib.ExitStack() as ends:
        store = ends.enter_context(Store.open(root, create=True, config=CONFIG))
        store.create_topic("Orders", 1)
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        ends.callback(server.wait)
        assert server.stdin is not None and server.stdout is not None
        ends.enter_context(server.stdin)
        ends.enter_context(server.stdout)
        slave = Acknowledging(Slave(server.stdout.readline().strip()))
        ends.callback(slave.stop)
        page = store._log.writing_page
        eventually(lambda: page.slave_count == 1)
        assert store.send(Message("Orders", b"1")).status is OK
        if way == "killed":
            server.send_signal(signal.SIGKILL)
        else:
            server.stdin.close()
        server.wait(HANG_S)
        if way.endswith("closed"):
            store.close()
            store = ends.enter_context(Store.open(root))
        assert all_kinds(store) == [NO_SLAVE] * KINDS  # at once, and not after 60 s each
        with BrokerServer(store):  # as an ASYNC_MASTER, and the role is gone
            assert store.send(Message("Orders", b"1")).status is OK
        assert store.send(Message("Orders", b"1")).status is OK


def test_whoever_waits_when_the_server_dies_waits_no_longer(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with contextlib.ExitStack() as ends:
        store = ends.enter_context(Store.open(root, create=True, config=CONFIG))
        store.create_topic("Orders", 1)
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        ends.callback(server.wait)
        assert server.stdin is not None and server.stdout is not None
        ends.enter_context(server.stdin)
        ends.enter_context(server.stdout)
        silent = Slave(server.stdout.readline().strip())
        ends.callback(silent.close)
        eventually(lambda: store._log.writing_page.slave_count == 1)
        found: list[SendStatus] = []
        waiting = threading.Thread(target=lambda: found.append(store.send(Message("Orders", b"1")).status))
        waiting.start()
        eventually(lambda: store.log_range()[1] > 0)
        os.kill(server.pid, signal.SIGKILL)
        waiting.join(HANG_S)
        assert found == [NO_SLAVE]


def test_a_commit_of_much_waits_as_long_as_the_slave_goes_on(serve: Serve, connect: Connect) -> None:
    """Longer than slaveTimeout in all. A send does not."""
    server = serve(SYNC, slave_timeout_ms=400)
    slave = connect(server)
    log = server.store._log
    eventually(lambda: log.writing_page.slave_count == 1)
    server.store.send(Message("Orders", bytes(1000), properties={"WAIT": "false"}))
    end = server.store.log_range()[1]
    slave.read_to(end)
    found: list[Replicated] = []
    replication = Replication(log)
    waiting = threading.Thread(target=lambda: found.append(replication.wait(end, while_it_grows=True)))
    waiting.start()
    for part in range(1, 9):
        time.sleep(0.15)
        slave.report(end * part // 8)
    waiting.join(HANG_S)
    assert found == [Replicated.YES]


def test_held_answers_come_once_each_in_any_order_of_ends(serve: Serve, connect: Connect) -> None:
    server = serve(SYNC)
    connect(server)
    replication = Replication(server.store._log)
    held = HeldAnswers(replication, 1000)
    answers: list[tuple[int, SendStatus]] = []
    for end in (300, 100, 200):
        held.hold(end, lambda status, end=end: answers.append((end, status)))  # type: ignore[misc]
    held.look(0)
    assert answers == []
    replication.reported(200, 1, 200)
    held.look(0)
    assert answers == [(100, OK), (200, OK)]
    held.hold(150, lambda status: answers.append((150, status)))
    assert answers[2:] == [(150, OK)]
    held.look(float("inf"))
    held.look(float("inf"))
    assert answers[3:] == [(300, LATE)]
    held.close()


def test_under_sync_flush_a_slave_never_has_more_than_the_disk(tmp_path: Path) -> None:
    config = replace(CONFIG, flush_disk_type="SYNC_FLUSH")
    with BrokerServer(tmp_path / "store", config=config, create=True, ha=HASettings(role=SYNC)) as server:
        server.store.create_topic("Orders", 1)
        slave = Acknowledging(Slave(server.ha_address))
        page = server.store._log.writing_page
        eventually(lambda: page.slave_count == 1)
        assert all_kinds(server.store) == [OK] * KINDS
        with Producer("p", f"rmq://{server.address}") as producer:
            assert producer.send(Message("Orders", b"1")).status is OK
        assert page.replicated_end <= page.flushed_end
        slave.stop()


def test_clients_over_grpc_are_told_about_slaves(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    from helpers.grpc_stub import Stub
    from rmq_store.server.grpc_definitions.enums import Code

    ha = HASettings(role=SYNC, slave_timeout_ms=SHORT_MS)
    with BrokerServer(tmp_path / "store", config=CONFIG, create=True, grpc_port=0, ha=ha) as server:
        server.store.create_topic("Orders", 1)
        assert server.grpc_address is not None
        stub = Stub(server.grpc_address)
        assert stub.send("Orders", b"1").status.code == Code.HA_NOT_AVAILABLE
        silent = Slave(server.ha_address)
        page = server.store._log.writing_page
        eventually(lambda: page.slave_count == 1)
        assert stub.send("Orders", b"1").status.code == Code.SLAVE_PERSISTENCE_TIMEOUT
        assert stub.send("Orders", b"1", b"2").status.code == Code.SLAVE_PERSISTENCE_TIMEOUT
        silent.close()
        eventually(lambda: page.slave_count == 0)
        slave = Acknowledging(Slave(server.ha_address))
        eventually(lambda: page.slave_count == 1)
        assert stub.send("Orders", b"1").status.code == Code.OK
        stub.close()
        slave.stop()
