"""Brokers that should be there: those that an option requires, those that had queues before, and those that register
soon. Control plane.

A name server forgets a broker that is away. There is only the memory of this process, and of an ordered topic the list
of its queues, which name servers keep (orderTopicConf).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from rmq_store.cluster import (
    BrokerAwayError,
    Cluster,
    MQBrokerError,
    RemotingError,
    brokers_away,
    require_brokers,
    tells_nothing,
    unanswered,
)

_log = logging.getLogger(__name__)

REQUIRED_EVERY_MS: Final = 1000.0
"""So long a broker that is required, and told no ends, counts as there after its answer."""


REGISTERED_AFTER_MS: Final = 65_000.0
"""So long nobody concludes anything from a name server that has just begun: brokers register every 30 s, and one of
5.x refuses for 45 s (waitSecondsForService).
"""


class RequiredBrokers:
    """Looks for required brokers: at the first check all of them, later those that have told nothing.

    All of them must be known to one name server once (`require_brokers`). From then on the brokers themselves tell
    whether they are there: name servers may begin again, or be away.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._were_there = False
        # The brokers that were asked last, when, and the error that was found.
        self._asked: tuple[frozenset[str], float, BrokerAwayError | None] = frozenset(), 0.0, None

    def check(self, names: Sequence[str], topics: Collection[str], heard: Collection[str], now_ms: float) -> None:
        """Return if all of `names` are there. `heard`: brokers whose masters have just answered for `topics`.

        Raises as `require_brokers`.
        """
        silent = frozenset(names).difference(heard)
        if not silent:
            return
        known, at_ms, found = self._asked
        if not silent <= known or now_ms - at_ms >= REQUIRED_EVERY_MS:
            found = self._look(sorted(silent), topics)
            self._asked = silent, now_ms, found
        if found is not None and not silent.isdisjoint(found.broker_names):
            raise found.with_traceback(None)

    def _look(self, names: Sequence[str], topics: Collection[str]) -> BrokerAwayError | None:
        try:
            if self._were_there:
                if away := unanswered(self._cluster, names):
                    return brokers_away(away)
            else:
                require_brokers(self._cluster, names, topics)
        except BrokerAwayError as error:
            return error
        self._were_there = True
        return None


class Registrations:
    """Waits at the start of a reader for brokers to register at name servers that have just begun. Times are in ms, of
    a clock that never goes back.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._is_over = False
        self.has_waited = False
        self._since_ms: float | None = None
        self._asked_ms = 0.0

    def are_awaited(self, topics: Collection[str], now_ms: float) -> bool:
        """Whether the name servers know no broker yet, so that nobody can tell of `topics`. It is asked for once a
        second. False for ever as soon as they know one, or REGISTERED_AFTER_MS later.

        Raises:
            RemotingError: no name server answers. MQBrokerError: they refuse, and have not just begun.
        """
        if self._is_over or not topics:
            return self.has_waited
        if self._since_ms is not None and now_ms - self._asked_ms < REQUIRED_EVERY_MS:
            return True
        self._asked_ms = now_ms
        since_ms = now_ms if self._since_ms is None else self._since_ms
        if now_ms - since_ms >= REGISTERED_AFTER_MS or not knows_nothing(self._cluster, min(topics)):
            self._is_over = True
            if self._since_ms is not None:
                _registered(self._cluster)  # the list of before was empty
            return False
        if self._since_ms is None:
            _log.warning(
                "the name servers %s have just begun, and know no broker yet: %.0f s long it is waited for brokers "
                "to register", ";".join(self._cluster.settings.name_servers), REGISTERED_AFTER_MS / 1000,
            )  # fmt: skip
            self._since_ms, self.has_waited = now_ms, True
        return True


def knows_nothing(cluster: Cluster, topic: str) -> bool:
    """Whether no name server that answers knows the topic, or any broker: they have just begun.

    Raises:
        RemotingError: no name server answers. MQBrokerError: they refuse, and have not just begun.
    """
    try:
        if cluster.routes.route(topic) is not None:
            return False
    except MQBrokerError as error:
        if not tells_nothing(error):
            raise
        return True  # 5.x refuses routes until it is ready, and lists brokers
    return cluster.routes.list_no_broker()


class KnownBrokers:
    """The brokers that this process has seen with queues of each topic, of the clusters behind some name servers."""

    _of_process: Final[dict[tuple[tuple[str, ...], str], KnownBrokers]] = {}

    def __init__(self) -> None:
        self._brokers: dict[str, set[str]] = {}

    @classmethod
    def of(cls, cluster: Cluster) -> KnownBrokers:
        """The brokers of the cluster that this one belongs to; they outlive its connections."""
        settings = cluster.settings
        return cls._of_process.setdefault((settings.name_servers, settings.namespace), cls())

    def missing(
        self, cluster: Cluster, now: Mapping[str, Collection[str]], known: Mapping[str, Collection[str]]
    ) -> dict[str, set[str]]:
        """By topic the brokers that had queues of it, as `known` or earlier calls say, have none `now`, and are not
        registered. A broker that is registered, and has no queue of the topic any more, is forgotten.
        """
        found: dict[str, set[str]] = {}
        for topic, brokers in now.items():
            seen = self._brokers.setdefault(topic, set())
            seen |= {*brokers, *known[topic], *_listed(cluster, topic)}
            if gone := seen.difference(brokers):
                found[topic] = gone
        registered = _registered(cluster) if found else set()
        for topic in found:
            self._brokers[topic] -= found[topic] & registered
        return {topic: gone - registered for topic, gone in found.items() if gone - registered}


def _listed(cluster: Cluster, topic: str) -> set[str]:
    """The brokers of an ordered topic, as name servers keep them also while a broker is away."""
    route = cluster.route(topic)
    if route is None or not route.order_topic_conf:
        return set()
    return {queue.broker_name for queue in route.publish_queues()}


def _registered(cluster: Cluster) -> set[str]:
    try:
        return cluster.routes.registered(refresh=True) or set()
    except RemotingError as error:
        _log.info("the brokers of the cluster are not known: %s", error)
        return set()
