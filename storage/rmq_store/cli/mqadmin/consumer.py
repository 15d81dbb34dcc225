"""Consumer groups as mqadmin shows, makes, changes and deletes them. Source: tools/command/consumer/*.java,
ConsumerProgressSubCommand.java, ConsumerConnectionSubCommand.java.
"""

from __future__ import annotations

from typing import Any

import click

from rmq_store.cli.mqadmin.common import Target, choosing, groups_of, mqadmin_command
from rmq_store.cli.mqadmin_print.groups import write_groups, write_made_groups, write_members
from rmq_store.cli.mqadmin_print.progress import write_group_progress, write_queue_progress
from rmq_store.cli.mqadmin_targets.deletions import run_deletion
from rmq_store.cli.shared.completion import GROUP, TOPIC
from rmq_store.cli.shared.confirm import changing_options
from rmq_store.errors import ResponseError, UsageError
from rmq_store.protocol.attributes import attribute_changes

# ResponseCode.java
_CONSUMER_NOT_ONLINE = 206


@mqadmin_command(
    "consumerProgress",
    short_help="Lag of consumer groups.",
    epilog="\b\nExample:\n  rmq consumerProgress -g cg_orders --store /data/store",
    unneeded="nc",
)
@click.option("-g", "--groupName", "group", type=GROUP, help="Only this group, queue by queue.")
@click.option("-t", "--topicName", "topic", type=TOPIC, help="With -g: only this topic.")
@click.option("-s", "--showClientIP", "show_clients", type=bool, help="With -g: show the member that holds each queue.")
@choosing("c")
def consumer_progress(
    target: Target, as_json: bool, group: str | None, topic: str | None, show_clients: bool | None,
    **chosen: str | None,
) -> None:  # fmt: skip
    """Lag of consumer groups[cluster:  at all masters]: sums for all groups, or the queues of one group.

    #Diff counts the messages from the committed offset to the end, #Inflight those that were delivered and are not
    committed; the totals include the %RETRY% topics. #LastTime is the store time of the last consumed message (UTC).
    [cluster: Without -g the groups are those that have settings at a broker or a %RETRY% topic; system groups are left
    out.]
    """
    if group is None and (topic is not None or show_clients is not None):
        raise UsageError("-t and -s go with -g")
    with groups_of(target, chosen) as groups:
        if group is None:
            write_group_progress(groups.totals(), as_json=as_json)
        else:
            shows = bool(show_clients)
            progress = groups.progress(group, topic, with_clients=shows)
            write_queue_progress(group, progress, as_json=as_json, show_clients=shows)


@mqadmin_command(
    "updateSubGroup",
    short_help="Make a consumer group, or change one.",
    epilog="\b\nExample:\n  rmq updateSubGroup -g cg_orders -r 5 --store /data/store",
)
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
@choosing("bc")
def update_sub_group(
    target: Target, as_json: bool, group: str, policy: str | None, attributes: str | None,
    broker_address: str | None = None, cluster_name: str | None = None, **given: Any,
) -> None:  # fmt: skip
    """Make a consumer group[cluster:  at every master of a cluster, or at one broker], or change [store: one.]
    [cluster: it there.]

    A new group gets mqadmin's defaults: neither consumeFromMinEnable nor consumeBroadcastEnable. For an existing group,
    settings without an option stay as [store: they are][cluster: each broker has them]; mqadmin would reset them to its
    defaults.
    """
    from rmq_store.cli.mqadmin_targets.settings import retry_policy

    named = {name: value for name, value in given.items() if value is not None}
    if policy is not None:
        named["group_retry_policy"] = retry_policy(policy)
    changes = attribute_changes(attributes or "", None)
    chosen = {"broker_address": broker_address, "cluster_name": cluster_name}
    with groups_of(target, chosen, to_write=True) as groups:
        write_made_groups(groups.update(group, named, changes), as_json=as_json)


@mqadmin_command(
    "deleteSubGroup",
    short_help="Delete a consumer group.",
    epilog="\b\nExample:\n  rmq deleteSubGroup -g cg_orders -r true --dry-run --store /data/store",
)
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
@choosing("bc")
def delete_sub_group(
    target: Target, as_json: bool, group: str, remove_offsets: bool, dry_run: bool, yes: bool, **chosen: str | None
) -> None:
    """Delete the settings of a consumer group[cluster:  at every master of a cluster, or at one broker]. If the group
    comes back, it continues at its offsets.

    [store: With `-r true` the command also deletes the group's offsets, its unacknowledged messages of SimpleConsumers,
    its %RETRY% topic, and its %DLQ% topic with the dead letters (`rmq dlq export` saves them). Their messages stay in
    the log, unreadable, until retention deletes them.][cluster: With `-r true` the brokers also delete the group's
    offsets, and with -c its %RETRY% and %DLQ% topics with all dead letters. (mqadmin deletes these two topics always.)
    Stderr names members that run, and brokers that do not tell theirs.]
    """
    with groups_of(target, chosen) as groups:
        deletion = groups.deletion(group, remove_offsets=remove_offsets)
        run_deletion(deletion, as_json=as_json, dry_run=dry_run, yes=yes)


@mqadmin_command(
    "getConsumerConfig",
    short_help="Settings of a consumer group.",
    epilog="\b\nExample:\n  rmq getConsumerConfig -g cg_orders --store /data/store",
    unneeded="n",
)
@click.option("-g", "--groupName", "group", type=GROUP, required=True, help="Name of the group.")
def get_consumer_config(target: Target, as_json: bool, group: str) -> None:
    """Settings of a consumer group[cluster:  at each broker that has them]."""
    with groups_of(target) as groups:
        write_groups(groups.settings(group), as_json=as_json)


@mqadmin_command(
    "consumerConnection",
    short_help="Members of a group that are running now.",
    epilog="\b\nExample:\n  rmq consumerConnection -g cg_orders --store /data/store",
    unneeded="nb",
)
@click.option("-g", "--consumerGroup", "group", type=GROUP, required=True, help="Name of the group.")
@choosing("b")
def consumer_connection(target: Target, as_json: bool, group: str, **chosen: str | None) -> None:
    """Members of a group that are [store: running now: streams, push and lite pull consumers. SimpleConsumers are not
    connected.][cluster: connected now, from all masters, or from one broker: a member that one of them does not know is
    shown all the same.]

    Exit code 1 if there is none.
    """
    with groups_of(target, chosen) as groups:
        members = groups.members(group)
        if members is None:
            raise ResponseError(_CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online")
        write_members(group, members, as_json=as_json)


COMMANDS = (consumer_progress, update_sub_group, delete_sub_group, get_consumer_config, consumer_connection)
