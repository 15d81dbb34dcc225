"""The cluster as one plan of a stream sees it: who does not answer is away for this plan. Control plane.

A plan is one call of Spark: `latestOffset`, `partitions`, `commit`, `initialOffset`. All its questions go through one
`Look`, whoever asks them: ends (202, 31, 30), kinds (351), messages at positions (11), places by time (29), figures
(28); offsets, names, locks and members of a group (14, 15, 208, 201, 41, 34, 203). So no question can forget a rule:

    begin(silent)                    a plan begins. It does not ask processes that are silent since an earlier one:
                                     see `outages`
    no answer, no address, busy      `is_away` is the one judgement. The process is asked no more in this plan
    all processes of a broker        the broker is `away`. A question to it has its first error at once. While a slave
                                     answers it is not
    it answers at another address    it is there
    another error                    not looked at: no rights, no such topic, bytes that do not decode end the query
    waiting                          for all who are silent BOUND_MS together; beyond that LEAST_MS for each question

`ClusterReader.planned` begins the plan, and begins it again without a broker that goes between two questions. Queues of
brokers that are away have no range in a plan (`ClusterReader.ranges`): so nobody compares, commits or closes them, or
counts them as lost, and `StreamPlan.held` keeps their positions. Tasks, and the thread that renews leases, ask the
cluster itself.

Name servers forget a broker that is away, and know nothing when they have just begun. So a route that was seen stays
(as in MQClientInstance.java, updateTopicRouteInfoFromNameServer), and so does an address: that a topic is deleted only
its brokers say (17), see `ends`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from rmq_store.cluster import (
    MASTER_ID,
    SUCCESS,
    Cluster,
    MQBrokerError,
    RemotingCommand,
    RemotingError,
    ResponseCode,
    TopicRoute,
    broker_error,
    checked,
    is_away,
    tells_nothing,
)

BrokerError = MQBrokerError | RemotingError

BOUND_MS: Final = 2500
"""So long a plan waits for brokers that do not answer, all together."""
LEAST_MS: Final = 500
"""Time for the answer of a broker that lives, when the bound is used up."""
MISSING_ROUTE_EVERY_MS: Final = 1000.0
Process = tuple[str, int]
"""A broker's name, and the id of one of its processes."""


class Silence(NamedTuple):
    """The first error of a process that does not answer, and where it was asked; None: it has no address."""

    error: BrokerError
    address: str | None


