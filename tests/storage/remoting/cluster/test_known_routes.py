"""What one process knows of brokers, in the hands of another one that no name server answers."""

from __future__ import annotations

import pickle  # noqa: TID251 - our own
from collections.abc import Callable
from dataclasses import replace

import pytest

from rmq_store.protocol.errors import RemotingConnectError
from rmq_store.protocol.wire.command import RemotingCommand, response_to
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.pull_source import PullSource
from rmq_store.remoting.cluster.routes import AGAIN_AFTER_MS, POLL_EVERY_MS, KnownRoutes

from .conftest import Timer
from .fake_cluster import NAME_SERVER, FakeNet

Make = Callable[..., Cluster]


@pytest.fixture
def fresh(net: FakeNet, timer: Timer) -> Make:
    """A process that has taken over what another one knew of topics and of brokers (all, by default)."""
    for name in ("broker-a", "broker-b"):
        net.add_broker(name, slaves=1).put("Orders", 1, 5)

    def make(topics: tuple[str, ...] = ("Orders",), brokers: tuple[str, ...] | None = None) -> Cluster:
        known = handed(net, timer, topics, brokers)
        net.calls.clear()
        made = net.cluster(timer=timer)
        made.routes.take_over(known)
        return made

    return make


def handed(net: FakeNet, timer: Timer, topics: tuple[str, ...], brokers: tuple[str, ...] | None) -> KnownRoutes:
    cluster = net.cluster(timer=timer)
    for topic in topics:
        cluster.route(topic)
    cluster.broker_names()
    found = pickle.loads(pickle.dumps(cluster.routes.known(topics, brokers)))  # noqa: S301
    assert isinstance(found, KnownRoutes)
    return found


def move(net: FakeNet, name: str) -> None:
    """The broker goes on at other addresses."""
    for process in net.brokers[name].processes.values():
        process.port = 10921


def address(name: str, broker_id: int = 0, port: int = 10911) -> str:
    return f"{name}-{broker_id}:{port}"


@pytest.mark.parametrize("state", ["refused", "silent", "there"])
def test_it_finds_routes_and_brokers_without_a_question(net: FakeNet, timer: Timer, fresh: Make, state: str) -> None:
    cluster = fresh()
    name_server = net.name_servers[NAME_SERVER]
    name_server.down, name_server.silent = state == "refused", state == "silent"
    assert cluster.known_route("Orders") == net_route(net, timer)
    assert cluster.address("broker-b", 1) == address("broker-b", 1)
    assert not net.calls


def net_route(net: FakeNet, timer: Timer) -> object:
    name_server = net.name_servers[NAME_SERVER]
    before = name_server.down, name_server.silent
    name_server.down = name_server.silent = False
    calls = list(net.calls)
    route = net.cluster(timer=timer).route("Orders")
    name_server.down, name_server.silent = before
    net.calls[:] = calls
    return route


def test_brokers_alone_are_found_too(net: FakeNet, fresh: Make) -> None:
    cluster = fresh(topics=(), brokers=("broker-b",))
    net.name_servers[NAME_SERVER].down = True
    assert cluster.address("broker-b") == address("broker-b")
    with pytest.raises(RemotingConnectError, match="no name server answers"):
        cluster.address("broker-a")


def test_a_route_is_asked_for_again_after_30_seconds(net: FakeNet, timer: Timer, fresh: Make) -> None:
    cluster = fresh()
    net.brokers["broker-a"].create_topic("Orders", 7)
    timer.now_ms += POLL_EVERY_MS - 1
    assert len(cluster.known_route("Orders").read_queues()) == 4
    timer.now_ms += 1
    assert len(cluster.known_route("Orders").read_queues()) == 9


@pytest.mark.parametrize("topics", [("Orders",), ()])
def test_a_broker_that_is_not_reached_is_asked_for_and_found_where_it_is_now(
    net: FakeNet, timer: Timer, fresh: Make, topics: tuple[str, ...]
) -> None:
    cluster = fresh(topics)
    known = handed(net, timer, topics, None)
    move(net, "broker-b")
    assert cluster.address("broker-b") == address("broker-b")
    cluster.routes.not_reached("broker-b")
    assert cluster.address("broker-b") == address("broker-b", port=10921)
    cluster.routes.take_over(known)
    assert cluster.address("broker-b") == address("broker-b", port=10921), "what is known already is not news"
    net.name_servers[NAME_SERVER].down = True
    cluster.routes.not_reached("broker-b")
    assert cluster.address("broker-b") == address("broker-b", port=10921)


