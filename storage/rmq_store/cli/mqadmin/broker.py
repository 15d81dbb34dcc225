"""The store as the one broker of mqadmin: its state, settings and counts. Source: tools/command/broker/*.java,
ClusterListSubCommand.java, StatsAllSubCommand.java, QueryConsumeQueueCommand.java.

A directory does not know the counts that a running broker keeps in memory (pulls, thread pools): `-` stands there.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmq_store.cli.mqadmin.common import EMBEDDED, broker_address, cluster_name, consumer_groups, mqadmin_options
from rmq_store.cli.mqadmin_print.brokers import (
    UNKNOWN,
    TopicRates,
    write_cluster_head,
    write_cluster_line,
    write_entries,
    write_settings,
    write_state,
    write_stats,
)
from rmq_store.cli.mqadmin_print.lines import write_line
from rmq_store.cli.shared.completion import TOPIC
from rmq_store.cli.shared.name_lookup import require_queue, require_topic
from rmq_store.cli.shared.output import open_store, write_json
from rmq_store.cli.shared.parameters import DAY_S, Seconds
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store import Store
    from rmq_store.broker.monitoring.lag import GroupLag

_CQ_COUNT = 10

_HOUR_MS = 3_600_000
_MASTER_ID = 0


@click.command(
    "brokerStatus",
    short_help="State of the store.",
    epilog="\b\nExample:\n  rmq brokerStatus --store /data/store",
)
@mqadmin_options()
def broker_status(root: Path, as_json: bool) -> None:
    """State of the store, under the names of a broker's runtime information. Values that a directory cannot have are
    left out."""
    with open_store(root) as store:
        state = _state(store)
    write_state(state, as_json=as_json)


@click.command(
    "getBrokerConfig",
    short_help="Settings of the store.",
    epilog="\b\nExample:\n  rmq getBrokerConfig --store /data/store",
)
@mqadmin_options()
def get_broker_config(root: Path, as_json: bool) -> None:
    """Settings of the store, under their names in broker.conf."""
    from rmq_store.broker.monitoring.broker_conf import broker_conf

    with open_store(root) as store:
        settings, address = broker_conf(store), broker_address(store)
    if as_json:
        write_json(settings)
    else:
        write_settings(address, settings)


@click.command(
    "updateBrokerConfig",
    short_help="Change a setting of the store.",
    epilog="\b\nExample:\n  rmq updateBrokerConfig -k fileReservedTime -v 48 --store /data/store",
)
@mqadmin_options()
@click.option("-a", "--updateAllBroker", hidden=True, expose_value=False)
@click.option("-k", "--key", required=True, help="Name of the setting, as in broker.conf.")
@click.option("-v", "--value", required=True, help="New value of the setting.")
def update_broker_config(root: Path, as_json: bool, key: str, value: str) -> None:
    """Change a setting permanently, for every process that uses the store.

    Only settings of retention and flushing can be changed, and two more. messageDelayLevel applies to messages that are
    sent after the store is opened next; waiting messages keep their due times. enableLmq says whether the store's
    broker has its groups' offsets in lmqConsumerOffset.json. File formats and sizes cannot be changed.
    """
    from rmq_store import Store
    from rmq_store.broker.metadata.store_config import CHANGEABLE, JAVA_NAMES, parse_settings
    from rmq_store.broker.monitoring.broker_conf import broker_conf

    parsed = parse_settings({key: value}, "updateBrokerConfig")
    if not parsed.keys() <= set(CHANGEABLE):
        names = [name for field in CHANGEABLE for name, known in JAVA_NAMES.items() if known.name == field]
        raise UsageError(f"{key} decides how the store is written and cannot be changed; these can: {', '.join(names)}")
    with Store.open(root) as store:
        store.retention.configure(**parsed)
        settings = broker_conf(store)
        address = broker_address(store)
    if as_json:
        write_json(settings)
    else:
        write_line("update broker config success, %s", address)


@click.command(
    "clusterList",
    short_help="The store as a cluster of one broker.",
    epilog="\b\nExample:\n  rmq clusterList --store /data/store",
)
@mqadmin_options("nc")
@click.option("-m", "--moreStats", hidden=True, is_flag=True, expose_value=False)
@click.option("-i", "--interval", "every_s", metavar="SECONDS", type=Seconds(0.05, DAY_S),
              help="Poll repeatedly, with this many seconds between two polls, until Ctrl-C.")  # fmt: skip
def cluster_list(root: Path, as_json: bool, every_s: float | None) -> None:
    """Show the store as a cluster of one broker. #Hour is the age of its oldest message, #SPACE the disk usage."""
    with open_store(root) as store, contextlib.suppress(KeyboardInterrupt):
        _write_cluster(store, as_json)
        while every_s is not None:
            time.sleep(every_s)
            store.refresh()
            _write_cluster(store, as_json)


def _write_cluster(store: Store, as_json: bool) -> None:
    from rmq_store.broker.monitoring.metrics import earliest_message_ms

    cluster, broker, address = cluster_name(store), store.broker_name, broker_address(store)
    earliest_ms, space = earliest_message_ms(store), _space(store)
    hours = 0.0 if earliest_ms is None else (store.clock() - earliest_ms) / _HOUR_MS
    if as_json:
        names = {"cluster": cluster, "brokerName": broker, "brokerId": _MASTER_ID, "address": address}
        write_json([{**names, "hours": round(hours, 2), "diskUsedRatio": space}])
        return
    write_cluster_head()
    place = cluster, broker, str(_MASTER_ID), address, EMBEDDED
    write_cluster_line(place, (UNKNOWN,) * 4, hours, space, UNKNOWN)


