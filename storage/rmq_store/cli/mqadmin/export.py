"""Settings and metadata as files, as mqadmin exports them. Source: tools/command/export/*.java."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rmq_store.cli.mqadmin.common import Target, brokers_of, choosing, mqadmin_command
from rmq_store.cli.mqadmin_print.lines import write_line
from rmq_store.cli.shared.output import write_json
from rmq_store.errors import UsageError


@mqadmin_command(
    "exportMetadata",
    short_help="Topics and groups as a file.",
    epilog="\b\nExample:\n  rmq exportMetadata -f export --store /data/store",
)
@click.option("-f", "--filePath", "directory", default=".", show_default=True, metavar="DIRECTORY",
              type=click.Path(file_okay=False, path_type=Path), help="Directory of the file.")  # fmt: skip
@click.option("-t", "--topic", "only_topics", is_flag=True, help="Export only topics, to topic.json.")
@click.option(
    "-g", "--subscriptionGroup", "only_groups", is_flag=True, help="Export only groups, to subscriptionGroup.json."
)
@click.option("-s", "--specialTopic", "with_special", is_flag=True, help="Also retry and dead-letter topics.")
@choosing("bc")
def export_metadata(
    target: Target, as_json: bool, directory: Path, only_topics: bool, only_groups: bool, with_special: bool,
    **chosen: str | None,
) -> None:  # fmt: skip
    """Write the topics and groups of users[cluster:  of one broker (-b), or of all masters of a cluster,] to
    metadata.json; with --json, print them instead.

    [cluster: Of a cluster, a topic has the sums of its queues over the brokers, as with mqadmin. No file is written if
    a broker does not answer.]
    """
    if only_topics and only_groups:
        raise UsageError("-t or -g, not both")
    with brokers_of(target, chosen) as brokers:
        found = brokers.metadata(topics=not only_groups, groups=not only_topics, with_special=with_special)
    name = "topic" if only_topics else "subscriptionGroup" if only_groups else "metadata"
    _write(found, directory / f"{name}.json", as_json)


@mqadmin_command(
    "exportConfigs",
    short_help="The store's settings as a file.",
    epilog="\b\nExample:\n  rmq exportConfigs -f export --store /data/store",
)
@click.option("-f", "--filePath", "directory", default=".", show_default=True, metavar="DIRECTORY",
              type=click.Path(file_okay=False, path_type=Path), help="Directory of the file.")  # fmt: skip
@choosing("c")
def export_configs(target: Target, as_json: bool, directory: Path, **chosen: str | None) -> None:
    """Write the settings [store: that mqadmin exports to configs.json; with --json, print them instead.][cluster: of a
    cluster's masters that mqadmin exports, and the cluster's size, to configs.json; with --json, print them instead. No
    file is written if a broker does not answer.]
    """
    with brokers_of(target, chosen) as brokers:
        found = brokers.configs()
    _write(found, directory / "configs.json", as_json)


def _write(content: dict[str, Any], path: Path, as_json: bool) -> None:
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
