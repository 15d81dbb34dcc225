"""What a trigger costs that has next to nothing to do, or nothing: our source and sink beside the null ones."""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench import processor
from bench.case import Case, Pair, Target
from bench.null_source import PARTITIONS
from bench.scratch import Scratch
from bench.spark_input import TOPIC, Input, filled, run_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

ROWS_PER_TRIGGER = 10
# The first ones find cold code.
TRIGGERS, TRIGGERS_LEFT_OUT = 16, 5
SETTLE_S, LOOKING_S, IDLE_S = 2.0, 2.0, 12.0
GROUP = "BenchGroup"

_WRITTEN = ("topic", "body", "tags", "keys", "properties")


def _load(spark: SparkSession, source: str, options: dict[str, str]) -> DataFrame:
    return spark.readStream.format(source).options(**options).load()


def _trigger_ms(frame: DataFrame, directory: Path, sink: str, options: dict[str, str]) -> float:
    """The median time of a trigger, as Spark's progress tells it."""
    if sink != "noop":
        frame = frame.select(*_WRITTEN)
    progress = run_stream(frame, directory, sink, **options).recentProgress
    triggers = [one.durationMs["triggerExecution"] for one in progress if one.numInputRows == ROWS_PER_TRIGGER]
    return statistics.median(triggers[min(TRIGGERS_LEFT_OUT, len(triggers) - 1) :])


def _few_rows(sinks: tuple[str, str], group: bool) -> Callable[[Scratch], Iterator[Pair]]:
    def prepare(scratch: Scratch) -> Iterator[Pair]:
        from rmq_store import Store

        spark = scratch.spark()
        made = filled(scratch.directory, ROWS_PER_TRIGGER * (3 if scratch.quick else TRIGGERS), 1024)
        target = scratch.directory / "target"
        with Store.open(target, create=True) as store:
            store.create_topic(TOPIC, queue_count=PARTITIONS)
        limit = {"maxOffsetsPerTrigger": str(ROWS_PER_TRIGGER)}

        def ours() -> float:
            frame = _load(spark, "rmq", made.ours() | limit | _of_group(group))
            return _trigger_ms(frame, scratch.directory, sinks[0], {"path": str(target)} if sinks[0] == "rmq" else {})

        def yardstick() -> float:
            frame = _load(spark, "null", made.null() | {"rowsPerTrigger": str(ROWS_PER_TRIGGER)})
            return _trigger_ms(frame, scratch.directory, sinks[1], {})

        yield Pair(ours, yardstick)

    return prepare


def _of_group(group: bool) -> dict[str, str]:
    # A group of its own each time: it begins at the first message, not where the run before has ended.
    return {"group": f"{GROUP}-{uuid.uuid4().hex}"} if group else {}


@contextmanager
def _idle(frame: DataFrame, directory: Path) -> Iterator[StreamingQuery]:
    """A query with the default trigger that has read everything and looks for more."""
    checkpoint = directory / f"checkpoint-{uuid.uuid4().hex}"
    query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    try:
        query.processAllAvailable()
        time.sleep(SETTLE_S)
        yield query
        assert query.isActive, query.exception()
    finally:
        query.stop()


def _look_ms(spark: SparkSession, made: Input, source: str, options: dict[str, str]) -> float:
    """The time from one look for new rows to the next."""
    looks = made.store.with_name(f"looks-{uuid.uuid4().hex}")
    with _idle(_load(spark, source, options | {"looks": str(looks)}), looks.parent):
        before, begun = looks.stat().st_size, time.perf_counter()
        time.sleep(LOOKING_S)
        passed_s, count = time.perf_counter() - begun, looks.stat().st_size - before
    return 1000 * passed_s / max(count, 1)


def _idle_s_per_minute(spark: SparkSession, made: Input, source: str, options: dict[str, str]) -> float:
    with _idle(_load(spark, source, options), made.store.parent):
        pids = processor.family()
        used_s, begun = processor.used_s(pids), time.perf_counter()
        time.sleep(IDLE_S)
        used_s, passed_s = processor.used_s(pids) - used_s, time.perf_counter() - begun
    return 60 * used_s / passed_s


