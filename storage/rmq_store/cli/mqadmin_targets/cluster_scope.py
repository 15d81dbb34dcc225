"""The brokers of a cluster that a command asks, and those that fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from rmq_store.cli.mqadmin_print.by_broker import At
from rmq_store.errors import UnknownTopicError, UsageError

if TYPE_CHECKING:
    from rmq_store.cli.target.failure_report import ProcessFailureReport
    from rmq_store.protocol.wire.command import RemotingCommand
    from rmq_store.remoting.admin.scope import BrokerProcess
    from rmq_store.remoting.cluster.cluster import Cluster
    from rmq_store.remoting.cluster.routes import TopicRoute

Value = TypeVar("Value")


class Scope(NamedTuple):
    """A cluster, the `report` of one command, and what the command line says of brokers: -b, an address that one of
    them has registered, or -c, the name of a cluster; and whether settings are changed at slaves, too.
    """

    cluster: Cluster
    report: ProcessFailureReport
    broker_address: str | None = None
    cluster_name: str | None = None
    with_slaves: bool = False

    def chosen(self) -> list[BrokerProcess]:
        """The process of -b, or the masters of -c, or of the only cluster.

        Raises:
            UsageError: both are given, nobody has registered the address, or -c is needed.
        """
        from rmq_store.remoting.admin.scope import masters, the_cluster_name

        one = self._process()
        return [one] if one is not None else masters(self.cluster, self.cluster_name or the_cluster_name(self.cluster))

    def chosen_or_all(self) -> list[BrokerProcess]:
        """The process of -b, or the masters of -c, or of all clusters. Raises as `chosen`."""
        from rmq_store.remoting.admin.scope import masters

        one = self._process()
        return [one] if one is not None else masters(self.cluster, self.cluster_name)

    def chosen_and_slaves(self) -> list[BrokerProcess]:
        """As `chosen`; of a cluster the slaves, too."""
        from rmq_store.remoting.admin.scope import processes

        found = self.chosen()
        return processes(self.cluster, found[0].cluster_name) if self.broker_address is None and found else found

    def masters_of(self, topic: str) -> list[BrokerProcess]:
        """The masters of a topic's brokers, with -b this one only, with -c those of this cluster. Raises as
        `require_route` and `masters_of`; UsageError, too, if -b is none of them.
        """
        from rmq_store.remoting.admin.scope import process_at

        masters = masters_of(require_route(self.cluster, topic), self.cluster_name)
        if self.broker_address is None:
            return masters
        wanted = process_at(self.cluster, self.broker_address)
        found = [one for one in masters if one.broker_name == wanted.broker_name]
        if not found or found[0].address != wanted.address:
            raise UsageError(f"-b {self.broker_address}: this is no master that has the topic {topic!r}")
        return found

    def ask_each(
        self, processes: Iterable[BrokerProcess], command: RemotingCommand,
        read: Callable[[RemotingCommand, str], Value | None],
    ) -> Sequence[tuple[BrokerProcess, Value]]:  # fmt: skip
        """(process, answer as `read`, of `remoting.questions`, reads it) of those that answer, without answers that are
        None.
        """
        from rmq_store.remoting.admin.scope import ask

        return self.report.ask_each(processes, partial(ask, self.cluster, command=command, read=read))

    def _process(self) -> BrokerProcess | None:
        from rmq_store.remoting.admin.scope import process_at

        if self.broker_address is None:
            return None
        if self.cluster_name is not None:
            raise UsageError("-b names one broker, -c the brokers of a cluster: give one of them")
        return process_at(self.cluster, self.broker_address)


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


def at(process: BrokerProcess) -> At:
    """The broker of a row."""
    title = f"{process.cluster_name}:{process.broker_name}"
    return At(process.address, process.broker_name, title, process.broker_id)
