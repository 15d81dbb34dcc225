"""The streams of a scene without Spark: processes that make its calls in its order, `driver` in a tenth of the time.

Each query is a process, which plans, reads and writes, and has the files of `driver`. It goes through what
MicroBatchExecution does: the range of a batch is written down before its tasks are planned, and planned again by the
next run if the batch was not completed. A task is tried four times. The queries are `read` and `copy`.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from threading import local
from types import SimpleNamespace
from typing import Any

from helpers.cluster.weather.driver import PAUSE_S, POLL_S, note

TRIES = 4
IDLE_S = 0.3
TRIGGER_S = 1.0
CORES = 4


class Checkpoint:
    """The offset log and the commit log of a query."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        for name in ("offsets", "commits"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        if not (directory / "id").exists():
            (directory / "id").write_text(str(uuid.uuid4()))
        self.query_id = (directory / "id").read_text()

    def last(self, log: str) -> int:
        """The last batch in a log; -1: none."""
        return max((int(file.name) for file in (self._directory / log).glob("[0-9]*")), default=-1)

    def offset(self, batch: int) -> Any:
        """Where a batch ends."""
        return json.loads((self._directory / "offsets" / str(batch)).read_text())

    def write(self, log: str, batch: int, text: str = "") -> None:
        """An entry, all at once."""
        hidden = self._directory / f".{log}"
        hidden.write_text(text)
        hidden.rename(self._directory / log / str(batch))


class Run:
    """One run of a query: `sink(batches of rows by partition, batch)` takes the rows of a batch."""

    def __init__(self, name: str, options: dict[str, str], sink: Callable[[list[Any], Any, int], None]) -> None:
        from pyspark.sql.streaming.datasource import ReadMaxRows

        from pyspark_rmq.options.options import source_options
        from pyspark_rmq.read.stream_reader import RmqStreamReader
        from pyspark_rmq.schema.schema import SOURCE_SCHEMA

        self.name = name
        self.checkpoint = Checkpoint(Path("checkpoints") / name)
        self.reader = RmqStreamReader(source_options(options, "stream read", 1_000_000), SOURCE_SCHEMA)
        self._sink = sink
        self._limit = ReadMaxRows(1_000_000)
        # What the process that reads has of it.
        self._worker = RmqStreamReader(source_options(options, "stream read", 1_000_000), SOURCE_SCHEMA)

    def go(self, is_over: Callable[[], bool]) -> None:
        """Triggers, one after another."""
        checkpoint = self.checkpoint
        planned, done = checkpoint.last("offsets"), checkpoint.last("commits")
        if planned == done == -1:
            position = json.loads(json.dumps(self.reader.initialOffset()))
            (Path("checkpoints") / self.name / "initial").write_text(json.dumps(position))
        elif planned > done:
            self._batch(planned, self._start_of(planned), checkpoint.offset(planned))
        while not is_over():
            began_s = time.monotonic()
            batch = checkpoint.last("offsets") + 1
            start = self._start_of(batch)
            at = datetime.now(UTC).isoformat()
            end = json.loads(json.dumps(self.reader.latestOffset(start, self._limit)))
            planned_s = time.monotonic() - began_s
            if end != start:
                checkpoint.write("offsets", batch, json.dumps(end))
                self.reader.commit(start)
                planned_s = time.monotonic() - began_s
                planned_s += self._batch(batch, start, end)
            progress = {"batchId": batch, "timestamp": at, "durationMs": {"latestOffset": round(planned_s * 1000)}}
            note("progress", query=self.name, progress=progress)
            time.sleep(max(IDLE_S, TRIGGER_S - (time.monotonic() - began_s)))

    def _start_of(self, batch: int) -> Any:
        if batch == 0:
            return json.loads((Path("checkpoints") / self.name / "initial").read_text())
        return self.checkpoint.offset(batch - 1)

    def _batch(self, batch: int, start: Any, end: Any) -> float:
        began_s = time.monotonic()
        parts = self.reader.partitions(start, end)
        planned_s = time.monotonic() - began_s
        self._sink([self._rows(part) for part in parts], self.checkpoint.query_id, batch)
        self.checkpoint.write("commits", batch)
        return planned_s

    def _rows(self, part: Any) -> Callable[[], Iterator[Any]]:
        return lambda: self._worker.read(part)


