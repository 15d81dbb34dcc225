"""Routes as brokers tell them."""

from __future__ import annotations

import pytest

from rmq_store.protocol.bodies.routes import BrokerData
from rmq_store.protocol.bodies.topics import TopicConfig
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.server.name_server import route_table
from rmq_store.server.name_server.route_table import RouteTable

TOPICS = {"Orders": TopicConfig(topic_name="Orders", read_queue_nums=4, write_queue_nums=2)}


class Peer:
    """A connection that nobody writes to."""

    address = "127.0.0.1:4711"

    def send(self, command: RemotingCommand) -> None:
        raise AssertionError(command)


def broker(name: str = "broker-a", cluster: str = "c1") -> BrokerData:
    return BrokerData(cluster=cluster, broker_name=name, broker_addrs={})


def addresses(table: RouteTable) -> dict[str, dict[int, str]]:
    route = table.route("Orders")
    return {one.broker_name: dict(one.broker_addrs) for one in route.broker_datas} if route is not None else {}


def test_a_route_has_all_brokers_of_a_topic_and_their_queues() -> None:
    table = RouteTable()
    table.register(broker(), 0, "h:1", TOPICS)
    table.register(broker("broker-b"), 0, "h:2", TOPICS)
    table.register(broker("broker-c"), 0, "h:3", {})
    route = table.route("Orders")
    assert route is not None
    assert [(one.broker_name, one.read_queue_nums, one.write_queue_nums) for one in route.queue_datas] == [
        ("broker-a", 4, 2),
        ("broker-b", 4, 2),
    ]
    assert addresses(table) == {"broker-a": {0: "h:1"}, "broker-b": {0: "h:2"}}
    assert table.route("Bills") is None
    assert table.topics() == ["Orders"] and table.topics("c2") == []
    assert table.clusters().cluster_addr_table == {"c1": ("broker-a", "broker-b", "broker-c")}


def test_a_slave_is_told_its_master_and_becomes_one_under_the_same_address() -> None:
    table = RouteTable()
    assert table.register(broker(), 1, "h:2", TOPICS) is None
    assert table.register(broker(), 0, "h:1", TOPICS) is None
    assert table.register(broker(), 1, "h:2", {}) == "h:1"
    assert addresses(table) == {"broker-a": {0: "h:1", 1: "h:2"}}  # the topics of a slave do not count
    table.unregister("broker-a", 0, "h:1")
    table.register(broker(), 0, "h:2", TOPICS)
    assert addresses(table) == {"broker-a": {0: "h:2"}}


def test_a_broker_is_gone_with_its_connection_or_when_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    table, peer = RouteTable(), Peer()
    table.register(broker(), 0, "h:1", TOPICS, peer=peer)
    table.register(broker("broker-b"), 0, "h:2", TOPICS, expires_ms=30_000)
    table.disconnected(peer)
    assert addresses(table) == {"broker-b": {0: "h:2"}}
    now_s = route_table.time.monotonic() + 31
    monkeypatch.setattr(route_table.time, "monotonic", lambda: now_s)
    assert addresses(table) == {}


def test_only_who_registered_can_unregister() -> None:
    table = RouteTable()
    table.register(broker(), 0, "h:1", TOPICS)
    table.unregister("broker-a", 0, "h:9")
    table.unregister("broker-x", 0, "h:1")
    assert addresses(table) == {"broker-a": {0: "h:1"}}


def test_the_own_broker_has_its_topics_of_now() -> None:
    table, topics = RouteTable(), dict[str, TopicConfig]()
    own = BrokerData(cluster="c1", broker_name="own", broker_addrs={0: "h:1"})
    table.add_own(own, lambda: topics)
    assert table.route("Orders") is None
    topics |= TOPICS
    assert addresses(table) == {"own": {0: "h:1"}}
    table.register(broker("own"), 0, "h:9", TOPICS)  # refused before; here it cannot replace what is ours
    assert addresses(table) == {"own": {0: "h:1"}}
    assert table.address_of("own", 0) == "h:1" and table.address_of("own", 1) is None
