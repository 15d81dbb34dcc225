"""RocketMQ's own mqadmin at our server: what its basic commands print, and how the others are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from helpers.cluster.fixtures import require_released
from helpers.cluster.java_process import CLIENTS, VERSIONS
from helpers.cluster.mqadmin import Mqadmin
from helpers.interop.clients import Place
from helpers.interop.matrix import Cell
from helpers.interop.refusals import refused
from helpers.interop.results import RESULTS
from interop.conftest import start_client
from rmq_store import Message
from rmq_store.broker.metadata.groups import SubscriptionGroup
from rmq_store.protocol.errors import ResponseCode
from rmq_store.testing import RmqTestBroker

SHOWS = [  # in this order at one broker: each sees what those before have changed
    ("queryMsgById -i {offset_id}{topic}", "Queue Offset:        1"),
    ("queryMsgByKey -t Orders -k k", "#Message ID"),
    ("queryMsgByUniqueKey -t Orders -i {unique_key}", "Queue Offset:        1"),
    ("queryMsgByOffset -t Orders -b rmq-embedded -i 0 -o 0", "Queue Offset:        0"),
    ("printMsg -t Orders", "BODY: body 3"),
    ("printMsgByQueue -t Orders -a rmq-embedded -i 1 -p true", "queueOffset=1"),
    ("sendMessage -t Orders -p hello", "SEND_OK"),
    ("consumeMessage -t Orders", "Consume ok"),
    ("topicStatus -t Orders", "rmq-embedded"),
    ("topicRoute -t Orders", "readQueueNums"),
    ("topicList", "Orders"),
    ("topicClusterList -t Orders", "DefaultCluster"),
    ("consumerProgress -g cg", "Diff Total: 4"),
    ("getConsumerConfig -g cg", "retryMaxTimes                           =  16"),
    ("skipAccumulatedMessage -g cg -t Orders", "#offset"),
    ("cloneGroupOffset -s cg -d clone -t Orders", "clone group offset success"),
    ("consumerConnection -g cg_online", "CONSUME_PASSIVELY"),
    ("producerConnection -g pg_interop -t Online", "JAVA"),
    ("clusterList", "{broker}"),
    ("brokerStatus -b {broker}", "commitLogMinOffset"),
    ("getBrokerConfig -b {broker}", "brokerName                                        =  rmq-embedded"),
    ("updateTopic -b {broker} -t New", "success"),
    ("updateTopicPerm -b {broker} -t Orders -p 4", "success"),
    ("updateSubGroup -b {broker} -g new -r 3", "success"),
    ("resetOffsetByTime -g cg -t Orders -s -1", "rmq-embedded"),
    ("cleanExpiredCQ -b {broker}", "success"),
    ("cleanUnusedTopic -b {broker}", "success"),
    ("deleteSubGroup -b {broker} -g cg", "success"),
    ("deleteTopic -c DefaultCluster -t Orders", "success"),
]
MOVES = {"skipAccumulatedMessage": "cg", "cloneGroupOffset": "clone"}
"""The group that has consumed everything after the command."""
REFUSED = [("updateBrokerConfig -b {broker} -k fileReservedTime -v 24", ResponseCode.NO_PERMISSION)]


@pytest.fixture(scope="module", params=VERSIONS)
def admin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """mqadmin of a version, a broker with a client, and what its messages are called."""
    require_released(request.param)
    path = tmp_path_factory.mktemp("served") / "store"
    with RmqTestBroker(path) as broker:
        store = broker.store
        store.create_topic("Online", queue_count=1)
        store.create_topic("Orders", queue_count=2)
        for number in range(4):
            sent = store.send(Message("Orders", b"body %d" % number, keys="k", queue_id=number % 2))
        store.create_group(SubscriptionGroup("cg"))
        store.create_topic("%RETRY%cg", queue_count=1)  # as its first member makes it
        store.commit_offsets("cg", {("Orders", 0): 1, ("Orders", 1): 0})
        place = SimpleNamespace(version=request.param, name_server=broker.address)
        # mqadmin of 5.x ends without -t, and that of 4.9 does not know it.
        topic = "" if request.param.startswith("4.") else " -t Orders"
        words = {"topic": topic, "offset_id": sent.offset_msg_id, "unique_key": sent.msg_id, "broker": broker.address}
        told = Place(broker.address, "")
        home = tmp_path_factory.mktemp("client")
        with start_client(f"Java {CLIENTS[request.param]}", told, home) as client, Mqadmin(place) as java:  # type: ignore[arg-type]
            client.ask("send", topic="Online", messages=[{"body": "hello"}])
            client.ask("consume", topic="Online", group="cg_online", mode="concurrent")
            yield SimpleNamespace(java=java, words=words, row=f"mqadmin {request.param}", store=store, path=path)
    RESULTS.finish(path)


@pytest.mark.parametrize(("line", "printed"), SHOWS, ids=lambda text: text.split()[0])
def test_a_command_works(admin: SimpleNamespace, line: str, printed: str) -> None:
    said = admin.java.run(*line.format(**admin.words).split())
    assert printed.format(**admin.words) in "\n".join(said), said
    if group := MOVES.get(line.split()[0]):
        ends = {("Orders", queue_id): end for queue_id, (_, end) in admin.store.queue_ranges("Orders").items()}
        assert admin.store.committed_offsets(group) == ends


@pytest.mark.parametrize(("line", "code"), REFUSED, ids=lambda value: str(value).split()[0])
def test_a_command_is_refused(admin: SimpleNamespace, tell: Callable[[Cell], None], line: str, code: int) -> None:
    admin.java.run(*line.format(**admin.words).split())
    assert f"CODE: {code} " in admin.java.log(lines=1000)
    tell(refused(code))
