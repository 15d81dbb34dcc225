"""A cluster of RocketMQ brokers, in calls: routes of topics, and brokers called by name (MQClientInstance.java)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from types import MappingProxyType, TracebackType
from typing import Final, Self

from rmq_store import real_time
from rmq_store.errors import UnknownTopicError, did_you_mean
from rmq_store.protocol.answers import is_away, tells_nothing
from rmq_store.protocol.bodies.routes import ClusterInfo, TopicList
from rmq_store.protocol.errors import MQBrokerError, RemotingConnectError, RemotingError, ResponseCode
from rmq_store.protocol.proxy_answers import not_listed
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.pull_answers import FrameArea
from rmq_store.real_time import load_under_real_time
from rmq_store.remoting.cluster import names
from rmq_store.remoting.cluster.name_servers import NameServers, Probes, timer_ms
from rmq_store.remoting.cluster.routes import MASTER_ID, BrokerAddresses, KnownRoutes, RouteTable, TopicRoute
from rmq_store.remoting.questions.answer import SUCCESS, broker_error, checked
from rmq_store.remoting.questions.brokers import ask_runtime_info
from rmq_store.remoting.questions.name_servers import ask_topics
from rmq_store.remoting.transport.calls import Arrivals, Call
from rmq_store.remoting.transport.client import RemotingClient
from rmq_store.remoting.transport.pull_round import PullRound
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.remoting.transport.template import RequestTemplate

_LISTED_OR_PROXY: Final = (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
IN_FLIGHT_MAX: Final = 512
"""So many requests wait for answers at once, whatever the number of queues."""


class Cluster:
    """The brokers that the name servers of `settings` know. Safe for threads; a forked child opens its own connections.

    Topics and groups have no namespace here: `wire_topic` and `wire_group` add that of the settings. `client` is closed
    by `close` if the cluster made it. A call raises RemotingError if no name server answers.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        *,
        client: RemotingClient | None = None,
        timer: Callable[[], float] = timer_ms,
    ) -> None:
        load_under_real_time()
        self.settings = settings
        self.timer = timer
        self.client = RemotingClient(settings) if client is None else client
        self._closes = client is None
        self.name_servers = NameServers(settings.name_servers, self.client, timer=timer)
        self.routes = RouteTable(self.name_servers, settings.timeout_ms, wire_name=self.wire_topic, timer=timer)
        # Learned by readers of this process. (Broker, id) -> until when it is not asked for messages; broker ->
        # how many messages it gives in one answer; addresses of brokers, and of served stores, that have timers.
        self.held_off: dict[tuple[str, int], float] = {}
        self.messages_per_pull: dict[str, int] = {}
        self.with_timers: set[str] = set()
        self.served_with_timers: set[str] = set()
        # The brokers that do not evaluate conditions on properties (enablePropertyFilter).
        self.without_sql92: set[str] = set()

    def close(self) -> None:
        """Close the connections. Does nothing the second time."""
        if self._closes:
            self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- names ------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The names of the clusters behind the name servers, sorted, with commas; mostly one, as DefaultCluster."""
        found = self.routes.listed()
        if found is not None:
            return ",".join(sorted(found.cluster_addr_table))
        # A proxy: the brokers of routes tell their clusters.
        return ",".join(sorted({broker.cluster for broker in self.routes.brokers().values() if broker.cluster}))

    def wire_topic(self, topic: str) -> str:
        """The topic's name on the wire and in records."""
        return names.with_namespace(self.settings.namespace, topic)

    def wire_group(self, group: str) -> str:
        """The group's name on the wire."""
        return names.with_namespace(self.settings.namespace, group)

    def plain_name(self, name: str) -> str:
        """The name that users see of a topic or a group."""
        return names.without_namespace(self.settings.namespace, name)

    def plain_names(self, wire_names: Iterable[str]) -> list[str]:
        """The names that users see of those topics or groups that are in the namespace, sorted."""
        namespace = self.settings.namespace
        return sorted({self.plain_name(name) for name in wire_names if names.is_in_namespace(namespace, name)})

    # -- routes -----------------------------------------------------------------------------------------------------

    def take_over(self, known: KnownRoutes) -> None:
        """Go on from what another process knew a moment ago (`RouteTable.take_over`). Reads go to the masters that have
        answered it, also if they did not answer here a moment before.
        """
        self.routes.take_over(known)
        for name in known.masters:
            self.held_off.pop((name, MASTER_ID), None)

    def route(self, topic: str) -> TopicRoute | None:
        """The topic's route, at most 30 s old; None: no broker has the topic."""
        return self.routes.route(topic)

    def routes_of(self, topics: Collection[str], asks_at_most: int) -> dict[str, TopicRoute | None]:
        """The routes of topics, of which so many are asked for now (`RouteTable.routes`)."""
        return self.routes.routes(topics, asks_at_most)

    def refresh_route(self, topic: str) -> TopicRoute | None:
        """The topic's route as a name server knows it now."""
        return self.routes.refresh(topic)

    def known_route(self, topic: str) -> TopicRoute:
        """The topic's route. UnknownTopicError: no broker has the topic."""
        route = self.route(topic)
        if route is None:
            raise UnknownTopicError(f"no broker of the cluster has a topic {topic!r}{self.did_you_mean(topic)}")
        return route

    def did_you_mean(self, topic: str) -> str:
        """The end of an error about an unknown topic, see `errors.did_you_mean`. "" also if the topics are not told: by
        a proxy, or without rights.
        """
        try:
            return did_you_mean(topic, self.topics())
        except (RemotingError, MQBrokerError):
            return ""

    def topics(self) -> list[str]:
        """The topics of the namespace, sorted, those of the system and of groups, too (206)."""
        answer = self.name_servers.call(ask_topics(), self.settings.timeout_ms, _LISTED_OR_PROXY)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            reason = not_listed("GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206), the list of topics")
            raise MQBrokerError(answer.code, reason, "a name server", answer.came_from)
        checked(answer, "a name server")
        return self.plain_names(TopicList.decode(answer.body).topic_list)

    def cluster_info(self) -> ClusterInfo:
        """The clusters and their brokers, at most 30 s old (106). MQBrokerError: refused, as by a proxy."""
        return self.routes.clusters()

    def broker_names(self) -> list[str]:
        """The names of all brokers, sorted; at a proxy of those that are known from routes (`RouteTable.brokers`)."""
        return sorted(self.routes.brokers())

    def is_served_store(self, broker_name: str) -> bool:
        """Whether the master is known as a served store with timers (`timers.refuse_timers`)."""
        return bool(self.served_with_timers) and self.address(broker_name) in self.served_with_timers

    # -- calls ------------------------------------------------------------------------------------------------------

    def call_broker(
        self,
        broker_name: str,
        command: RemotingCommand,
        timeout_ms: int | None = None,
        *,
        broker_id: int = MASTER_ID,
        ok: Collection[int] | None = SUCCESS,
    ) -> RemotingCommand:
        """Ask one process of a broker, the master by default, and wait at most `timeout_ms` (default: the settings').

        If it cannot be reached, and has another address by now, that is tried once.

        Raises:
            MQBrokerError: an answer whose code is not in `ok`; None: it may have any.
            RemotingConnectError: no broker has seen the request; also if there is no such process.
            RemotingError: connection lost, or no answer in time: whether it was carried out is unknown.
        """
        wait_ms = self.settings.timeout_ms if timeout_ms is None else timeout_ms
        address = self.address(broker_name, broker_id)
        try:
            answer = self.client.call(address, command, wait_ms)
        except RemotingConnectError as error:
            other = _address_of(self.routes.not_reached(broker_name), broker_id)
            if other is None or other == address:
                raise _named(error, broker_name, broker_id) from error
            answer = self.client.call(other, command, wait_ms)
        except RemotingError as error:
            self.routes.not_reached(broker_name)
            raise _named(error, broker_name, broker_id) from error
        return answer if ok is None else checked(answer, broker_name, ok)

    def submit_broker(
        self, broker_name: str, command: RemotingCommand, timeout_ms: int | None = None, *, broker_id: int = MASTER_ID
    ) -> Future[RemotingCommand]:
        """As `call_broker`, without waiting and in one try. The answer may have any code (`checked`); the future has
        the errors of the connection. RemotingConnectError: there is no such process.
        """
        wait_ms = self.settings.timeout_ms if timeout_ms is None else timeout_ms
        return self.client.submit(self.address(broker_name, broker_id), command, wait_ms)

    def submit_round(
        self,
        broker_name: str,
        template: RequestTemplate,
        pulls: Sequence[tuple[int, int]],
        area: FrameArea,
        done: Callable[[Call], object],
        *,
        broker_id: int = MASTER_ID,
    ) -> PullRound:
        """Send pulls of one template together, each (offset, count); `done` gets the round when all have ended. If
        there is no such process, they have ended on return.
        """
        try:
            address = self.address(broker_name, broker_id)
        except RemotingError as error:
            return PullRound.unsent(template, pulls, area, error, done)
        now = real_time.monotonic()
        return self.client.submit_round(
            PullRound(address, template, pulls, area, self.settings.timeout_ms, now, done)
        )

    def address(self, broker_name: str, broker_id: int = MASTER_ID) -> str:
        """The address that a broker's process has registered.

        Raises:
            RemotingConnectError: no name server knows such a process now, or they have just begun.
        """
        try:
            broker = self.routes.broker(broker_name)
        except MQBrokerError as error:
            if not tells_nothing(error):
                raise
            raise RemotingConnectError(f"the address of broker {broker_name} is not known: {error}") from error
        found = _address_of(broker, broker_id)
        if found is None:
            found = _address_of(self.routes.not_reached(broker_name), broker_id)
        if found is None:
            what = "no master" if broker_id == MASTER_ID else f"no process of the id {broker_id}"
            raise RemotingConnectError(f"broker {broker_name} has {what} in the routes of the name servers")
        return found

    def probes(self, broker_name: str, now_ms: float, broker_id: int = MASTER_ID) -> Probes:
        """Probes (28) of a process that has not answered, each at the address that it has then: it may have moved. A
        refusal for want of rights is an answer; "busy" and "shutting down" are none.
        """

        def send() -> list[Future[RemotingCommand]]:
            try:
                broker = self.routes.not_reached(broker_name)
            except (RemotingError, MQBrokerError):  # no name server answers, and the broker is not known
                broker = None
            address = None if broker is None else broker.addresses.get(broker_id)
            if address is None:
                return []
            return [self.client.submit(address, ask_runtime_info(), self.settings.timeout_ms)]

        return Probes(send, now_ms, _is_there)

    def call_all(
        self,
        commands: Sequence[tuple[str, RemotingCommand]],
        timeout_ms: int | None = None,
        *,
        broker_ids: Mapping[str, int] = MappingProxyType({}),
    ) -> list[RemotingCommand | RemotingError]:
        """Ask brokers at once, any number of requests each: (broker name, request). `broker_ids` names processes other
        than the masters. An answer may have any code (`checked`); if there is none, the error takes its place.
        """
        answers: list[RemotingCommand | RemotingError] = []
        # Not futures: see `RemotingClient.call`.
        arrivals = Arrivals()
        waiting: deque[tuple[str, Call | RemotingError]] = deque()
        unreachable: dict[str, RemotingError] = {}
        for number in range(len(commands) + IN_FLIGHT_MAX):
            if number < len(commands):
                name, command = commands[number]
                waiting.append((name, self._submitted(name, command, timeout_ms, broker_ids, unreachable, arrivals)))
            if waiting and (number >= len(commands) or len(waiting) >= IN_FLIGHT_MAX):
                broker_name, call = waiting.popleft()
                answers.append(self._outcome(broker_name, call, broker_ids, unreachable, arrivals))
        return answers

    def _submitted(
        self,
        broker_name: str,
        command: RemotingCommand,
        timeout_ms: int | None,
        broker_ids: Mapping[str, int],
        unreachable: dict[str, RemotingError],
        arrivals: Arrivals,
    ) -> Call | RemotingError:
        if broker_name in unreachable:  # one that does not answer is waited for once, and not for each queue
            return unreachable[broker_name]
        try:
            address = self.address(broker_name, broker_ids.get(broker_name, MASTER_ID))
        except RemotingError as error:
            unreachable[broker_name] = error
            return error
        wait_ms = self.settings.timeout_ms if timeout_ms is None else timeout_ms
        (call,) = self.client.submit_all(address, [command], arrivals.notice, wait_ms)
        return call

    def _outcome(
        self,
        broker_name: str,
        call: Call | RemotingError,
        broker_ids: Mapping[str, int],
        unreachable: dict[str, RemotingError],
        arrivals: Arrivals,
    ) -> RemotingCommand | RemotingError:
        if isinstance(call, RemotingError):
            return call
        arrivals.wait(call)
        try:
            return call.answer()
        except RemotingError as error:
            if broker_name not in unreachable:
                self.routes.not_reached(broker_name)
                unreachable[broker_name] = _named(error, broker_name, broker_ids.get(broker_name, MASTER_ID))
            return unreachable[broker_name]


def _is_there(answer: RemotingCommand) -> bool:
    return answer.code == ResponseCode.SUCCESS or not is_away(broker_error(answer, ""))


def _address_of(broker: BrokerAddresses | None, broker_id: int) -> str | None:
    return None if broker is None else broker.addresses.get(broker_id)


def _named(error: RemotingError, broker_name: str, broker_id: int) -> RemotingError:
    """The error, with the broker's name, which the transport does not know."""
    process = "master" if broker_id == MASTER_ID else f"slave {broker_id}"
    return type(error)(f"broker {broker_name} ({process}): {error}")
