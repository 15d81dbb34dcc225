"""Groups at the brokers of a cluster: members, heartbeats, creation, progress (ClientManageProcessor.java)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection
from concurrent import futures
from concurrent.futures import Future
from typing import Final, NamedTuple

from rmq_store.protocol.bodies.clients import HeartbeatData
from rmq_store.protocol.bodies.groups import ConsumerConnection, ConsumeStats, SubscriptionGroupConfig
from rmq_store.protocol.errors import MQBrokerError, RemotingError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.gather import At, BrokerError, Gathered, Question, Value, gather, gathered
from rmq_store.remoting.questions import groups as questions
from rmq_store.remoting.questions.answer import Given, checked, is_not_told

_log = logging.getLogger(__name__)

_FIRST_ANSWERS_S: Final = 0.5


class GroupProgress(NamedTuple):
    """How far a group is in a queue. `last_timestamp_ms`: when its last message was stored; 0: unknown."""

    broker_offset: int
    consumer_offset: int
    last_timestamp_ms: int


def heartbeat(
    cluster: Cluster, data: HeartbeatData, broker_names: Collection[str] | None = None, timeout_ms: int | None = None
) -> list[str]:
    """Tell the masters of all brokers, or of some, about a client (34): the names of those that have answered.

    The groups and topics in `data` are those of the wire. A broker that is away is left out, as in Java's client:
    it learns of the client by the next heartbeat.

    Raises:
        MQBrokerError: a broker refuses, or all are busy. RemotingError: none has answered.
    """
    asked = _each(cluster, broker_names, questions.ask_heartbeat(data), checked)
    told = gather(cluster, asked, timeout_ms=timeout_ms)
    reached = told.those_that_answer()
    if not reached:
        told.required()
    return list(reached)


def unregister(
    cluster: Cluster,
    client_id: str,
    *,
    consumer_group: str | None = None,
    producer_group: str | None = None,
    broker_names: Collection[str] | None = None,
) -> None:
    """Leave a group at all brokers, or at some (35); one that does not answer forgets the client after 120 s."""
    groups = {"producer_group": producer_group, "consumer_group": consumer_group}
    gather(cluster, _each(cluster, broker_names, questions.ask_unregister(cluster, client_id, **groups), checked))


def consumer_ids(cluster: Cluster, group: str, broker_name: str) -> list[str]:
    """The ids of the live members of a group, sorted, as one broker knows them (38)."""
    answer = cluster.call_broker(broker_name, questions.ask_consumer_ids(cluster, group), ok=None)
    return questions.read_consumer_ids(answer, broker_name)


def consumer_connections(cluster: Cluster, group: str) -> dict[str, ConsumerConnection]:
    """The live members of a group with their subscriptions (203), by broker name; without brokers that know none.

    Raises:
        MQBrokerError: a broker refuses. RemotingError: a master does not answer.
    """
    found = gather(cluster, _connections(cluster, group, None, questions.read_consumer_connections)).required()
    return {name: connections for name, connections in found.items() if connections is not None}


def live_members(cluster: Cluster, group: str, broker_names: Collection[str] | None = None) -> set[str]:
    """The ids of the live members of a group, as those masters that answer know them, of these brokers or of all (203).

    Raises:
        MQBrokerError: a broker refuses.
    """
    return set().union(*gather_members(cluster, group, broker_names).those_that_answer().values())


def gather_members(
    cluster: Cluster, group: str, broker_names: Collection[str] | None = None
) -> Gathered[str, set[str]]:
    """The ids of the live members of a group at each of these brokers, or at all (203)."""
    return gather(cluster, _connections(cluster, group, broker_names, _read_members))


def _read_members(given: Given, broker_name: str) -> set[str]:
    found = questions.read_consumer_connections(given, broker_name)
    return set() if found is None else {one.client_id for one in found.connection_set}


def _connections(
    cluster: Cluster, group: str, broker_names: Collection[str] | None, read: Callable[[Given, str], Value]
) -> dict[str, Question[Value]]:
    return _each(cluster, broker_names, questions.ask_consumer_connections(cluster, group), read)


def _each(
    cluster: Cluster,
    broker_names: Collection[str] | None,
    command: RemotingCommand,
    read: Callable[[Given, str], Value],
) -> dict[str, Question[Value]]:
    """The same question to each of these brokers, or to all; sorted by name."""
    names = sorted(cluster.broker_names() if broker_names is None else broker_names)
    return {name: Question(name, command, read) for name in names}


def create_group(cluster: Cluster, group: str, broker_name: str) -> None:
    """Create a group with the settings of a new one at the master of a broker (200). On return it has stored it.

    Raises:
        MQBrokerError: the broker refuses; 16: no rights. RemotingError: the master does not answer.
    """
    made = SubscriptionGroupConfig(group_name=cluster.wire_group(group))
    cluster.call_broker(broker_name, questions.ask_update_group(made))


def group_configs(cluster: Cluster, broker_name: str) -> dict[str, SubscriptionGroupConfig]:
    """The settings of all groups of a broker (201), by their names on the wire."""
    return gather_group_configs(cluster, (broker_name,)).required()[broker_name]


def gather_group_configs(
    cluster: Cluster, broker_names: Collection[str] | None = None
) -> Gathered[str, dict[str, SubscriptionGroupConfig]]:
    """The settings of all groups of each of these brokers, or of all (201), by their names on the wire."""
    asked = _each(cluster, broker_names, questions.ask_group_configs(), questions.read_group_configs)
    return gather(cluster, asked, At.READABLE)


def first_group_config(cluster: Cluster, group: str) -> SubscriptionGroupConfig | None:
    """The settings of a group at the first broker, by name, that has and tells them (201); None: no broker has, or may
    tell them. A broker that has not answered in 500 ms is passed over if another one tells them.

    Raises:
        RemotingError, MQBrokerError: a broker is away, and no other tells them; or one refuses.
    """
    command = questions.ask_group_configs()
    sent: dict[str, Future[RemotingCommand]] = {}
    for name in cluster.broker_names():
        with contextlib.suppress(RemotingError):  # it has no master now
            sent[name] = cluster.submit_broker(name, command)
    futures.wait(sent.values(), timeout=_FIRST_ANSWERS_S)
    quick = {name: Question(name, command, questions.read_group_configs) for name, one in sent.items() if one.done()}
    found, _ = _first_of(gathered(quick, {name: _given(sent[name]) for name in quick}), cluster.wire_group(group))
    if found is not None:
        return found
    found, away = _first_of(gather_group_configs(cluster), cluster.wire_group(group))
    if found is None and away is not None:
        raise away
    return found


def _given(future: Future[RemotingCommand]) -> Given:
    try:
        return future.result()
    except RemotingError as error:
        return error


def _first_of(
    told: Gathered[str, dict[str, SubscriptionGroupConfig]], wire_group: str
) -> tuple[SubscriptionGroupConfig | None, BrokerError | None]:
    """The settings of the first broker that has some; beside them the error of one that is away."""
    for one in told.told.values():
        if one.is_away or (isinstance(one.error, MQBrokerError) and is_not_told(one.error)):
            _log.info("the settings of groups are not known at broker %r: %s", one.broker_name, one.error)
        elif wire_group in one.required():
            return one.required()[wire_group], None
    return None, next(iter(told.away.values()), None)


def consume_stats(cluster: Cluster, group: str, topic: str | None = None) -> dict[MessageQueue, GroupProgress]:
    """How far a group is in all of its queues, or in those of one topic, `%RETRY%` included (208).

    A broker that does not know the group is left out.

    Raises:
        MQBrokerError: a broker refuses. RemotingError: neither master nor slave answers.
    """
    found: dict[MessageQueue, GroupProgress] = {}
    for stats in gather_consume_stats(cluster, group, topic).required().values():
        for queue, one in stats.offset_table.items() if stats is not None else ():
            plain = MessageQueue(cluster.plain_name(queue.topic), queue.broker_name, queue.queue_id)
            found[plain] = GroupProgress(one.broker_offset, one.consumer_offset, one.last_timestamp)
    return found


def gather_consume_stats(
    cluster: Cluster, group: str, topic: str | None = None
) -> Gathered[str, ConsumeStats | None]:
    """The progress of a group as each broker tells it, see `consume_stats`; None: it does not know the group."""
    asked = _each(cluster, None, questions.ask_consume_stats(cluster, group, topic), questions.read_consume_stats)
    return gather(cluster, asked, At.READABLE)
