"""Printing, consuming and sending messages as mqadmin does. Source: PrintMessageSubCommand.java,
PrintMessageByQueueCommand.java, ConsumeMessageCommand.java, SendMessageCommand.java.

As there, printing and consuming move no group's offset. The bytes of a body are counted in the MessageExt, not printed
as numbers; the text behind BODY is the body.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmq_store.cli.mqadmin.common import mqadmin_options
from rmq_store.cli.mqadmin.message import require_broker
from rmq_store.cli.mqadmin.message_print import charset, java_message, message_json, shown
from rmq_store.cli.mqadmin_print.lines import write_line
from rmq_store.cli.shared.completion import GROUP, TOPIC
from rmq_store.cli.shared.name_lookup import require_topic
from rmq_store.cli.shared.output import open_store, printable, write_json
from rmq_store.cli.shared.times import parse_time
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store import SendResult, Store, StoredMessage

_SEND_LINE = "%-32s  %-4s  %-20s    %s"
RULE = "-" * 56
"""Behind each queue."""
_TIME_HELP = "stored at this time: ms, yyyy-MM-dd#HH:mm:ss:SSS (UTC), or 10m, 2h, 1d ago."


@click.command(
    "printMsg",
    short_help="Print the messages of a topic.",
    epilog="\b\nExample:\n  rmq printMsg -t FifoTopic -b 2026-11-21#00:22:15:000 -d false --store /data/rocketmq/store",
)
@mqadmin_options("n")
@click.option("-t", "--topic", type=TOPIC, required=True, help="The topic.")
@click.option("-c", "--charsetName", "encoding", default="UTF-8", show_default=True, help="Character set of bodies.")
@click.option("-s", "--subExpression", "tags", default="*", show_default=True, help="Tags: TagA || TagB.")
@click.option("-b", "--beginTimestamp", "begin", help=f"Start at the first message {_TIME_HELP}")
@click.option("-e", "--endTimestamp", "end", help=f"End before the first message {_TIME_HELP}")
@click.option(
    "-d", "--printBody", "with_body", type=bool, default=True, show_default=True, help="Whether to print bodies."
)
def print_msg(
    root: Path,
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
    with open_store(root) as store:
        require_topic(store, topic)
        for queue_id in sorted(store.queue_ranges(topic)):
            first, last = _between(store, topic, queue_id, begin, end)
            if not as_json:
                queue = _queue_text(store, topic, queue_id)
                click.echo(printable(f"minOffset={first}, maxOffset={last}, {queue}"))
            for message in _messages(store, topic, queue_id, first, last, tags):
                printer.write(message, store.broker_name, store.config.max_message_size)
            if not as_json:
                click.echo(RULE)


@click.command(
    "printMsgByQueue",
    short_help="Print or count the messages of one queue.",
    epilog="\b\nExample:\n  rmq printMsgByQueue -t OrderTopic -a golden-a -i 0 -f true --store /data/rocketmq/store",
)
@mqadmin_options("n")
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
    root: Path,
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
    with open_store(root) as store:
        require_broker(store, broker)
        require_topic(store, topic)
        first, last = _between(store, topic, queue_id, begin, end)
        for message in _messages(store, topic, queue_id, first, last, tags) if prints or counts else ():
            counted.update([message.tags] if message.tags and message.tags.strip() else [])
            if prints:
                printer.write(message, store.broker_name, store.config.max_message_size)
    if counts:
        write_counts(counted, as_json=as_json)


def write_counts(counted: Counter[str], *, as_json: bool) -> None:
    """Print how many messages have each tag, the most frequent first."""
    if as_json:
        write_json(dict(counted.most_common()), one_line=True)
        return
    for tag, count in counted.most_common():
        write_line("Tag: %-30s Count: %s", tag, count)


@click.command(
    "consumeMessage",
    short_help="Pull messages and print them.",
    epilog="\b\nExample:\n  rmq consumeMessage -t OrderTopic -b golden-a -i 0 -o 750 -c 1 --store /data/rocketmq/store",
)
@mqadmin_options("n")
@click.option("-t", "--topic", type=TOPIC, required=True, help="The topic.")
@click.option("-b", "--brokerName", "broker", help="The broker's name; a store has one.")
@click.option("-i", "--queueId", "queue_id", type=click.IntRange(min=0), help="Only this queue.")
@click.option("-o", "--offset", type=click.IntRange(min=0), help="With -i: from this queue offset on.")
@click.option(
    "-g",
    "--consumerGroup",
    "group",
    type=GROUP,
    help="Accepted for compatibility with mqadmin; the group's offset does not move.",
)
@click.option("-s", "--beginTimestamp", "begin", help=f"Start at the first message {_TIME_HELP}")
@click.option("-e", "--endTimestamp", "end", help=f"End before the first message {_TIME_HELP}")
@click.option("-c", "--MessageNumber", "limit", type=click.IntRange(min=1), default=128, show_default=True,
              help="Maximum number of messages.")  # fmt: skip
def consume_message(
    root: Path,
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
    """Pull messages and print them, the oldest first. As with mqadmin, no group's offset moves: a consumer that commits
    is `rmq consume`.
    """
    if offset is not None and queue_id is None:
        raise UsageError("please set queueId before offset!")
    printer = MessageLines("utf-8", True, as_json)
    with open_store(root) as store:
        require_broker(store, broker)
        require_topic(store, topic)
        for one in sorted(store.queue_ranges(topic)) if queue_id is None else [queue_id]:
            first, last = _between(store, topic, one, begin, end)
            first = max(first, offset or 0)
            queue_end, last = last, min(last, first + limit)
            if first < last:
                limit -= last - first
                if not as_json:
                    click.echo("Consume ok")
            for message in _messages(store, topic, one, first, last, "*"):
                printer.write(message, store.broker_name, store.config.max_message_size)
            if not as_json and last == queue_end:
                status = "NO_NEW_MSG" if first <= last else "OFFSET_ILLEGAL"
                queue = _queue_text(store, topic, one)
                click.echo(printable(f"{queue} print msg finished. status={status}, offset={max(first, last)}"))
            if not limit:
                break


@click.command(
    "sendMessage",
    short_help="Send one message.",
    epilog="\b\nExample:\n  rmq sendMessage -t OrderTopic -p 'tea for two' -k ORD-1 -c TagA --store /data/store",
)
@mqadmin_options("n")
@click.option("-t", "--topic", type=TOPIC, required=True, help="The topic; a missing one is made as by a broker.")
@click.option("-p", "--body", required=True, help="The body, as UTF-8.")
@click.option("-k", "--key", "keys", help="Keys, separated by spaces.")
@click.option("-c", "--tags", help="The tag.")
@click.option("-b", "--broker", help="The broker's name; a store has one.")
@click.option("-i", "--qid", "queue_id", type=click.IntRange(min=0), help="The queue; by default round robin.")
@click.option("-m", "--msgTraceEnable", "traced", type=bool, hidden=True, expose_value=False)
def send_message(
    root: Path,
    as_json: bool,
    topic: str,
    body: str,
    keys: str | None,
    tags: str | None,
    broker: str | None,
    queue_id: int | None,
) -> None:
    """Send one message. The store is opened for writing: no RocketMQ broker may run on it."""
    from rmq_store import Message, Store

    with Store.open(root) as store:
        require_broker(store, broker)
        result = store.send(Message(topic, body.encode(), tags=tags, keys=keys, queue_id=queue_id))
        name = store.broker_name
    write_sent(result, name, as_json=as_json)


def write_sent(result: SendResult, broker_name: str, *, as_json: bool) -> None:
    """Print where a message was stored."""
    if as_json:
        write_json(
            {
                "brokerName": broker_name, "queueId": result.queue_id, "queueOffset": result.queue_offset,
                "sendStatus": result.status.name, "msgId": result.msg_id,
            }
        )  # fmt: skip
        return
    write_line(_SEND_LINE, "#Broker Name", "#QID", "#Send Result", "#MsgId")
    write_line(_SEND_LINE, broker_name, result.queue_id, result.status.name, result.msg_id)


class MessageLines:
    """Prints messages, one per line."""

    def __init__(self, encoding: str, with_body: bool, as_json: bool) -> None:
        self._encoding = encoding
        self._with_body = with_body
        self._as_json = as_json

    def write(self, message: StoredMessage, broker_name: str, max_message_bytes: int = 0) -> None:
        """Print one message as it is `shown`."""
        message = shown(message, max_message_bytes)
        text = message.body.decode(self._encoding, "backslashreplace") if self._with_body else None
        if self._as_json:
            write_json(message_json(message, text), one_line=True)
            return
        body = "NOT PRINT BODY" if text is None else text
        line = f"MSGID: {message.msg_id} {java_message(message, broker_name)} BODY: {body}"
        click.echo(printable(line))


def _between(store: Store, topic: str, queue_id: int, begin: str | None, end: str | None) -> tuple[int, int]:
    """The queue offsets for two times, as MQAdminImpl#searchOffset finds them."""
    ranges = store.queue_ranges(topic)
    if queue_id not in ranges:
        raise UsageError(f"topic {topic} has no queue {queue_id}; it has {len(ranges)} queues")
    first, last = ranges[queue_id]
    now_ms = store.clock()
    if begin is not None:
        first = store.query.by_time(topic, queue_id, parse_time(begin, now_ms))
    if end is not None:
        last = store.query.by_time(topic, queue_id, parse_time(end, now_ms))
    return first, last


def _messages(store: Store, topic: str, queue_id: int, first: int, last: int, tags: str) -> Iterator[StoredMessage]:
    """The messages [first, last) of a queue that have these tags."""
    if first >= last:
        return
    for batch in store.read(topic, queue_id, first, last, columns=["commitLogOffset"], tags=tags):
        for offset in batch.column("commitLogOffset").to_pylist():
            yield store.message_at(offset)


def _queue_text(store: Store, topic: str, queue_id: int) -> str:
    """MessageQueue#toString."""
    return f"MessageQueue [topic={topic}, brokerName={store.broker_name}, queueId={queue_id}]"


COMMANDS = (print_msg, print_msg_by_queue, send_message, consume_message)
