"""The dead letters of a store, for the commands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rmq_store.broker.dlq.archive_files import ArchiveFiles
from rmq_store.broker.monitoring.dead_letter_rows import DeadLetterRows, Wanted
from rmq_store.cli.target.failure_report import FailureReport
from rmq_store.cli.target.redrive_calls import CALL_ROWS, Totals, in_calls
from rmq_store.cli.target.rows import Total

if TYPE_CHECKING:
    from rmq_store import Store
    from rmq_store.cli.target.view import Progress


class StoreLetters(DeadLetterRows):
    """See `DeadLetters`."""

    def total(self) -> Total:
        """See `DeadLetters`."""
        return Total(self.count())

    def archived_count(self) -> int | None:
        """The number of dead letters in the archive of retention; None if there is no archive."""
        path = self._store.retention.settings().dlq_archive_path
        if not path:
            return None
        ranges = self.ranges()
        return sum(
            max(0, min(file.end, ranges[file.queue_id].max_offset) - max(file.start, ranges[file.queue_id].min_offset))
            for file in ArchiveFiles(Path(path)).of(self.group)
            if file.queue_id in ranges
        )


class StoreRedrive:
    """See `Redrive`. The store is open for writing."""

    def __init__(self, store: Store, group: str, goals: dict[str, Any]) -> None:
        self.failures = FailureReport[str]()
        self._store = store
        self._group = group
        self._goals = goals
        self._rows: DeadLetterRows | None = None

    def now_ms(self) -> int:
        """By the clock of the store."""
        return self._store.clock()

    def choose(self, wanted: Wanted) -> None:
        """See `Redrive`."""
        self._rows = DeadLetterRows(self._store, self._group, wanted)

    def plan(self, limit: int | None) -> Totals:
        """See `Redrive`."""

        def ask(places: pa.RecordBatch, left: int | None) -> pa.RecordBatch:
            return self._store.dead_letters.plan(self._group, places, limit=left, **self._goals)

        return in_calls(self._calls(), limit, ask)

    def move(self, limit: int | None, rate: float | None, progress: Progress) -> Totals:
        """See `Redrive`."""
        sums = _Sums(progress)

        def ask(places: pa.RecordBatch, left: int | None) -> pa.RecordBatch:
            result = self._store.dead_letters.redrive(
                self._group, places, limit=left, rate_per_second=rate, progress=sums, sleep=time.sleep, **self._goals
            )
            sums.call_ended()
            return result

        return in_calls(self._calls(), limit, ask, rate=rate)

    def _calls(self) -> Iterator[pa.RecordBatch]:
        """The places of what is wanted, ROWS_SCHEMA without the ids, for a call of the engine each."""
        assert self._rows is not None
        empty = {"queueId": pa.array([], pa.int32()), "queueOffset": pa.array([], pa.int64())}
        waiting = pa.RecordBatch.from_pydict(empty)
        for columns in self._rows.places():
            arrays = [pa.array(column) for column in columns]
            waiting = pa.concat_batches([waiting, pa.RecordBatch.from_arrays(arrays, schema=waiting.schema)])
            while waiting.num_rows >= CALL_ROWS:
                yield waiting.slice(0, CALL_ROWS)
                waiting = waiting.slice(CALL_ROWS)
        if waiting.num_rows:
            yield waiting


class _Sums:
    """Adds up the progress of the calls, for the bar."""

    def __init__(self, tell: Callable[[int, int], None] | None) -> None:
        self._show = tell
        self._before = self._now = (0, 0)

    def __call__(self, rows: int, size_bytes: int) -> None:
        """Add the progress of the present call."""
        self._now = self._before[0] + rows, self._before[1] + size_bytes
        if self._show is not None:
            self._show(*self._now)

    def call_ended(self) -> None:
        """The next call begins at 0."""
        self._before = self._now
