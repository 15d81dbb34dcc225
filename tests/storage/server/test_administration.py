"""What an administrator asks a served store: settings, rates, queue entries, producers, and offsets of members."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from rmq_store import Message, Store, TopicConfig
from rmq_store.broker.metadata.groups import SubscriptionGroup
from rmq_store.client import ResponseCode
from rmq_store.clock import system_clock
from rmq_store.format.text.hashing import java_hash
from rmq_store.protocol.bodies.clients import ConsumerData, HeartbeatData, ProducerData
from rmq_store.protocol.bodies.groups import (
    ConsumerStatusBody,
    ConsumeStats,
    ConsumeStatsList,
    ProducerConnection,
    ProducerTableInfo,
    QueryConsumeTimeSpanBody,
    QuerySubscriptionResponseBody,
    QueueTimeSpan,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from rmq_store.protocol.bodies.routes import KVTable, TopicList, TopicRouteData
from rmq_store.protocol.bodies.topics import BrokerStatsData, QueryConsumeQueueResponseBody, TopicStatsTable
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import VERSION, LanguageCode, RemotingCommand
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.server.admin import member_offsets
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.processors import client_requests


def call(cluster: Cluster, code: int, **fields: str) -> RemotingCommand:
    return cluster.client.call(cluster.settings.name_servers[0], RemotingCommand(code, fields), 20_000)


@pytest.fixture
def orders(server: BrokerServer) -> Store:
    store = server.store
    store.create_topic("Orders", 2)
    for number in range(6):
        store.send(Message("Orders", b"%d" % number, tags="AB"[number % 2], properties={"n": str(number)}, queue_id=0))
    return store


class Client:
    """A connected client of groups, which answers when it is asked for its offsets."""

    def __init__(self, server: BrokerServer, name: str, *subscriptions: SubscriptionData) -> None:
        self.cluster = Cluster(ClusterSettings.of_text(server.address))
        self.asked: list[RemotingCommand] = []
        self.answer = RemotingCommand(0)
        self.silent = threading.Event()
        self.cluster.client.on_request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, self._asked)
        consumer = ConsumerData(group_name="cg", subscription_data_set=subscriptions)
        beat = HeartbeatData(
            client_id=name, consumer_data_set=(consumer,), producer_data_set=(ProducerData(group_name="pg"),)
        )
        command = RemotingCommand(RequestCode.HEART_BEAT, {}, beat.encode())
        assert self.cluster.client.call(server.address, command, 20_000).code == ResponseCode.SUCCESS

    def _asked(self, address: str, command: RemotingCommand) -> RemotingCommand | None:
        self.asked.append(command)
        return None if self.silent.is_set() else self.answer


Join = Callable[..., Client]


@pytest.fixture
def join(server: BrokerServer) -> Iterator[Join]:
    clients: list[Client] = []

    def join(name: str, *subscriptions: SubscriptionData) -> Client:
        clients.append(Client(server, name, *subscriptions))
        return clients[-1]

    yield join
    for one in clients:
        one.cluster.close()


# -- progress of a group ----------------------------------------------------------------------------------------------


def progress(cluster: Cluster, group: str, topic: str = "") -> dict[tuple[str, int], tuple[int, int]]:
    """By queue: the offset of the group, and the end of the queue."""
    fields = {"consumerGroup": group} | ({"topic": topic} if topic else {})
    table = ConsumeStats.decode(call(cluster, RequestCode.GET_CONSUME_STATS, **fields).body).offset_table
    return {(queue.topic, queue.queue_id): (one.consumer_offset, one.broker_offset) for queue, one in table.items()}


def test_a_queue_in_which_a_group_has_committed_nothing_is_part_of_its_lag(cluster: Cluster, orders: Store) -> None:
    """AdminBrokerProcessor#getConsumeStats. mqadmin calls an empty table a group that does not consume."""
    orders.commit_offsets("cg", {("Orders", 1): 0, ("Orders", 7): 3, ("Gone", 0): 1})
    assert progress(cluster, "cg") == {("Orders", 0): (0, 6), ("Orders", 1): (0, 0)}
    assert progress(cluster, "new", "Orders") == {("Orders", 0): (0, 6), ("Orders", 1): (0, 0)}
    assert progress(cluster, "new") == progress(cluster, "cg", "Gone") == {}


