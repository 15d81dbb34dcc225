"""`rmq consume`: consume messages as a member of a consumer group."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import time
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

from rmq_store import real_time
from rmq_store.cli.shared.completion import GROUP, TOPIC
from rmq_store.cli.shared.message_text import body_option, columns_of, json_row, message_line
from rmq_store.cli.shared.output import lmq_option, printable, tell, wide_option, write_json
from rmq_store.cli.shared.targets import EARLIEST, LATEST, OFFSET, Start, parse_start
from rmq_store.cli.shared.times import TIMES
from rmq_store.cli.target.command import by_target, target_command
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rmq_store.cli.target.view import Consuming, Target
    from rmq_store.client import ConsumeConcurrentlyStatus, MessageExt, PushConsumerConfig

# Between two looks for messages.
_POLL_S: Final = 0.1


class _Stop(BaseException):
    """Ends the consumer from inside its listener: the present message is not consumed, and comes again."""


@target_command(
    short_help="Consume messages as a group; --peek only shows them.",
    epilog="\b\nExamples:\n  rmq consume OrderTopic --group cg_orders --max 10 --store /data/rocketmq/store\n"
    "  rmq consume OrderTopic --group cg_orders --until-empty --exec 'python handle.py'",
)
@by_target(lmq_option)
@wide_option
@click.argument("topic", type=TOPIC)
@click.option("--group", "-g", type=GROUP, required=True, help="The consumer group.")
@click.option("--max", "limit", type=click.IntRange(min=1), metavar="N", help="Stop after N messages.")
@click.option("--until-empty", is_flag=True, help="Stop when no message is left.")
@click.option("--tags", metavar="EXPR",
              help='Only messages with these tags: "TagA || TagB". Others count as consumed.')  # fmt: skip
@click.option("--from", "start", metavar="WHERE", default="earliest", show_default=True,
              help=f"Start of a group without an offset: earliest, latest, or a time: now, {TIMES}.")  # fmt: skip
@click.option("--exec", "command", metavar="CMD",
              help="Run a command for each message, with the body on standard input. Exit code 0: "
                   "consumed.")  # fmt: skip
@click.option("--peek", is_flag=True, help="Show the messages that would be consumed, and change nothing.")
@body_option
def consume(
    target: Target,
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
    """Consume messages of a topic, and the group's retries, and commit the group's offsets[cluster: , as a member of
    the group].

    A message is consumed when it was printed, or when the command of --exec ended with 0. Other exit codes send it back
    (RECONSUME_LATER): it comes again after a delay, and after its last retry it is a dead letter. The command runs
    without a shell, and has RMQ_TOPIC, RMQ_MSG_ID, RMQ_TAGS, RMQ_KEYS and RMQ_RECONSUME_TIMES in its environment. Other
    members of the group[cluster: , Java's included,] share the queues[store:  as usual]. [store: A stream that reads
    the topic as the group shares none: then the command is refused, and names the stream (exit code 1). Without --max
    and --until-empty it][cluster: --until-empty ends when no message has come for two seconds. Without it and --max the
    command] runs until Ctrl-C or SIGTERM. Exit code 1 if a message was sent back.
    [cluster: --peek joins no group, and makes none.]
    """
    if peek:
        if command is not None:
            raise UsageError("--peek changes nothing: it does not go with --exec")
        with target.view(tell) as view:
            columns = columns_of(view.line_columns, as_json=as_json, body=body)
            for row in islice(view.waiting(topic, group, tags, _group_start(start, view.now_ms()), columns), limit):
                _show_row(row, as_json, body)
        return
    handler = _Handler(limit, command, as_json=as_json, body=body)
    with target.consuming(topic) as there:
        handler.names_brokers = there.names_brokers
        handler.run(lambda: _run(there, handler, topic, group, tags, start, until_empty))
    handler.tell()


def _words(command: str | None) -> list[str]:
    try:
        words = shlex.split(command or "")
    except ValueError as error:
        raise UsageError(f"--exec {command!r}: {error}") from error
    if command is not None and not words:
        raise UsageError("--exec is empty")
    return words


class _Handler:
    """The listener: prints messages or runs the program of --exec, and counts."""

    def __init__(self, limit: int | None, command: str | None, *, as_json: bool, body: str) -> None:
        self.names_brokers = False
        self.done_count = self.failed_count = 0
        self._failure: OSError | None = None
        self._limit = limit
        self._words = _words(command)
        self._as_json = as_json
        self._body = body

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
            raise _Stop
        (message,) = messages
        try:
            succeeded = self._handle(message)
        except OSError as error:  # nobody reads what we print any more, or there is no such program
            self._failure = error
            raise _Stop from error
        if succeeded:
            self.done_count += 1
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS
        self.failed_count += 1
        return ConsumeConcurrentlyStatus.RECONSUME_LATER

    def _handle(self, message: MessageExt) -> bool:
        if not self._words:
            row = _row(message)
            if self.names_brokers:
                row["brokerName"] = message.broker_name
            _show_row(row, self._as_json, self._body)
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
    there: Consuming, handler: _Handler, topic: str, group: str, tags: str | None, start: str, until_empty: bool
) -> None:
    """Consume on this thread, one message after the other."""
    from rmq_store.client import MessageListenerConcurrently

    with there.consumer(group, _consumer_config(start, there.now_ms())) as consumer:
        consumer.subscribe(topic, tags or "*")
        consumer.register_message_listener(MessageListenerConcurrently(handler))
        consumer.start(threads=False)
        progressed = real_time.monotonic()
        try:
            while not handler.is_full:
                if consumer.run_once():
                    progressed = real_time.monotonic()
                elif until_empty and there.is_empty(consumer, real_time.monotonic() - progressed):
                    return
                else:
                    time.sleep(_POLL_S)
        except _Stop:
            return


def _consumer_config(start: str, now_ms: int) -> PushConsumerConfig:
    """The settings of a consumer that begins where --from says. Raises UsageError."""
    from rmq_store.client import PushConsumerConfig

    where, timestamp = _where(start, now_ms)
    return PushConsumerConfig(consume_from_where=where, consume_timestamp=timestamp)


def _group_start(text: str, now_ms: int) -> Start:
    """As `parse_start`, for a group: UsageError for an offset, because each queue has its own."""
    start = parse_start(text, now_ms)
    if start.kind == OFFSET:
        raise UsageError(f"{text!r} is no time: a group begins at earliest, latest or a time, because each queue has "
                         "offsets of its own; `rmq offsets reset --to-offset` sets one")  # fmt: skip
    return start


def _where(start: str, now_ms: int) -> tuple[Any, str | None]:
    from rmq_store.client import ConsumeFromWhere

    beginning = _group_start(start, now_ms)
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


def _show_row(row: dict[str, Any], as_json: bool, body: str) -> None:
    """Print a message."""
    if as_json:
        write_json(json_row(row, body), one_line=True)
    else:
        click.echo(message_line(row, body))
