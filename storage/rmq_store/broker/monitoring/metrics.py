"""The metrics of a store: lag of groups, topics, dead letters, delayed messages, disk (`metric_table` explains each).

Counters in a broker's memory (calls, connections of producers) do not exist in a store directory. Source:
BrokerMetricsManager, ConsumerLagCalculator, DefaultStoreMetricsManager (5.x).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from rmq_store.broker.metadata.leases import groups_with_leases
from rmq_store.broker.monitoring import metric_table as table
from rmq_store.broker.monitoring.active_consumers import active_consumers
from rmq_store.broker.monitoring.lag import GroupLag, LagReader, QueueLag
from rmq_store.broker.write.disk_space import usage_percent
from rmq_store.errors import CorruptionError, CorruptRecordError, StoreError, UsageError
from rmq_store.files import durable
from rmq_store.files.locks.state_page import StatePage
from rmq_store.format.text.names import DLQ_PREFIX, RETRY_PREFIX, is_group_name, is_system_group, is_system_topic
from rmq_store.format.text.openmetrics import Metric, MetricFamily, openmetrics_text
from rmq_store.log.feeder_state import feeder_lives, read_state
from rmq_store.log.slaves_told import SlavesTold, slaves_told

if TYPE_CHECKING:
    from rmq_store.broker.store.store import Store

# Others than the owner of a store may read what is said about it: the collector of a node_exporter does.
_MODE = 0o644

_PARTS: Final = ("commitlog", "consumequeue", "index", "config", "pyrmq")


class _Sample(NamedTuple):
    metric: Metric
    labels: tuple[str, ...]
    number: float


def store_metrics(store: Store, cluster: str = "DefaultCluster", *, queues: bool = False) -> list[MetricFamily]:
    """The present metrics of a store: all of STORE_METRICS (with `queues`: and QUEUE_METRICS; of a replica: and
    REPLICA_METRICS; of a master: and SLAVE_METRICS), in that order. Changes nothing. The cost is proportional to
    queues, groups and files; at most three records of each queue of a group are read. A group or a topic that cannot
    be read has the sample `rmq_unreadable` instead of all others.

    Raises:
        CorruptionError: a part that all metrics need is unreadable: a table of the store, the delayed messages.
    """
    node = cluster, "broker", store.broker_name
    found: dict[str, list[tuple[tuple[str, ...], float]]] = {}
    lags = LagReader(store, last_timestamps=False)
    told = _told(store)
    parts = (
        _groups(store, lags), _topics(store, lags), _waiting(store), _disk(store), _replica(store),
        _slaves(store, told),
    )  # fmt: skip
    for metric, labels, number in chain(*parts):
        found.setdefault(metric.name, []).append(((*node, *labels), number))
    metrics = (
        *table.STORE_METRICS,
        *(table.QUEUE_METRICS if queues else ()),
        *(table.REPLICA_METRICS if store.replica is not None else ()),
        *(table.SLAVE_METRICS if told is not None else ()),
    )
    return [MetricFamily(metric, found.get(metric.name, [])) for metric in metrics]


def write_openmetrics(path: str | Path, families: Iterable[MetricFamily]) -> None:
    """Replace a file by the text of the families. Readers of any user find the complete old or the complete new file.

    Raises:
        FileNotFoundError: the directory does not exist.
        StoreFullError, StoreFailedError, UsageError: as durable.translate.
    """
    durable.write_atomically(path, openmetrics_text(families).encode("utf-8", "replace"), mode=_MODE)


def _groups(store: Store, lags: LagReader) -> Iterator[_Sample]:
    yield _Sample(table.GROUP_NUMBER, (), len(store.groups()))
    for group in sorted({*store.all_committed_offsets(), *groups_with_leases(store.path)}):
        labels = group, _flag(_is_system_group(group))
        if is_group_name(group):
            yield _Sample(table.CONNECTIONS, labels, len(active_consumers(store, group)))
        try:
            lag = lags.group(group)
        except CorruptionError:
            yield _Sample(table.UNREADABLE, (group, ""), 1)
            continue
        yield from _lag(lag)


def _lag(lag: GroupLag) -> Iterator[_Sample]:
    topics: dict[str, list[QueueLag]] = {}
    for queue in lag.queues:
        topics.setdefault(queue.topic, []).append(queue)
        place = lag.group, queue.topic, str(queue.queue_id)
        if queue.consumer_offset is not None:
            yield _Sample(table.QUEUE_COMMITTED, place, queue.consumer_offset)
        yield _Sample(table.QUEUE_LAG, place, max(0, queue.diff))
        if queue.lag_ms is not None:
            yield _Sample(table.QUEUE_LAG_TIME, place, queue.lag_ms / 1000)
    for topic, queues in topics.items():
        is_system = is_system_topic(topic) or _is_system_group(lag.group)
        labels = lag.group, topic, _flag(topic.startswith(RETRY_PREFIX)), _flag(is_system)
        yield _Sample(table.LAG_MESSAGES, labels, sum(max(0, queue.diff) for queue in queues))
        yield _Sample(table.INFLIGHT, labels, sum(queue.inflight for queue in queues))
        yield _Sample(table.READY, labels, sum(max(0, queue.diff - queue.inflight) for queue in queues))
        lag_ms = _oldest(queue.lag_ms for queue in queues)
        if lag_ms is not None:
            yield _Sample(table.LAG_LATENCY, labels, lag_ms)
        queueing_ms = _oldest(queue.queueing_ms for queue in queues)
        if queueing_ms is not None:
            yield _Sample(table.QUEUEING_LATENCY, labels, queueing_ms)


def _oldest(ages_ms: Iterable[int | None]) -> int | None:
    """The greatest age; None if one of them is unknown."""
    known = list(ages_ms)
    return None if None in known else max(age_ms or 0 for age_ms in known)


def _topics(store: Store, lags: LagReader) -> Iterator[_Sample]:
    topics = store.topics()
    yield _Sample(table.TOPIC_NUMBER, (), len(topics))
    for topic in sorted(topics):
        try:
            ranges = lags.ranges(topic)
        except CorruptionError:
            yield _Sample(table.UNREADABLE, ("", topic), 1)
            continue
        if not ranges:  # deleted just now
            continue
        for queue_id, found in sorted(ranges.items()):
            if found.max_offset:  # many were never used: the topic BenchmarkTest has 1,024 of them in every store
                yield _Sample(table.QUEUE_MIN_OFFSET, (topic, str(queue_id)), found.min_offset)
                yield _Sample(table.QUEUE_MAX_OFFSET, (topic, str(queue_id)), found.max_offset)
        labels = topic, _flag(topic.startswith(RETRY_PREFIX)), _flag(is_system_topic(topic))
        here = sum(found.max_offset - found.min_offset for found in ranges.values())
        ever = sum(found.max_offset for found in ranges.values())
        yield _Sample(table.TOPIC_MESSAGES, labels, here)
        yield _Sample(table.TOPIC_PUT, labels, ever)
        if topic.startswith(DLQ_PREFIX):
            group = topic.removeprefix(DLQ_PREFIX)
            yield _Sample(table.DEAD_LETTERS, (group, _flag(_is_system_group(group))), here)
            yield _Sample(table.SENT_TO_DLQ, (group, _flag(_is_system_group(group))), ever)


def _waiting(store: Store) -> Iterator[_Sample]:
    now_ms = store.clock()
    for level, messages, first_due_ms in store.delay_backlogs():
        label = ("timer" if level is None else str(level),)
        yield _Sample(table.DELAYED, label, messages)
        yield _Sample(table.OVERDUE, label, max(0, now_ms - first_due_ms) / 1000)


def _disk(store: Store) -> Iterator[_Sample]:
    start, end = store.log_range()
    yield _Sample(table.LOG_MIN_OFFSET, (), start)
    yield _Sample(table.LOG_MAX_OFFSET, (), end)
    medium = "local", "disk"
    status = os.statvfs(store.path)
    yield _Sample(table.STORAGE_SIZE, medium, (status.f_blocks - status.f_bfree) * status.f_frsize)
    behind = not_flushed_bytes(store.path)
    if behind is not None:
        yield _Sample(table.FLUSH_BEHIND, medium, behind)
    earliest_ms = earliest_message_ms(store)
    if earliest_ms is not None:
        yield _Sample(table.RESERVE_TIME, medium, max(0, store.clock() - earliest_ms))
    for part in _PARTS:
        files, size_bytes = _use_of(store.path / part)
        yield _Sample(table.FILES, (part,), files)
        yield _Sample(table.FILE_BYTES, (part,), size_bytes)
    percent = usage_percent(store.path)
    if percent is not None:
        yield _Sample(table.DISK_USAGE, (), percent / 100)


def _replica(store: Store) -> Iterator[_Sample]:
    """How far a replica is, as its feeder last heard of the master."""
    if store.replica is None:
        return
    is_fed, state = feeder_lives(store.path), read_state(store.path)
    yield _Sample(table.REPLICA_FED, (), is_fed)
    if state is None:
        return
    now_ms, end = store.clock(), store.log_range()[1]
    yield _Sample(table.REPLICA_CONNECTED, (), is_fed and state.is_connected)
    if state.heard_ms:
        yield _Sample(table.REPLICA_BEHIND_BYTES, (), state.behind_bytes(end))
        messages = state.behind_messages(end)
        if messages is not None:
            yield _Sample(table.REPLICA_BEHIND_MESSAGES, (), messages)
        yield _Sample(table.REPLICA_BEHIND_TIME, (), state.behind_ms(end, now_ms) / 1000)
        yield _Sample(table.REPLICA_HEARD, (), max(now_ms - state.heard_ms, 0) / 1000)


def _told(store: Store) -> SlavesTold | None:
    """The words of a master about its slaves; None: the store is a replica, or nobody serves it and no send waits."""
    told = slaves_told(store.path) if store.replica is None else None
    return told if told is not None and (told.is_served or told.needed) else None


def _slaves(store: Store, told: SlavesTold | None) -> Iterator[_Sample]:
    if told is None:
        return
    end = store.log_range()[1]
    yield _Sample(table.SYNC_MASTER, (), told.needed > 0)
    yield _Sample(table.SLAVES, (), told.count)
    behind = told.slowest_behind_bytes(end)
    if behind is not None:
        yield _Sample(table.SLAVE_BEHIND_BYTES, (), behind)
    if told.needed:
        yield _Sample(table.REPLICATED_BEHIND_BYTES, (), max(end - told.replicated_end, 0))


def earliest_message_ms(store: Store) -> int | None:
    """Store time (ms) of the log's oldest record; None if there is none, or if it is damaged or was just deleted."""
    start, end = store.log_range()
    try:
        return store.message_at(start).store_timestamp_ms if start < end else None
    except (CorruptRecordError, UsageError):
        return None


def not_flushed_bytes(root: Path) -> int | None:
    """Bytes of the log that a power cut would destroy now; None if no process of this engine has the store open."""
    try:
        page = StatePage(root / "pyrmq" / "state", writable=False)
    except (OSError, StoreError):
        return None
    return page.appended_end - page.flushed_end if page.counts() else None


def _use_of(directory: Path) -> tuple[int, int]:
    """The number of files below a directory, and the bytes that they occupy on disk: less than their size for sparse
    files.
    """
    files = size_bytes = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                status = os.lstat(os.path.join(parent, name))  # noqa: PTH118 - 10,000 files a look
            except FileNotFoundError:
                continue
            files += 1
            size_bytes += status.st_blocks * 512
    return files, size_bytes


def _is_system_group(group: str) -> bool:
    return is_system_group(group.upper())  # BrokerMetricsManager#isSystemGroup takes it in any letters


def _flag(value: bool) -> str:
    return "true" if value else "false"
