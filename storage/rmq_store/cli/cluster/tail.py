"""`rmq tail` over a cluster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from rmq_store.cli.messages.tail import reader_left
from rmq_store.cli.shared.message_text import body_option, columns_of, json_row, message_line
from rmq_store.cli.shared.output import tell, wide_option, write_json
from rmq_store.cli.shared.targets import parse_start, start_option
from rmq_store.cli.target.cluster_target import ClusterCommand, ClusterTarget, cluster_options
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store.cli.cluster.follow import ClusterFollower

# Between two questions to each broker.
POLL_S: Final = 0.5


@click.command(
    cls=ClusterCommand,
    short_help="The last messages of a topic; -f also prints new ones.",
    epilog="\b\nExamples:\n  rmq -n ns1:9876 tail -f OrderTopic\n"
    "  rmq -n ns1:9876 tail OrderTopic --from 10m --filter \"amount > 100 AND TAGS = 'paid'\" --json",
)
@cluster_options(short_name=False)
@wide_option
@click.argument("topic")
@click.option("-f", "--follow", is_flag=True, help="Continue with new messages, until Ctrl-C.")
@click.option(
    "-n", "--lines", "count", type=click.IntRange(min=0), metavar="N", help="The last N messages; 10 by default."
)
@start_option
@click.option("--queue", metavar="BROKER:ID", help="Only this queue, as broker-a:0.")
@click.option("--tags", metavar="EXPR", help='Only messages with these tags: "TagA || TagB".')
@click.option("--filter", "sql", metavar="SQL92", help="Only messages whose properties match this SQL92 filter.")
@body_option
def tail(
    target: ClusterTarget,
    as_json: bool,
    topic: str,
    follow: bool,
    count: int | None,
    start: str | None,
    queue: str | None,
    tags: str | None,
    sql: str | None,
    body: str,
) -> None:
    """The last messages of a topic, in the order of their store times; with -f also new ones.

    A line is: time, broker:queue:offset, tags, keys, body; on a terminal the body is cut. Nothing is consumed or
    written, and no group is made. Brokers have clocks of their own: messages of two brokers may change places. Messages
    that retention deletes before they are printed are skipped, with a message on stderr. With -f a broker that does not
    answer is named on stderr, and read again when it is back.
    """
    from rmq_store.cli.cluster.follow import ClusterFollower
    from rmq_store.cli.cluster.queues import named_queues, require_topic

    if start is not None and count is not None:
        raise UsageError("-n and --from exclude each other")
    with target.open() as cluster:
        follower = ClusterFollower(
            cluster, target, named_queues(require_topic(cluster, topic), queue), tags=tags, sql=sql,
            columns=columns_of(as_json=as_json, body=body, of_cluster=True), tell=tell, takes_new_queues=queue is None,
        )  # fmt: skip
        if start is None:
            follower.start_last(10 if count is None else count)
        else:
            follower.begin(parse_start(start, time.time_ns() // 1_000_000), is_one_queue=queue is not None)
        try:
            _show(follower, as_json, body)
            follower.answers.require_any()
            while follow and not reader_left(POLL_S):
                _show(follower, as_json, body)
        except KeyboardInterrupt:
            return
    if follower.answers.missing:
        raise click.exceptions.Exit(1)


def _show(follower: ClusterFollower, as_json: bool, body: str) -> None:
    for row in follower.take():
        if as_json:
            write_json(json_row(row, body), one_line=True)
        else:
            click.echo(message_line(row, body))
