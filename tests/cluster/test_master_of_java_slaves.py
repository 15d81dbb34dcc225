"""A served store of ours whose slave is a released broker: it has every byte, every queue entry, and the tables."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.cluster import requests
from helpers.cluster.asking import Connection
from helpers.cluster.fixtures import require_released
from helpers.cluster.followed.equality import same_files, same_queues
from helpers.cluster.java_process import VERSIONS, JavaProcess
from helpers.cluster.released import Layout
from helpers.cluster.waiting import free_ports, until
from rmq_store import Message, SendStatus, Store, StoreConfig
from rmq_store.log.broker_role import BrokerRole
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.ha.settings import HASettings
from rmq_store.verify import verify_store

SEGMENT_BYTES = 1 << 20
QUEUE_BYTES = 20 * 1000
CONFIG = StoreConfig(
    mapped_file_size_commit_log=SEGMENT_BYTES,
    mapped_file_size_consume_queue=QUEUE_BYTES,
    max_hash_slot_num=50_000,
    max_index_num=200_000,
    disk_space_warning_level_ratio=100,
)
SUCCESS, FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE = 0, 12, 11

# Another process that appends: one message at a time, a batch of columns, and a unit as a Spark sink commits it.
WRITER = """
import sys
import pyarrow as pa
from rmq_store import Message, StagingArea, Store
root, value = sys.argv[1], int(sys.argv[2])
with Store.open(root) as store:
    for number in range(200):
        store.send(Message("Orders", b"w%d" % number * 50, keys=f"w{number}", queue_id=number % 4))
    store.append(pa.RecordBatch.from_pydict({"body": pa.array([b"column" * 40] * 500, pa.binary())}), "Orders")
    with StagingArea.for_task(store.path, f"w{value}", 0, 0, topic="Orders") as area:
        area.write(pa.RecordBatch.from_pydict({"body": pa.array([b"unit" * 100] * 2000, pa.binary())}))
        files = [area.finish()]
    store.commit_staged(files, key="query", value=value)
