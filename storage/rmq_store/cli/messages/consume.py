"""`rmq consume`: consume messages as a member of a consumer group."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rmq_store.cli.shared.completion import GROUP, TOPIC
from rmq_store.cli.shared.message_text import LINE_COLUMNS, body_option, json_row, message_line
from rmq_store.cli.shared.name_lookup import require_topic
from rmq_store.cli.shared.output import (
    common_options,
    lmq_option,
    open_store,
    open_to_write,
    printable,
    tell,
    wide_option,
    write_json,
)
from rmq_store.cli.shared.targets import EARLIEST, LATEST, OFFSET, Start, parse_start
from rmq_store.cli.shared.times import TIMES
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rmq_store import Store
    from rmq_store.client import ConsumeConcurrentlyStatus, MessageExt, PushConsumer, PushConsumerConfig

Command = TypeVar("Command", bound=Callable[..., Any])

# Between two looks for messages.
POLL_S = 0.1


class Stop(BaseException):
    """Ends the consumer from inside its listener: the present message is not consumed, and comes again."""


_OPTIONS = (
    click.option("--max", "limit", type=click.IntRange(min=1), metavar="N", help="Stop after N messages."),
    click.option("--until-empty", is_flag=True, help="Stop when no message is left."),
    click.option("--tags", metavar="EXPR",
                 help='Only messages with these tags: "TagA || TagB". Others count as consumed.'),
    click.option("--from", "start", metavar="WHERE", default="earliest", show_default=True,
                  help=f"Start of a group without an offset: earliest, latest, or a time: now, {TIMES}."),
    click.option("--exec", "command", metavar="CMD",
                  help="Run a command for each message, with the body on standard input. Exit code 0: "
                       "consumed."),
    click.option("--peek", is_flag=True, help="Show the messages that would be consumed, and change nothing."),
    body_option,
)  # fmt: skip


def consume_options(command: Command) -> Command:
    """Add the options of a consumer; the command gets each under its name."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command(
    short_help="Consume messages as a group; --peek only shows them.",
    epilog="\b\nExamples:\n  rmq consume OrderTopic --group cg_orders --max 10 --store /data/rocketmq/store\n"
    "  rmq consume OrderTopic --group cg_orders --until-empty --exec 'python handle.py'",
)
@common_options
@lmq_option
@wide_option
@click.argument("topic", type=TOPIC)
@click.option("--group", "-g", type=GROUP, required=True, help="The consumer group.")
@consume_options
def consume(
    root: Path,
    as_json: bool,
    topic: str,
    group: str,
    limit: int | None,
    until_empty: bool,
    tags: str | None,
    start: str,
    command: str | None,
    peek: bool,
    body: str,
) -> None:
    """Consume messages of a topic, and the group's retries, and commit the group's offsets.

    A message is consumed when it was printed, or when the command of --exec ended with 0. Other exit codes send it back
    (RECONSUME_LATER): it comes again after a delay, and after its last retry it is a dead letter. The command runs
    without a shell, and has RMQ_TOPIC, RMQ_MSG_ID, RMQ_TAGS, RMQ_KEYS and RMQ_RECONSUME_TIMES in its environment. Other
    members of the group share the queues as usual. A stream that reads the topic as the group shares none: then the
    command is refused, and names the stream (exit code 1). Without --max and --until-empty it runs until Ctrl-C or
    SIGTERM. Exit code 1 if a message was sent back.
    """
    if peek:
        if command is not None:
            raise UsageError("--peek changes nothing: it does not go with --exec")
        _peek(root, topic, group, limit, tags, start, as_json, body)
        return
    handler = Handler(limit, command, as_json=as_json, body=body)
    with open_to_write(root) as store:
        require_topic(store, topic)
        handler.run(lambda: _run(store, handler, topic, group, tags, start, until_empty))
    handler.tell()


def _words(command: str | None) -> list[str]:
    try:
        words = shlex.split(command or "")
    except ValueError as error:
        raise UsageError(f"--exec {command!r}: {error}") from error
    if command is not None and not words:
        raise UsageError("--exec is empty")
    return words


class Handler:
    """The listener: prints messages or runs the program of --exec, and counts."""

    def __init__(
        self, limit: int | None, command: str | None, *, as_json: bool, body: str, of_cluster: bool = False
    ) -> None:
        self.done_count = self.failed_count = 0
        self._failure: OSError | None = None
        self._limit = limit
        self._words = _words(command)
        self._as_json = as_json
        self._body = body
        self._of_cluster = of_cluster

    def run(self, consume: Callable[[], None]) -> None:
        """Consume until the end, or until a signal, which is the ordinary end: what was printed is committed."""
        with contextlib.suppress(KeyboardInterrupt):
            consume()
        if self._failure is not None:
            raise self._failure

    def tell(self) -> None:
        """Print the counts of a program. Exit code 1 if a message was sent back."""
        if self._words and self._as_json:
            write_json({"consumed": self.done_count, "sentBack": self.failed_count})
        elif self._words:
            click.echo(f"{self.done_count} consumed, {self.failed_count} sent back")
        if self.failed_count:
            raise click.exceptions.Exit(1)

    @property
    def is_full(self) -> bool:
        """Whether there were `limit` messages."""
        return self._limit is not None and self.done_count + self.failed_count >= self._limit

    def __call__(self, messages: Sequence[MessageExt], context: Any) -> ConsumeConcurrentlyStatus:
        """Handle one message."""
        from rmq_store.client import ConsumeConcurrentlyStatus

        if self.is_full:
            raise Stop
        (message,) = messages
        try:
            succeeded = self._handle(message)
        except OSError as error:  # nobody reads what we print any more, or there is no such program
            self._failure = error
            raise Stop from error
        if succeeded:
            self.done_count += 1
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS
        self.failed_count += 1
        return ConsumeConcurrentlyStatus.RECONSUME_LATER

    def _handle(self, message: MessageExt) -> bool:
        if not self._words:
            row = _row(message)
            if self._of_cluster:
                row["brokerName"] = message.broker_name
            show_row(row, self._as_json, self._body)
            return True
        return _run_command(self._words, message)


