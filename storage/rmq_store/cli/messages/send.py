"""`rmq send`: store one message, or many from a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from rmq_store.cli.shared.completion import TOPIC
from rmq_store.cli.shared.output import printable, write_json, write_table
from rmq_store.cli.shared.progress import counting_bar
from rmq_store.cli.shared.times import parse_time
from rmq_store.cli.target.command import by_target, target_command
from rmq_store.cli.target.rows import SentRow, queue_json, queue_name
from rmq_store.errors import StoreError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_store import Message
    from rmq_store.cli.target.view import QueueName, Target

Command = TypeVar("Command", bound=Callable[..., Any])


_OPTIONS = (
    click.option("--body", metavar="TEXT", help="The body as text (UTF-8)."),
    click.option("--file", metavar="FILE", type=click.File("rb"), help="The same as FILE."),
    click.option("--lines", metavar="FILE", type=click.File("rb"), help="One message per line, without its line end."),
    click.option("--jsonl", metavar="FILE", type=click.File("rb"),
                  help="One message per line, as a JSON object: body or bodyHex, and tags, keys, properties, "
                       "queueId, shardingKey, delayLevel, deliverTimestamp, flag. The output of `rmq read --json` "
                       "has this form."),
    click.option("--tags", metavar="TAG", help="The tag."),
    click.option("--keys", metavar="KEYS", help="Keys for queries, separated by spaces."),
    click.option("--property", "properties", metavar="NAME=VALUE", multiple=True, help="A property; may be repeated."),
    click.option("--delay-level", type=click.IntRange(min=0), metavar="N",
                 help="Deliver after the delay of this level."),
    click.option("--deliver-at", metavar="TIME", help="Deliver at this time, or after a duration (10m)."),
    click.option("--sharding-key", metavar="KEY", help="Messages with the same key go to the same queue."),
)  # fmt: skip


def message_options(command: Command) -> Command:
    """Add the options for a message and for files of messages; the command gets each under its name."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@target_command(
    short_help="[store: Store][cluster: Send] one message, or one per line of a file.",
    epilog="\b\nExamples:\n  rmq send OrderTopic --body 'two teas' --tags TagA --keys ORD-1 --store /data/store\n"
    "  rmq tail OrderTopic -n 100 --json | rmq send Copies --jsonl - --store /data/other",
    cluster_epilog="\b\nExamples:\n  rmq -n ns1:9876 send OrderTopic --body 'two teas' --tags TagA --keys ORD-1\n"
    "  rmq tail OrderTopic -n 100 --json --store /data/store | rmq -n ns1:9876 send Copies --jsonl -",
)
@click.argument("topic", type=TOPIC)
@click.argument("source", metavar="[FILE]", required=False, type=click.File("rb"))
@message_options
@by_target(
    click.option("--queue", type=click.IntRange(min=0), metavar="ID", help="Append to this queue."),
    click.option("--queue", metavar="BROKER:ID", help="Send to this queue, as broker-a:0."),
)
def send(
    target: Target, as_json: bool, topic: str, source: IO[bytes] | None, queue: QueueName | None,
    lines: IO[bytes] | None, jsonl: IO[bytes] | None, **given: Any,
) -> None:  # fmt: skip
    """[store: Store][cluster: Send] one message and print its id and position, or many messages and print their number.

    FILE holds the body of one message; `-` as FILE is standard input, in all options. With --lines and --jsonl the
    options are defaults for every message. [store: Messages become visible some thousands at a time][cluster: Some
    thousands are sent at a time]; if a line is wrong, the messages of the lines before it are stored. A missing topic
    is made [store: (autoCreateTopicEnable). The store is opened for writing: no RocketMQ broker may run on it. Exit
    code 1 also if a message was stored but not flushed in time (SYNC_FLUSH).][cluster: by its first message, if brokers
    allow that (autoCreateTopicEnable); with --lines and --jsonl it must be there. Sends whose answer is lost are
    repeated, so a message may be stored twice. Exit code 1 also if a broker has stored a message, but neither on disk
    nor at a slave in time.]
    """
    one_source(source, lines, jsonl, given)
    with target.sender() as sender:
        limit, now_ms = sender.message_bytes_max, sender.now_ms()
        template = template_of(topic, source, lines, jsonl, given, limit=limit, now_ms=now_ms)
        if lines is not None or jsonl is not None:
            template, append = sender.appender(template, queue)
            send_lines(lines, jsonl, template, append, as_json=as_json)
        else:
            _write_result(sender.send(template, queue), as_json=as_json)


