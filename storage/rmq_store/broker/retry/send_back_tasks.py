"""Send-backs that tasks prepare: copies of failed messages in a staged file, for one commit.

A task reads the log as a reader does, applies the rules of `send_back`, and writes a file of its own. It appends
nothing. The driver first makes topics and settings (`Retry.prepare`), and commits all files as one unit
(`Store.commit_staged(files, purpose="sendback", key=, value=)`). So each row is sent back once, however often tasks or
the whole batch run. The commit also refuses two rows for one message (`staged_copies`).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from rmq_store.arguments import checked_methods
from rmq_store.broker.metadata.group_topics import usable_queues
from rmq_store.broker.metadata.groups import GroupTable
from rmq_store.broker.metadata.store_log import log_of
from rmq_store.broker.metadata.topics import TopicTable
from rmq_store.broker.read.queues import Queues
from rmq_store.broker.retry.send_back_batch import SendBackEncoder, normalise
from rmq_store.broker.rules.input_rows import rows_from
from rmq_store.broker.rules.send_back import SendBackRules
from rmq_store.broker.write.staging import StagingFile, planned_store
from rmq_store.clock import store_clock
from rmq_store.errors import UsageError
from rmq_store.format.tables.schema import STAGED_COPY_SCHEMA
from rmq_store.format.text import names
from rmq_store.format.text.host import Host
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.core.commit_log import Clock, CommitLog
from rmq_store.log.recovery.delay_inference import infer_delays


@dataclass(frozen=True, slots=True)
class SendBackCounts:
    """The results of a task's rows when they are committed; plain data. `dropped`: the group has no retry queues."""

    retried: int = 0
    dead: int = 0
    dropped: int = 0

    def __add__(self, other: SendBackCounts) -> SendBackCounts:
        return SendBackCounts(self.retried + other.retried, self.dead + other.dead, self.dropped + other.dropped)


@checked_methods()
class SendBackArea(StagingFile):
    """One task's file of rows to send back. Made by `for_task`; use as a context manager."""

    schema = STAGED_COPY_SCHEMA

    def __init__(
        self, write_id: str, partition_id: int, attempt: int, log: CommitLog, encoder: SendBackEncoder | None
    ) -> None:
        super().__init__(log.root, write_id, partition_id, attempt)
        self._log = log
        self._queues_of_log = Queues(log, "", 0)
        self._encoder = encoder
        self._given_rows = 0
        self.counts = SendBackCounts()

    @classmethod
    def for_task(
        cls,
        path: str | Path,
        write_id: str,
        partition_id: int,
        attempt: int,
        *,
        group: str,
        max_reconsume_times: int | None,
        clock: Clock | None = None,
    ) -> SendBackArea:
        """Prepare a file for one attempt of a task. `max_reconsume_times` as in `Retry.send_back`; `clock`: None is the
        store's own.

        Raises:
            NotAStoreError: there is no store of this engine at `path` on this host.
            UsageError: `Retry.prepare` was not called for this group.
        """
        root, config = planned_store(path)
        settings = GroupTable(root).get(group)
        retry_topic = TopicTable(root).all().get(names.retry_topic(group))
        if settings is None or (retry_topic is None and settings.retry_queue_nums > 0):
            raise UsageError(f"{root}: group {group!r} is not prepared for send-backs: call store.retry.prepare first")
        log = log_of(root, config, writable=False, index=False, clock=clock or store_clock(root))
        if not config.message_delay_level:
            infer_delays(log, log.delay_levels_ms)
        encoder = None
        if retry_topic is not None and settings.retry_queue_nums > 0:
            rules = SendBackRules.of(settings, max_reconsume_times, log.delay_levels_ms)
            host = Host.parse(config.broker_host)
            encoder = SendBackEncoder(log, host, rules, usable_queues(settings, retry_topic))
        return cls(write_id, partition_id, attempt, log, encoder)

    def write(self, rows: pa.RecordBatch) -> None:
        """Copy the messages of a batch (SEND_BACK_SCHEMA) to the file, and count them in `counts`.

        Raises:
            ResponseError, UsageError, CorruptRecordError: as `Retry.send_back_all`; names the offset, and the row as
                the task counts them.
            StoreFullError: no space for the file.
        """
        with rows_from(self._given_rows, self.partition_id):
            self._write(normalise(rows))
        self._given_rows += rows.num_rows

    def _write(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        if self._encoder is None:
            self.counts += SendBackCounts(dropped=rows.num_rows)
            return
        end = self._queues_of_log.end()
        if int(np.max(rows.column("commitLogOffset").to_numpy())) >= end:
            self._queues_of_log.refresh()
            end = self._queues_of_log.end()
        copies = self._encoder.encode(rows, end)
        given_rows = self._given_rows + copies.rows
        copied = rows.column("commitLogOffset").take(pa.array(copies.rows))
        # `Retry.prepare` has made the retry topic; that of the dead letters is made when there are some.
        dead = {topic: 1 for topic in copies.topics.unique().to_pylist() if topic.startswith(names.DLQ_PREFIX)}
        first = 0
        for batch in copies.batches:
            part = slice(first, first + batch.num_rows)
            named = [copied[part], pa.array(given_rows[part])]
            self.add(pa.RecordBatch.from_arrays([*batch.columns, *named], schema=self.schema), dead)
            first = part.stop
        self.counts += SendBackCounts(retried=rows.num_rows - copies.dead, dead=copies.dead)

    def abort(self) -> None:
        """Remove the file, unless it was finished, and close the log."""
        super().abort()
        self._log.close()
