"""Dead letters of Kafka go back to Kafka: `rmq mirror redrive`.

A letter is produced to the topic from which it came, with its original key, value and headers, and with the present
time: with its own time retention might delete it at once. Only topics that the user names get letters: anybody who may
write to the topic of dead letters can write a header.

    1  begin a transaction, and read which letters went back (`redriven_topic`)
    2  per chunk: produce the letters, and one record for each in the redriven topic; commit
    3  record in the store that they were moved, for `rmq dlq list`

If the process dies between 2 and 3, the store still lists the letters as dead. The next run finds them in the redriven
topic, records them in the store, and produces none twice.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.bridge.dead_letters.header_rows import without_marks
from rmq_store.bridge.dead_letters.redriven_topic import RedrivenTopic
from rmq_store.bridge.kafka.client import KafkaAdministration, KafkaReader, KafkaTopic, KafkaWriter, Partition
from rmq_store.bridge.kafka.user_topics import add_fitting, is_compacted, require_user_topic
from rmq_store.bridge.records.origin import sources_of_messages
from rmq_store.bridge.records.route import Route
from rmq_store.bridge.records.to_kafka import MAPPED_COLUMNS, KafkaRules, to_kafka
from rmq_store.broker.monitoring.dead_letter_rows import DeadLetterRows, Wanted
from rmq_store.broker.rules.failure import KAFKA_LETTER
from rmq_store.broker.store.store import Store
from rmq_store.errors import RecordRefusedError, UsageError
from rmq_store.format.properties import property_string
from rmq_store.format.text import names
from rmq_store.lazy.arrow_compute import pc
from rmq_store.lazy.dataclasses import dataclass

REDRIVEN: Final = "REDRIVEN"
ALREADY_REDRIVEN: Final = "ALREADY_REDRIVEN"
REFUSED: Final = "REFUSED"
OUTCOMES: Final = (REDRIVEN, ALREADY_REDRIVEN, REFUSED)

_COLUMNS: Final = (*MAPPED_COLUMNS, "queueId", "msgId", "originTopic", "originQueueId", "redriven")
# The id of the other side, which no mark keeps: marks are taken off again.
_THIS_SIDE: Final = "redrive"
_NO_PARTITION: Final = -1

Int64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass
class RedriveTotals:
    """Results of a redrive, or of a plan: counts by outcome, by target topic, and by reason of refusal."""

    outcomes: Counter[str] = field(default_factory=Counter)
    topics: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def count(self, outcome: str, count: int) -> None:
        """Count letters."""
        if count:
            self.outcomes[outcome] += count

    def refuse(self, count: int, reason: str) -> None:
        """Count letters that are refused."""
        self.count(REFUSED, count)
        if count:
            self.reasons[reason] += count


class KafkaRedrive:
    """Moves letters of `group` of a store that is open for writing back to Kafka. Not safe for threads.

    `topics`: Kafka topics that may get letters; empty: any, which only a plan accepts. `to_topic`: the topic for
    letters of unknown origin.

    Raises (when constructed):
        UsageError: the group has no dead letters; a topic does not exist, or is internal to Kafka or to a mirror.
    """

    def __init__(
        self,
        store: Store,
        group: str,
        administration: KafkaAdministration,
        reader: KafkaReader,
        *,
        topics: Collection[str] = (),
        to_topic: str | None = None,
        wanted: Wanted | None = None,
    ) -> None:
        self._store = store
        self._group = group
        self._rows = DeadLetterRows(store, group, wanted)
        self._cluster_id = administration.cluster_id()
        self._known: Mapping[str, KafkaTopic] = administration.topics()
        self._chosen = {*topics, *([] if to_topic is None else [to_topic])}
        for topic in sorted(self._chosen):
            require_user_topic(topic, self._known, "no letter is sent to it")
        self._to_topic = to_topic
        self._is_compacted = functools.cache(functools.partial(is_compacted, administration))
        self._is_open = False
        self.redriven = RedrivenTopic(administration, reader, group)

    def plan(self, limit: int | None = None) -> RedriveTotals:
        """The plan of `run`; writes nothing. Raises as `run`."""
        self.redriven.read()
        return self._each(None, limit, None, time.sleep)

    def run(
        self,
        writer: KafkaWriter,
        limit: int | None = None,
        *,
        rate_per_second: float | None = None,
        progress: Callable[[int, int], None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> RedriveTotals:
        """Move at most `limit` letters; those that were moved before do not count. `writer` has the transactional id
        `redriven_topic.transactional_id_of(group)`. Letters that are counted as redriven are committed in Kafka, and
        recorded in the store.

        Raises:
            MirrorConflictError: another process moves letters of this group; it goes on, this one has ended.
            KafkaUnavailableError, KafkaRefusedError: call it again; no letter is moved twice.
            CorruptionError: a record of the store is damaged.
        """
        if not self._chosen:
            raise UsageError("name the topics of Kafka that letters may go to: a header alone must not choose them")
        self.redriven.make()
        writer.begin()  # whatever a killed process left is settled behind this
        self._is_open = True
        self.redriven.read()
        return self._each(writer, limit, rate_per_second, sleep, progress)

    def _each(
        self,
        writer: KafkaWriter | None,
        limit: int | None,
        rate_per_second: float | None,
        sleep: Callable[[float], None],
        progress: Callable[[int, int], None] | None = None,
    ) -> RedriveTotals:
        totals = RedriveTotals()
        moved_before = moved_bytes = 0
        for chunk in self._chunks(rate_per_second):
            left = None if limit is None else limit - totals.outcomes[REDRIVEN]
            if left == 0:
                break
            moving = self._judge(chunk, totals, notes=writer is not None)
            if left is not None:
                moving = moving.slice(0, left)
            if moving.num_rows and rate_per_second is not None and totals.outcomes[REDRIVEN] > moved_before:
                sleep((totals.outcomes[REDRIVEN] - moved_before) / rate_per_second)
                moved_before = totals.outcomes[REDRIVEN]
            moved_bytes += self._send_all(writer, moving, totals)
            if progress is not None:
                progress(totals.outcomes[REDRIVEN], moved_bytes)
        return totals

    def _send_all(self, writer: KafkaWriter | None, moving: pa.RecordBatch, totals: RedriveTotals) -> int:
        """Send letters in one transaction; in several ones if Kafka refuses some. Returns the bytes of their bodies."""
        if not moving.num_rows:
            return 0
        try:
            sent, refused = self._send(writer, moving)
        except RecordRefusedError as error:
            assert writer is not None
            writer.reset()
            self._is_open = False
            if moving.num_rows == 1:
                totals.refuse(1, f"Kafka refuses it: {error.reason}")
                return 0
            first = self._suspects(moving, error)
            if first.all() or not first.any():
                first = np.arange(moving.num_rows) < moving.num_rows // 2
            parts = [moving.filter(pa.array(~first)), moving.filter(pa.array(first))]
            return sum(self._send_all(writer, part, totals) for part in parts)
        for reason, count in refused.items():
            totals.refuse(count, reason)
        totals.count(REDRIVEN, sent.num_rows)
        totals.topics.update(sent.column("goal").to_pylist())
        return int(sent.column("body").nbytes)

    @staticmethod
    def _suspects(moving: pa.RecordBatch, error: RecordRefusedError) -> Mask:
        """The letters of a transaction that Kafka names, some of them perhaps good."""
        topic, partition = error.partition
        mask = pc.and_(pc.equal(moving.column("goal"), topic), pc.equal(moving.column("goalPartition"), partition))
        suspects = np.zeros(moving.num_rows, np.bool_)
        rows = np.flatnonzero(_mask(mask))
        suspects[rows[[row for row in error.rows if row < len(rows)]]] = True
        return suspects

    def _chunks(self, rate_per_second: float | None) -> Iterator[pa.RecordBatch]:
        size = None if rate_per_second is None else max(int(rate_per_second), 1)
        for batch in self._rows.batches(_COLUMNS):
            for first in range(0, batch.num_rows, size or batch.num_rows):
                yield batch.slice(first, size)

    def _judge(self, rows: pa.RecordBatch, totals: RedriveTotals, *, notes: bool) -> pa.RecordBatch:
        """The letters that go, with the columns `goal` and `goalPartition`; the others are counted."""
        count = rows.num_rows
        unique_keys = pc.map_lookup(rows.column("properties"), pa.scalar(property_string.UNIQUE_KEY), "first")
        rows = rows.append_column("uniqueKey", unique_keys)
        is_letter = pc.is_valid(pc.map_lookup(rows.column("properties"), pa.scalar(KAFKA_LETTER), "first"))
        sources = sources_of_messages(rows)
        stays = np.zeros(count, np.bool_)

        def refuse(mask: Mask, reason: str) -> None:
            new = mask & ~stays
            stays[new] = True
            totals.refuse(int(new.sum()), reason)

        is_known = _mask(rows.column("redriven"))
        went = _mask(self.redriven.has(unique_keys)) & _mask(pc.is_valid(unique_keys))
        if notes and (went & ~is_known).any():
            self._record_moved(rows.filter(pa.array(went & ~is_known)))
        again = np.ones(count, np.bool_)  # restored from an archive, perhaps: the letter is there twice
        again[np.unique(unique_keys.fill_null("").to_numpy(zero_copy_only=False), return_index=True)[1]] = False
        stays |= is_known | went | (again & _mask(pc.is_valid(unique_keys)))
        totals.count(ALREADY_REDRIVEN, int(stays.sum()))
        refuse(~_mask(is_letter), "it did not come from a topic of dead letters: see `rmq dlq redrive`")
        refuse(~sources.is_mirrored, "it is not as `rmq mirror dead-letters` stored it: it was changed, or copied")
        other = pc.fill_null(pc.not_equal(sources.clusters, self._cluster_id), False)
        refuse(_mask(other), "it came from another Kafka cluster")
        goals = rows.column("originTopic")
        if self._to_topic is not None:
            goals = goals.fill_null(self._to_topic)
        refuse(_mask(goals.is_null()), "its Kafka topic is not known: name one with --to-topic")
        internal = _mask(pc.starts_with(goals, "__").fill_null(False))
        refuse(internal, "it names an internal topic of Kafka or of a mirror")
        refuse(~_mask(pc.is_in(goals, pa.array(list(self._known), pa.string()))), "Kafka has no such topic any more")
        if self._chosen:
            refuse(~_mask(pc.is_in(goals, pa.array(sorted(self._chosen)))), "its topic is not among those named")
        partitions = self._partitions(goals, rows.column("originQueueId"), sources.partitions)
        rows = rows.append_column("goal", goals).append_column("goalPartition", pa.array(partitions))
        return rows.filter(pa.array(~stays))

    def _partitions(self, goals: pa.StringArray, origins: pa.Int32Array, letter_partitions: Int64) -> Int64:
        """The partition in which the record failed, if it exists; else the letter's, modulo their number."""
        coded = goals.dictionary_encode()
        counts = [
            self._known[topic].partition_count if topic in self._known else 1 for topic in coded.dictionary.to_pylist()
        ]
        codes = coded.indices.fill_null(0).to_numpy(zero_copy_only=False)
        limits = np.array([*counts, 1], np.int64)[codes] if counts else np.ones(len(goals), np.int64)
        own: Int64 = origins.fill_null(_NO_PARTITION).to_numpy(zero_copy_only=False).astype(np.int64)
        fallback = np.maximum(letter_partitions, 0) % limits
        return np.where((own >= 0) & (own < limits), own, fallback)

    def _send(self, writer: KafkaWriter | None, moving: pa.RecordBatch) -> tuple[pa.RecordBatch, Mapping[str, int]]:
        """Produce and record letters in one transaction. Returns the sent letters, and counts of others by reason."""
        now_ms = self._store.clock()
        refused: Counter[str] = Counter()
        went: list[pa.RecordBatch] = []
        if writer is not None and not self._is_open:
            writer.begin()
            self._is_open = True
        for (queue_id, topic, partition), rows in _parted(moving):
            route = Route(_THIS_SIDE, names.dlq_topic(self._group), queue_id, self._cluster_id, topic, partition)
            rules = KafkaRules(now_ms, "mirror", compacted=self._is_compacted(topic))
            mapped = to_kafka(rows.drop_columns(["goal", "goalPartition"]), route, rules)
            refused["it came from that topic"] += mapped.dropped_loops
            refused[f"Kafka's topic {topic!r} would not take it"] += mapped.letters.num_rows
            records = without_marks(mapped.rows)
            if writer is not None:
                records, large = add_fitting(writer, Partition(topic, partition), records)
                refused[f"larger than a record of Kafka's topic {topic!r} may be"] += large.num_rows
            went.append(rows.take(_places(records, rows)))
        sent = pa.concat_batches(went)
        if writer is not None and sent.num_rows:
            for queue_id, rows in _by_queue(sent):
                keys, offsets = rows.column("uniqueKey"), rows.column("queueOffset").to_numpy()
                writer.add(self.redriven.partition, self.redriven.records(keys, queue_id, offsets, now_ms))
            writer.commit()
            self._is_open = False
            self.redriven.add(sent.column("uniqueKey"))
            self._record_moved(sent)
        return sent, refused

    def _record_moved(self, rows: pa.RecordBatch) -> None:
        for queue_id, moved in _by_queue(rows):
            self._store.dead_letters.record_moved(self._group, queue_id, moved.column("queueOffset").to_pylist())