def test_a_topic_that_the_members_of_a_group_have_left_is_no_part_of_its_lag(
    join: Join, cluster: Cluster, orders: Store
) -> None:
    orders.create_topic("Old", 1)
    orders.commit_offsets("cg", {("Orders", 0): 2, ("Old", 0): 0})
    assert progress(cluster, "cg") == {("Orders", 0): (2, 6), ("Orders", 1): (0, 0), ("Old", 0): (0, 0)}
    join("c1", SubscriptionData(topic="Orders", sub_string="*", sub_version=1))
    assert progress(cluster, "cg") == {("Orders", 0): (2, 6), ("Orders", 1): (0, 0)}
    assert progress(cluster, "cg", "Old") == {}


def test_queues_that_are_only_written_have_their_ends_too(cluster: Cluster, orders: Store) -> None:
    """AdminBrokerProcessor#getTopicStatsInfo: their messages wait for more read queues."""
    wide = TopicConfig("Wide", 1, 3)
    orders.admin.update_topic("Wide", lambda _: wide, default=wide)
    orders.send(Message("Wide", b"x", queue_id=2))
    table = TopicStatsTable.decode(call(cluster, RequestCode.GET_TOPIC_STATS_INFO, topic="Wide").body).offset_table
    assert {queue.queue_id: one.max_offset for queue, one in table.items()} == {0: 0, 1: 0, 2: 1}


def test_one_group_is_asked_for_by_its_name(cluster: Cluster, orders: Store) -> None:
    """AdminBrokerProcessor#getSubscriptionGroup, for getConsumerConfig of 5.x and for proxies."""
    orders.create_group(SubscriptionGroup("cg", retry_max_times=3, consume_message_orderly=True))
    answer = call(cluster, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="cg")
    found = SubscriptionGroupConfig.decode(answer.body)
    assert (found.group_name, found.retry_max_times, found.consume_message_orderly) == ("cg", 3, True)
    absent = call(cluster, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="none")
    assert absent.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST and "none" not in orders.groups()


def test_a_dashboard_learns_which_topics_are_the_systems(cluster: Cluster, server: BrokerServer, orders: Store) -> None:
    """MQClientAPIImpl#getSystemTopicList asks a name server, then the broker that it names."""
    named = TopicList.decode(call(cluster, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS).body)
    assert named == TopicList(topic_list=("DefaultCluster", "rmq-embedded"), broker_addr=server.address)
    found = set(TopicList.decode(call(cluster, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER).body).topic_list)
    assert found >= {"TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", "rmq-embedded"} and "Orders" not in found


# -- settings and rates -----------------------------------------------------------------------------------------------


def test_settings_are_properties_that_a_store_can_be_made_of(cluster: Cluster, orders: Store) -> None:
    orders.retention.configure(file_reserved_time=24)
    answer = call(cluster, RequestCode.GET_BROKER_CONFIG)
    settings = dict(line.split("=", 1) for line in answer.body.decode().splitlines())
    assert settings["fileReservedTime"] == "24"
    assert settings["autoCreateTopicEnable"] == "true"
    assert settings["messageDelayLevel"].startswith("1s 5s ")
    assert (settings["brokerName"], settings["brokerClusterName"]) == ("rmq-embedded", "DefaultCluster")
    assert f"{settings['brokerIP1']}:{settings['listenPort']}" == cluster.settings.name_servers[0]


def test_the_cluster_list_of_each_mqadmin_finds_its_figures(cluster: Cluster, orders: Store) -> None:
    """ClusterListSubCommand#printClusterBaseInfo of 4.9 (getTransferedTps) and 5.x splits both rates unasked."""
    table = KVTable.decode(call(cluster, RequestCode.GET_BROKER_RUNTIME_INFO).body).table
    for name in ("putTps", "getTransferedTps", "getTransferredTps"):
        assert float(table[name].split(" ")[0]) >= 0
    assert table["brokerActive"] == "true" and table["brokerVersionDesc"]


