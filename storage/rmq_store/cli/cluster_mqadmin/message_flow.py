"""Printing, consuming and sending messages of a cluster. Source: PrintMessageSubCommand.java,
PrintMessageByQueueCommand.java, ConsumeMessageCommand.java, SendMessageCommand.java.

As there, printing and consuming move no group's offset: messages are pulled under TOOLS_CONSUMER, or --pull-group.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from rmq_store.cli.cluster_mqadmin.common import like, require_route
from rmq_store.cli.cluster_mqadmin.message import messages_of, queue_of
from rmq_store.cli.mqadmin import message_flow as store_commands
from rmq_store.cli.mqadmin.message_flow import RULE, MessageLines, write_counts, write_sent
from rmq_store.cli.mqadmin.message_print import charset
from rmq_store.cli.shared.output import printable
from rmq_store.cli.shared.times import parse_time
from rmq_store.cli.target.cluster_target import ClusterTarget
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store import StoredMessage
    from rmq_store.client.backend.remote import RemoteBackend
    from rmq_store.protocol.messages import MessageQueue
    from rmq_store.remoting.cluster.cluster import Cluster

# As mqadmin: one that no other client has.
_PRODUCER_GROUP = "RMQ_TOOLS_PRODUCER"


@like(store_commands.print_msg)
def print_msg(
    target: ClusterTarget,
    as_json: bool,
    topic: str,
    encoding: str,
    tags: str,
    begin: str | None,
    end: str | None,
    with_body: bool,
) -> None:
    """Print the messages of a topic, each queue in the order of its offsets. No group's offset moves."""
    printer = MessageLines(charset(encoding), with_body, as_json)
    with target.open() as cluster:
        for queue in require_route(cluster, topic).read_queues():
            first, last = _between(cluster, queue, begin, end)
            if not as_json:
                click.echo(printable(f"minOffset={first}, maxOffset={last}, {queue}"))
            for message in _messages(target, cluster, queue, first, last, tags):
                printer.write(message, queue.broker_name)
            if not as_json:
                click.echo(RULE)


@like(store_commands.print_msg_by_queue)
def print_msg_by_queue(
    target: ClusterTarget,
    as_json: bool,
    topic: str,
    broker: str | None,
    queue_id: int,
    encoding: str,
    tags: str,
    begin: str | None,
    end: str | None,
    prints: bool,
    with_body: bool,
    counts: bool,
) -> None:
    """Print or count the messages of one queue. As with mqadmin, nothing is printed without -p true or -f true.

    Counts are sorted, the most frequent tag first. Messages without a tag are not counted.
    """
    printer = MessageLines(charset(encoding), with_body, as_json)
    counted: Counter[str] = Counter()
    with target.open() as cluster:
        queue = queue_of(cluster, topic, broker, queue_id)
        first, last = _between(cluster, queue, begin, end)
        for message in _messages(target, cluster, queue, first, last, tags) if prints or counts else ():
            counted.update([message.tags] if message.tags and message.tags.strip() else [])
            if prints:
                printer.write(message, queue.broker_name)
    if counts:
        write_counts(counted, as_json=as_json)


