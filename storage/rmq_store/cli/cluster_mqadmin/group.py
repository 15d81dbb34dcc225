"""Consumer groups at the brokers of a cluster. Source: UpdateSubGroupSubCommand.java,
DeleteSubscriptionGroupCommand.java, GetConsumerConfigSubCommand.java, ConsumerConnectionSubCommand.java.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.cluster_mqadmin.common import BROKER, CLUSTER, Brokers, chosen, like
from rmq_store.cli.mqadmin import consumer as store_commands
from rmq_store.cli.mqadmin.consumer import changed_group, retry_policy
from rmq_store.cli.mqadmin_print.groups import group_json, group_text, write_connections, write_group
from rmq_store.cli.mqadmin_print.lines import write_line
from rmq_store.cli.shared.confirm import confirm
from rmq_store.cli.shared.output import printable, write_json
from rmq_store.cli.target.cluster_target import ClusterTarget
from rmq_store.errors import ResponseError, UsageError
from rmq_store.protocol.attributes import attribute_changes

if TYPE_CHECKING:
    from rmq_store.protocol.bodies.groups import Connection, SubscriptionGroupConfig
    from rmq_store.remoting.admin.scope import BrokerProcess

# ResponseCode.java
_CONSUMER_NOT_ONLINE = 206


@like(store_commands.update_sub_group, BROKER, CLUSTER)
def update_sub_group(
    target: ClusterTarget,
    as_json: bool,
    group: str,
    policy: str | None,
    attributes: str | None,
    broker_address: str | None,
    cluster_name: str | None,
    **given: Any,
) -> None:
    """Make a consumer group at every master of a cluster, or at one broker, or change it there.

    A new group gets mqadmin's defaults: neither consumeFromMinEnable nor consumeBroadcastEnable. For an existing group,
    settings without an option stay as each broker has them; mqadmin would reset them to its defaults.
    """
    from rmq_store.protocol.bodies.groups import SubscriptionGroupConfig
    from rmq_store.remoting.admin.groups import group_config
    from rmq_store.remoting.admin.scope import ask
    from rmq_store.remoting.questions.answer import checked
    from rmq_store.remoting.questions.groups import ask_update_group

    named = {name: value for name, value in given.items() if value is not None}
    if policy is not None:
        named["group_retry_policy"] = retry_policy(policy)
    changes = attribute_changes(attributes or "", None)
    brokers = Brokers()

    def change(process: BrokerProcess) -> SubscriptionGroupConfig:
        default = SubscriptionGroupConfig(
            group_name=cluster.wire_group(group), consume_broadcast_enable=False, consume_from_min_enable=False
        )
        after = changed_group(group_config(cluster, process, group) or default, named, changes)
        # A broker takes attributes as changes, in the spelling of the option.
        asked = {f"-{name}" if value is None else f"+{name}": value or "" for name, value in changes.items()}
        ask(cluster, process, ask_update_group(replace(after, attributes=asked or None)), checked)
        return replace(after, group_name=group)

    with target.open() as cluster:
        answers = brokers.ask_each(chosen(cluster, broker_address, cluster_name), change)
    if as_json:
        write_json([{**_place(process), **group_json(after)} for process, after in answers])
    else:
        for process, _ in answers:
            write_line("create subscription group to %s success.", process.address)
        for text in dict.fromkeys(group_text(after) for _, after in answers):
            write_line("%s", text)
    brokers.tell()


@like(store_commands.delete_sub_group, BROKER, CLUSTER)
def delete_sub_group(
    target: ClusterTarget,
    as_json: bool,
    group: str,
    remove_offsets: bool,
    dry_run: bool,
    yes: bool,
    broker_address: str | None,
    cluster_name: str | None,
) -> None:
    """Delete the settings of a consumer group at every master of a cluster, or at one broker. If the group comes back,
    it continues at its offsets.

    With `-r true` the brokers also delete the group's offsets, and with -c its %RETRY% and %DLQ% topics with all dead
    letters. (mqadmin deletes these two topics always.) Stderr names members that run, and brokers that do not
    tell theirs.
    """
    from rmq_store.format.text.names import dlq_topic, retry_topic
    from rmq_store.remoting.admin.scope import ask
    from rmq_store.remoting.admin.topics import delete_route
    from rmq_store.remoting.questions.answer import checked
    from rmq_store.remoting.questions.groups import (
        ask_consumer_connections,
        ask_delete_group,
        read_consumer_connections,
    )
    from rmq_store.remoting.questions.topics import ask_delete_topic

    brokers = Brokers()
    with target.open() as cluster:
        processes = chosen(cluster, broker_address, cluster_name)
        own = [] if broker_address is not None or not remove_offsets else [retry_topic(group), dlq_topic(group)]
        own = [topic for topic in own if cluster.refresh_route(topic) is not None]
        what = "settings and offsets" if remove_offsets else "settings"
        for process in processes:
            text = f"delete the {what} of group {group} at broker {process.broker_name} ({process.address})"
            click.echo(printable(text), err=True)
        for topic in own:
            click.echo(printable(f"delete topic {topic} with its messages at these brokers"), err=True)
        asked = Brokers()
        command = ask_consumer_connections(cluster, group)
        online = asked.ask_each(processes, partial(ask, cluster, command=command, read=read_consumer_connections))
        asked.tell_unknown("running members")
        members = sorted({one.client_id for _, found in online for one in found.connection_set})
        if members:
            click.echo(printable(f"running members: {', '.join(members)}"), err=True)
        if not dry_run:
            confirm(f"Delete group {printable(group)}?", yes=yes)
            for process in processes:
                order = ask_delete_group(cluster, group, clean_offset=remove_offsets)
                brokers.ask(process, partial(ask, cluster, process, order, checked))
                for topic in own:
                    brokers.ask(process, partial(ask, cluster, process, ask_delete_topic(cluster, topic), checked))
            for topic in [] if brokers.failed else own:
                delete_route(cluster, topic, processes[0].cluster_name)
    failed = {process for process, _ in brokers.failed}
    done = [] if dry_run else [process for process in processes if process not in failed]
    if as_json:
        names = [process.broker_name for process in done]
        found = {"deleted": bool(done) and not failed, "groups": [group], "topics": own, "brokers": names}
        write_json({**found, "members": members})
    for process in [] if as_json else done:
        where = "" if broker_address is not None else f" in cluster [{process.cluster_name}]"
        write_line("delete subscription group [%s] from broker [%s]%s success.", group, process.address, where)
    brokers.tell()


@like(store_commands.get_consumer_config)
def get_consumer_config(target: ClusterTarget, as_json: bool, group: str) -> None:
    """Settings of a consumer group at each broker that has them."""
    from rmq_store.remoting.admin.groups import group_config
    from rmq_store.remoting.admin.scope import masters

    brokers = Brokers()
    with target.open() as cluster:
        answers = brokers.ask_each(masters(cluster), lambda one: group_config(cluster, one, group))
    if not answers and not brokers.failed:
        raise UsageError(f"no broker of the cluster has settings of a group {group[:255]!r}")
    found = [(process, replace(settings, group_name=group)) for process, settings in answers if settings]
    if as_json:
        write_json([{**_place(process), **group_json(settings)} for process, settings in found])
    for process, settings in [] if as_json else found:
        write_group(f"{process.cluster_name}:{process.broker_name}", settings)
    brokers.tell()


@like(store_commands.consumer_connection, BROKER)
def consumer_connection(target: ClusterTarget, as_json: bool, group: str, broker_address: str | None) -> None:
    """Members of a group that are connected now, from all masters, or from one broker: a member that one of them does
    not know is shown all the same.

    Exit code 1 if there is none.
    """
    from rmq_store.remoting.admin.scope import ask, masters, process_at
    from rmq_store.remoting.admin.versions import version_name
    from rmq_store.remoting.questions.groups import ask_consumer_connections, read_consumer_connections

    brokers = Brokers()
    with target.open() as cluster:
        processes = masters(cluster) if broker_address is None else [process_at(cluster, broker_address)]
        command = ask_consumer_connections(cluster, group)
        answers = brokers.ask_each(processes, partial(ask, cluster, command=command, read=read_consumer_connections))
        plain = cluster.plain_name
        topics = {
            plain(topic): one.sub_string
            for _, found in answers
            for topic, one in sorted(found.subscription_table.items())
        }
    clients: dict[str, Connection] = {one.client_id: one for _, found in answers for one in found.connection_set}
    if not clients:
        if brokers.failed:
            raise brokers.failed[0][1]
        raise ResponseError(_CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online")
    rows = [
        (one.client_id, one.client_addr, one.language, version_name(one.version)) for _, one in sorted(clients.items())
    ]
    first = answers[0][1]
    if as_json:
        names = ("clientId", "clientAddr", "language", "version")
        found_json = {"group": group, "connections": [dict(zip(names, row, strict=True)) for row in rows]}
        kinds = {"consumeType": first.consume_type, "messageModel": first.message_model}
        write_json({**found_json, "subscriptions": topics, **kinds, "consumeFromWhere": first.consume_from_where})
    else:
        write_connections(rows, topics)
        click.echo()
        write_line("ConsumeType: %s", first.consume_type or "null")
        write_line("MessageModel: %s", first.message_model or "null")
        write_line("ConsumeFromWhere: %s", first.consume_from_where or "null")
    brokers.tell()


def _place(process: BrokerProcess) -> dict[str, Any]:
    return {"brokerName": process.broker_name, "brokerAddr": process.address}


COMMANDS = (update_sub_group, delete_sub_group, get_consumer_config, consumer_connection)