@click.command(
    "statsAll",
    short_help="New messages of each topic, and the lag of its groups.",
    epilog="\b\nExample:\n  rmq statsAll -a --store /data/store",
)
@mqadmin_options("n")
@click.option("-a", "--activeTopic", "active", is_flag=True, help="Only topics with messages of the last 24 hours.")
@click.option("-t", "--topic", type=TOPIC, help="Only this topic.")
def stats_all(root: Path, as_json: bool, active: bool, topic: str | None) -> None:
    """Messages that each topic received in the last minute and the last 24 hours, and the lag of its groups.

    Delivered messages are not counted in a directory: `-`.
    """
    from rmq_store.broker.monitoring.lag import all_lags
    from rmq_store.broker.monitoring.topic_rates import DAY_MS, MINUTE_MS, stored_lately
    from rmq_store.format.text.names import DLQ_PREFIX, RETRY_PREFIX

    rows: list[TopicRates] = []
    with open_store(root) as store:
        lags = {lag.group: lag for lag in all_lags(store)}
        known = store.topics()
        all_names = sorted(name for name, config in known.items() if config.is_read_here)
        names = all_names if topic is None else [require_topic(store, topic)]
        for name in (name for name in names if not name.startswith((RETRY_PREFIX, DLQ_PREFIX))):
            per_second, day = stored_lately(store, name, MINUTE_MS) / 60, stored_lately(store, name, DAY_MS)
            if day or not active:
                groups: list[str | None] = [*consumer_groups(store, name)] or [None]
                rows += [
                    TopicRates(name, group, _accumulation(lags.get(group or ""), name), per_second, day)
                    for group in groups
                ]
    write_stats(rows, as_json=as_json)


@click.command(
    "queryCq",
    short_help="Entries of a queue, as stored in its files.",
    epilog="\b\nExample:\n  rmq queryCq -t Orders -q 0 -i 100 -c 5 --store /data/store",
)
@mqadmin_options("nb")
@click.option("-t", "--topic", type=TOPIC, required=True, help="Name of the topic.")
@click.option("-q", "--queue", required=True, type=click.IntRange(0), help="Number of the queue.")
@click.option("-i", "--index", required=True, type=click.IntRange(0), help="Offset of the first entry.")
@click.option("-c", "--count", default=_CQ_COUNT, show_default=True, type=click.IntRange(1, 10_000), help="How many.")
@click.option("-g", "--consumer", hidden=True, expose_value=False)
def query_cq(root: Path, as_json: bool, topic: str, queue: int, index: int, count: int) -> None:
    """Entries of a queue as stored in its files: log offset and size of the record, and the hash of its tag."""
    with open_store(root) as store:
        low, high = store.queue_range(topic, require_queue(store, topic, queue))
        entries = store.queue_entries(topic, queue, index, max(min(index + count, high), index)).tolist()
    write_entries((low, high), index, entries, as_json=as_json)


def _state(store: Store) -> dict[str, str]:
    """DefaultMessageStore#getRuntimeInfo, AdminBrokerProcessor#prepareRuntimeInfo, ScheduleMessageService
    #buildRunningStats.
    """
    from rmq_store.broker.metadata.offsets import DelayOffsetTable
    from rmq_store.broker.monitoring.metrics import earliest_message_ms
    from rmq_store.format.text.names import SCHEDULE_TOPIC

    start, end = store.log_range()
    space, disk, earliest_ms = _space(store), shutil.disk_usage(store.path), earliest_message_ms(store)
    ratio = UNKNOWN if space is None else str(space)
    delayed = DelayOffsetTable(store.path).all()
    levels = {
        f"scheduleMessageOffset_{level}": f"{offset},{store.queue_range(SCHEDULE_TOPIC, level - 1).max_offset}"
        for level, offset in delayed.items()
    }
    return {
        "brokerVersionDesc": EMBEDDED,
        "commitLogDirCapacity": f"Total : {_byte_text(disk.total)}, Free : {_byte_text(disk.free)}.",
        "commitLogDiskRatio": ratio,
        "consumeQueueDiskRatio": ratio,
        "commitLogMinOffset": str(start),
        "commitLogMaxOffset": str(end),
        "earliestMessageTimeStamp": str(-1 if earliest_ms is None else earliest_ms),
        **levels,
    }


def _space(store: Store) -> float | None:
    """The used part of the disk, 0 to 1 in steps of 0.01 (UtilAll#getDiskPartitionSpaceUsedPercent)."""
    from rmq_store.broker.write.disk_space import usage_percent

    percent = usage_percent(store.path)
    return None if percent is None else percent / 100


def _accumulation(lag: GroupLag | None, topic: str) -> int:
    return 0 if lag is None else max(0, sum(queue.diff for queue in lag.queues if queue.topic == topic))


def _byte_text(count: int) -> str:
    """`1.5 GiB` (MixAll#humanReadableByteCount)."""
    if count < 1024:
        return f"{count} B"
    size = float(count)
    for unit in "KMGTPE":
        size /= 1024
        if size < 1024 or unit == "E":
            break
    return f"{size:.1f} {unit}iB"


COMMANDS = (cluster_list, broker_status, get_broker_config, update_broker_config, stats_all, query_cq)
