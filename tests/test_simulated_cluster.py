"""The simulated cluster counts what it is asked, and answers as real brokers do (tests/cluster/test_facts.py)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from helpers.cluster import requests
from helpers.cluster.asking import Connection
from helpers.cluster.simulated import SimulatedBroker, SimulatedCluster
from helpers.cluster.simulated.queues import START_MS
from rmq_store.protocol.bodies.routes import ClusterInfo, TopicList, TopicRouteData
from rmq_store.protocol.bodies.topics import TopicStatsTable
from rmq_store.protocol.wire.request_codes import RequestCode

TOPIC = "Orders"


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(brokers=3) as cluster:
        cluster.create_topic(TOPIC, queue_count=4, message_count=100, first=10)
        yield cluster


@pytest.fixture
def broker(cluster: SimulatedCluster) -> SimulatedBroker:
    return cluster.brokers["broker-001"]


@pytest.fixture
def asked(broker: SimulatedBroker) -> Iterator[Connection]:
    with Connection(broker.address) as connection:
        yield connection


def test_the_name_server_knows_all_brokers_and_topics(cluster: SimulatedCluster) -> None:
    with Connection(cluster.name_server) as connection:
        route = TopicRouteData.decode(connection.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC}).body)
        info = ClusterInfo.decode(connection.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body)
        topics = TopicList.decode(connection.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body)
        assert connection.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "None"}).code == 17
    addresses = {broker.name: broker.address for broker in cluster.brokers.values()}
    assert {data.broker_name: data.broker_addrs[0] for data in route.broker_datas} == addresses
    assert [queues.read_queue_nums for queues in route.queue_datas] == [4, 4, 4]
    assert list(info.broker_addr_table) == list(addresses)
    assert topics.topic_list == (TOPIC,)


def test_generated_messages_have_offsets_times_and_sound_records(asked: Connection) -> None:
    answer = requests.pull(asked, TOPIC, 2, 95)
    frames = requests.frames(answer)
    assert [requests.body_of(frame) for frame in frames] == [b"message %d" % offset for offset in range(95, 100)]
    assert answer.ext_fields["nextBeginOffset"] == "100"
    table = asked.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": TOPIC}).body
    found = {
        queue.queue_id: (ends.min_offset, ends.max_offset)
        for queue, ends in TopicStatsTable.decode(table).offset_table.items()
    }
    assert found == dict.fromkeys(range(4), (10, 100))
    fields = {"topic": TOPIC, "queueId": 0, "timestamp": START_MS + 50_001}
    assert asked.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields).ext_fields == {"offset": "51"}


@pytest.mark.parametrize(
    ("offset", "code", "following"), [(100, 19, "100"), (101, 21, "100"), (9, 21, "10"), (10, 0, "42")]
)
def test_pulls_outside_the_queue_are_answered_as_by_a_broker(
    asked: Connection, offset: int, code: int, following: str
) -> None:
    answer = requests.pull(asked, TOPIC, 0, offset)
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (code, following)
    assert (answer.ext_fields["minOffset"], answer.ext_fields["maxOffset"]) == ("10", "100")


def test_what_is_sent_is_stored_behind_what_is_generated(asked: Connection) -> None:
    one = requests.send(asked, TOPIC, 1, b"one", {"KEYS": "k"})
    two = requests.send_batch(asked, TOPIC, [b"two", b"three"], 1, properties={"TAGS": "t"})
    assert (one.ext_fields["queueOffset"], two.ext_fields["queueOffset"]) == ("100", "101")
    assert len(two.ext_fields["msgId"].split(",")) == 2
    frames = requests.frames(requests.pull(asked, TOPIC, 1, 100))
    assert [requests.body_of(frame) for frame in frames] == [b"one", b"two", b"three"]
    assert [requests.properties_of(frame) for frame in frames] == [{"KEYS": "k"}, {"TAGS": "t"}, {"TAGS": "t"}]
    assert [int.from_bytes(frame[20:28], "big") for frame in frames] == [100, 101, 102]


def test_an_answer_is_cut_at_256_kib_but_not_at_one_message(asked: Connection) -> None:
    requests.send_batch(asked, TOPIC, [b"x" * 100_000] * 3 + [b"y" * 300_000])
    assert len(requests.frames(requests.pull(asked, TOPIC, 0, 100))) == 2
    assert len(requests.frames(requests.pull(asked, TOPIC, 0, 103))) == 1


def test_offsets_locks_and_topics_are_kept(asked: Connection) -> None:
    assert requests.commit(asked, "g", TOPIC, 7).code == 26
    requests.pull(asked, TOPIC, group="g")
    assert requests.committed(asked, "g", TOPIC).code == 22
    assert requests.commit(asked, "g", TOPIC, 7).code == 0
    assert requests.committed(asked, "g", TOPIC).ext_fields == {"offset": "7"}
    assert requests.lock(asked, "lease", "client-1", TOPIC)
    assert not requests.lock(asked, "lease", "client-2", TOPIC)
    requests.lock(asked, "lease", "client-1", TOPIC, code=RequestCode.UNLOCK_BATCH_MQ)
    assert requests.lock(asked, "lease", "client-2", TOPIC)
    assert requests.create_topic(asked, "New", 2).code == 0
    assert requests.send(asked, "New", 1).code == 0
    assert requests.send(asked, "New", 2).code == 29


def test_calls_connections_and_bytes_are_counted(cluster: SimulatedCluster, broker: SimulatedBroker) -> None:
    with Connection(broker.address) as first, Connection(cluster.brokers["broker-002"].address) as second:
        for connection in (first, first, second):
            requests.pull(connection, TOPIC, 0, 10)
        requests.max_offset(first, TOPIC)
    assert cluster.total_calls == {RequestCode.PULL_MESSAGE: 3, RequestCode.GET_MAX_OFFSET: 1}
    assert broker.calls[RequestCode.PULL_MESSAGE] == 2
    assert cluster.connections == 2
    assert cluster.bytes_of_answers > 3 * 32 * 100
    cluster.forget_calls()
    assert not cluster.total_calls and cluster.connections == 0


def test_a_broker_refuses_as_told_without_doing_it(asked: Connection, broker: SimulatedBroker) -> None:
    broker.refuse(RequestCode.SEND_MESSAGE_V2, 2, count=2)
    assert [requests.send(asked, TOPIC).code for _ in range(3)] == [2, 2, 0]
    assert requests.max_offset(asked, TOPIC) == 101


def test_a_broker_dies_and_comes_back_with_its_messages(broker: SimulatedBroker) -> None:
    with Connection(broker.address) as connection:
        requests.send(connection, TOPIC)
    broker.stop()
    with pytest.raises(ConnectionRefusedError):
        Connection(broker.address)
    broker.start()
    with Connection(broker.address) as connection:
        assert requests.max_offset(connection, TOPIC) == 101
