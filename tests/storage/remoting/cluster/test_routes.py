"""Routes: polled, kept while no name server answers, and the only addresses that are dialled."""

from __future__ import annotations

import pytest

from rmq_store.errors import UnknownTopicError
from rmq_store.protocol.errors import MQBrokerError, RemotingConnectError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import response_to
from rmq_store.remoting.cluster.name_servers import NO_OPINION_MS
from rmq_store.remoting.cluster.routes import AGAIN_AFTER_MS, POLL_EVERY_MS

from .conftest import Timer
from .fake_cluster import NAME_SERVER, Answer, FakeNet, FakeProcess


def two_brokers(net: FakeNet) -> FakeNet:
    for name in ("broker-b", "broker-a"):
        net.add_broker(name, slaves=1).create_topic("Orders", 2)
    return net


def test_queues_are_sorted_and_those_without_rights_or_without_a_master_are_left_out(net: FakeNet) -> None:
    two_brokers(net)
    net.brokers["broker-b"].topics["Orders"] |= {"read": 3, "write": 1}
    route = net.cluster().known_route("Orders")
    assert [(queue.broker_name, queue.queue_id) for queue in route.read_queues()] == [
        ("broker-a", 0), ("broker-a", 1), ("broker-b", 0), ("broker-b", 1), ("broker-b", 2),
    ]  # fmt: skip
    assert [(queue.broker_name, queue.queue_id) for queue in route.publish_queues()] == [
        ("broker-a", 0), ("broker-a", 1), ("broker-b", 0),
    ]  # fmt: skip
    net.brokers["broker-a"].topics["Orders"]["perm"] = 2
    del net.brokers["broker-b"].processes[0]
    route = net.cluster().known_route("Orders")
    assert {queue.broker_name for queue in route.read_queues()} == {"broker-b"}
    assert {queue.broker_name for queue in route.publish_queues()} == {"broker-a"}


def test_the_queues_of_an_ordered_topic_are_those_of_its_configuration(net: FakeNet) -> None:
    two_brokers(net).order_topic_conf["Orders"] = "broker-b:1;broker-a:2"
    route = net.cluster().known_route("Orders")
    assert route.publish_queues() == [
        MessageQueue("Orders", "broker-b", 0),
        MessageQueue("Orders", "broker-a", 0),
        MessageQueue("Orders", "broker-a", 1),
    ]


def test_a_route_is_asked_for_again_after_30_seconds(net: FakeNet, timer: Timer) -> None:
    cluster = two_brokers(net).cluster(timer=timer)
    for later_ms in (0, POLL_EVERY_MS - 1, 1, 1):
        timer.now_ms += later_ms
        assert cluster.route("Orders") is not None
    assert net.codes(name_servers=True) == [105, 105]


def test_the_known_route_stays_while_no_name_server_answers_and_is_not_asked_for_all_the_time(
    net: FakeNet, timer: Timer
) -> None:
    cluster = two_brokers(net).cluster(timer=timer)
    route = cluster.route("Orders")
    net.name_servers[NAME_SERVER].down = True
    timer.now_ms += POLL_EVERY_MS
    net.calls.clear()
    assert [cluster.route("Orders"), cluster.route("Orders")] == [route, route]
    assert len(net.calls) == 1
    timer.now_ms += AGAIN_AFTER_MS
    assert cluster.route("Orders") == route
    assert len(net.calls) == 2
    with pytest.raises(RemotingConnectError, match=NAME_SERVER):
        cluster.route("Unknown")


NS2 = "ns2:9876"
NOT_READY = (1, "name server not ready")


def answering(process: FakeProcess, code: int, remark: str) -> None:
    """From now on."""
    process.answers = Endless([lambda asked: response_to(asked, code, remark)])


class Endless(list[Answer]):
    def pop(self, *_: object) -> Answer:
        return self[0]


@pytest.mark.parametrize("refusal", [NOT_READY, (17, "No topic route info")])
def test_a_name_server_that_has_just_begun_is_passed_over(net: FakeNet, refusal: tuple[int, str]) -> None:
    net.add_name_server(NS2)
    cluster = two_brokers(net).cluster()
    answering(net.name_servers[cluster.name_servers.addresses()[0]], *refusal)
    assert cluster.known_route("Orders").queues.keys() == {"broker-a", "broker-b"}
    if refusal == NOT_READY:
        assert cluster.topics() == ["Orders"]
        assert cluster.broker_names() == ["broker-a", "broker-b"]


@pytest.mark.parametrize("other", ["knows it", "not ready", "away"])
def test_the_known_route_goes_only_when_all_name_servers_say_so(net: FakeNet, timer: Timer, other: str) -> None:
    net.add_name_server(NS2)
    cluster = two_brokers(net).cluster(timer=timer)
    route = cluster.known_route("Orders")
    for broker in net.brokers.values():
        del broker.topics["Orders"]
    if other == "not ready":
        answering(net.name_servers[NS2], *NOT_READY)
    elif other == "knows it":
        net.brokers["broker-a"].create_topic("Orders", 2)
        answering(net.name_servers[cluster.name_servers.addresses()[0]], 17, "No topic route info")
    net.name_servers[NS2].down = other == "away"
    timer.now_ms += POLL_EVERY_MS
    assert cluster.route("Orders") is not None
    assert other == "knows it" or cluster.refresh_route("Orders") == route
    assert cluster.route("Unknown") is None
    net.name_servers[NS2].down = False
    for server in net.name_servers.values():
        server.answers = []
    for broker in net.brokers.values():
        broker.topics.clear()
    timer.now_ms += POLL_EVERY_MS
    assert cluster.route("Orders") is None, "a topic that was deleted shows within 30 s"


