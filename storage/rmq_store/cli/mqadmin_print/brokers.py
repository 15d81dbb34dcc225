"""Brokers: a cluster, state, settings, rates, entries of queues.

Source: tools/command/broker/*.java, ClusterListSubCommand.java, StatsAllSubCommand.java, QueryConsumeQueueCommand.java.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import click

from rmq_store.cli.mqadmin_print.by_broker import At, write_by_broker
from rmq_store.cli.mqadmin_print.lines import java_text, write_line
from rmq_store.cli.shared.output import printable, write_json

UNKNOWN = "-"
"""Where mqadmin shows what is not known here."""

_CLUSTER_LINE = "%-22s  %-22s  %-4s  %-22s %-16s  %16s  %30s  %-22s  %11s  %-12s  %-8s  %10s"
_CLUSTER_COLUMNS = (
    "#Cluster Name", "#Broker Name", "#BID", "#Addr", "#Version", "#InTPS(LOAD)", "#OutTPS(LOAD)", "#Timer(Progress)",
    "#PCWait(ms)", "#Hour", "#SPACE", "#ACTIVATED",
)  # fmt: skip
_TOTALS_LINE = "%-16s  %-32s %14s %14s %14s %14s"
_TOTALS_COLUMNS = ("#Cluster Name", "#Broker Name", "#InTotalYest", "#OutTotalYest", "#InTotalToday", "#OutTotalToday")
_STATS_LINE = "%-64s  %-64s %12s %11s %11s %14s %14s"
_STATS_COLUMNS = (
    "#Topic", "#Consumer Group", "#Accumulation", "#InTPS", "#OutTPS", "#InMsg24Hour", "#OutMsg24Hour",
)  # fmt: skip
_CQ_RULE = "=" * 38
# initAuthenticationUser, innerClientAuthenticationCredentials, objectStoreSecretKey, metricsGrpcExporterHeader, ...
_CREDENTIALS = re.compile("password|secret|credential|accesskey|authenticationuser|exporterheader", re.IGNORECASE)


def write_states(rows: Sequence[tuple[At, Mapping[str, str]]], *, as_json: bool, with_address: bool) -> None:
    """Print the figures of brokers; `with_address`: each line with the address of its broker."""
    if as_json:
        write_by_broker(rows)
        return
    for at, state in rows:
        for name, value in sorted(state.items()):
            if with_address:
                write_line("%-24s %-32s: %s", at.address, name, value)
            else:
                write_line("%-32s: %s", name, value)


def without_credentials(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings of a broker, with stars in place of passwords, keys and headers that authenticate."""
    return {name: "***" if value and _CREDENTIALS.search(name) else value for name, value in settings.items()}


def write_settings(rows: Sequence[tuple[At, Mapping[str, Any]]], *, as_json: bool) -> None:
    """Print the settings of brokers, each under its title."""
    if as_json:
        of_cluster = [(at, {"brokerId": at.broker_id, "settings": found}) for at, found in rows if at.name is not None]
        write_by_broker(of_cluster or rows)
        return
    for at, settings in rows:
        write_line("%s", f"============{at.title}============")
        for name, value in settings.items():
            write_line("%-50s=  %s", name, java_text(value))


class Process(NamedTuple):
    """One process of a cluster. `live`: its rates of messages in and out, its timer, and its wait for the page cache;
    `hours`: the age of its oldest message; `space`: the used part of its disk; `totals`: messages in and out, of
    yesterday and of today; `more`: members of the JSON that only one kind of target has.
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    version: str
    live: Sequence[str]
    hours: float
    space: float | None
    activated: str
    totals: Sequence[float] = ()
    more: Mapping[str, Any] = MappingProxyType({})


def write_processes(processes: Sequence[Process], *, as_json: bool) -> None:
    """Print the processes of a cluster (ClusterListSubCommand#printClusterBaseInfo)."""
    if as_json:
        write_json([_process_json(one) for one in processes])
        return
    write_line(_CLUSTER_LINE, *_CLUSTER_COLUMNS)
    for one in processes:
        place = one.cluster, one.broker_name, str(one.broker_id), one.address, one.version
        ratio = UNKNOWN if one.space is None else f"{one.space:.4f}"
        write_line(_CLUSTER_LINE, *place, *one.live, f"{one.hours:2.2f}", ratio, one.activated)


def write_totals(processes: Sequence[Process]) -> None:
    """Print how many messages each process got and gave (ClusterListSubCommand#printClusterMoreStats)."""
    write_line(_TOTALS_LINE, *_TOTALS_COLUMNS)
    for one in processes:
        write_line(_TOTALS_LINE, one.cluster, one.broker_name, *(f"{figure:.0f}" for figure in one.totals))


def _process_json(one: Process) -> dict[str, Any]:
    return {
        "cluster": one.cluster, "brokerName": one.broker_name, "brokerId": one.broker_id, "address": one.address,
        **one.more, "hours": round(one.hours, 2), "diskUsedRatio": one.space,
    }  # fmt: skip


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


class QueueEntries(NamedTuple):
    """Entries of a queue's files, (log offset, size, hash of the tag), and the range of the queue."""

    min_offset: int
    max_offset: int
    entries: Sequence[Sequence[int]]


def write_entries(found: QueueEntries, index: int, *, as_json: bool) -> None:
    """Print entries of a queue's files, from queue offset `index` on."""
    low, high, entries = found
    if as_json:
        names = ("commitLogOffset", "size", "tagsCode")
        rows = [{"queueOffset": index + n, **dict(zip(names, entry, strict=True))} for n, entry in enumerate(entries)]
        write_json({"minOffset": low, "maxOffset": high, "entries": rows})
        return
    click.echo(f"Queue data: \nmax: {high}, min: {low}\n{_CQ_RULE}")
    for number, (offset, size, tags_code) in enumerate(entries):
        entry = f"ConsumeQueueData{{physicOffset={offset}, physicSize={size}, tagsCode={tags_code}}}"
        click.echo(f"idx: {index + number}\n{printable(entry)}\n{_CQ_RULE}")
