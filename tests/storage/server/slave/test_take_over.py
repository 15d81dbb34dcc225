"""Acknowledged sends and offsets of groups outlive their master, which comes back as a slave: all of them ours."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from helpers.cluster import requests
from helpers.cluster.asking import Connection
from helpers.cluster.waiting import until
from rmq_store import Message, Store, StoreConfig
from rmq_store.log.broker_role import BrokerRole
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.replica.master import Master
from rmq_store.replica.take_over.promote import promote
from rmq_store.replica.take_over.rejoin import rejoin
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.ha.settings import HASettings
from rmq_store.server.slave.slave_server import SlaveServer
from rmq_store.verify import verify_store

CONFIG = StoreConfig(1 << 20, 2000, 100, 400)
SYNC = HASettings(host="127.0.0.1", port=0, role=BrokerRole.SYNC_MASTER)
SENT, READ_AT_MASTER, READ_AT_SLAVE = 20, 2, 9


def stopped(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def master_at(address: str) -> Master:
    return Master(ClusterSettings.of_text(address), address=address)


def until_replicated(client: Connection, body: bytes) -> None:
    """Send until a slave has it: until then a SYNC_MASTER says that it has none."""
    until(lambda: requests.send(client, "Orders", body=body).code == 0, "no slave has it")


@pytest.mark.long
def test_a_slave_takes_over_and_the_old_master_comes_back_as_its_slave(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with BrokerServer(first, config=CONFIG, create=True, admin=True, ha=SYNC) as server:
        server.store.create_topic("Orders", 1)
        with master_at(server.address) as master, SlaveServer(second, master, should_stop=stopped) as slave:
            with Connection(server.address) as client:
                until_replicated(client, b"first")
                for number in range(SENT):
                    assert requests.send(client, "Orders", body=b"%d" % number).code == 0
                assert requests.commit(client, "cg", "Orders", READ_AT_MASTER).code == 0
            end = server.store.log_range()[1]
            until(lambda: slave.store.log_range()[1] == end, "the slave has the log")
            known = {("Orders", 0): READ_AT_MASTER}
            until(lambda: slave.store.committed_offsets("cg") == known, "the slave has the offsets")
            server.close()
            with Connection(slave.address) as client:
                assert len(requests.frames(requests.pull(client, "Orders"))) > SENT
                assert requests.commit(client, "cg", "Orders", READ_AT_SLAVE).code == 0

    assert promote(second).log_end == end
    assert verify_store(second).status == "clean"
    with Store.open(first) as old:
        old.send(Message("Orders", b"nobody else has it", queue_id=0))

    with BrokerServer(second, admin=True, ha=SYNC) as server, master_at(server.address) as master:
        assert server.store.committed_offsets("cg") == {("Orders", 0): READ_AT_SLAVE}
        back = rejoin(first, master, file=tmp_path / "tail.jsonl")
        assert (back.parting, back.messages) == (end, 1)
        with SlaveServer(first, master, should_stop=stopped) as slave, Connection(server.address) as client:
            until_replicated(client, b"from the new master")
            end = server.store.log_range()[1]
            until(lambda: slave.store.log_range()[1] == end, "the old master has the log")
    assert verify_store(first).status == "clean"
