"""`rmq groups`: how far the consumer groups are, as mqadmin counts it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.output import common_options, open_store, write_json, write_table
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store import Store


@click.command(
    short_help="Consumer groups: committed offsets, lag, retries, dead letters.",
    epilog="\b\nExample:\n  rmq groups cg_orders --store /data/rocketmq/store",
)
@common_options
@click.argument("names", metavar="[GROUP]...", nargs=-1)
@click.option("--queues", "per_queue", is_flag=True, help="One line per queue instead of sums per group.")
@click.option("--all", "show_all", is_flag=True, help="Groups too that never committed an offset.")
def groups(root: Path, as_json: bool, names: tuple[str, ...], per_queue: bool, show_all: bool) -> None:
    """Consumer groups: committed offsets, lag, retries, dead letters.

    LAG is what mqadmin's consumerProgress shows as Diff: the messages between the committed offset and the end, over
    all queues of the topics on which the group has committed, its %RETRY% topic included; a queue without a committed
    offset counts from 0. RETRIES is the part of LAG in the %RETRY% topics; DEAD counts the messages in %DLQ%GROUP. With
    names of groups, the queues are shown. Filters are what consumers asked a broker to select by (consumerFilter.json).
    """
    from rmq_store.broker.groups import FilterTable
    from rmq_store.broker.offsets import OffsetTable

    with open_store(root) as store:
        committed = OffsetTable(root).all()
        known = set(committed) | set(store.groups())
        if unknown := sorted(set(names) - known):
            raise UsageError(f"no such group: {', '.join(unknown)}")
        shown = sorted(names or (known if show_all else committed))
        found = [_progress(store, name, committed.get(name, {})) for name in shown]
    filters = [entry for entry in FilterTable(root).all() if entry.group in shown]
    for group in found:
        group["filters"] = [
            {"topic": entry.topic, "type": entry.expression_type, "expression": entry.expression}
            for entry in filters
            if entry.group == group["group"]
        ]
    if as_json:
        write_json(found)
        return
    if names or per_queue:
        rows = [
            (g["group"], q["topic"], q["queueId"], _or_dash(q["committedOffset"]), q["maxOffset"], q["lag"])
            for g in found
            for q in g["queues"]
        ]
        write_table(("GROUP", "TOPIC", "QUEUE", "COMMITTED", "MAX", "LAG"), rows)
        click.echo()
    sums = [(g["group"], len({q["topic"] for q in g["queues"]}), g["lag"], g["retries"], g["dead"]) for g in found]
    write_table(("GROUP", "TOPICS", "LAG", "RETRIES", "DEAD"), sums)
    if filters:
        click.echo()
        asked = [(entry.group, entry.topic, entry.expression_type, entry.expression) for entry in filters]
        write_table(("GROUP", "TOPIC", "TYPE", "FILTER"), asked)


def _progress(store: Store, group: str, committed: Mapping[tuple[str, int], int]) -> dict[str, Any]:
    """One group as AdminBrokerProcessor#getConsumeStats counts it; topics that are gone are left out."""
    from rmq_store.format.names import RETRY_PREFIX, dlq_topic

    known = store.topics()
    queues: list[dict[str, Any]] = []
    for topic in sorted({topic for topic, _ in committed} & known.keys()):
        for queue_id, queue in sorted(store.queue_ranges(topic).items()):
            offset = committed.get((topic, queue_id))
            place = {"topic": topic, "queueId": queue_id, "committedOffset": offset, "maxOffset": queue.max_offset}
            queues.append({**place, "lag": queue.max_offset - max(0, offset or 0)})
    dead = store.queue_ranges(dlq_topic(group)).values() if dlq_topic(group) in known else ()
    return {
        "group": group,
        "lag": sum(queue["lag"] for queue in queues),
        "retries": sum(queue["lag"] for queue in queues if queue["topic"].startswith(RETRY_PREFIX)),
        "dead": sum(queue.max_offset - queue.min_offset for queue in dead),
        "queues": queues,
    }


def _or_dash(offset: int | None) -> int | str:
    return "-" if offset is None else offset
