"""Tests 23, 24 and 26: what runs twice, what fails, what is gone.

task_failures        In Spark: tasks of reads and writes, of batches and streams, fail at attempts 0, 1 and 2, before or
                     after they have done their work. The multiset of the output is that of the input.
attempts             Without Spark, in the orders that it shows by accident: two or three attempts at each partition of
                     a batch, some killed in the middle, some after the driver's commit, some reported in another
                     attempt's place, the number of partitions changing between attempts at the batch, the driver dying
                     between append and commit log, sweeps in between.
retention_overtakes  Streams planned and read as Spark does, while retention deletes. With failOnDataLoss=true they
                     fail and name what is gone; with false, what they read and what they report as lost is all that was
                     sent.
executor_kills       Spark's own executors, processes of a local cluster, are killed while they write.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from crash.numbered import bodies_of, check_store, compare, numbered
from crash.part import Counters, Part, Trial
from crash.protections import WITHOUT, protection
from crash.spark_kills import no_java, small_config, spark_environment

TOPIC = "Out"


@protection("shared_staging_names", "every attempt of a task writes a file that nobody else writes")
def _shared_names() -> Iterator[None]:
    """Attempts write the same file, as a sink does that names it by its partition; the content is not checked."""
    from rmq_store.broker.write import staging

    kept = staging.StagingFile.__init__, staging._CrcFile.__init__, staging.StagingFile.abort

    def named_by_partition(file: Any, root: Path, write_id: str, partition_id: int, attempt: int) -> None:
        kept[0](file, root, write_id, partition_id, attempt)
        file._name = f"{partition_id}.arrow"

    def over_what_is_there(file: Any, path: Path) -> None:
        path.unlink(missing_ok=True)
        kept[1](file, path)

    staging.StagingFile.__init__ = named_by_partition  # type: ignore[method-assign]
    staging._CrcFile.__init__ = over_what_is_there  # type: ignore[method-assign]
    try:
        yield
    finally:
        staging.StagingFile.__init__, staging._CrcFile.__init__ = kept[:2]  # type: ignore[method-assign]


@protection("no_staging", "what a task has written is visible when the driver commits it, and no sooner")
def _no_staging() -> Iterator[None]:
    """Each task appends for itself, as a sink does that has no commit."""
    from rmq_store import Store
    from rmq_store.broker.write import staging

    kept = staging.StagingFile.finish

    def append_at_once(file: Any) -> None:
        staged = kept(file)
        if staged is not None:
            with Store.open(file._directory.parents[2]) as store:
                store.commit_staged([staged])

    staging.StagingFile.finish = append_at_once  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        staging.StagingFile.finish = kept  # type: ignore[method-assign]


@protection("no_loss_check", "what was to be read and is gone is told")
def _no_loss_check() -> Iterator[None]:
    from pyspark_rmq.read import loss_detection

    kept = loss_detection.lost
    loss_detection.lost = lambda wanted, kept: []
    try:
        yield
    finally:
        loss_detection.lost = kept


# -- attempts, called directly -----------------------------------------------------------------------------------------


class Killed(Exception):
    """An attempt ends here."""


class _Query:
    """One streaming query as its driver runs it: partitions of a batch, attempts at them, commits."""

    def __init__(self, path: Path, chance: random.Random) -> None:
        from pyspark.sql.types import StringType, StructField, StructType

        self.path = path
        self.chance = chance
        self.run = 0
        self.attempt = 0
        self.zombies: list[tuple[int, int, list[str]]] = []
        self._schema = StructType([StructField("value", StringType())])

    def writer(self) -> Any:
        from pyspark_rmq.options.options import sink_options
        from pyspark_rmq.write.writer import stream_writer

        options = sink_options({"path": str(self.path), "topic": TOPIC}, "stream write")
        return stream_writer(options, self._schema, False)

    def work(self, batch: int, partition: int, rows: list[str], dies_after: int | None = None) -> Any:
        """One attempt; it ends before its row `dies_after`."""
        from pyspark import TaskContext

        context = TaskContext._getOrCreate()
        self.attempt += 1
        context._partitionId, context._taskAttemptId = partition, self.attempt
        context._localProperties = {
            "sql.streaming.queryId": "query", "streaming.sql.batchId": str(batch),
            "spark.jobGroup.id": f"run-{self.run}",
        }  # fmt: skip
        return self.writer().write(self._rows(rows, dies_after))

    def _rows(self, rows: list[str], dies_after: int | None) -> Iterator[Any]:
        import pyarrow as pa

        step = self.chance.randrange(1, len(rows) + 1)
        for first in range(0, len(rows), step):
            if dies_after is not None and first >= dies_after:
                raise Killed
            yield pa.record_batch({"value": pa.array(rows[first : first + step])})
        if dies_after is not None:
            raise Killed

    def run_batch(self, batch: int, rows: list[str]) -> list[Any]:
        """All attempts of one go at a batch, cut into partitions anew; returns what Spark would report."""
        count = self.chance.randrange(1, 5)
        reports = []
        for partition in range(count):
            part = rows[partition::count]
            if not part:
                continue
            wins: list[Any] = []
            for _ in range(self.chance.randrange(1, 4)):
                if self.chance.random() < 0.4:
                    with contextlib.suppress(Killed):
                        self.work(batch, partition, part, self.chance.randrange(len(part)))
                else:
                    wins.append(self.work(batch, partition, part))
            if not wins:
                wins.append(self.work(batch, partition, part))
            reports.append(self.chance.choice(wins))
            if self.chance.random() < 0.3:
                self.zombies.append((batch, partition, part))
        return reports


def run_attempts(trial: Trial) -> Counters:
    """Each cycle is one batch."""
    from rmq_store import MarkerError, Store, StoreError

    counters = Counters(cycles=trial.cycles)
    path, sent = trial.directory / "store", 0
    Store.open(path, create=True, config=small_config()).close()
    query = _Query(path, random.Random(trial.seed))
    for batch in range(trial.cycles):
        query.chance = chance = random.Random(f"{trial.seed}/{batch}")
        rows = numbered("rows", range(sent, sent + chance.randrange(1, 30)), chance)
        sent += len(rows)
        query.run += 1
        try:
            reports = query.run_batch(batch, rows)
            if chance.random() < 0.3:  # the driver dies before its commit; another one begins the batch again
                query.run += 1
                reports = query.run_batch(batch, rows)
            query.writer().commit(reports, batch)
            for _ in range(chance.randrange(3)):  # or behind it, before Spark has noted that
                query.run += chance.randrange(2)
                query.writer().commit(query.run_batch(batch, rows), batch)
                counters.seen["batches repeated"] += 1
            while query.zombies:
                old, partition, part = query.zombies.pop()
                late = query.work(old, partition, part)
                counters.seen["zombies"] += 1
                if chance.random() < 0.3 and old < batch:
                    with contextlib.suppress(MarkerError):
                        query.writer().commit([late], old)
                        counters.broken += 1
                        counters.note(f"batch {batch}, seed {trial.seed}: batch {old} was committed behind it")
        except (StoreError, OSError) as error:
            counters.broken += 1
            counters.note(f"batch {batch}, seed {trial.seed}: {error!r}")
        trial.tick(1)
    compare(bodies_of(path, TOPIC), {"rows": sent}, counters, f"seed {trial.seed}")
    check_store(path, counters, f"seed {trial.seed}")
    return counters


# -- retention ---------------------------------------------------------------------------------------------------------


def run_retention(trial: Trial) -> Counters:
    """Each cycle is one batch of a stream; it begins again from its checkpoint now and then, as after a crash."""
    from rmq_store import Store

    logging.getLogger("pyspark_rmq").setLevel(logging.ERROR)  # losses are warnings, and there are many

    counters = Counters(cycles=trial.cycles)
    path = trial.directory / "store"
    with Store.open(path, create=True, config=replace(small_config(), mapped_file_size_commit_log=128 << 10)) as store:
        store.create_topic("In", 2)
    streams = {strict: _Stream(path, strict) for strict in (True, False)}
    sent = 0
    for cycle in range(trial.cycles):
        chance = random.Random(f"{trial.seed}/{cycle}")
        sent += _fill(path, sent, chance)
        for strict, stream in streams.items():
            if chance.random() < 0.3:
                continue  # it is too late next time
            try:
                stream.batch(chance)
            except Exception as error:
                if not (strict and stream.excused(error)):
                    counters.broken += 1
                    counters.note(f"cycle {cycle}, seed {trial.seed}: {error!r}")
                counters.seen["failed, naming what is gone"] += 1
                stream.begin_anew()
        trial.tick(1)
    streams[False].batch(random.Random(trial.seed))  # to the end
    logging.getLogger("pyspark_rmq").setLevel(logging.NOTSET)
    for stream in streams.values():
        stream.close()
    _judge_retention(streams[False], path, sent, counters, trial.seed)
    counters.acknowledged = sent
    return counters


def _fill(path: Path, sent: int, chance: random.Random) -> int:
    """Store some messages, and often more than retention leaves there."""
    import pyarrow as pa

    from rmq_store import Store

    count = chance.randrange(50, 400)
    bodies = [body.encode() + bytes(2000) for body in numbered("In", range(sent, sent + count), chance)]
    with Store.open(path) as store:
        store.append(pa.record_batch({"body": pa.array(bodies)}), "In")
        if chance.random() < 0.5:
            store.retention.run(manual=True, file_reserved_time=0)
    return count


class _Stream:
    """A stream as Spark drives one: plan, perhaps die, plan the same again, read, complete."""

    def __init__(self, path: Path, strict: bool) -> None:
        self._path = path
        self._options = {
            "path": str(path), "subscribe": "In", "startingOffsets": "earliest",
            "failOnDataLoss": str(strict).lower(),
        }  # fmt: skip
        self.read: list[tuple[int, int]] = []
        self._reader = self._new()
        self._start: dict[str, Any] = self._reader.initialOffset()

    def _new(self) -> Any:
        from pyspark.sql.types import StructType

        from pyspark_rmq.options.options import source_options
        from pyspark_rmq.read.stream_reader import RmqStreamReader
        from pyspark_rmq.schema.schema import SOURCE_SCHEMA

        schema = StructType([SOURCE_SCHEMA["queueId"], SOURCE_SCHEMA["queueOffset"]])
        return RmqStreamReader(source_options(self._options, "stream read", 0), schema)

    def batch(self, chance: random.Random) -> None:
        from pyspark.sql.streaming.datasource import ReadAllAvailable

        from rmq_store import Store

        start = self._start
        end = self._reader.latestOffset(start, ReadAllAvailable())
        if end == start:
            return
        for _ in range(chance.randrange(1, 3)):
            if chance.random() < 0.3:  # the driver dies with the batch planned, and retention has the time to run
                self._reader.stop()
                with Store.open(self._path) as store:
                    store.retention.run(manual=True, file_reserved_time=0)
                self._reader = self._new()
            partitions = self._reader.partitions(start, end)
            if chance.random() < 0.5:  # what is planned is pinned
                with Store.open(self._path) as store:
                    store.retention.run(manual=True, file_reserved_time=0)
            if chance.random() < 0.2:  # pins hold for two minutes; then, and for rm, only what is mapped is there
                _remove_by_hand(self._path)
            rows = [row for part in partitions for batch in self._reader.read(part) for row in _pairs(batch)]
        self.read += rows
        self._start = end

    def excused(self, error: Exception) -> bool:
        """Whether a strict stream had to fail: all that it names is gone indeed."""
        from rmq_store import DataLossError, Store

        if not isinstance(error, DataLossError) or not error.ranges:
            return False
        with Store.open(self._path, read_only=True) as store:
            return all(end <= store.queue_range(topic, queue).min_offset for topic, queue, _, end in error.ranges)

    def begin_anew(self) -> None:
        self._reader.stop()
        self._reader = self._new()
        self._start = self._reader.initialOffset()

    def close(self) -> None:
        self._reader.stop()


def _remove_by_hand(path: Path) -> None:
    segments = sorted((path / "commitlog").iterdir())
    for segment in segments[: len(segments) // 2]:
        segment.unlink()


def _pairs(batch: Any) -> list[tuple[int, int]]:
    return list(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True))


def _judge_retention(stream: _Stream, path: Path, sent: int, counters: Counters, seed: int) -> None:
    """What the lenient stream has read, and what it has reported, is all that was sent; and nothing is both."""
    from rmq_store import Store, recorded_losses

    where = f"seed {seed}"
    known: set[tuple[int, int]] = set()
    for loss in recorded_losses(path):
        known |= {(loss.queue_id, offset) for offset in range(loss.start, loss.end or loss.start)}
    read = set(stream.read)
    counters.duplicated += len(stream.read) - len(read)
    if both := read & known:
        counters.broken += len(both)
        counters.note(f"{where}: {min(both)} is reported as lost, and was read")
    with Store.open(path, read_only=True) as store:
        ends = {queue: limits.max_offset for queue, limits in store.queue_ranges("In").items()}
    assert sum(ends.values()) == sent
    silent = {(queue, offset) for queue, end in ends.items() for offset in range(end)} - read - known
    counters.lost += len(silent)
    if silent:
        counters.note(f"{where}: {min(silent)} was neither read nor reported as lost")
    counters.seen["messages read"] += len(read)
    counters.seen["messages reported as lost"] += len(known)


# -- in Spark ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def spark_session(master: str) -> Iterator[Any]:
    """A Spark session of our own, or the one that the process has."""
    import warnings

    from pyspark.sql import SparkSession

    before = dict(os.environ)
    os.environ.update(spark_environment())
    if master.startswith("local-cluster"):
        import pyspark

        os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    mine = SparkSession.getActiveSession() is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = (
            SparkSession.builder.master(master)
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.python.daemon.module", "crash.workers.warm_daemon")
            .config("spark.log.level", "OFF")
            .getOrCreate()
        )
        try:
            yield session
        finally:
            if mine:
                session.stop()
                # Options of a JVM are read when it starts: the next session is to start its own.
                from pyspark import SparkContext

                gateway = SparkContext._gateway
                if gateway is not None:
                    gateway.shutdown()
                    gateway.proc.stdin.close()
                    gateway.proc.wait()
                    SparkContext._gateway = SparkContext._jvm = None
            os.environ.clear()
            os.environ.update(before)


def run_task_failures(trial: Trial) -> Counters:
    """Each cycle reads a topic of one store and writes it to another, as a batch or as a stream of some batches."""
    with spark_session("local[2,4]") as spark:
        from crash.workers.failing_source import FailingSource

        spark.dataSource.register(FailingSource)
        return _run_cycles(trial, spark, 3, lambda chance: None)


def _run_cycles(trial: Trial, spark: Any, failures: int, disturb: Callable[[random.Random], None]) -> Counters:
    """`failures`: how many attempts of a task fail at most; Spark gives up at the fourth, lost executors included."""
    import pyarrow as pa

    from rmq_store import Store

    counters = Counters(cycles=trial.cycles)
    for cycle in range(trial.cycles):
        chance = random.Random(f"{trial.seed}/{cycle}")
        directory = trial.directory / str(cycle)
        directory.mkdir()
        count = chance.randrange(20, 120)
        with Store.open(directory / "source", create=True, config=small_config()) as store:
            store.create_topic("In", 2)
            bodies = [body.encode() for body in numbered("In", range(count), chance)]
            store.append(pa.record_batch({"body": pa.array(bodies)}), "In")
        reading = chance.randrange(failures)
        failing = {
            "fail.read": str(reading), "fail.write": str(chance.randrange(1, failures + 1 - reading)),
            "fail.late": "true" if cycle % 4 in (0, 3) else "false", "fail.tell": str(directory / "told"),
            "fail.without": os.environ.get(WITHOUT, ""),
        }  # fmt: skip
        disturb(chance)
        streaming = (trial.seed + cycle) % 2 == 1
        _copy(spark, directory, failing, streaming=streaming)
        where = f"cycle {cycle}, seed {trial.seed}"
        compare(bodies_of(directory / "target", TOPIC), {"In": count}, counters, where)
        told = (directory / "told").read_bytes() if (directory / "told").exists() else b""
        counters.seen["streams" if streaming else "batches"] += 1
        counters.seen["attempts that failed reading"] += told.count(b"r")
        counters.seen["attempts that failed writing"] += told.count(b"w")
        shutil.rmtree(directory)
        trial.tick(1)
    return counters


def _copy(spark: Any, directory: Path, failing: dict[str, str], *, streaming: bool) -> None:
    source = {"path": str(directory / "source"), "subscribe": "In"} | failing
    target = {"path": str(directory / "target"), "topic": TOPIC} | failing
    if not streaming:
        rows = spark.read.format("rmq_failing").options(**source).load().select("body")
        rows.write.format("rmq_failing").options(**target).mode("append").save()
        return
    source |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "80"}
    rows = spark.readStream.format("rmq_failing").options(**source).load().select("body")
    query = rows.writeStream.format("rmq_failing").options(**target).trigger(availableNow=True)
    query.option("checkpointLocation", str(directory / "c")).start().awaitTermination()


def run_executor_kills(trial: Trial) -> Counters:
    """The same on two executors, one of which is killed while the job runs."""
    import threading

    with spark_session("local-cluster[2,1,1024]") as spark:
        from crash.workers.failing_source import FailingSource

        spark.dataSource.register(FailingSource)
        killed = 0

        def kill_soon(after_s: float, which: float) -> None:
            nonlocal killed
            time.sleep(after_s)
            executors = _executors(spark._sc._gateway.proc.pid)
            if executors:
                os.kill(executors[int(which * len(executors))], signal.SIGKILL)
                killed += 1

        killers: list[threading.Thread] = []

        def disturb(chance: random.Random) -> None:
            for killer in killers:
                killer.join()
            killers[:] = [threading.Thread(target=kill_soon, args=(chance.uniform(0.2, 3), chance.random()))]
            killers[0].start()

        counters = _run_cycles(trial, spark, 1, disturb)
        for killer in killers:
            killer.join()
        counters.seen["executors killed"] = killed
        return counters


def _executors(driver: int) -> list[int]:
    """The processes below this JVM that are executors."""
    children: dict[int, list[int]] = {}
    executors = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                command = (entry / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
            if b"CoarseGrainedExecutorBackend" in command:
                executors.add(int(entry.name))
    below, found = [driver], []
    while below:
        for child in children.get(below.pop(), []):
            below.append(child)
            if child in executors:
                found.append(child)
    return sorted(found)


def _no_pyspark() -> str:
    import importlib.util

    return "" if importlib.util.find_spec("pyspark") else "needs pyspark"


PARTS = (
    Part(
        name="task_failures",
        number="23",
        title="Tasks of reads and writes in Spark fail at attempts 0, 1 and 2, before and after their work",
        unit="jobs",
        harness=2,
        crash=30,
        soak=100,
        chunk=30,
        run=run_task_failures,
        protections=("no_staging",),
        bites_within=1,
        cannot_run=no_java,
        alone=True,
    ),
    Part(
        name="attempts",
        number="24",
        title="Duplicate and zombie attempts at a batch, dead drivers, other partitions the second time",
        unit="batches",
        harness=40,
        crash=1500,
        soak=6000,
        chunk=600,
        run=run_attempts,
        protections=("shared_staging_names", "no_marker"),
        bites_within=20,
        cannot_run=_no_pyspark,
    ),
    Part(
        name="executor_kills",
        number="24",
        title="Executors of a local cluster are killed while they work",
        unit="jobs",
        harness=2,
        crash=6,
        soak=12,
        chunk=10,
        run=run_executor_kills,
        cannot_run=no_java,
        alone=True,
    ),
    Part(
        name="retention_overtakes",
        number="26",
        title="Retention deletes what streams have not read, have planned, or are reading",
        unit="batches",
        harness=40,
        crash=600,
        soak=2000,
        chunk=300,
        run=run_retention,
        protections=("no_loss_check",),
        bites_within=30,
        cannot_run=_no_pyspark,
    ),
)  # fmt: skip
