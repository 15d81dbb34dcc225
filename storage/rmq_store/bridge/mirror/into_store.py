"""The mirror from Kafka into a store: read, map, append with the position, again.

Per partition, the rows and the position after them are one append; nothing else is durable. So after a crash at any
point, the next run reads the positions and continues after the last message. A partition that fails stops alone; the
others go on, and the report has the error. While the store is full or locked, or Kafka does not answer, the mirror
waits.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import pyarrow as pa

from rmq_store import real_time
from rmq_store.bridge.kafka.client import KafkaAdministration, KafkaReader, KafkaTopic, Partition
from rmq_store.bridge.mirror.options import IntoStoreOptions
from rmq_store.bridge.mirror.pace import REPORT_S, RETRY_S, Pace, Stopped, Waits
from rmq_store.bridge.mirror.report import MirrorReport, PartitionReport
from rmq_store.bridge.mirror.source_topics import SourcePartition, SourceTopics
from rmq_store.bridge.mirror.store_units import batch_letter, letter_bytes_max, position_rows, rmq_rules, unit_ends
from rmq_store.bridge.record_batches.schema import Fetched
from rmq_store.bridge.records.to_rmq import RmqRules, to_rmq
from rmq_store.bridge.records.unmappable_record import letter_topic
from rmq_store.broker.store.store import Store
from rmq_store.errors import (
    CorruptBatchError,
    KafkaOffsetError,
    KafkaRefusedError,
    KafkaUnavailableError,
    MirrorLettersError,
    MirrorSourceError,
    StoreFullError,
    StoreLockedError,
)

UNIT_ROWS: Final = 65_536
"""Number of records of one append, at most."""

POLL_MS: Final = 500
REFRESH_S: Final = 10.0
"""Between two refreshes of the topics, in seconds."""

EMPTY_UNIT_S: Final = 10.0
"""Between two units of a partition that moved without records: each costs two records of the store."""

# A position beyond the stable end is a source that was truncated, or an end that lags after a change of the leader.
_BEYOND_S: Final = 5.0


class IntoStore:
    """A mirror. `wait(seconds)` returns True at once if the mirror is to stop. `patience_s`: how long Kafka may be
    unavailable; None: for ever. The caller closes store, reader and administration.

    Raises (when constructed):
        UsageError: the options cannot be carried out.
        MirrorSourceError: a source was replaced.
        MirrorConflictError: another mirror of this name is running.
        KafkaUnavailableError, KafkaRefusedError, StoreError.
    """

    def __init__(
        self,
        store: Store,
        reader: KafkaReader,
        administration: KafkaAdministration,
        options: IntoStoreOptions,
        *,
        wait: Callable[[float], bool],
        on_report: Callable[[MirrorReport], None] = lambda report: None,
        patience_s: float | None = None,
    ) -> None:
        self._store = store
        self._reader = reader
        self._administration = administration
        self._options = options
        self._on_report = on_report
        self._pace = Pace(options.rate)
        self._topics = SourceTopics(store, reader, administration, options, administration.cluster_id())
        self._refreshed_s = self._lag_s = 0.0
        self._goal: dict[Partition, int] | None = None
        self._ask_until_s = 0.0
        self.report = MirrorReport(options.mirror, "kafka-to-rmq")
        self._waits = Waits(wait, self._pace, options.windows, self.report, on_report, patience_s)
        self._letters_are_made = False
        self._refresh_topics()

    def run(self, *, until_caught_up: bool = False) -> MirrorReport:
        """Copy until somebody stops it; with `until_caught_up`, up to the present ends of the partitions. Records that
        the report counts as copied are in the store; they are on disk as after `Store.append`.

        Raises:
            MirrorConflictError: another mirror of this name has written; this one has written nothing since.
            MirrorSourceError: every partition has stopped.
            MirrorLettersError: more dead letters than allowed.
            KafkaUnavailableError: Kafka was unavailable longer than `patience_s`.
            KafkaRefusedError, StoreFailedError.
        """
        try:
            if until_caught_up:
                self._set_goal()
            while not self._is_done():
                self._run_round()
        except Stopped:
            pass
        else:
            self._measure_lag()
        with contextlib.suppress(Stopped):  # the store is full: the next run passes the same offsets
            self._settle(everything=True)
        self.report.state = "stopped"
        self._on_report(self.report)
        return self.report

    def _set_goal(self) -> None:
        active = self._topics.active
        self._goal = dict(self._waits.answered(lambda: self._reader.stable_ends(list(active))))
        is_beyond = any(active[place].read_offset > end for place, end in self._goal.items())
        self._ask_until_s = real_time.monotonic() + (_BEYOND_S if is_beyond else 0.0)

    def _is_done(self) -> bool:
        if self._goal is None or not self.report.last_poll_ms or real_time.monotonic() < self._ask_until_s:
            return False
        active = self._topics.active
        return all(place not in active or active[place].read_offset >= end for place, end in self._goal.items())

    def _run_round(self) -> None:
        self._waits.until_allowed()
        now_s = real_time.monotonic()
        if now_s - self._refreshed_s >= REFRESH_S:
            self._waits.answered(self._refresh_topics)
        fetched = self._polled()
        self.report.last_poll_ms = time.time_ns() // 1_000_000
        if fetched:
            self._copy(fetched)
        self._settle()
        if now_s - self._lag_s >= REPORT_S:
            self._measure_lag()
        self._update_report()
        if self._topics.stopped and not self._topics.active:
            place, reason = next(iter(self._topics.stopped.items()))
            raise MirrorSourceError(f"every partition has stopped; {place.topic}/{place.partition}: {reason}")

    def _refresh_topics(self) -> None:
        if self._topics.refresh():
            self._assign()
        self._refreshed_s = real_time.monotonic()

    def _assign(self) -> None:
        self._reader.assign({place: one.next for place, one in self._topics.active.items()})

    def _polled(self) -> Mapping[Partition, Fetched]:
        """The fetched records. A partition that cannot be read stops, or goes on if the options say so."""
        if not self._topics.active:
            self._waits.sleep(RETRY_S)
            return {}
        try:
            return self._waits.answered(lambda: self._reader.poll(POLL_MS))
        except KafkaOffsetError as error:
            for (topic, partition), offset in error.offsets.items():
                self._lose(Partition(topic, partition), offset)
        except MirrorSourceError as error:
            if not error.places:
                raise
            for topic, partition in error.places:
                self._topics.stop(Partition(topic, partition), str(error))
        except CorruptBatchError as error:
            if error.partition is None:
                raise
            self._pass_batch(Partition(*error.partition), error)
        except KafkaRefusedError as error:
            refused = [place for place in self._topics.active if place.topic in error.topics]
            if not refused:
                raise
            for place in refused:
                self._topics.stop(place, str(error))
        self._assign()
        return {}

    def _lose(self, place: Partition, offset: int) -> None:
        """Kafka has no such offset: retention deleted it, or it is beyond the end of a log that was longer before."""
        one = self._topics.active.get(place)
        if one is None:
            return
        start = self._waits.answered(lambda: self._reader.starts([place]))[place]
        if offset >= start:
            self._topics.stop(
                place,
                f"{place.topic}/{place.partition} has no offset {offset} any more, although it begins at {start}: it "
                "is shorter than it was (an unclean leader election?). The mirror does not begin again by itself",
            )
        elif self._options.on_data_loss == "fail":
            self._topics.stop(
                place,
                f"{place.topic}/{place.partition} begins at {start} now: offsets [{offset}, {start}) were deleted "
                "before they were copied. --on-data-loss count continues after them",
            )
        else:
            self._advance(one, [], start, -1, lost=(start - offset, start))
            one.read_offset, one.read_epoch = start, -1
            self.report.lost += start - offset

    def _pass_batch(self, place: Partition, error: CorruptBatchError) -> None:
        one = self._topics.active.get(place)
        if one is None:
            return
        if self._options.on_bad_batch == "fail" or error.next_offset is None:
            self._topics.stop(place, f"{error}. --on-bad-batch letter continues after it, if its end is known")
            return
        self._copy_rows(one, position_rows(max(error.offset, one.read_offset)), error.next_offset, -1, str(error))

    def _copy(self, fetched: Mapping[Partition, Fetched]) -> None:
        """Copy the fetched records. They are of the topic that has the name now, unless it was replaced since: so the
        id is checked after the fetch.
        """
        with_rows = sorted({place.topic for place, got in fetched.items() if got.rows.num_rows})
        found: Mapping[str, KafkaTopic] = (
            self._waits.answered(lambda: self._administration.topics(with_rows)) if with_rows else {}
        )
        replaced = [name for name in with_rows if not self._topics.check_id(found, name)]
        if replaced:
            self._assign()
        for place, got in fetched.items():
            one = self._topics.active.get(place)
            if one is None:
                continue
            if not got.rows.num_rows:
                one.read_offset, one.read_epoch = got.next_offset, got.leader_epoch
            else:
                self._copy_rows(one, got.rows, got.next_offset, got.leader_epoch)

    def _copy_rows(
        self, one: SourcePartition, rows: pa.RecordBatch, next_offset: int, epoch: int, broken: str = ""
    ) -> None:
        """Append rows, in units; with `broken`, a dead letter with this reason instead of them."""
        rules = self._rules()
        ends = list(unit_ends(rows, self._pace.unit_rows or UNIT_ROWS))
        start = 0
        for end in ends:
            part = rows.slice(start, end - start)
            is_last = end == rows.num_rows
            behind = next_offset if is_last else int(part.column("offset")[-1].as_py()) + 1
            if start:
                self._waits.until_allowed()
            mapped = to_rmq(part, one.route, rules) if not broken else batch_letter(part, one.route, rules, broken)
            if mapped.letters.num_rows:
                self._allow_letters(mapped.letters.num_rows)
            batches = [batch for batch in (mapped.rows, mapped.letters) if batch.num_rows]
            self._advance(one, batches, behind, epoch if is_last else -1)
            one.read_offset, one.read_epoch = behind, epoch if is_last else -1
            self.report.add(mapped.rows.num_rows, mapped.dropped_loops, mapped.letters.num_rows)
            self._pace.took(part.num_rows)
            start = end

    def _advance(
        self,
        one: SourcePartition,
        batches: list[pa.RecordBatch],
        next_offset: int,
        epoch: int,
        lost: tuple[int, int] = (0, 0),
    ) -> None:
        """Append a unit; while the store is full or locked, wait."""
        topic = self._topics.topics[one.place.topic]
        while True:
            try:
                one.position = self._topics.positions.advance(
                    topic.positions, one.place.partition, one.position, batches,
                    next_offset=next_offset, leader_epoch=epoch, lost=lost,
                )  # fmt: skip
                one.written_s = real_time.monotonic()
                return
            except (StoreFullError, StoreLockedError) as error:  # nothing was written
                state = f"waiting for the store: {error}"
            self._waits.retry(state)

    def _settle(self, *, everything: bool = False) -> None:
        """Write positions that moved without records: now and then, and all of them at the end."""
        now_s = real_time.monotonic()
        for one in self._topics.active.values():
            is_due = everything or now_s - one.written_s >= EMPTY_UNIT_S
            if is_due and one.read_offset > one.position.next_offset:
                self._advance(one, [], one.read_offset, one.read_epoch)

    def _allow_letters(self, count: int) -> None:
        if self._options.letters_max is not None and self.report.letters + count > self._options.letters_max:
            raise MirrorLettersError(
                f"more than {self._options.letters_max} records could not be copied: is something wrong with all of "
                f"them, or with a rule? Those before are in {letter_topic(self._options.mirror)}"
            )
        if not self._letters_are_made:
            self._store.create_topic(letter_topic(self._options.mirror), 1, self._store.config.dlq_perm, exist_ok=True)
            self._letters_are_made = True

    def _rules(self) -> RmqRules:
        return replace(
            rmq_rules(self._store, self._options.mirror),
            max_letter_bytes=letter_bytes_max(self._store),
            tags_header=self._options.tags_header,
            born_timestamp=self._options.born_timestamp,
        )

    def _measure_lag(self) -> None:
        self._lag_s = real_time.monotonic()
        try:
            ends = self._reader.stable_ends(list(self._topics.active))
        except KafkaUnavailableError as error:
            self.report.state = f"waiting for Kafka: {error}"
            return
        except KafkaRefusedError:
            # Rights that have ended: the next poll says so, and stops these partitions.
            return
        for place, end in ends.items():
            self._report_of(place).stable_end = end
        self.report.state = "copying"
        if self.report.is_caught_up:
            self.report.state = "caught up"

    def _update_report(self) -> None:
        for place, one in self._topics.active.items():
            self._report_of(place).next_offset = one.read_offset
        for place, reason in self._topics.stopped.items():
            self._report_of(place).failure = reason
        self._on_report(self.report)

    def _report_of(self, place: Partition) -> PartitionReport:
        found = self.report.partitions.get(place)
        if found is None:
            one = self._topics.active.get(place)
            found = self.report.partitions[place] = PartitionReport(one.read_offset if one is not None else 0)
        return found
