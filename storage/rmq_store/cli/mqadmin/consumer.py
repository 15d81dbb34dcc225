"""Consumer groups as mqadmin shows, makes, changes and deletes them. Source: tools/command/consumer/*.java,
ConsumerConnectionSubCommand.java.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rmq_store.cli.mqadmin.common import (
    EMBEDDED,
    broker_address,
    cluster_name,
    deletion_json,
    mqadmin_options,
    write_deletion,
)
from rmq_store.cli.mqadmin.progress import consumer_progress
from rmq_store.cli.mqadmin_print.groups import group_json, group_text, write_connections, write_group
from rmq_store.cli.mqadmin_print.lines import write_line
from rmq_store.cli.shared.completion import GROUP
from rmq_store.cli.shared.confirm import changing_options, confirm
from rmq_store.cli.shared.name_lookup import require_group
from rmq_store.cli.shared.output import open_store, open_to_write, printable, write_json
from rmq_store.errors import ResponseError, UsageError
from rmq_store.protocol.attributes import attribute_changes

if TYPE_CHECKING:
    from rmq_store import SubscriptionGroup
    from rmq_store.protocol.bodies.groups import SubscriptionGroupConfig

    Settings = TypeVar("Settings", SubscriptionGroup, SubscriptionGroupConfig)

# GroupRetryPolicyType.java
_RETRY_POLICIES = ("EXPONENTIAL", "CUSTOMIZED")

# ResponseCode.java
_CONSUMER_NOT_ONLINE = 206


@click.command(
    "updateSubGroup",
    short_help="Make a consumer group, or change one.",
    epilog="\b\nExample:\n  rmq updateSubGroup -g cg_orders -r 5 --store /data/store",
)
@mqadmin_options()
@click.option("-g", "--groupName", "group", type=GROUP, required=True, help="Name of the group.")
@click.option("-s", "--consumeEnable", "consume_enable", type=bool, help="Whether the group may consume.")
@click.option(
    "-m", "--consumeFromMinEnable", "consume_from_min_enable", type=bool, help="Stored for brokers; not used here."
)
@click.option(
    "-d", "--consumeBroadcastEnable", "consume_broadcast_enable", type=bool,
    help="Whether clients of a served store may consume in BROADCASTING.",
)
@click.option(
    "-o", "--consumeMessageOrderly", "consume_message_orderly", type=bool, help="Whether the group consumes in order."
)
@click.option(
    "-q", "--retryQueueNums", "retry_queue_nums", type=click.IntRange(0), help="Number of queues of its %RETRY% topic."
)
@click.option(
    "-r",
    "--retryMaxTimes",
    "retry_max_times",
    type=int,
    help="Number of retries before a message becomes a dead letter.",
)
@click.option("-i", "--brokerId", "broker_id", type=int, help="Stored for brokers; not used here.")
@click.option(
    "-w",
    "--whichBrokerWhenConsumeSlowly",
    "which_broker_when_consume_slowly",
    type=int,
    help="Stored for brokers; not used here.",
)
@click.option(
    "-a",
    "--notifyConsumerIdsChanged",
    "notify_consumer_ids_changed_enable",
    type=bool,
    help="Stored for brokers; not used here.",
)
@click.option("-p", "--groupRetryPolicy", "policy", metavar="JSON", help="When clients over gRPC repeat a message.")
@click.option(
    "--attributes", metavar="+K=V,-K", help="Attributes to set and to remove. Stored for brokers; not used here."
)
def update_sub_group(
    root: Path, as_json: bool, group: str, policy: str | None, attributes: str | None, **given: Any
) -> None:
    """Make a consumer group, or change one.

    A new group gets mqadmin's defaults: neither consumeFromMinEnable nor consumeBroadcastEnable. For an existing group,
    settings without an option stay as they are; mqadmin would reset them to its defaults.
    """
    from rmq_store import Store, SubscriptionGroup

    named = {name: value for name, value in given.items() if value is not None}
    if policy is not None:
        named["group_retry_policy"] = retry_policy(policy)
    changes = attribute_changes(attributes or "", None)
    default = SubscriptionGroup(group, consume_broadcast_enable=False, consume_from_min_enable=False)
    with Store.open(root) as store:
        after = store.admin.update_group(group, lambda known: changed_group(known, named, changes), default=default)
        address = broker_address(store)
    if as_json:
        write_json(group_json(after))
        return
    write_line("create subscription group to %s success.", address)
    write_line("%s", group_text(after))


@click.command(
    "deleteSubGroup",
    short_help="Delete a consumer group.",
    epilog="\b\nExample:\n  rmq deleteSubGroup -g cg_orders -r true --dry-run --store /data/store",
)
@mqadmin_options()
@changing_options
@click.option("-g", "--groupName", "group", type=GROUP, required=True, help="Name of the group.")
@click.option(
    "-r",
    "--removeOffset",
    "remove_offsets",
    type=bool,
    default=False,
    help="true: also delete its offsets and topics, see above.",
)
def delete_sub_group(root: Path, as_json: bool, group: str, remove_offsets: bool, dry_run: bool, yes: bool) -> None:
    """Delete the settings of a consumer group. If the group comes back, it continues at its offsets.

    With `-r true` the command also deletes the group's offsets, its unacknowledged messages of SimpleConsumers, its
    %RETRY% topic, and its %DLQ% topic with the dead letters (`rmq dlq export` saves them). Their messages stay in the
    log, unreadable, until retention deletes them.
    """
    from rmq_store.broker.monitoring.active_consumers import require_idle

    with open_store(root) as store:
        try:
            deletion = store.admin.plan_group_deletion(group, remove_offsets=remove_offsets)
        except UsageError:
            require_group(store, group)
            raise
        write_deletion(deletion)
        if not dry_run:
            require_idle(store, group)
    if not dry_run:
        confirm(f"Delete group {printable(group)}?", yes=yes)
        with open_to_write(root) as store:
            require_idle(store, group)
            deletion = store.admin.delete_group(group, remove_offsets=remove_offsets)
            address = broker_address(store)
    if as_json:
        write_json({"deleted": not dry_run, **deletion_json(deletion)})
    elif not dry_run:
        write_line("delete subscription group [%s] from broker [%s] success.", group, address)


@click.command(
    "getConsumerConfig",
    short_help="Settings of a consumer group.",
    epilog="\b\nExample:\n  rmq getConsumerConfig -g cg_orders --store /data/store",
)
@mqadmin_options("n")
@click.option("-g", "--groupName", "group", type=GROUP, required=True, help="Name of the group.")
def get_consumer_config(root: Path, as_json: bool, group: str) -> None:
    """Settings of a consumer group."""
    with open_store(root) as store:
        settings = store.groups().get(group)
        if settings is None:
            raise UsageError(f"group {require_group(store, group)!r} has no settings; consumers use the defaults")
        cluster, broker = cluster_name(store), store.broker_name
    if as_json:
        write_json(group_json(settings))
    else:
        write_group(f"{cluster}:{broker}", settings)


@click.command(
    "consumerConnection",
    short_help="Members of a group that are running now.",
    epilog="\b\nExample:\n  rmq consumerConnection -g cg_orders --store /data/store",
)
@mqadmin_options("nb")
@click.option("-g", "--consumerGroup", "group", type=GROUP, required=True, help="Name of the group.")
def consumer_connection(root: Path, as_json: bool, group: str) -> None:
    """Members of a group that are running now: streams, push and lite pull consumers. SimpleConsumers are not
    connected.

    Exit code 1 if there is none.
    """
    from rmq_store.broker.metadata.groups import FilterTable
    from rmq_store.broker.metadata.leases import live_leases

    with open_store(root) as store:
        require_group(store, group)
        asked = {entry.topic: entry.expression for entry in FilterTable(root).all() if entry.group == group}
        topics = {topic: asked.get(topic, "*") for topic, _ in sorted(store.committed_offsets(group))}
    members = sorted({(lease.owner, lease.pid) for lease in live_leases(root, group)}, key=str)
    if not members:
        raise ResponseError(_CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online")
    if as_json:
        owners = [{"clientId": owner, "pid": pid} for owner, pid in members]
        write_json({"group": group, "connections": owners, "subscriptions": topics})
        return
    clients = [(owner or "-", "-" if pid is None else f"process {pid}", "PYTHON", EMBEDDED) for owner, pid in members]
    write_connections(clients, topics)


def changed_group(known: Settings, named: Mapping[str, Any], attributes: Mapping[str, str | None]) -> Settings:
    """The settings with those that are named by options of updateSubGroup."""
    kept = {name: value for name, value in (known.attributes or {}).items() if name not in attributes}
    added = {name: value for name, value in attributes.items() if value is not None}
    return replace(known, **named, attributes={**kept, **added})


def retry_policy(text: str) -> dict[str, Any]:
    """GroupRetryPolicy.java as JSON. UsageError."""
    try:
        policy = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"-p {text!r} is no JSON: {error}") from error
    if not isinstance(policy, dict) or policy.get("type") not in _RETRY_POLICIES:
        raise UsageError(f"-p {text!r}: an object whose type is one of {', '.join(_RETRY_POLICIES)}")
    return policy


COMMANDS = (consumer_progress, update_sub_group, delete_sub_group, get_consumer_config, consumer_connection)
