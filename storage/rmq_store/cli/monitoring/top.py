"""`rmq top`: the present activity of a store."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rmq_store.cli.shared.formatting import Rates, bytes_text, duration_text, rate_text
from rmq_store.cli.shared.output import common_options, open_store, printable, write_json, write_table
from rmq_store.cli.shared.parameters import DAY_S, Seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rmq_store import Store

Command = TypeVar("Command", bound=Callable[..., Any])

_TOPICS = ("TOPIC", "QUEUES", "MESSAGES", "IN/S")
_GROUPS = ("GROUP", "LAG", "LAG TIME", "OUT/S", "RETRIES", "DEAD")


_OPTIONS = (
    click.option("--every", "every_s", metavar="SECONDS", type=Seconds(0.01, DAY_S), default=2.0, show_default=True,
                  help="Seconds between two polls, or a duration (500ms, 1m)."),
    click.option(
        "--max",
        "limit",
        type=click.IntRange(min=1),
        default=15,
        show_default=True,
        help="Maximum number of topics, and of groups.",
    ),
)  # fmt: skip


def top_options(command: Command) -> Command:
    """Add --every and --max."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command(
    short_help="Live view of a store: topics by rate, groups by lag.",
    epilog="\b\nExample:\n  rmq top --store /data/rocketmq/store --every 5",
)
@common_options
@top_options
def top(root: Path, as_json: bool, every_s: float, limit: int) -> None:
    """Live view of a store: topics by messages per second, groups by lag, disk usage, and bytes not flushed yet.

    On a terminal the view is redrawn until q or Ctrl-C. In a pipe, and with --json, the command polls twice and prints
    once.
    """
    with open_store(root) as store:
        show_top(_Sampler(store, limit).take, as_json=as_json, every_s=every_s)


def show_top(take: Callable[[], dict[str, Any]], *, as_json: bool, every_s: float) -> None:
    """Draw samples until q or Ctrl-C; in a pipe, and with JSON, print the second one."""
    if sys.stdout.isatty() and not as_json:
        from rmq_store.cli.shared.live_screen import watch

        watch(lambda: _drawn(take()), every_s)
        return
    take()
    time.sleep(every_s)
    found = take()
    if as_json:
        write_json(found)
        return
    for line in _head(found):
        click.echo(printable(line))
    click.echo()
    write_table(_TOPICS, [_topic_cells(topic) for topic in found["topics"]])
    click.echo()
    write_table(_GROUPS, [_group_cells(group) for group in found["groups"]])


class _Sampler:
    """Samples an open store; rates are those since the previous sample."""

    def __init__(self, store: Store, limit: int) -> None:
        self._store = store
        self._limit = limit
        self._log, self._in, self._out = Rates(), Rates(), Rates()

    def take(self) -> dict[str, Any]:
        """One sample, as plain values."""
        from rmq_store.broker.monitoring.metrics import not_flushed_bytes
        from rmq_store.broker.write.disk_space import usage_percent
        from rmq_store.format.text.names import is_system_topic

        store = self._store
        store.refresh()
        now_ms = store.clock()
        start, end = store.log_range()
        topics = {
            name: store.queue_ranges(name)
            for name, config in store.topics().items()
            if config.readable and not is_system_topic(name) and config.is_read_here
        }
        ends = {name: sum(queue.max_offset for queue in ranges.values()) for name, ranges in topics.items()}
        grown = self._in.sample(now_ms, ends)
        found: list[dict[str, Any]] = [
            {
                "topic": name,
                "queues": len(ranges),
                "messages": sum(queue.max_offset - queue.min_offset for queue in ranges.values()),
                "inPerSecond": grown.get(name),
            }
            for name, ranges in topics.items()
        ]
        found.sort(key=lambda topic: (-(topic["inPerSecond"] or 0.0), -topic["messages"], topic["topic"]))
        return {
            "store": str(store.path),
            "logStart": start,
            "logEnd": end,
            "bytesPerSecond": self._log.sample(now_ms, {"log": end}).get("log"),
            "diskUsedPercent": usage_percent(store.path),
            "notFlushedBytes": not_flushed_bytes(store.path),
            "topics": found[: self._limit],
            "groups": self._groups(now_ms),
        }

    def _groups(self, now_ms: int) -> list[dict[str, Any]]:
        from rmq_store.broker.monitoring.lag import all_lags

        lags = all_lags(self._store, now_ms)
        gone = self._out.sample(now_ms, {lag.group: sum(q.consumer_offset or 0 for q in lag.queues) for lag in lags})
        found: list[dict[str, Any]] = [
            {
                "group": lag.group,
                "lag": lag.diff_total,
                "lagMs": max((q.lag_ms for q in lag.queues if q.diff and q.lag_ms is not None), default=None),
                "outPerSecond": gone.get(lag.group),
                "retries": lag.retry_diff,
                "dead": lag.dead,
            }
            for lag in lags
        ]
        found.sort(key=lambda group: (-group["lag"], group["group"]))
        return found[: self._limit]


def _head(found: dict[str, Any]) -> list[str]:
    if "cluster" in found:
        return [found["cluster"], f"{found['brokers']} brokers"]
    waiting = found["notFlushedBytes"]
    speed = found["bytesPerSecond"]
    size = bytes_text(found["logEnd"] - found["logStart"])
    return [
        found["store"],
        f"log {size}, {'-' if speed is None else bytes_text(speed)}/s; disk {found['diskUsedPercent']} % in use; "
        f"not flushed: {'no writer' if waiting is None else bytes_text(waiting)}",
    ]


def _topic_cells(topic: dict[str, Any]) -> tuple[str | int, ...]:
    return topic["topic"], topic["queues"], topic["messages"], rate_text(topic["inPerSecond"])


def _group_cells(group: dict[str, Any]) -> tuple[str | int, ...]:
    return (
        group["group"], group["lag"], duration_text(group["lagMs"]), rate_text(group["outPerSecond"]),
        group["retries"], group["dead"],
    )  # fmt: skip


def _drawn(found: dict[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from rmq_store.cli.shared.live_screen import table

    head = [Text(printable(line), style="bold" if number == 0 else "") for number, line in enumerate(_head(found))]
    topics = table("", _TOPICS, [_topic_cells(topic) for topic in found["topics"]])
    groups = table("", _GROUPS, [_group_cells(group) for group in found["groups"]])
    return Group(*head, Text(), topics, Text(), groups, Text("q: quit", style="dim"))
