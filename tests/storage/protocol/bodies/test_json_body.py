"""Typed bodies: what brokers and clients of several languages write is read, and bad values are named."""

from __future__ import annotations

import dataclasses

import pytest

from rmq_store.client import RemotingCommandError
from rmq_store.protocol.bodies import clients, groups, routes, topics
from rmq_store.protocol.bodies.clients import (
    ConsumerData,
    ConsumerRunningInfo,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    ProducerData,
    QueryAssignmentResponseBody,
)
from rmq_store.protocol.bodies.groups import ConsumerConnection, ConsumeStats, SubscriptionData, SubscriptionGroupTable
from rmq_store.protocol.bodies.json_body import JsonBody
from rmq_store.protocol.bodies.routes import BrokerData, ClusterInfo, KVTable, RegisterBrokerBody, TopicRouteData
from rmq_store.protocol.bodies.topics import BrokerStatsData, TopicConfig, TopicOffset, TopicStatsTable
from rmq_store.protocol.messages import MessageQueue

BODIES = [
    value
    for module in (routes, topics, groups, clients)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, JsonBody) and value.__module__ == module.__name__
]

# What real brokers and clients have sent, by the body that reads it. Each is written again byte for byte.
TEXTS: list[tuple[type[JsonBody], str]] = [
    (TopicRouteData,
     '{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.3:10911",1:"10.0.0.4:10911"},"brokerName":"broker-a","cluster":"c1"}],'
     '"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,'
     '"writeQueueNums":4}]}'),
    (ClusterInfo,
     '{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"10.0.0.3:10911"},"brokerName":"broker-a","cluster":"c1",'
     '"enableActingMaster":false}},"clusterAddrTable":{"c1":["broker-a"]}}'),
    (TopicStatsTable,
     '{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"Orders"}:{"lastUpdateTimestamp":1700000000000,'
     '"maxOffset":7,"minOffset":0}}}'),
    (ConsumeStats,
     '{"consumeTps":0.0,"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"%RETRY%g"}:{"brokerOffset":5,'
     '"consumerOffset":3,"lastTimestamp":0,"pullOffset":4}}}'),
    (HeartbeatData,
     '{"clientID":"10.0.0.9@1#2","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
     '"consumeType":"CONSUME_PASSIVELY","groupName":"cg","messageModel":"CLUSTERING","subscriptionDataSet":'
     '[{"classFilterMode":false,"codeSet":[2598919],"expressionType":"TAG","subString":"TagA","subVersion":1,'
     '"tagsSet":["TagA"],"topic":"Orders"}],"unitMode":false}],"producerDataSet":[{"groupName":"pg"}]}'),
    (LockBatchRequestBody,
     '{"clientId":"c","consumerGroup":"g","mqSet":[{"brokerName":"broker-a","queueId":1,"topic":"Orders"}]}'),
    (LockBatchResponseBody, '{"lockOKMQSet":[{"brokerName":"broker-a","queueId":1,"topic":"Orders"}]}'),
    (KVTable, '{"table":{"brokerVersionDesc":"V5_5_0","putTps":"0.0 0.0 0.0"}}'),
    (TopicConfig,
     '{"attributes":{"+message.type":"NORMAL"},"order":false,"perm":6,"readQueueNums":4,'
     '"topicFilterType":"SINGLE_TAG","topicName":"Orders","topicSysFlag":0,"writeQueueNums":4}'),
    (BrokerStatsData,
     '{"statsDay":{"avgpt":0.0,"sum":9,"tps":0.1},"statsHour":{"avgpt":0.0,"sum":9,"tps":0.1},'
     '"statsMinute":{"avgpt":0.0,"sum":9,"tps":0.1}}'),
    (QueryAssignmentResponseBody,
     '{"messageQueueAssignments":[{"messageQueue":{"brokerName":"broker-a","queueId":-1,"topic":"Orders"},'
     '"mode":"POP"}]}'),
    (RegisterBrokerBody,
     '{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,"timestamp":5},'
     '"topicConfigTable":{"Orders":{"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
     '"topicName":"Orders","topicSysFlag":0,"writeQueueNums":4}}}}'),
]  # fmt: skip


