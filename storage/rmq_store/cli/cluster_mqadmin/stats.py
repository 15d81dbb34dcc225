"""Rates of topics, entries of queues, and the cleaning of brokers. Source: StatsAllSubCommand.java,
QueryConsumeQueueCommand.java, CleanExpiredCQSubCommand.java, DeleteExpiredCommitLogSubCommand.java,
CleanUnusedTopicCommand.java.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import click

from rmq_store.cli.cluster_mqadmin.common import BROKER, CLUSTER, Brokers, like, masters_of, require_route
from rmq_store.cli.mqadmin import broker as store_commands
from rmq_store.cli.mqadmin import cleaning
from rmq_store.cli.mqadmin_print.brokers import TopicRates, write_entries, write_stats
from rmq_store.cli.mqadmin_print.lines import write_line
from rmq_store.cli.shared.confirm import confirm
from rmq_store.cli.shared.output import printable, write_json
from rmq_store.cli.target.cluster_target import ClusterTarget
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store.protocol.bodies.topics import BrokerStatsData
    from rmq_store.protocol.wire.command import RemotingCommand
    from rmq_store.remoting.admin.scope import BrokerProcess
    from rmq_store.remoting.cluster.cluster import Cluster

_PUT, _GET = "TOPIC_PUT_NUMS", "GROUP_GET_NUMS"


@like(store_commands.stats_all)
def stats_all(target: ClusterTarget, as_json: bool, active: bool, topic: str | None) -> None:
    """Messages that each topic received and its groups got, per second and in the last 24 hours, and the lag of its
    groups, over all brokers that have the topic.

    Brokers count since their start: a day is complete when they have run for one.
    """
    from rmq_store.format.text.names import DLQ_PREFIX, RETRY_PREFIX

    brokers = Brokers()
    rows: list[TopicRates] = []
    with target.open() as cluster:
        names = cluster.topics() if topic is None else [require_route(cluster, topic).topic]
        for name in (name for name in names if not name.startswith((RETRY_PREFIX, DLQ_PREFIX))):
            rows += _rates(cluster, brokers, name, active=active)
    write_stats(rows, as_json=as_json)
    brokers.tell()


def _rates(cluster: Cluster, brokers: Brokers, topic: str, *, active: bool) -> list[TopicRates]:
    from rmq_store.remoting.admin.groups import topic_groups
    from rmq_store.remoting.admin.scope import ask
    from rmq_store.remoting.questions.brokers import ask_stats, read_stats

    route = cluster.route(topic)
    # One that did not answer is not waited for again and again.
    gone = {process for process, _ in brokers.failed}
    masters = [one for one in masters_of(route) if one not in gone] if route is not None else []
    wire_topic = cluster.wire_topic(topic)

    def stats(name: str, key: str) -> list[BrokerStatsData]:
        told = brokers.ask_each(masters, partial(ask, cluster, command=ask_stats(name, key), read=read_stats))
        return [found for _, found in told]

    in_tps, in_day = _sums(stats(_PUT, wire_topic))
    if active and not in_day:
        return []
    asked = [brokers.ask(one, partial(topic_groups, cluster, [one], topic)) for one in masters]
    groups = sorted({group for found in asked for group in found or ()})
    if not groups:
        return [TopicRates(topic, None, 0, in_tps, in_day)]
    rows = []
    for group in groups:
        out_tps, out_day = _sums(stats(_GET, f"{wire_topic}@{cluster.wire_group(group)}"))
        lags = [found for _, found in brokers.ask_each(masters, partial(_lag, cluster, group, topic))]
        rows.append(TopicRates(topic, group, max(sum(lags), 0), in_tps, in_day, out_tps, out_day))
    return rows


def _lag(cluster: Cluster, group: str, topic: str, process: BrokerProcess) -> int:
    from rmq_store.remoting.admin.scope import ask
    from rmq_store.remoting.questions.groups import ask_consume_stats, read_consume_stats

    found = ask(cluster, process, ask_consume_stats(cluster, group, topic), read_consume_stats)
    return 0 if found is None else sum(one.broker_offset - one.consumer_offset for one in found.offset_table.values())


def _sums(found: list[BrokerStatsData]) -> tuple[float, int]:
    """Messages per second in the last minute, and in the last day (StatsAllSubCommand#compute24HourSum)."""
    days = (one.stats_day.sum or one.stats_hour.sum or one.stats_minute.sum for one in found)
    return sum(one.stats_minute.tps for one in found), sum(days)


@like(store_commands.query_cq, BROKER)
def query_cq(
    target: ClusterTarget, as_json: bool, topic: str, queue: int, index: int, count: int, broker_address: str | None
) -> None:
    """Entries of a queue as a broker has them in its files: log offset and size of the record, and the hash of its tag.

    -b names the broker; without it the only one that has the queue.
    """
    from rmq_store.cli.cluster_mqadmin.message import queue_of
    from rmq_store.remoting.admin.scope import ask, process_at
    from rmq_store.remoting.questions.brokers import ask_queue_entries, read_queue_entries

    with target.open() as cluster:
        route = require_route(cluster, topic)
        if broker_address is not None:
            process = process_at(cluster, broker_address)
        else:
            name = queue_of(cluster, topic, None, queue).broker_name
            process = next(one for one in masters_of(route) if one.broker_name == name)
        if process.broker_name not in route.queues:
            raise UsageError(f"broker {process.broker_name} does not have the topic {topic!r}")
        found = ask(cluster, process, ask_queue_entries(cluster, topic, queue, index, count), read_queue_entries)
    entries = [(one.physic_offset, one.physic_size, one.tags_code) for one in found.queue_data]
    write_entries((found.min_queue_index, found.max_queue_index), index, entries, as_json=as_json)


def _clean(
    target: ClusterTarget,
    order: Callable[[], RemotingCommand],
    what: str,
    as_json: bool,
    broker_address: str | None,
    cluster_name: str | None,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    """Clean one process, or each master of one cluster or of all. `what` says what each broker is told to delete."""
    from rmq_store.remoting.admin.scope import ask, masters, process_at
    from rmq_store.remoting.questions.answer import checked
    from rmq_store.remoting.questions.brokers import CLEAN_TIMEOUT_MS

    brokers = Brokers()
    with target.open() as cluster:
        if broker_address is not None:
            if cluster_name is not None:
                raise UsageError("-b names one broker, -c the brokers of a cluster: give one of them")
            processes = [process_at(cluster, broker_address)]
        else:
            processes = masters(cluster, cluster_name)
        for process in processes:
            click.echo(printable(f"{process.broker_name} ({process.address}): {what}"), err=True)
        if not dry_run:
            confirm(f"Tell {len(processes)} brokers to delete these?", yes=yes)
            for process in processes:
                brokers.ask(process, partial(ask, cluster, process, order(), checked, CLEAN_TIMEOUT_MS))
    failed = {process for process, _ in brokers.failed}
    if as_json:
        done = [] if dry_run else [one.broker_name for one in processes if one not in failed]
        write_json({"deleted": not dry_run and not failed, "brokers": done})
    elif not dry_run and not failed:
        write_line("success")
    brokers.tell()


@like(cleaning.clean_expired_cq, BROKER, CLUSTER)
def clean_expired_cq(
    target: ClusterTarget, as_json: bool, broker_address: str | None, cluster_name: str | None
) -> None:
    """Let one broker (-b), or every master, delete queue files whose messages were all deleted by retention."""
    from rmq_store.remoting.questions.brokers import ask_clean_expired_consume_queues as order

    what = "delete queue files without messages"
    _clean(target, order, what, as_json, broker_address, cluster_name, dry_run=False, yes=True)


@like(cleaning.delete_expired_commit_log, BROKER, CLUSTER)
def delete_expired_commit_log(
    target: ClusterTarget, as_json: bool, dry_run: bool, yes: bool, broker_address: str | None, cluster_name: str | None
) -> None:
    """Let one broker (-b), or every master, delete commit log files that are older than fileReservedTime now, at any
    hour."""
    from rmq_store.remoting.questions.brokers import ask_delete_expired_commit_log as order

    what = "delete files of the log that are older than fileReservedTime"
    _clean(target, order, what, as_json, broker_address, cluster_name, dry_run=dry_run, yes=yes)


@like(cleaning.clean_unused_topic, BROKER, CLUSTER)
def clean_unused_topic(
    target: ClusterTarget, as_json: bool, dry_run: bool, yes: bool, broker_address: str | None, cluster_name: str | None
) -> None:
    """Let one broker (-b), or every master, delete the queues of topics that it does not have any more."""
    from rmq_store.remoting.questions.brokers import ask_clean_unused_topics as order

    what = "delete queues of topics that are gone"
    _clean(target, order, what, as_json, broker_address, cluster_name, dry_run=dry_run, yes=yes)


COMMANDS = (stats_all, query_cq, clean_expired_cq, delete_expired_commit_log, clean_unused_topic)