"""


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    require_released(request.param)
    name: str = request.param
    return name


Serve = Callable[..., BrokerServer]


@pytest.fixture
def serve(fast_scratch: Path) -> Iterator[Serve]:
    """Starts our master; settings of HA by keyword."""
    with contextlib.ExitStack() as ends:

        def start(role: BrokerRole = BrokerRole.ASYNC_MASTER, **settings: object) -> BrokerServer:
            (port,) = free_ports(1)
            server = BrokerServer(
                fast_scratch / "master", port=port, config=CONFIG, create=True, admin=True,
                cluster_name="rmq-tests", ha=HASettings(role=role, **settings),  # type: ignore[arg-type]
            )  # fmt: skip
            ends.callback(server.close)
            return server

        yield start


@pytest.fixture
def slave_of() -> Iterator[Callable[[BrokerServer, str], JavaProcess]]:
    """Starts a released broker as the slave of a master of ours, which is its name server, too."""
    with contextlib.ExitStack() as ends:

        def start(server: BrokerServer, version: str) -> JavaProcess:
            sizes = {"mappedFileSizeCommitLog": SEGMENT_BYTES, "mappedFileSizeConsumeQueue": QUEUE_BYTES}
            layout = Layout(version, 1, False, None, None, sizes, {}, {})
            (port,) = free_ports(1)
            slave = layout.broker(server.store.broker_name, 1, port, server.address)
            ends.callback(slave.close)
            slave.start()
            return slave

        yield start


SlaveOf = Callable[[BrokerServer, str], JavaProcess]


def write_elsewhere(root: Path, value: int) -> None:
    subprocess.run([sys.executable, "-c", WRITER, str(root), str(value)], check=True, timeout=120)


def await_replicated(server: BrokerServer, slave: JavaProcess) -> int:
    """Until the slave has said that it has the whole log; returns its end."""
    assert server.ha is not None
    ha, end = server.ha, server.store.log_range()[1]
    until(lambda: any(has >= end for _, has in ha.slaves()), f"the slave lacks something.\n{slave.log()}", 60)
    return end


@pytest.mark.statement("G21")
def test_a_java_slave_has_everything_that_any_process_has_appended(
    version: str, serve: Serve, slave_of: SlaveOf
) -> None:
    server = serve()
    server.store.create_topic("Orders", 4)
    for number in range(6000):
        server.store.send(Message("Orders", b"%d" % number * 100, keys=f"k{number}", queue_id=number % 4))
    assert server.store.log_range()[1] > 2 * SEGMENT_BYTES
    slave = slave_of(server, version)
    await_replicated(server, slave)
    write_elsewhere(server.store.path, 1)
    with Connection(server.address) as master:
        for number in range(50):
            assert requests.send(master, "Orders", body=b"sent %d" % number).code == SUCCESS
            requests.send_batch(master, "Orders", [b"%d" % each * 150 for each in range(20)])
    end = await_replicated(server, slave)
    root, copy = server.store.path, slave.directory / "store"
    same_files(copy, root, 0, end, SEGMENT_BYTES)
    with Connection(slave.address) as connection:
        for queue_id in range(4):
            wanted = server.store.queue_range("Orders", queue_id).max_offset
            until(
                lambda queue_id=queue_id, wanted=wanted: (  # type: ignore[misc]
                    requests.max_offset(connection, "Orders", queue_id) == wanted
                ),
                f"queue {queue_id} of the slave.\n{slave.log()}",
            )
    slave.stop()
    assert same_queues(copy, root) > 8000
    report = verify_store(copy)
    assert not [problem for problem in report.problems if "commitlog" in str(problem)], report.problems


@pytest.mark.statement("G21")
def test_a_sync_master_with_a_java_slave(version: str, serve: Serve, slave_of: SlaveOf) -> None:
    """11 without the slave, 0 with it, 12 while it is suspended. Each send with 0 is at the slave."""
    server = serve(BrokerRole.SYNC_MASTER, slave_timeout_ms=2000)
    server.store.create_topic("Orders", 1)
    acknowledged = []
    with Connection(server.address) as master:
        assert requests.send(master, "Orders").code == SLAVE_NOT_AVAILABLE
        slave = slave_of(server, version)
        until(lambda: requests.send(master, "Orders", body=b"first").code == SUCCESS, f"no 0.\n{slave.log()}", 60)
        for number in range(200):
            body = b"m%d" % number
            if requests.send(master, "Orders", body=body).code == SUCCESS:
                acknowledged.append(body)
            if server.store.send(Message("Orders", b"l%d" % number, queue_id=0)).status is SendStatus.SEND_OK:
                acknowledged.append(b"l%d" % number)
        assert len(acknowledged) == 400
        slave.suspend()
        assert requests.send(master, "Orders", body=b"late").code == FLUSH_SLAVE_TIMEOUT
        assert server.store.send(Message("Orders", b"late", queue_id=0)).status is SendStatus.FLUSH_SLAVE_TIMEOUT
        assert requests.send(master, "Orders", properties={"WAIT": "false"}).code == SUCCESS
        slave.resume()
        until(lambda: requests.send(master, "Orders").code == SUCCESS, f"no 0 again.\n{slave.log()}", 60)
        slave.kill()
        until(lambda: requests.send(master, "Orders").code == SLAVE_NOT_AVAILABLE, "no 11 without the slave", 60)
    with Store.open(slave.directory / "store", read_only=True) as copy:
        end = copy.queue_range("Orders", 0).max_offset
        bodies = {row["body"] for batch in copy.read("Orders", 0, 0, end) for row in batch.to_pylist()}
    assert set(acknowledged) <= bodies


@pytest.mark.timeout(400)
@pytest.mark.slow
def test_a_java_slave_takes_topics_groups_and_offsets(version: str, serve: Serve, slave_of: SlaveOf) -> None:
    server = serve()
    server.store.create_topic("Orders", 4)
    server.store.send(Message("Orders", b"1", queue_id=0))
    server.store.commit_offsets("billing", {("Orders", 0): 1})
    slave = slave_of(server, version)
    await_replicated(server, slave)

    def tables() -> list[str]:
        config = slave.directory / "store" / "config"
        names = ("topics.json", "consumerOffset.json")
        return [path.read_text() if (path := config / name).exists() else "" for name in names]

    until(lambda: "Orders" in tables()[0] and "Orders@billing" in tables()[1], "tables of the slave", 150)
    with Connection(slave.address) as connection:
        pulled = requests.frames(requests.pull(connection, "Orders"))
        assert [requests.body_of(frame) for frame in pulled] == [b"1"]
    server.store.create_topic("Later", 4)
    until(lambda: "Later" in tables()[0], "a topic that is made later", 150)
    with Connection(server.address) as connection:
        route = connection.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Orders"})
    assert slave.address in route.body.decode() and json.dumps(server.address) in route.body.decode()
