"""The lag of one source of one streaming query: Spark's progress of a batch, compared with the ends of the store.

    lag              messages between the query's position and the end of the queue now
    lag_seconds      age of the oldest of them, by the store's clock; 0 if there is none
    rate             messages read per second since the batch before was completed (first batch: since it began)
    eta_seconds      lag / (how much the lag shrinks per second); None if it does not, 0 if there is none
    retries          messages of the batch that came from the group's %RETRY% topic
    dead_letters     messages that became dead letters of the group since the last measurement (first one: since the
                     batch began)

Positions and times come from Spark's progress (`offsets`). The source reports its path, its group and the ends of its
queues there. If the store is not on this machine, or is a cluster, those ends are used, and values that need the store
are None. Brokers that are away tell no ends: the end and the lag of their queues are unknown (None), and so is the sum.
A Spark that asks for no report (`spark_api.TELLS_STARTS`) has path and group in the position, and no ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark_rmq.access.spark_api import offset_of
from pyspark_rmq.options.option_table import GO_ON
from pyspark_rmq.options.options import DLQ_PREFIX, RETRY_PREFIX
from pyspark_rmq.position.position import Queue, StreamPosition
from pyspark_rmq.position.queue_ids import BrokerQueueId, broker_of, number_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from pyspark_rmq.access.store_reader import StoreReader

CLUSTER_SCHEME: Final = "rmq://"

_FIELDS = frozenset(("version", "store", "topics"))


class QueueRow(NamedTuple):
    """One queue of one source of a query: see the docstring of this module. `position` is the next message to read,
    `end` the end of the queue, `messages` the number of messages that the last batch read. `end` and `lag` are None
    while nobody tells the end: the broker of the queue is away.
    """

    query: str
    query_id: str
    run_id: str
    batch_id: int
    source: int
    path: str | None
    group: str | None
    topic: str
    queue_id: int
    position: int
    end: int | None
    messages: int
    lag: int | None
    lag_seconds: float | None
    rate: float | None
    eta_seconds: float | None
    broker_name: str | None = None


class SourceRow(NamedTuple):
    """One source of a query: the sums over its queues, and the age of the oldest unread message. `lag` is None while
    that of a queue is unknown; `away_brokers` names the brokers that are away, sorted.
    """

    query: str
    query_id: str
    run_id: str
    batch_id: int
    source: int
    path: str | None
    group: str | None
    messages: int
    retries: int
    dead_letters: int | None
    lag: int | None
    lag_seconds: float | None
    rate: float | None
    eta_seconds: float | None
    away_brokers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """Spark's progress report on one source: of the trigger that began at `started_ms`. `reported` has the ends of the
    queues as the source saw them, and `away_brokers` the brokers that told it none. `goes_on`: it reads a cluster with
    onBrokerAway=goOn.
    """

    query: str
    query_id: str
    run_id: str
    batch_id: int
    source: int
    begin: Mapping[Queue, int]
    end: StreamPosition
    reported: Mapping[Queue, int]
    path: str | None
    group: str | None
    started_ms: int
    done_ms: int
    away_brokers: tuple[str, ...] = ()
    goes_on: bool = False

    @property
    def messages(self) -> dict[Queue, int]:
        """The number of messages that the batch read from each queue."""
        return {queue: max(0, offset - self.begin.get(queue, offset)) for queue, offset in self.end.next.items()}


def batch_of(progress: StreamingQueryProgress, number: int) -> Batch | None:
    """Source number `number` of a progress; None if it has another format, or has not reported its end.

    Raises:
        UsageError: a newer version wrote the position.
    """
    source = progress.sources[number]
    begin, end, latest = (offset_of(source, name) for name in ("startOffset", "endOffset", "latestOffset"))
    if not _is_position(end):
        return None
    position = StreamPosition.from_json(end)
    if _place(latest) is None and position.source:
        # This Spark asks no source for its progress, and shows a position instead: the ends of queues are unknown.
        told: dict[str, Any] = dict(position.source)
        reported: Mapping[Queue, int] = {}
    elif _is_position(latest):
        told, reported = latest, StreamPosition.from_json(latest).next
    else:
        return None
    first = StreamPosition.from_json(begin) if _is_position(begin) else None
    before = {} if first is None else first.next
    started_ms = milliseconds(progress.timestamp)
    return Batch(
        progress.name or "", str(progress.id), str(progress.runId), progress.batchId, number,
        {**before, **position.began_behind(first)}, position, reported, _place(told), _text(told.get("group")),
        started_ms, started_ms + progress.durationMs.get("triggerExecution", 0),
        _names(told.get("away")), told.get("onBrokerAway") == GO_ON,
    )  # fmt: skip


def milliseconds(timestamp: str) -> int:
    """Convert a time in ISO 8601, as Spark writes it, to ms since the epoch."""
    return int(datetime.fromisoformat(timestamp).timestamp() * 1000)


class SourceTracker:
    """Follows one source of one run of a query. `store`: None if it is not on this machine; `now_ms`: its time."""

    def __init__(self) -> None:
        self.rows: list[QueueRow] = []
        self.total: SourceRow | None = None
        self.messages: dict[Queue, int] = {}
        """Read so far; the next two: all so far."""
        self.retries = 0
        self.dead_letters = 0
        self._batch: Batch | None = None
        self._done_ms: int | None = None
        self._dead_end: int | None = None

    @property
    def path(self) -> str | None:
        """The path of the source's store; None if the source did not report it."""
        return self._batch.path if self._batch is not None else None

    def completed(self, batch: Batch, store: StoreReader | None, now_ms: int) -> None:
        """Measure after a batch that Spark has completed."""
        self._batch = batch
        for queue, count in batch.messages.items():
            self.messages[queue] = self.messages.get(queue, 0) + count
        self._measure(batch, batch.messages, batch.done_ms, store, now_ms)

    def idle(self, at_ms: int, store: StoreReader | None, now_ms: int, now: Batch | None = None) -> None:
        """Measure although nothing was read since the last call, up to `at_ms` (Spark's time). `now`: what the source
        reports now. Without it, and without a store, the ends are unknown: those of the last batch are old.
        """
        if self._batch is None:
            return
        if now is not None:
            self._batch = replace(self._batch, reported=now.reported, away_brokers=now.away_brokers)
        elif store is None:
            self._batch = replace(self._batch, reported={})
        self._measure(self._batch, {}, at_ms, store, now_ms)

    @property
    def source(self) -> int:
        """The number of the source in its query."""
        return self._batch.source if self._batch is not None else 0

    def _measure(
        self, batch: Batch, messages: Mapping[Queue, int], done_ms: int, store: StoreReader | None, now_ms: int
    ) -> None:
        passed_ms = done_ms - (batch.started_ms if self._done_ms is None else self._done_ms)
        before = {_queue_of(row): row.lag for row in self.rows}
        rows = []
        for queue, position in sorted(batch.end.next.items()):
            end = batch.reported.get(queue) if store is None else store.queue_range(*queue).max_offset
            end = None if end is None else max(end, position)
            lag, count = None if end is None else end - position, messages.get(queue, 0)
            row = QueueRow(
                *_batch_columns(batch), queue.topic, number_of(queue.queue_id), position, end, count, lag,
                _age_s(store, queue, position, lag, now_ms), *_speed(count, lag, before.get(queue), passed_ms),
                broker_of(queue.queue_id),
            )  # fmt: skip
            rows.append(row)
        self.rows, self._done_ms = rows, done_ms
        dead = self._dead_letters(batch, store)
        retries = sum(count for queue, count in messages.items() if queue.topic.startswith(RETRY_PREFIX))
        self.retries, self.dead_letters = self.retries + retries, self.dead_letters + (dead or 0)
        count, lag = sum(messages.values()), _sum(row.lag for row in rows)
        ages = [row.lag_seconds for row in rows]
        oldest = None if None in ages else max((age or 0.0 for age in ages), default=0.0)
        speed = _speed(count, lag, _sum(before.values()) if before else None, passed_ms)
        self.total = SourceRow(*_batch_columns(batch), count, retries, dead, lag, oldest, *speed, batch.away_brokers)

    def _dead_letters(self, batch: Batch, store: StoreReader | None) -> int | None:
        """The messages that became dead letters of the group since the last measurement."""
        if store is None or batch.group is None:
            return None
        topic = DLQ_PREFIX + batch.group
        ranges = store.queue_ranges(topic) if store.find_topic(topic) is not None else {}
        end = sum(limits.max_offset for limits in ranges.values())
        before, self._dead_end = self._dead_end, end
        if before is not None:
            return max(0, end - before)
        return sum(
            max(0, limits.max_offset - store.offset_by_time(topic, queue_id, batch.started_ms))
            for queue_id, limits in ranges.items()
        )


