"""Brokers and name servers behind a proxy that delays, cuts and holds back: no wait without an end, nothing is lost or
stored twice, and each error names the address.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from helpers.cluster import requests
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.fault_proxy import FaultProxy
from rmq_store import Message
from rmq_store.client import Producer
from rmq_store.client.cluster_sink.records import WritePart
from rmq_store.cluster import RemoteBackend
from rmq_store.protocol.errors import (
    ClientError,
    MQBrokerError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
    SendInDoubtError,
)
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.pulling import read_range
from rmq_store.remoting.cluster.topics import topic_stats
from rmq_store.remoting.transport.settings import ClusterSettings

from .test_sink import bodies, send, stored

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
NewName = Callable[[str], str]

COUNT = 400
TIMEOUT_MS = 1_500
# One call may be tried again at the slave, and the route is asked in between; the machine has few processors.
PATIENCE_S = 60


@pytest.fixture
def proxy(cluster: RocketmqCluster) -> Iterator[FaultProxy]:
    with FaultProxy(cluster.address()) as found:
        yield found


@pytest.fixture
def topic(cluster: RocketmqCluster, new_name: NewName) -> str:
    name = cluster.create_topic(new_name("Orders"), 1)
    with cluster.connect() as broker:
        assert requests.send_batch(broker, name, [b"%d" % number for number in range(COUNT)]).code == 0
        requests.await_end(broker, name, COUNT)
    return name


def behind(
    cluster: RocketmqCluster, proxy: FaultProxy, slave: str = "127.0.0.1:1", timeout_ms: int = TIMEOUT_MS
) -> ClusterSettings:
    """All of the master's traffic takes the proxy; without `slave` nobody reaches its slave."""
    return ClusterSettings(
        name_servers=cluster.name_servers, timeout_ms=timeout_ms, connect_timeout_ms=TIMEOUT_MS,
        address_map={cluster.address(): proxy.address, cluster.address("broker-a", 1): slave},
    )  # fmt: skip


def numbers(cluster: Cluster, topic: str, start: int = 0) -> list[int]:
    blocks = read_range(cluster, MessageQueue(topic, "broker-a", 0), start, COUNT)
    return [int(requests.body_of(frame)) for frame in requests.records(b"".join(blocks))]


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """What is done within ends in time."""
    start_s = time.monotonic()
    yield
    assert time.monotonic() - start_s < PATIENCE_S


@pytest.mark.parametrize("fault", ["slow", "byte by byte", "reset on the way", "held back for a while"])
def test_a_fault_that_passes_is_not_noticed_by_readers_and_senders(
    cluster: RocketmqCluster, proxy: FaultProxy, topic: str, new_name: NewName, fault: str
) -> None:
    target, rows = cluster.create_topic(new_name("Bills"), 2), [f"row {number % 40}" for number in range(100)]
    # Nothing but a proxy that holds back may exceed the time-out, however busy the machine is.
    timeout_ms = TIMEOUT_MS if fault == "held back for a while" else 20_000
    with Cluster(behind(cluster, proxy, timeout_ms=timeout_ms)) as ours, bounded():
        assert numbers(ours, topic, COUNT - 1) == [COUNT - 1]
        if fault == "slow":
            proxy.delay_ms = 200
        elif fault == "byte by byte":
            proxy.bytewise = True
        elif fault == "reset on the way":
            proxy.reset()
        else:
            proxy.half_open()
            with pytest.raises(RemotingTimeoutError, match=cluster.address()):
                topic_stats(ours, topic)
            proxy.flow()
        assert numbers(ours, topic) == list(range(COUNT))
        if fault == "reset on the way":
            proxy.reset()
        report = send(ours, target, bodies(*rows), WritePart(target, 0, 0))
        assert report.rows + report.found == len(rows)
    with Cluster(ClusterSettings(name_servers=cluster.name_servers)) as straight:
        assert Counter(row["body"].decode() for row in stored(straight, target, len(rows), 2)) == Counter(rows)