@pytest.mark.parametrize(("body", "text"), TEXTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_body_of_java_is_read_and_written_again_byte_for_byte(body: type[JsonBody], text: str) -> None:
    value = body.decode(text.encode())
    assert value.encode() == text.encode()
    assert body.decode(value.encode(quoted_keys=True)) == value


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_every_body_is_read_from_its_mandatory_members(body: type[JsonBody]) -> None:
    found = dict(TEXTS).get(body, "{}")
    mandatory = [
        one for one in dataclasses.fields(body)
        if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
    ]  # fmt: skip
    if mandatory and found == "{}":
        with pytest.raises(RemotingCommandError, match=f"^{body.__name__}: has no member '"):
            body.decode(b"{}")
    else:
        value = body.decode(found.encode())
        assert body.decode(value.encode()) == value


def test_a_route_with_quoted_ids_of_a_newer_broker_is_the_same() -> None:
    old = '{"brokerDatas":[{"brokerAddrs":{0:"a:1"},"brokerName":"b","cluster":"c"}]}'
    new = '{"brokerDatas":[{"brokerAddrs":{"0":"a:1"},"brokerName":"b","cluster":"c","x":[{}]}],"orderTopicConf":null}'
    route = TopicRouteData.decode(old.encode())
    assert TopicRouteData.decode(new.encode()) == route
    assert route.broker_datas == (BrokerData(cluster="c", broker_name="b", broker_addrs={0: "a:1"}),)


def test_a_table_of_offsets_is_read_by_queue_also_where_the_key_is_a_text() -> None:
    queue = '{"brokerName":"b","queueId":3,"topic":"T"}'
    value = TopicStatsTable(offset_table={MessageQueue("T", "b", 3): TopicOffset(min_offset=1, max_offset=2)})
    for key in (queue, '"' + queue.replace('"', '\\"') + '"'):
        text = f'{{"offsetTable":{{{key}:{{"minOffset":1,"maxOffset":2}}}}}}'
        assert TopicStatsTable.decode(text.encode()) == value


def test_the_heartbeat_of_a_cpp_client_has_ordinals_and_numbers_as_texts() -> None:
    text = (
        '{"clientID":"c","producerDataSet":[{"groupName":"pg"}],"consumerDataSet":[{"groupName":"cg","consumeType":1,'
        '"messageModel":1,"consumeFromWhere":4,"unitMode":"false","subscriptionDataSet":[{"topic":"T","subString":"*",'
        '"subVersion":"1700000000000"}]}]}'
    )
    subscription = SubscriptionData(topic="T", sub_string="*", sub_version=1_700_000_000_000)
    assert HeartbeatData.decode(text.encode()) == HeartbeatData(
        client_id="c",
        producer_data_set=(ProducerData(group_name="pg"),),
        consumer_data_set=(
            ConsumerData(
                group_name="cg",
                consume_type="CONSUME_PASSIVELY",
                message_model="CLUSTERING",
                consume_from_where="CONSUME_FROM_FIRST_OFFSET",
                subscription_data_set=(subscription,),
            ),
        ),
    )


def test_a_name_of_an_enum_that_is_not_known_is_kept() -> None:
    text = b'{"connectionSet":[{"clientId":"c","language":"KOTLIN","version":500}],"consumeType":"CONSUME_NEW"}'
    found = ConsumerConnection.decode(text)
    assert (found.consume_type, found.connection_set[0].language) == ("CONSUME_NEW", "KOTLIN")


def test_groups_have_the_defaults_of_java() -> None:
    text = b'{"subscriptionGroupTable":{"g":{"groupName":"g","retryMaxTimes":3}},"dataVersion":{"counter":2}}'
    (group,) = SubscriptionGroupTable.decode(text).subscription_group_table.values()
    assert (group.retry_max_times, group.consume_enable, group.retry_queue_nums) == (3, True, 1)
    info = ConsumerRunningInfo.decode(b'{"properties":{"PROP_CONSUMEORDERLY":false},"mqTable":{}}')
    assert info.properties == {"PROP_CONSUMEORDERLY": "false"}


@pytest.mark.parametrize(
    ("body", "text", "message"),
    [
        (TopicRouteData, "[]", "TopicRouteData: is no object"),
        (TopicRouteData, '{"queueDatas":{}}', "TopicRouteData.queueDatas: is no list"),
        (TopicRouteData, '{"queueDatas":[1]}', r"TopicRouteData.queueDatas\[0\]: is no object"),
        (TopicRouteData, '{"queueDatas":[{"brokerName":"b"}]}', r"queueDatas\[0\]: has no member 'perm'"),
        (TopicRouteData, '{"brokerDatas":[{"brokerAddrs":{"x":"a"},"brokerName":"b","cluster":"c"}]}',
         r"brokerDatas\[0\].brokerAddrs\[x\]: is no integer"),
        (TopicRouteData, '{"brokerDatas":[{"brokerAddrs":{0:[]},"brokerName":"b","cluster":"c"}]}',
         r"brokerDatas\[0\].brokerAddrs\[0\]: is no text"),
        (TopicStatsTable, '{"offsetTable":{"x":{}}}', "JSON body"),
        (TopicStatsTable, '{"offsetTable":{1:{}}}', r"offsetTable\[1\]: is no queue"),
        (TopicStatsTable, '{"offsetTable":{{"topic":"T"}:{}}}', "has no member 'brokerName'"),
        (TopicStatsTable, '{"offsetTable":{},"topicPutTps":"x"}', "topicPutTps: is no number"),
        (ConsumeStats, '{"consumeTps":true}', "consumeTps: is no number"),
        (TopicConfig, '{"topicName":"T","perm":9223372036854775808}', "perm: is no integer of 64 bits"),
        (TopicConfig, '{"topicName":"T","perm":true}', "perm: is no integer"),
        (TopicConfig, '{"topicName":"T","perm":1.5}', "perm: is no integer"),
        (TopicConfig, '{"topicName":"T","order":1}', "order: is no boolean"),
        (TopicConfig, '{"topicName":{}}', "topicName: is no text"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_with_its_place(body: type[JsonBody], text: str, message: str) -> None:
    with pytest.raises(RemotingCommandError, match=message):
        body.decode(text.encode())
