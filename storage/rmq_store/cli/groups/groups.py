"""`rmq groups`: how far the consumer groups are, as mqadmin counts it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.shared.completion import GROUP
from rmq_store.cli.shared.output import lmq_option, tell, wide_option, write_json, write_table
from rmq_store.cli.target.command import by_target, target_command
from rmq_store.cli.target.rows import GroupRow, away_json, queue_json, queue_name

if TYPE_CHECKING:
    from rmq_store.cli.target.view import Target


@target_command(
    short_help="Consumer groups: committed offsets, lag, retries, dead letters.",
    epilog="\b\nExample:\n  rmq groups cg_orders --store /data/rocketmq/store",
)
@by_target(lmq_option)
@wide_option
@click.argument("names", metavar="[GROUP]...", nargs=-1, type=GROUP)
@click.option("--queues", "per_queue", is_flag=True, help="One line per queue instead of sums per group.")
@click.option("--all", "show_all", is_flag=True, help="Also groups that never committed an offset.")
def groups(target: Target, as_json: bool, names: tuple[str, ...], per_queue: bool, show_all: bool) -> None:
    """Consumer groups: committed offsets, lag, retries, dead letters[cluster: , over all brokers].

    LAG is the Diff of mqadmin's consumerProgress: the messages between the committed offset and the end, over all
    queues of the topics on which the group has committed, including its %RETRY% topic. A queue without a committed
    offset counts from 0. RETRIES is the part of LAG in the %RETRY% topics. WAITING [store: counts failed messages whose
    retry delay has not passed; they are not in LAG.][cluster: is `-`: a broker does not tell what waits for its delay.]
    DEAD counts the messages in %DLQ%GROUP, LEFT those of them that were not redriven[store:  (`-`: a
    record of that is damaged).][cluster: ; `-`: a broker does not say which.] If you name groups, their queues are
    shown. [store: Filters are those that consumers registered at a broker (consumerFilter.json).]
    [cluster: Brokers of 4.x show the offset 0 for a queue without one. Numbers that only a broker knows which does not
    answer are `?`, in a sum 12+?, and null in JSON, where `away` names it; exit code 1 then.]
    """
    with target.view(tell) as view:
        found = view.groups(names, show_all=show_all)
    write_groups(found, as_json=as_json, per_queue=per_queue or bool(names))
    view.failures.report()


def write_groups(found: Sequence[GroupRow], *, as_json: bool, per_queue: bool) -> None:
    """Print groups; a number that no broker and no store tells is `-`."""
    if as_json:
        write_json([_json(group) for group in found])
        return
    if per_queue:
        rows = [
            (one.group, q.topic, queue_name(q.broker_name, q.queue_id), q.committed.cell, q.end.cell, q.lag.cell)
            for one in found
            for q in one.queues
        ]
        write_table(("GROUP", "TOPIC", "QUEUE", "COMMITTED", "MAX", "LAG"), rows, flexible=("GROUP", "TOPIC"))
        click.echo()
    sums = [
        (
            one.group,
            len({queue.topic for queue in one.queues}),
            one.lag.cell,
            one.retries.cell,
            _or_dash(one.waiting),
            one.dead.cell,
            _or_dash(one.dead_left),
        )
        for one in found
    ]
    write_table(("GROUP", "TOPICS", "LAG", "RETRIES", "WAITING", "DEAD", "LEFT"), sums, flexible=("GROUP",))
    asked = [(one.group, *its) for one in found for its in one.filters]
    if asked:
        click.echo()
        write_table(("GROUP", "TOPIC", "TYPE", "FILTER"), asked, flexible=("GROUP", "TOPIC", "FILTER"))


def _json(group: GroupRow) -> dict[str, Any]:
    return {
        "group": group.group,
        "lag": group.lag.exact,
        "retries": group.retries.exact,
        "waiting": group.waiting,
        "dead": group.dead.exact,
        "deadLeft": group.dead_left,
        "queues": [
            {
                "topic": one.topic,
                **queue_json(one.broker_name, one.queue_id),
                "committedOffset": one.committed.exact,
                "maxOffset": one.end.exact,
                "lag": one.lag.exact,
            }
            for one in group.queues
        ],
        "filters": [
            {"topic": one.topic, "type": one.expression_type, "expression": one.expression} for one in group.filters
        ],
        **away_json(group.lag.away),
    }


def _or_dash(offset: int | None) -> int | str:
    return "-" if offset is None else offset
