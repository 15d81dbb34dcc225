"""What RocketMQ's dashboard and its exporter ask a served store, by the admin client of both: DefaultMQAdminExt.

Neither is released as a library. The calls are those of their sources: services and tasks of rocketmq-dashboard 1.0.0
to 2.1.0 and of rocketmq-exporter. Their commands that mqadmin has, too, are in test_mqadmin.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from helpers.cluster.fixtures import require_released
from helpers.cluster.java_process import CLIENTS, VERSIONS
from helpers.cluster.mqadmin import Dashboard
from helpers.interop.clients import Place
from helpers.interop.matrix import Cell
from helpers.interop.results import RESULTS
from interop.conftest import start_client
from rmq_store import Message
from rmq_store.broker.metadata.groups import SubscriptionGroup
from rmq_store.testing import RmqTestBroker

SHOWS = [
    ("examineBrokerClusterInfo", '"rmq-embedded"'),
    ("fetchAllTopicList", '"Orders"'),
    ("fetchTopicsByCLuster DefaultCluster", '"Orders"'),
    ("examineTopicRouteInfo Orders", '"rmq-embedded"'),
    ("examineTopicStats Orders", '"maxOffset":2'),
    ("fetchBrokerRuntimeStats {broker}", '"bootTimestamp"'),
    ("getBrokerConfig {broker}", '"brokerName":"rmq-embedded"'),
    ("getAllTopicConfig {broker} 5000", '"Orders"'),
    ("getAllSubscriptionGroup {broker} 5000", '"cg"'),
    ("examineSubscriptionGroupConfig {broker} cg", '"retryMaxTimes":16'),
    ("queryTopicConsumeByWho Orders", '"cg"'),
    ("queryTopicsByConsumer cg", '"Orders"'),
    ("querySubscription cg_online Online", '"subString":"*"'),
    ("examineConsumeStats cg", '"consumerOffset":1'),
    ("fetchConsumeStatsInBroker {broker} false 5000", '"totalDiff":3'),
    ("queryConsumeTimeSpan Orders cg", '"delayTime"'),
    ("examineConsumerConnectionInfo cg_online", '"CONSUME_PASSIVELY"'),
    ("examineProducerConnectionInfo pg_interop Online", '"JAVA"'),
    ("getAllProducerInfo {broker}", '"pg_interop"'),
    ("viewBrokerStatsData {broker} TOPIC_PUT_NUMS Orders", '"statsMinute"'),
    ("queryMessage Orders k 64 0 {end_ms}", '"Orders"'),
    ("viewMessage Orders {unique_key}", '"Orders"'),
    ("getNameServerConfig {broker}", '"listenPort"'),
    ("createAndUpdateKvConfig ORDER_TOPIC_CONFIG Orders rmq-embedded:2", "null"),
    ("getKVListByNamespace ORDER_TOPIC_CONFIG", '"rmq-embedded:2"'),
    ("resetOffsetByTimestamp Orders cg {end_ms} true", '"rmq-embedded"'),
]
"""In this order at one broker."""
SINCE_5 = {"queryTopicsByConsumer", "querySubscription"}


@pytest.fixture(scope="module", params=VERSIONS)
def admin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """The admin client of a version, a broker with a client, and what its messages are called."""
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
        words = {"broker": broker.address, "unique_key": sent.msg_id, "end_ms": str(store.clock() + 60_000)}
        home = tmp_path_factory.mktemp("client")
        place = SimpleNamespace(version=request.param, name_server=broker.address)
        told = Place(broker.address, "")
        with start_client(f"Java {CLIENTS[request.param]}", told, home) as client, Dashboard(place) as java:  # type: ignore[arg-type]
            client.ask("send", topic="Online", messages=[{"body": "hello"}])
            client.ask("consume", topic="Online", group="cg_online", mode="concurrent")
            yield SimpleNamespace(java=java, words=words, row=f"dashboard {request.param}", path=path)
    RESULTS.finish(path)


@pytest.mark.parametrize(("line", "printed"), SHOWS, ids=lambda text: text.split()[0])
def test_a_question_is_answered(admin: SimpleNamespace, tell: Callable[[Cell], None], line: str, printed: str) -> None:
    said = admin.java.run(*line.format(**admin.words).split())
    name = line.split()[0]
    if name in SINCE_5 and admin.java.version.startswith("4."):
        assert said == [f"java.lang.NoSuchMethodException: {name}"]
        tell(Cell("no", f"rocketmq-tools {admin.java.version} has no `{name}`"))
        return
    assert printed in "\n".join(said), said
