"""Topics: lists, ends of queues, routes, settings. Source: tools/command/topic/*.java."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from rmq_store.cli.mqadmin_print.by_broker import At, write_by_broker
from rmq_store.cli.mqadmin_print.lines import date_text, java_text, perm_text, write_line
from rmq_store.cli.shared.output import write_json

if TYPE_CHECKING:
    from rmq_store import TopicConfig
    from rmq_store.protocol.bodies.topics import TopicConfig as RemoteTopicConfig

_CLUSTER_LINE = "%-20s  %-48s  %-48s"
_STATUS_LINE = "%-32s  %-4s  %-20s  %-20s    %s"
_ROUTE_LINE = "%-45s %-32s %-50s %-10s %-11s %-5s"
_ROUTE_RULE = 158


def write_names(names: Sequence[str], *, as_json: bool) -> None:
    """Print names, one per line."""
    if as_json:
        write_json(names)
        return
    for name in names:
        write_line("%s", name)


def write_topic_groups(rows: Sequence[tuple[str, str, Sequence[str]]], *, as_json: bool) -> None:
    """Print (cluster, topic, its groups)."""
    if as_json:
        write_json([{"cluster": cluster, "topic": topic, "consumerGroups": groups} for cluster, topic, groups in rows])
        return
    write_line(_CLUSTER_LINE, "#Cluster Name", "#Topic", "#Consumer Group")
    for cluster, topic, groups in rows:
        for group in groups or [""]:
            write_line("%-20s  %-64s  %-64s", cluster, topic, group)


class QueueStatus(NamedTuple):
    """One queue: [min_offset, max_offset), and when its last message was stored, in ms; 0: it has none."""

    broker_name: str
    queue_id: int
    min_offset: int
    max_offset: int
    last_update_ms: int


class TopicStatus(NamedTuple):
    """The queues of a topic, and its messages per second; None: nobody counts them."""

    queues: Sequence[QueueStatus]
    put_tps: float | None = None


def write_topic_status(status: TopicStatus, *, as_json: bool) -> None:
    """Print the queues of a topic, and its rate."""
    if as_json:
        names = ("brokerName", "queueId", "minOffset", "maxOffset", "lastUpdateTimestamp")
        write_json([dict(zip(names, row, strict=True)) for row in status.queues])
        return
    write_line(_STATUS_LINE, "#Broker Name", "#QID", "#Min Offset", "#Max Offset", "#Last Updated")
    for row in status.queues:
        updated = date_text(row.last_update_ms, millis=True) if row.last_update_ms > 0 else ""
        write_line(_STATUS_LINE, *row[:4], updated)
    if status.put_tps is not None:
        click.echo()
        write_line("Topic Put TPS: %s", status.put_tps)


def write_route(route: Mapping[str, Any], *, as_json: bool, as_list: bool) -> None:
    """Print a route, with `as_list` a line per broker; `route` has the names of TopicRouteData, and keys in order."""
    from rmq_store.format.tables.config_json import dumps

    if as_json:
        write_json(route)
        return
    if not as_list:
        click.echo(dumps(dict(route)))
        return
    write_line(_ROUTE_LINE, "#ClusterName", "#BrokerName", "#BrokerAddrs", "#ReadQueue", "#WriteQueue", "#Perm")
    brokers = {one["brokerName"]: one for one in route["brokerDatas"]}
    read = written = 0
    for queue in route["queueDatas"]:
        broker = brokers[queue["brokerName"]]
        addresses = ", ".join(f"{broker_id}={address}" for broker_id, address in broker["brokerAddrs"].items())
        counts = queue["readQueueNums"], queue["writeQueueNums"]
        place = broker["cluster"], queue["brokerName"], f"{{{addresses}}}"
        write_line(_ROUTE_LINE, *place, *counts, queue["perm"])
        read, written = read + counts[0], written + counts[1]
    write_line("-" * _ROUTE_RULE)
    write_line(_ROUTE_LINE, "Total:", len(route["queueDatas"]), "", read, written, "")


class TopicChange(NamedTuple):
    """The settings of a topic at a broker, and its permissions before a change; None: the topic is new."""

    at: At
    after: TopicConfig | RemoteTopicConfig
    perm_before: int | None = None
    is_changed: bool = True


def write_made_topics(changes: Sequence[TopicChange], *, as_json: bool) -> None:
    """Print topics that were made or changed: the brokers, and the settings, each of them once."""
    if as_json:
        _write_changes_json(changes)
        return
    for change in changes:
        write_line("create topic to %s success.", change.at.address)
    for text in dict.fromkeys(topic_text(change.after) for change in changes):
        write_line("%s", text)


def write_perm_changes(changes: Sequence[TopicChange], *, as_json: bool) -> None:
    """Print permissions before and after, broker by broker."""
    if as_json:
        _write_changes_json(changes)
        return
    for at, after, before, is_changed in changes:
        if not is_changed:
            where = "" if at.name is None else f" ({at.address})"
            write_line("%s", f"new perm equals to the old one!{where}")
        else:
            write_line("update topic perm from %s to %s in %s success.", before, after.perm, at.address)
            write_line("%s.", topic_text(after))


def _write_changes_json(changes: Sequence[TopicChange]) -> None:
    write_by_broker([(change.at, topic_json(change.after)) for change in changes])


def topic_json(topic: TopicConfig | RemoteTopicConfig) -> dict[str, Any]:
    """A topic's settings under Java's names."""
    return {
        "topicName": topic.topic_name,
        "readQueueNums": topic.read_queue_nums,
        "writeQueueNums": topic.write_queue_nums,
        "perm": topic.perm,
        "topicFilterType": topic.topic_filter_type,
        "topicSysFlag": topic.topic_sys_flag,
        "order": topic.order,
        "attributes": dict(topic.attributes or {}),
    }


def topic_text(topic: TopicConfig | RemoteTopicConfig) -> str:
    """TopicConfig#toString."""
    fields = {**topic_json(topic), "perm": perm_text(topic.perm)}
    fields["attributes"] = "{" + ", ".join(f"{name}={value}" for name, value in fields["attributes"].items()) + "}"
    return f"TopicConfig [{', '.join(f'{name}={java_text(value)}' for name, value in fields.items())}]"
