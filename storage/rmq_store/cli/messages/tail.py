"""`rmq tail`: the last messages of a topic, and new ones."""

from __future__ import annotations

import select
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmq_store.cli.shared.completion import TOPIC
from rmq_store.cli.shared.message_text import LINE_COLUMNS, body_option, json_row, message_line
from rmq_store.cli.shared.name_lookup import require_topic
from rmq_store.cli.shared.output import common_options, open_store, tell, wide_option, write_json
from rmq_store.cli.shared.targets import parse_start, start_option
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store.cli.shared.follow import Follower

# Between two looks at where the log ends.
POLL_S = 0.1


@click.command(
    short_help="The last messages of a topic; -f also prints new ones.",
    epilog="\b\nExamples:\n  rmq tail -f OrderTopic --store /data/rocketmq/store\n"
    "  rmq tail OrderTopic --from 10m --filter \"amount > 100 AND TAGS = 'paid'\" --json",
)
@common_options
@wide_option
@click.argument("topic", type=TOPIC)
@click.option("-f", "--follow", is_flag=True, help="Continue with new messages, until Ctrl-C.")
@click.option(
    "-n", "--lines", "count", type=click.IntRange(min=0), metavar="N", help="The last N messages; 10 by default."
)
@start_option
@click.option("--queue", "queue_id", type=click.IntRange(min=0), metavar="ID", help="Only this queue.")
@click.option("--tags", metavar="EXPR", help='Only messages with these tags: "TagA || TagB".')
@click.option("--filter", "sql", metavar="SQL92", help="Only messages whose properties match this SQL92 filter.")
@body_option
def tail(
    root: Path,
    as_json: bool,
    topic: str,
    follow: bool,
    count: int | None,
    start: str | None,
    queue_id: int | None,
    tags: str | None,
    sql: str | None,
    body: str,
) -> None:
    """The last messages of a topic, in the order in which they were stored; with -f also new ones.

    A line is: time, queue:offset, tags, keys, body; on a terminal the body is cut. Nothing is consumed or written, and
    several instances may run beside writers, brokers and retention. If retention deletes messages before they are
    printed, they are skipped, with a message on stderr.
    """
    from rmq_store.cli.shared.follow import Follower
    from rmq_store.format.tables.schema import MESSAGE_SCHEMA

    if start is not None and count is not None:
        raise UsageError("-n and --from exclude each other")
    columns = [name for name in (MESSAGE_SCHEMA.names if as_json else LINE_COLUMNS) if body != "none" or name != "body"]
    with open_store(root) as store:
        follower = Follower(
            store, require_topic(store, topic), queue_id=queue_id, tags=tags, sql=sql, columns=columns,
            tell=tell,
        )  # fmt: skip
        if start is None:
            follower.start_last(10 if count is None else count)
        else:
            follower.begin(parse_start(start, store.clock()))
        try:
            _show(follower, as_json, body)
            while follow and not reader_left(POLL_S):
                _show(follower, as_json, body)
        except KeyboardInterrupt:
            return


def _show(follower: Follower, as_json: bool, body: str) -> None:
    for row in follower.take():
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
