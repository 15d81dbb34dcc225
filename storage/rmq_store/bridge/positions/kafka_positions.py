"""Positions of mirrors into Kafka: a compacted topic, written in the same transactions as the copied records.

One topic for each mirror and RocketMQ cluster, `__pyrmq-mirror-<mirror>-<hash of the cluster id>`. Keys and values are
JSON:

    key [mirror, cluster id, topic]            value {"owner", "target", "target_id", "queues"}
    key [mirror, cluster id, topic, queue id]  value {"next", "stored_ms", "log_offset", "target_end", "start",
                                                      "lost_count", "lost_end", "earlier"}

`next` is the next queue offset. `stored_ms` and `log_offset` are those of the last message below it, and -1 if there
was none: a topic that was created again, or a copy that was restored, has another message there. `target_end` is the
end of the target partition after that message: if it ends earlier, Kafka has lost records. `earlier` has such marks of
some earlier windows. `queues` is the number of queues that the topic had when the mirror last looked: a queue with a
larger id is new. `owner` is an instance of the mirror: the newest claim counts.

Not group offsets: these expire.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa

from rmq_store import real_time
from rmq_store.bridge.kafka.client import (
    KafkaAdministration,
    KafkaReader,
    KafkaWriters,
    Partition,
    Position,
)
from rmq_store.bridge.positions.topics import POSITIONS_PREFIX, check_mirror_name
from rmq_store.bridge.record_batches.schema import RECORDS_SCHEMA
from rmq_store.errors import KafkaRefusedError, KafkaUnavailableError
from rmq_store.lazy.dataclasses import dataclass

# Compaction leaves the segment alone that is written: a large one is read again at each start.
_SETTINGS: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
}
_POLL_MS: Final = 200
_GLANCE_S: Final = 5.0
_LAST_OFFSETS: Final = 100
_LAST_TIMEOUT_S: Final = 30.0
_MARKS: Final = 8


class Mark(NamedTuple):
    """A position at which source and target agreed: `next_offset` of the queue, the message before it, and the end of
    the target partition after its record.
    """

    next_offset: int
    stored_ms: int = -1
    log_offset: int = -1
    target_end: int = -1


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """The position in one queue. `start_offset`: the mirror began there. `lost_count` messages below `lost_end` were
    gone before they were read. `earlier`: marks of earlier windows, newest first.
    """

    mark: Mark
    start_offset: int
    lost_count: int = 0
    lost_end: int = 0
    earlier: tuple[Mark, ...] = ()

    @property
    def next_offset(self) -> int:
        """The next queue offset to copy."""
        return self.mark.next_offset

    def moved(self, mark: Mark, *, lost_count: int = 0, lost_end: int = 0) -> QueuePosition:
        """The position after a window. The older marks are, the fewer of them are kept."""
        earlier = (self.mark, *self.earlier) if self.mark.log_offset >= 0 else self.earlier
        if len(earlier) > _MARKS:
            earlier = (earlier[0], *earlier[2::2])
        return QueuePosition(
            mark, self.start_offset, self.lost_count + lost_count, max(self.lost_end, lost_end), earlier
        )

    def back_at(self, mark: Mark) -> QueuePosition:
        """The position if the mirror continues at an earlier mark."""
        earlier = tuple(known for known in self.earlier if known.next_offset < mark.next_offset)
        return QueuePosition(mark, min(self.start_offset, mark.next_offset), self.lost_count, self.lost_end, earlier)


@dataclass(frozen=True, slots=True)
class TopicPosition:
    """The state of one topic: its owner, its target in Kafka (name and id), and its number of queues."""

    owner: str
    target: str
    target_id: str
    queue_count: int


def positions_topic(mirror: str, cluster_id: str) -> str:
    """The name of the position topic."""
    digest = hashlib.blake2b(cluster_id.encode(), digest_size=6).hexdigest()
    return f"{POSITIONS_PREFIX}-mirror-{check_mirror_name(mirror)}-{digest}"


def transactional_id(mirror: str, cluster_id: str, topic: str) -> str:
    """The transactional id of one topic: a problem of its partitions does not hold up other topics. Names of mirrors
    and topics have no `/`, so no two ids are equal.
    """
    return f"pyrmq/{check_mirror_name(mirror)}/{cluster_id}/{topic}"


class KafkaPositions:
    """The positions of one mirror. `reader` is for nothing else. Call `refresh` before the first question."""

    def __init__(
        self,
        mirror: str,
        cluster_id: str,
        reader: KafkaReader,
        administration: KafkaAdministration,
        writers: KafkaWriters,
        *,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._names = [mirror, cluster_id]
        self.partition = Partition(positions_topic(mirror, cluster_id), 0)
        self._reader = reader
        self._administration = administration
        self._writers = writers
        self._is_stopping = is_stopping
        self._next: int | None = None
        self._topics: dict[str, TopicPosition] = {}
        self._queues: dict[str, dict[int, QueuePosition]] = {}

    def prepare(self) -> None:
        """Create the topic, unless it exists. Raises KafkaRefusedError if an existing one deletes records."""
        name = self.partition.topic
        made = self._administration.create_topic(name, 1, _SETTINGS)
        policy = self._administration.topic_settings(name).get("cleanup.policy")
        if made.partition_count != 1 or policy != "compact":
            raise KafkaRefusedError(
                f"Topic {name!r} keeps the positions of mirror {self._names[0]!r}. It has {made.partition_count} "
                f"partitions and cleanup.policy={policy}, and needs one and compact: positions would be lost. Set them."
            )

    def refresh(self, timeout_ms: int) -> None:
        """Read the positions that were written since. It waits for the ends of open transactions, so all positions that
        were committed before the call are known afterwards. Raises KafkaUnavailableError if that takes too long.
        """
        self._read_to(self._writers.high_watermark(self.partition), timeout_ms)

    def glance(self) -> None:
        """As `refresh`, without waiting for open transactions, for a caller that has one open itself. Another writer
        that has taken the caller's transactional id has ended that transaction, so its claim is visible. It takes some
        seconds at most: older versions of kafka-python report an end beyond open transactions.
        """
        end = self._reader.stable_ends([self.partition])[self.partition]
        self._read_on(end, real_time.monotonic() + _GLANCE_S)

    def _read_to(self, end: int, timeout_ms: int) -> None:
        if self._read_on(end, real_time.monotonic() + timeout_ms / 1000) < end:
            raise KafkaUnavailableError(
                f"Positions in topic {self.partition.topic!r} of Kafka cannot be read to its end at {end}: a "
                "transaction of a mirror is still open there. Kafka ends it after its transaction timeout."
            )

    def _read_on(self, end: int, deadline_s: float) -> int:
        """Where the reader is when it has come to the end, or when time is over."""
        if self._next is None:
            self._next = self._reader.starts([self.partition])[self.partition]
        self._reader.assign({self.partition: Position(self._next)})
        while (position := self._reader.position(self.partition)) < end:
            if real_time.monotonic() > deadline_s or self._is_stopping():
                break
            for fetched in self._reader.poll(_POLL_MS).values():
                self._take(fetched.rows)
                self._next = fetched.next_offset
        return position

    def last_records(self, partition: Partition) -> pa.RecordBatch:
        """Some of the last committed records (RECORDS_SCHEMA) of a partition; none if its last offsets have none."""
        start, end = self._reader.starts([partition])[partition], self._reader.stable_ends([partition])[partition]
        self._reader.assign({partition: Position(max(start, end - _LAST_OFFSETS))})
        found: list[pa.RecordBatch] = []
        deadline_s = real_time.monotonic() + _LAST_TIMEOUT_S
        while self._reader.position(partition) < end and real_time.monotonic() < deadline_s and not self._is_stopping():
            found += [fetched.rows for fetched in self._reader.poll(_POLL_MS).values()]
        return pa.concat_batches(found) if found else pa.RecordBatch.from_pylist([], schema=RECORDS_SCHEMA)

    def topic(self, topic: str) -> TopicPosition | None:
        """The state of a topic; None: no mirror of this name has begun it."""
        return self._topics.get(topic)

    def queues(self, topic: str) -> Mapping[int, QueuePosition]:
        """Positions by queue id."""
        return self._queues.get(topic, {})

    def rows(
        self, topic: str, queues: Mapping[int, QueuePosition], of_topic: TopicPosition | None = None
    ) -> pa.RecordBatch:
        """Records (RECORDS_SCHEMA) with this state, to be added to `partition`."""
        said = [(self._key(topic, queue_id), _queue_value(position)) for queue_id, position in queues.items()]
        if of_topic is not None:
            value = {"owner": of_topic.owner, "target": of_topic.target, "target_id": of_topic.target_id}
            said.append((self._key(topic), _json({**value, "queues": of_topic.queue_count})))
        return pa.RecordBatch.from_pylist(
            [
                {"offset": 0, "timestampMs": int(time.time() * 1000), "timestampType": 0, "key": key, "value": value,
                 "headers": []}
                for key, value in said
            ],
            schema=RECORDS_SCHEMA,
        )  # fmt: skip

    def _key(self, *names: str | int) -> bytes:
        return _json([*self._names, *names])

    def _take(self, rows: pa.RecordBatch) -> None:
        columns = (rows.column(name).to_pylist() for name in ("offset", "key", "value"))
        for offset, key, value in zip(*columns, strict=True):
            try:
                self._take_one(key, value)
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise KafkaRefusedError(
                    f"The record at offset {offset} of topic {self.partition.topic!r} is no position of a mirror. "
                    "Another program writes into this topic: take away its right to do so, and delete the topic's "
                    "record, or mirror under another name."
                ) from error

    def _take_one(self, key: bytes, value: bytes | None) -> None:
        mirror, cluster_id, topic, *queue = json.loads(key)
        if [mirror, cluster_id] != self._names:
            return  # a cluster id with the same hash
        if not queue:
            if value is None:
                self._topics.pop(topic, None)
            else:
                said = json.loads(value)
                self._topics[topic] = TopicPosition(said["owner"], said["target"], said["target_id"], said["queues"])
        elif value is None:
            self._queues.get(topic, {}).pop(queue[0], None)
        else:
            self._queues.setdefault(topic, {})[int(queue[0])] = _queue_position(json.loads(value))


def _queue_value(position: QueuePosition) -> bytes:
    mark = position.mark
    return _json({
        "next": mark.next_offset, "stored_ms": mark.stored_ms, "log_offset": mark.log_offset,
        "target_end": mark.target_end, "start": position.start_offset, "lost_count": position.lost_count,
        "lost_end": position.lost_end, "earlier": position.earlier,
    })  # fmt: skip


def _queue_position(said: Mapping[str, Any]) -> QueuePosition:
    mark = Mark(*(int(said[name]) for name in ("next", "stored_ms", "log_offset", "target_end")))
    earlier = tuple(Mark(*map(int, known)) for known in said["earlier"])
    return QueuePosition(mark, int(said["start"]), int(said["lost_count"]), int(said["lost_end"]), earlier)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