def _run_command(words: Sequence[str], message: MessageExt) -> bool:
    known = {
        "RMQ_TOPIC": message.topic, "RMQ_MSG_ID": message.msg_id, "RMQ_TAGS": message.tags or "",
        "RMQ_KEYS": message.keys or "", "RMQ_RECONSUME_TIMES": str(message.reconsume_times),
    }  # fmt: skip
    safe = {name: value.replace("\0", "\N{REPLACEMENT CHARACTER}") for name, value in known.items()}
    done = subprocess.run(list(words), input=message.body, env={**os.environ, **safe}, check=False)
    if done.returncode:
        place = f"{message.topic} {message.queue_id}:{message.queue_offset}"
        click.echo(f"rmq: {printable(place)}: exit code {done.returncode}, sent back", err=True)
    return done.returncode == 0


def _run(
    store: Store, handler: Handler, topic: str, group: str, tags: str | None, start: str, until_empty: bool
) -> None:
    from rmq_store.client import PushConsumer

    with PushConsumer(group, store, consumer_config(start, store.clock())) as consumer:
        begin(consumer, handler, topic, tags)
        try:
            while not handler.is_full:
                if not consumer.run_once():
                    if until_empty:
                        return
                    time.sleep(POLL_S)
        except Stop:
            return


def begin(consumer: PushConsumer, handler: Handler, topic: str, tags: str | None) -> None:
    """Start a consumer that works on this thread, one message after the other."""
    from rmq_store.client import MessageListenerConcurrently

    consumer.subscribe(topic, tags or "*")
    consumer.register_message_listener(MessageListenerConcurrently(handler))
    consumer.start(threads=False)


def consumer_config(start: str, now_ms: int) -> PushConsumerConfig:
    """The settings of a consumer that begins where --from says. Raises UsageError."""
    from rmq_store.client import PushConsumerConfig

    where, timestamp = _where(start, now_ms)
    return PushConsumerConfig(consume_from_where=where, consume_timestamp=timestamp)


def parse_group_start(text: str, now_ms: int) -> Start:
    """As `parse_start`, for a group: UsageError for an offset, because each queue has its own."""
    start = parse_start(text, now_ms)
    if start.kind == OFFSET:
        raise UsageError(f"{text!r} is no time: a group begins at earliest, latest or a time, because each queue has "
                         "offsets of its own; `rmq offsets reset --to-offset` sets one")  # fmt: skip
    return start


def _where(start: str, now_ms: int) -> tuple[Any, str | None]:
    from rmq_store.client import ConsumeFromWhere

    beginning = parse_group_start(start, now_ms)
    if beginning.kind == EARLIEST:
        return ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, None
    if beginning.kind == LATEST:
        return ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, None
    moment = time.localtime(beginning.value / 1000)
    return ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, time.strftime("%Y%m%d%H%M%S", moment)


def _row(message: MessageExt) -> dict[str, Any]:
    return {
        "topic": message.topic, "queueId": message.queue_id, "queueOffset": message.queue_offset,
        "msgId": message.msg_id, "tags": message.tags, "keys": message.keys, "properties": dict(message.properties),
        "reconsumeTimes": message.reconsume_times, "bornTimestamp": message.born_timestamp_ms * 1000,
        "storeTimestamp": message.store_timestamp_ms * 1000, "commitLogOffset": message.commit_log_offset,
        "body": message.body,
    }  # fmt: skip


def show_row(row: dict[str, Any], as_json: bool, body: str) -> None:
    """Print a message."""
    if as_json:
        write_json(json_row(row, body), one_line=True)
    else:
        click.echo(message_line(row, body))


# ---- looking only


def _peek(
    root: Path, topic: str, group: str, limit: int | None, tags: str | None, start: str, as_json: bool, body: str
) -> None:
    from rmq_store.format.text.names import retry_topic, validate_group

    validate_group(group)
    with open_store(root) as store:
        require_topic(store, topic)
        topics = [name for name in (retry_topic(group), topic) if store.find_topic(name)]
        shown = 0
        for name in topics:
            for row in _waiting(store, name, group, tags if name == topic else None, start, as_json):
                show_row(row, as_json, body)
                shown += 1
                if shown == limit:
                    return


def _waiting(
    store: Store, topic: str, group: str, tags: str | None, start: str, as_json: bool
) -> Iterator[dict[str, Any]]:
    """The messages that the group has not consumed."""
    from rmq_store.cli.shared.follow import Follower
    from rmq_store.format.tables.schema import MESSAGE_SCHEMA

    columns = MESSAGE_SCHEMA.names if as_json else LINE_COLUMNS
    follower = Follower(store, topic, tags=tags, columns=columns, tell=tell)
    follower.begin(parse_group_start(start, store.clock()))
    offsets = store.committed_offsets(group)
    follower.start_from({queue_id: offset for (name, queue_id), offset in offsets.items() if name == topic})
    yield from follower.take()
