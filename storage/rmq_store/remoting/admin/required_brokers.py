"""Brokers without which a caller does not go on: they must be known to the name servers, and answer.

A name server forgets a broker whose last process is gone, with its queues of all topics (RouteInfoManager.java,
onChannelDestroy). So nothing that a new process can ask tells that a broker is away: its caller must name it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from rmq_store.errors import UsageError
from rmq_store.protocol.errors import BrokerAwayError
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.gather import At, Question, gather
from rmq_store.remoting.questions.answer import checked
from rmq_store.remoting.questions.brokers import ask_runtime_info


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
    """Return if each of these brokers is known to one name server and answers, its slave if its master does not. This
    name server is asked from then on, and has told the routes of `topics`: all rows are planned from one table. A
    broker need not have any of the topics.

    A refusal for want of rights is an answer. One that says that the broker is busy, or shuts down, is none.

    Raises:
        BrokerAwayError: names the brokers that are missing, and says what is known of each.
        RemotingError: no name server answers.
    """
    away = _unknown(cluster, names, topics)
    away |= unanswered(cluster, [name for name in names if name not in away])
    if away:
        raise brokers_away(away)


def unanswered(cluster: Cluster, names: Sequence[str]) -> dict[str, str]:
    """Those of the brokers of which neither the master nor a slave answers, each with the reason (28)."""
    asked = {name: Question(name, ask_runtime_info(), checked) for name in names}
    return {name: str(error) for name, error in gather(cluster, asked, At.READABLE).away.items()}


def brokers_away(reasons: Mapping[str, str]) -> BrokerAwayError:
    """The error for required brokers that are away, each with what is known of it."""
    told = "; ".join(f"{name}: {why}" for name, why in reasons.items())
    return BrokerAwayError(f"required brokers are away, so nothing is read: {told}", tuple(reasons))


def _unknown(cluster: Cluster, names: Sequence[str], topics: Collection[str]) -> dict[str, str]:
    """The brokers that are not known, and why each of them counts as away; none if one name server knows all."""
    missing: list[set[str]] = []
    for _ in cluster.name_servers.addresses():
        known = _known(cluster, names, topics)
        missing.append(set(names) - known)
        if not missing[-1]:
            return {}
        cluster.name_servers.turn()
    servers = ";".join(cluster.settings.name_servers)
    nowhere = set.intersection(*missing)
    return {
        name: f"no name server of {servers} knows it" + _in_other_case(name, known)
        if name in nowhere
        else f"not all name servers of {servers} know it, and none knows all of {', '.join(names)}"
        for name in names
        if name in (nowhere or set.union(*missing))
    }


def _known(cluster: Cluster, names: Sequence[str], topics: Collection[str]) -> set[str]:
    """The brokers that the name server knows which is asked now: those of the topics, and if these are not all of
    `names`, those of the clusters.
    """
    routes = [route for route in map(cluster.refresh_route, sorted(topics)) if route is not None]
    known = {name for route in routes for name in route.brokers}
    if not known.issuperset(names):
        known |= cluster.routes.registered(refresh=True) or set()
    return known


def _in_other_case(name: str, known: Collection[str]) -> str:
    """RocketMQ's names of brokers count in their case."""
    near = [other for other in known if other.casefold() == name.casefold()]
    return f" (it knows {near[0]})" if near else ""