def _nothing(
    figure: Callable[[SparkSession, Input, str, dict[str, str]], float], ours: str, group: bool
) -> Callable[[Scratch], Iterator[Pair]]:
    def prepare(scratch: Scratch) -> Iterator[Pair]:
        spark = scratch.spark()
        made = filled(scratch.directory, ROWS_PER_TRIGGER, 1024)
        yield Pair(
            lambda: figure(spark, made, ours, made.ours() | _of_group(group)),
            lambda: figure(spark, made, "null", made.null()),
        )

    return prepare


def _case(
    name: str,
    title: str,
    yardstick: str,
    unit: str,
    most: float,
    settings: str,
    prepare: Callable[[Scratch], Iterator[Pair]],
) -> Case:
    made: Callable[[Scratch], AbstractContextManager[Pair]] = contextmanager(prepare)
    target = Target(most, at_least=False)
    limit = {_TRIGGERS: _FEW_ROWS_LIMIT, _LOOKS: _NOTHING_LIMIT, _CPU: _IDLE_LIMIT}[settings]
    return Case(name, title, "trigger", 1024, yardstick, unit, target, f"local[2], {settings}", made, limit=limit)


# Found with the durationMs of Spark's progress, ours beside the null source's, and with clocks in tasks and commits.
_FEW_ROWS_LIMIT = (
    "Spark's own work. Each of four tasks takes 4 ms of processor time to read the store's settings, encode and "
    "stage; a commit takes 7 ms of it and lasts 10 to 30. Ours is faster because its workers skip the garbage "
    "collection after each task, 20 to 40 ms of a processor."
)
_NOTHING_LIMIT = "Spark's pause, and the way from Spark to the Python process that polls."
# Found with the processor time of each process, and py-spy in the one that looks.
_IDLE_LIMIT = (
    "The JVM differs by more between two runs. Spark asks 5,600 times a minute for the next position and the "
    "newest: our process reads and writes 840 bytes of JSON each time, the null source's 20, which takes 30 us. A "
    "poll reads mapped memory; everything else is checked every 200 ms."
)
_TRIGGERS = (
    f"{PARTITIONS} queues, so that the rows come in {PARTITIONS} tasks; the median of {TRIGGERS - TRIGGERS_LEFT_OUT} "
    f"triggers of one query after {TRIGGERS_LEFT_OUT} others, as Spark's progress gives their time."
)
_LOOKS = "default trigger, from one poll for new rows to the next; 10 ms of it are Spark's own pause."
_CPU = f"default trigger; driver, JVM and all Python workers together, over {IDLE_S:g} s."

CASES = (
    _case("trigger-10-rows", "trigger with 10 rows, source and sink of 5 columns", "null source and null sink", "ms",
          1.15, _TRIGGERS, _few_rows(("rmq", "null"), False)),
    _case("trigger-10-rows-read", "trigger with 10 rows, source alone", "null source, Spark's noop sink", "ms", 1.15,
          _TRIGGERS, _few_rows(("noop", "noop"), False)),
    _case("trigger-10-rows-group", "trigger with 10 rows, source with a group, sink", "null source and null sink", "ms",
          1.15, _TRIGGERS, _few_rows(("rmq", "null"), True)),
    _case("trigger-nothing", "trigger with nothing", "null source", "ms", 1.15, _LOOKS,
          _nothing(_look_ms, "counted", False)),
    _case("trigger-nothing-group", "trigger with nothing, source with a group", "null source", "ms", 1.15, _LOOKS,
          _nothing(_look_ms, "counted", True)),
    _case("trigger-idle-processor", "processor time of an idle query", "null source", "s/min", 1.2, _CPU,
          _nothing(_idle_s_per_minute, "rmq", False)),
    _case("trigger-idle-processor-group", "processor time of an idle query with a group", "null source", "s/min", 1.2,
          _CPU, _nothing(_idle_s_per_minute, "rmq", True)),
)  # fmt: skip
