"""Shared by the commands of mqadmin: flags that a directory does not need, and what is said of a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rmq_store.cli.shared.output import common_options, printable
from rmq_store.errors import CorruptRecordError, UsageError

if TYPE_CHECKING:
    from rmq_store import Store
    from rmq_store.broker.store.administration import Deletion

Command = TypeVar("Command", bound=Callable[..., Any])

_UNNEEDED = {"n": ("-n", "--namesrvAddr"), "b": ("-b", "--brokerAddr"), "c": ("-c", "--clusterName")}

# TopicConfigManager#init: a broker of 5.x makes a topic of this prefix and its cluster's name.
_REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
_DEFAULT_CLUSTER = "DefaultCluster"

EMBEDDED = "EMBEDDED"
"""Where mqadmin shows the version of a broker or of a client's RocketMQ."""


def mqadmin_options(unneeded: str = "nbc") -> Callable[[Command], Command]:
    """Add --store and --json, and those of mqadmin's -n, -b and -c in `unneeded`, which are hidden and ignored."""

    def add(command: Command) -> Command:
        for letter in unneeded:
            command = click.option(*_UNNEEDED[letter], hidden=True, expose_value=False)(command)
        return common_options(command)

    return add


def refused_options(*names: tuple[str, ...], reason: str) -> Callable[[Command], Command]:
    """Add options of mqadmin that cannot be carried out here: each raises UsageError with the reason."""

    def refuse(ctx: click.Context, option: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise UsageError(f"{option.opts[0]} ({option.opts[-1].lstrip('-')}): {reason}")

    def add(command: Command) -> Command:
        for declarations in names:
            command = click.option(*declarations, hidden=True, expose_value=False, callback=refuse)(command)
        return command

    return add


def cluster_name(store: Store) -> str:
    """The cluster of the store's broker, if it left its name."""
    found = (topic.removeprefix(_REVIVE_PREFIX) for topic in sorted(store.topics()) if topic.startswith(_REVIVE_PREFIX))
    return next(found, _DEFAULT_CLUSTER)


def broker_address(store: Store) -> str:
    """The address of the store's broker in its oldest record; this engine's if no record can be read."""
    start, end = store.log_range()
    try:
        return str(store.message_at(start).store_host) if start < end else store.config.broker_host
    except (CorruptRecordError, UsageError):
        return store.config.broker_host


def consumer_groups(store: Store, topic: str) -> list[str]:
    """The groups that have committed offsets on a topic (ConsumerOffsetManager#whichGroupByTopic), sorted."""
    known = store.all_committed_offsets()
    return sorted(group for group, offsets in known.items() if any(name == topic for name, _ in offsets))


def deletion_json(deletion: Deletion) -> dict[str, Any]:
    """A deletion for `write_json`."""
    return {
        "topics": list(deletion.topics),
        "groups": list(deletion.groups),
        "offsets": {group: list(topics) for group, topics in deletion.offsets},
        "popStates": [list(pop) for pop in deletion.pops],
        "messagesLeft": deletion.message_count,
    }


def write_deletion(deletion: Deletion) -> None:
    """Write to stderr what a deletion removes, and what stays."""
    for topic in deletion.topics:
        _say(f"delete the settings of topic {topic}")
    for group in deletion.groups:
        _say(f"delete the settings of group {group}")
    for group, topics in deletion.offsets:
        _say(f"delete the offsets of group {group} on {', '.join(topics)}")
    for group, topic in deletion.pops:
        _say(f"delete what SimpleConsumers of group {group} have in their hands of {topic}")
    if deletion.message_count:
        _say(f"{deletion.message_count} messages stay in the log, unseen, until retention takes them")


def _say(text: str) -> None:
    click.echo(printable(text), err=True)
