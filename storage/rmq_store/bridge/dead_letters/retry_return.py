"""Records whose retry is due go back to Kafka: from `%RETRY%group` to their topics, dead ones to dead-letter topics.

    per transaction   the records, and the next offset of the retry queue in `__pyrmq.retry.<group>`

So no record goes back twice, wherever this process dies: after the transactional id's first `begin` the position is the
committed one. If a part of the retry queue is gone (the store was set back), the store time of the last message below
the position shows that. A record that Kafka refuses becomes a dead letter of the group in the store, before the
transaction that passes it over is committed. The unit of these letters has their offsets, so a repeated transaction
knows them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.bridge.dead_letters.compacted_topic import CompactedTopic, keyed_records
from rmq_store.bridge.dead_letters.header_rows import with_header, without_marks
from rmq_store.bridge.dead_letters.redriven_topic import escaped
from rmq_store.bridge.dead_letters.refused_retries import RefusedRetries
from rmq_store.bridge.dead_letters.retry_rows import ATTEMPTS_HEADER, DEAD, GROUP_HEADER, RETRY_QUEUE
from rmq_store.bridge.kafka.client import KafkaAdministration, KafkaReader, KafkaWriter, Partition
from rmq_store.bridge.kafka.user_topics import add_fitting, is_compacted, require_user_topic
from rmq_store.bridge.records.origin import sources_of_messages
from rmq_store.bridge.records.route import Route
from rmq_store.bridge.records.to_kafka import MAPPED_COLUMNS, KafkaRules, to_kafka
from rmq_store.broker.rules import failure
from rmq_store.broker.store.store import Store
from rmq_store.errors import (
    MirrorSourceError,
    RecordRefusedError,
    UnknownTopicError,
)
from rmq_store.format.properties.mirror_properties import (
    KAFKA_ATTEMPTS,
    KAFKA_RETRY,
    KAFKA_RETRY_PARTITION,
    KAFKA_RETRY_TOPIC,
)
from rmq_store.format.text import names
from rmq_store.lazy.arrow_compute import pc

DEAD_LETTERS_SUFFIX: Final = "-dead-letters"

_COLUMNS: Final = (*MAPPED_COLUMNS, "queueId", "storeTimestamp")
_ROWS_MAX: Final = 4_096
_BYTES_MAX: Final = 8 << 20
_THIS_SIDE: Final = "retry"

_LETTER_HEADERS: Final = (
    (b"rmq.letter.topic", failure.ORIGIN_TOPIC), (b"rmq.letter.partition", failure.ORIGIN_QUEUE_ID),
    (b"rmq.letter.offset", failure.ORIGIN_QUEUE_OFFSET), (b"rmq.letter.attempts", KAFKA_ATTEMPTS),
    (b"rmq.letter.error-class", failure.ERROR_CLASS), (b"rmq.letter.error-message", failure.ERROR_MESSAGE),
)  # fmt: skip


def positions_topic(group: str) -> str:
    """The topic with the position of a group's retries."""
    return f"__pyrmq.retry.{escaped(group)}"


def transactional_id(group: str) -> str:
    """The transactional id for returning records of this group: a second process fences the first."""
    return f"pyrmq.retry.{escaped(group)}"