def _parted(rows: pa.RecordBatch) -> Iterator[tuple[tuple[int, str, int], pa.RecordBatch]]:
    """The rows of each queue that go to one partition, in their order."""
    names_of = ("queueId", "goal", "goalPartition")
    keys = pa.Table.from_batches([rows]).select(list(names_of)).group_by(list(names_of)).aggregate([]).to_pylist()
    for key in sorted(keys, key=lambda found: tuple(found[name] for name in names_of)):
        mask = pc.equal(rows.column("queueId"), key["queueId"])
        mask = pc.and_(mask, pc.equal(rows.column("goal"), key["goal"]))
        mask = pc.and_(mask, pc.equal(rows.column("goalPartition"), key["goalPartition"]))
        yield (key["queueId"], key["goal"], key["goalPartition"]), rows.filter(mask)


def _by_queue(rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    for queue_id in sorted(set(rows.column("queueId").unique().to_pylist())):
        yield queue_id, rows.filter(pc.equal(rows.column("queueId"), queue_id))


def _places(records: pa.RecordBatch, rows: pa.RecordBatch) -> pa.Array:
    """The numbers of the rows, ascending in `queueOffset`, from which the records were made."""
    return pa.array(np.searchsorted(rows.column("queueOffset").to_numpy(), records.column("offset").to_numpy()))


def _mask(values: pa.Array) -> Mask:
    found: Mask = values.fill_null(False).to_numpy(zero_copy_only=False).astype(np.bool_)
    return found
