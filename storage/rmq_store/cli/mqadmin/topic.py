"""Topics as mqadmin lists, shows, makes, changes and deletes them. Source: tools/command/topic/*.java."""

from __future__ import annotations

from typing import Any

import click

from rmq_store.cli.mqadmin.common import Target, choosing, mqadmin_command, topics_of
from rmq_store.cli.mqadmin_print.topics import (
    write_made_topics,
    write_names,
    write_perm_changes,
    write_route,
    write_topic_groups,
    write_topic_status,
)
from rmq_store.cli.mqadmin_targets.deletions import run_deletion
from rmq_store.cli.shared.completion import TOPIC
from rmq_store.cli.shared.confirm import changing_options
from rmq_store.cli.target.store_target import StoreTarget
from rmq_store.protocol.attributes import TOPIC_ATTRIBUTES, attribute_changes


@mqadmin_command(
    "topicList",
    short_help="Names of all topics.",
    epilog="\b\nExample:\n  rmq topicList -c --store /data/store",
    unneeded="n",
)
@click.option("-c", "--clusterModel", "with_groups", is_flag=True, help="Also show cluster and consumer groups.")
def topic_list(target: Target, as_json: bool, with_groups: bool) -> None:
    """Names of all topics. With -c: also cluster and consumer groups of each topic, without retry and dead-letter
    topics[cluster: ; each of the topic's brokers is asked]."""
    with topics_of(target) as topics:
        if with_groups:
            write_topic_groups(topics.with_groups(), as_json=as_json)
        else:
            write_names(topics.names(), as_json=as_json)


@mqadmin_command(
    "topicStatus",
    short_help="Offsets of a topic's queues.",
    epilog="\b\nExample:\n  rmq topicStatus -t Orders --store /data/store",
    unneeded="nc",
)
@click.option("-t", "--topic", type=TOPIC, required=True, help="Name of the topic.")
@choosing("c")
def topic_status(target: Target, as_json: bool, topic: str, **chosen: str | None) -> None:
    """Offsets of a topic's queues[cluster:  at each of its masters], and the store time of the newest message of each
    (UTC).

    [cluster: Brokers before 5.3 do not tell of a queue that may be read, not written: it is asked for by itself, and
    the time is missing.]
    """
    with topics_of(target, chosen) as topics:
        write_topic_status(topics.status(topic), as_json=as_json)


@mqadmin_command(
    "topicRoute",
    short_help="Route of a topic: its broker and queues.",
    epilog="\b\nExample:\n  rmq topicRoute -t Orders -l --store /data/store",
    unneeded="n",
)
@click.option("-t", "--topic", type=TOPIC, required=True, help="Name of the topic.")
@click.option("-l", "--list", "as_list", is_flag=True, help="Print a table.")
def topic_route(target: Target, as_json: bool, topic: str, as_list: bool) -> None:
    """Route of a topic, as a name server [store: would answer it: the store is the only broker.][cluster: answers it
    now: its brokers, their addresses and queues.]"""
    with topics_of(target) as topics:
        write_route(topics.route(topic), as_json=as_json, as_list=as_list)


@mqadmin_command(
    "topicClusterList",
    short_help="The cluster of a topic.",
    epilog="\b\nExample:\n  rmq topicClusterList -t Orders --store /data/store",
    unneeded="n",
)
@click.option("-t", "--topic", type=TOPIC, required=True, help="Name of the topic.")
def topic_cluster_list(target: Target, as_json: bool, topic: str) -> None:
    """[store: The cluster of a topic.][cluster: The clusters that have a topic.]"""
    with topics_of(target) as topics:
        write_names(topics.clusters(topic), as_json=as_json)


