"""The brokers of each topic (RouteInfoManager.java): in memory, told by the brokers themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Final

from rmq_store import real_time
from rmq_store.format.text.names import RETRY_TOPIC_LENGTH_MAX
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.bodies.compressed_registration import TOPICS_MAX
from rmq_store.protocol.bodies.routes import MASTER_ID, BrokerData, ClusterInfo, QueueData, TopicRouteData
from rmq_store.protocol.bodies.topics import DataVersion, TopicConfig
from rmq_store.protocol.errors import ResponseCode
from rmq_store.server.requests.request import Peer, refusal

EXPIRES_MS: Final = 120_000
"""A broker that has not registered for so long is no longer in the routes (brokerChannelExpiredTime)."""

EXPIRES_MS_MIN: Final = 1_000
"""The shortest time that a broker may ask for; EXPIRES_MS is the longest."""

BROKERS_MAX: Final = 1_000
"""The most names of brokers."""

ADDRESSES_MAX: Final = 100
"""The most brokers of one name, a master and its slaves."""

ALL_TOPICS_MAX: Final = 300_000
"""The most topics of all brokers, one that two brokers have counted twice."""

_NAME_LENGTH_MAX: Final = 255


@dataclass(slots=True)
class _Broker:
    """All processes of one broker name."""

    cluster: str
    addresses: dict[int, _Address] = field(default_factory=dict)
    topics: Mapping[str, TopicConfig] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Address:
    address: str
    peer: Peer | None
    until_s: float
    expires_ms: int
    version: DataVersion | None
    ha_address: str


Topics = Callable[[], Mapping[str, TopicConfig]]


class RouteTable:
    """Routes of any number of clusters. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._brokers: dict[str, _Broker] = {}
        self._own: dict[str, tuple[BrokerData, Topics]] = {}
        self._own_ha: dict[str, str] = {}

    def add_own(self, broker: BrokerData, topics: Topics, ha_address: str = "") -> None:
        """Add the broker of this process, whose topics are asked at each use. `ha_address`: where slaves copy its log,
        "" if they cannot.
        """
        with self._lock:
            self._own[broker.broker_name] = broker, topics
            self._own_ha[broker.broker_name] = ha_address

    def register(
        self,
        broker: BrokerData,
        broker_id: int,
        address: str,
        topics: Mapping[str, TopicConfig],
        *,
        peer: Peer | None = None,
        expires_ms: int = EXPIRES_MS,
        version: DataVersion | None = None,
        is_whole: bool = True,
        ha_address: str = "",
    ) -> str | None:
        """A broker reports itself; returns the address of its master if it is a slave that has one. Topics count from
        a master, and from a slave only while its name has no master. It stays for `expires_ms`, but no less than
        EXPIRES_MS_MIN and no more than EXPIRES_MS. Without `is_whole` these are some of its topics: the others stay.
        `ha_address`: where slaves copy its log.

        Raises:
            MQBrokerError: 1, a name is too long, or there would be too many topics, brokers, or names of them.
        """
        expires_ms = max(EXPIRES_MS_MIN, min(expires_ms, EXPIRES_MS))
        until_s = real_time.monotonic() + expires_ms / 1000
        _check_names(broker, address, ha_address, topics)
        kept = {name: _routed(name, config) for name, config in topics.items()}
        with self._lock:
            before = self._brokers.get(broker.broker_name)
            if not is_whole:
                if before is None or broker_id not in before.addresses:
                    version = None  # its other topics are not known: it is asked for all of them (`seen`)
                kept = {**(before.topics if before is not None else {}), **kept}
            self._check_room(broker.broker_name, broker_id, len(kept))
            known = self._brokers.setdefault(broker.broker_name, _Broker(broker.cluster))
            known.cluster = broker.cluster
            # The same process with another id: a slave that became a master.
            for other in [other for other, one in known.addresses.items() if one.address == address]:
                del known.addresses[other]
            known.addresses[broker_id] = _Address(address, peer, until_s, expires_ms, version, ha_address)
            if broker_id == MASTER_ID or MASTER_ID not in known.addresses:
                known.topics = kept
            if broker_id == MASTER_ID:
                return None
            if (own := self._own.get(broker.broker_name)) is not None:
                return own[0].broker_addrs.get(MASTER_ID)
            master = known.addresses.get(MASTER_ID)
            return master.address if master is not None else None

    def ha_address_of_master(self, broker_name: str) -> str | None:
        """Where slaves of this name copy the log of their master; None: no master is known, or it has not said."""
        with self._lock:
            if broker_name in self._own:
                return self._own_ha[broker_name] or None
            known = self._brokers.get(broker_name)
            master = known.addresses.get(MASTER_ID) if known is not None else None
            return (master.ha_address or None) if master is not None else None

    def seen(self, broker_name: str, broker_id: int, address: str, version: DataVersion) -> DataVersion | None:
        """A broker says which version its topics have; returns the one that it has registered, None if it has not. It
        is alive from now on as after a registration if both are the same.
        """
        with self._lock:
            known = self._brokers.get(broker_name)
            there = known.addresses.get(broker_id) if known is not None else None
            if known is None or there is None or there.address != address:
                return None
            if there.version == version:
                until_s = real_time.monotonic() + there.expires_ms / 1000
                known.addresses[broker_id] = replace(there, until_s=until_s)
            return there.version

    def unregister(self, broker_name: str, broker_id: int, address: str) -> None:
        """A broker stops."""
        with self._lock:
            known = self._brokers.get(broker_name)
            if known is not None and broker_id in known.addresses and known.addresses[broker_id].address == address:
                self._forget(broker_name, broker_id)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic of all brokers that have registered, or of those of a cluster; one that still has it brings it
        back.
        """
        with self._lock:
            for broker in self._brokers.values():
                if cluster not in (None, broker.cluster):
                    continue
                broker.topics = {name: config for name, config in broker.topics.items() if name != topic}

    def disconnected(self, peer: Peer) -> None:
        """A connection has ended: the brokers that registered through it are gone."""
        with self._lock:
            for name, broker in list(self._brokers.items()):
                for broker_id in [one for one, there in broker.addresses.items() if there.peer is peer]:
                    self._forget(name, broker_id)

    def address_of(self, broker_name: str, broker_id: int) -> str | None:
        """The address under which a broker is known, this process's own included."""
        own = self._own.get(broker_name)
        if own is not None and broker_id in own[0].broker_addrs:
            return own[0].broker_addrs[broker_id]
        with self._lock:
            known = self._brokers.get(broker_name)
            there = known.addresses.get(broker_id) if known is not None else None
            return there.address if there is not None else None

    def route(self, topic: str) -> TopicRouteData | None:
        """The route of a topic; None if no broker has it."""
        queues, brokers = [], []
        for data, topics in self._all():
            config = topics.get(topic)
            if config is None:
                continue
            queues.append(
                QueueData(
                    broker_name=data.broker_name,
                    read_queue_nums=config.read_queue_nums,
                    write_queue_nums=config.write_queue_nums,
                    perm=config.perm,
                    topic_sys_flag=config.topic_sys_flag,
                )
            )
            brokers.append(data)
        if not queues:
            return None
        return TopicRouteData(queue_datas=tuple(queues), broker_datas=tuple(brokers))

    def clusters(self) -> ClusterInfo:
        """All brokers by name, and names by cluster."""
        brokers = {data.broker_name: data for data, _ in self._all()}
        names: dict[str, list[str]] = {}
        for data in brokers.values():
            names.setdefault(data.cluster, []).append(data.broker_name)
        by_cluster = {cluster: tuple(sorted(members)) for cluster, members in names.items()}
        return ClusterInfo(broker_addr_table=brokers, cluster_addr_table=by_cluster)

    def topics(self, cluster: str | None = None) -> list[str]:
        """The names of all topics, or of those of a cluster."""
        return sorted({name for data, topics in self._all() if cluster in (None, data.cluster) for name in topics})

    def _all(self) -> list[tuple[BrokerData, Mapping[str, TopicConfig]]]:
        with self._lock:
            self._forget_silent()
            others = [
                (
                    BrokerData(
                        cluster=broker.cluster,
                        broker_name=name,
                        broker_addrs={broker_id: there.address for broker_id, there in broker.addresses.items()},
                    ),
                    broker.topics,
                )
                for name, broker in self._brokers.items()
                if name not in self._own
            ]
            own = [(self._with_slaves(data), topics) for data, topics in self._own.values()]
        return [*((data, topics()) for data, topics in own), *others]

    def _with_slaves(self, own: BrokerData) -> BrokerData:
        """The broker of this process with its slaves, which have registered as any other one."""
        known = self._brokers.get(own.broker_name)
        if known is None:
            return own
        slaves = {broker_id: there.address for broker_id, there in known.addresses.items()}
        return replace(own, broker_addrs=slaves | dict(own.broker_addrs))

    def _check_room(self, name: str, broker_id: int, topic_count: int) -> None:
        """MQBrokerError 1: a broker with so many topics is too much."""
        self._forget_silent()
        known = self._brokers.get(name)
        if known is None and len(self._brokers) >= BROKERS_MAX:
            raise refusal(ResponseCode.SYSTEM_ERROR, f"{BROKERS_MAX} names of brokers are registered already")
        if known is not None and broker_id not in known.addresses and len(known.addresses) >= ADDRESSES_MAX:
            raise refusal(ResponseCode.SYSTEM_ERROR, f"broker {name} has {ADDRESSES_MAX} addresses already")
        others = sum(len(broker.topics) for other, broker in self._brokers.items() if other != name)
        if topic_count > TOPICS_MAX or others + topic_count > ALL_TOPICS_MAX:
            remark = f"{topic_count} topics: a broker has {TOPICS_MAX} at most, and all together {ALL_TOPICS_MAX}"
            raise refusal(ResponseCode.SYSTEM_ERROR, remark)

    def _forget_silent(self) -> None:
        now_s = real_time.monotonic()
        for name, broker in list(self._brokers.items()):
            for broker_id in [one for one, there in broker.addresses.items() if there.until_s < now_s]:
                self._forget(name, broker_id)

    def _forget(self, name: str, broker_id: int) -> None:
        del self._brokers[name].addresses[broker_id]
        if not self._brokers[name].addresses:
            del self._brokers[name]


def _check_names(broker: BrokerData, address: str, ha_address: str, topics: Mapping[str, TopicConfig]) -> None:
    """MQBrokerError 1: a name is longer than any of RocketMQ's."""
    if max(map(len, (broker.cluster, broker.broker_name, address, ha_address))) > _NAME_LENGTH_MAX:
        remark = f"names of brokers and clusters, and addresses, have at most {_NAME_LENGTH_MAX} characters"
        raise refusal(ResponseCode.SYSTEM_ERROR, remark)
    if max(map(len, topics), default=0) > RETRY_TOPIC_LENGTH_MAX:
        raise refusal(ResponseCode.SYSTEM_ERROR, f"a topic has at most {RETRY_TOPIC_LENGTH_MAX} characters")


def _routed(name: str, config: TopicConfig) -> TopicConfig:
    """The fields of a topic that a route has. The rest has any size."""
    return TopicConfig(
        topic_name=name,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_sys_flag=config.topic_sys_flag,
    )
