"""Topics as mqadmin lists, shows, makes, changes and deletes them. Source: tools/command/topic/*.java."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rmq_store.cli.mqadmin.common import (
    broker_address,
    cluster_name,
    consumer_groups,
    deletion_json,
    mqadmin_options,
    write_deletion,
)
from rmq_store.cli.mqadmin_print.lines import write_line
from rmq_store.cli.mqadmin_print.topics import (
    QueueStatus,
    topic_json,
    topic_text,
    write_names,
    write_route,
    write_topic_groups,
    write_topic_status,
)
from rmq_store.cli.shared.completion import TOPIC
from rmq_store.cli.shared.confirm import changing_options, confirm
from rmq_store.cli.shared.name_lookup import require_topic
from rmq_store.cli.shared.output import open_store, printable, write_json
from rmq_store.errors import CorruptRecordError, LeaseHeldError, OffsetOutOfRangeError
from rmq_store.protocol.attributes import TOPIC_ATTRIBUTES, attribute_changes

if TYPE_CHECKING:
    from rmq_store import QueueRange, Store, TopicConfig
    from rmq_store.protocol.bodies.topics import TopicConfig as RemoteTopicConfig

    Settings = TypeVar("Settings", TopicConfig, RemoteTopicConfig)

QUEUES = 8
"""Of a topic that is new (UpdateTopicSubCommand)."""


@click.command(
    "topicList", short_help="Names of all topics.", epilog="\b\nExample:\n  rmq topicList -c --store /data/store"
)
@mqadmin_options("n")
@click.option("-c", "--clusterModel", "with_groups", is_flag=True, help="Also show cluster and consumer groups.")
def topic_list(root: Path, as_json: bool, with_groups: bool) -> None:
    """Names of all topics. With -c: also cluster and consumer groups of each topic, without retry and dead-letter
    topics."""
    from rmq_store.format.text.names import DLQ_PREFIX, RETRY_PREFIX

    with open_store(root) as store:
        topics, cluster = sorted(store.topics()), cluster_name(store)
        if with_groups:
            topics = [topic for topic in topics if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))]
            write_topic_groups([(cluster, topic, consumer_groups(store, topic)) for topic in topics], as_json=as_json)
            return
    write_names(topics, as_json=as_json)


@click.command(
    "topicStatus",
    short_help="Offsets of a topic's queues.",
    epilog="\b\nExample:\n  rmq topicStatus -t Orders --store /data/store",
)
@mqadmin_options("nc")
@click.option("-t", "--topic", type=TOPIC, required=True, help="Name of the topic.")
def topic_status(root: Path, as_json: bool, topic: str) -> None:
    """Offsets of a topic's queues, and the store time of the newest message of each (UTC)."""
    with open_store(root) as store:
        broker, rows = store.broker_name, []
        for queue_id, span in sorted(store.queue_ranges(require_topic(store, topic)).items()):
            rows.append(QueueStatus(broker, queue_id, *span, _newest_ms(store, topic, queue_id, span)))
    write_topic_status(rows, as_json=as_json)


@click.command(
    "topicRoute",
    short_help="Route of a topic: its broker and queues.",
    epilog="\b\nExample:\n  rmq topicRoute -t Orders -l --store /data/store",
)
@mqadmin_options("n")
@click.option("-t", "--topic", type=TOPIC, required=True, help="Name of the topic.")
@click.option("-l", "--list", "as_list", is_flag=True, help="Print a table.")
def topic_route(root: Path, as_json: bool, topic: str, as_list: bool) -> None:
    """Route of a topic, as a name server would answer it: the store is the only broker."""
    with open_store(root) as store:
        config = store.topic(require_topic(store, topic))
        broker, cluster, address = store.broker_name, cluster_name(store), broker_address(store)
    counts = config.read_queue_nums, config.write_queue_nums
    queue = {"brokerName": broker, "perm": config.perm, "readQueueNums": counts[0]}
    queue |= {"topicSysFlag": config.topic_sys_flag, "writeQueueNums": counts[1]}
    route: dict[str, Any] = {
        "brokerDatas": [{"brokerAddrs": {0: address}, "brokerName": broker, "cluster": cluster}],
        "filterServerTable": {},
        "queueDatas": [queue],
    }
    write_route(route, as_json=as_json, as_list=as_list)


@click.command(
    "topicClusterList",
    short_help="The cluster of a topic.",
    epilog="\b\nExample:\n  rmq topicClusterList -t Orders --store /data/store",
)
@mqadmin_options("n")
@click.option("-t", "--topic", type=TOPIC, required=True, help="Name of the topic.")
def topic_cluster_list(root: Path, as_json: bool, topic: str) -> None:
    """The cluster of a topic."""
    with open_store(root) as store:
        require_topic(store, topic)
        cluster = cluster_name(store)
    write_names([cluster], as_json=as_json)


