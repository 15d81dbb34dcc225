"""Offsets of one group on a topic that are set to those of another. Source: CloneGroupOffsetCommand.java.

mqadmin's clone writes the ends of the queues, not the offsets of the source, and it does so for all topics of the
source: here the offsets of one topic are copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.cluster_mqadmin.common import Brokers, like, masters_of, require_route
from rmq_store.cli.mqadmin import offset as store_commands
from rmq_store.cli.mqadmin_print.lines import write_line
from rmq_store.cli.shared.confirm import confirm
from rmq_store.cli.shared.output import printable, write_json
from rmq_store.cli.target.cluster_target import ClusterTarget
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store.protocol.messages import MessageQueue
    from rmq_store.remoting.admin.scope import BrokerProcess
    from rmq_store.remoting.cluster.cluster import Cluster


@like(store_commands.clone_group_offset)
def clone_group_offset(
    target: ClusterTarget, as_json: bool, source: str, target_group: str, topic: str, dry_run: bool, yes: bool
) -> None:
    """Set a group's offsets on a topic to those of another group. The group that gets them must have no members: they
    would write their own offsets again.

    A broker that has a reset for the group which is not delivered yet keeps that one: stderr says so, and the exit code
    is 1. Brokers of 4.x do not tell offset 0 from no offset: stderr names queues that are left out for it.
    """
    from rmq_store.remoting.cluster import offsets

    kept: dict[MessageQueue, int] = {}
    with target.open() as cluster:
        route = require_route(cluster, topic)
        ends = offsets.queue_ranges(cluster, route.read_queues())
        given = _offsets_of(cluster, source, route.read_queues())
        if not given:
            raise UsageError(f"group {source!r} has no offsets on topic {topic!r}: nothing to clone")
        now = offsets.query_consumer_offsets(cluster, target_group, given)
        for queue, then in given.items():
            before = str(now[queue].offset) if queue in now else "no offset"
            _tell(queue, f"{before} -> {then}")
        names = _members(cluster, masters_of(route), target_group)
        if names and not dry_run:
            raise UsageError(f"group {target_group!r} has running members, stop them first: {', '.join(names)}")
        if not dry_run:
            confirm(f"Set {len(given)} offsets of group {printable(target_group)}?", yes=yes)
            _require_group(cluster, masters_of(route), target_group)
            stands = offsets.update_consumer_offsets(cluster, target_group, given)
            kept = {queue: stands[queue] for queue, then in given.items() if stands[queue] != then}
    if as_json:
        rows = [
            queue_json(
                queue, ends[queue].max_offset, now[queue].offset if queue in now else None, kept.get(queue, then)
            )
            for queue, then in given.items()
        ]
        write_json({"reset": not dry_run and not kept, "queues": rows})
    elif not dry_run and not kept:
        write_line("clone group offset success. srcGroup[%s], destGroup=[%s], topic[%s]", source, target_group, topic)
    for queue, offset in kept.items():
        _tell(queue, f"stays at {offset}: another reset is pending")
    if kept:
        raise click.exceptions.Exit(1)


def queue_json(queue: MessageQueue, end: int, now: int | None, then: int) -> dict[str, Any]:
    """A queue of a reset: its end, and the group's offset before and after."""
    return {
        "topic": queue.topic,
        "brokerName": queue.broker_name,
        "queueId": queue.queue_id,
        "brokerOffset": end,
        "consumerOffset": now,
        "resetOffset": then,
    }


def _tell(queue: MessageQueue, text: str) -> None:
    click.echo(printable(f"{queue.topic} {queue.broker_name} queue {queue.queue_id}: {text}"), err=True)


def _offsets_of(cluster: Cluster, group: str, queues: list[MessageQueue]) -> Mapping[MessageQueue, int]:
    """The group's offsets, without those that may be none: stderr names these queues."""
    from rmq_store.remoting.cluster import offsets

    found = sorted(offsets.query_consumer_offsets(cluster, group, queues).items())
    for queue, one in found:
        if one.may_be_none:
            text = f"left out: the broker is older than 5.0, and answers 0 whether or not {group} has an offset"
            _tell(queue, text)
    return {queue: one.offset for queue, one in found if not one.may_be_none}


def _members(cluster: Cluster, brokers: list[BrokerProcess], group: str) -> list[str]:
    """The ids of the live members. MQBrokerError, RemotingError: a broker does not tell them: there may be some."""
    from rmq_store.remoting.admin.scope import ask
    from rmq_store.remoting.questions.groups import ask_consumer_connections, read_consumer_connections

    asked = Brokers()
    command = ask_consumer_connections(cluster, group)
    answers = asked.ask_each(brokers, partial(ask, cluster, command=command, read=read_consumer_connections))
    for _, error in asked.failed:
        raise error
    return sorted({one.client_id for _, online in answers for one in online.connection_set})


def _require_group(cluster: Cluster, brokers: list[BrokerProcess], group: str) -> None:
    """Make the group where it is not: brokers of 5.x take offsets of groups that they know only."""
    from rmq_store.protocol.bodies.groups import SubscriptionGroupConfig
    from rmq_store.remoting.admin.groups import group_config
    from rmq_store.remoting.admin.scope import ask
    from rmq_store.remoting.questions.answer import checked
    from rmq_store.remoting.questions.groups import ask_update_group

    for process in brokers:
        if group_config(cluster, process, group) is None:
            made = SubscriptionGroupConfig(group_name=cluster.wire_group(group))
            ask(cluster, process, ask_update_group(made), checked)


COMMANDS = (clone_group_offset,)