def test_another_address_in_a_later_hand_over_is_the_one_to_use(net: FakeNet, timer: Timer, fresh: Make) -> None:
    cluster = fresh()
    move(net, "broker-b")
    later = handed(net, timer, ("Orders",), None)
    net.name_servers[NAME_SERVER].down = True
    cluster.routes.not_reached("broker-b")
    assert cluster.address("broker-b") == address("broker-b")
    cluster.routes.take_over(later)
    assert cluster.address("broker-b") == address("broker-b", port=10921)


def test_reads_go_to_a_master_that_has_answered_the_other_process(net: FakeNet, timer: Timer, fresh: Make) -> None:
    """It did not answer here a moment before, and its slave may have another log."""
    cluster = fresh()
    source = PullSource(cluster, "broker-b")
    assert source.failed(RemotingConnectError("refused")) and PullSource(cluster, "broker-b").broker_id == 1
    known = handed(net, timer, ("Orders",), None)
    cluster.take_over(known)
    assert PullSource(cluster, "broker-b").broker_id == 1
    cluster.take_over(replace(known, masters=frozenset({"broker-b"})))
    assert PullSource(cluster, "broker-b").broker_id == 0


def empty(command: RemotingCommand) -> RemotingCommand:
    if command.code == 105:
        return response_to(command, 17, "No topic route info in name server for the topic")
    return response_to(command, 0, body=b'{"brokerAddrTable":{},"clusterAddrTable":{}}')


def not_ready(command: RemotingCommand) -> RemotingCommand:
    return response_to(command, 1, "name server not ready")


@pytest.mark.parametrize("answer", [empty, not_ready])
def test_a_name_server_that_has_just_begun_takes_nothing_away(
    net: FakeNet, timer: Timer, fresh: Make, answer: Callable[[RemotingCommand], RemotingCommand]
) -> None:
    cluster = fresh()
    before = cluster.known_route("Orders")
    net.name_servers[NAME_SERVER].answers += [answer] * 100
    for _ in range(4):
        timer.now_ms += POLL_EVERY_MS
        assert cluster.known_route("Orders") == before
        cluster.routes.not_reached("broker-b")
        assert cluster.address("broker-b") == address("broker-b")
    net.name_servers[NAME_SERVER].answers.clear()
    net.brokers["broker-a"].create_topic("Orders", 7)
    timer.now_ms += AGAIN_AFTER_MS
    assert len(cluster.known_route("Orders").read_queues()) == 9


def test_a_topic_is_gone_when_a_name_server_knows_its_brokers_and_not_the_topic(
    net: FakeNet, timer: Timer, fresh: Make
) -> None:
    cluster = fresh()
    for broker in net.brokers.values():
        del broker.topics["Orders"]
    timer.now_ms += POLL_EVERY_MS
    assert cluster.route("Orders") is None


def test_without_a_hand_over_a_topic_goes_with_its_last_broker(net: FakeNet, timer: Timer, fresh: Make) -> None:
    fresh()
    cluster = net.cluster(timer=timer)
    cluster.route("Orders")
    net.name_servers[NAME_SERVER].answers += [empty] * 2
    timer.now_ms += POLL_EVERY_MS
    assert cluster.route("Orders") is None


def test_the_address_of_a_broker_that_the_name_servers_have_forgotten_stays(
    net: FakeNet, timer: Timer, fresh: Make
) -> None:
    cluster = fresh()
    del net.brokers["broker-b"]
    for _ in range(3):
        timer.now_ms += POLL_EVERY_MS
        cluster.routes.not_reached("broker-b")
        assert cluster.address("broker-b") == address("broker-b")
        assert set(cluster.known_route("Orders").queues) == {"broker-a"}


def test_the_size_of_a_hand_over(net: FakeNet, timer: Timer) -> None:
    """Spark pickles each partition by itself: it has one broker. A sink has all, once."""
    for number in range(100):
        net.add_broker(f"broker-{number:03}", slaves=1).create_topic("Orders", 100)
    cluster = net.cluster(timer=timer)
    cluster.route("Orders")
    cluster.broker_names()
    assert len(pickle.dumps(cluster.routes.known(brokers=["broker-007"]))) < 400
    assert len(pickle.dumps(cluster.routes.known(["Orders"]))) < 24_000
