"""Members, locks, and look-ups."""

from __future__ import annotations

import socket

import pytest

from rmq_store import UsageError
from rmq_store.format.text.host import Host
from rmq_store.format.text.ids import offset_message_id
from rmq_store.protocol.errors import MQBrokerError, RemotingConnectError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.admin.scope import process_at
from rmq_store.remoting.cluster import groups, locks, queries
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings

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


class NamedProcess(FakeProcess):
    """A process that has registered another address."""

    registered = ""

    @property
    def address(self) -> str:
        return self.registered


def register(net: FakeNet, broker: str, address: str) -> None:
    net.brokers[broker].processes = {0: NamedProcess(net.brokers[broker], 0)}
    net.brokers[broker].processes[0].registered = address  # type: ignore[attr-defined]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Names that can be resolved. All others cannot."""
    known: dict[str, str] = {}

    def look_up(host: str, port: int, **_: object) -> list[object]:
        if host not in known and not host.replace(".", "").isdigit():
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (known.get(host, host), port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return known


def test_a_broker_that_has_registered_a_name_is_that_of_ids_with_its_address(
    net: FakeNet, names: dict[str, str]
) -> None:
    cluster = two_brokers(net)
    register(net, "broker-a", "broker-a.internal:10911")
    register(net, "broker-b", "broker-b.internal:10911")
    names |= {"broker-a.internal": "10.0.0.2", "broker-b.internal": "10.0.0.1"}
    found = queries.view_message(cluster, message_id("10.0.0.1:10911", 14_000))
    assert found is not None and found.broker_name == "broker-b"
    with pytest.raises(UsageError, match=r"10.0.0.1:10921, which is none of this cluster: nothing was asked"):
        queries.view_message(cluster, message_id("10.0.0.1:10921", 14_000))
    with pytest.raises(UsageError, match=r"10.0.0.3:10911, which is none of this cluster: nothing was asked"):
        queries.view_message(cluster, message_id("10.0.0.3:10911", 14_000))
    assert {address for address, _ in net.calls} == {*net.name_servers, "broker-b.internal:10911"}


def test_a_name_that_the_address_map_leads_to_an_address_is_that_of_its_ids(
    net: FakeNet, names: dict[str, str]
) -> None:
    net.add_broker("broker-a").put("Orders", 0, 5)
    register(net, "broker-a", "broker-a.internal:10911")
    mapping = {"broker-a.internal:10911": "10.0.0.1:20911"}
    settings = ClusterSettings(name_servers=tuple(net.name_servers), address_map=mapping)
    cluster = Cluster(settings, client=net)  # type: ignore[arg-type]
    found = queries.view_message(cluster, message_id("10.0.0.1:20911", 14_000))
    assert found is not None and found.broker_name == "broker-a"


def test_a_name_that_cannot_be_resolved_is_asked_and_the_message_decides(net: FakeNet, names: dict[str, str]) -> None:
    cluster = two_brokers(net)
    register(net, "broker-a", "broker-a.internal:10911")
    register(net, "broker-b", "broker-b.internal:10911")
    net.brokers["broker-a"].queues.clear()
    found = queries.view_message(cluster, message_id("10.0.0.1:10911", 14_000))
    assert found is not None and found.broker_name == "broker-b"
    # The messages of the fake cluster have the address 10.0.0.1:10911.
    assert queries.view_message(cluster, message_id("10.0.0.9:10911", 14_000)) is None
    net.brokers["broker-a"].processes[0].down = True
    assert queries.view_message(cluster, message_id("10.0.0.1:10911", 14_000)) == found
    with pytest.raises(RemotingConnectError):
        queries.view_message(cluster, message_id("10.0.0.9:10911", 14_000))


def test_an_administrator_names_a_process_by_address_or_name(net: FakeNet, names: dict[str, str]) -> None:
    cluster = two_brokers(net)
    register(net, "broker-a", "broker-a.internal:10911")
    register(net, "broker-b", "10.0.0.2:10911")
    names |= {"broker-a.internal": "10.0.0.1", "broker-b.internal": "10.0.0.2"}
    assert process_at(cluster, "10.0.0.1:10911").broker_name == "broker-a"
    assert process_at(cluster, "broker-b.internal:10911").broker_name == "broker-b"
    for wrong in ("10.0.0.1:10921", "10.0.0.3:10911", "elsewhere.internal:10911", "broker-a", "10.0.0.1"):
        with pytest.raises(UsageError, match="no broker has registered the address"):
            process_at(cluster, wrong)


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
