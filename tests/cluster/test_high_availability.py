"""What users of RocketMQ's replication expect, over real processes: two name servers, two groups with a slave each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from helpers.cluster import requests
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.fixtures import require_released
from helpers.cluster.java_process import VERSIONS
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster import offsets, topics
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.pulling import read_range
from rmq_store.remoting.transport.settings import ClusterSettings

pytestmark = pytest.mark.slow

NewName = Callable[[str], str]
GROUPS = ("broker-a", "broker-b")
COUNT = 1000


@pytest.fixture(scope="module", params=VERSIONS)
def whole_cluster(request: pytest.FixtureRequest) -> Iterator[RocketmqCluster]:
    require_released(request.param)
    with RocketmqCluster(request.param, groups=2, slaves=1, name_servers=2) as cluster:
        yield cluster


@pytest.fixture
def brokers(whole_cluster: RocketmqCluster) -> RocketmqCluster:
    whole_cluster.heal()
    return whole_cluster


@pytest.fixture
def topic(brokers: RocketmqCluster, new_name: NewName) -> str:
    """One queue at each group with COUNT messages, which the slaves have, too."""
    name = brokers.create_topic(new_name("Orders"), 1, on_slaves=True)
    for group in GROUPS:
        send_numbers(brokers, name, group, range(COUNT))
        brokers.await_replicated(name, 0, group)
    return name


@pytest.fixture
def cluster(brokers: RocketmqCluster) -> Iterator[Cluster]:
    with Cluster(ClusterSettings(name_servers=brokers.name_servers, timeout_ms=2000)) as cluster:
        yield cluster


def send_numbers(brokers: RocketmqCluster, topic: str, group: str, numbers: range) -> None:
    with brokers.connect(group) as master:
        answer = requests.send_batch(master, topic, [b"%d" % number for number in numbers])
        assert answer.code == 0, answer
        requests.await_end(master, topic, numbers.stop)


def numbers_of(cluster: Cluster, topic: str, group: str, end: int, start: int = 0) -> list[int]:
    blocks = b"".join(read_range(cluster, MessageQueue(topic, group, 0), start, end))
    return [int(requests.body_of(frame)) for frame in requests.records(blocks)]


@pytest.mark.statement("G19")
def test_nobody_notices_that_a_name_server_dies(
    brokers: RocketmqCluster, cluster: Cluster, topic: str, new_name: NewName
) -> None:
    assert numbers_of(cluster, topic, "broker-a", COUNT) == list(range(COUNT))
    for dead in brokers.name_server_processes:
        dead.kill()
        assert numbers_of(cluster, topic, "broker-b", COUNT) == list(range(COUNT))
        assert cluster.refresh_route(topic) is not None
        with Cluster(ClusterSettings(name_servers=brokers.name_servers)) as newcomer:
            assert len(topics.topic_stats(newcomer, topic)) == 2
        # It has kept nothing: the brokers tell it everything again.
        dead.start()
        brokers.await_registered()


@pytest.mark.statement("G20")
@pytest.mark.parametrize("is_suspended", [False, True])
def test_a_slave_serves_the_reads_of_a_master_that_is_away_and_the_other_master_takes_the_sends(
    brokers: RocketmqCluster, cluster: Cluster, topic: str, is_suspended: bool
) -> None:
    assert numbers_of(cluster, topic, "broker-a", 10) == list(range(10))
    master = brokers.broker("broker-a")
    if is_suspended:
        master.suspend()
    else:
        master.kill()
    assert numbers_of(cluster, topic, "broker-a", COUNT) == list(range(COUNT))
    send_numbers(brokers, topic, "broker-b", range(COUNT, COUNT + 5))
    assert numbers_of(cluster, topic, "broker-b", COUNT + 5, COUNT) == list(range(COUNT, COUNT + 5))
    brokers.heal()
    send_numbers(brokers, topic, "broker-a", range(COUNT, COUNT + 5))
    assert numbers_of(cluster, topic, "broker-a", COUNT + 5) == list(range(COUNT + 5))


@pytest.mark.statement("G20")
def test_offsets_are_committed_at_the_master_and_not_at_its_slave(
    brokers: RocketmqCluster, cluster: Cluster, topic: str, new_name: NewName
) -> None:
    group, queue = new_name("cg"), MessageQueue(topic, "broker-a", 0)
    with brokers.connect("broker-a") as master, brokers.connect("broker-a", 1) as slave:
        requests.pull(master, topic, group=group)
        requests.pull(slave, topic, group=group)
        offsets.update_consumer_offsets(cluster, group, {queue: 7})
        assert requests.committed(master, group, topic).ext_fields == {"offset": "7"}
    brokers.broker("broker-a").kill()
    brokers.await_gone(("broker-a", 0))
    cluster.refresh_route(topic)
    with pytest.raises(Exception, match="broker-a"):
        offsets.update_consumer_offsets(cluster, group, {queue: 8})
    with brokers.connect("broker-a", 1) as slave:
        assert requests.committed(slave, group, topic).ext_fields != {"offset": "8"}
