"""`rmq send`: store one message, or many from a file."""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from rmq_store.cli.shared.completion import TOPIC
from rmq_store.cli.shared.output import common_options, printable, write_json, write_table
from rmq_store.cli.shared.progress import counting_bar
from rmq_store.cli.shared.times import parse_time
from rmq_store.errors import StoreError, UsageError

if TYPE_CHECKING:
    from rmq_store import Message, Store


@click.command(
    short_help="Store one message, or one per line of a file.",
    epilog="\b\nExamples:\n  rmq send OrderTopic --body 'two teas' --tags TagA --keys ORD-1 --store /data/store\n"
    "  rmq tail OrderTopic -n 100 --json | rmq send Copies --jsonl - --store /data/other",
)
@common_options
@click.argument("topic", type=TOPIC)
@click.argument("source", metavar="[FILE]", required=False, type=click.File("rb"))
@click.option("--body", metavar="TEXT", help="The body as text (UTF-8).")
@click.option("--file", metavar="FILE", type=click.File("rb"), help="The same as FILE.")
@click.option("--lines", metavar="FILE", type=click.File("rb"), help="One message per line, without its line end.")
@click.option("--jsonl", metavar="FILE", type=click.File("rb"),
              help="One message per line, as a JSON object: body or bodyHex, and tags, keys, properties, "
                   "queueId, shardingKey, delayLevel, deliverTimestamp, flag. The output of `rmq read --json` "
                   "has this form.")  # fmt: skip
@click.option("--tags", metavar="TAG", help="The tag.")
@click.option("--keys", metavar="KEYS", help="Keys for queries, separated by spaces.")
@click.option("--property", "properties", metavar="NAME=VALUE", multiple=True, help="A property; may be repeated.")
@click.option("--delay-level", type=click.IntRange(min=0), metavar="N", help="Deliver after the delay of this level.")
@click.option("--deliver-at", metavar="TIME", help="Deliver at this time, or after a duration (10m).")
@click.option("--sharding-key", metavar="KEY", help="Messages with the same key go to the same queue.")
@click.option("--queue", "queue_id", type=click.IntRange(min=0), metavar="ID", help="Append to this queue.")
def send(
    root: Path,
    as_json: bool,
    topic: str,
    source: IO[bytes] | None,
    body: str | None,
    file: IO[bytes] | None,
    lines: IO[bytes] | None,
    jsonl: IO[bytes] | None,
    tags: str | None,
    keys: str | None,
    properties: tuple[str, ...],
    delay_level: int | None,
    deliver_at: str | None,
    sharding_key: str | None,
    queue_id: int | None,
) -> None:
    """Store one message and print its id and position, or many messages and print their number.

    FILE holds the body of one message; `-` as FILE is standard input, in all options. With --lines and --jsonl the
    options are defaults for every message. Messages become visible some thousands at a time; if a line is wrong, the
    messages of the lines before it are stored. A missing topic is made (autoCreateTopicEnable). The store is opened for
    writing: no RocketMQ broker may run on it. Exit code 1 also if a message was stored but not flushed in time
    (SYNC_FLUSH).
    """
    from rmq_store import Message, Store

    given = {"FILE": source, "--body": body, "--file": file, "--lines": lines, "--jsonl": jsonl}
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1:
        raise UsageError(f"one of {', '.join(given)} says what to send; given: {', '.join(names) or 'none'}")
    file = file or source
    with Store.open(root) as store:
        template = Message(
            topic,
            # Not more of a file than what is refused as too large.
            _utf_8(body) if body is not None else file.read(store.config.max_message_size + 1) if file else b"",
            tags=tags,
            keys=keys,
            properties=dict(_pair(text) for text in properties),
            queue_id=queue_id,
            sharding_key=sharding_key,
            delay_level=delay_level or 0,
            deliver_timestamp_ms=None if deliver_at is None else parse_time(deliver_at, store.clock(), ahead=True),
        )
        if lines is not None or jsonl is not None:
            _send_many(store, template, lines, jsonl, as_json)
        else:
            _send_one(store, template, as_json)


def _send_one(store: Store, message: Message, as_json: bool) -> None:
    result = store.send(message)
    if as_json:
        write_json({
            "topic": result.topic, "queueId": result.queue_id, "queueOffset": result.queue_offset,
            "msgId": result.msg_id, "offsetMsgId": result.offset_msg_id, "status": result.status.value,
        })  # fmt: skip
    else:
        row = (result.msg_id, result.queue_id, result.queue_offset, result.status.value)
        write_table(("MSGID", "QUEUE", "OFFSET", "STATUS"), [row])
    if result.status.value != "SEND_OK":
        raise click.exceptions.Exit(1)


def _send_many(
    store: Store, template: Message, lines: IO[bytes] | None, jsonl: IO[bytes] | None, as_json: bool
) -> None:
    from rmq_store.cli.messages.message_lines import batches_of_json, batches_of_lines

    sent = size_bytes = 0
    batches = batches_of_lines(lines, template) if lines is not None else batches_of_json(_given(jsonl), template)
    with counting_bar("send") as tell:
        try:
            for batch in batches:
                count, mistake = batch.store(store, template.topic)
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
