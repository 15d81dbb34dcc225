"""The lag of groups. Source: ConsumerProgressSubCommand.java."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from rmq_store.cli.mqadmin_print.lines import date_text, write_line
from rmq_store.cli.shared.output import write_json

_QUEUE_LINE = "%-64s  %-32s  %-4s  %-20s  %-20s  %-20s %-20s%s"
_CLIENT_LINE = "%-64s  %-32s  %-4s  %-20s  %-20s  %-20s %-20s %-20s%s"
_GROUP_LINE = "%-64s  %-6s  %-24s %-5s  %-14s  %-7s  %s"

OFFLINE = "OFFLINE"
"""The version of a group without members."""


class QueueProgress(NamedTuple):
    """A group in one queue. `consumer_offset` None: it has none; `last_timestamp_ms`: when its last message was stored,
    0: unknown; `client`: the id of the member that holds the queue.
    """

    topic: str
    broker_name: str
    queue_id: int
    broker_offset: int
    consumer_offset: int | None
    inflight: int
    last_timestamp_ms: int
    client: str | None = None

    @property
    def diff(self) -> int:
        """The messages from the committed offset to the end."""
        return self.broker_offset - (self.consumer_offset or 0)


class GroupTotal(NamedTuple):
    """A group in one line. `version`, `kind` (PUSH, PULL) and `model` are those of its members."""

    group: str
    member_count: int
    version: str
    kind: str
    model: str
    tps: float
    diff_total: int


class GroupProgress(NamedTuple):
    """A group queue by queue, and how many messages it consumes per second; 0: nobody counts them."""

    queues: Sequence[QueueProgress]
    tps: float = 0.0


def write_queue_progress(group: str, progress: GroupProgress, *, as_json: bool, show_clients: bool) -> None:
    """Print a group queue by queue, and its sums."""
    queues = progress.queues
    diff, inflight = sum(queue.diff for queue in queues), sum(queue.inflight for queue in queues)
    if as_json:
        rows = [_queue_json(queue, show_clients=show_clients) for queue in queues]
        write_json({"group": group, "queues": rows, "diffTotal": diff, "inflightTotal": inflight})
        return
    client = ("#Client IP",) if show_clients else ()
    line = _CLIENT_LINE if show_clients else _QUEUE_LINE
    columns = ("#Topic", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset", *client, "#Diff", "#Inflight")
    write_line(line, *columns, "#LastTime")
    # Only the head is without a space before the last column.
    line = line.removesuffix("%s") + " %s"
    for queue in queues:
        place = queue.topic, queue.broker_name, queue.queue_id, queue.broker_offset, queue.consumer_offset or 0
        client = ((queue.client or "N/A").partition("@")[0],) if show_clients else ()
        last = date_text(queue.last_timestamp_ms) if queue.last_timestamp_ms else "N/A"
        write_line(line, *place, *client, queue.diff, queue.inflight, last)
    click.echo()
    write_line("Consume TPS: %.2f", progress.tps)
    write_line("Consume Diff Total: %d", diff)
    write_line("Consume Inflight Total: %d", inflight)


def write_group_progress(groups: Sequence[GroupTotal], *, as_json: bool) -> None:
    """Print one line for each group."""
    if as_json:
        write_json([{"group": one.group, "count": one.member_count, "diffTotal": one.diff_total} for one in groups])
        return
    write_line(_GROUP_LINE, "#Group", "#Count", "#Version", "#Type", "#Model", "#TPS", "#Diff Total")
    for one in groups:
        tps = int(one.tps)  # as mqadmin, which prints whole numbers here
        write_line(_GROUP_LINE, one.group, one.member_count, one.version, one.kind, one.model, tps, one.diff_total)


def _queue_json(queue: QueueProgress, *, show_clients: bool) -> dict[str, Any]:
    found = {
        "topic": queue.topic,
        "brokerName": queue.broker_name,
        "queueId": queue.queue_id,
        "brokerOffset": queue.broker_offset,
        "consumerOffset": queue.consumer_offset,
        "diff": queue.diff,
        "inflight": queue.inflight,
        "lastTimestamp": queue.last_timestamp_ms,
    }
    return {**found, "client": queue.client} if show_clients else found
