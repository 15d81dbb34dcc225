"""Printing, consuming and sending messages as mqadmin does. Source: PrintMessageSubCommand.java,
PrintMessageByQueueCommand.java, ConsumeMessageCommand.java, SendMessageCommand.java.

As there, printing and consuming move no group's offset.
"""

from __future__ import annotations

from collections import Counter

import click

from rmq_store.cli.mqadmin.common import Target, messages_of, mqadmin_command
from rmq_store.cli.mqadmin_print.messages import RULE, MessageLines, charset, write_counts, write_sent
from rmq_store.cli.shared.completion import GROUP, TOPIC
from rmq_store.cli.shared.output import printable
from rmq_store.cli.target.cluster_target import ClusterTarget
from rmq_store.errors import UsageError

_TIME_HELP = "stored at this time: ms, yyyy-MM-dd#HH:mm:ss:SSS (UTC), or 10m, 2h, 1d ago."


@mqadmin_command(
    "printMsg",
    short_help="Print the messages of a topic.",
    epilog="\b\nExample:\n  rmq printMsg -t FifoTopic -b 2026-11-21#00:22:15:000 -d false --store /data/rocketmq/store",
    unneeded="n",
)
@click.option("-t", "--topic", type=TOPIC, required=True, help="The topic.")
@click.option("-c", "--charsetName", "encoding", default="UTF-8", show_default=True, help="Character set of bodies.")
@click.option("-s", "--subExpression", "tags", default="*", show_default=True, help="Tags: TagA || TagB.")
@click.option("-b", "--beginTimestamp", "begin", help=f"Start at the first message {_TIME_HELP}")
@click.option("-e", "--endTimestamp", "end", help=f"End before the first message {_TIME_HELP}")
@click.option(
    "-d", "--printBody", "with_body", type=bool, default=True, show_default=True, help="Whether to print bodies."
)
def print_msg(
    target: Target, as_json: bool, topic: str, encoding: str, tags: str, begin: str | None, end: str | None,
    with_body: bool,
) -> None:  # fmt: skip
    """Print the messages of a topic, each queue in the order of its offsets. No group's offset moves."""
    encoding = charset(encoding)
    with messages_of(target) as messages:
        printer = MessageLines(encoding, with_body, as_json, messages.max_message_bytes)
        for queue in messages.queues(topic):
            first, last = messages.between(queue, begin, end)
            if not as_json:
                click.echo(printable(f"minOffset={first}, maxOffset={last}, {queue}"))
            for message in messages.read(queue, first, last, tags):
                printer.write(message, queue.broker_name)
            if not as_json:
                click.echo(RULE)


@mqadmin_command(
    "printMsgByQueue",
    short_help="Print or count the messages of one queue.",
    epilog="\b\nExample:\n  rmq printMsgByQueue -t OrderTopic -a golden-a -i 0 -f true --store /data/rocketmq/store",
    unneeded="n",
)
@click.option("-t", "--topic", type=TOPIC, required=True, help="The topic.")
@click.option("-a", "--brokerName", "broker", help="The broker's name; a store has one.")
@click.option("-i", "--queueId", "queue_id", type=click.IntRange(min=0), required=True, help="The queue.")
@click.option("-c", "--charsetName", "encoding", default="UTF-8", show_default=True, help="Character set of bodies.")
@click.option("-s", "--subExpression", "tags", default="*", show_default=True, help="Tags: TagA || TagB.")
@click.option("-b", "--beginTimestamp", "begin", help=f"Start at the first message {_TIME_HELP}")
@click.option("-e", "--endTimestamp", "end", help=f"End before the first message {_TIME_HELP}")
@click.option(
    "-p", "--printMsg", "prints", type=bool, default=False, show_default=True, help="Whether to print messages."
)
@click.option(
    "-d", "--printBody", "with_body", type=bool, default=False, show_default=True, help="Whether to print bodies too."
)
@click.option(
    "-f", "--calculate", "counts", type=bool, default=False, show_default=True, help="Whether to count messages by tag."
)
def print_msg_by_queue(
    target: Target, as_json: bool, topic: str, broker: str | None, queue_id: int, encoding: str, tags: str,
    begin: str | None, end: str | None, prints: bool, with_body: bool, counts: bool,
) -> None:  # fmt: skip
    """Print or count the messages of one queue. As with mqadmin, nothing is printed without -p true or -f true.

    Counts are sorted, the most frequent tag first. Messages without a tag are not counted.
    """
    encoding = charset(encoding)
    counted: Counter[str] = Counter()
    with messages_of(target) as messages:
        printer = MessageLines(encoding, with_body, as_json, messages.max_message_bytes)
        (queue,) = messages.queues(topic, broker, queue_id)
        first, last = messages.between(queue, begin, end)
        for message in messages.read(queue, first, last, tags) if prints or counts else ():
            counted.update([message.tags] if message.tags and message.tags.strip() else [])
            if prints:
                printer.write(message, queue.broker_name)
    if counts:
        write_counts(counted, as_json=as_json)


