"""Routes: which brokers have a topic, with how many queues, and the addresses of their masters and slaves.

A route is asked for again when it is 30 seconds old; if no name server answers, the known one stays in use, and nobody
waits for them (`NameServers.may_answer`). Only
addresses of this table are ever dialled. Sources: TopicRouteData.java, QueueData.java, BrokerData.java,
MQClientInstance.java (updateTopicRouteInfoFromNameServer, topicRouteData2TopicPublishInfo,
topicRouteData2TopicSubscribeInfo), RouteInfoManager.java (pickupTopicRouteData).

A process that has asked hands what it knows to one that has not (`RouteTable.known`, `take_over`): tasks of Spark read
and write while no name server answers.

A proxy (`protocol.proxy_answers`) refuses the list of the clusters (106). There the brokers are those of the routes
that were heard, and of the route of SELF_TEST_TOPIC.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.bodies.routes import BrokerData, ClusterInfo, TopicRouteData
from rmq_store.protocol.errors import MQBrokerError, RemotingError, ResponseCode
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.order_conf import queues_of_order_conf
from rmq_store.protocol.proxy_answers import not_listed
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.remoting.cluster.name_servers import NameServers, timer_ms
from rmq_store.remoting.questions.answer import SUCCESS, broker_error, checked
from rmq_store.remoting.questions.name_servers import ask_clusters, ask_route

POLL_EVERY_MS: Final = 30_000
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
"""Every RocketMQ broker has it from its start, so that its route names all of them."""
AGAIN_AFTER_MS: Final = 1000
"""So long nobody asks again for what was asked for because a broker did not answer, or no name server did."""
MASTER_ID: Final = 0
PERM_READ: Final = 4
PERM_WRITE: Final = 2

_LISTED_OR_PROXY: Final = (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
_LIST: Final = "GET_BROKER_CLUSTER_INFO (106), the list of clusters and brokers"

_log = logging.getLogger(__name__)

Known = TypeVar("Known")


@dataclass(frozen=True, slots=True)
class BrokerAddresses:
    """A broker's name and the addresses of its processes by broker id: 0 is the master, others are slaves.

    `acting_enabled`: a name server may show a slave as id 0 while there is no master (enableActingMaster), so that
    the messages at id 0 may end before those that the master has.
    """

    name: str
    cluster: str
    addresses: Mapping[int, str]
    acting_enabled: bool = False

    @property
    def master(self) -> str | None:
        """The address of id 0, if there is one."""
        return self.addresses.get(MASTER_ID)

    @property
    def slave_ids(self) -> list[int]:
        """The ids of the slaves, the smallest first."""
        return sorted(broker_id for broker_id in self.addresses if broker_id > MASTER_ID)


@dataclass(frozen=True, slots=True)
class TopicQueues:
    """A topic's queues at one broker. `perm`: 4 may be read, 2 may be written. `topic_sys_flag`: bit 0 unit topic."""

    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The brokers that have a topic. `order_topic_conf` names the queues of an ordered topic, if a name server keeps
    that.

    `is_static`: its queues are mapped to those of several brokers (RIP-21), so ids and offsets are other ones.
    """

    topic: str
    brokers: Mapping[str, BrokerAddresses]
    queues: Mapping[str, TopicQueues]
    order_topic_conf: str | None = None
    is_static: bool = False

    def read_queues(self) -> list[MessageQueue]:
        """The queues that may be read, sorted."""
        return [
            MessageQueue(self.topic, name, queue_id)
            for name, queues in sorted(self.queues.items())
            if queues.perm & PERM_READ
            for queue_id in range(queues.read_queue_nums)
        ]

    def publish_queues(self) -> list[MessageQueue]:
        """The queues that may be written at brokers with a master, sorted; of an ordered topic exactly those of its
        configuration.
        """
        if self.order_topic_conf:
            return queues_of_order_conf(self.topic, self.order_topic_conf)
        return [
            MessageQueue(self.topic, name, queue_id)
            for name, queues in sorted(self.queues.items())
            if queues.perm & PERM_WRITE and name in self.brokers and self.brokers[name].master is not None
            for queue_id in range(queues.write_queue_nums)
        ]

    def without_master(self) -> list[str]:
        """The brokers whose queues may be written and of which only slaves are registered, sorted."""
        return [
            name
            for name, queues in sorted(self.queues.items())
            if queues.perm & PERM_WRITE and name in self.brokers and self.brokers[name].master is None
        ]


@dataclass(frozen=True, slots=True)
class KnownRoutes:
    """The routes and brokers that a process knows, for another process: plain data, which can be pickled.

    `brokers` has also those of the routes. `masters`: brokers whose masters have just answered.
    """

    routes: Mapping[str, TopicRoute]
    brokers: Mapping[str, BrokerAddresses]
    masters: frozenset[str] = frozenset()


class RegisteredProcess(NamedTuple):
    """A process of a broker, and the address that it has registered, mostly `ip:port`."""

    broker_name: str
    broker_id: int
    address: str


class _Entry(NamedTuple):
    """The route that was last heard, when it was last asked for, and the time to ask again."""

    asked_at_ms: float
    ask_at_ms: float
    route: TopicRoute | None


class RouteTable:
    """The routes that this process knows. Safe for threads: two may ask for the same route at once.

    `wire_name` makes the wire's name of a topic.
    """

    def __init__(
        self,
        name_servers: NameServers,
        timeout_ms: int,
        *,
        wire_name: Callable[[str], str] = str,
        timer: Callable[[], float] = timer_ms,
    ) -> None:
        self._name_servers = name_servers
        self._timeout_ms = timeout_ms
        self._wire_name = wire_name
        self._timer = timer
        # Values are replaced, never changed, so that no lock is needed, which a fork could leave taken.
        self._topics: dict[str, _Entry] = {}
        self._clusters: tuple[float, float, ClusterInfo] | None = None
        # Until then the list of the clusters counts as refused, and the route that has all brokers as heard.
        self._refused_until_ms: float | None = None
        # Broker name -> the topic whose route was the last one to show it. A route knows acting masters; the list of
        # the clusters does not.
        self._shown_by: dict[str, str] = {}
        # Broker name -> the addresses that were told last, by name servers or by another process.
        self._last: dict[str, BrokerAddresses] = {}
        # The last ones that another process has handed over.
        self._handed: dict[str, TopicRoute] = {}
        self._handed_brokers: dict[str, BrokerAddresses] = {}

    def known(self, topics: Iterable[str] = (), brokers: Iterable[str] | None = None) -> KnownRoutes:
        """The known ones of these routes and brokers (by default all), for `take_over` in another process. Nobody is
        asked.
        """
        entries = {topic: self._topics.get(topic) for topic in topics}
        routes = {topic: _plain(entry.route) for topic, entry in entries.items() if entry is not None and entry.route}
        found = {name: one for route in routes.values() for name, one in route.brokers.items()}
        names = list(self._last) if brokers is None else brokers
        found |= {name: _plain_broker(self._last[name]) for name in names if name in self._last}
        return KnownRoutes(routes, found)

    def take_over(self, known: KnownRoutes) -> None:
        """Go on from what another process knew a moment ago, as if the name servers had told it now. While they do not
        tell another one, a route or an address of it stays. The same again changes nothing: this process may know more
        by now.
        """
        for name, broker in known.brokers.items():
            if self._handed_brokers.get(name) != broker:
                self._handed_brokers[name] = self._last[name] = broker
        for topic, route in known.routes.items():
            if self._handed.get(topic) != route:
                self._handed[topic] = route
                self._topics[topic] = _Entry(-math.inf, self._timer() + POLL_EVERY_MS, route)
                self._shown_by.update(dict.fromkeys(route.brokers, topic))

    def last_known(self, name: str) -> BrokerAddresses | None:
        """The addresses of a broker that were told last, however long ago; None: none were. Nobody is asked."""
        return self._last.get(name)

    def route(self, topic: str) -> TopicRoute | None:
        """The route, at most 30 s old unless no name server answers; None: no broker has the topic.

        Raises:
            RemotingError: no name server answers, and the route is not known.
            MQBrokerError: a name server refuses.
        """
        entry = self._topics.get(topic)
        if entry is not None and (self._timer() < entry.ask_at_ms or not self._name_servers.may_answer()):
            return entry.route
        try:
            return self.refresh(topic)
        except RemotingError as error:
            if entry is None:
                raise
            return self._kept(topic, entry, str(error))

    def routes(self, topics: Iterable[str], asks_at_most: int) -> dict[str, TopicRoute | None]:
        """The routes of topics as `route`, of which so many are asked for now; others that are due stay as they are
        known. A route that is not known at all is asked for. Raises as `route`.
        """
        found: dict[str, TopicRoute | None] = {}
        for topic in topics:
            entry = self._topics.get(topic)
            is_due = entry is None or self._timer() >= entry.ask_at_ms
            found[topic] = self.route(topic) if entry is None or (is_due and asks_at_most > 0) else entry.route
            asks_at_most -= is_due
        return found

    def refresh(self, topic: str) -> TopicRoute | None:
        """The route as a name server knows it now; the known one if those that answer refuse. Raises as `route`, and
        RemotingError also for a known route.
        """
        command = ask_route(self._wire_name(topic), standard_json=True)
        answers = self._name_servers.ask(command, self._timeout_ms, SUCCESS)
        answer = answers[-1]
        if answer.code != ResponseCode.SUCCESS:
            return self._without_route(topic, answers)
        route = route_of(topic, TopicRouteData.decode(answer.body))
        now_ms = self._timer()
        self._topics[topic] = _Entry(now_ms, now_ms + POLL_EVERY_MS, route)
        self._shown_by.update(dict.fromkeys(route.brokers, topic))
        self._note(route.brokers.values())
        return route

    def _note(self, brokers: Iterable[BrokerAddresses]) -> None:
        self._last.update({broker.name: broker for broker in brokers if broker.addresses})

    def _without_route(self, topic: str, refusals: Sequence[RemotingCommand]) -> TopicRoute | None:
        """A name server that has just begun refuses, or knows no topic (17). So a known route goes when all say so."""
        entry = self._topics.get(topic)
        others = [one for one in refusals if one.code != ResponseCode.TOPIC_NOT_EXIST]
        have_all_answered = len(refusals) == len(self._name_servers.addresses())
        if entry is not None and (others or not have_all_answered):
            return self._kept(topic, entry, str(broker_error((others or refusals)[-1], "a name server")))
        if len(others) == len(refusals):
            raise broker_error(others[-1], "a name server")
        if entry is not None and topic in self._handed and self._knows_none(self._handed[topic].brokers):
            return self._kept(topic, entry, "the name servers do not know its brokers (yet)")
        self._topics.pop(topic, None)
        return None

    def _knows_none(self, names: Iterable[str]) -> bool:
        """Whether the name servers list none of these brokers, so that they cannot know their topics, either."""
        try:
            registered = self.registered(refresh=True)
        except RemotingError:
            registered = None
        return registered is None or registered.isdisjoint(names)

    def _kept(self, topic: str, entry: _Entry, reason: str) -> TopicRoute | None:
        _log.warning("topic %s: the known route stays in use: %s", topic, reason)
        now_ms = self._timer()
        self._topics[topic] = entry._replace(asked_at_ms=now_ms, ask_at_ms=now_ms + AGAIN_AFTER_MS)
        return entry.route

    def clusters(self, *, refresh: bool = False) -> ClusterInfo:
        """As `listed`. MQBrokerError also with 3, REQUEST_CODE_NOT_SUPPORTED: a proxy refuses, see the module."""
        found = self.listed(refresh=refresh)
        if found is None:
            raise MQBrokerError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, not_listed(_LIST), "a name server")
        return found

    def list_no_broker(self) -> bool:
        """Whether no name server that answers lists a broker: they have just begun. One that gives no list, as a proxy,
        has not, unless it refuses for that reason. RemotingError: none answers.
        """
        answers = self._name_servers.ask(ask_clusters(), self._timeout_ms, ())
        listed = [ClusterInfo.decode(one.body) for one in answers if one.code == ResponseCode.SUCCESS]
        others = [one for one in answers if one.code not in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)]
        return not others and not any(one.broker_addr_table for one in listed)

    def registered(self, *, refresh: bool = False) -> set[str] | None:
        """The names of all brokers that a name server lists; None: unknown, as a proxy does not list them, or the name
        servers refuse. RemotingError: none answers, and they are not known.
        """
        try:
            found = self.listed(refresh=refresh)
        except MQBrokerError as error:
            _log.info("the brokers of the cluster are not known: %s", error)
            return None
        return None if found is None else set(found.broker_addr_table)

    def listed(self, *, refresh: bool = False) -> ClusterInfo | None:
        """All clusters and their brokers (106), at most 30 s old unless no name server answers; None: unknown, because
        a proxy refuses the list.

        Raises:
            RemotingError: no name server answers, and they are not known. MQBrokerError: all refuse otherwise.
        """
        known = self._clusters
        # A name server that has just begun lists none: it is asked again soon.
        until_ms = 0.0 if known is None else known[1] if known[2].broker_addr_table else known[0] + AGAIN_AFTER_MS
        if known is not None and not refresh and self._timer() < until_ms:
            return known[2]
        if known is not None and not self._name_servers.may_answer():
            return known[2]
        try:
            answer = self._name_servers.call(ask_clusters(), self._timeout_ms, _LISTED_OR_PROXY)
            checked(answer, "a name server", _LISTED_OR_PROXY)
        except (RemotingError, MQBrokerError) as error:
            if known is None:
                raise
            _log.warning("the known brokers stay in use: %s", error)
            self._clusters = (known[0], self._timer() + AGAIN_AFTER_MS, known[2])
            return known[2]
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        now_ms = self._timer()
        found = ClusterInfo.decode(answer.body)
        self._clusters = (now_ms, now_ms + POLL_EVERY_MS, found)
        self._note(map(_addresses, found.broker_addr_table.values()))
        return found

    def brokers(self, *, refresh: bool = False) -> dict[str, BrokerAddresses]:
        """All brokers by name, at most 30 s old; at a proxy those that are known from routes. Raises as `route`."""
        if refresh or self._refused_until_ms is None or self._timer() >= self._refused_until_ms:
            found = self.listed(refresh=refresh)
            if found is not None:
                self._refused_until_ms = None
                return {name: _addresses(data) for name, data in found.broker_addr_table.items()}
            self._look_at_all_brokers()
        return {
            name: broker
            for entry in self._topics.copy().values()
            if entry.route is not None
            for name, broker in entry.route.brokers.items()
        }

    def is_of_proxies(self) -> bool:
        """Whether the name servers are proxies: they refuse the list of the clusters. Raises as `route`."""
        self.brokers()
        return self._refused_until_ms is not None

    def _look_at_all_brokers(self) -> None:
        self._refused_until_ms = self._timer() + POLL_EVERY_MS
        try:
            self.refresh(SELF_TEST_TOPIC)
        except MQBrokerError as error:
            _log.info("no list of brokers, and no route of all: those of other routes count: %s", error)

    def broker(self, name: str) -> BrokerAddresses | None:
        """The addresses of a broker, at most 30 s old; None: no name server knows it (any more). Raises as `route`.

        Of a broker that was handed over they are the last ones that were told, and nobody is asked: `not_reached` does.
        """
        if name in self._handed_brokers:
            return self._last[name]
        topic = self._shown_by.get(name)
        if topic is not None:
            route = self.route(topic)
            if route is not None and name in route.brokers:
                return route.brokers[name]
            self._shown_by.pop(name, None)
        return self.brokers().get(name)

    def not_reached(self, name: str) -> BrokerAddresses | None:
        """The addresses of a broker that did not answer: asked for again, unless that was done a moment ago. None also
        if the name servers tell nothing: the caller has an error of its own, which says more of its request.
        """
        oldest_ms = self._timer() - AGAIN_AFTER_MS
        topic = self._shown_by.get(name)
        entry = None if topic is None else self._topics.get(topic)
        try:
            if not self._name_servers.may_answer():
                _log.info("broker %s does not answer, nor does a name server", name)
            elif topic is not None and (entry is None or entry.asked_at_ms <= oldest_ms):
                self.refresh(topic)
            elif topic is None and (self._clusters is None or self._clusters[0] <= oldest_ms):
                self.clusters(refresh=True)
        except (RemotingError, MQBrokerError) as error:
            _log.warning("broker %s does not answer, and its addresses cannot be asked for: %s", name, error)
        try:
            return self.broker(name)
        except (RemotingError, MQBrokerError) as error:
            _log.warning("broker %s does not answer, and its addresses are not known: %s", name, error)
            return None

    def name_of(self, address: str) -> tuple[str, int] | None:
        """The name and id of the broker that has registered the address, as far as it is known; None: nobody has, and
        nobody may dial it.
        """
        return next((one[:2] for one in self.processes() if one.address == address), None)

    def processes(self) -> list[RegisteredProcess]:
        """All processes that are known, those of the routes first; some are named twice."""
        known = [broker for entry in self._topics.values() if entry.route for broker in entry.route.brokers.values()]
        known += self.brokers().values()
        return [
            RegisteredProcess(broker.name, broker_id, address)
            for broker in known
            for broker_id, address in broker.addresses.items()
        ]


def route_of(topic: str, data: TopicRouteData) -> TopicRoute:
    """The route in the body of an answer. A broker may have queues here, and no address (any more)."""
    brokers = {one.broker_name: _addresses(one) for one in data.broker_datas}
    queues = {
        one.broker_name: TopicQueues(one.read_queue_nums, one.write_queue_nums, one.perm, one.topic_sys_flag)
        for one in data.queue_datas
    }
    return TopicRoute(
        topic,
        MappingProxyType(brokers),
        MappingProxyType(queues),
        data.order_topic_conf or None,
        bool(data.topic_queue_mapping_by_broker),
    )


def _addresses(data: BrokerData) -> BrokerAddresses:
    return BrokerAddresses(
        data.broker_name, data.cluster or "", MappingProxyType(dict(data.broker_addrs)), bool(data.enable_acting_master)
    )


def _plain(route: TopicRoute) -> TopicRoute:
    brokers = {name: _plain_broker(one) for name, one in route.brokers.items()}
    return replace(route, brokers=brokers, queues=dict(route.queues))


def _plain_broker(broker: BrokerAddresses) -> BrokerAddresses:
    """The same with a mapping that can be pickled."""
    return replace(broker, addresses=dict(broker.addresses))