@mqadmin_command(
    "updateTopic",
    short_help="Make a topic, or change one.",
    epilog="\b\nExamples:\n  rmq updateTopic -t Orders -r 8 -w 8 --store /data/store\n"
    "  rmq updateTopic -t Orders -a +message.type=FIFO --store /data/store",
)
@click.option("-t", "--topic", type=TOPIC, required=True, help="Name of the topic.")
@click.option("-r", "--readQueueNums", "read_queues", type=click.IntRange(0), help="Number of queues that are read.")
@click.option(
    "-w", "--writeQueueNums", "write_queues", type=click.IntRange(0), help="Number of queues that get new messages."
)
@click.option("-p", "--perm", type=click.IntRange(0, 7), help="2: write, 4: read, 6: both.")
@click.option("-o", "--order", type=bool, help="Whether it is an ordered topic.")
@click.option("-u", "--unit", type=bool, help="Whether it is a unit topic (bit 0 of topicSysFlag).")
@click.option("-s", "--hasUnitSub", "unit_sub", type=bool, help="Whether it has unit subscribers (bit 1).")
@click.option("-a", "--attributes", metavar="+K=V,-K", help="Attributes to set and to remove.")
@choosing("bc")
def update_topic(
    target: Target, as_json: bool, topic: str, attributes: str | None, broker_address: str | None = None,
    cluster_name: str | None = None, **given: Any,
) -> None:  # fmt: skip
    """Make a topic of 8 queues[cluster:  at every master of a cluster, or at one broker], or change [store: one.]
    [cluster: it there.]

    For an existing topic, settings without an option stay as [store: they are][cluster: each broker has them]; mqadmin
    would reset them to its defaults. [store: A topic that was deleted before continues at its old end: old messages
    that retention has not deleted can be read again.][cluster: With `-o true` the name servers also get the queues of
    the ordered topic.]
    """
    # A broker checks the names of attributes itself.
    known = TOPIC_ATTRIBUTES if isinstance(target, StoreTarget) else None
    changes = attribute_changes(attributes or "", known)
    chosen = {"broker_address": broker_address, "cluster_name": cluster_name}
    with topics_of(target, chosen, to_write=True) as topics:
        write_made_topics(topics.update(topic, given, changes), as_json=as_json)


@mqadmin_command(
    "updateTopicPerm",
    short_help="Set the permissions of a topic.",
    epilog="\b\nExample:\n  rmq updateTopicPerm -t Orders -p 4 --store /data/store",
)
@click.option("-t", "--topic", type=TOPIC, required=True, help="Name of the topic.")
@click.option("-p", "--perm", required=True, type=click.IntRange(0, 7), help="2: write, 4: read, 6: both.")
@choosing("bc")
def update_topic_perm(target: Target, as_json: bool, topic: str, perm: int, **chosen: str | None) -> None:
    """Set the permissions of a topic[cluster:  at every master of a cluster that has it, or at one broker]; its other
    settings stay."""
    with topics_of(target, chosen, to_write=True) as topics:
        write_perm_changes(topics.update_perm(topic, perm), as_json=as_json)


@mqadmin_command(
    "deleteTopic",
    short_help="Delete a topic and the offsets on it.",
    epilog="\b\nExample:\n  rmq deleteTopic -t Orders --dry-run --store /data/store",
)
@changing_options
@click.option("-t", "--topic", type=TOPIC, required=True, help="Name of the topic.")
@choosing("c")
def delete_topic(
    target: Target, as_json: bool, topic: str, dry_run: bool, yes: bool, **chosen: str | None
) -> None:
    """[store: Delete a topic: its settings, and every group's offsets on it.][cluster: Delete a topic with its messages
    at every master of a cluster, and then its route at the name servers.]

    [store: Its messages stay in the log until retention deletes them. If the topic is made again under this name, it
    continues at its old end, and old messages that are still there can be read again. A broker would start at 0, and
    after a rebuild of the queues have two messages for one offset.]

    [cluster: Brokers delete at once, whoever is sending or consuming: stderr names the groups that have members or
    offsets, and brokers that do not tell theirs. If a broker refuses or does not answer, the route stays, so that the
    command can be repeated.]
    """
    with topics_of(target, chosen) as topics:
        run_deletion(topics.deletion(topic), as_json=as_json, dry_run=dry_run, yes=yes)


COMMANDS = (
    topic_list, topic_status, topic_route, topic_cluster_list, update_topic, update_topic_perm, delete_topic,
)  # fmt: skip
