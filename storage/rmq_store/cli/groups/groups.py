"""`rmq groups`: how far the consumer groups are, as mqadmin counts it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.shared.completion import GROUP
from rmq_store.cli.shared.name_lookup import require_group
from rmq_store.cli.shared.output import (
    common_options,
    lmq_option,
    open_store,
    printable,
    queue_text,
    tell_conflicts,
    wide_option,
    write_json,
    write_table,
)
from rmq_store.errors import CorruptionError
from rmq_store.format.text.names import dlq_topic, retry_topic

if TYPE_CHECKING:
    from rmq_store import Store
    from rmq_store.broker.monitoring.lag import GroupLag


@click.command(
    short_help="Consumer groups: committed offsets, lag, retries, dead letters.",
    epilog="\b\nExample:\n  rmq groups cg_orders --store /data/rocketmq/store",
)
@common_options
@lmq_option
@wide_option
@click.argument("names", metavar="[GROUP]...", nargs=-1, type=GROUP)
@click.option("--queues", "per_queue", is_flag=True, help="One line per queue instead of sums per group.")
@click.option("--all", "show_all", is_flag=True, help="Also groups that never committed an offset.")
def groups(root: Path, as_json: bool, names: tuple[str, ...], per_queue: bool, show_all: bool) -> None:
    """Consumer groups: committed offsets, lag, retries, dead letters.

    LAG is the Diff of mqadmin's consumerProgress: the messages between the committed offset and the end, over all
    queues of the topics on which the group has committed, including its %RETRY% topic. A queue without a committed
    offset counts from 0. RETRIES is the part of LAG in the %RETRY% topics. WAITING counts failed messages whose retry
    delay has not passed; they are not in LAG. DEAD counts the messages in %DLQ%GROUP, LEFT those of them that were not
    redriven (`-`: a record of that is damaged). If you name groups, their queues are shown. Filters are those that
    consumers registered at a broker (consumerFilter.json).
    """
    from rmq_store.broker.metadata.groups import FilterTable
    from rmq_store.broker.monitoring.lag import group_lag

    with open_store(root) as store:
        committed = store.all_committed_offsets()
        tell_conflicts(store)
        known = set(committed) | set(store.groups())
        for name in names:
            _ = name in committed or name in store.groups()  # an error of their own for those that cannot be used
            require_group(store, name)
        waiting = store.backlog_by_topic()
        failed = {name for name in known if retry_topic(name) in waiting}
        shown = sorted(names or (known if show_all else {*committed, *failed}))
        lags = [group_lag(store, name) for name in shown]
        found = [_json(lag, waiting.get(retry_topic(lag.group), 0), _left(store, lag)) for lag in lags]
    filters = [entry for entry in FilterTable(root).all() if entry.group in shown]
    for group in found:
        group["filters"] = [
            {"topic": entry.topic, "type": entry.expression_type, "expression": entry.expression}
            for entry in filters
            if entry.group == group["group"]
        ]
    write_groups(found, as_json=as_json, per_queue=per_queue or bool(names))
    if any(group["deadLeft"] is None for group in found):
        raise click.exceptions.Exit(1)


def write_groups(found: Sequence[Mapping[str, Any]], *, as_json: bool, per_queue: bool) -> None:
    """Print groups; queues with a `brokerName` are named by it, and an unknown number is `-`."""
    if as_json:
        write_json(found)
        return
    if per_queue:
        rows = [
            (g["group"], q["topic"], queue_text(q), _or_dash(q["committedOffset"]), q["maxOffset"], q["lag"])
            for g in found
            for q in g["queues"]
        ]
        write_table(("GROUP", "TOPIC", "QUEUE", "COMMITTED", "MAX", "LAG"), rows, flexible=("GROUP", "TOPIC"))
        click.echo()
    sums = [
        (
            g["group"],
            len({q["topic"] for q in g["queues"]}),
            g["lag"],
            g["retries"],
            _or_dash(g["waiting"]),
            g["dead"],
            _or_dash(g["deadLeft"]),
        )
        for g in found
    ]
    write_table(("GROUP", "TOPICS", "LAG", "RETRIES", "WAITING", "DEAD", "LEFT"), sums, flexible=("GROUP",))
    asked = [(g["group"], one["topic"], one["type"], one["expression"]) for g in found for one in g["filters"]]
    if asked:
        click.echo()
        write_table(("GROUP", "TOPIC", "TYPE", "FILTER"), asked, flexible=("GROUP", "TOPIC", "FILTER"))


def _left(store: Store, lag: GroupLag) -> int | None:
    """The dead letters of the group that nobody has redriven. None, and a line on stderr: a record of what was redriven
    is damaged. All other columns are known.
    """
    if not lag.dead:
        return 0
    ranges = store.queue_ranges(dlq_topic(lag.group))
    try:
        redriven = store.redriven(lag.group)
    except CorruptionError as error:
        click.echo(printable(f"rmq: LEFT of group {lag.group} is not known: {error}"), err=True)
        return None
    return lag.dead - sum(
        redriven[queue_id].count_in(*ranges[queue_id]) for queue_id in redriven.keys() & ranges.keys()
    )


def _json(lag: GroupLag, waiting: int, left: int | None) -> dict[str, Any]:
    return {
        "group": lag.group,
        "lag": lag.diff_total,
        "retries": lag.retry_diff,
        "waiting": waiting,
        "dead": lag.dead,
        "deadLeft": left,
        "queues": [
            {
                "topic": queue.topic,
                "queueId": queue.queue_id,
                "committedOffset": queue.consumer_offset,
                "maxOffset": queue.broker_offset,
                "lag": queue.diff,
            }
            for queue in lag.queues
        ],
    }


def _or_dash(offset: int | None) -> int | str:
    return "-" if offset is None else offset
