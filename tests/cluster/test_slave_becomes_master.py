"""No slave becomes a master by itself; a person makes it one, and its readers and senders go on."""

from __future__ import annotations

import pytest

from helpers.cluster import requests
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.fixtures import require_released
from helpers.cluster.java_process import VERSIONS
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.pulling import read_range
from rmq_store.remoting.transport.settings import ClusterSettings

REFUSED_BY_SLAVES = {"4.9.7": 14, "5.5.0": 2}


@pytest.mark.slow
@pytest.mark.statement("G22")
@pytest.mark.parametrize("version", VERSIONS)
def test_a_slave_becomes_a_master_by_hand_alone(version: str) -> None:
    require_released(version)
    with RocketmqCluster(version, slaves=1) as brokers:
        topic = brokers.create_topic("Orders", 1, on_slaves=True)
        with brokers.connect() as master:
            requests.send(master, topic, body=b"0")
            requests.await_end(master, topic, 1)
        brokers.await_replicated(topic)
        old, slave = brokers.broker(), brokers.broker("broker-a", 1)
        old.kill()
        brokers.await_gone(("broker-a", 0))
        with brokers.connect("broker-a", 1) as connection:
            assert requests.send(connection, topic).code == REFUSED_BY_SLAVES[version]
        slave.stop()
        slave.configure(brokerId=0, brokerRole="ASYNC_MASTER")
        slave.start()
        brokers.await_address(("broker-a", 0), slave.address)
        with brokers.connect("broker-a", 1) as connection:
            answer = requests.send(connection, topic, body=b"1")
            assert (answer.code, answer.ext_fields["queueOffset"]) == (0, "1")
            requests.await_end(connection, topic, 2)
        with Cluster(ClusterSettings(name_servers=brokers.name_servers)) as cluster:
            frames = requests.records(b"".join(read_range(cluster, MessageQueue(topic, "broker-a", 0), 0, 2)))
            assert [requests.body_of(frame) for frame in frames] == [b"0", b"1"]
