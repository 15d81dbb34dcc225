"""Routes as brokers tell them."""

from __future__ import annotations

import pytest

from rmq_store.protocol.bodies.routes import BrokerData
from rmq_store.protocol.bodies.topics import DataVersion, TopicConfig
from rmq_store.protocol.errors import MQBrokerError
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.server.name_server import route_table
from rmq_store.server.name_server.route_table import RouteTable

TOPICS = {"Orders": TopicConfig(topic_name="Orders", read_queue_nums=4, write_queue_nums=2)}


class Peer:
    """A connection that nobody writes to."""

    address = "127.0.0.1:4711"

    def send(self, *commands: RemotingCommand) -> None:
        raise AssertionError(commands)


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


def test_a_broker_whose_first_registration_lacks_topics_is_asked_for_all() -> None:
    """RouteInfoManager#registerBroker refuses it; a broker with forceRegister=false asks for the version (322) only."""
    table, version = RouteTable(), DataVersion(counter=7)
    table.register(broker(), 0, "h:1", TOPICS, version=version, is_whole=False)
    assert table.seen("broker-a", 0, "h:1", version) is None
    table.register(broker(), 0, "h:1", TOPICS, version=version)
    assert table.seen("broker-a", 0, "h:1", version) == version
    newer = DataVersion(counter=8)
    table.register(broker(), 0, "h:1", {}, version=newer, is_whole=False)
    assert table.seen("broker-a", 0, "h:1", newer) == newer and table.topics() == ["Orders"]


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
    now_s = route_table.real_time.monotonic() + 31
    monkeypatch.setattr(route_table.real_time, "monotonic", lambda: now_s)
    assert addresses(table) == {}


def test_a_broker_is_never_kept_for_longer_than_two_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    table = RouteTable()
    table.register(broker(), 0, "h:1", TOPICS, expires_ms=1 << 60)
    table.register(broker("broker-b"), 0, "h:2", TOPICS, expires_ms=-(1 << 60))
    assert addresses(table) == {"broker-a": {0: "h:1"}, "broker-b": {0: "h:2"}}
    now_s = route_table.real_time.monotonic() + 121
    monkeypatch.setattr(route_table.real_time, "monotonic", lambda: now_s)
    assert addresses(table) == {}


def test_registrations_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, limit in (("BROKERS_MAX", 2), ("ADDRESSES_MAX", 2), ("TOPICS_MAX", 3), ("ALL_TOPICS_MAX", 4)):
        monkeypatch.setattr(route_table, name, limit)
    table = RouteTable()

    def topics(count: int, name: str = "T") -> dict[str, TopicConfig]:
        return {f"{name}{number}": TopicConfig(topic_name="x") for number in range(count)}

    def refused(name: str, topics: dict[str, TopicConfig], broker_id: int = 0, address: str = "h:1") -> str:
        with pytest.raises(MQBrokerError) as caught:
            table.register(broker(name), broker_id, address, topics)
        return caught.value.remark or ""

    assert "4 topics: a broker has 3 at most" in refused("broker-a", topics(4))
    assert "a topic has at most 255 characters" in refused("broker-a", topics(1, "x" * 255))
    assert "have at most 255 characters" in refused("b" * 256, {})
    assert "have at most 255 characters" in refused("broker-a", {}, address="h" * 256)
    table.register(broker(), 0, "h:1", topics(3))
    table.register(broker(), 0, "h:1", topics(3))  # the same again is no more than before
    assert "all together 4" in refused("broker-b", topics(2))
    table.register(broker("broker-b"), 0, "h:2", topics(1))
    with pytest.raises(MQBrokerError, match="4 topics: a broker has 3 at most"):  # together with those that stay
        table.register(broker(), 0, "h:1", topics(1, "U"), is_whole=False)
    assert "2 names of brokers are registered already" in refused("broker-c", {})
    table.register(broker(), 1, "h:3", {})
    assert "broker broker-a has 2 addresses already" in refused("broker-a", {}, 2, "h:4")
    assert len(table.topics()) == 3
    now_s = route_table.real_time.monotonic() + 121
    monkeypatch.setattr(route_table.real_time, "monotonic", lambda: now_s)
    table.register(broker("broker-c"), 0, "h:5", topics(3))  # brokers that are gone make room


def test_of_a_topic_only_what_its_route_needs_is_kept() -> None:
    table = RouteTable()
    huge = TopicConfig(topic_name="x" * 1000, perm=4, topic_filter_type="y" * 1000, attributes={"+a": "b" * 1000})
    table.register(broker(), 0, "h:1", {"Orders": huge})
    (kept,) = table._brokers["broker-a"].topics.values()
    assert kept == TopicConfig(topic_name="Orders", perm=4)


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
