"""Topics at the brokers of a cluster: made, changed, deleted. Source: UpdateTopicSubCommand.java,
UpdateTopicPermSubCommand.java, DeleteTopicSubCommand.java.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.cluster_mqadmin.common import BROKER, CLUSTER, Brokers, chosen, like, masters_of, require_route
from rmq_store.cli.mqadmin import topic as store_commands
from rmq_store.cli.mqadmin.topic import QUEUES, changed_topic
from rmq_store.cli.mqadmin_print.lines import write_line
from rmq_store.cli.mqadmin_print.topics import topic_json, topic_text
from rmq_store.cli.shared.confirm import confirm
from rmq_store.cli.shared.output import printable, write_json
from rmq_store.cli.target.cluster_target import ClusterTarget
from rmq_store.errors import UsageError
from rmq_store.protocol.attributes import attribute_changes

if TYPE_CHECKING:
    from rmq_store.protocol.bodies.topics import TopicConfig
    from rmq_store.remoting.admin.scope import BrokerProcess
    from rmq_store.remoting.cluster.cluster import Cluster


@like(store_commands.update_topic, BROKER, CLUSTER)
def update_topic(
    target: ClusterTarget,
    as_json: bool,
    topic: str,
    attributes: str | None,
    broker_address: str | None,
    cluster_name: str | None,
    **given: Any,
) -> None:
    """Make a topic of 8 queues at every master of a cluster, or at one broker, or change it there.

    For an existing topic, settings without an option stay as each broker has them; mqadmin would reset them to its
    defaults. With `-o true` the name servers also get the queues of the ordered topic.
    """
    from rmq_store.protocol.bodies.topics import TopicConfig
    from rmq_store.remoting.admin.scope import ask
    from rmq_store.remoting.admin.topics import set_order_conf, topic_config
    from rmq_store.remoting.questions.answer import checked
    from rmq_store.remoting.questions.topics import ask_create_topic

    changes = attribute_changes(attributes or "", None)
    brokers = Brokers()

    def change(process: BrokerProcess) -> TopicConfig:
        known = topic_config(cluster, process, topic)
        default = TopicConfig(topic_name=topic, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
        after = changed_topic(known or default, given, changes)
        ask(cluster, process, ask_create_topic(cluster, after, changes), checked)
        return after

    with target.open() as cluster:
        answers = brokers.ask_each(chosen(cluster, broker_address, cluster_name), change)
        if given["order"] and answers:
            counts = {process.broker_name: after.write_queue_nums for process, after in answers}
            text = set_order_conf(cluster, topic, counts, replaces=broker_address is None)
            what = "cluster" if broker_address is None else "broker"
            click.echo(printable(f"set {what} orderConf. isOrder=true, orderConf=[{text}]"), err=True)
    if as_json:
        write_json([_json(process, after) for process, after in answers])
    else:
        for process, _ in answers:
            write_line("create topic to %s success.", process.address)
        for after in dict.fromkeys(topic_text(after) for _, after in answers):
            write_line("%s", after)
    brokers.tell()


@like(store_commands.update_topic_perm, BROKER, CLUSTER)
def update_topic_perm(
    target: ClusterTarget,
    as_json: bool,
    topic: str,
    perm: int,
    broker_address: str | None,
    cluster_name: str | None,
) -> None:
    """Set the permissions of a topic at every master of a cluster that has it, or at one broker; its other settings
    stay."""
    from dataclasses import replace

    from rmq_store.remoting.admin.scope import ask
    from rmq_store.remoting.admin.topics import topic_config
    from rmq_store.remoting.questions.answer import checked
    from rmq_store.remoting.questions.topics import ask_create_topic

    brokers = Brokers()

    def change(process: BrokerProcess) -> tuple[int, TopicConfig] | None:
        known = topic_config(cluster, process, topic)
        if known is None:
            return None
        after = replace(known, topic_name=topic, perm=perm)
        if known.perm != perm:
            ask(cluster, process, ask_create_topic(cluster, after, {}), checked)
        return known.perm, after

    with target.open() as cluster:
        having = {one.broker_name for one in masters_of(require_route(cluster, topic))}
        wanted = [one for one in chosen(cluster, broker_address, cluster_name) if one.broker_name in having]
        answers = brokers.ask_each(wanted, change)
    if not answers and not brokers.failed:
        chosen_by = broker_address or cluster_name
        raise UsageError(
            f"no broker{f' of {chosen_by!r}' if chosen_by else ''} has the topic {topic!r}; brokers that have it: "
            f"{', '.join(sorted(having))}"
        )
    if as_json:
        write_json([_json(process, after) for process, (_, after) in answers])
        brokers.tell()
        return
    for process, (before, after) in answers:
        if before == perm:
            write_line("new perm equals to the old one! (%s)", process.address)
        else:
            write_line("update topic perm from %s to %s in %s success.", before, perm, process.address)
            write_line("%s.", topic_text(after))
    brokers.tell()


@like(store_commands.delete_topic, CLUSTER)
def delete_topic(
    target: ClusterTarget, as_json: bool, topic: str, dry_run: bool, yes: bool, cluster_name: str | None
) -> None:
    """Delete a topic with its messages at every master of a cluster, and then its route at the name servers.

    Brokers delete at once, whoever is sending or consuming: stderr names the groups that have members or offsets, and
    brokers that do not tell theirs. If a broker refuses or does not answer, the route stays, so that the command can be
    repeated.
    """
    from rmq_store.remoting.admin.scope import ask, the_cluster_name
    from rmq_store.remoting.admin.topics import delete_route
    from rmq_store.remoting.questions.answer import checked
    from rmq_store.remoting.questions.topics import ask_delete_topic

    brokers = Brokers()
    with target.open() as cluster:
        name = cluster_name or the_cluster_name(cluster)
        masters = _holders(cluster, topic, name)
        groups = _groups(cluster, masters, topic)
        for process in masters:
            text = f"delete topic {topic} with its messages at broker {process.broker_name} ({process.address})"
            click.echo(printable(text), err=True)
        if groups:
            click.echo(printable(f"groups with members or offsets: {', '.join(groups)}"), err=True)
        if not dry_run:
            confirm(f"Delete topic {printable(topic)}?", yes=yes)
            for process in masters:
                brokers.ask(process, partial(ask, cluster, process, ask_delete_topic(cluster, topic), checked))
            if not brokers.failed:
                delete_route(cluster, topic, name)
    failed = {process for process, _ in brokers.failed}
    if as_json:
        done = [] if dry_run else [one.broker_name for one in masters if one not in failed]
        write_json({"deleted": not dry_run and not failed, "topics": [topic], "brokers": done, "groups": groups})
    elif not dry_run and not failed:
        write_line("delete topic [%s] from cluster [%s] success.", topic, name)
        write_line("delete topic [%s] from NameServer success.", topic)
    brokers.tell()


def _holders(cluster: Cluster, topic: str, cluster_name: str) -> list[BrokerProcess]:
    """The masters of the cluster, those included that the route does not show: a broker may have registered the topic
    nowhere, or have no master now. mqadmin asks all of them, too.
    """
    from rmq_store.remoting.admin.scope import masters

    require_route(cluster, topic)
    return masters(cluster, cluster_name)


def _groups(cluster: Cluster, masters: list[BrokerProcess], topic: str) -> list[str]:
    from rmq_store.remoting.admin.groups import topic_groups

    asked = Brokers()
    answers = asked.ask_each(masters, lambda one: topic_groups(cluster, [one], topic))
    asked.tell_unknown("groups with members or offsets")
    return sorted({group for _, found in answers for group in found})


def _json(process: BrokerProcess, after: TopicConfig) -> dict[str, Any]:
    return {"brokerName": process.broker_name, "brokerAddr": process.address, **topic_json(after)}


COMMANDS = (update_topic, update_topic_perm, delete_topic)
