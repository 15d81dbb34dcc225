"""Brokers called by name: masters, slaves for reads, several at once; and what an error says."""

from __future__ import annotations

import pytest

from rmq_store.protocol.errors import MQBrokerError, RemotingConnectError, RemotingError, RemotingTimeoutError
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.remoting.cluster import cluster as cluster_module

from .fake_cluster import FakeNet, FakeProcess


def command() -> RemotingCommand:
    return RemotingCommand(30, {"topic": "Orders", "queueId": "0"})


def one_broker(net: FakeNet) -> FakeNet:
    broker = net.add_broker(slaves=1)
    broker.create_topic("Orders", 1)
    broker.put("Orders", 0, 5)
    return net


def to_brokers(net: FakeNet) -> list[str]:
    return [address for address, _ in net.calls if address not in net.name_servers]


def test_the_master_is_called_and_an_error_names_the_broker(net: FakeNet) -> None:
    cluster = one_broker(net).cluster()
    assert cluster.call_broker("broker-a", command()).ext_fields["offset"] == "5"
    net.brokers["broker-a"].refused[30] = (16, "no rights")
    with pytest.raises(MQBrokerError, match=r"no rights.*broker-a") as raised:
        cluster.call_broker("broker-a", command())
    assert raised.value.response_code == 16
    assert cluster.call_broker("broker-a", command(), ok=(16,)).code == 16


def test_a_broker_that_moved_is_found_at_its_new_address(net: FakeNet) -> None:
    cluster = one_broker(net).cluster()
    cluster.call_broker("broker-a", command())
    moved = FakeProcess(net.brokers["broker-a"], 7)
    net.brokers["broker-a"].processes[0] = moved
    cluster.routes._clusters = (0.0, cluster.timer() + 1e9, cluster.routes.clusters())
    assert cluster.call_broker("broker-a", command()).code == 0
    assert to_brokers(net)[-1] == moved.address


def test_connection_errors_name_the_broker(net: FakeNet) -> None:
    cluster = one_broker(net).cluster()
    process = net.brokers["broker-a"].processes[0]
    process.down = True
    with pytest.raises(RemotingConnectError, match=r"broker broker-a \(master\): connect to broker-a-0:10911"):
        cluster.call_broker("broker-a", command())
    process.down, process.silent = False, True
    with pytest.raises(RemotingTimeoutError, match=r"broker broker-a \(master\): "):
        cluster.call_broker("broker-a", command())


def test_many_requests_are_in_flight_at_once_and_answered_in_order(
    net: FakeNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "IN_FLIGHT_MAX", 3)
    broker = net.add_broker()
    for queue_id in range(10):
        broker.put("Orders", queue_id, queue_id)
        broker.create_topic("Orders", queue_id + 1)
    cluster = net.cluster()
    commands = [("broker-a", RemotingCommand(30, {"topic": "Orders", "queueId": str(number)})) for number in range(10)]
    answers = cluster.call_all(commands)
    assert [answer.ext_fields["offset"] for answer in answers if isinstance(answer, RemotingCommand)] == [
        str(number) for number in range(10)
    ]
    assert cluster.call_all([]) == []


def test_a_broker_that_does_not_answer_is_waited_for_once_and_others_are_answered(net: FakeNet) -> None:
    for name in ("broker-a", "broker-b"):
        net.add_broker(name).put("Orders", 0, 4)
    net.brokers["broker-b"].processes[0].down = True
    cluster = net.cluster()
    commands = [(name, command()) for name in ("broker-a", "broker-b", "broker-b")]
    answers = cluster.call_all(commands)
    assert [isinstance(answer, RemotingError) for answer in answers] == [False, True, True]


def test_a_cluster_closes_only_the_client_that_it_made(net: FakeNet) -> None:
    with one_broker(net).cluster() as cluster:
        cluster.call_broker("broker-a", command())
    assert not net.closed