@mqadmin_command(
    "consumeMessage",
    short_help="Pull messages and print them.",
    epilog="\b\nExample:\n  rmq consumeMessage -t OrderTopic -b golden-a -i 0 -o 750 -c 1 --store /data/rocketmq/store",
    unneeded="n",
)
@click.option("-t", "--topic", type=TOPIC, required=True, help="The topic.")
@click.option("-b", "--brokerName", "broker", help="The broker's name; a store has one.")
@click.option("-i", "--queueId", "queue_id", type=click.IntRange(min=0), help="Only this queue.")
@click.option("-o", "--offset", type=click.IntRange(min=0), help="With -i: from this queue offset on.")
@click.option(
    "-g",
    "--consumerGroup",
    "group",
    type=GROUP,
    expose_value=False,
    help="Accepted for compatibility with mqadmin; the group's offset does not move.",
)
@click.option("-s", "--beginTimestamp", "begin", help=f"Start at the first message {_TIME_HELP}")
@click.option("-e", "--endTimestamp", "end", help=f"End before the first message {_TIME_HELP}")
@click.option("-c", "--MessageNumber", "limit", type=click.IntRange(min=1), default=128, show_default=True,
              help="Maximum number of messages.")  # fmt: skip
def consume_message(
    target: Target, as_json: bool, topic: str, broker: str | None, queue_id: int | None, offset: int | None,
    begin: str | None, end: str | None, limit: int,
) -> None:  # fmt: skip
    """Pull messages and print them, the oldest [cluster: of each queue ]first. As with mqadmin, no group's offset
    moves: a consumer that commits is `rmq consume`.
    """
    if offset is not None and queue_id is None:
        raise UsageError("please set queueId before offset!")
    if queue_id is not None and broker is None and isinstance(target, ClusterTarget):
        raise UsageError("please set brokerName before queueId!")
    with messages_of(target) as messages:
        printer = MessageLines("utf-8", True, as_json, messages.max_message_bytes)
        for queue in messages.queues(topic, broker, queue_id):
            first, last = messages.between(queue, begin, end)
            first = max(first, offset or 0)
            queue_end, last = last, min(last, first + limit)
            if first < last:
                limit -= last - first
                if not as_json:
                    click.echo("Consume ok")
            for message in messages.read(queue, first, last, "*"):
                printer.write(message, queue.broker_name)
            if not as_json and last == queue_end:
                status = "NO_NEW_MSG" if first <= last else "OFFSET_ILLEGAL"
                text = f"{queue} print msg finished. status={status}, offset={max(first, last)}"
                click.echo(printable(text))
            if not limit:
                break


@mqadmin_command(
    "sendMessage",
    short_help="Send one message.",
    epilog="\b\nExample:\n  rmq sendMessage -t OrderTopic -p 'tea for two' -k ORD-1 -c TagA --store /data/store",
    unneeded="n",
)
@click.option("-t", "--topic", type=TOPIC, required=True, help="The topic; a missing one is made as by a broker.")
@click.option("-p", "--body", required=True, help="The body, as UTF-8.")
@click.option("-k", "--key", "keys", help="Keys, separated by spaces.")
@click.option("-c", "--tags", help="The tag.")
@click.option("-b", "--broker", help="The broker's name; a store has one.")
@click.option("-i", "--qid", "queue_id", type=click.IntRange(min=0), help="The queue; by default round robin.")
@click.option("-m", "--msgTraceEnable", "traced", type=bool, hidden=True, expose_value=False)
def send_message(
    target: Target, as_json: bool, topic: str, body: str, keys: str | None, tags: str | None, broker: str | None,
    queue_id: int | None,
) -> None:  # fmt: skip
    """Send one message. [store: The store is opened for writing: no RocketMQ broker may run on it.][cluster: A missing
    topic is made by the broker that gets it, if brokers allow that.]"""
    from rmq_store.format.frames.message import Message

    if queue_id is not None and broker is None and isinstance(target, ClusterTarget):
        raise UsageError("-b: name the broker that has the queue")
    message = Message(topic, body.encode(), tags=tags, keys=keys)
    with messages_of(target, to_write=True) as messages:
        result, broker_name = messages.send(message, broker, queue_id)
    write_sent(result, broker_name, as_json=as_json)


COMMANDS = (print_msg, print_msg_by_queue, send_message, consume_message)
