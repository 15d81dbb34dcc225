"""Brokers: a cluster, state, settings, rates, entries of queues.

Source: tools/command/broker/*.java, ClusterListSubCommand.java, StatsAllSubCommand.java, QueryConsumeQueueCommand.java.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import click

from rmq_store.cli.mqadmin_print.lines import java_text, write_line
from rmq_store.cli.shared.output import printable, write_json

UNKNOWN = "-"
"""Where mqadmin shows what is not known here."""

_CLUSTER_LINE = "%-22s  %-22s  %-4s  %-22s %-16s  %16s  %30s  %-22s  %11s  %-12s  %-8s  %10s"
_CLUSTER_COLUMNS = (
    "#Cluster Name", "#Broker Name", "#BID", "#Addr", "#Version", "#InTPS(LOAD)", "#OutTPS(LOAD)", "#Timer(Progress)",
    "#PCWait(ms)", "#Hour", "#SPACE", "#ACTIVATED",
)  # fmt: skip
_STATS_LINE = "%-64s  %-64s %12s %11s %11s %14s %14s"
_STATS_COLUMNS = (
    "#Topic", "#Consumer Group", "#Accumulation", "#InTPS", "#OutTPS", "#InMsg24Hour", "#OutMsg24Hour",
)  # fmt: skip
_CQ_RULE = "=" * 38
# initAuthenticationUser, innerClientAuthenticationCredentials, objectStoreSecretKey, metricsGrpcExporterHeader, ...
_CREDENTIALS = re.compile("password|secret|credential|accesskey|authenticationuser|exporterheader", re.IGNORECASE)


def write_state(state: Mapping[str, str], *, as_json: bool) -> None:
    """Print the figures of a broker."""
    if as_json:
        write_json(state)
        return
    for name, value in sorted(state.items()):
        write_line("%-32s: %s", name, value)


def without_credentials(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings of a broker, with stars in place of passwords, keys and headers that authenticate."""
    return {name: "***" if value and _CREDENTIALS.search(name) else value for name, value in settings.items()}


def write_settings(title: str, settings: Mapping[str, object]) -> None:
    """Print the settings of a broker under a title."""
    write_line("%s", f"============{title}============")
    for name, value in settings.items():
        write_line("%-50s=  %s", name, java_text(value))


def write_cluster_head() -> None:
    """Print the columns of clusterList."""
    write_line(_CLUSTER_LINE, *_CLUSTER_COLUMNS)


def write_cluster_line(
    place: tuple[str, str, str, str, str], live: Sequence[str], hours: float, space: float | None, activated: str
) -> None:
    """Print one process of a cluster. `place`: cluster, broker, id, address, version; `live`: its rates of messages in
    and out, its timer and its wait for the page cache; `hours`: the age of its oldest message; `space`: the used part
    of its disk.
    """
    ratio = UNKNOWN if space is None else f"{space:.4f}"
    write_line(_CLUSTER_LINE, *place, *live, f"{hours:2.2f}", ratio, activated)


class TopicRates(NamedTuple):
    """A topic and one of its groups (None: it has none): its lag, and messages per second and of the last 24 hours.
    Messages that the group got are None where nobody counts them.
    """

    topic: str
    group: str | None
    accumulation: int
    in_tps: float
    in_day: int
    out_tps: float | None = None
    out_day: int | None = None


def write_stats(rows: Sequence[TopicRates], *, as_json: bool) -> None:
    """Print the rates of topics and their groups."""
    if as_json:
        keys = ("topic", "consumerGroup", "accumulation", "inTps", "inMsg24Hour")
        out = ("outTps", "outMsg24Hour")
        write_json(
            [
                dict(zip(keys, row[:5], strict=True))
                | ({} if row.out_tps is None else dict(zip(out, row[5:], strict=True)))
                for row in rows
            ]
        )
        return
    write_line(_STATS_LINE, *_STATS_COLUMNS)
    for row in rows:
        out_tps = UNKNOWN if row.out_tps is None else f"{row.out_tps:.2f}"
        out_day = UNKNOWN if row.out_day is None else str(row.out_day)
        shown = (out_tps, row.in_day, out_day) if row.group is not None else ("", row.in_day, "NO_CONSUMER")
        write_line(_STATS_LINE, row.topic, row.group or "", row.accumulation, f"{row.in_tps:.2f}", *shown)


def write_entries(span: tuple[int, int], index: int, entries: Sequence[Sequence[int]], *, as_json: bool) -> None:
    """Print entries of a queue's files, (log offset, size, hash of the tag), from queue offset `index` on; `span` is
    the range of the queue.
    """
    low, high = span
    if as_json:
        names = ("commitLogOffset", "size", "tagsCode")
        rows = [{"queueOffset": index + n, **dict(zip(names, entry, strict=True))} for n, entry in enumerate(entries)]
        write_json({"minOffset": low, "maxOffset": high, "entries": rows})
        return
    click.echo(f"Queue data: \nmax: {high}, min: {low}\n{_CQ_RULE}")
    for number, (offset, size, tags_code) in enumerate(entries):
        entry = f"ConsumeQueueData{{physicOffset={offset}, physicSize={size}, tagsCode={tags_code}}}"
        click.echo(f"idx: {index + number}\n{printable(entry)}\n{_CQ_RULE}")