def in_tasks(parts: list[Any], task: Callable[[int, Callable[[], Iterator[Any]]], Any]) -> list[Any]:
    """The results of all tasks, each of which is tried again."""

    def tried(number: int) -> Any:
        for attempt in range(1, TRIES + 1):
            try:
                return task(number, parts[number])
            except Exception as error:
                note("retries", error=f"{type(error).__name__}: {error}"[:300])
                if attempt == TRIES:
                    raise
        raise AssertionError

    with ThreadPoolExecutor(CORES) as pool:
        return list(pool.map(tried, range(len(parts))))


def into_file(parts: list[Any], query_id: str, batch: int) -> None:
    """The sink of `read`."""
    tables = in_tasks(parts, lambda number, rows: [row for table in rows() for row in table.to_pylist()])
    found = sorted(
        [row["brokerName"], row["queueId"], row["queueOffset"], row["body"].decode(),
         round(row["storeTimestamp"].timestamp() * 1000)]
        for rows in tables for row in rows
    )  # fmt: skip
    file = Path("read") / str(batch)
    if file.exists():
        assert json.loads(file.read_text())["rows"] == found, f"batch {batch} came again with other rows"
        return
    hidden = Path("read") / f".{batch}"
    hidden.write_text(json.dumps({"at": time.time(), "rows": found}))
    hidden.rename(file)


class Copying:
    """The sink of `copy`."""

    def __init__(self, options: dict[str, str]) -> None:
        import pyspark
        from pyspark.sql.types import BinaryType, StructField, StructType

        from pyspark_rmq.options.options import sink_options
        from pyspark_rmq.write.sink import sink_of

        schema = StructType([StructField("body", BinaryType())])
        self._sink = sink_of(sink_options(options, "stream write"), schema, None)
        self._run_id = str(uuid.uuid4())
        self._context = local()
        pyspark.TaskContext.get = lambda: getattr(self._context, "now", None)  # type: ignore[method-assign]

    def __call__(self, parts: list[Any], query_id: str, batch: int) -> None:
        from pyspark_rmq.write.sink import MicroBatch

        unit = MicroBatch(query_id, batch, self._run_id)

        def task(number: int, rows: Callable[[], Iterator[Any]]) -> Any:
            self._context.now = SimpleNamespace(partitionId=lambda: number, getLocalProperty=lambda name: None)
            return self._sink.write_task(unit, (table.select(["body"]) for table in rows()))

        in_tasks(parts, task)


def query(name: str, given: dict[str, Any]) -> None:
    """A query for ever: it begins again after an error."""
    import logging

    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s", level=logging.WARNING)
    fails_on_loss = True
    while True:
        options = {
            "nameServer": given["name_server"], "subscribe": given["orders"], "startingOffsets": "earliest",
            "failOnDataLoss": str(fails_on_loss).lower(), **given.get("source", {}),
            **({"group": given["read"]} if name == "read" else {}),
        }  # fmt: skip
        run = None
        stops = Path(f"stop-{name}")
        try:
            sink: Any = into_file
            if name == "copy":
                sink = Copying({"nameServer": given["name_server"], "topic": given["copies"], **given.get("sink", {})})
            run = Run(name, options, sink)
            run.go(stops.exists)
        except Exception as error:
            fails_on_loss &= "DataLossError" not in type(error).__name__
            note("ended", query=name, error=f"{type(error).__name__}: {error}")
            traceback.print_exc()
        if run is not None:
            began_s = time.monotonic()
            run.reader.stop()
            note("stopped", query=name, seconds=time.monotonic() - began_s)
        stops.unlink(missing_ok=True)
        time.sleep(PAUSE_S)


def main() -> None:
    given = json.loads(sys.argv[1])
    Path("read").mkdir()
    context = multiprocessing.get_context("spawn")
    names = given.get("queries", ["read", "copy"])
    for name in names:
        context.Process(target=query, args=(name, given), daemon=True).start()
    while True:
        for name in names:
            if Path("restart").exists():
                Path(f"stop-{name}").touch()
        for name in ("restart", "report"):
            Path(name).unlink(missing_ok=True)
        time.sleep(POLL_S)


if __name__ == "__main__":
    main()
