"""Our slave of a released master: Java's client and ours read from it while the master is away, and offsets that they
commit there go up. Promoted, its directory is a store that a released broker starts on.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.cluster import requests
from helpers.cluster.asking import Connection
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.fixtures import require_released
from helpers.cluster.java_process import VERSIONS
from helpers.cluster.waiting import until
from helpers.cluster.witness import Witness
from rmq_store import Store
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.pulling import read_range
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.replica.master import Master
from rmq_store.replica.take_over.promote import promote
from rmq_store.server.slave.slave_server import SlaveServer
from rmq_store.verify import verify_store

NewName = Callable[[str], str]
COUNT = 40


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_clients_read_from_our_slave_of_a_master_that_is_away(version: str, new_name: NewName, tmp_path: Path) -> None:
    require_released(version)
    sizes = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 20 * 1000}
    root, group = tmp_path / "slave", new_name("readers")
    sync = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "totalReplicas": 2, "slaveTimeout": 10_000}
    with RocketmqCluster(version, properties=sizes, master_properties=sync) as brokers, Witness(brokers) as java:
        topic, ready = (brokers.create_topic(new_name(name), 1) for name in ("Orders", "Ready"))
        settings = ClusterSettings(name_servers=brokers.name_servers)
        with (
            Master(settings, broker="broker-a") as master,
            SlaveServer(
                root, master, name_servers=settings, should_stop=lambda seconds: bool(time.sleep(seconds))
            ) as slave,
            Cluster(settings) as cluster,
        ):
            with brokers.connect() as asked:
                until(lambda: requests.send(asked, ready).code == 0, "the master counts no slave")
                for number in range(COUNT):  # a SYNC_MASTER answers 0 when a slave has it, and that is ours
                    assert requests.send(asked, topic, body=b"%d" % number).code == 0
                requests.await_end(asked, topic, COUNT)
                assert requests.heartbeat(asked, "client@1", group, topic).code == 0  # the group is there then
                assert requests.commit(asked, group, topic, 3).code == 0

            def has_offset() -> bool:
                slave.check()
                return slave.store.committed_offsets(group) == {(topic, 0): 3}

            until(has_offset, "the slave has not the offset")
            brokers.broker().kill()
            brokers.await_gone(("broker-a", 0))
            asked_for = {"group": new_name("lite"), "topic": topic, "count": COUNT, "timeoutMs": 60_000}
            found = java.ask("lite", **asked_for)
            assert sorted(message["queueOffset"] for message in found) == list(range(COUNT))
            records = requests.records(b"".join(read_range(cluster, MessageQueue(topic, "broker-a", 0), 0, COUNT)))
            assert [requests.body_of(frame) for frame in records] == [b"%d" % number for number in range(COUNT)]
            with Connection(slave.address) as at_slave:
                assert requests.send(at_slave, topic).code == 14
                assert requests.commit(at_slave, group, topic, 25).code == 0
            brokers.broker().start()
            brokers.await_registered()

            def is_up() -> bool:
                with brokers.connect() as again:
                    return requests.committed(again, group, topic).ext_fields.get("offset") == "25"

            until(is_up, "the offset that was committed at the slave has not gone up")
            until(lambda: slave._feeding.follower.progress.is_connected, "the slave has not come back")
        broker = brokers.broker()
        broker.stop()
        end = promote(root).log_end
        assert verify_store(root).status == "clean"
        shutil.rmtree(broker.directory / "store")
        shutil.copytree(root, broker.directory / "store")
        broker.start()
        brokers.await_registered()
        found = java.ask("lite", **{**asked_for, "group": new_name("after")})
        assert sorted(message["queueOffset"] for message in found) == list(range(COUNT))
        with brokers.connect() as asked:
            answer = requests.send(asked, topic, body=b"new")
            assert answer.ext_fields["queueOffset"] == str(COUNT)
        broker.stop()
        with Store.open(broker.directory / "store", read_only=True) as store:
            assert store.log_range()[1] > end
            assert store.queue_range(topic, 0) == (0, COUNT + 1)
