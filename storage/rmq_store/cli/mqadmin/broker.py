"""Brokers, or a store as the one broker: state, settings and counts. Source: tools/command/broker/*.java,
ClusterListSubCommand.java, StatsAllSubCommand.java, QueryConsumeQueueCommand.java.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import click

from rmq_store.cli.mqadmin.common import Target, brokers_of, choosing, mqadmin_command
from rmq_store.cli.mqadmin_print.brokers import (
    write_entries,
    write_processes,
    write_settings,
    write_states,
    write_stats,
    write_totals,
)
from rmq_store.cli.mqadmin_print.by_broker import write_by_broker
from rmq_store.cli.mqadmin_print.lines import write_line
from rmq_store.cli.shared.completion import TOPIC
from rmq_store.cli.shared.parameters import DAY_S, Seconds
from rmq_store.cli.target.command import by_target
from rmq_store.cli.target.store_target import StoreTarget

_CQ_COUNT = 10


@mqadmin_command(
    "brokerStatus",
    short_help="State of the store.",
    epilog="\b\nExample:\n  rmq brokerStatus --store /data/store",
)
@choosing("bc")
def broker_status(target: Target, as_json: bool, **chosen: str | None) -> None:
    """[store: State of the store, under the names of a broker's runtime information. Values that a directory cannot
    have are left out.][cluster: Runtime information of one broker (-b), or of every master of a cluster.]"""
    is_one = isinstance(target, StoreTarget) or chosen.get("broker_address") is not None
    with brokers_of(target, chosen) as brokers:
        write_states(brokers.states(), as_json=as_json, with_address=not is_one)


@mqadmin_command(
    "getBrokerConfig",
    short_help="Settings of the store.",
    epilog="\b\nExample:\n  rmq getBrokerConfig --store /data/store",
)
@choosing("bc")
def get_broker_config(target: Target, as_json: bool, **chosen: str | None) -> None:
    """Settings of [store: the store, under their names in broker.conf.][cluster: one broker (-b), or of every master of
    a cluster and its slaves, under their names in broker.conf.]

    [cluster: Passwords, keys and other credentials are shown as ***.]
    """
    with brokers_of(target, chosen) as brokers:
        write_settings(brokers.settings(), as_json=as_json)


@mqadmin_command(
    "updateBrokerConfig",
    short_help="Change a setting of the store.",
    epilog="\b\nExample:\n  rmq updateBrokerConfig -k fileReservedTime -v 48 --store /data/store",
)
@by_target(store=click.option("-a", "--updateAllBroker", hidden=True, expose_value=False))
@click.option("-k", "--key", required=True, help="Name of the setting, as in broker.conf.")
@click.option("-v", "--value", required=True, help="New value of the setting.")
@choosing("bc")
@by_target(
    cluster=click.option(
        "-a", "--updateAllBroker", "with_slaves", type=bool, metavar="BOOLEAN", default=False,
        help="With true, the slaves of the cluster, too.",
    )
)  # fmt: skip
def update_broker_config(target: Target, as_json: bool, key: str, value: str, **chosen: Any) -> None:
    """Change a setting [store: permanently, for every process that uses the store.][cluster: of one broker (-b), or of
    every master of a cluster; the brokers write it into their files.]

    [store: Only settings of retention and flushing can be changed, and two more. messageDelayLevel applies to messages
    that are sent after the store is opened next; waiting messages keep their due times. enableLmq says whether the
    store's broker has its groups' offsets in lmqConsumerOffset.json. File formats and sizes cannot be changed.]
    [cluster: Most settings take effect at once, some at the next start. A name that one of the brokers does not have is
    refused before the first change: a broker itself would answer "success".]
    """
    if isinstance(target, StoreTarget):
        from rmq_store.cli.mqadmin_targets.store_brokers import changeable

        changeable(key, value)  # before the store is opened for writing
    with brokers_of(target, chosen, to_write=True) as brokers:
        rows = brokers.update_setting(key, value)
        if as_json:
            write_by_broker(rows)
        for at, _ in [] if as_json else rows:
            write_line("update broker config success, %s", at.address)


@mqadmin_command(
    "clusterList",
    short_help="The store as a cluster of one broker.",
    epilog="\b\nExample:\n  rmq clusterList --store /data/store",
    unneeded="nc",
)
@by_target(store=click.option("-m", "--moreStats", hidden=True, is_flag=True, expose_value=False))
@click.option("-i", "--interval", "every_s", metavar="SECONDS", type=Seconds(0.05, DAY_S),
              help="Poll repeatedly, with this many seconds between two polls, until Ctrl-C.")  # fmt: skip
@choosing("c")
@by_target(
    cluster=click.option(
        "-m", "--moreStats", "more", is_flag=True, help="Messages of today and yesterday instead."
    )
)
def cluster_list(
    target: Target, as_json: bool, every_s: float | None, more: bool = False, **chosen: str | None
) -> None:
    """[store: Show the store as a cluster of one broker. #Hour is the age of its oldest message, #SPACE the disk
    usage.][cluster: Every process of a cluster: version, rates, the age of its oldest message (#Hour), and disk usage
    (#SPACE).]

    [cluster: A process that does not answer has no line; stderr names it, and the exit code is 1. With -i stderr names
    it when it stops answering, and when it answers again.]
    """
    with brokers_of(target, chosen) as brokers, contextlib.suppress(KeyboardInterrupt):
        while True:
            processes = brokers.processes()
            if more and not as_json:
                write_totals(processes)
            else:
                write_processes(processes, as_json=as_json)
            brokers.end_poll()
            if every_s is None:
                break
            time.sleep(every_s)
    if brokers.silent:
        raise click.exceptions.Exit(1)


@mqadmin_command(
    "statsAll",
    short_help="New messages of each topic, and the lag of its groups.",
    epilog="\b\nExample:\n  rmq statsAll -a --store /data/store",
    unneeded="n",
)
@click.option("-a", "--activeTopic", "active", is_flag=True, help="Only topics with messages of the last 24 hours.")
@click.option("-t", "--topic", type=TOPIC, help="Only this topic.")
def stats_all(target: Target, as_json: bool, active: bool, topic: str | None) -> None:
    """Messages that each topic received [store: in the last minute and the last 24 hours, and the lag of its groups.]
    [cluster: and its groups got, per second and in the last 24 hours, and the lag of its groups, over all brokers that
    have the topic.]

    [store: Delivered messages are not counted in a directory: `-`.][cluster: Brokers count since their start: a day is
    complete when they have run for one.]
    """
    with brokers_of(target) as brokers:
        write_stats(brokers.rates(topic, active=active), as_json=as_json)


@mqadmin_command(
    "queryCq",
    short_help="Entries of a queue, as stored in its files.",
    epilog="\b\nExample:\n  rmq queryCq -t Orders -q 0 -i 100 -c 5 --store /data/store",
    unneeded="nb",
)
@click.option("-t", "--topic", type=TOPIC, required=True, help="Name of the topic.")
@click.option("-q", "--queue", required=True, type=click.IntRange(0), help="Number of the queue.")
@click.option("-i", "--index", required=True, type=click.IntRange(0), help="Offset of the first entry.")
@click.option("-c", "--count", default=_CQ_COUNT, show_default=True, type=click.IntRange(1, 10_000), help="How many.")
@click.option("-g", "--consumer", hidden=True, expose_value=False)
@choosing("b")
def query_cq(
    target: Target, as_json: bool, topic: str, queue: int, index: int, count: int, **chosen: str | None
) -> None:
    """Entries of a queue as [store: stored in its files][cluster: a broker has them in its files]: log offset and size
    of the record, and the hash of its tag.

    [cluster: -b names the broker; without it the only one that has the queue.]
    """
    with brokers_of(target, chosen) as brokers:
        write_entries(brokers.entries(topic, queue, index, count), index, as_json=as_json)


COMMANDS = (cluster_list, broker_status, get_broker_config, update_broker_config, stats_all, query_cq)
