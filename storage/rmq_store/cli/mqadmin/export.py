"""Settings and metadata as files, as mqadmin exports them. Source: tools/command/export/*.java."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.mqadmin.common import mqadmin_options
from rmq_store.cli.mqadmin_print.lines import java_text, write_line
from rmq_store.cli.shared.output import open_store, write_json
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store import Store


CONFIGS = (
    "brokerName", "fileReservedTime", "flushDiskType", "maxMessageSize", "messageDelayLevel", "autoCreateTopicEnable",
    "autoCreateSubscriptionGroup",
)  # fmt: skip
"""ExportConfigsCommand#needBrokerProprties, those that a store has."""


@click.command(
    "exportMetadata",
    short_help="Topics and groups as a file.",
    epilog="\b\nExample:\n  rmq exportMetadata -f export --store /data/store",
)
@mqadmin_options()
@click.option("-f", "--filePath", "directory", default=".", show_default=True, metavar="DIRECTORY",
              type=click.Path(file_okay=False, path_type=Path), help="Directory of the file.")  # fmt: skip
@click.option("-t", "--topic", "only_topics", is_flag=True, help="Export only topics, to topic.json.")
@click.option(
    "-g", "--subscriptionGroup", "only_groups", is_flag=True, help="Export only groups, to subscriptionGroup.json."
)
@click.option("-s", "--specialTopic", "with_special", is_flag=True, help="Also retry and dead-letter topics.")
def export_metadata(
    root: Path, as_json: bool, directory: Path, only_topics: bool, only_groups: bool, with_special: bool
) -> None:
    """Write the topics and groups of users to metadata.json; with --json, print them instead."""
    if only_topics and only_groups:
        raise UsageError("-t or -g, not both")
    with open_store(root) as store:
        tables: dict[str, Any] = {}
        if not only_groups:
            tables["topicConfigTable"] = _topics(store, with_special)
        if not only_topics:
            tables["subscriptionGroupTable"] = _groups(store)
        tables["exportTime"] = store.clock()
    name = "topic" if only_topics else "subscriptionGroup" if only_groups else "metadata"
    write_export(tables, directory / f"{name}.json", as_json)


@click.command(
    "exportConfigs",
    short_help="The store's settings as a file.",
    epilog="\b\nExample:\n  rmq exportConfigs -f export --store /data/store",
)
@mqadmin_options()
@click.option("-f", "--filePath", "directory", default=".", show_default=True, metavar="DIRECTORY",
              type=click.Path(file_okay=False, path_type=Path), help="Directory of the file.")  # fmt: skip
def export_configs(root: Path, as_json: bool, directory: Path) -> None:
    """Write the settings that mqadmin exports to configs.json; with --json, print them instead."""
    with open_store(root) as store:
        known = {**store.retention.settings().broker_conf(), "brokerName": store.broker_name}
    settings = {name: java_text(known[name]) for name in sorted(CONFIGS)}
    scale = {"masterBrokerSize": 1, "namesrvSize": 0, "slaveBrokerSize": 0}
    found = {"brokerConfigs": {settings["brokerName"]: settings}, "clusterScale": scale}
    write_export(found, directory / "configs.json", as_json)


def _topics(store: Store, with_special: bool) -> dict[str, Any]:
    """AdminBrokerProcessor#getUserTopicConfig: without system topics."""
    from rmq_store.broker.metadata.json_table import ConfigFile
    from rmq_store.format.tables.config_json import as_json_value
    from rmq_store.format.text.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic

    table = ConfigFile(store.path, "topics.json").load().get("topicConfigTable", {})
    left_out = () if with_special else (RETRY_PREFIX, DLQ_PREFIX)
    return {
        name: as_json_value(table[name])
        for name in sorted(store.topics())
        if name in table and not is_system_topic(name) and not name.startswith(left_out)
    }


def _groups(store: Store) -> dict[str, Any]:
    """AdminBrokerProcessor#getUserSubscriptionGroup: without system groups."""
    from rmq_store.broker.metadata.json_table import ConfigFile
    from rmq_store.format.tables.config_json import as_json_value
    from rmq_store.format.text.names import SYSTEM_GROUPS, is_system_group

    table = ConfigFile(store.path, "subscriptionGroup.json").load().get("subscriptionGroupTable", {})
    return {
        name: as_json_value(table[name])
        for name in sorted(store.groups())
        if name in table and name not in SYSTEM_GROUPS and not is_system_group(name)
    }


def write_export(content: dict[str, Any], path: Path, as_json: bool) -> None:
    """Write a file and say so, or print its content."""
    from rmq_store.files.durable import make_directory, write_atomically
    from rmq_store.format.tables.config_json import dumps

    if as_json:
        write_json(content)
        return
    for directory in reversed([parent for parent in path.absolute().parents if not parent.is_dir()]):
        make_directory(directory)
    write_atomically(path, dumps(content).encode())
    write_line("export %s success", str(path.absolute()))


COMMANDS = (export_metadata, export_configs)
