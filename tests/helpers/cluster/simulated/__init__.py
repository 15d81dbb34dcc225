"""A simulated cluster: a name server and any number of brokers in one thread, which count what they are asked.

    with SimulatedCluster(brokers=100) as cluster:
        cluster.create_topic("Orders", queue_count=100, message_count=1_000)
        ...
        assert cluster.total_calls[RequestCode.GET_TOPIC_STATS_INFO] == 100

Tests use it for bounds (calls, connections, bytes), and for faults that no real broker has on demand. Its answers
follow 5.5.0, those of a broker with `version` V4_9_7 where the two differ 4.9.7; tests/cluster/test_facts.py compares
the answers of real brokers.
"""

from __future__ import annotations

import itertools
from collections import Counter
from types import TracebackType
from typing import Final, Self

from helpers.cluster.simulated.broker import SimulatedBroker
from helpers.cluster.simulated.server import SUCCESS, TOPIC_NOT_EXIST, CountingServer, Reply
from helpers.cluster.stub_server import StubLoop
from rmq_store.protocol.bodies.routes import BrokerData, ClusterInfo, QueueData, TopicList, TopicRouteData
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.request_codes import RequestCode

__all__ = ["SimulatedBroker", "SimulatedCluster"]

CLUSTER_NAME: Final = "simulated"


class SimulatedCluster(CountingServer):
    """The name server, and `brokers` by name: broker-000, broker-001 ... A context manager."""

    def __init__(self, brokers: int = 1) -> None:
        self.loop = StubLoop()
        super().__init__(self.loop)
        names = [f"broker-{number:03}" for number in range(brokers)]
        self.brokers = {name: SimulatedBroker(name, self.loop) for name in names}
        self._away: set[str] = set()
        self._answerers = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topics,
        }

    @property
    def name_server(self) -> str:
        """`host:port`."""
        return self.address

    @property
    def total_calls(self) -> Counter[int]:
        """Requests by code, of the name server and all brokers."""
        return sum((one.calls for one in self._all()), Counter())

    @property
    def connections(self) -> int:
        """How many connections were ever accepted."""
        return sum(one.server.accepted for one in self._all())

    @property
    def bytes_of_answers(self) -> int:
        """How much all servers have said."""
        return sum(one.sent_bytes for one in self._all())

    def create_topic(self, topic: str, queue_count: int, message_count: int = 0, first: int = 0) -> None:
        """Make a topic on every broker; each queue holds generated messages [first, message_count)."""
        for broker in self.brokers.values():
            broker.queues.create(topic, queue_count, message_count, first)

    def set_counts(self, topic: str, read: int, write: int) -> None:
        """Change readQueueNums and writeQueueNums of a topic on every broker."""
        for broker in self.brokers.values():
            broker.queues.set_counts(topic, read, write)

    def leave(self, name: str) -> None:
        """The broker dies, and the name server forgets it and its queues at once."""
        self.brokers[name].stop()
        self._away.add(name)

    def forget(self, name: str) -> None:
        """The name server does not know the broker, which lives: it has just begun, or the broker could not register.
        """
        self._away.add(name)

    def come_back(self, name: str) -> None:
        """It is back, with its messages."""
        self.brokers[name].start()
        self._away.discard(name)

    def forget_brokers(self) -> None:
        """The name server begins again, and no broker has registered yet: they live."""
        self._away.update(self.brokers)

    def forget_calls(self) -> None:
        """Count from zero."""
        for one in self._all():
            one.calls.clear()
            one.received_bytes = one.sent_bytes = one.server.accepted = 0

    def close(self) -> None:
        """End all servers."""
        for one in self._all():
            one.server.stop()
        self.loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _all(self) -> list[CountingServer]:
        return [self, *self.brokers.values()]

    @property
    def _registered(self) -> list[SimulatedBroker]:
        return [broker for name, broker in self.brokers.items() if name not in self._away]

    def _data_of(self, broker: SimulatedBroker) -> BrokerData:
        return BrokerData(cluster=CLUSTER_NAME, broker_name=broker.name, broker_addrs={0: broker.address})

    def _route(self, request: RemotingCommand) -> Reply:
        topic = request.ext_fields["topic"]
        holders = [broker for broker in self._registered if topic in broker.queues.topics]
        if not holders:
            return TOPIC_NOT_EXIST, {}, b""
        counts = [(broker.name, *broker.queues.counts(topic)) for broker in holders]
        route = TopicRouteData(
            queue_datas=tuple(
                QueueData(broker_name=name, read_queue_nums=read, write_queue_nums=write, perm=6)
                for name, read, write in counts
            ),
            broker_datas=tuple(self._data_of(broker) for broker in holders),
        )
        return SUCCESS, {}, route.encode(quoted_keys=True)

    def _cluster_info(self, _: RemotingCommand) -> Reply:
        table = {broker.name: self._data_of(broker) for broker in self._registered}
        info = ClusterInfo(broker_addr_table=table, cluster_addr_table={CLUSTER_NAME: tuple(table)})
        return SUCCESS, {}, info.encode()

    def _topics(self, _: RemotingCommand) -> Reply:
        names = set(itertools.chain.from_iterable(broker.queues.topics for broker in self._registered))
        return SUCCESS, {}, TopicList(topic_list=tuple(sorted(names))).encode()