class Look(Cluster):
    """`cluster` as the plan of now sees it; for one thread. Connections, routes, and what readers have learned are
    those of the cluster, which stays as it is for others: a lease is renewed whatever a plan has seen.
    """

    def __init__(self, cluster: Cluster, bound_ms: int = BOUND_MS) -> None:
        vars(self).update(vars(cluster))
        self._closes = False
        self._bound_ms = bound_ms
        self._waited_ms = 0.0
        self._silent: dict[Process, Silence] = {}
        self._away: dict[str, BrokerError] = {}
        # The addresses at which processes were asked last in this plan.
        self._asked_at: dict[Process, str] = {}
        # Of all plans: the routes that name servers have shown.
        self._seen: dict[str, TopicRoute] = {}
        # When a name server did not know a topic.
        self._missing_ms: dict[str, float] = {}
        # The last address of each process that this reader has asked: name servers show a broker without those that
        # have gone.
        self._addresses_seen: dict[str, Mapping[int, str]] = {}

    def begin(self, silent: Mapping[Process, Silence] = MappingProxyType({})) -> None:
        """A plan begins. The processes that are `silent` are not asked in it, unless they have another address now."""
        self._waited_ms = 0.0
        self._silent = dict(silent)
        self._away.clear()
        self._asked_at.clear()

    @property
    def silent(self) -> Mapping[Process, Silence]:
        """The processes that have not answered, in this plan or since before."""
        return self._silent

    @property
    def away(self) -> Mapping[str, BrokerError]:
        """The brokers that are away in this plan, by name, each with its first error: no process of theirs that is
        registered now has answered.
        """
        for (name, _), silence in self._silent.items():
            if name not in self._away and all((name, one) in self._silent for one in self._process_ids(name)):
                self._away[name] = silence.error
        return self._away

    # -- routes -------------------------------------------------------------------------------------------------------

    def route(self, topic: str) -> TopicRoute | None:
        """As `Cluster.route`; a route that was seen stays until another one is, or until `forget_route`."""
        return self.routes_of([topic], 1)[topic]

    def routes_of(self, topics: Collection[str], asks_at_most: int) -> dict[str, TopicRoute | None]:
        """As `Cluster.routes_of`, with routes that were seen. A name server that does not know them is asked for them
        once in a while.
        """
        found: dict[str, TopicRoute | None] = {}
        missing_since_ms = self.timer() - MISSING_ROUTE_EVERY_MS
        for topic in topics:
            if topic in self._seen and self._missing_ms.get(topic, missing_since_ms) > missing_since_ms:
                found[topic] = self._seen[topic]
        others = [topic for topic in topics if topic not in found]
        try:
            asked = super().routes_of(others, asks_at_most)
        except (RemotingError, MQBrokerError) as error:
            # One that has just begun, and refuses, knows nothing of a topic that was never seen, too.
            if not tells_nothing(error) or (is_away(error) and not self._seen.keys() >= set(others)):
                raise
            asked = dict.fromkeys(others)
        return found | {topic: self._with_seen(topic, route) for topic, route in asked.items()}

    def forget_route(self, topic: str) -> None:
        """All brokers say that they do not have the topic: its route is what name servers say from now on."""
        self._seen.pop(topic, None)

    def _with_seen(self, topic: str, route: TopicRoute | None) -> TopicRoute | None:
        if route is None:
            self._missing_ms[topic] = self.timer()
            return self._seen.get(topic)
        self._seen[topic] = route
        return route

    def address(self, broker_name: str, broker_id: int = MASTER_ID) -> str:
        """As `Cluster.address`, or one that was registered before. Raises the error of a process that is asked no more
        in this plan.
        """
        silence = self._silent.get((broker_name, broker_id))
        if silence is not None and silence.address is None:
            raise _as_silence(silence.error)
        try:
            found = super().address(broker_name, broker_id)
        except (RemotingError, MQBrokerError) as error:
            known = self.routes.last_known(broker_name)
            told = None if known is None else known.addresses.get(broker_id)
            before = self._addresses_seen.get(broker_name, {}).get(broker_id, told)
            if before is None and not tells_nothing(error):
                raise
            if before is None:
                self._asked_at.pop((broker_name, broker_id), None)
                self._note(broker_name, broker_id, error)
                raise _as_silence(error) from error
            found = before
        if silence is not None and silence.address == found:
            raise _as_silence(silence.error)
        self._asked_at[broker_name, broker_id] = found
        seen = self._addresses_seen.get(broker_name, {})
        if seen.get(broker_id) != found:
            self._addresses_seen[broker_name] = {**seen, broker_id: found}
        return found

    # -- calls --------------------------------------------------------------------------------------------------------

    def call_broker(
        self,
        broker_name: str,
        command: RemotingCommand,
        timeout_ms: int | None = None,
        *,
        broker_id: int = MASTER_ID,
        ok: Collection[int] | None = SUCCESS,
    ) -> RemotingCommand:
        """As `Cluster.call_broker`."""
        began_ms = self.timer()
        try:
            answer = super().call_broker(broker_name, command, self._limit_ms(timeout_ms), broker_id=broker_id, ok=None)
        except RemotingError as error:
            self._waited_ms += self.timer() - began_ms
            self._told(broker_name, broker_id, error)
            raise
        self._told(broker_name, broker_id, answer)
        return answer if ok is None else checked(answer, broker_name, ok)

    def call_all(
        self,
        commands: Sequence[tuple[str, RemotingCommand]],
        timeout_ms: int | None = None,
        *,
        broker_ids: Mapping[str, int] = MappingProxyType({}),
    ) -> list[RemotingCommand | RemotingError]:
        """As `Cluster.call_all`."""
        began_ms = self.timer()
        answers = super().call_all(commands, self._limit_ms(timeout_ms), broker_ids=broker_ids)
        # One that was silent, or busy, once is away: later answers of it do not change that.
        told: dict[str, RemotingCommand | RemotingError] = {}
        for (broker_name, _), given in zip(commands, answers, strict=True):
            if broker_name not in told or _silence_in(told[broker_name], broker_name) is None:
                told[broker_name] = given
        for broker_name, given in told.items():
            self._told(broker_name, broker_ids.get(broker_name, MASTER_ID), given)
        if any(isinstance(given, RemotingError) for given in told.values()):
            self._waited_ms += self.timer() - began_ms
        return answers

    def _limit_ms(self, timeout_ms: int | None) -> int:
        given_ms = self.settings.timeout_ms if timeout_ms is None else timeout_ms
        return min(given_ms, max(LEAST_MS, int(self._bound_ms - self._waited_ms)))

    def _told(self, broker_name: str, broker_id: int, given: RemotingCommand | RemotingError) -> None:
        error = _silence_in(given, broker_name)
        if error is not None:
            self._note(broker_name, broker_id, error)
        elif isinstance(given, RemotingCommand):
            self._silent.pop((broker_name, broker_id), None)
            self._away.pop(broker_name, None)

    def _note(self, broker_name: str, broker_id: int, error: BrokerError) -> None:
        before = self._silent.get((broker_name, broker_id))
        at = self._asked_at.get((broker_name, broker_id))
        self._silent[broker_name, broker_id] = Silence(error if before is None else before.error, at)

    def _process_ids(self, broker_name: str) -> Collection[int]:
        try:
            broker = self.routes.broker(broker_name)
        except (RemotingError, MQBrokerError):
            broker = None
        return () if broker is None else broker.addresses


def _silence_in(given: RemotingCommand | RemotingError, broker_name: str) -> BrokerError | None:
    """The error that an outcome stands for, if the broker has told nothing now and may tell it later."""
    if isinstance(given, RemotingCommand) and given.code == ResponseCode.SUCCESS:
        return None
    error = given if isinstance(given, RemotingError) else broker_error(given, broker_name)
    return error if is_away(error) else None


def _as_silence(error: BrokerError) -> RemotingError:
    """The error as one of a call without an answer. It is raised in plan after plan, so without the way that it has
    taken: that would hold the frames of all of them.
    """
    return error.with_traceback(None) if isinstance(error, RemotingError) else RemotingError(str(error))
