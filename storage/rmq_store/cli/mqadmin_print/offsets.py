"""Offsets of a group that are set. Source: ResetOffsetByTimeOldCommand.java."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rmq_store.cli.mqadmin_print.lines import java_text, write_line

_LINE = "%-20s  %-20s  %-20s  %-20s  %-20s  %-20s"


class ResetTo(NamedTuple):
    """The target of a reset: the first message of `time_ms` or later, -1: behind the newest one; or `offset` of
    `queue`. Without `force` an offset never goes forward.
    """

    time_ms: int
    force: bool
    queue: int | None = None
    offset: int | None = None

    def goes(self, committed: int | None, then: int) -> bool:
        """Whether an offset is set (DefaultMQAdminExtImpl#resetOffsetConsumeOffset)."""
        return self.force or then <= (committed or 0)


class OffsetRow(NamedTuple):
    """A group's offset in one queue: now (None: it has none), and where it would be set; not if `goes` is False."""

    topic: str
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


def offset_json(row: OffsetRow, *, with_broker: bool) -> dict[str, Any]:
    """The end of a queue, and the group's offset before and after."""
    broker = {"brokerName": row.broker_name} if with_broker else {}
    return {
        "topic": row.topic,
        **broker,
        "queueId": row.queue_id,
        "brokerOffset": row.broker_offset,
        "consumerOffset": row.consumer_offset,
        "resetOffset": row.timestamp_offset,
    }
