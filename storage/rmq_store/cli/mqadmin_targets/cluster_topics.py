"""The topics of a cluster: at its name servers, and at the masters that have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.mqadmin_print.topics import QueueStatus, TopicChange, TopicStatus
from rmq_store.cli.mqadmin_targets.cluster_scope import Scope, at, masters_of, require_route
from rmq_store.cli.mqadmin_targets.deletions import ClusterDeletion
from rmq_store.cli.mqadmin_targets.settings import QUEUES, changed_topic
from rmq_store.cli.shared.output import printable
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store.remoting.admin.scope import BrokerProcess


class ClusterTopics:
    """Lists, ends, routes and settings of topics, and their changes at the brokers of a scope."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._cluster = scope.cluster
        self._report = scope.report

    def names(self) -> list[str]:
        """The names of all topics, sorted."""
        return self._cluster.topics()

    def with_groups(self) -> list[tuple[str, str, list[str]]]:
        """(cluster, topic, its groups), without retry and dead-letter topics: each of a topic's brokers is asked."""
        from rmq_store.format.text.names import DLQ_PREFIX, RETRY_PREFIX
        from rmq_store.remoting.admin.groups import topic_groups

        rows = []
        for topic in self.names():
            route = None if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else self._cluster.route(topic)
            if route is None:
                continue
            masters = masters_of(route)
            answers = [self._report.ask(one, partial(topic_groups, self._cluster, [one], topic)) for one in masters]
            groups = sorted({group for found in answers for group in found or ()})
            rows += [(name, topic, groups) for name in sorted({one.cluster_name for one in masters})]
        return rows

    def status(self, topic: str) -> TopicStatus:
        """The queues of a topic at each of its masters. UnknownTopicError: no broker has it."""
        from rmq_store.remoting.cluster.topics import at_brokers, ends_at_brokers

        route = require_route(self._cluster, topic)
        asked = {one.broker_name: one for one in at_brokers([route])}
        answers = self._report.ask_each(
            masters_of(route, self._scope.cluster_name),
            lambda one: ends_at_brokers(self._cluster, [asked[one.broker_name]], of_masters=True)[0].required(),
        )
        rows = [
            QueueStatus(process.broker_name, queue_id, found.min_offset, found.max_offset, found.last_update_timestamp)
            for process, ends in answers
            for queue_id, found in ends.limits.items()
        ]
        rates = [ends.topic_put_tps for _, ends in answers if ends.topic_put_tps is not None]
        return TopicStatus(rows, sum(rates) if rates else None)

    def route(self, topic: str) -> dict[str, Any]:
        """The members of TopicRouteData that mqadmin shows, brokers by their names. UnknownTopicError."""
        route = require_route(self._cluster, topic)
        brokers = [
            {
                "brokerAddrs": dict(sorted(broker.addresses.items())),
                "brokerName": name,
                "cluster": broker.cluster,
                "enableActingMaster": broker.acting_enabled,
            }
            for name, broker in sorted(route.brokers.items())
        ]
        queues = [
            {
                "brokerName": name,
                "perm": one.perm,
                "readQueueNums": one.read_queue_nums,
                "topicSysFlag": one.topic_sys_flag,
                "writeQueueNums": one.write_queue_nums,
            }
            for name, one in sorted(route.queues.items())
        ]
        found: dict[str, Any] = {"brokerDatas": brokers, "filterServerTable": {}}
        if route.order_topic_conf:
            found["orderTopicConf"] = route.order_topic_conf
        return {**found, "queueDatas": queues}

    def clusters(self, topic: str) -> list[str]:
        """The clusters that have a topic. UnknownTopicError."""
        route = require_route(self._cluster, topic)
        return sorted({broker.cluster for name, broker in route.brokers.items() if name in route.queues})

    def update(
        self, topic: str, given: Mapping[str, Any], changes: Mapping[str, str | None]
    ) -> list[TopicChange]:
        """Make a topic at the chosen brokers, or change there what is `given` of it, and its attributes. The name
        servers get the queues of an ordered topic, and stderr says so.
        """
        from rmq_store.protocol.bodies.topics import TopicConfig
        from rmq_store.remoting.admin.scope import ask
        from rmq_store.remoting.admin.topics import set_order_conf, topic_config
        from rmq_store.remoting.questions.answer import checked
        from rmq_store.remoting.questions.topics import ask_create_topic

        cluster, is_one = self._cluster, self._scope.broker_address is not None

        def change(process: BrokerProcess) -> TopicConfig:
            known = topic_config(cluster, process, topic)
            default = TopicConfig(topic_name=topic, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
            after = changed_topic(known or default, given, changes)
            ask(cluster, process, ask_create_topic(cluster, after, changes), checked)
            return after

        answers = self._report.ask_each(self._scope.chosen(), change)
        if given["order"] and answers:
            counts = {process.broker_name: after.write_queue_nums for process, after in answers}
            text = set_order_conf(cluster, topic, counts, replaces=not is_one)
            what = "broker" if is_one else "cluster"
            click.echo(printable(f"set {what} orderConf. isOrder=true, orderConf=[{text}]"), err=True)
        return [TopicChange(at(process), after) for process, after in answers]

    def update_perm(self, topic: str, perm: int) -> list[TopicChange]:
        """Set the permissions at the chosen brokers that have the topic. UsageError: none of them has it."""
        from rmq_store.remoting.admin.scope import ask
        from rmq_store.remoting.admin.topics import topic_config
        from rmq_store.remoting.questions.answer import checked
        from rmq_store.remoting.questions.topics import ask_create_topic

        cluster = self._cluster

        def change(process: BrokerProcess) -> TopicChange | None:
            known = topic_config(cluster, process, topic)
            if known is None:
                return None
            after = replace(known, topic_name=topic, perm=perm)
            if known.perm != perm:
                ask(cluster, process, ask_create_topic(cluster, after, {}), checked)
            return TopicChange(at(process), after, known.perm, is_changed=known.perm != perm)

        having = {one.broker_name for one in masters_of(require_route(cluster, topic))}
        wanted = [one for one in self._scope.chosen() if one.broker_name in having]
        answers = self._report.ask_each(wanted, change)
        if not answers and not self._report.failures:
            chosen_by = self._scope.broker_address or self._scope.cluster_name
            raise UsageError(
                f"no broker{f' of {chosen_by!r}' if chosen_by else ''} has the topic {topic!r}; brokers that have it: "
                f"{', '.join(sorted(having))}"
            )
        return [change for _, change in answers]

    def deletion(self, topic: str) -> ClusterDeletion:
        """Of a topic with its messages at every master of the cluster, and then of its route. The masters that the
        route does not show are told, too, as by mqadmin: a broker may have registered the topic nowhere, or have no
        master now. UnknownTopicError: no broker has the topic.
        """
        from rmq_store.cli.target.failure_report import ProcessFailureReport
        from rmq_store.remoting.admin.groups import topic_groups
        from rmq_store.remoting.admin.scope import masters, the_cluster_name
        from rmq_store.remoting.admin.topics import delete_route
        from rmq_store.remoting.questions.topics import ask_delete_topic

        cluster = self._cluster
        name = self._scope.cluster_name or the_cluster_name(cluster)
        require_route(cluster, topic)
        processes = masters(cluster, name)
        asked = ProcessFailureReport()
        answers = asked.ask_each(processes, lambda one: topic_groups(cluster, [one], topic))
        groups = sorted({group for _, found in answers for group in found})
        announcement = asked.unknown_lines("groups with members or offsets")
        announcement += [
            f"delete topic {topic} with its messages at broker {one.broker_name} ({one.address})" for one in processes
        ]
        if groups:
            announcement.append(f"groups with members or offsets: {', '.join(groups)}")
        return ClusterDeletion(
            self._scope, processes, f"Delete topic {printable(topic)}?", announcement,
            [ask_delete_topic(cluster, topic)],
            finish=lambda: delete_route(cluster, topic, name),
            last_lines=[
                f"delete topic [{topic}] from cluster [{name}] success.",
                f"delete topic [{topic}] from NameServer success.",
            ],
            names={"topics": [topic]}, users={"groups": groups},
        )  # fmt: skip
