"""Settings and metadata of a cluster as files. Source: ExportMetadataCommand.java, ExportConfigsCommand.java."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmq_store.cli.cluster_mqadmin.common import BROKER, CLUSTER, Brokers, chosen, like
from rmq_store.cli.mqadmin import export as store_commands
from rmq_store.cli.mqadmin.export import CONFIGS, write_export
from rmq_store.cli.target.cluster_target import ClusterTarget
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store.protocol.bodies.json_body import JsonBody
    from rmq_store.remoting.admin.scope import BrokerProcess
    from rmq_store.remoting.cluster.cluster import Cluster

_KEYS = ("topicConfigTable", "subscriptionGroupTable")
_COUNTS = ("readQueueNums", "writeQueueNums")


@like(store_commands.export_metadata, BROKER, CLUSTER)
def export_metadata(
    target: ClusterTarget,
    as_json: bool,
    directory: Path,
    only_topics: bool,
    only_groups: bool,
    with_special: bool,
    broker_address: str | None,
    cluster_name: str | None,
) -> None:
    """Write the topics and groups of users of one broker (-b), or of all masters of a cluster, to metadata.json; with
    --json, print them instead.

    Of a cluster, a topic has the sums of its queues over the brokers, as with mqadmin. No file is written if a broker
    does not answer.
    """
    if only_topics and only_groups:
        raise UsageError("-t or -g, not both")
    brokers = Brokers()
    tables: dict[str, dict[str, Any]] = {key: {} for key in _KEYS}
    with target.open() as cluster:
        processes = chosen(cluster, broker_address, cluster_name)
        for _, (topics, groups) in brokers.ask_each(processes, partial(_tables, cluster, with_special)):
            for name, config in topics.items():
                known = tables["topicConfigTable"].get(name)
                sums = {} if known is None else {key: known[key] + config[key] for key in _COUNTS}
                tables["topicConfigTable"][name] = {**config, **sums}
            tables["subscriptionGroupTable"] |= groups
    brokers.tell()
    left_out = _KEYS[1] if only_topics else _KEYS[0] if only_groups else None
    found: dict[str, Any] = {key: dict(sorted(table.items())) for key, table in tables.items() if key != left_out}
    found["exportTime"] = time.time_ns() // 1_000_000
    name = "topic" if only_topics else "subscriptionGroup" if only_groups else "metadata"
    write_export(found, directory / f"{name}.json", as_json)


@like(store_commands.export_configs, CLUSTER)
def export_configs(target: ClusterTarget, as_json: bool, directory: Path, cluster_name: str | None) -> None:
    """Write the settings of a cluster's masters that mqadmin exports, and the cluster's size, to configs.json; with
    --json, print them instead. No file is written if a broker does not answer.
    """
    from rmq_store.remoting.admin.scope import ask, processes, the_cluster_name
    from rmq_store.remoting.questions.brokers import ask_broker_config, read_broker_config

    brokers = Brokers()
    with target.open() as cluster:
        known = processes(cluster, cluster_name or the_cluster_name(cluster))
        masters = [one for one in known if one.broker_id == 0]
        answers = brokers.ask_each(masters, partial(ask, cluster, command=ask_broker_config(), read=read_broker_config))
        name_servers = len(cluster.name_servers.addresses())
    brokers.tell()
    settings = {
        process.broker_name: {name: config[name] for name in sorted(CONFIGS) if name in config}
        for process, config in answers
    }
    slaves = len(known) - len(masters)
    scale = {"masterBrokerSize": len(masters), "namesrvSize": name_servers, "slaveBrokerSize": slaves}
    write_export({"brokerConfigs": settings, "clusterScale": scale}, directory / "configs.json", as_json)


def _tables(
    cluster: Cluster, with_special: bool, process: BrokerProcess
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Topics and groups of one broker by name, without those of the system."""
    from rmq_store.format.text.names import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_GROUPS, is_system_group, is_system_topic
    from rmq_store.remoting.admin.scope import ask
    from rmq_store.remoting.questions.groups import ask_group_configs, read_group_configs
    from rmq_store.remoting.questions.topics import ask_topic_configs, read_topic_configs

    left_out = () if with_special else (RETRY_PREFIX, DLQ_PREFIX)
    # A broker has topics of these names for itself.
    own = {process.broker_name, process.cluster_name, f"{process.cluster_name}_REPLY_TOPIC"}

    topics = {
        name: config
        for name, config in ask(cluster, process, ask_topic_configs(), read_topic_configs).items()
        if not (name in own or is_system_topic(name) or name.startswith(left_out))
    }
    groups = {
        name: config
        for name, config in ask(cluster, process, ask_group_configs(), read_group_configs).items()
        if name not in SYSTEM_GROUPS and not is_system_group(name)
    }
    return _plain(cluster, topics, "topicName"), _plain(cluster, groups, "groupName")


def _plain(cluster: Cluster, table: Mapping[str, JsonBody], member: str) -> dict[str, dict[str, Any]]:
    """As JSON, by names without the namespace; names of other namespaces are left out."""
    from rmq_store.remoting.cluster import names

    namespace = cluster.settings.namespace
    return {
        cluster.plain_name(name): {**config.to_json(), member: cluster.plain_name(name)}
        for name, config in table.items()
        if names.is_in_namespace(namespace, name)
    }


COMMANDS = (export_metadata, export_configs)
