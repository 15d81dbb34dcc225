"""`rmq tail`: the last messages of a topic, and new ones."""

from __future__ import annotations

import select
import sys
import time
from typing import TYPE_CHECKING

import click

from rmq_store.cli.shared.completion import TOPIC
from rmq_store.cli.shared.message_text import body_option, columns_of, json_row, message_line
from rmq_store.cli.shared.output import tell, wide_option, write_json
from rmq_store.cli.shared.targets import parse_start, start_option
from rmq_store.cli.target.command import by_target, target_command
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store.cli.target.view import Following, QueueName, Target


@target_command(
    short_help="The last messages of a topic; -f also prints new ones.",
    epilog="\b\nExamples:\n  rmq tail -f OrderTopic --store /data/rocketmq/store\n"
    "  rmq tail OrderTopic --from 10m --filter \"amount > 100 AND TAGS = 'paid'\" --json",
    cluster_short_name=False,
)
@wide_option
@click.argument("topic", type=TOPIC)
@click.option("-f", "--follow", is_flag=True, help="Continue with new messages, until Ctrl-C.")
@click.option(
    "-n", "--lines", "count", type=click.IntRange(min=0), metavar="N", help="The last N messages; 10 by default."
)
@start_option
@by_target(
    click.option("--queue", type=click.IntRange(min=0), metavar="ID", help="Only this queue."),
    click.option("--queue", metavar="BROKER:ID", help="Only this queue, as broker-a:0."),
)
@click.option("--tags", metavar="EXPR", help='Only messages with these tags: "TagA || TagB".')
@click.option("--filter", "sql", metavar="SQL92", help="Only messages whose properties match this SQL92 filter.")
@body_option
def tail(
    target: Target,
    as_json: bool,
    topic: str,
    follow: bool,
    count: int | None,
    start: str | None,
    queue: QueueName | None,
    tags: str | None,
    sql: str | None,
    body: str,
) -> None:
    """The last messages of a topic, in the order [store: in which they were stored][cluster: of their store times];
    with -f also new ones.

    A line is: time, [cluster: broker:]queue:offset, tags, keys, body; on a terminal the body is cut. Nothing is
    consumed or written, and [store: several instances may run beside writers, brokers and retention. If retention
    deletes messages before they are printed, they are skipped, with a message on stderr.]
    [cluster: no group is made. Brokers have clocks of their own: messages of two brokers may change places. Messages
    that retention deletes before they are printed are skipped, with a message on stderr. With -f a broker that does not
    answer is named on stderr, and read again when it is back.]
    """
    if start is not None and count is not None:
        raise UsageError("-n and --from exclude each other")
    with target.view(tell) as view:
        columns = columns_of(view.line_columns, as_json=as_json, body=body)
        following = view.follow(topic, queue, tags=tags, sql=sql, columns=columns)
        if start is None:
            following.start_last(10 if count is None else count)
        else:
            following.begin(parse_start(start, view.now_ms()))
        try:
            _show(following, as_json, body)
            following.failures.require_any()
            while follow and not reader_left(view.poll_s):
                _show(following, as_json, body)
        except KeyboardInterrupt:
            return
    if following.failures.missing:  # stderr says so already
        raise click.exceptions.Exit(1)


def _show(following: Following, as_json: bool, body: str) -> None:
    for row in following.take():
        if as_json:
            write_json(json_row(row, body), one_line=True)
        else:
            click.echo(message_line(row, body))


def reader_left(wait_s: float) -> bool:
    """Wait; True if the reader of the output has gone. Else `rmq tail -f | head` would stay for one more message."""
    try:
        number = sys.stdout.fileno()
    except OSError:  # not a file at all
        time.sleep(wait_s)
        return False
    poll = select.poll()
    poll.register(number, 0)
    return any(event & (select.POLLERR | select.POLLNVAL) for _, event in poll.poll(wait_s * 1000))