@click.command(
    "updateTopic",
    short_help="Make a topic, or change one.",
    epilog="\b\nExamples:\n  rmq updateTopic -t Orders -r 8 -w 8 --store /data/store\n"
    "  rmq updateTopic -t Orders -a +message.type=FIFO --store /data/store",
)
@mqadmin_options()
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
def update_topic(root: Path, as_json: bool, topic: str, attributes: str | None, **given: Any) -> None:
    """Make a topic of 8 queues, or change one.

    For an existing topic, settings without an option stay as they are; mqadmin would reset them to its defaults. A
    topic that was deleted before continues at its old end: old messages that retention has not deleted can be read
    again.
    """
    from rmq_store import Store, TopicConfig

    changes = attribute_changes(attributes or "", TOPIC_ATTRIBUTES)
    with Store.open(root) as store:
        left = 0 if topic in store.topics() else store.admin.leftover_count(topic)
        default = TopicConfig(topic, QUEUES, QUEUES)
        _, after = store.admin.update_topic(topic, lambda known: changed_topic(known, given, changes), default=default)
        address = broker_address(store)
    if left:
        note = f"{left} messages of it can be read again, and its offsets go on where they ended"
        click.echo(printable(f"rmq: {topic} was here before: {note}"), err=True)
    if as_json:
        write_json(topic_json(after))
    else:
        write_line("create topic to %s success.", address)
        write_line("%s", topic_text(after))


@click.command(
    "updateTopicPerm",
    short_help="Set the permissions of a topic.",
    epilog="\b\nExample:\n  rmq updateTopicPerm -t Orders -p 4 --store /data/store",
)
@mqadmin_options()
@click.option("-t", "--topic", type=TOPIC, required=True, help="Name of the topic.")
@click.option("-p", "--perm", required=True, type=click.IntRange(0, 7), help="2: write, 4: read, 6: both.")
def update_topic_perm(root: Path, as_json: bool, topic: str, perm: int) -> None:
    """Set the permissions of a topic; its other settings stay."""
    from rmq_store import Store

    with Store.open(root) as store:
        known = store.topic(require_topic(store, topic))
        before, after = store.admin.update_topic(topic, lambda config: replace(config, perm=perm), default=known)
        address = broker_address(store)
    if as_json:
        write_json(topic_json(after))
    elif before == after:
        write_line("new perm equals to the old one!")
    else:
        write_line("update topic perm from %s to %s in %s success.", (before or known).perm, perm, address)
        write_line("%s.", topic_text(after))


@click.command(
    "deleteTopic",
    short_help="Delete a topic and the offsets on it.",
    epilog="\b\nExample:\n  rmq deleteTopic -t Orders --dry-run --store /data/store",
)
@mqadmin_options()
@changing_options
@click.option("-t", "--topic", type=TOPIC, required=True, help="Name of the topic.")
def delete_topic(root: Path, as_json: bool, topic: str, dry_run: bool, yes: bool) -> None:
    """Delete a topic: its settings, and every group's offsets on it.

    Its messages stay in the log until retention deletes them. If the topic is made again under this name, it continues
    at its old end, and old messages that are still there can be read again. A broker would start at 0, and after a
    rebuild of the queues have two messages for one offset.
    """
    from rmq_store import Store, UnknownTopicError

    with open_store(root) as store:
        try:
            deletion = store.admin.plan_topic_deletion(topic)
        except UnknownTopicError:
            require_topic(store, topic)
            raise
        write_deletion(deletion)
        if not dry_run:
            _require_unused(store, topic)
    if not dry_run:
        confirm(f"Delete topic {printable(topic)}?", yes=yes)
        with Store.open(root) as store:
            _require_unused(store, topic)
            deletion = store.admin.delete_topic(topic)
            cluster = cluster_name(store)
    if as_json:
        write_json({"deleted": not dry_run, **deletion_json(deletion)})
    elif not dry_run:
        write_line("delete topic [%s] from cluster [%s] success.", topic, cluster)


def _newest_ms(store: Store, topic: str, queue_id: int, span: QueueRange) -> int:
    """The store time of the newest message of a queue, ms; 0 if there is none, or if its record is damaged."""
    if span.min_offset == span.max_offset:
        return 0
    try:
        return store.store_timestamp(topic, queue_id, span.max_offset - 1)
    except (CorruptRecordError, OffsetOutOfRangeError):
        return 0


def _require_unused(store: Store, topic: str) -> None:
    from rmq_store.broker.monitoring.active_consumers import active_consumers, active_groups

    groups = active_groups(store, topic)
    if groups:
        who = [f"group {group!r} by {text}" for group in groups for text in active_consumers(store, group)]
        raise LeaseHeldError(f"topic {topic!r} has running consumers: stop them first: {'; '.join(who)}", who[0])


def changed_topic(
    known: Settings, given: Mapping[str, Any], attributes: Mapping[str, str | None]
) -> Settings:
    """The settings with those that are named by options of updateTopic."""
    flag = known.topic_sys_flag
    for bit, value in ((1, given["unit"]), (2, given["unit_sub"])):
        if value is not None:
            flag = flag | bit if value else flag & ~bit
    fields = {"read_queue_nums": "read_queues", "write_queue_nums": "write_queues", "perm": "perm", "order": "order"}
    named = {field: given[option] for field, option in fields.items() if given[option] is not None}
    kept = {name: value for name, value in (known.attributes or {}).items() if name not in attributes}
    added = {name: value for name, value in attributes.items() if value is not None}
    return replace(known, **named, topic_sys_flag=flag, attributes={**kept, **added})


COMMANDS = (
    topic_list, topic_status, topic_route, topic_cluster_list, update_topic, update_topic_perm, delete_topic,
)  # fmt: skip
