"""The traces that clients left of a message: their entries, and how mqadmin prints them.

Sources: QueryMsgTraceByIdSubCommand.java, TraceDataEncoder.java (client traces are messages of RMQ_SYSTRACE_TOPIC:
fields separated by %x01, entries by %x02).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.mqadmin_print.lines import date_text, write_line
from rmq_store.cli.mqadmin_print.messages import shown
from rmq_store.cli.shared.output import write_json

if TYPE_CHECKING:
    from rmq_store import StoredMessage

TRACE_TOPIC = "RMQ_SYSTRACE_TOPIC"
_TRACE_LINE = "%-10s %-20s %-20s %-20s %-10s %-10s"
_ENTRY_SEPARATOR, _FIELD_SEPARATOR = "\x02", "\x01"


def write_traces(found: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    """Print the entries of `trace_views`, those of the sender first."""
    if as_json:
        write_json(found)
        return
    published = [view for view in found if view["type"] == "Pub"]
    groups = dict.fromkeys(view["group"] for view in found if view["type"] == "Sub")
    for view in published:
        write_line(_TRACE_LINE, "#Type", "#ProducerGroup", "#ClientHost", "#SendTime", "#CostTimes", "#Status")
        _write_view(view)
        click.echo()
    for group in groups:
        write_line(_TRACE_LINE, "#Type", "#ConsumerGroup", "#ClientHost", "#ConsumerTime", "#CostTimes", "#Status")
        for view in found:
            if (view["type"], view["group"]) == ("Sub", group):
                _write_view(view)
        click.echo()


def _write_view(view: dict[str, Any]) -> None:
    write_line(
        _TRACE_LINE, view["type"], view["group"], view["clientHost"], date_text(view["timestamp"]),
        f"{view['costTime']}ms", view["status"],
    )  # fmt: skip


def trace_views(message: StoredMessage, msg_id: str, max_message_bytes: int = 0) -> Iterator[dict[str, Any]]:
    """The entries of one trace message that speak of `msg_id`; entries of other kinds are passed over.

    Pub       timestamp region group topic msgId tags keys storeHost bodyLength costTime msgType [offsetMsgId] success
    SubAfter  requestId msgId costTime success keys [code timestamp group]
    """
    host = str(message.born_host).rpartition(":")[0]
    text = shown(message, max_message_bytes).body.decode("utf-8", "replace")
    for entry in text.split(_ENTRY_SEPARATOR):
        line = entry.split(_FIELD_SEPARATOR)
        if line[0] == "Pub" and len(line) >= 13 and line[5] == msg_id:
            ok = line[12 if len(line) == 13 else 13]
            yield _view("Pub", line[3], host, line[1], line[10], ok)
        elif line[0] == "SubAfter" and len(line) >= 5 and line[2] == msg_id:
            timestamp, group = (line[7], line[8]) if len(line) >= 9 else (str(message.born_timestamp_ms), "")
            yield _view("Sub", group, host, timestamp, line[3], line[4])


def _view(kind: str, group: str, host: str, timestamp: str, cost: str, ok: str) -> dict[str, Any]:
    return {
        "type": kind, "group": group, "clientHost": host, "timestamp": int(timestamp) if timestamp.isdigit() else 0,
        "costTime": int(cost) if cost.isdigit() else 0, "status": "success" if ok.strip() == "true" else "failed",
    }  # fmt: skip