def test_the_known_route_and_brokers_stay_while_all_name_servers_refuse(net: FakeNet, timer: Timer) -> None:
    cluster = two_brokers(net).cluster(timer=timer)
    route, names = cluster.known_route("Orders"), cluster.broker_names()
    answering(net.name_servers[NAME_SERVER], *NOT_READY)
    timer.now_ms += POLL_EVERY_MS
    assert cluster.route("Orders") == route
    assert cluster.broker_names() == names
    with pytest.raises(MQBrokerError, match="not ready"):
        cluster.route("Unknown")


def test_a_name_server_that_is_silent_is_not_waited_for_at_each_unknown_topic(net: FakeNet, timer: Timer) -> None:
    net.add_name_server(NS2)
    cluster = two_brokers(net).cluster(timer=timer)
    silent = net.name_servers[NS2]
    silent.silent = True
    assert [cluster.route("Unknown") for _ in range(5)] == [None] * 5
    assert len(silent.asked) <= 1
    timer.now_ms += NO_OPINION_MS
    assert cluster.route("Unknown") is None


def test_a_topic_that_no_broker_has_has_no_route(net: FakeNet) -> None:
    cluster = two_brokers(net).cluster()
    assert cluster.route("Nothing") is None
    with pytest.raises(UnknownTopicError, match="Nothing"):
        cluster.known_route("Nothing")
    net.brokers["broker-a"].create_topic("Nothing")
    assert cluster.known_route("Nothing").queues.keys() == {"broker-a"}


def test_the_clusters_name_brokers_and_topics_are_known(net: FakeNet) -> None:
    cluster = two_brokers(net).cluster()
    assert cluster.name == "DefaultCluster"
    assert cluster.broker_names() == ["broker-a", "broker-b"]
    assert cluster.topics() == ["Orders"]


def test_with_a_namespace_only_its_topics_are_shown_and_without_it(net: FakeNet) -> None:
    broker = net.add_broker()
    for topic in ("ns1%Orders", "ns2%Orders", "Orders", "%RETRY%ns1%cg"):
        broker.create_topic(topic)
    cluster = net.cluster("ns1")
    assert cluster.topics() == ["%RETRY%cg", "Orders"]
    assert cluster.known_route("Orders").read_queues() == [MessageQueue("Orders", "broker-a", 0)]
    assert [command.ext_fields.get("topic") for _, command in net.calls][-1] == "ns1%Orders"


def test_a_broker_is_found_by_its_name_also_when_no_topic_was_asked_for(net: FakeNet) -> None:
    cluster = two_brokers(net).cluster()
    assert cluster.address("broker-a") == "broker-a-0:10911"
    assert cluster.address("broker-a", 1) == "broker-a-1:10911"
    with pytest.raises(RemotingConnectError, match="broker-x has no master"):
        cluster.address("broker-x")
    with pytest.raises(RemotingConnectError, match="broker-a has no process of the id 7"):
        cluster.address("broker-a", 7)


def test_the_addresses_of_a_broker_that_did_not_answer_may_be_unknown(net: FakeNet) -> None:
    """Its caller has an error of its own, which says whether the request was carried out."""
    cluster = net.cluster()
    net.name_servers[NAME_SERVER].down = True
    assert cluster.routes.not_reached("broker-a") is None
    net.name_servers[NAME_SERVER].down = False
    net.name_servers[NAME_SERVER].answers += [lambda command: response_to(command, 1, "refused")] * 2
    assert cluster.routes.not_reached("broker-a") is None


def test_an_acting_master_is_known_by_the_routes_of_topics_only(net: FakeNet) -> None:
    broker = two_brokers(net).brokers["broker-a"]
    broker.acting = True
    del broker.processes[0]
    cluster = net.cluster()
    assert cluster.routes.clusters().broker_addr_table["broker-a"].broker_addrs == {1: "broker-a-1:10911"}
    cluster.route("Orders")
    assert cluster.address("broker-a") == "broker-a-1:10911"
    known = cluster.routes.broker("broker-a")
    assert known is not None and known.acting_enabled


def test_addresses_belong_to_brokers_that_have_registered_them(net: FakeNet) -> None:
    cluster = two_brokers(net).cluster()
    cluster.route("Orders")
    assert cluster.routes.name_of("broker-b-1:10911") == ("broker-b", 1)
    assert cluster.routes.name_of("169.254.169.254:80") is None


def test_a_static_topic_is_recognised_by_its_route(net: FakeNet) -> None:
    two_brokers(net).extra_route["topicQueueMappingByBroker"] = {"broker-a": {"topic": "Orders", "totalQueues": 2}}
    assert net.cluster().known_route("Orders").is_static


def test_nobody_waits_for_silent_name_servers_again_and_again(net: FakeNet, timer: Timer) -> None:
    """Each question takes its time limit: of a plan that is made many times a second, too."""
    cluster = two_brokers(net).cluster(timer=timer)
    cluster.route("Orders")
    cluster.cluster_info()
    net.name_servers[NAME_SERVER].silent = True
    timer.now_ms += POLL_EVERY_MS
    net.calls.clear()
    for _ in range(100):
        timer.now_ms += AGAIN_AFTER_MS
        assert cluster.route("Orders") is not None and cluster.broker_names()
        assert cluster.routes.not_reached("broker-a") is not None
    assert net.codes(name_servers=True) == [105, *[106] * 7], "one question; what follows are probes"
    net.name_servers[NAME_SERVER].silent = False
    timer.now_ms += POLL_EVERY_MS
    net.brokers.pop("broker-b")
    assert "broker-b" not in cluster.known_route("Orders").queues
