"""Groups at single brokers: settings, progress, live members (AdminBrokerProcessor.java). All raise as `scope.ask`."""

from __future__ import annotations

from collections.abc import Iterable

from rmq_store.protocol.bodies.clients import ConsumerRunningInfo
from rmq_store.protocol.bodies.groups import ConsumerConnection, ConsumeStats, SubscriptionGroupConfig
from rmq_store.remoting.admin.scope import BrokerProcess, ask
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.questions import groups as questions
from rmq_store.remoting.questions.answer import checked


def group_configs(cluster: Cluster, process: BrokerProcess) -> dict[str, SubscriptionGroupConfig]:
    """The settings of all groups of a broker (201), by their names on the wire."""
    return ask(cluster, process, questions.ask_group_configs(), questions.read_group_configs)


def group_config(cluster: Cluster, process: BrokerProcess, group: str) -> SubscriptionGroupConfig | None:
    """A group's settings at one broker; None: it has none."""
    return group_configs(cluster, process).get(cluster.wire_group(group))


def update_group(cluster: Cluster, process: BrokerProcess, config: SubscriptionGroupConfig) -> None:
    """Make a group at one broker, or change it (200); its name is that of the wire."""
    ask(cluster, process, questions.ask_update_group(config), checked)


def delete_group(cluster: Cluster, process: BrokerProcess, group: str, *, clean_offset: bool) -> None:
    """Delete a group at one broker, with `clean_offset` its offsets, too (207)."""
    ask(cluster, process, questions.ask_delete_group(cluster, group, clean_offset=clean_offset), checked)


def consume_stats(
    cluster: Cluster, process: BrokerProcess, group: str, topic: str | None = None
) -> ConsumeStats | None:
    """How far a group is at one broker (208); None: the broker does not know the group."""
    return ask(cluster, process, questions.ask_consume_stats(cluster, group, topic), questions.read_consume_stats)


def connections(cluster: Cluster, process: BrokerProcess, group: str) -> ConsumerConnection | None:
    """The live members of a group, as one broker knows them (203); None: it knows none."""
    command = questions.ask_consumer_connections(cluster, group)
    return ask(cluster, process, command, questions.read_consumer_connections)


def running_info(cluster: Cluster, process: BrokerProcess, group: str, client_id: str) -> ConsumerRunningInfo:
    """A member's description of itself, by way of a broker that it is connected with (307)."""
    command = questions.ask_running_info(cluster, group, client_id)
    return ask(cluster, process, command, questions.read_running_info)


def topic_groups(cluster: Cluster, brokers: Iterable[BrokerProcess], topic: str) -> list[str]:
    """The groups that consume a topic, or have offsets in it, at these brokers, sorted (300)."""
    found: set[str] = set()
    for process in brokers:
        found.update(ask(cluster, process, questions.ask_topic_groups(cluster, topic), questions.read_topic_groups))
    return sorted(cluster.plain_name(group) for group in found)
