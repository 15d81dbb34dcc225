"""Offsets of a group that are set. Source: ResetOffsetByTimeOldCommand.java."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rmq_store.cli.mqadmin_print.lines import java_text, write_line

_LINE = "%-20s  %-20s  %-20s  %-20s  %-20s  %-20s"


class OffsetRow(NamedTuple):
    """A group's offset in one queue: now (None: it has none), and where it would be set; not if `goes` is False."""

    broker_name: str
    queue_id: int
    broker_offset: int
    consumer_offset: int | None
    timestamp_offset: int
    goes: bool


def reset_head(group: str, topic: str, force: bool, timestamp: str, time_ms: int) -> str:
    """The line above the offsets."""
    facts = f"consumerGroup[{group}], topic[{topic}], force[{java_text(force)}]"
    return f"reset consumer offset by specified {facts}, timestamp(string)[{timestamp}], timestamp(long)[{time_ms}]"


def write_offsets(rows: Sequence[OffsetRow], head: str, last_column: str) -> None:
    """Print the offsets before and after."""
    if head:
        write_line("%s", head)
    columns = ("#brokerName", "#queueId", "#brokerOffset", "#consumerOffset", "#timestampOffset", last_column)
    write_line(_LINE, *columns)
    for row in rows:
        now = row.consumer_offset or 0
        then = row.timestamp_offset if row.goes else now
        write_line(_LINE, row.broker_name, row.queue_id, row.broker_offset, now, row.timestamp_offset, then)
