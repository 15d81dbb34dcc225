"""`rmq read` over a cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.messages.read import write_rows
from rmq_store.cli.shared.message_text import body_option, columns_of
from rmq_store.cli.shared.output import wide_option
from rmq_store.cli.shared.targets import EARLIEST, TIME, Start, parse_start, start_option
from rmq_store.cli.target.cluster_target import ClusterCommand, ClusterTarget, cluster_options

if TYPE_CHECKING:
    from rmq_store.cli.target.answers import Answers
    from rmq_store.remoting.cluster.cluster import Cluster


@click.command(
    cls=ClusterCommand,
    short_help="Print messages of a topic.",
    epilog="\b\nExample:\n  rmq -n ns1:9876 read OrderTopic --queue broker-a:0 --from 100 --max 5",
)
@cluster_options()
@wide_option
@click.argument("topic")
@click.option("--queue", metavar="BROKER:ID",
              help="Only this queue, as broker-a:0; by default all queues, one after the other. A plain number, if one "
                   "broker has this queue.")  # fmt: skip
@start_option
@click.option(
    "--max", "limit", type=click.IntRange(min=1), default=20, show_default=True, help="Maximum number of messages."
)
@body_option
def read(
    target: ClusterTarget, as_json: bool, topic: str, queue: str | None, start: str | None, limit: int, body: str
) -> None:
    """Print messages of a topic, each queue in the order of its offsets, one queue after the other.

    No message is consumed: no group's offset moves, and no group is made. With --json every message is one line, with
    all columns of the data source. Bodies are decompressed. In a body that is not UTF-8 the invalid bytes are escaped;
    use --body hex for the exact bytes. A slave is read while its master does not answer.
    """
    from rmq_store.cli.target.answers import Answers

    beginning = parse_start(start or EARLIEST, time.time_ns() // 1_000_000)
    with target.open() as cluster:
        answers = Answers(cluster)
        columns = columns_of(as_json=as_json, body=body, of_cluster=True)
        rows = _rows(cluster, target, answers, topic, queue, beginning, limit, columns)
        write_rows(rows, as_json=as_json, body=body)
        answers.require_any()
    answers.report()


def _rows(
    cluster: Cluster, target: ClusterTarget, answers: Answers, topic: str, queue_name: str | None, start: Start,
    limit: int, columns: Sequence[str],
) -> Iterator[dict[str, Any]]:  # fmt: skip
    from rmq_store.cli.cluster.queues import named_queues, require_topic, rows_between, shown, topic_ends
    from rmq_store.remoting.cluster.offsets import search_offsets

    route = require_topic(cluster, topic)
    queues = named_queues(route, queue_name)
    ranges = topic_ends(cluster, answers, [topic])
    wanted = [one for one in queues if one in ranges]
    at_time = search_offsets(cluster, wanted, start.value) if start.kind == TIME else {}
    for queue in queues:
        if queue not in ranges or limit <= 0:
            continue
        present = ranges[queue]
        if queue_name is not None:  # of several queues: what each of them has from there on
            start.require_in(present, shown(queue), topic)
        first = start.first_offset(present, lambda _: at_time[queue])  # noqa: B023
        last = min(first + limit, present.max_offset)
        for row in rows_between(cluster, target, queue, first, last, columns) if first < last else ():
            yield row
            limit -= 1
