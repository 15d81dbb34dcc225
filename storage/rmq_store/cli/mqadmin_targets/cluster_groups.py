"""The consumer groups of a cluster, as its masters know them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rmq_store.cli.mqadmin_print.groups import Members
from rmq_store.cli.mqadmin_print.progress import OFFLINE, GroupProgress, GroupTotal, QueueProgress
from rmq_store.cli.mqadmin_targets.cluster_scope import Scope, at
from rmq_store.cli.mqadmin_targets.deletions import ClusterDeletion
from rmq_store.cli.mqadmin_targets.settings import changed_group
from rmq_store.cli.shared.output import printable
from rmq_store.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from rmq_store.cli.mqadmin_print.by_broker import At
    from rmq_store.cli.target.failure_report import ProcessFailureReport
    from rmq_store.protocol.bodies.groups import Connection, ConsumerConnection, ConsumeStats, SubscriptionGroupConfig
    from rmq_store.protocol.messages import MessageQueue
    from rmq_store.remoting.admin.scope import BrokerProcess

# MessageModel and ConsumeType as mqadmin prints them (GroupConsumeInfo.java).
_KINDS = {"CONSUME_ACTIVELY": "PULL", "CONSUME_PASSIVELY": "PUSH", "CONSUME_POP": "POP"}


class ClusterGroups:
    """Lag, settings and members of groups, and their changes at the brokers of a scope."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._cluster = scope.cluster
        self._report = scope.report

    def totals(self) -> list[GroupTotal]:
        """A line for each group that has settings at a broker or a %RETRY% topic."""
        from rmq_store.format.text.names import SYSTEM_GROUPS, is_system_group

        processes = self._scope.chosen_or_all()
        known = self._known(processes)
        answering = [process for process in processes if process not in self._report.missing]
        totals = []
        for group in sorted(known):
            if group in SYSTEM_GROUPS or is_system_group(group):
                continue
            stats = [found for _, found in self._report.ask_each(answering, partial(self._stats, group, None))]
            online = [found for _, found in self._connections(self._report, answering, group)]
            diff = sum(one.broker_offset - one.consumer_offset for each in stats for one in each.offset_table.values())
            totals.append(_total(group, online, sum(each.consume_tps for each in stats), diff))
        return totals

    def progress(self, group: str, topic: str | None, *, with_clients: bool) -> GroupProgress:
        """The queues of a group. UsageError: no broker knows it; suggests the nearest."""
        processes = self._scope.chosen_or_all()
        answers = self._report.ask_each(processes, partial(self._stats, group, topic))
        if not any(stats.offset_table for _, stats in answers):
            self._require_known(processes, group)
        holders = self._holders(processes, group) if with_clients else {}
        rows = [row for _, stats in answers for row in self._rows(stats, holders)]
        return GroupProgress(sorted(rows), sum(stats.consume_tps for _, stats in answers))

    def settings(self, group: str) -> list[tuple[At, SubscriptionGroupConfig]]:
        """The settings of a group at each broker that has some. UsageError: no broker has."""
        from rmq_store.remoting.admin.groups import group_config

        answers = self._report.ask_each(
            self._scope.chosen_or_all(), lambda one: group_config(self._cluster, one, group)
        )
        if not answers and not self._report.failures:
            raise UsageError(f"no broker of the cluster has settings of a group {group[:255]!r}")
        return [(at(process), replace(settings, group_name=group)) for process, settings in answers if settings]

    def members(self, group: str) -> Members | None:
        """The members that one of the brokers knows; None: there are none.

        Raises:
            MQBrokerError, RemotingError: none is known, and a broker does not tell.
        """
        from rmq_store.protocol.versions import version_name

        answers = self._connections(self._report, self._scope.chosen_or_all(), group)
        topics = {
            self._cluster.plain_name(topic): one.sub_string
            for _, found in answers
            for topic, one in sorted(found.subscription_table.items())
        }
        clients: dict[str, Connection] = {one.client_id: one for _, found in answers for one in found.connection_set}
        if not clients:
            self._report.require_all()
            return None
        rows = [
            (one.client_id, one.client_addr, one.language, version_name(one.version))
            for _, one in sorted(clients.items())
        ]
        first = answers[0][1]
        names = ("clientId", "clientAddr", "language", "version")
        kinds = {"consumeType": first.consume_type, "messageModel": first.message_model}
        kinds["consumeFromWhere"] = first.consume_from_where
        return Members([dict(zip(names, row, strict=True)) for row in rows], rows, topics, kinds)

    def update(
        self, group: str, named: Mapping[str, Any], changes: Mapping[str, str | None]
    ) -> list[tuple[At, SubscriptionGroupConfig]]:
        """Make a group with mqadmin's defaults at the chosen brokers, or change there what is `named` of it, and its
        attributes.
        """
        from rmq_store.protocol.bodies.groups import SubscriptionGroupConfig
        from rmq_store.remoting.admin.groups import group_config
        from rmq_store.remoting.admin.scope import ask
        from rmq_store.remoting.questions.answer import checked
        from rmq_store.remoting.questions.groups import ask_update_group

        cluster = self._cluster

        def change(process: BrokerProcess) -> SubscriptionGroupConfig:
            default = SubscriptionGroupConfig(
                group_name=cluster.wire_group(group), consume_broadcast_enable=False, consume_from_min_enable=False
            )
            after = changed_group(group_config(cluster, process, group) or default, named, changes)
            # A broker takes attributes as changes, in the spelling of the option.
            asked = {f"-{name}" if value is None else f"+{name}": value or "" for name, value in changes.items()}
            ask(cluster, process, ask_update_group(replace(after, attributes=asked or None)), checked)
            return replace(after, group_name=group)

        return [(at(process), after) for process, after in self._report.ask_each(self._scope.chosen(), change)]

    def deletion(self, group: str, *, remove_offsets: bool) -> ClusterDeletion:
        """Of the group's settings at the chosen brokers, and of its offsets; without -b also of its %RETRY% and %DLQ%
        topics. Stderr says which brokers do not tell their members.
        """
        from rmq_store.cli.target.failure_report import ProcessFailureReport
        from rmq_store.format.text.names import dlq_topic, retry_topic
        from rmq_store.remoting.admin.topics import delete_route
        from rmq_store.remoting.questions.groups import ask_delete_group
        from rmq_store.remoting.questions.topics import ask_delete_topic

        cluster, is_one = self._cluster, self._scope.broker_address is not None
        processes = self._scope.chosen()
        own = [] if is_one or not remove_offsets else [retry_topic(group), dlq_topic(group)]
        own = [topic for topic in own if cluster.refresh_route(topic) is not None]
        what = "settings and offsets" if remove_offsets else "settings"
        announcement = [
            f"delete the {what} of group {group} at broker {one.broker_name} ({one.address})" for one in processes
        ]
        announcement += [f"delete topic {topic} with its messages at these brokers" for topic in own]
        asked = ProcessFailureReport()
        online = self._connections(asked, processes, group)
        members = sorted({one.client_id for _, found in online for one in found.connection_set})
        announcement += asked.unknown_lines("running members")
        if members:
            announcement.append(f"running members: {', '.join(members)}")

        def delete_routes() -> None:
            for topic in own:
                delete_route(cluster, topic, processes[0].cluster_name)

        def line_of(process: BrokerProcess) -> str:
            where = "" if is_one else f" in cluster [{process.cluster_name}]"
            return f"delete subscription group [{group}] from broker [{process.address}]{where} success."

        return ClusterDeletion(
            self._scope, processes, f"Delete group {printable(group)}?", announcement,
            [
                ask_delete_group(cluster, group, clean_offset=remove_offsets),
                *(ask_delete_topic(cluster, topic) for topic in own),
            ],
            finish=delete_routes, line_of=line_of, names={"groups": [group], "topics": own},
            users={"members": members},
        )  # fmt: skip

    def _known(self, processes: list[BrokerProcess]) -> set[str]:
        """The groups that have settings at a broker or a %RETRY% topic."""
        from rmq_store.format.text.names import RETRY_PREFIX, retry_group
        from rmq_store.remoting.cluster import names
        from rmq_store.remoting.questions.groups import ask_group_configs, read_group_configs

        cluster = self._cluster
        known = {retry_group(topic) for topic in cluster.topics() if topic.startswith(RETRY_PREFIX)}
        for _, configs in self._scope.ask_each(processes, ask_group_configs(), read_group_configs):
            mine = (name for name in configs if names.is_in_namespace(cluster.settings.namespace, name))
            known |= {cluster.plain_name(name) for name in mine}
        return known

    def _require_known(self, processes: list[BrokerProcess], group: str) -> None:
        """Raise UsageError if no broker knows the group: the answer to 208 for it is that for a group without offsets.
        """
        known = self._known(processes)
        if group not in known and not self._report.failures:
            raise UsageError(f"no broker of the cluster knows a group {group[:255]!r}{did_you_mean(group, known)}")

    def _stats(self, group: str, topic: str | None, process: BrokerProcess) -> ConsumeStats | None:
        """None: the broker does not know the group, or does not have the topic (17)."""
        from rmq_store.protocol.errors import MQBrokerError, ResponseCode
        from rmq_store.remoting.admin.scope import ask
        from rmq_store.remoting.questions.groups import ask_consume_stats, read_consume_stats

        try:
            return ask(self._cluster, process, ask_consume_stats(self._cluster, group, topic), read_consume_stats)
        except MQBrokerError as error:
            if error.response_code == ResponseCode.TOPIC_NOT_EXIST:
                return None
            raise

    def _connections(
        self, report: ProcessFailureReport, processes: Iterable[BrokerProcess], group: str
    ) -> Sequence[tuple[BrokerProcess, ConsumerConnection]]:
        from rmq_store.remoting.questions.groups import ask_consumer_connections, read_consumer_connections

        command = ask_consumer_connections(self._cluster, group)
        return self._scope._replace(report=report).ask_each(processes, command, read_consumer_connections)

    def _rows(self, stats: ConsumeStats, holders: Mapping[MessageQueue, str]) -> list[QueueProgress]:
        found = []
        for queue, one in stats.offset_table.items():
            pulled = one.consumer_offset if one.pull_offset is None else one.pull_offset
            inflight = max(pulled - one.consumer_offset, 0)
            place = self._cluster.plain_name(queue.topic), queue.broker_name, queue.queue_id
            found.append(
                QueueProgress(
                    *place, one.broker_offset, one.consumer_offset, inflight, one.last_timestamp, holders.get(queue)
                )
            )
        return found

    def _holders(self, processes: list[BrokerProcess], group: str) -> dict[MessageQueue, str]:
        """Queue on the wire -> the id of the member that has it, as the members themselves say."""
        from rmq_store.remoting.admin.scope import ask
        from rmq_store.remoting.questions.groups import ask_running_info, read_running_info

        holders: dict[MessageQueue, str] = {}
        asked: set[str] = set()
        for process, online in self._connections(self._report, processes, group):
            for client in sorted(one.client_id for one in online.connection_set):
                if client not in asked:
                    asked.add(client)
                    command = ask_running_info(self._cluster, group, client)
                    info = self._report.ask(process, partial(ask, self._cluster, process, command, read_running_info))
                    holders |= dict.fromkeys(info.mq_table if info is not None else (), client)
        return holders


def _total(group: str, online: list[ConsumerConnection], tps: float, diff: int) -> GroupTotal:
    from rmq_store.protocol.versions import version_name

    clients = {one.client_id: one for each in online for one in each.connection_set}
    if not clients:
        return GroupTotal(group, 0, OFFLINE, "", "", tps, diff)
    oldest = min(one.version for one in clients.values())  # as mqadmin (ConsumerConnection#computeMinVersion)
    kind, model = _KINDS.get(online[0].consume_type or "", ""), online[0].message_model or ""
    return GroupTotal(group, len(clients), version_name(oldest), kind, model, tps, diff)
