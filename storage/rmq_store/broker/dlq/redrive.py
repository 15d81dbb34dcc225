"""`store.dead_letters`: redrives dead letters.

RocketMQ has no such command. Users ask for an outcome and a reason for each message, a dry run, caps, a rate, a guard
against loops, and safe repetition. A dead letter is copied, never removed: `redrive_ledger` names the redriven ones by
queue and offset of `%DLQ%group`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.arguments import checked_methods
from rmq_store.broker.dlq.archive_restore import ArchiveRestorer, RestoreReport
from rmq_store.broker.dlq.redrive_batch import PARKED, REDRIVEN, Copy, Judged, Policy, Redriver
from rmq_store.broker.dlq.redrive_ledger import OffsetRanges, RedriveLedger
from rmq_store.broker.dlq.redrive_request import RESULT_SCHEMA, ROWS_SCHEMA, RedriveRequest
from rmq_store.broker.metadata.group_topics import GroupTopics
from rmq_store.broker.metadata.groups import GroupTable
from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.broker.metadata.topics import TopicConfig, TopicTable
from rmq_store.broker.read.queues import Queues
from rmq_store.broker.rules import purposes
from rmq_store.broker.rules.routing import Router
from rmq_store.broker.write.writer import Writer
from rmq_store.errors import UsageError
from rmq_store.format.text import names
from rmq_store.format.text.host import Host
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.core.units import UnitRecord

__all__ = ["CHUNK_ROWS", "RESULT_SCHEMA", "ROWS_SCHEMA", "DeadLetters"]

CHUNK_ROWS: Final = 10_000
"""Dead letters in a unit, at most."""

# The record of what a unit moved names up to as many ranges as it has rows, and must fit a segment.
_RANGE_BYTES_MAX = 64

_PLANNED = {REDRIVEN: "WOULD_REDRIVE", PARKED: "WOULD_PARK"}


@checked_methods("restore")
class DeadLetters:
    """The dead letters of one store that is open for writing. Safe for threads and processes."""

    def __init__(
        self,
        log: CommitLog,
        config: StoreConfig,
        groups: GroupTable,
        topics: TopicTable,
        queues: Queues,
        writer: Writer,
    ) -> None:
        self._log = log
        self._config = config
        self._groups = groups
        self._topics = topics
        self._group_topics = GroupTopics(config, groups, topics)
        self._queues = queues
        self._writer = writer
        self._table = RedriveLedger(log)
        self._host = Host.parse(config.broker_host)
        self._restorer = ArchiveRestorer(log, config, topics, queues, writer)

    def redriven(self, group: str) -> Mapping[int, Sequence[tuple[int, int]]]:
        """Offsets of redriven dead letters, for each queue of `%DLQ%group`: half-open ranges, ascending, merged."""
        names.validate_group(group)
        return {queue_id: ranges.pairs() for queue_id, ranges in sorted(self._table.moved(group).items())}

    def restore(
        self,
        archive: str | Path,
        group: str | None = None,
        *,
        start: int = 0,
        end: int | None = None,
        again: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> RestoreReport:
        """Append archived dead letters (of one group, or all) to their `%DLQ%group` again, where they get new offsets.

        `start`, `end`: only those whose offsets were in [start, end). Dead letters that still lie in this store, or
        were restored to it before, are left out, unless `again`. So after a killed run, make the same call again. Each
        unit of at most 10,000 dead letters is all or nothing, across a power cut too. `progress(rows, bytes)` after
        each unit. Durable as `Store.send`.

        A file that was moved out of its archive is restored from `<directory>/<group>/<its name>`.

        Raises:
            UsageError: no archive there, none of this group, its files overlap, or neither the files nor an
                _archive.json name their store.
            CorruptionError: a file is damaged, or contradicts its name; units before it stay.
            StoreFullError, StoreLockedError, StoreFailedError: as `Store.send`.
        """
        return self._restorer.restore(Path(archive), group, start, end, again, progress)

    def plan(
        self,
        group: str,
        rows: pa.RecordBatch,
        *,
        to_topic: str | None = None,
        max_replays: int | None = None,
        parking_topic: str | None = None,
        limit: int | None = None,
    ) -> pa.RecordBatch:
        """The plan of `redrive` with these arguments (RESULT_SCHEMA, in the order of the rows); writes nothing.
        Raises as `redrive`.
        """
        job = self._job(group, rows, to_topic, max_replays, parking_topic, limit)
        for queue_id, wanted in job.queues():
            while len(wanted) and job.left != 0:
                wanted = wanted[self._settle(job, queue_id, wanted[:CHUNK_ROWS], writes=False) :]
        return job.result(_PLANNED)

    def redrive(
        self,
        group: str,
        rows: pa.RecordBatch,
        *,
        to_topic: str | None = None,
        max_replays: int | None = None,
        parking_topic: str | None = None,
        limit: int | None = None,
        rate_per_second: float | None = None,
        progress: Callable[[int, int], None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> pa.RecordBatch:
        """Copy dead letters (ROWS_SCHEMA) to a topic where they are consumed again. Returns RESULT_SCHEMA, in the order
        of the rows.

        By default they go to `%RETRY%group` with reconsumeTimes 0, at once: only the group that failed sees them again,
        with all its retries. `to_topic` names another topic. Body, tags, keys, the message's own properties, born time
        and host stay; PYRMQ_REPLAYS counts the redrives, PYRMQ_DEAD_LETTER holds "queue:offset" of the dead letter. A
        message that was replayed `max_replays` times goes to `parking_topic`, or is refused.

        At most `limit` rows are moved; rows that were moved before, are refused or gone do not count. The rows after
        the last moved one are then left out of the result: the same call again moves the next `limit` rows.

        Each unit of CHUNK_ROWS rows is all or nothing, across a power cut too. Units that are finished stay after an
        error or a kill; the same call again moves only the other rows. At most `rate_per_second` rows are moved per
        second (`sleep` waits between units). `progress(rows, bytes)` is called after each unit with the totals so far.
        Durable as `Store.send`.

        Raises:
            UsageError: a row that the dead-letter topic never had; a target that would be a loop (a dead-letter topic),
                does not exist or may not be written; bad arguments. Nothing was moved.
            ResponseError: the group does not exist, or its retry topic may not be written.
            CorruptionError: a record of the redrive ledger is damaged.
        """
        if rate_per_second is not None and not rate_per_second > 0:
            raise UsageError(f"rate_per_second={rate_per_second!r}: must be more than 0")
        job = self._job(group, rows, to_topic, max_replays, parking_topic, limit)
        chunk_rows = min(CHUNK_ROWS, self._log.segments.size_bytes // _RANGE_BYTES_MAX)
        if rate_per_second is not None:
            chunk_rows = max(int(min(chunk_rows, rate_per_second)), 1)
        moved_before = 0
        for queue_id, wanted in job.queues():
            while len(wanted) and job.left != 0:
                if rate_per_second is not None and job.moved_rows > moved_before:
                    sleep((job.moved_rows - moved_before) / rate_per_second)
                    moved_before = job.moved_rows
                wanted = wanted[self._settle(job, queue_id, wanted[:chunk_rows], writes=True) :]
                if progress is not None:
                    progress(job.done_rows, job.moved_bytes)
        return job.result({})

    def record_moved(self, group: str, queue_id: int, queue_offsets: Sequence[int]) -> int:
        """Record that dead letters (offsets of a queue of `%DLQ%group`) were moved by another program, out of this
        store's sight. Returns how many were new to the ledger. As `redrive`, it may be repeated. Durable and raises as
        `Store.send`.
        """
        names.validate_group(group)
        offsets = np.unique(np.array(queue_offsets, np.int64))
        while True:
            newest = self._writer.last_unit(purposes.REDRIVE, group)
            known = self._table.moved(group).get(queue_id, OffsetRanges.none())
            new = offsets[~known.contains(offsets)]
            if not len(new):
                return 0
            record = self._table.record(group, {queue_id: OffsetRanges.of(new)}, self._host)
            unit = UnitRecord(purposes.REDRIVE, group, (newest or 0) + 1, 0)
            if self._writer.append_unit([record], unit, expect=newest) is not None:
                return len(new)

    def _job(
        self,
        group: str,
        rows: pa.RecordBatch,
        to_topic: str | None,
        max_replays: int | None,
        parking_topic: str | None,
        limit: int | None,
    ) -> RedriveRequest:
        names.validate_group(group)
        if max_replays is not None and (type(max_replays) is not int or max_replays < 0):
            raise UsageError(f"max_replays={max_replays!r}: must be 0 or more")
        if limit is not None and (type(limit) is not int or limit < 0):
            raise UsageError(f"limit={limit!r}: must be 0 or more")
        if parking_topic is not None and max_replays is None:
            raise UsageError("parking_topic needs max_replays: it gets the messages that were redriven so often")
        router = Router(self._topics.all(), self._config)
        target = names.retry_topic(group) if to_topic is None else to_topic
        for what, topic in (("to_topic", target), ("parking_topic", parking_topic)):
            if topic is not None:
                self._check_target(what, topic, router, group)
        job = RedriveRequest(group, rows, Policy(target, max_replays, parking_topic), router, limit)
        for queue_id, wanted in job.queues():
            last = self._queues.range(job.dlq, queue_id).max_offset if queue_id >= 0 else 0
            offsets = job.queue_offsets[wanted]
            bad = (offsets < 0) | (offsets >= last)
            if bad.any():
                row = int(wanted[int(bad.argmax())])
                raise UsageError(
                    f"row {row}: {job.dlq} queue {queue_id} has no message {job.queue_offsets[row]}: it ends at {last}"
                )
        return job

    def _check_target(self, what: str, topic: str, router: Router, group: str) -> None:
        names.validate_topic(topic)
        if topic.startswith(names.DLQ_PREFIX):
            raise UsageError(f"{what}={topic!r}: dead letters cannot be moved to dead letters, that would be a loop")
        if not topic.startswith(names.RETRY_PREFIX):
            router.queue_count(topic)
            return
        if what == "parking_topic":
            raise UsageError(f"{what}={topic!r}: the parking topic must not be the topic of the redriven messages")
        name = topic.removeprefix(names.RETRY_PREFIX)
        settings = self._groups.get(name)
        if settings is None and name != group:
            raise UsageError(f"{what}={topic!r}: there is no group {name!r}")
        if settings is not None and settings.retry_queue_nums < 1:
            raise UsageError(f"group {name!r} has no retry queues: name another topic")

    def _settle(self, job: RedriveRequest, queue_id: int, chunk: npt.NDArray[np.intp], *, writes: bool) -> int:
        """Decide the first rows of a chunk of one queue, and move them if `writes`. Returns their number."""
        redriver = Redriver(self._log, self._queues, self._host, job.dlq)
        offsets = job.queue_offsets[chunk]
        ids = None if job.msg_ids is None else job.msg_ids.take(pa.array(chunk))
        while True:
            # In this order: what is committed behind the look at the number changes it, and nothing is appended.
            newest = self._writer.last_unit(purposes.REDRIVE, job.group)
            moved = self._table.moved(job.group).get(queue_id, OffsetRanges.none())
            judged, copies = redriver.judge(queue_id, offsets, ids, moved, job.policy)
            undecided = judged.open_rows()
            done = int(undecided[0]) if len(undecided) else len(chunk)
            over = judged.moving()[job.left :] if job.left is not None else undecided[:0]
            if len(over):  # up to there, in its turn
                chunk = chunk[: int(over[0])]
                offsets, ids = offsets[: len(chunk)], None if ids is None else ids[: len(chunk)]
                continue
            targets = np.full(len(chunk), None, object)
            targets[judged.outcomes == REDRIVEN] = job.policy.target
            targets[judged.outcomes == PARKED] = job.policy.parking_topic
            copies = [copy for copy in copies if len(copy.kept)]
            if writes and copies and not self._move(job, redriver, queue_id, chunk, judged, targets, copies, newest):
                continue  # another process moved dead letters of this group meanwhile: they may be the same
            moved_bytes = sum(int(copy.run.sizes[copy.kept].sum(dtype=np.int64)) for copy in copies)
            job.set_outcomes(chunk[:done], judged, targets, moved_bytes)
            return done

    def _move(
        self,
        job: RedriveRequest,
        redriver: Redriver,
        queue_id: int,
        chunk: npt.NDArray[np.intp],
        judged: Judged,
        targets: npt.NDArray[np.object_],
        copies: Sequence[Copy],
        newest: int | None,
    ) -> bool:
        """Append copies as the unit that follows number `newest`; False if there is such a unit already."""
        topics = [pa.array(targets[copy.rows], pa.string()).dictionary_encode() for copy in copies]
        queue_ids = [self._route(job, where, copy) for where, copy in zip(topics, copies, strict=True)]
        batches = [redriver.encode(*what) for what in zip(copies, topics, queue_ids, strict=True)]
        rows = np.concatenate([copy.rows for copy in copies])
        gone = OffsetRanges.of(np.sort(job.queue_offsets[chunk[rows]]))
        batches.append(self._table.record(job.group, {queue_id: gone}, self._host))
        unit = UnitRecord(purposes.REDRIVE, job.group, (newest or 0) + 1, len(rows))
        appended = self._writer.append_unit(batches, unit, expect=newest)
        if appended is None:
            return False
        job.set_targets(chunk[rows], np.concatenate(queue_ids), appended.queue_offsets[:-1], appended.offsets[:-1])
        return True

    def _route(self, job: RedriveRequest, topics: pa.DictionaryArray, copy: Copy) -> npt.NDArray[np.int32]:
        """The queue of each copy; missing topics are made."""
        queue_ids = np.zeros(len(topics), np.int32)
        chance = np.random.default_rng()
        for code, topic in enumerate(topics.dictionary.to_pylist()):
            rows = np.flatnonzero(topics.indices.to_numpy() == code)
            if topic.startswith(names.RETRY_PREFIX):
                settings = self._group_topics.group(topic.removeprefix(names.RETRY_PREFIX))
                queues = self._group_topics.retry_queues(settings)
                queue_ids[rows] = chance.integers(queues, size=len(rows))
                continue
            picked = pa.array(rows)
            queue_ids[rows] = job.router.route(topics.take(picked), copy.sharding_keys.take(picked), None)
            if topic not in self._topics.all():
                queues = job.router.queue_count(topic)
                self._topics.create(TopicConfig(topic, queues, queues), exist_ok=True)
        return queue_ids
