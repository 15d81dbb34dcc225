"""Brokers that should be there: those that an option requires, and those that had queues before. Control plane.

A name server forgets a broker that is away. There is only the memory of this process, and of an ordered topic the list
of its queues, which name servers keep (orderTopicConf).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from rmq_store.cluster import Cluster, RemotingError, require_brokers

_log = logging.getLogger(__name__)

REQUIRED_EVERY_MS: Final = 1000.0
"""So long a broker that is required, and told no ends, counts as there after its answer."""


class RequiredBrokers:
    """Looks for required brokers: at the first check all of them, later those that have told nothing."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        # The brokers that were asked last, and when.
        self._asked: tuple[frozenset[str], float] | None = None

    def check(self, names: Sequence[str], topics: Collection[str], heard: Collection[str], now_ms: float) -> None:
        """Return if all of `names` are there. `heard`: brokers whose masters have just answered for `topics`.

        Raises as `require_brokers`.
        """
        silent = frozenset(names).difference(heard)
        if not silent:
            return
        known, at_ms = self._asked if self._asked is not None else (frozenset(), now_ms)
        if silent <= known and now_ms - at_ms < REQUIRED_EVERY_MS:
            return
        require_brokers(self._cluster, sorted(silent), topics)
        self._asked = silent, now_ms


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