def _queue_of(row: QueueRow) -> Queue:
    if row.broker_name is None:
        return Queue(row.topic, row.queue_id)
    return Queue(row.topic, BrokerQueueId(row.broker_name, row.queue_id))


def _place(latest: Mapping[str, Any]) -> str | None:
    """The path of a store, or CLUSTER_SCHEME and the name servers of a cluster."""
    servers = _text(latest.get("nameServer"))
    return _text(latest.get("path")) if servers is None else CLUSTER_SCHEME + servers


def _batch_columns(batch: Batch) -> tuple[str, str, str, int, int, str | None, str | None]:
    return (batch.query, batch.query_id, batch.run_id, batch.batch_id, batch.source, batch.path, batch.group)


def _sum(lags: Iterable[int | None]) -> int | None:
    """The sum; None if one is unknown."""
    found = list(lags)
    return None if None in found else sum(lag or 0 for lag in found)


def _age_s(store: StoreReader | None, queue: Queue, position: int, lag: int | None, now_ms: int) -> float | None:
    """How long the message at `position` has been stored, in seconds; None if that is unknown."""
    from rmq_store import CorruptRecordError, OffsetOutOfRangeError

    if lag == 0:
        return 0.0
    if store is None:
        return None
    try:
        first = max(position, store.queue_range(*queue).min_offset)
        return max(0, now_ms - store.store_timestamp(*queue, first)) / 1000
    except (OffsetOutOfRangeError, CorruptRecordError):  # retention takes it at this moment, or it is damaged
        return None


def _speed(
    count: int, lag: int | None, lag_before: int | None, passed_ms: int
) -> tuple[float | None, float | None]:
    """Messages per second, and the seconds until the lag is 0 at the present rate of decrease."""
    rate = count * 1000 / passed_ms if passed_ms > 0 else None
    if not lag:
        return rate, None if lag is None else 0.0
    if rate is None:
        return None, None
    shrinking = rate if lag_before is None else (lag_before - lag) * 1000 / passed_ms
    return rate, lag / shrinking if shrinking > 0 else None


def _is_position(value: Mapping[str, Any]) -> bool:
    """True if a JSON object is a position of this format. No position of another format has these fields."""
    return _FIELDS <= value.keys()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _names(value: object) -> tuple[str, ...]:
    return tuple(name for name in value if isinstance(name, str)) if isinstance(value, list) else ()
