"""The most anonymous memory that Spark's Python processes need, on small and on large stores.

"Workers" run tasks; the driver's Python plans, and commits what a write has staged. Each job has a Spark context of its
own, in a process of its own: workers live as long as their context, and do not give back what they once needed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.case import Case, Pair, Target
from bench.crew import Crew
from bench.messages import TOPIC
from bench.rows.memory import Make, Watch, few_queues, large_messages, many_queues, medium
from bench.scratch import Scratch, start_spark
from bench.stores import large

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WORKER_MB_MAX = 350
WRITTEN_ROWS = 100_000
PLANNED_ROWS = 1000
TASKS = 20


def python_kinds(java_pid: int) -> dict[int, str]:
    """Spark's Python processes, {pid: kind}: "workers" run tasks, the others ("driver") plan and commit for the driver.

    The process that forks them is one of its kind.
    """
    kinds = {}
    left = [java_pid]
    while left:
        pid = left.pop()
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                left += map(int, (task / "children").read_text().split())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            # A program that the JVM is about to start is for an instant a copy of the JVM, with all its memory.
            if Path(f"/proc/{pid}/exe").readlink().name.startswith("python"):
                is_of_driver = b"pyspark.sql.worker." in command or b"pyspark.sql.streaming." in command
                kinds[pid] = "driver" if is_of_driver else "workers"
    return kinds


class Kinds:
    """`python_kinds` as they were at most 50 ms ago: to find them takes longer than to look at them."""

    def __init__(self, java_pid: int) -> None:
        self._java_pid = java_pid
        self._next_s = 0.0
        self._known: dict[int, str] = {}

    def __call__(self) -> dict[int, str]:
        if time.monotonic() >= self._next_s:
            self._known = python_kinds(self._java_pid)
            self._next_s = time.monotonic() + 0.05
        return self._known


def scan(spark: SparkSession, root: str, directory: str, row_count: int) -> None:
    """A stream reads everything, all columns, in one batch."""
    source = spark.readStream.format("rmq").options(subscribe=TOPIC, startingOffsets="earliest", minPartitions=TASKS)
    writer = source.load(root).writeStream.format("noop").trigger(availableNow=True)
    writer.option("checkpointLocation", f"{directory}/{time.monotonic_ns()}").start().awaitTermination()


def plan(spark: SparkSession, root: str, directory: str, row_count: int) -> None:
    """A batch over everything is planned, and its first rows are read."""
    assert len(_batch(spark, root, subscribe=TOPIC).head(PLANNED_ROWS)) == PLANNED_ROWS


def write(spark: SparkSession, root: str, directory: str, row_count: int) -> None:
    """`row_count` messages of the store's first queue are appended to it again."""
    queue = f'{{"{TOPIC}":[0]}}'
    frame = _batch(spark, root, assign=queue, endingOffsets=f'{{"{TOPIC}":{{"0":{row_count}}}}}')
    frame.select("body", "tags", "keys").write.format("rmq").mode("append").save(root, topic=TOPIC)


JOBS = {job.__name__: job for job in (scan, plan, write)}


def _batch(spark: SparkSession, root: str, **options: Any) -> DataFrame:
    return spark.read.format("rmq").options(**options).load(root)


@contextlib.contextmanager
def watching(number: int, directory: str) -> Iterator[Callable[[str, str, int], tuple[float, float]]]:
    """One process of a crew: runs a job on the store `root` with a new Spark context, and says how much memory one
    worker, and one Python process of the driver, needed at most.
    """

    def once(job: str, root: str, row_count: int) -> tuple[float, float]:
        spark = start_spark()
        try:
            with Watch(Kinds(spark.sparkContext._gateway.proc.pid)) as watch:
                JOBS[job](spark, root, directory, row_count)
        finally:
            spark.stop()
        return watch.peak_mb["workers"], watch.peak_mb["driver"]

    yield once


@contextlib.contextmanager
def in_spark(scratch: Scratch, job: Callable[..., None], ours: Make, yardstick: Make) -> Iterator[Pair]:
    """Megabytes: of a worker, and of a Python process of the driver."""
    roots = scratch.once(ours), scratch.once(yardstick)
    with Crew(1, watching, str(scratch.directory)) as crew:

        def take(root: Path) -> tuple[float, ...]:
            return tuple(crew.run(job.__name__, str(root), scratch.rows(WRITTEN_ROWS))[0].answer)

        yield Pair(*(partial(take, root) for root in roots))


_WATCHED = "RssAnon of the largest process of each kind; local[2], a new Spark context each time."
_READ_LIMIT = (
    "One batch at a time, as Spark holds it, memory that is kept for the next batches, and 30 MB of Python, numpy, "
    "pyarrow and the engine."
)


def _case(
    name: str, title: str, yardstick: str, settings: str, limit: str, job: Callable[..., None], *stores: Make
) -> Case:
    return Case(
        name=f"memory-spark-{name}",
        title=title,
        group="memory",
        body_bytes=None,
        yardstick=yardstick,
        unit="MB",
        target=Target(1.15, at_least=False, ours_at_most=WORKER_MB_MAX),
        settings=(settings, _WATCHED),
        prepare=partial(in_spark, job=job, ours=stores[0], yardstick=stores[1]),
        figures=("workers", "driver"),
        limit=limit,
    )


CASES = (
    _case(
        "read-20-gb", "memory of a stream that reads 20 GB", "the same with 1 GB",
        f"AvailableNow, all columns, 2 KiB bodies, {TASKS} tasks.",
        _READ_LIMIT,
        scan, large, medium,
    ),
    _case(
        "write-20-gb", "memory of a batch write into a store of 20 GB", "the same into one of 1 GB",
        f"{WRITTEN_ROWS:,} rows of 2 KiB, exactly once.",
        "Encoded rows of one of Spark's batches, and for the commit two buffers of 1 MiB and 4 bytes a row.",
        write, large, medium,
    ),
    _case(
        "10000-queues", "memory of a batch over 10,000 queues", "the same messages in 4 queues",
        f"Planned as a whole, {PLANNED_ROWS:,} rows read: a task for each queue takes Spark minutes.",
        "The driver holds 0.6 KB for each queue: its range, and the task that is planned for it.",
        plan, many_queues, few_queues,
    ),
    _case(
        "4-mib", "memory of a stream of 4 MiB messages", "2 KiB messages of 1 GB as well",
        f"AvailableNow, all columns, {TASKS} tasks.", _READ_LIMIT, scan, large_messages, medium,
    ),
)  # fmt: skip