class RetryReturn:
    """Returns due records of one group; not safe for threads. `returned` and `dead` count records by topic.

    Raises (when constructed):
        UsageError: Kafka has no such topic, or it is internal to Kafka or to a mirror.
    """

    def __init__(
        self,
        store: Store,
        group: str,
        administration: KafkaAdministration,
        reader: KafkaReader,
        writer: KafkaWriter,
        topics: Collection[str],
    ) -> None:
        self._store = store
        self._group = group
        self._queue = names.retry_topic(group)
        self._cluster_id = administration.cluster_id()
        self._writer = writer
        self._positions = CompactedTopic(administration, reader, positions_topic(group))
        self._key = json.dumps([self._queue, RETRY_QUEUE]).encode()
        self._next: int | None = None
        self._has_begun = self._is_open = False
        self._refused = RefusedRetries(store, group)
        self._partitions: dict[str, int] = {}
        self._compacted: dict[str, bool] = {}
        self.returned: Counter[str] = Counter()
        self.dead: Counter[str] = Counter()
        self.refused_count = 0
        known = administration.topics(topics)
        for topic in topics:
            require_user_topic(topic, known, "no record returns to it")
            count = known[topic].partition_count
            letters = administration.create_topic(topic + DEAD_LETTERS_SUFFIX, count, {})
            for name, partitions in ((topic, count), (letters.name, letters.partition_count)):
                self._partitions[name] = partitions
                self._compacted[name] = is_compacted(administration, name)

    def begin(self) -> None:
        """Take the transactional id, and read the position. Call it again after an error.

        Raises:
            MirrorSourceError: the store was set back to before records that were returned.
            MirrorTargetError, KafkaUnavailableError, KafkaRefusedError.
        """
        self._positions.make()
        if self._has_begun:
            self._writer.reset()
        self._writer.begin()
        self._has_begun = self._is_open = True
        found = None
        for rows in self._positions.read():
            for key, value in zip(rows.column("key").to_pylist(), rows.column("value").to_pylist(), strict=True):
                found = json.loads(value) if key == self._key else found
        first, last = self._range()
        self._next = first if found is None else max(found["next"], first)
        if found is not None and found["next"] > first:
            at = found["next"] - 1
            if found["next"] > last or self._store.store_timestamp(self._queue, RETRY_QUEUE, at) != found["stored_ms"]:
                raise MirrorSourceError(
                    f"{self._queue} of {self._store.path} was returned to Kafka up to offset {found['next']}, and has "
                    "another message there now: the store was set back or replaced. Its records may have been "
                    f"returned before; delete Kafka's topic {self._positions.partition.topic!r} to return all of it"
                )

    @property
    def waiting_count(self) -> int:
        """The number of records that are due and not returned yet."""
        assert self._next is not None
        return self._range()[1] - self._next

    def step(self) -> int:
        """Return due records, at most one transaction; returns the number of records that left the queue.

        Raises:
            MirrorConflictError: another process returns records of this group; this one has ended.
            KafkaUnavailableError, KafkaRefusedError: call `begin` again.
            CorruptionError: a message is damaged.
        """
        assert self._next is not None
        first, last = self._range()
        start = max(self._next, first)
        end = min(last, start + _ROWS_MAX)
        if start >= end:
            return 0
        end = self._store.offset_after_bytes(self._queue, RETRY_QUEUE, start, end, _BYTES_MAX)
        rows = pa.Table.from_batches(
            list(self._store.read(self._queue, RETRY_QUEUE, start, end, columns=_COLUMNS))
        ).combine_chunks()
        self._return(rows.to_batches()[0])
        self._next = end
        self._store.commit_offsets(self._group, {(self._queue, RETRY_QUEUE): end})  # for `rmq lag` and metrics only
        return end - start

    def _range(self) -> tuple[int, int]:
        try:
            return self._store.queue_range(self._queue, RETRY_QUEUE)
        except UnknownTopicError:
            return 0, 0

    def _return(self, rows: pa.RecordBatch) -> None:
        unsuitable = self._refused.known(rows)
        while True:
            try:
                returned, dead = self._send(rows, unsuitable)
            except RecordRefusedError as error:
                self._writer.reset()
                self._is_open = False
                unsuitable |= self._culprits(rows, unsuitable, error)
                continue
            self.returned.update(returned)
            self.dead.update(dead)
            self.refused_count += len(unsuitable)
            return

    def _send(self, rows: pa.RecordBatch, unsuitable: dict[int, str]) -> tuple[Counter[str], Counter[str]]:
        """One transaction: all of the rows but the unsuitable ones, {row: reason}, to which it may add some."""
        if not self._is_open:
            self._writer.begin()
            self._is_open = True
        counts: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        for goal, partition, is_dead, places in self._parted(rows):
            for records in self._records(rows, places, goal, partition, is_dead, unsuitable):
                counts[is_dead][goal] += self._add(Partition(goal, partition), records, rows, unsuitable)
        last = rows.num_rows - 1
        value = {
            "next": int(rows.column("queueOffset")[last].as_py()) + 1,
            "stored_ms": rows.column("storeTimestamp")[last].cast(pa.int64()).as_py() // 1000,
        }
        record = keyed_records(
            pa.array([self._key], pa.binary()), pa.array([json.dumps(value).encode()], pa.binary()), self._store.clock()
        )
        self._writer.add(self._positions.partition, record)
        self._writer.flush()  # Kafka has judged all records
        self._refused.store_letters(rows, unsuitable)
        self._store.flush()  # what Kafka has must not be forgotten here
        self._writer.commit()
        self._is_open = False
        return counts

    def _parted(self, rows: pa.RecordBatch) -> list[tuple[str, int, bool, npt.NDArray[np.int64]]]:
        """The rows that came from Kafka, by their target."""
        kinds, topics, partitions = (
            pc.map_lookup(rows.column("properties"), pa.scalar(name), "first").to_pylist()
            for name in (KAFKA_RETRY, KAFKA_RETRY_TOPIC, KAFKA_RETRY_PARTITION)
        )
        # A message of RocketMQ is its consumers', also one that a job sent with all properties of such a row.
        is_ours = sources_of_messages(rows).is_mirrored
        found: dict[tuple[str, int, bool], list[int]] = {}
        for row, (kind, topic, partition) in enumerate(zip(kinds, topics, partitions, strict=True)):
            if not is_ours[row] or kind is None or topic is None or not (partition or "").isdecimal():
                continue
            is_dead = kind == DEAD or topic not in self._partitions
            goal = (topic if topic in self._partitions else next(iter(self._partitions))) + (
                DEAD_LETTERS_SUFFIX if is_dead else ""
            )
            found.setdefault((goal, int(partition) % self._partitions[goal], is_dead), []).append(row)
        return [(*place, np.array(several, np.int64)) for place, several in found.items()]

    def _records(
        self,
        rows: pa.RecordBatch,
        places: npt.NDArray[np.int64],
        goal: str,
        partition: int,
        is_dead: bool,
        unsuitable: dict[int, str],
    ) -> list[pa.RecordBatch]:
        given = rows.take(pa.array([int(row) for row in places if int(row) not in unsuitable], pa.int64()))
        if not given.num_rows:
            return []
        route = Route(_THIS_SIDE, self._queue, RETRY_QUEUE, self._cluster_id, goal, partition)
        rules = KafkaRules(self._store.clock(), "mirror", compacted=self._compacted[goal])
        mapped = to_kafka(given, route, rules)
        taken = np.searchsorted(given.column("queueOffset").to_numpy(), mapped.rows.column("offset").to_numpy())
        for left in sorted(set(range(given.num_rows)) - set(taken.tolist())):
            row = int(np.searchsorted(rows.column("queueOffset").to_numpy(), given.column("queueOffset")[left].as_py()))
            unsuitable[row] = f"Kafka's topic {goal!r} would not take it"
        own = given.column("properties").take(pa.array(taken))
        records = without_marks(mapped.rows)
        named = _LETTER_HEADERS if is_dead else ((ATTEMPTS_HEADER, KAFKA_ATTEMPTS),)
        for header, name in named:
            values = pc.map_lookup(own, pa.scalar(name), "first").cast(pa.binary())
            records = with_header(records, header, values)
        group = pa.array([self._group.encode()] * records.num_rows, pa.binary())
        return [with_header(records, b"rmq.letter.group" if is_dead else GROUP_HEADER, group)]

    def _add(
        self, partition: Partition, records: pa.RecordBatch, rows: pa.RecordBatch, unsuitable: dict[int, str]
    ) -> int:
        added, large = add_fitting(self._writer, partition, records)
        places = np.searchsorted(rows.column("queueOffset").to_numpy(), large.column("offset").to_numpy())
        unsuitable |= dict.fromkeys(
            places.tolist(), f"larger than a record of Kafka's topic {partition.topic!r} may be"
        )
        return int(added.num_rows)

    def _culprits(self, rows: pa.RecordBatch, known: dict[int, str], error: RecordRefusedError) -> dict[int, str]:
        """The rows that Kafka refuses. Kafka may name good neighbours: those become dead letters, too."""
        for goal, partition, _, places in self._parted(rows):
            if (goal, partition) == tuple(error.partition):
                sent = [int(row) for row in places if int(row) not in known]
                named = [sent[place] for place in error.rows if place < len(sent)] or sent
                return dict.fromkeys(named, f"Kafka refuses it: {error.reason}")
        raise error