def test_messages_of_the_last_minute_hour_and_day_are_counted(
    cluster: Cluster, orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = orders.clock()

    def rates(hours: float) -> tuple[int, ...]:
        monkeypatch.setattr(orders, "clock", lambda: now_ms + int(hours * 3_600_000))
        body = call(cluster, RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="Orders").body
        found = BrokerStatsData.decode(body)
        return found.stats_minute.sum, found.stats_hour.sum, found.stats_day.sum

    assert [rates(hours) for hours in (0, 0.5, 2, 25)] == [(6, 6, 6), (0, 6, 6), (0, 0, 6), (0, 0, 0)]


@pytest.mark.parametrize(("name", "key"), [("TOPIC_PUT_NUMS", "Missing"), ("GROUP_GET_NUMS", "Orders@cg"), ("", "")])
def test_a_figure_that_nobody_counts_does_not_exist(cluster: Cluster, orders: Store, name: str, key: str) -> None:
    answer = call(cluster, RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")


# -- entries of queues ------------------------------------------------------------------------------------------------


def entries(cluster: Cluster, index: int, count: int, group: str = "", queue_id: int = 0) -> RemotingCommand:
    fields = {"topic": "Orders", "queueId": str(queue_id), "index": str(index), "count": str(count)}
    return call(cluster, RequestCode.QUERY_CONSUME_QUEUE, **fields, consumerGroup=group)


@pytest.mark.parametrize(("index", "count", "found"), [(0, 2, 2), (4, 10, 2), (9, 10, 0), (-5, 3, 3), (0, -1, 0)])
def test_entries_of_a_queue(cluster: Cluster, orders: Store, index: int, count: int, found: int) -> None:
    body = QueryConsumeQueueResponseBody.decode(entries(cluster, index, count).body)
    assert (body.min_queue_index, body.max_queue_index, body.filter_data) == (0, 6, None)
    first = min(max(index, 0), 6)
    stored = orders.queue_entries("Orders", 0, first, first + found).tolist()
    assert [(one.physic_offset, one.physic_size, one.tags_code) for one in body.queue_data] == stored


def test_a_queue_that_does_not_exist_is_named(cluster: Cluster, orders: Store) -> None:
    assert "2@Orders is not exist" in (entries(cluster, 0, 1, queue_id=2).remark or "")


@pytest.mark.parametrize(
    ("kind", "text", "taken"), [("TAG", "B", [1, 3, 5]), ("TAG", "*", [0, 1, 2, 3, 4, 5]), ("SQL92", "n > 3", [4, 5])]
)
def test_entries_say_what_a_group_subscribes_to(
    join: Join, cluster: Cluster, orders: Store, kind: str, text: str, taken: list[int]
) -> None:
    offline = QueryConsumeQueueResponseBody.decode(entries(cluster, 0, 6, "cg").body)
    assert offline.filter_data == "cg@Orders is not online!" and not any(one.eval for one in offline.queue_data)
    codes = (java_hash(text),) if kind == "TAG" else ()
    join("one", SubscriptionData(topic="Orders", sub_string=text, code_set=codes, expression_type=kind))
    body = QueryConsumeQueueResponseBody.decode(entries(cluster, 0, 6, "cg").body)
    assert [number for number, one in enumerate(body.queue_data) if one.eval] == taken
    assert body.subscription_data["subString"] == text


# -- clients ----------------------------------------------------------------------------------------------------------


def test_connected_producers_are_listed(join: Join, cluster: Cluster, orders: Store) -> None:
    asked = RequestCode.GET_PRODUCER_CONNECTION_LIST
    missing = call(cluster, asked, producerGroup="pg")
    assert (missing.code, missing.remark) == (ResponseCode.SYSTEM_ERROR, "the producer group[pg] not exist")
    join("one")
    (found,) = ProducerConnection.decode(call(cluster, asked, producerGroup="pg").body).connection_set
    assert (found.client_id, found.language, found.version) == ("one", LanguageCode.PYTHON.name, VERSION)
    assert found.client_addr.startswith("127.0.0.1:")


def status(cluster: Cluster, client_id: str = "") -> RemotingCommand:
    code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    return call(cluster, code, topic="Orders", group="cg", clientAddr=client_id)


def at(offset: int) -> ConsumerStatusBody:
    return ConsumerStatusBody(message_queue_table={MessageQueue("Orders", "rmq-embedded", 0): offset})


def test_all_members_or_one_of_them_tell_their_offsets(join: Join, cluster: Cluster, orders: Store) -> None:
    for number, name in enumerate(("one", "two")):
        join(name).answer = RemotingCommand(0, body=at(number).encode())
    expected = {"one": at(0).message_queue_table, "two": at(1).message_queue_table}
    assert ConsumerStatusBody.decode(status(cluster).body).consumer_table == expected
    alone = ConsumerStatusBody.decode(status(cluster, "two").body).consumer_table
    assert alone == {"two": expected["two"]}


def test_a_member_that_does_not_tell_hides_no_other(
    join: Join, cluster: Cluster, orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_requests, "CALL_TIMEOUT_MS", 200)
    good, silent, broken, failing = (join(name) for name in ("good", "silent", "broken", "failing"))
    good.answer = RemotingCommand(0, body=at(3).encode())
    silent.silent.set()
    broken.answer = RemotingCommand(0, body=b"no JSON")
    failing.answer = RemotingCommand(1, remark="not now", body=at(4).encode())
    assert set(ConsumerStatusBody.decode(status(cluster).body).consumer_table or ()) == {"good"}
    assert status(cluster, "silent").code == ResponseCode.CONSUME_MSG_TIMEOUT


def test_answers_of_members_have_a_limit(
    join: Join, cluster: Cluster, orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = at(1).encode()
    monkeypatch.setattr(member_offsets, "ANSWERS_BYTES_MAX", len(body))
    for name in ("one", "two"):
        join(name).answer = RemotingCommand(0, body=body)
    assert "ask one" in (status(cluster).remark or "")
    assert status(cluster, "one").code == ResponseCode.SUCCESS


@pytest.mark.parametrize("client_id", ["", "nobody"])
def test_members_that_are_not_online_cannot_tell(cluster: Cluster, orders: Store, client_id: str) -> None:
    answer = status(cluster, client_id)
    assert answer.code == ResponseCode.SYSTEM_ERROR and "No Any Consumer online" in (answer.remark or "")


# -- what a dashboard and an exporter ask ----------------------------------------------------------------------------


def test_all_groups_are_shown_with_their_lag_at_once(join: Join, cluster: Cluster, orders: Store) -> None:
    """317, which RocketMQ's exporter and dashboard ask."""
    ordered = TopicConfig("Ordered", 1, 1, order=True)
    orders.admin.update_topic("Ordered", lambda _: ordered, default=ordered)
    orders.create_group(SubscriptionGroup("cg"))
    orders.create_group(SubscriptionGroup("idle"))
    orders.commit_offsets("cg", {("Orders", 0): 2, ("Ordered", 0): 0, ("Gone", 0): 1})
    orders.commit_offsets("unlisted", {("Orders", 0): 1})
    found = ConsumeStatsList.decode(call(cluster, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false").body)
    shown = {
        group: {
            (queue.topic, queue.queue_id): (one.consumer_offset, one.broker_offset, one.last_timestamp)
            for stats in of_topics
            for queue, one in stats.offset_table.items()
        }
        for groups in found.consume_stats_list
        for group, of_topics in groups.items()
    }
    consumed_ms = orders.store_timestamp("Orders", 0, 1)
    assert shown == {
        "cg": {("Orders", 0): (2, 6, consumed_ms), ("Orders", 1): (0, 0, 0), ("Ordered", 0): (0, 0, 0)},
        "idle": {},
    }
    assert (found.total_diff, found.total_inflight_diff) == (4, 0)
    assert found.broker_addr == cluster.settings.name_servers[0]
    only = ConsumeStatsList.decode(call(cluster, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="true").body)
    [(_, [stats])] = [pair for groups in only.consume_stats_list for pair in groups.items() if pair[1]]
    assert [queue.topic for queue in stats.offset_table] == ["Ordered"] and only.total_diff == 0


def test_times_of_queues_say_how_far_behind_a_group_is(cluster: Cluster, orders: Store) -> None:
    """303: AdminBrokerProcessor#queryConsumeTimeSpan."""
    orders.commit_offsets("cg", {("Orders", 0): 4})
    times_ms = [orders.store_timestamp("Orders", 0, offset) for offset in range(6)]

    def spans(group: str) -> list[QueueTimeSpan]:
        answer = call(cluster, RequestCode.QUERY_CONSUME_TIME_SPAN, topic="Orders", group=group)
        return list(QueryConsumeTimeSpanBody.decode(answer.body).consume_time_span_set)

    before_ms = orders.clock()
    behind, empty = spans("cg")
    assert (behind.message_queue.topic, behind.message_queue.queue_id) == ("Orders", 0)
    assert (behind.min_timestamp, behind.max_timestamp, behind.consume_timestamp) == (
        times_ms[0], times_ms[5], times_ms[3],
    )  # fmt: skip
    assert before_ms - times_ms[4] <= behind.delay_time <= orders.clock() - times_ms[4]
    assert (empty.min_timestamp, empty.max_timestamp, empty.consume_timestamp, empty.delay_time) == (-1, -1, -1, 0)
    new = spans("new")[0]
    assert new.consume_timestamp == times_ms[0] and new.delay_time <= orders.clock() - times_ms[0]
    orders.commit_offsets("cg", {("Orders", 0): 6})
    assert spans("cg")[0].delay_time == 0 and spans("cg")[0].consume_timestamp == times_ms[5]
    missing = call(cluster, RequestCode.QUERY_CONSUME_TIME_SPAN, topic="Missing", group="cg")
    assert missing.code == ResponseCode.TOPIC_NOT_EXIST


def test_topics_and_subscriptions_of_a_group(join: Join, cluster: Cluster, orders: Store) -> None:
    """343 and 345."""
    orders.commit_offsets("cg", {("Orders", 0): 0, ("Orders", 1): 0, ("%RETRY%cg", 0): 0})

    def topics(group: str) -> TopicList:
        return TopicList.decode(call(cluster, RequestCode.QUERY_TOPICS_BY_CONSUMER, group=group).body)

    assert topics("cg").topic_list == ("%RETRY%cg", "Orders")
    assert topics("cg").broker_addr == cluster.settings.name_servers[0]
    assert topics("new").topic_list == ()

    def subscription(topic: str) -> QuerySubscriptionResponseBody:
        answer = call(cluster, RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group="cg", topic=topic)
        return QuerySubscriptionResponseBody.decode(answer.body)

    assert subscription("Orders") == QuerySubscriptionResponseBody(group="cg", topic="Orders")
    own = SubscriptionData(topic="Orders", sub_string="A", tags_set=("A",), code_set=(65,), sub_version=1)
    join("c1", own)
    assert subscription("Orders").subscription_data == own
    assert subscription("Other").subscription_data is None


def test_all_producers_are_shown_by_their_groups(join: Join, cluster: Cluster, server: BrokerServer) -> None:
    """328, which RocketMQ's exporter asks. Its field for the address is remoteIP."""
    assert ProducerTableInfo.decode(call(cluster, RequestCode.GET_ALL_PRODUCER_INFO).body).data == {}
    before_ms = system_clock()
    join("c1", SubscriptionData(topic="Orders", sub_string="*", sub_version=1))
    body = call(cluster, RequestCode.GET_ALL_PRODUCER_INFO).body
    [one] = ProducerTableInfo.decode(body).data["pg"]
    assert (one.client_id, one.language, one.version) == ("c1", LanguageCode.PYTHON.name, VERSION)
    assert one.remote_ip.startswith("/127.0.0.1:") and b'"remoteIP"' in body
    assert before_ms <= one.last_update_timestamp <= system_clock()


def test_a_served_store_has_the_settings_and_pairs_of_a_name_server(cluster: Cluster, server: BrokerServer) -> None:
    settings = call(cluster, RequestCode.GET_NAMESRV_CONFIG).body.decode().splitlines()
    assert f"listenPort={server.address.rpartition(':')[2]}" in settings
    space = {"namespace": "ORDER_TOPIC_CONFIG"}
    assert call(cluster, RequestCode.GET_KVLIST_BY_NAMESPACE, **space).code == ResponseCode.QUERY_NOT_FOUND
    put = call(cluster, RequestCode.PUT_KV_CONFIG, **space, key="Orders", value="rmq-embedded:2")
    assert put.code == ResponseCode.SUCCESS, put.remark
    assert KVTable.decode(call(cluster, RequestCode.GET_KVLIST_BY_NAMESPACE, **space).body).table == {
        "Orders": "rmq-embedded:2"
    }
    server.store.create_topic("Orders", 2)
    route = TopicRouteData.decode(call(cluster, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="Orders").body)
    assert route.order_topic_conf == "rmq-embedded:2"
    assert call(cluster, RequestCode.DELETE_KV_CONFIG, **space, key="Orders").code == ResponseCode.SUCCESS
    assert call(cluster, RequestCode.GET_KV_CONFIG, **space, key="Orders").code == ResponseCode.QUERY_NOT_FOUND