@like(store_commands.consume_message)
def consume_message(
    target: ClusterTarget,
    as_json: bool,
    topic: str,
    broker: str | None,
    queue_id: int | None,
    offset: int | None,
    group: str | None,
    begin: str | None,
    end: str | None,
    limit: int,
) -> None:
    """Pull messages and print them, the oldest of each queue first. As with mqadmin, no group's offset moves: a
    consumer that commits is `rmq consume`.
    """
    if offset is not None and queue_id is None:
        raise UsageError("please set queueId before offset!")
    if queue_id is not None and broker is None:
        raise UsageError("please set brokerName before queueId!")
    printer = MessageLines("utf-8", True, as_json)
    with target.open() as cluster:
        if queue_id is not None:
            queues = [queue_of(cluster, topic, broker, queue_id)]
        else:
            known = require_route(cluster, topic).read_queues()
            queues = [one for one in known if broker is None or one.broker_name == broker.strip()]
            if known and not queues:
                names = ", ".join(sorted({one.broker_name for one in known}))
                raise UsageError(f"broker {broker!r} does not have the topic {topic!r}; brokers: {names}")
        for queue in queues:
            first, last = _between(cluster, queue, begin, end)
            first = max(first, offset or 0)
            queue_end, last = last, min(last, first + limit)
            if first < last:
                limit -= last - first
                if not as_json:
                    click.echo("Consume ok")
            for message in _messages(target, cluster, queue, first, last, "*"):
                printer.write(message, queue.broker_name)
            if not as_json and last == queue_end:
                status = "NO_NEW_MSG" if first <= last else "OFFSET_ILLEGAL"
                text = f"{queue} print msg finished. status={status}, offset={max(first, last)}"
                click.echo(printable(text))
            if not limit:
                break


@like(store_commands.send_message)
def send_message(
    target: ClusterTarget,
    as_json: bool,
    topic: str,
    body: str,
    keys: str | None,
    tags: str | None,
    broker: str | None,
    queue_id: int | None,
) -> None:
    """Send one message. A missing topic is made by the broker that gets it, if brokers allow that."""
    from rmq_store.client import Producer
    from rmq_store.client.backend.remote import RemoteBackend
    from rmq_store.format.frames.message import Message

    if queue_id is not None and broker is None:
        raise UsageError("-b: name the broker that has the queue")
    message = Message(topic, body.encode(), tags=tags, keys=keys)
    with target.open() as cluster, RemoteBackend(cluster) as backend, Producer(_PRODUCER_GROUP, backend) as producer:
        queue = None if broker is None else _queue_to_write(backend, topic, broker.strip(), queue_id)
        result = producer.send(message, queue=queue)
    write_sent(result, result.broker_name or "", as_json=as_json)


def _queue_to_write(backend: RemoteBackend, topic: str, broker: str, queue_id: int | None) -> MessageQueue:
    queues = backend.publish_queues(topic)
    found = [one for one in queues if one.broker_name == broker and queue_id in (None, one.queue_id)]
    if not found:
        known = ", ".join(sorted({one.broker_name for one in queues})) or "no broker"
        which = "" if queue_id is None else f"queue {queue_id} of "
        raise UsageError(f"{which}{topic} cannot be written at broker {broker!r}; brokers that can be written: {known}")
    return found[0]


def _between(cluster: Cluster, queue: MessageQueue, begin: str | None, end: str | None) -> tuple[int, int]:
    """The queue offsets for two times, as MQAdminImpl#searchOffset finds them; by default all."""
    from rmq_store.remoting.cluster.offsets import queue_ranges, search_offset

    first, last = queue_ranges(cluster, [queue])[queue]
    now_ms = time.time_ns() // 1_000_000
    if begin is not None:
        first = max(first, search_offset(cluster, queue, parse_time(begin, now_ms)))
    if end is not None:
        last = min(last, search_offset(cluster, queue, parse_time(end, now_ms)))
    return first, last


def _messages(
    target: ClusterTarget, cluster: Cluster, queue: MessageQueue, first: int, last: int, tags: str
) -> Iterator[StoredMessage]:
    """The messages [first, last) of a queue that have these tags, some blocks of 1 MiB at a time."""
    from rmq_store.broker.filter.tags import TagFilter
    from rmq_store.remoting.cluster.pulling import read_range
    from rmq_store.remoting.cluster.queries import Found

    if first >= last:
        return
    wanted = TagFilter.parse(tags)
    for block in read_range(cluster, queue, first, last, target.filter(tags)):
        for _, message in messages_of(cluster, [Found(queue.broker_name, block, False)]):
            # Brokers compare hashes of tags.
            if wanted is None or message.tags in wanted.tags:
                yield message


COMMANDS = (print_msg, print_msg_by_queue, send_message, consume_message)
