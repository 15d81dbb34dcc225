"""Members, locks, and look-ups."""

from __future__ import annotations

import pytest

from rmq_store import UsageError
from rmq_store.format.text.host import Host
from rmq_store.format.text.ids import offset_message_id
from rmq_store.protocol.errors import MQBrokerError, RemotingConnectError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster import groups, locks, queries
from rmq_store.remoting.cluster.cluster import Cluster

from .fake_cluster import FakeNet, FakeProcess

A0, B0 = MessageQueue("Orders", "broker-a", 0), MessageQueue("Orders", "broker-b", 0)


def two_brokers(net: FakeNet) -> Cluster:
    for name in ("broker-a", "broker-b"):
        net.add_broker(name, slaves=1).put("Orders", 0, 5)
    return net.cluster()


def test_a_lock_has_one_holder_and_is_asked_for_at_masters(net: FakeNet) -> None:
    cluster = two_brokers(net)
    assert locks.lock(cluster, "cg_lease", "one", [A0, B0]) == {A0, B0}
    assert locks.lock(cluster, "cg_lease", "two", [A0, B0]) == set()
    locks.unlock(cluster, "cg_lease", "two", [A0])
    assert locks.lock(cluster, "cg_lease", "one", [A0]) == {A0}
    locks.unlock(cluster, "cg_lease", "one", [A0])
    assert locks.lock(cluster, "cg_lease", "two", [A0, B0]) == {A0}
    net.brokers["broker-b"].processes[0].down = True
    with pytest.raises(RemotingConnectError):
        locks.lock(cluster, "cg_lease", "two", [A0, B0])


def test_a_broker_that_refuses_locks_takes_nothing_from_the_others(net: FakeNet) -> None:
    cluster = two_brokers(net)
    net.brokers["broker-b"].refused[41] = 2, "[OVERLOAD]"
    outcomes = locks.try_lock(cluster, "cg_lease", "one", [A0, B0])
    assert outcomes["broker-a"] == {A0}
    refusal = outcomes["broker-b"]
    assert isinstance(refusal, MQBrokerError) and (refusal.response_code, refusal.broker_name) == (2, "broker-b")
    with pytest.raises(MQBrokerError, match="OVERLOAD"):
        locks.lock(cluster, "cg_lease", "one", [A0, B0])


def test_locks_of_a_namespace_are_apart(net: FakeNet) -> None:
    cluster = two_brokers(net)
    assert locks.lock(cluster, "cg", "one", [A0]) == {A0}
    assert locks.lock(net.cluster("ns1"), "cg", "two", [A0]) == {A0}


def test_members_are_named_by_broker(net: FakeNet) -> None:
    cluster = two_brokers(net)
    assert groups.consumer_connections(cluster, "cg") == {}
    assert groups.consumer_ids(cluster, "cg", "broker-a") == []
    net.brokers["broker-b"].members["cg"]["10.1.1.1@7"] = {}
    found = groups.consumer_connections(cluster, "cg")
    assert {name: [one.client_id for one in connection.connection_set] for name, connection in found.items()} == {
        "broker-b": ["10.1.1.1@7"]
    }
    assert groups.consumer_ids(cluster, "cg", "broker-b") == ["10.1.1.1@7"]
    groups.unregister(cluster, "10.1.1.1@7", consumer_group="cg")
    assert groups.consumer_connections(cluster, "cg") == {}


def message_id(address: str, offset: int) -> str:
    return offset_message_id(Host.parse(address), offset)


def test_a_message_id_is_looked_up_at_the_broker_that_has_registered_its_address(net: FakeNet) -> None:
    cluster = two_brokers(net)

    class AtAddress(FakeProcess):
        @property
        def address(self) -> str:
            return "10.0.0.1:10911"

    net.brokers["broker-b"].processes[0] = AtAddress(net.brokers["broker-b"], 0)
    found = queries.view_message(cluster, message_id("10.0.0.1:10911", 14_000))
    assert found is not None and found.broker_name == "broker-b"
    assert int.from_bytes(found.frames[20:28]) == 1
    assert queries.view_message(cluster, message_id("10.0.0.1:10911", 13)) is None


def test_an_address_in_a_message_id_that_no_broker_has_registered_is_never_dialled(net: FakeNet) -> None:
    cluster = two_brokers(net)
    cluster.route("Orders")
    with pytest.raises(UsageError, match=r"169.254.169.254:80, which is none of this cluster: nothing was asked"):
        queries.view_message(cluster, message_id("169.254.169.254:80", 14_000))
    assert {address for address, _ in net.calls} == set(net.name_servers)


def test_messages_are_found_by_key_at_all_brokers_and_a_full_answer_says_so(net: FakeNet) -> None:
    cluster = two_brokers(net)
    key = f"{3:032X}"
    assert [(one.broker_name, one.is_full) for one in queries.query_by_unique_key(cluster, "Orders", key)] == [
        ("broker-a", False),
        ("broker-b", False),
    ]
    assert [one.is_full for one in queries.query_by_key(cluster, "Orders", "UNIQ_KEY", max_num=5)] == [True, True]
    assert queries.query_by_key(cluster, "Orders", "nothing") == []
    assert net.calls[-1][1].ext_fields["maxNum"] == "64"
