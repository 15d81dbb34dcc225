"""Brokers without which a caller does not go on: they must be known to the name servers, and answer.

A name server forgets a broker whose last process is gone, with its queues of all topics (RouteInfoManager.java,
onChannelDestroy). So nothing that a new process can ask tells that a broker is away: its caller must name it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from rmq_store.errors import UsageError
from rmq_store.protocol.errors import BrokerAwayError, MQBrokerError, RemotingError
from rmq_store.protocol.wire.admin_headers import GetBrokerRuntimeInfoRequestHeader
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.header_fields import request
from rmq_store.remoting.cluster.cluster import Cluster, broker_error
from rmq_store.remoting.cluster.routes import TopicRoute


def parse_broker_names(text: str) -> tuple[str, ...]:
    """Names of brokers, separated by "," or ";", each once, in the order of the text.

    Raises:
        UsageError: no name, an address in place of a name, or a name with blanks.
    """
    names = tuple(dict.fromkeys(part.strip() for part in re.split("[;,]", text) if part.strip()))
    if not names:
        raise UsageError("no broker is named; write names such as broker-a,broker-b")
    for name in names:
        if re.search(r":[0-9]*$", name):
            raise UsageError(f"{name!r} is an address or a queue; write the broker's name (brokerName), as broker-a")
        if not name.isprintable() or re.search(r"\s", name):
            raise UsageError(f"{name!r} is no name of a broker")
    return names


def require_brokers(cluster: Cluster, names: Sequence[str], topics: Collection[str] = ()) -> None:
    """Return if each of these brokers is known to a name server and answers, its slave if its master does not. The
    routes of `topics` are asked for again, so that they have what these brokers have registered. A broker need not have
    any of the topics.

    A refusal for want of rights is an answer. One that says that the broker is busy, or shuts down, is none.

    Raises:
        BrokerAwayError: names the brokers that are missing, and says what is known of each.
        RemotingError: no name server answers.
    """
    routes = [route for route in map(cluster.refresh_route, sorted(topics)) if route is not None]
    known = [name for name in names if _is_known(cluster, routes, name)]
    away = {
        name: f"no name server of {';'.join(cluster.settings.name_servers)} knows it"
        for name in names
        if name not in known
    }
    asked = [(name, request(GetBrokerRuntimeInfoRequestHeader())) for name in known]
    for (name, _), answer in zip(asked, cluster.read_all(asked), strict=True):
        why = _why_it_counts_as_away(name, answer)
        if why:
            away[name] = why
    if away:
        raise brokers_away(away)


def brokers_away(reasons: Mapping[str, str]) -> BrokerAwayError:
    """The error for required brokers that are away, each with what is known of it."""
    told = "; ".join(f"{name}: {why}" for name, why in reasons.items())
    return BrokerAwayError(f"required brokers are away, so nothing is read: {told}", tuple(reasons))


def _is_known(cluster: Cluster, routes: Sequence[TopicRoute], name: str) -> bool:
    if any(name in route.brokers for route in routes):
        return True
    try:
        return name in cluster.routes.clusters(refresh=True).broker_addr_table
    except MQBrokerError:  # a proxy does not tell of the cluster (106): the routes of topics are what there is
        return False


def _why_it_counts_as_away(name: str, answer: RemotingCommand | RemotingError) -> str:
    """"" if the broker has answered."""
    if isinstance(answer, RemotingError):
        return str(answer)
    refusal = broker_error(answer, name)
    return str(refusal) if refusal.retryable else ""
