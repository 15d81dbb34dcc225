"""An old master comes back as a slave: a released broker on a directory that `rejoin` has cut, made by either side."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from helpers.cluster import requests
from helpers.cluster.asking import Connection
from helpers.cluster.fixtures import require_released
from helpers.cluster.followed.equality import same_files, same_queues
from helpers.cluster.java_process import HOST, VERSIONS, JavaProcess
from helpers.cluster.released import Layout
from helpers.cluster.replicated.pairs import CONFIG, QUEUE_BYTES, SEGMENT_BYTES, pair_of
from helpers.cluster.replicated.plan import JAVA_MASTER
from helpers.cluster.waiting import free_ports, until
from rmq_store import Message, Store
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.replica.master import Master
from rmq_store.replica.take_over.rejoin import Rejoined, rejoin
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.ha.settings import HASettings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.parametrize("version", VERSIONS)]

TOPIC = "Orders"
COMMON = 2000
"""Messages that both logs have: more than a segment."""


def same_as(slave: JavaProcess, store: Path, master: Path, queue_ends: list[int], end: int) -> None:
    """Stop the slave when it has made all queue entries: it has the log of its master, and its entries."""
    with Connection(slave.address) as connection:
        for queue_id, wanted in enumerate(queue_ends):
            until(
                lambda queue_id=queue_id, wanted=wanted: (  # type: ignore[misc]
                    requests.max_offset(connection, TOPIC, queue_id) == wanted
                ),
                f"queue {queue_id} of the slave does not come to {wanted}.\n{slave.log()}",
            )
    slave.stop()
    same_files(store, master, 0, end, SEGMENT_BYTES)
    assert same_queues(store, master) >= COMMON


def tail_of(found: Rejoined, bodies: list[str]) -> None:
    """The tail was cut, and is in the file."""
    assert found.is_done and found.messages == len(bodies)
    assert found.file is not None
    assert [json.loads(line)["body"] for line in found.file.read_text().splitlines()] == bodies


def test_a_released_slave_goes_on_with_our_old_masters_directory(version: str, tmp_path: Path) -> None:
    require_released(version)
    old, new = tmp_path / "old", tmp_path / "new"
    with Store.open(old, create=True, config=CONFIG) as store:
        store.create_topic(TOPIC, 2)
        for number in range(COMMON):
            store.send(Message(TOPIC, b"%d" % number * 150, queue_id=number % 2))
    shutil.copytree(old, new)
    with Store.open(old) as store:
        for number in range(30):
            store.send(Message(TOPIC, b"only at the old one %d" % number, queue_id=0))
    ports = free_ports(2)
    with BrokerServer(new, port=next(ports), ha=HASettings(), admin=True) as server:
        for number in range(40):
            server.store.send(Message(TOPIC, b"only at the new one %d" % number, queue_id=number % 2))
        with Master(ClusterSettings.of_text(server.address), address=server.address) as master:
            tail_of(rejoin(old, master), [f"only at the old one {number}" for number in range(30)])
        sizes = {
            "mappedFileSizeCommitLog": SEGMENT_BYTES, "mappedFileSizeConsumeQueue": QUEUE_BYTES,
            "brokerClusterName": "DefaultCluster",
        }  # fmt: skip
        place = {"storePathRootDir": str(old), "storePathCommitLog": str(old / "commitlog")}
        slave = Layout(version, 1, False, None, None, sizes, {}, place).broker(
            server.store.broker_name, 1, next(ports), server.address
        )
        try:
            slave.start()
            server.store.send(Message(TOPIC, b"while the slave runs", queue_id=1))
            ends = [server.store.queue_range(TOPIC, queue_id).max_offset for queue_id in range(2)]
            assert ends == [COMMON // 2 + 20, COMMON // 2 + 21]
            same_as(slave, old, new, ends, server.store.log_range()[1])
        finally:
            slave.close()


def test_a_released_masters_directory_rejoins_our_new_master(version: str, tmp_path: Path) -> None:
    """It is fed by the same broker afterwards, as a slave."""
    require_released(version)
    with pair_of(JAVA_MASTER, version, tmp_path / "pair", TOPIC) as brokers:
        old = brokers.master
        assert isinstance(old, JavaProcess)
        with Connection(old.address) as master:
            for number in range(COMMON // 40):
                bodies = [b"%d" % each * 150 for each in range(40)]
                until(
                    lambda number=number, bodies=bodies: (  # type: ignore[misc]
                        requests.send_batch(master, TOPIC, bodies, number % 2).code == 0
                    ),
                    "no send is answered with 0",
                )
            brokers.slave.kill()
            lost = [f"only at the old one {number}" for number in range(3)]
            for body in lost:
                assert requests.send(master, TOPIC, 0, body.encode()).code in (11, 12)
            requests.await_end(master, TOPIC, requests.max_offset(master, TOPIC))
        old.kill()
        new = brokers.take_over("--ha-listen", f"{HOST}:{brokers.slave.port + 1}")
        with Connection(new.address) as master:
            for number in range(40):
                assert requests.send(master, TOPIC, number % 2, b"only at the new one").code == 0
        settings = ClusterSettings(name_servers=brokers.cluster.name_servers)
        with Master(settings, broker="broker-a") as found:
            tail_of(rejoin(old.directory / "store", found), lost)
        old.configure(brokerId=1, brokerRole="SLAVE")
        old.start()
        with Connection(new.address) as master:
            assert requests.send(master, TOPIC, 1, b"while the slave runs").code == 0
            ends = [requests.max_offset(master, TOPIC, queue_id) for queue_id in range(2)]
        with Store.open(brokers.slave_store, read_only=True) as store:
            end = store.log_range()[1]
        same_as(old, old.directory / "store", brokers.slave_store, ends, end)
