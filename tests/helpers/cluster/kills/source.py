"""The data source under test as `rmq_killed`: its commit says what the tasks did, and stops where it is told to.

The process of the test and those of Spark share the directory RMQ_KILLS:

    arm           "<batch> <point>": stop there
    reached       the commit is at the point
    go            go on, and fail: the batch comes again
    reports       a line of JSON for each commit
    row-numbers   keys are made of row numbers (the control that must fail)
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from helpers.cluster.kills.plan import COMMITTED, SENT
from pyspark_rmq.source import DefaultSource


def shared() -> Path:
    """The directory of this run."""
    return Path(os.environ["RMQ_KILLS"])


def stop_at(batch: int, point: str) -> None:
    """Wait here, if this is the place, until the process ends or may go on."""
    with contextlib.suppress(FileNotFoundError):
        if (shared() / "arm").read_text() == f"{batch} {point}":
            (shared() / "arm").unlink()
            (shared() / "reached").touch()
            while not (shared() / "go").exists():
                time.sleep(0.01)
            (shared() / "go").unlink()
            raise RuntimeError(f"the commit of batch {batch} ends here")


class KilledSource(DefaultSource):
    """`format("rmq_killed")`, for writes to a cluster."""

    @classmethod
    def name(cls) -> str:
        return "rmq_killed"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return Batch(super().writer(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return Stream(super().streamWriter(schema, overwrite))


class Batch(DataSourceArrowWriter):
    """A batch write; its version is the batch."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        use_row_numbers()
        return self._inner.write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        batch = self._inner._batch
        note(batch, messages)
        stop_at(batch, SENT)
        self._inner.commit(messages)
        stop_at(batch, COMMITTED)


class Stream(DataSourceStreamArrowWriter):
    """A stream."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        use_row_numbers()
        return self._inner.write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        note(batchId, messages)
        stop_at(batchId, SENT)
        self._inner.commit(messages, batchId)
        stop_at(batchId, COMMITTED)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._inner.abort(messages, batchId)


def note(batch: int, messages: Sequence[Any]) -> None:
    """Write down what the tasks of a batch did."""
    reports = [message.report for message in messages if message is not None]
    line = {
        "batch": batch,
        "rows": sum(report.rows for report in reports),
        "skipped": sum(report.skipped for report in reports),
        "found": sum(report.found for report in reports),
        "late": sum(report.late for report in reports),
        "repeated": any(report.repeated for report in reports),
    }
    with (shared() / "reports").open("a") as file:
        file.write(json.dumps(line) + "\n")


def use_row_numbers() -> None:
    """Make keys of row numbers in this worker, if the run asks for it."""
    if not (shared() / "row-numbers").exists():
        return
    import numpy as np

    from rmq_store.client.cluster_sink import row_encoder

    made = iter(range(1 << 30))

    def by_number(frames: Any, seed: bytes, places: Any) -> Any:
        numbers = np.array([next(made) for _ in range(len(frames))], np.uint64)
        return np.ascontiguousarray(np.stack([numbers, numbers], axis=1)).view(np.uint8).ravel()

    row_encoder.content_digests = by_number
