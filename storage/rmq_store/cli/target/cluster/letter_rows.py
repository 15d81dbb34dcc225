"""The dead letters of a group at the brokers of a cluster as filtered rows (data plane).

Queues are read one after the other, in steps; one step is in memory at a time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa

from rmq_store.broker.dlq.archive_schema import DEAD_LETTER_SCHEMA
from rmq_store.broker.dlq.redrive_ledger import OffsetRanges
from rmq_store.broker.monitoring.dead_letter_rows import Wanted, chosen_rows, columns_to_read
from rmq_store.cli.target.answers import Answers
from rmq_store.cli.target.cluster.progress import known_groups
from rmq_store.cli.target.cluster.queues import queues_away, topic_ends
from rmq_store.cli.target.cluster_target import ClusterTarget
from rmq_store.cli.target.rows import Total, together, unknown_at
from rmq_store.client.cluster_retry.redrive import ClusterDeadLetters
from rmq_store.errors import OffsetOutOfRangeError, UsageError, did_you_mean
from rmq_store.format.batches.answer_batches import AnswerRequest, answer_batches
from rmq_store.format.text import names
from rmq_store.protocol.errors import MQBrokerError, RemotingError, SlaveBehindError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.results import QueueRange
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.offsets import search_offset
from rmq_store.remoting.cluster.pulling import read_range

_STEP_ROWS: Final = 4_096
_STEP_BYTES: Final = 8 << 20
_PLACE: Final = ("storeTimestamp", "brokerName", "queueId", "queueOffset")


class ClusterLetterRows:
    """The present dead letters of `group` at the brokers that answer; `answers` remembers those that do not.

    Raises (when constructed):
        UsageError: a bad name, or an unknown group without dead letters.
        RemotingError, MQBrokerError: no broker answers, or one that may know the group does not.
    """

    def __init__(
        self, cluster: Cluster, target: ClusterTarget, answers: Answers, group: str, wanted: Wanted | None = None
    ) -> None:
        names.validate_group(group)
        self.topic = names.dlq_topic(group)
        self.group = group
        self._cluster = cluster
        self._target = target
        self._answers = answers
        self._wanted = wanted or Wanted()
        if cluster.route(self.topic) is None:
            self._require_group()
        self._ranges: dict[MessageQueue, QueueRange] = dict(sorted(topic_ends(cluster, answers, [self.topic]).items()))
        self._unknown = queues_away(cluster, answers, [self.topic], self._ranges)
        answers.require_any()
        self._letters = ClusterDeadLetters(cluster, pull_group=target.pull_group)
        self._moved: dict[str, Mapping[int, OffsetRanges] | None] = {}

    def _require_group(self) -> None:
        """A group without a topic of dead letters must be known."""
        if self.group in known_groups(self._cluster, self._answers):
            return
        for error in self._answers.missing.values():
            raise error
        prefix = names.DLQ_PREFIX
        dead = [name.removeprefix(prefix) for name in self._cluster.topics() if name.startswith(prefix)]
        raise UsageError(f"group {self.group!r} has no dead letters{did_you_mean(self.group, dead)}")

    def total(self) -> Total:
        """See `DeadLetters`."""
        present = [Total(one.max_offset - one.min_offset) for one in self._ranges.values()]
        return together([*present, *(unknown_at(queue.broker_name) for queue in self._unknown)])

    def redriven_count(self) -> int | None:
        """The number of present dead letters that were redriven; None: a broker does not tell its records."""
        if self._unknown:
            return None
        found = 0
        for queue, limits in self._ranges.items():
            ranges = self._redriven(queue)
            if ranges is None:
                return None
            found += ranges.count_in(*limits)
        return found

    def archived_count(self) -> int | None:
        """None: brokers have no archive."""
        return None

    def batches(self, columns: Sequence[str] = tuple(DEAD_LETTER_SCHEMA.names)) -> Iterator[pa.RecordBatch]:
        """Yield the selected dead letters, in the order of the queues; DEAD_LETTER_SCHEMA restricted to `columns`.
        `redriven` is null where a broker does not tell its records. Raises as `read_range`.
        """
        for queue in self._ranges:
            yield from self._step(queue, *self._range(queue), columns)

    def newest(self, count: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The last `count` selected dead letters by their store times, the newest first, one row at a time. Raises as
        `batches`.
        """
        found: list[tuple[int, MessageQueue, int]] = []
        for queue in self._ranges:
            first, stop = self._range(queue)
            missing = count
            while missing and stop > first:
                start = max(first, stop - _STEP_ROWS)
                rows = [
                    (time_us, queue, queue_offset)
                    for batch in self._step(queue, start, stop, ("storeTimestamp", "queueOffset"))
                    for time_us, queue_offset in zip(
                        batch.column(0).cast(pa.int64()).to_pylist(), batch.column(1).to_pylist(), strict=True
                    )
                ]
                found += rows[-missing:]
                missing -= len(rows[-missing:])
                stop = start
            found = heapq.nlargest(count, found)
        for _, queue, queue_offset in found:
            yield from self._step(queue, queue_offset, queue_offset + 1, columns)

    def _range(self, queue: MessageQueue) -> tuple[int, int]:
        first, last = self._ranges[queue]
        if self._wanted.since_ms is not None and first < last:
            first = max(first, search_offset(self._cluster, queue, self._wanted.since_ms))
        return first, last

    def _step(self, queue: MessageQueue, start: int, end: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        asked = AnswerRequest(
            queue.broker_name,
            self._cluster.wire_topic(queue.topic),
            queue.queue_id,
            list(dict.fromkeys((*columns_to_read(columns), *_PLACE))),
            shown_topic=queue.topic,
        )
        while start < end:
            try:
                pulled = read_range(self._cluster, queue, start, end, self._target.filter())
                for batch in answer_batches(pulled, asked, batch_rows=_STEP_ROWS, batch_bytes=_STEP_BYTES):
                    moved = self._redriven(queue) if "redriven" in columns else None
                    rows = chosen_rows(batch, columns, self._wanted, moved)
                    start = batch.column("queueOffset")[-1].as_py() + 1
                    if rows.num_rows:
                        yield rows
                return
            except OffsetOutOfRangeError as error:  # retention took some meanwhile
                if error.minimum <= start:
                    raise
                start = error.minimum

    def _redriven(self, queue: MessageQueue) -> OffsetRanges | None:
        name = queue.broker_name
        if name not in self._moved:
            try:
                self._moved[name] = self._letters.redriven(self.group, name)
            except (RemotingError, MQBrokerError, SlaveBehindError) as error:
                self._answers.failed(name, error)
                self._moved[name] = None
        moved = self._moved[name]
        return None if moved is None else moved.get(queue.queue_id, OffsetRanges.none())
