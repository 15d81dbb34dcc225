"""consumerProgress over a cluster: the lag of groups at all masters. Source: ConsumerProgressSubCommand.java."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rmq_store.cli.cluster_mqadmin.common import CLUSTER, Brokers, like
from rmq_store.cli.mqadmin import progress as store_commands
from rmq_store.cli.mqadmin_print.progress import (
    OFFLINE,
    GroupTotal,
    QueueProgress,
    write_group_progress,
    write_queue_progress,
)
from rmq_store.cli.target.cluster_target import ClusterTarget
from rmq_store.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from rmq_store.protocol.bodies.groups import ConsumerConnection, ConsumeStats
    from rmq_store.protocol.messages import MessageQueue
    from rmq_store.remoting.admin.scope import BrokerProcess
    from rmq_store.remoting.cluster.cluster import Cluster

# MessageModel and ConsumeType as mqadmin prints them (GroupConsumeInfo.java).
_KINDS = {"CONSUME_ACTIVELY": "PULL", "CONSUME_PASSIVELY": "PUSH", "CONSUME_POP": "POP"}


@like(store_commands.consumer_progress, CLUSTER)
def consumer_progress(
    target: ClusterTarget,
    as_json: bool,
    group: str | None,
    topic: str | None,
    show_clients: bool | None,
    cluster_name: str | None,
) -> None:
    """Lag of consumer groups at all masters: sums for all groups, or the queues of one group.

    #Diff counts the messages from the committed offset to the end, #Inflight those that were delivered and are not
    committed; the totals include the %RETRY% topics. #LastTime is the store time of the last consumed message (UTC).
    Without -g the groups are those that have settings at a broker or a %RETRY% topic; system groups are left out.
    """
    from rmq_store.remoting.admin.scope import masters

    if group is None and (topic is not None or show_clients is not None):
        raise UsageError("-t and -s go with -g")
    brokers = Brokers()
    with target.open() as cluster:
        processes = masters(cluster, cluster_name)
        if group is None:
            write_group_progress(_all_groups(cluster, brokers, processes), as_json=as_json)
        else:
            answers = brokers.ask_each(processes, lambda one: _stats(cluster, one, group, topic))
            if not any(stats.offset_table for _, stats in answers):
                _require_known(cluster, brokers, processes, group)
            holders = _holders(cluster, brokers, processes, group) if show_clients else {}
            rows = [row for _, stats in answers for row in _rows(cluster, stats, holders)]
            tps = sum(stats.consume_tps for _, stats in answers)
            write_queue_progress(group, sorted(rows), as_json=as_json, show_clients=bool(show_clients), tps=tps)
    brokers.tell()


def _require_known(cluster: Cluster, brokers: Brokers, processes: list[BrokerProcess], group: str) -> None:
    """Raise UsageError if no broker knows the group: the answer to 208 for it is that for a group without offsets."""

    known = _known_groups(cluster, brokers, processes)
    if group not in known and not brokers.failed:
        raise UsageError(f"no broker of the cluster knows a group {group[:255]!r}{did_you_mean(group, known)}")


def _stats(cluster: Cluster, process: BrokerProcess, group: str, topic: str | None) -> ConsumeStats | None:
    """None: the broker does not know the group, or does not have the topic (17)."""
    from rmq_store.protocol.errors import MQBrokerError, ResponseCode
    from rmq_store.remoting.admin.scope import ask
    from rmq_store.remoting.questions.groups import ask_consume_stats, read_consume_stats

    try:
        return ask(cluster, process, ask_consume_stats(cluster, group, topic), read_consume_stats)
    except MQBrokerError as error:
        if error.response_code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        raise


def _rows(cluster: Cluster, stats: ConsumeStats, holders: dict[MessageQueue, str]) -> list[QueueProgress]:
    found = []
    for queue, one in stats.offset_table.items():
        pulled = one.consumer_offset if one.pull_offset is None else one.pull_offset
        inflight = max(pulled - one.consumer_offset, 0)
        place = cluster.plain_name(queue.topic), queue.broker_name, queue.queue_id
        found.append(
            QueueProgress(
                *place, one.broker_offset, one.consumer_offset, inflight, one.last_timestamp, holders.get(queue)
            )
        )
    return found


def _holders(
    cluster: Cluster, brokers: Brokers, processes: list[BrokerProcess], group: str
) -> dict[MessageQueue, str]:
    """Queue on the wire -> the id of the member that has it, as the members themselves say."""
    from rmq_store.remoting.admin.scope import ask
    from rmq_store.remoting.questions.groups import (
        ask_consumer_connections,
        ask_running_info,
        read_consumer_connections,
        read_running_info,
    )

    command = ask_consumer_connections(cluster, group)
    answers = brokers.ask_each(processes, partial(ask, cluster, command=command, read=read_consumer_connections))
    holders: dict[MessageQueue, str] = {}
    asked: set[str] = set()
    for process, online in answers:
        for client in sorted(one.client_id for one in online.connection_set):
            if client not in asked:
                asked.add(client)
                command = ask_running_info(cluster, group, client)
                info = brokers.ask(process, partial(ask, cluster, process, command, read_running_info))
                holders |= dict.fromkeys(info.mq_table if info is not None else (), client)
    return holders


def _known_groups(cluster: Cluster, brokers: Brokers, processes: list[BrokerProcess]) -> set[str]:
    """The groups that have settings at a broker or a %RETRY% topic."""
    from rmq_store.format.text.names import RETRY_PREFIX, retry_group
    from rmq_store.remoting.admin.scope import ask
    from rmq_store.remoting.cluster import names
    from rmq_store.remoting.questions.groups import ask_group_configs, read_group_configs

    namespace = cluster.settings.namespace
    known = {retry_group(topic) for topic in cluster.topics() if topic.startswith(RETRY_PREFIX)}
    answers = brokers.ask_each(processes, partial(ask, cluster, command=ask_group_configs(), read=read_group_configs))
    for _, configs in answers:
        known |= {cluster.plain_name(name) for name in configs if names.is_in_namespace(namespace, name)}
    return known


def _all_groups(cluster: Cluster, brokers: Brokers, processes: list[BrokerProcess]) -> list[GroupTotal]:
    from rmq_store.format.text.names import SYSTEM_GROUPS, is_system_group
    from rmq_store.remoting.admin.scope import ask
    from rmq_store.remoting.questions.groups import ask_consumer_connections, read_consumer_connections

    known = _known_groups(cluster, brokers, processes)
    answering = [process for process in processes if process not in {failed for failed, _ in brokers.failed}]
    totals = []
    for group in sorted(known):
        if group in SYSTEM_GROUPS or is_system_group(group):
            continue
        stats = [found for _, found in brokers.ask_each(answering, partial(_stats_of, cluster, group))]
        command = ask_consumer_connections(cluster, group)
        connected = partial(ask, cluster, command=command, read=read_consumer_connections)
        online = [found for _, found in brokers.ask_each(answering, connected)]
        diff = sum(one.broker_offset - one.consumer_offset for each in stats for one in each.offset_table.values())
        totals.append(_total(group, online, sum(each.consume_tps for each in stats), diff))
    return totals


def _stats_of(cluster: Cluster, group: str, process: BrokerProcess) -> ConsumeStats | None:
    return _stats(cluster, process, group, None)


def _total(group: str, online: list[ConsumerConnection], tps: float, diff: int) -> GroupTotal:
    from rmq_store.remoting.admin.versions import version_name

    clients = {one.client_id: one for each in online for one in each.connection_set}
    if not clients:
        return GroupTotal(group, 0, OFFLINE, "", "", tps, diff)
    oldest = min(one.version for one in clients.values())  # as mqadmin (ConsumerConnection#computeMinVersion)
    kind, model = _KINDS.get(online[0].consume_type or "", ""), online[0].message_model or ""
    return GroupTotal(group, len(clients), version_name(oldest), kind, model, tps, diff)


COMMANDS = (consumer_progress,)
