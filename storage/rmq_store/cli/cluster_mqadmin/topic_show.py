"""Topics of a cluster: lists, ends, routes. Source: TopicListSubCommand.java, TopicStatusSubCommand.java,
TopicRouteSubCommand.java, TopicClusterSubCommand.java.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.cluster_mqadmin.common import CLUSTER, Brokers, like, masters_of, require_route
from rmq_store.cli.mqadmin import topic as store_commands
from rmq_store.cli.mqadmin_print.lines import write_line
from rmq_store.cli.mqadmin_print.topics import (
    QueueStatus,
    write_names,
    write_route,
    write_topic_groups,
    write_topic_status,
)
from rmq_store.cli.target.cluster_target import ClusterTarget

if TYPE_CHECKING:
    from rmq_store.remoting.cluster.routes import TopicRoute


@like(store_commands.topic_list)
def topic_list(target: ClusterTarget, as_json: bool, with_groups: bool) -> None:
    """Names of all topics. With -c: also cluster and consumer groups of each topic, without retry and dead-letter
    topics; each of the topic's brokers is asked."""
    from rmq_store.format.text.names import DLQ_PREFIX, RETRY_PREFIX
    from rmq_store.remoting.admin.groups import topic_groups

    brokers = Brokers()
    with target.open() as cluster:
        topics = cluster.topics()
        if with_groups:
            rows = []
            for topic in topics:
                route = None if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else cluster.route(topic)
                if route is None:
                    continue
                masters = masters_of(route)
                answers = [brokers.ask(one, partial(topic_groups, cluster, [one], topic)) for one in masters]
                groups = sorted({group for found in answers for group in found or ()})
                rows += [(name, topic, groups) for name in sorted({one.cluster_name for one in masters})]
            write_topic_groups(rows, as_json=as_json)
        else:
            write_names(topics, as_json=as_json)
    brokers.tell()


@like(store_commands.topic_status, CLUSTER)
def topic_status(target: ClusterTarget, as_json: bool, topic: str, cluster_name: str | None) -> None:
    """Offsets of a topic's queues at each of its masters, and the store time of the newest message of each (UTC).

    Brokers before 5.3 do not tell of a queue that may be read, not written: it is asked for by itself, and the time is
    missing.
    """
    from rmq_store.remoting.cluster.topics import at_brokers, ends_at_brokers

    brokers = Brokers()
    with target.open() as cluster:
        route = require_route(cluster, topic)
        at = {one.broker_name: one for one in at_brokers([route])}
        answers = brokers.ask_each(
            masters_of(route, cluster_name),
            lambda one: ends_at_brokers(cluster, [at[one.broker_name]], of_masters=True)[0].required(),
        )
    rows = [
        QueueStatus(process.broker_name, queue_id, found.min_offset, found.max_offset, found.last_update_timestamp)
        for process, ends in answers
        for queue_id, found in ends.limits.items()
    ]
    write_topic_status(rows, as_json=as_json)
    rates = [ends.topic_put_tps for _, ends in answers if ends.topic_put_tps is not None]
    if rates and not as_json:
        click.echo()
        write_line("Topic Put TPS: %s", sum(rates))
    brokers.tell()


@like(store_commands.topic_route)
def topic_route(target: ClusterTarget, as_json: bool, topic: str, as_list: bool) -> None:
    """Route of a topic, as a name server answers it now: its brokers, their addresses and queues."""
    with target.open() as cluster:
        route = require_route(cluster, topic)
    write_route(_route_json(route), as_json=as_json, as_list=as_list)


@like(store_commands.topic_cluster_list)
def topic_cluster_list(target: ClusterTarget, as_json: bool, topic: str) -> None:
    """The clusters that have a topic."""
    with target.open() as cluster:
        route = require_route(cluster, topic)
    names = sorted({broker.cluster for name, broker in route.brokers.items() if name in route.queues})
    write_names(names, as_json=as_json)


def _route_json(route: TopicRoute) -> dict[str, Any]:
    """The members of TopicRouteData that mqadmin shows, brokers by their names."""
    brokers = [
        {
            "brokerAddrs": dict(sorted(broker.addresses.items())),
            "brokerName": name,
            "cluster": broker.cluster,
            "enableActingMaster": broker.acting_enabled,
        }
        for name, broker in sorted(route.brokers.items())
    ]
    queues = [
        {
            "brokerName": name,
            "perm": one.perm,
            "readQueueNums": one.read_queue_nums,
            "topicSysFlag": one.topic_sys_flag,
            "writeQueueNums": one.write_queue_nums,
        }
        for name, one in sorted(route.queues.items())
    ]
    found: dict[str, Any] = {"brokerDatas": brokers, "filterServerTable": {}}
    if route.order_topic_conf:
        found["orderTopicConf"] = route.order_topic_conf
    return {**found, "queueDatas": queues}


COMMANDS = (topic_list, topic_status, topic_route, topic_cluster_list)
