"""One topic of a store, or of a broker, into one topic of Kafka, a window of all its queues in each transaction."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from rmq_store import real_time
from rmq_store.bridge.kafka.client import KafkaWriter, Partition
from rmq_store.bridge.mirror.kafka_side import CopyRules, KafkaSide
from rmq_store.bridge.mirror.kafka_targets import (
    TargetRules,
    letter_topic,
    prepare_letters,
    prepare_target,
    record_rules,
)
from rmq_store.bridge.mirror.refused_records import RefusedRecords
from rmq_store.bridge.mirror.report import MirrorReport, PartitionReport
from rmq_store.bridge.mirror.topic_start import TopicStart
from rmq_store.bridge.mirror.window_records import MappedWindow, map_window
from rmq_store.bridge.positions.kafka_positions import Mark, QueuePosition, TopicPosition, transactional_id
from rmq_store.bridge.positions.store_windows import QueueWindow, mark_below, read_window
from rmq_store.bridge.records.to_kafka import KafkaRules
from rmq_store.bridge.records.unmappable_record import too_large_letter
from rmq_store.bridge.source.message_source import MessageSource
from rmq_store.errors import (
    MirrorConflictError,
    MirrorSourceError,
    MirrorTargetError,
    OffsetOutOfRangeError,
    RecordRefusedError,
    RecordTooLargeError,
    StoreError,
    UsageError,
)
from rmq_store.protocol.results import QueueRange

# Positions are read behind open transactions of others, which last a minute at most unless somebody wants otherwise.
_POSITIONS_TIMEOUT_MS: Final = 90_000
# A writer that has just taken the id says so within this time.
_CLAIM_WAIT_S: Final = 5.0
_CLAIM_POLL_S: Final = 0.5
_SETTINGS_AGE_S: Final = 30.0

_log = logging.getLogger(__name__)


class TopicIntoKafka:
    """Copies `topic` into `target`. `is_new`: the topic did not exist when the mirror began, so all of it is copied.

    Call `open`, then `copy` repeatedly. After a `KafkaUnavailableError` of either, call it again; all other errors end
    the topic's mirror.
    """

    def __init__(
        self, store: MessageSource, side: KafkaSide, topic: str, target: str, rules: CopyRules, targets: TargetRules,
        report: MirrorReport, *, is_new: bool, is_writable: bool = True, most_rows: int | None = None,
    ) -> None:  # fmt: skip
        self.topic = topic
        self.target = target
        self._store, self._side, self._rules, self._targets = store, side, rules, targets
        self._is_new, self._is_writable = is_new, is_writable
        self._report = report
        self._most_rows = rules.window_rows if most_rows is None else min(rules.window_rows, most_rows)
        self._writer: KafkaWriter | None = None
        self._is_claimed = False
        self._must_settle = False
        self._queue_count = 0
        self._target_id = ""
        self._positions: dict[int, QueuePosition] = {}
        self._last_ranges: Mapping[int, QueueRange] = {}
        self._settings: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
        self._settings_until_s = 0.0
        self._refused = RefusedRecords(target, letter_topic(side.mirror))

    # -- positions --------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Take the topic over from any other mirror of this name, and write the start of its queues.

        Raises:
            MirrorSourceError, MirrorTargetError: a side was replaced.
            UsageError, KafkaRefusedError: the target cannot be written.
        """
        side = self._side
        self._prepare()
        if self._writer is None:
            self._writer = side.writers.writer(transactional_id(side.mirror, side.rmq_cluster_id, self.topic))
        if self._must_settle:
            self._writer.reset(takes_over=True)
            self._must_settle = False
        self._must_settle = True
        self._writer.begin()
        side.positions.refresh(_POSITIONS_TIMEOUT_MS)
        start = TopicStart(
            self._store, side, self._rules, self.topic, self.target, self._target_id, self._queue_count, self._is_new
        )
        start.check_target()
        starts = start.new_positions()
        self._positions = {**side.positions.queues(self.topic), **starts}
        start.check_ends(self._positions)
        moved = start.moved_positions(self._positions)
        self._positions |= moved
        self._writer.add(side.positions.partition, self._rows({**starts, **moved}, claims=True))
        self._writer.commit()
        self._must_settle, self._is_claimed = False, True

    def _prepare(self) -> None:
        config = self._store.topic(self.topic)
        ids = self._store.queue_ranges(self.topic)
        self._queue_count = max(config.read_queue_nums, config.write_queue_nums, *(number + 1 for number in ids), 1)
        made = prepare_target(self._side.administration, self.topic, self.target, self._queue_count, self._targets)
        self._target_id = str(made.topic_id)
        prepare_letters(self._side.administration, self._side.mirror)
        self._record_rules()

    def _rows(self, queues: Mapping[int, QueuePosition], *, claims: bool) -> pa.RecordBatch:
        side = self._side
        claim = TopicPosition(side.instance, self.target, self._target_id, self._queue_count) if claims else None
        return side.positions.rows(self.topic, queues, claim)

    # -- after a failure --------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """End the transaction that failed, and continue at the committed position. Raises MirrorConflictError."""
        if not self._is_claimed:
            self.open()
            return
        assert self._writer is not None
        self._refuse_other_owner()
        try:
            self._writer.reset()
        except MirrorConflictError:
            # Another mirror, or only a transaction that took too long for a broker that cannot tell.
            stop_s = real_time.monotonic() + _CLAIM_WAIT_S
            while real_time.monotonic() < stop_s:
                time.sleep(_CLAIM_POLL_S)
                self._refuse_other_owner()
            self._writer.reset(takes_over=True)
        self._side.positions.refresh(_POSITIONS_TIMEOUT_MS)
        self._refuse_other_owner()
        self._positions = dict(self._side.positions.queues(self.topic))
        self._must_settle = False

    def _refuse_other_owner(self) -> None:
        self._side.positions.glance()
        known = self._side.positions.topic(self.topic)
        if known is not None and known.owner != self._side.instance:
            raise MirrorConflictError(
                f"Another mirror of the name {self._side.mirror!r} copies topic {self.topic!r} now. This one ends; "
                "its open transaction was aborted. Run only one mirror with a name."
            )

    # -- copying ----------------------------------------------------------------------------------------------------

    @property
    def is_unsettled(self) -> bool:
        """True if the last transaction failed, so that the next `copy` has work."""
        return self._must_settle

    def tell(self, failure: str = "") -> None:
        """Write the positions of the queues into the report; `failure`: the reason why the topic has ended."""
        ranges = self._told_ranges()
        if failure and not ranges:
            ranges = {0: QueueRange(0, 0)}
        for queue_id, (_, end) in ranges.items():
            position = self._positions.get(queue_id)
            next_offset = 0 if position is None else position.next_offset
            self._report.partitions[Partition(self.topic, queue_id)] = PartitionReport(next_offset, end, failure)

    def copy(self) -> int:
        """Copy one window, if there are messages; returns their number.

        Raises:
            KafkaUnavailableError: try again later.
            MirrorConflictError: another mirror of the name has begun.
            MirrorSourceError: messages were deleted before they were copied.
            UsageError, KafkaRefusedError: the topic cannot be mirrored with these options.
        """
        if self._writer is None or not self._is_claimed:
            self.open()
        if self._must_settle:
            self._settle()
        self._grow()
        rules = self._record_rules()
        ranges = self._ranges()  # once: what retention takes between two looks would be lost, and not counted
        lost = self._skip_gone(ranges)
        windows = self._windows(ranges)
        if not windows and not lost:
            return 0
        mapped = [self._mapped(window, rules) for window in windows]
        if self._is_writable:
            self._store.flush()
        self._must_settle = True
        try:
            self._write(mapped, lost)
        except RecordRefusedError as error:
            self._refused.refuse(error)
            return 0
        self._must_settle = False
        for one in mapped:
            self._refused.committed(one.window.queue_id)
        return sum(window.stop - window.start for window in windows)

    def close(self) -> None:
        """Abort the open transaction."""
        if self._writer is not None:
            self._writer.close()

    def _record_rules(self) -> KafkaRules:
        if real_time.monotonic() >= self._settings_until_s:
            administration = self._side.administration
            now = administration.topics([self.target]).get(self.target)
            if now is None or str(now.topic_id) != self._target_id:
                raise MirrorTargetError(f"Topic {self.target!r} of Kafka was deleted while it was mirrored to.")
            letters = letter_topic(self._side.mirror)
            self._settings = administration.topic_settings(self.target), administration.topic_settings(letters)
            self._settings_until_s = real_time.monotonic() + _SETTINGS_AGE_S
        return record_rules(self.target, *self._settings, self._targets)

    def _grow(self) -> None:
        ids = self._store.queue_ranges(self.topic)
        if max(ids, default=0) >= self._queue_count:
            self.open()

    def _skip_gone(self, ranges: Mapping[int, QueueRange]) -> dict[int, QueuePosition]:
        """New positions of queues whose next messages are gone: after the gone messages."""
        found = {}
        for queue_id, (first, _) in ranges.items():
            position = self._positions[queue_id]
            gone = first - position.next_offset
            if gone <= 0:
                continue
            if self._rules.on_data_loss == "fail":
                raise MirrorSourceError(
                    f"Messages {position.next_offset} to {first - 1} of queue {queue_id} of {self.topic!r} are gone: "
                    "retention deleted them before they were mirrored. --on-data-loss count continues after them."
                )
            mark = Mark(first, target_end=position.mark.target_end)
            found[queue_id] = position.moved(mark, lost_count=gone, lost_end=first)
        return found

    def _ranges(self) -> dict[int, QueueRange]:
        """The ranges of queues that have a position. A new queue waits for the next look at the topics."""
        ranges = self._store.queue_ranges(self.topic)
        return {queue_id: ranges[queue_id] for queue_id in ranges if queue_id in self._positions}

    def _told_ranges(self) -> Mapping[int, QueueRange]:
        """As `_ranges`; those of before if the source does not tell them: this ends nothing, `copy` finds it, too."""
        if self._positions:
            try:
                self._last_ranges = self._ranges()
            except StoreError as error:
                _log.info("the report of topic %s shows the ends of before: %s", self.topic, error)
        return self._last_ranges

    def _windows(self, ranges: Mapping[int, QueueRange]) -> list[QueueWindow]:
        nexts = {queue_id: max(self._positions[queue_id].next_offset, first) for queue_id, (first, _) in ranges.items()}
        behind = [queue_id for queue_id, (_, end) in ranges.items() if nexts[queue_id] < end]
        found = []
        for queue_id in behind:
            rows = self._refused.rows_max(queue_id, -(-self._most_rows // len(behind)))
            most_bytes = self._rules.window_bytes // len(behind)
            with contextlib.suppress(OffsetOutOfRangeError):  # retention takes them now: the next look says so
                window = read_window(self._store, self.topic, queue_id, nexts[queue_id], rows, most_bytes)
                if window.stop > window.start:
                    found.append(window)
        return found

    def _mapped(self, window: QueueWindow, rules: KafkaRules) -> MappedWindow:
        limit = self._refused.letter_bytes_max(rules)
        route = self._side.route(self.topic, self.target, window.queue_id)
        mapped = map_window(window, route, rules, self._refused.reasons(window.queue_id), limit)
        if mapped.older and self._targets.old_timestamps == "refuse":
            raise UsageError(
                f"{mapped.older} messages of queue {window.queue_id} of {self.topic!r}, from offset {window.start} on, "
                f"are older than retention.ms of topic {self.target!r}: Kafka would delete them at once. Give it a "
                "longer one, or say --old-timestamps now (they get the time of the mirror) or keep."
            )
        return mapped

    def _write(self, windows: list[MappedWindow], lost: Mapping[int, QueuePosition]) -> None:
        assert self._writer is not None
        self._refused.begin()
        self._writer.begin()
        letters: list[pa.RecordBatch] = []
        for mapped in windows:
            for rows in mapped.parts:
                letters += self._add(Partition(self.target, mapped.window.queue_id), rows)
            letters += mapped.letters
        for rows in letters:
            self._writer.add(Partition(letter_topic(self._side.mirror), 0), rows)
        ends = self._writer.flush()
        self._check_written(ends)
        positions = dict(lost)
        for mapped in windows:
            queue_id = mapped.window.queue_id
            before = positions.get(queue_id, self._positions[queue_id])
            end = ends.get(Partition(self.target, queue_id), before.mark.target_end)
            mark = mark_below(self._store, self.topic, queue_id, mapped.window.stop, end)
            positions[queue_id] = before.moved(mark)
        self._writer.add(self._side.positions.partition, self._rows(positions, claims=False))
        self._writer.commit()
        self._count(windows, letters, lost)
        self._positions |= positions

    def _check_written(self, ends: Mapping[Partition, int]) -> None:
        for queue_id, position in self._positions.items():
            end = ends.get(Partition(self.target, queue_id))
            if end is not None and end <= position.mark.target_end:
                raise MirrorTargetError(
                    f"Partition {queue_id} of topic {self.target!r} in Kafka ends at {end} now, and ended at "
                    f"{position.mark.target_end} before: it has lost records, or was made again. Nothing was committed."
                )

    def _count(
        self, windows: list[MappedWindow], letters: list[pa.RecordBatch], lost: Mapping[int, QueuePosition]
    ) -> None:
        report = self._report
        report.add(
            self._refused.added_count,
            sum(mapped.dropped_loops for mapped in windows),
            sum(rows.num_rows for rows in letters),
        )
        report.lost += sum(one.lost_count - self._positions[at].lost_count for at, one in lost.items())
        report.damaged += sum(len(mapped.window.damaged) for mapped in windows)
        report.older_than_retention += sum(mapped.older for mapped in windows)

    def _add(self, partition: Partition, rows: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Add rows to the transaction; returns dead letters for those that are too large."""
        assert self._writer is not None
        letters = []
        while rows.num_rows:
            try:
                self._writer.add(partition, rows)
            except RecordTooLargeError as error:
                if error.row:
                    self._writer.add(partition, rows.slice(0, error.row))
                    self._refused.add(partition, rows.slice(0, error.row))
                limit = self._refused.letter_bytes_max(self._record_rules())
                route = self._side.route(self.topic, self.target, partition.partition)
                letters.append(too_large_letter(rows.slice(error.row, 1), str(error), route, limit))
                rows = rows.slice(error.row + 1)
            else:
                self._refused.add(partition, rows)
                break
        return letters
