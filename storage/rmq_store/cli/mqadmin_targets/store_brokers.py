"""A store as the one broker of mqadmin: its state, settings and counts.

A directory does not know the counts that a running broker keeps in memory (pulls, thread pools): `-` stands there.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from rmq_store.cli.mqadmin_print.brokers import UNKNOWN, Process, QueueEntries, TopicRates
from rmq_store.cli.mqadmin_print.by_broker import At
from rmq_store.cli.mqadmin_print.lines import java_text
from rmq_store.cli.mqadmin_targets.deletions import StoreDeletion
from rmq_store.cli.mqadmin_targets.settings import EXPORTED_SETTINGS, is_exported_group, is_exported_topic
from rmq_store.cli.mqadmin_targets.store_facts import EMBEDDED, broker_address, cluster_name, consumer_groups
from rmq_store.cli.shared.name_lookup import require_queue, require_topic
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store import Store
    from rmq_store.broker.monitoring.lag import GroupLag
    from rmq_store.broker.store.administration import Deletion

_HOUR_MS = 3_600_000
_MASTER_ID = 0


class StoreBrokers:
    """State, settings, counts and cleaning of a store; one that was opened for writing can change the settings."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._is_polled = False
        self.silent: frozenset[object] = frozenset()
        """A store always answers."""

    def states(self) -> list[tuple[At, dict[str, str]]]:
        """The figures of DefaultMessageStore#getRuntimeInfo, AdminBrokerProcessor#prepareRuntimeInfo and
        ScheduleMessageService#buildRunningStats that a directory has.
        """
        from rmq_store.broker.metadata.offsets import DelayOffsetTable
        from rmq_store.broker.monitoring.metrics import earliest_message_ms
        from rmq_store.format.text.names import SCHEDULE_TOPIC

        store = self._store
        start, end = store.log_range()
        space, disk, earliest_ms = _space(store), shutil.disk_usage(store.path), earliest_message_ms(store)
        ratio = UNKNOWN if space is None else str(space)
        delayed = DelayOffsetTable(store.path).all()
        levels = {
            f"scheduleMessageOffset_{level}": f"{offset},{store.queue_range(SCHEDULE_TOPIC, level - 1).max_offset}"
            for level, offset in delayed.items()
        }
        state = {
            "brokerVersionDesc": EMBEDDED,
            "commitLogDirCapacity": f"Total : {_byte_text(disk.total)}, Free : {_byte_text(disk.free)}.",
            "commitLogDiskRatio": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogMinOffset": str(start),
            "commitLogMaxOffset": str(end),
            "earliestMessageTimeStamp": str(-1 if earliest_ms is None else earliest_ms),
            **levels,
        }
        return [(At(""), state)]

    def settings(self) -> list[tuple[At, dict[str, Any]]]:
        """The settings under their names in broker.conf."""
        from rmq_store.broker.monitoring.broker_conf import broker_conf

        settings, address = broker_conf(self._store), broker_address(self._store)
        return [(At(address, title=address), settings)]

    def update_setting(self, key: str, value: str) -> list[tuple[At, dict[str, Any]]]:
        """Change a setting, see `changeable`: all settings then."""
        self._store.retention.configure(**changeable(key, value))
        return self.settings()

    def processes(self) -> list[Process]:
        """The store as a cluster of one process, as it is now."""
        from rmq_store.broker.monitoring.metrics import earliest_message_ms

        store = self._store
        if self._is_polled:
            store.refresh()
        self._is_polled = True
        earliest_ms, space = earliest_message_ms(store), _space(store)
        hours = 0.0 if earliest_ms is None else (store.clock() - earliest_ms) / _HOUR_MS
        place = cluster_name(store), store.broker_name, _MASTER_ID, broker_address(store), EMBEDDED
        return [Process(*place, (UNKNOWN,) * 4, hours, space, UNKNOWN)]

    def end_poll(self) -> None:
        """Nothing is missing in a poll."""

    def rates(self, topic: str | None, *, active: bool) -> list[TopicRates]:
        """Messages of each topic, or of one, in the last minute and day, and the lag of its groups; `active`: not of
        topics without messages of the last day. UnknownTopicError: there is no such topic.
        """
        from rmq_store.broker.monitoring.lag import all_lags
        from rmq_store.broker.monitoring.topic_rates import DAY_MS, MINUTE_MS, stored_lately
        from rmq_store.format.text.names import DLQ_PREFIX, RETRY_PREFIX

        store = self._store
        rows: list[TopicRates] = []
        lags = {lag.group: lag for lag in all_lags(store)}
        all_names = sorted(name for name, config in store.topics().items() if config.is_read_here)
        names = all_names if topic is None else [require_topic(store, topic)]
        for name in (name for name in names if not name.startswith((RETRY_PREFIX, DLQ_PREFIX))):
            per_second, day = stored_lately(store, name, MINUTE_MS) / 60, stored_lately(store, name, DAY_MS)
            if day or not active:
                groups: list[str | None] = [*consumer_groups(store, name)] or [None]
                rows += [
                    TopicRates(name, group, _accumulation(lags.get(group or ""), name), per_second, day)
                    for group in groups
                ]
        return rows

    def entries(self, topic: str, queue_id: int, index: int, count: int) -> QueueEntries:
        """Entries of a queue's files. UnknownTopicError, UsageError: there is no such queue."""
        low, high = self._store.queue_range(topic, require_queue(self._store, topic, queue_id))
        entries = self._store.queue_entries(topic, queue_id, index, max(min(index + count, high), index))
        return QueueEntries(low, high, entries.tolist())

    def unused_topics(self) -> StoreDeletion:
        """The deletion of offsets on topics that no longer exist, and of queue files without messages."""
        from rmq_store import Store

        def delete() -> tuple[Deletion, str]:
            with Store.open(self._store.path) as store:
                done = store.admin.clean_unused_topics()
                store.admin.clean_queue_files()
            return done, "success"

        return StoreDeletion(self._store.admin.plan_cleaning(), "Forget these?", delete)

    def metadata(self, *, topics: bool, groups: bool, with_special: bool) -> dict[str, Any]:
        """The topics and groups of users, as AdminBrokerProcessor#getUserTopicConfig and #getUserSubscriptionGroup give
        them, and the time.
        """
        store = self._store
        found: dict[str, Any] = {}
        if topics:
            known = [name for name in store.topics() if is_exported_topic(name, with_special=with_special)]
            found["topicConfigTable"] = self._table("topics.json", "topicConfigTable", known)
        if groups:
            known = [name for name in store.groups() if is_exported_group(name)]
            found["subscriptionGroupTable"] = self._table("subscriptionGroup.json", "subscriptionGroupTable", known)
        return {**found, "exportTime": store.clock()}

    def configs(self) -> dict[str, Any]:
        """The settings that mqadmin exports, and the size of a cluster of one broker."""
        known = {**self._store.retention.settings().broker_conf(), "brokerName": self._store.broker_name}
        settings = {name: java_text(known[name]) for name in sorted(EXPORTED_SETTINGS)}
        scale = {"masterBrokerSize": 1, "namesrvSize": 0, "slaveBrokerSize": 0}
        return {"brokerConfigs": {settings["brokerName"]: settings}, "clusterScale": scale}

    def _table(self, file: str, key: str, names: list[str]) -> dict[str, Any]:
        """Entries of a table in a file of the store's configuration, sorted by name."""
        from rmq_store.broker.metadata.json_table import ConfigFile
        from rmq_store.format.tables.config_json import as_json_value

        table = ConfigFile(self._store.path, file).load().get(key, {})
        return {name: as_json_value(table[name]) for name in sorted(names) if name in table}


def changeable(key: str, value: str) -> dict[str, Any]:
    """The setting under its name in StoreConfig. UsageError: there is no such setting, or it cannot be changed."""
    from rmq_store.broker.metadata.store_config import CHANGEABLE, JAVA_NAMES, parse_settings

    parsed = parse_settings({key: value}, "updateBrokerConfig")
    if not parsed.keys() <= set(CHANGEABLE):
        names = [name for field in CHANGEABLE for name, known in JAVA_NAMES.items() if known.name == field]
        raise UsageError(f"{key} decides how the store is written and cannot be changed; these can: {', '.join(names)}")
    return parsed


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
