"""Shared by mqadmin's commands over a cluster: their options, and questions and changes broker by broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import click

from rmq_store.cli.shared.output import printable
from rmq_store.cli.target.command import cluster_variant_of
from rmq_store.errors import StoreError, UnknownTopicError, UsageError

if TYPE_CHECKING:
    from rmq_store.remoting.admin.scope import BrokerProcess
    from rmq_store.remoting.cluster.cluster import Cluster
    from rmq_store.remoting.cluster.routes import TopicRoute

Answer = TypeVar("Answer")

BROKER = click.Option(
    ["-b", "--brokerAddr", "broker_address"], metavar="HOST:PORT",
    help="Only this process: an address that a broker has registered.",
)  # fmt: skip
CLUSTER = click.Option(
    ["-c", "--clusterName", "cluster_name"], metavar="NAME", help="Only the brokers of this cluster."
)

LMQ_CLUSTER = click.Option(["-c", "--clusterName"], hidden=True, expose_value=False)
"""mqadmin finds the route of an LMQ by it: not needed here."""

like = cluster_variant_of


def chosen(cluster: Cluster, broker_address: str | None, cluster_name: str | None) -> list[BrokerProcess]:
    """The process of -b, or the masters of -c, or of the only cluster.

    Raises:
        UsageError: both are given, nobody has registered the address, or -c is needed.
    """
    from rmq_store.remoting.admin.scope import masters, process_at, the_cluster_name

    if broker_address is not None and cluster_name is not None:
        raise UsageError("-b names one broker, -c the brokers of a cluster: give one of them")
    if broker_address is not None:
        return [process_at(cluster, broker_address)]
    return masters(cluster, cluster_name or the_cluster_name(cluster))


def require_route(cluster: Cluster, topic: str) -> TopicRoute:
    """The topic's route. UnknownTopicError: no broker has the topic; suggests the nearest."""
    route = cluster.refresh_route(topic)
    if route is None:
        raise UnknownTopicError(f"no broker of the cluster has a topic {topic[:255]!r}{cluster.did_you_mean(topic)}")
    return route


def masters_of(route: TopicRoute, cluster_name: str | None = None) -> list[BrokerProcess]:
    """The masters of a topic's brokers, sorted by name; those of one cluster only if it is named.

    Raises:
        UsageError: no broker of this cluster has the topic.
    """
    from rmq_store.remoting.admin.scope import BrokerProcess
    from rmq_store.remoting.cluster.routes import MASTER_ID

    known = [
        BrokerProcess(broker.cluster, name, MASTER_ID, broker.master or "")
        for name, broker in sorted(route.brokers.items())
        if name in route.queues
    ]
    found = [one for one in known if cluster_name in (None, one.cluster_name)]
    if known and not found:
        names = ", ".join(sorted({one.cluster_name for one in known}))
        raise UsageError(f"no broker of a cluster {cluster_name!r} has the topic {route.topic!r}; clusters: {names}")
    return found


class Brokers:
    """The questions of one command to brokers, one after the other, and the brokers that refused or did not answer.

    mqadmin passes over such brokers, or ends with the first. Here the others are asked nevertheless, stderr names those
    that failed, and the exit code is 1.
    """

    def __init__(self) -> None:
        self.failed: list[tuple[BrokerProcess, StoreError]] = []
        self._has_answer = False

    def ask(self, process: BrokerProcess, call: Callable[[], Answer | None]) -> Answer | None:
        """The result of `call`; None if the broker refuses or does not answer. Other errors are raised."""
        from rmq_store.protocol.errors import MQBrokerError, RemotingError

        try:
            found = call()
        except (MQBrokerError, RemotingError) as error:
            self.failed.append((process, error))
            return None
        self._has_answer = True
        return found

    def ask_each(
        self, processes: Iterable[BrokerProcess], call: Callable[[BrokerProcess], Answer | None]
    ) -> Sequence[tuple[BrokerProcess, Answer]]:
        """(process, result of `call`) of those that answer, without results that are None."""
        asked = ((process, self.ask(process, partial(call, process))) for process in processes)
        return [(process, found) for process, found in asked if found is not None]

    def tell(self) -> None:
        """Name those that failed on stderr, and end with exit code 1 if there are some."""
        if self.tell_changes(frozenset()):
            raise click.exceptions.Exit(1)

    def tell_unknown(self, what: str) -> None:
        """Say on stderr, before a question, of which brokers `what` (in the plural) is not known."""
        for process, error in self.failed:
            text = f"{what} at {_shown(process)} are not known: {error}"
            click.echo(printable(text), err=True)

    def tell_changes(self, before: Set[BrokerProcess]) -> set[BrokerProcess]:
        """Name on stderr those that failed and are not in `before`, and those of `before` that did not fail. Returns
        those that failed.
        """
        for process, error in self.failed:
            if process not in before:
                click.echo(f"rmq: {printable(_shown(process))}: {printable(str(error))}", err=True)
        failed = {process for process, _ in self.failed}
        for process in sorted(before - failed):
            click.echo(f"rmq: {printable(_shown(process))} answers again", err=True)
        return failed


def _shown(process: BrokerProcess) -> str:
    return f"broker {process.broker_name}" + (f" ({process.address})" if process.address else "")
