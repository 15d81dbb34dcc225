"""The brokers that a request of an administrator is for: one process, or the masters of a cluster (CommandUtil.java).

Only addresses that brokers have registered are dialled: mqadmin connects to whatever address is written behind `-b`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from rmq_store.errors import UsageError
from rmq_store.format.text.host import Host
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.routes import MASTER_ID
from rmq_store.remoting.transport.connector import hosts_of
from rmq_store.remoting.transport.settings import parse_address

Value = TypeVar("Value")


class BrokerProcess(NamedTuple):
    """A process of a broker. `address` is the one that it has registered; "": there is no such process now."""

    cluster_name: str
    broker_name: str
    broker_id: int
    address: str


def processes(cluster: Cluster, cluster_name: str | None = None) -> list[BrokerProcess]:
    """All processes of one cluster, or of all, sorted by broker name and id. A broker without a master has one without
    an address.

    Raises:
        UsageError: the name servers know no such cluster.
        RemotingError: no name server answers.
    """
    info = cluster.cluster_info()
    if cluster_name is not None and cluster_name not in info.cluster_addr_table:
        known = ", ".join(sorted(info.cluster_addr_table)) or "none"
        raise UsageError(f"the name servers know no cluster {cluster_name!r}; known are: {known}")
    found = []
    for name, brokers in sorted(info.cluster_addr_table.items()):
        for broker_name in sorted(brokers) if cluster_name in (None, name) else ():
            data = info.broker_addr_table.get(broker_name)
            addresses = {MASTER_ID: ""} | dict(data.broker_addrs if data is not None else {})
            found += [BrokerProcess(name, broker_name, one, addresses[one]) for one in sorted(addresses)]
    return found


def masters(cluster: Cluster, cluster_name: str | None = None) -> list[BrokerProcess]:
    """The masters of one cluster, or of all, sorted by broker name. Raises as `processes`."""
    return [one for one in processes(cluster, cluster_name) if one.broker_id == MASTER_ID]


def process_at(cluster: Cluster, address: str) -> BrokerProcess:
    """The process that has registered an address, `host:port`, or a name of the same address.

    Raises:
        UsageError: no broker has registered it, and nothing is sent.
        RemotingError: no name server answers.
    """
    known = [one for one in processes(cluster) if one.address]
    for one in known:
        if one.address == address.strip():
            return one
    ours = _hosts(address)
    for one in known:
        if ours & _hosts(one.address):
            return one
    names = ", ".join(f"{one.broker_name} {one.address}" for one in known if one.broker_id == MASTER_ID)
    raise UsageError(
        f"no broker has registered the address {address.strip()!r}, so nothing is sent to it; masters: {names}"
    )


def _hosts(address: str) -> frozenset[Host]:
    try:
        return hosts_of(parse_address(address))
    except UsageError:  # the caller says what is known
        return frozenset()


def the_cluster_name(cluster: Cluster) -> str:
    """The name of the only cluster behind the name servers. UsageError: there are several, or none."""
    names = sorted(cluster.cluster_info().cluster_addr_table)
    if len(names) != 1:
        raise UsageError(f"these name servers know {len(names)} clusters; name one with -c: {', '.join(names)}")
    return names[0]


def ask(
    cluster: Cluster,
    process: BrokerProcess,
    command: RemotingCommand,
    read: Callable[[RemotingCommand, str], Value],
    timeout_ms: int | None = None,
) -> Value:
    """Ask one process, never another one in its place: the answer as `read` (of `remoting.questions`) reads it.

    Raises:
        MQBrokerError: the process refuses.
        RemotingConnectError: it was not reached. RemotingError: no answer: the outcome is unknown.
    """
    answer = cluster.call_broker(process.broker_name, command, timeout_ms, broker_id=process.broker_id, ok=None)
    return read(answer, process.broker_name)