def one_source(
    source: IO[bytes] | None, lines: IO[bytes] | None, jsonl: IO[bytes] | None, given: Mapping[str, Any]
) -> None:
    """Raise UsageError unless one option says what to send."""
    ways = {"FILE": source, "--body": given["body"], "--file": given["file"], "--lines": lines, "--jsonl": jsonl}
    names = [name for name, value in ways.items() if value is not None]
    if len(names) != 1:
        raise UsageError(f"one of {', '.join(ways)} says what to send; given: {', '.join(names) or 'none'}")


def template_of(
    topic: str, source: IO[bytes] | None, lines: IO[bytes] | None, jsonl: IO[bytes] | None, given: Mapping[str, Any],
    *, limit: int, now_ms: int,
) -> Message:  # fmt: skip
    """The message, or the defaults of all messages, of `message_options`. `limit`: the largest body. UsageError."""
    from rmq_store import Message

    one_source(source, lines, jsonl, given)
    body, file, deliver_at = given["body"], given["file"] or source, given["deliver_at"]
    return Message(
        topic,
        # Not more of a file than what is refused as too large.
        _utf_8(body) if body is not None else file.read(limit + 1) if file else b"",
        tags=given["tags"],
        keys=given["keys"],
        properties=dict(_pair(text) for text in given["properties"]),
        sharding_key=given["sharding_key"],
        delay_level=given["delay_level"] or 0,
        deliver_timestamp_ms=None if deliver_at is None else parse_time(deliver_at, now_ms, ahead=True),
    )


def _write_result(sent: SentRow, *, as_json: bool) -> None:
    """Print where a message is. Exit code 1 if it is stored, but not as safely as it should be."""
    if as_json:
        write_json({
            "topic": sent.topic, **queue_json(sent.broker_name, sent.queue_id), "queueOffset": sent.queue_offset,
            "msgId": sent.msg_id, "offsetMsgId": sent.offset_msg_id, "status": sent.status,
        })  # fmt: skip
    else:
        row = (sent.msg_id, queue_name(sent.broker_name, sent.queue_id), sent.queue_offset, sent.status)
        write_table(("MSGID", "QUEUE", "OFFSET", "STATUS"), [row])
    if sent.status != "SEND_OK":
        raise click.exceptions.Exit(1)


def send_lines(
    lines: IO[bytes] | None,
    jsonl: IO[bytes] | None,
    template: Message,
    append: Callable[[pa.RecordBatch], object],
    *,
    as_json: bool,
) -> None:
    """Store the messages of a file by `append`, which gets rows of INPUT_SCHEMA; print their number."""
    from rmq_store.cli.messages.message_lines import batches_of_json, batches_of_lines

    sent = size_bytes = 0
    batches = batches_of_lines(lines, template) if lines is not None else batches_of_json(_given(jsonl), template)
    with counting_bar("send") as tell:
        try:
            for batch in batches:
                count, mistake = batch.store(append)
                sent += count
                if mistake is not None:
                    raise mistake
                size_bytes += batch.size_bytes
                if tell is not None:
                    tell(sent, size_bytes)
        except (StoreError, KeyboardInterrupt):
            click.echo(f"rmq: {sent} messages are stored in {printable(template.topic)}, and then:", err=True)
            raise
    if as_json:
        write_json({"topic": template.topic, "messages": sent, "bodyBytes": size_bytes})
    else:
        click.echo(printable(f"{sent} messages, {size_bytes} bytes of bodies stored in {template.topic}"))


def _given(file: IO[bytes] | None) -> IO[bytes]:
    assert file is not None
    return file


def _utf_8(body: str) -> bytes:
    try:
        return body.encode()
    except UnicodeEncodeError:
        raise UsageError("--body is no UTF-8; --file takes any bytes") from None


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise UsageError(f"--property {text!r}: NAME=VALUE")
    return name, value
