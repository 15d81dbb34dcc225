"""`rmq topics`: the topics of a store or a cluster, with their messages and queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.shared.output import tell, wide_option, write_json, write_table
from rmq_store.cli.target.command import target_command
from rmq_store.cli.target.rows import TopicRow, away_json, queue_json, queue_name, together

if TYPE_CHECKING:
    from rmq_store.cli.target.view import Target


@target_command(
    short_help="Topics, their queues, and the number of messages in them.",
    epilog="\b\nExample:\n  rmq topics --store /data/rocketmq/store --queues",
    cluster_epilog="\b\nExample:\n  rmq -n 'ns1:9876;ns2:9876' topics --queues",
)
@wide_option
@click.option("--queues", "per_queue", is_flag=True, help="One line per queue instead of sums per topic.")
@click.option("--all", "show_all", is_flag=True, help="Also system topics, and topics that cannot be read.")
def topics(target: Target, as_json: bool, per_queue: bool, show_all: bool) -> None:
    """Topics, their queues, and the number of messages in them[cluster: , over all brokers that have the topic].

    MIN is the first offset that can be read, MAX the offset of the next message. Without --queues they are sums over
    the queues, so that MESSAGES = MAX - MIN on every line. [cluster: A queue is named by its broker and its number.]
    PERM: R can be read, W can be written, X is inherited[store: .][cluster: ; of several brokers what all of them
    allow.]
    [store: MESSAGES also shows which topics are stored in a form that is not read here (docs/stores.md).]

    [store: A topic with * after its name has queues, but no entry in config/topics.json. It can be read by its exact
    name. `rmq repair` adds it to the table, `rmq deleteTopic` removes it from this list.]

    [cluster: The slave of a master that does not answer is asked, and its ends may lag behind. Exit code 1 if neither
    answers: then the numbers of its queues are `?`, in a sum as 12+?, and null in JSON; stderr says why.]
    """
    with target.view(tell) as view:
        found = view.topics(show_all=show_all)
    write_topics(found, as_json=as_json, per_queue=per_queue)
    view.failures.report()


def write_topics(found: Sequence[TopicRow], *, as_json: bool, per_queue: bool) -> None:
    """Print topics."""
    if as_json:
        write_json([_json(topic) for topic in found])
    elif per_queue:
        rows = [
            (_marked(topic), queue_name(*queue[:2]), topic.perm, *(number.cell for number in queue[2:]))
            for topic in found
            for queue in topic.queues
        ]
        write_table(("TOPIC", "QUEUE", "PERM", "MIN", "MAX", "MESSAGES"), rows, flexible=("TOPIC",))
    else:
        columns = ("TOPIC", "QUEUES", "PERM", "MIN", "MAX", "MESSAGES")
        write_table(columns, [_sums(topic) for topic in found], flexible=("TOPIC",))
    if not as_json and any(not topic.in_table for topic in found):
        click.echo("* not in config/topics.json: see `rmq topics --help`", err=True)


def _json(topic: TopicRow) -> dict[str, Any]:
    return {
        "topic": topic.topic,
        "readQueues": topic.read_queue_nums,
        "writeQueues": topic.write_queue_nums,
        "perm": topic.perm,
        "messages": None if topic.messages is None else topic.messages.exact,
        "queues": [
            {
                **queue_json(one.broker_name, one.queue_id),
                "minOffset": one.min_offset.exact,
                "maxOffset": one.max_offset.exact,
            }
            for one in topic.queues
        ],
        "inTable": topic.in_table,
        **({} if topic.kind is None else {"kind": topic.kind}),
        **away_json(() if topic.messages is None else topic.messages.away),
    }


def _marked(topic: TopicRow) -> str:
    return topic.topic + ("" if topic.in_table else " *")


def _sums(topic: TopicRow) -> tuple[str | int, ...]:
    if topic.messages is None:
        return _marked(topic), topic.read_queue_nums, topic.perm, "-", "-", f"not read: {topic.kind}"
    lowest = together(one.min_offset for one in topic.queues)
    highest = together(one.max_offset for one in topic.queues)
    return _marked(topic), len(topic.queues), topic.perm, lowest.cell, highest.cell, topic.messages.cell