@pytest.mark.parametrize("fault", ["half-open", "cut off"])
def test_a_fault_that_stays_ends_in_an_error_with_the_address_and_the_repetition_loses_nothing(
    cluster: RocketmqCluster, proxy: FaultProxy, topic: str, new_name: NewName, fault: str
) -> None:
    target = cluster.create_topic(new_name("Bills"), 2)
    rows, part = [f"row {number % 40}" for number in range(100)], WritePart(target, 0, 0)
    kind = RemotingTimeoutError if fault == "half-open" else RemotingConnectError
    address = cluster.address()
    with Cluster(behind(cluster, proxy)) as ours:
        assert numbers(ours, topic, COUNT - 1) == [COUNT - 1]
        send(ours, target, bodies(*rows[:30]), part)
        (proxy.half_open if fault == "half-open" else proxy.cut_off)()
        with bounded(), pytest.raises(kind, match=address):
            topic_stats(ours, topic)
        with bounded(), pytest.raises(ClientError, match=f"{address}|broker-a"):
            numbers(ours, topic)
        with bounded(), pytest.raises((SendInDoubtError, RemotingError), match=f"{address}|broker-a"):
            send(ours, target, bodies(*rows), part, patience_ms=3_000)
        with (
            RemoteBackend(behind(cluster, proxy)) as backend,
            Producer("pg", backend) as producer,
            bounded(),
            pytest.raises(ClientError, match=address),
        ):
            producer.send(Message(target, b"never stored"))
        (proxy.flow if fault == "half-open" else proxy.restore)()
        proxy.reset()
        assert numbers(ours, topic) == list(range(COUNT))
    with Cluster(ClusterSettings(name_servers=cluster.name_servers)) as straight:
        send(straight, target, bodies(*reversed(rows)), part)
        found = Counter(row["body"].decode() for row in stored(straight, target, len(rows), 2))
    # A producer that got no answer does not know: its message may be there, once for each of its sends.
    found.pop("never stored", None)
    assert found == Counter(rows)


def test_reads_go_to_the_slave_while_the_master_is_behind_a_fault_and_back(
    cluster: RocketmqCluster, proxy: FaultProxy, new_name: NewName
) -> None:
    topic = cluster.create_topic(new_name("Orders"), 1, on_slaves=True)
    with cluster.connect() as broker:
        requests.send_batch(broker, topic, [b"%d" % number for number in range(COUNT)])
        requests.await_end(broker, topic, COUNT)
    cluster.await_replicated(topic)
    slave = cluster.address("broker-a", 1)
    with Cluster(behind(cluster, proxy, slave)) as ours:
        assert numbers(ours, topic) == list(range(COUNT))
        for begin, end in ((proxy.half_open, proxy.flow), (proxy.cut_off, proxy.restore)):
            begin()
            with bounded():
                assert numbers(ours, topic) == list(range(COUNT))
            end()
        proxy.reset()
        asked = proxy.requests.total()

        def is_back() -> bool:
            assert numbers(ours, topic) == list(range(COUNT))
            return proxy.requests.total() > asked

        deadline_s = time.monotonic() + PATIENCE_S
        while not is_back():
            assert time.monotonic() < deadline_s
            time.sleep(1)


@pytest.mark.statement("G19")
@pytest.mark.parametrize("fault", ["half-open", "cut off"])
def test_name_servers_that_are_cut_off_are_not_missed_until_the_last_one(
    cluster: RocketmqCluster, topic: str, fault: str
) -> None:
    with FaultProxy(cluster.name_server) as first, FaultProxy(cluster.name_server) as second:
        settings = ClusterSettings(
            name_servers=(first.address, second.address), timeout_ms=TIMEOUT_MS, connect_timeout_ms=TIMEOUT_MS
        )

        def away(proxy: FaultProxy) -> None:
            (proxy.half_open if fault == "half-open" else proxy.cut_off)()

        with Cluster(settings) as ours:
            assert numbers(ours, topic) == list(range(COUNT))
            away(first)
            with bounded(), Cluster(settings) as newcomer:
                assert newcomer.refresh_route(topic) is not None
                assert ours.refresh_route(topic) is not None
            away(second)
            # The routes that are known stay in use.
            with bounded():
                assert numbers(ours, topic) == list(range(COUNT))
            with bounded(), Cluster(settings) as newcomer, pytest.raises(ClientError) as caught:
                newcomer.route(topic)
            assert first.address in str(caught.value) or second.address in str(caught.value)
            for proxy in (first, second):
                proxy.flow()
                proxy.restore()
                proxy.reset()
            with bounded(), Cluster(settings) as newcomer:
                assert numbers(newcomer, topic) == list(range(COUNT))


def test_what_a_broker_refuses_is_an_error_with_its_code_its_remark_and_its_broker(
    cluster: RocketmqCluster, new_name: NewName
) -> None:
    nowhere = new_name("Nowhere")
    with Cluster(ClusterSettings(name_servers=cluster.name_servers)) as ours:
        with pytest.raises(MQBrokerError) as caught:
            next(iter(read_range(ours, MessageQueue(nowhere, "broker-a", 0), 0, 1)))
    assert caught.value.response_code == 17
    for part in ("17", "broker-a", nowhere):
        assert part in str(caught.value)
