"""`rmq top`: the present activity of a store or a cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.shared.formatting import Rates, bytes_text, duration_text, rate_text
from rmq_store.cli.shared.output import printable, tell, write_json, write_table
from rmq_store.cli.shared.parameters import DAY_S, Seconds
from rmq_store.cli.target.command import target_command
from rmq_store.cli.target.rows import Total

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rmq_store.cli.target.view import Target, View

_TOPICS = ("TOPIC", "QUEUES", "MESSAGES", "IN/S")
_GROUPS = ("GROUP", "LAG", "LAG TIME", "OUT/S", "RETRIES", "DEAD")


@target_command(
    short_help="Live view of a [store: store][cluster: cluster]: topics by rate, groups by lag.",
    epilog="\b\nExample:\n  rmq top --store /data/rocketmq/store --every 5",
)
@click.option("--every", "every_s", metavar="SECONDS", type=Seconds(0.01, DAY_S), default=2.0, show_default=True,
              help="Seconds between two polls, or a duration (500ms, 1m).")  # fmt: skip
@click.option(
    "--max", "limit", type=click.IntRange(min=1), default=15, show_default=True,
    help="Maximum number of topics, and of groups.",
)  # fmt: skip
def top(target: Target, as_json: bool, every_s: float, limit: int) -> None:
    """Live view of a [store: store][cluster: cluster]: topics by messages per second, groups by lag,
    [store: disk usage, and bytes not flushed yet.][cluster: over all brokers.]

    On a terminal the view is redrawn until q or Ctrl-C. In a pipe, and with --json, the command polls twice and prints
    once. [cluster: A poll is one request for each topic and broker, and one for each group and broker. Stderr names a
    broker that does not answer, once; if no broker answers, the command ends. Numbers that only this broker knows are
    `?`, in a sum 12+?, and null in JSON.]
    """
    with target.view(tell) as view:
        _show_top(_Sampler(view, limit).take, as_json=as_json, every_s=every_s)
    if view.failures.missing:  # stderr says so already
        raise click.exceptions.Exit(1)


def _show_top(take: Callable[[], dict[str, Any]], *, as_json: bool, every_s: float) -> None:
    """Draw samples until q or Ctrl-C; in a pipe, and with JSON, print the second one."""
    if sys.stdout.isatty() and not as_json:
        from rmq_store.cli.shared.live_screen import watch

        watch(lambda: _drawn(take()), every_s)
        return
    take()
    time.sleep(every_s)
    found = take()
    if as_json:
        write_json({**found, "topics": _exact(found["topics"]), "groups": _exact(found["groups"])})
        return
    for line in _head(found):
        click.echo(printable(line))
    click.echo()
    write_table(_TOPICS, [_topic_cells(topic) for topic in found["topics"]])
    click.echo()
    write_table(_GROUPS, [_group_cells(group) for group in found["groups"]])


class _Sampler:
    """Samples of a target; rates are those since the previous sample."""

    def __init__(self, view: View, limit: int) -> None:
        self._view = view
        self._limit = limit
        self._log, self._in, self._out = Rates(), Rates(), Rates()

    def take(self) -> dict[str, Any]:
        """One sample, as plain values and `Total`s."""
        with self._view.poll():
            now = self._view.activity(self._limit)
        ends = {topic.topic: topic.end.exact for topic in now.topics}
        grown = self._in.sample(now.now_ms, {topic: end for topic, end in ends.items() if end is not None})
        gone = self._out.sample(now.now_ms, now.consumed)
        head = dict(now.head)
        if "logEnd" in head:
            head["bytesPerSecond"] = self._log.sample(now.now_ms, {"log": head["logEnd"]}).get("log")
        topics: list[dict[str, Any]] = [
            {
                "topic": topic.topic,
                "queues": topic.queue_count,
                "messages": topic.messages,
                "inPerSecond": grown.get(topic.topic),
            }
            for topic in now.topics
        ]
        topics.sort(key=lambda topic: (-(topic["inPerSecond"] or 0.0), -(topic["messages"].known or 0), topic["topic"]))
        groups: list[dict[str, Any]] = [
            {
                "group": group.group,
                "lag": group.lag,
                "lagMs": group.lag_ms,
                "outPerSecond": gone.get(group.group),
                "retries": group.retries,
                "dead": group.dead,
            }
            for group in now.groups
        ]
        return {**head, "topics": topics[: self._limit], "groups": groups}


def _head(found: dict[str, Any]) -> list[str]:
    if "cluster" in found:
        away = found.get("away", ())
        return [found["cluster"], f"{found['brokers']} brokers" + (f"; away: {', '.join(away)}" if away else "")]
    waiting = found["notFlushedBytes"]
    speed = found["bytesPerSecond"]
    size = bytes_text(found["logEnd"] - found["logStart"])
    return [
        found["store"],
        f"log {size}, {'-' if speed is None else bytes_text(speed)}/s; disk {found['diskUsedPercent']} % in use; "
        f"not flushed: {'no writer' if waiting is None else bytes_text(waiting)}",
    ]


def _topic_cells(topic: dict[str, Any]) -> tuple[str | int, ...]:
    return topic["topic"], topic["queues"], topic["messages"].cell, rate_text(topic["inPerSecond"])


def _group_cells(group: dict[str, Any]) -> tuple[str | int, ...]:
    return (
        group["group"], group["lag"].cell, group["lagMs"].text(duration_text), rate_text(group["outPerSecond"]),
        group["retries"].cell, group["dead"].cell,
    )  # fmt: skip


def _exact(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """As JSON: null in place of a number of which a part is unknown."""
    return [{key: one.exact if isinstance(one, Total) else one for key, one in entry.items()} for entry in entries]


def _drawn(found: dict[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from rmq_store.cli.shared.live_screen import table

    head = [Text(printable(line), style="bold" if number == 0 else "") for number, line in enumerate(_head(found))]
    topics = table("", _TOPICS, [_topic_cells(topic) for topic in found["topics"]])
    groups = table("", _GROUPS, [_group_cells(group) for group in found["groups"]])
    return Group(*head, Text(), topics, Text(), groups, Text("q: quit", style="dim"))
