"""A cluster over the network: our lanes, batch sends, source and sink beside RocketMQ's clients at the same broker."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from bench import pull_loop
from bench.bare_loop import built
from bench.case import Case, Pair, Target
from bench.messages import BODY_BYTES, TOPIC, plain
from bench.null_source import PARTITIONS
from bench.peer import Cluster
from bench.processor import used_s
from bench.rows.spark_read import COLUMNS, WHAT
from bench.rows.spark_write import columns
from bench.scratch import Scratch
from bench.spark_input import filled, read_all, rows_per_second, run_stream
from rmq_store import cluster as engine
from rmq_store.remoting.cluster.topics import topic_stats

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

READ = {100: 800_000, 1024: 400_000}
SENT = {100: 400_000, 1024: 200_000}
SINGLES = 50_000
JAVA_PULL_BATCH: Final = 32
JAVA_SEND_BATCH: Final = 100
SENDERS: Final = 16
BATCH_ROWS: Final = 16_384
FIVE: Final = ("topic", "queueId", "queueOffset", "body", "storeTimestamp")
TRIGGER_ROWS, TRIGGERS, TRIGGERS_LEFT_OUT = 10, 16, 5
FROM_DISK: Final = {"accessMessageInMemoryMaxRatio": 0}

_BROKER = (
    "RocketMQ 5.5.0 on loopback, name server, broker (2 GiB) and client in JVMs of their own (G1), ASYNC_FLUSH, "
    "defaults: a pull brings at most 32 messages or 256 KiB."
)
_READ = f"{PARTITIONS} queues, " + " and ".join(f"{rows:,} messages of {size:,} B" for size, rows in READ.items()) + "."
_SENT = f"{PARTITIONS} queues, " + " and ".join(f"{rows:,} messages of {size:,} B" for size, rows in SENT.items()) + "."
_READ_LIMIT = (
    "Beside other work, a pull of 32 messages of 100 B takes 33 us of our processor time, and a bare loop 7 (ADR 0027)."
    " Checks and columns take 6, the I/O thread 11, mostly for copies. The rest is Python for a round. The broker "
    "takes 55 us, and needs the other processor."
)
_SEND_LIMIT = (
    "Content keys, checksums and entries take 1.5 us of processor time for 1 KiB, a bare loop in C 0.3 "
    "(`python -m bench.batches`). The broker needs most of two processors; requests of 128 KiB, 256 KiB and 1 MiB are "
    "no faster than those of 512 KiB."
)
_SPARK_LIMIT = "Tasks, JVM and broker share two processors. Each task connects, and asks for routes, first."
_numbers = itertools.count()


def _new_name(kind: str) -> str:
    return f"{kind}_{next(_numbers)}"


def ask(cluster: Cluster, command: str, topic: str, **fields: object) -> float:
    """Let Java's client do something; returns messages per second."""
    done = cluster.client.ask(command, namesrv=cluster.name_server, group=_new_name("java"), topic=topic, **fields)
    return float(done["rate"])


def read_lanes(cluster: engine.Cluster, names: tuple[str, ...]) -> int:
    """Read all messages of the topic as record batches, queue by queue; their number."""
    rows = 0
    for queue, span in topic_stats(cluster, TOPIC).items():
        frames = engine.walk_range(cluster, queue, span.min_offset, span.max_offset)
        request = engine.AnswerRequest(queue.broker_name, TOPIC, queue.queue_id, names)
        rows += sum(batch.num_rows for batch in engine.answer_batches(frames, request))
    return rows


@contextlib.contextmanager
def _brokers(
    scratch: Scratch, body_bytes: int, filled_with: int, settings: dict[str, object] | None = None
) -> Iterator[tuple[Cluster, engine.Cluster]]:
    with scratch.peer().cluster(scratch.directory / "broker", **settings or {}) as peer:
        peer.broker.ask("broker.fill", topic=TOPIC, queues=PARTITIONS, bodyBytes=body_bytes, count=filled_with)
        with engine.Cluster(engine.ClusterSettings.of_text(peer.name_server)) as cluster:
            yield peer, cluster


@contextlib.contextmanager
def reading(
    scratch: Scratch, body_bytes: int, settings: dict[str, object] | None = None, spark_columns: str = "",
    bare_loop: bool = False, of_broker: bool = False,
) -> Iterator[Pair]:
    """Messages per second: lanes to Arrow, or Spark's batch read; beside Java's client, or a loop that drops them. Or
    `of_broker`, the broker's processor time for 32 messages in us, of lanes and of Java's client.
    """
    count = scratch.rows(READ[body_bytes])
    with _brokers(scratch, body_bytes, count, settings) as (peer, cluster):

        def lanes() -> float:
            begin = time.perf_counter()
            assert read_lanes(cluster, FIVE) == count
            return count / (time.perf_counter() - begin)

        def spark() -> float:
            reader = scratch.spark().read.format("rmq").options(nameServer=peer.name_server, subscribe=TOPIC)
            wanted = COLUMNS[spark_columns]
            frame = (reader.schema(wanted) if wanted else reader).load()
            return rows_per_second(count, lambda: read_all(frame))

        def yardstick() -> float:
            return ask(peer, "client.litePull", TOPIC, count=count, pullBatch=JAVA_PULL_BATCH)

        def loop() -> float:
            program = built("pull_loop", scratch.directory)
            duration_s = 0.0
            for queue, span in topic_stats(cluster, TOPIC).items():
                offsets = range(span.min_offset, span.max_offset, JAVA_PULL_BATCH)
                duration_s += pull_loop.fetch(program, cluster, queue, offsets, JAVA_PULL_BATCH).duration_s
            return count / duration_s

        def broker_us(read: Callable[[], float]) -> float:
            before_s = used_s([peer.broker.pid])
            read()
            return (used_s([peer.broker.pid]) - before_s) / (count / JAVA_PULL_BATCH) * 1e6

        yardstick()  # the client is slow until it is compiled
        if of_broker:
            yield Pair(partial(broker_us, lanes), partial(broker_us, yardstick))
        else:
            yield Pair(spark if spark_columns else lanes, loop if bare_loop else yardstick)


def _send(cluster: engine.Cluster, topic: str, batches: list[pa.RecordBatch]) -> float:
    settings = engine.SinkSettings(engine.EncoderSettings(default_topic=topic), replay_check=False)
    begin = time.perf_counter()
    with engine.SinkTask(cluster, settings, engine.WritePart(_new_name("write"), 0, 0)) as task:
        for batch in batches:
            task.write(batch)
        rows = task.finish().rows
    return rows / (time.perf_counter() - begin)


@contextlib.contextmanager
def sending(scratch: Scratch, body_bytes: int, *, spark: bool = False, singles: bool = False) -> Iterator[Pair]:
    """Messages per second: batch sends, or Spark's batch write; beside batches of one thread, or single sends."""
    count = scratch.rows(SENT[body_bytes])
    rows = plain(count, body_bytes)
    batches = [rows.slice(first, BATCH_ROWS) for first in range(0, count, BATCH_ROWS)]
    with _brokers(scratch, body_bytes, 0) as (peer, cluster):

        def by_spark() -> float:
            frame = _rows(scratch, count, body_bytes)
            sink = frame.write.format("rmq").options(nameServer=peer.name_server, topic=TOPIC).mode("append")
            return rows_per_second(count, sink.save)

        def yardstick() -> float:
            given: dict[str, Any] = {"bodyBytes": body_bytes}
            if singles:
                return ask(
                    peer, "client.sendSingles", TOPIC, count=scratch.rows(SINGLES), threads=SENDERS, **given
                )  # fmt: skip
            return ask(peer, "client.sendBatches", TOPIC, count=count, batch=JAVA_SEND_BATCH, **given)

        yardstick()
        yield Pair(by_spark if spark else partial(_send, cluster, TOPIC, batches), yardstick)


def _rows(scratch: Scratch, count: int, body_bytes: int) -> DataFrame:
    return columns(scratch.spark().range(count, numPartitions=PARTITIONS), "id", "body, tags, keys", body_bytes)


@contextlib.contextmanager
def few_rows(scratch: Scratch) -> Iterator[Pair]:
    """The median time of a trigger with ten rows, in ms."""
    count = TRIGGER_ROWS * (3 if scratch.quick else TRIGGERS)
    made = filled(scratch.directory, count, BODY_BYTES[1])
    with _brokers(scratch, BODY_BYTES[1], count) as (peer, _):
        limit = str(TRIGGER_ROWS)
        of_cluster = {"nameServer": peer.name_server, "subscribe": TOPIC, "startingOffsets": "earliest"}

        def trigger_ms(source: str, options: dict[str, str]) -> float:
            frame = scratch.spark().readStream.format(source).options(**options).load()
            progress = run_stream(frame, scratch.directory).recentProgress
            times = [one.durationMs["triggerExecution"] for one in progress if one.numInputRows == TRIGGER_ROWS]
            return statistics.median(times[min(TRIGGERS_LEFT_OUT, len(times) - 1) :])

        yield Pair(
            partial(trigger_ms, "rmq", of_cluster | {"maxOffsetsPerTrigger": limit}),
            partial(trigger_ms, "null", made.null() | {"rowsPerTrigger": limit}),
        )


def _case(
    name: str, title: str, body_bytes: int, yardstick: str, target: float | None, settings: tuple[str, ...],
    prepare: Callable[[Scratch], Any], limit: str, unit: str = "msgs/s", at_least: bool = True,
) -> Case:  # fmt: skip
    aim = None if target is None else Target(target, at_least)
    return Case(
        name, title, "cluster", body_bytes, yardstick, unit, aim, (*settings, _BROKER), prepare, limit, peers=True
    )


def _cases() -> Iterator[Case]:
    lite_pull = f"Java's LitePull consumer, batches of {JAVA_PULL_BATCH}"
    by_batches = f"Java's producer, one thread, batches of {JAVA_SEND_BATCH}"
    by_singles = f"Java's producer, {SENDERS} threads, single sends"
    lanes = ("Ours one process without Spark, queue after queue, five columns as record batches.", _READ)
    in_spark = (f"Ours a batch read in local[2], {PARTITIONS} tasks, Spark's noop sink.", _READ)
    written = (f"Ours a batch write of body, tags and keys in local[2], {PARTITIONS} tasks, no replay check.", _SENT)
    sends = ("Ours one process without Spark, body, tags, keys and a UNIQ_KEY, requests of 512 KiB.", _SENT)
    for at, size in enumerate(BODY_BYTES):
        yield _case(
            f"cluster-lanes-{size}", "lanes of pulls to Arrow, without Spark", size, lite_pull, (2.5, 1.8)[at],
            lanes, partial(reading, body_bytes=size), _READ_LIMIT,
        )  # fmt: skip
        yield _case(
            f"cluster-lanes-ceiling-{size}", "lanes of pulls to Arrow, without Spark", size,
            "a loop in C that sends the same pulls and drops the answers", 0.8, lanes,
            partial(reading, body_bytes=size, bare_loop=True), _READ_LIMIT,
        )  # fmt: skip
        yield _case(
            f"cluster-lanes-broker-{size}", f"broker's processor time for {JAVA_PULL_BATCH} messages, lanes of pulls",
            size, lite_pull, None, lanes, partial(reading, body_bytes=size, of_broker=True), "", unit="us",
            at_least=False,
        )  # fmt: skip
        for number, what in WHAT.items():
            yield _case(
                f"cluster-spark-read-{number}-columns-{size}", f"Spark batch read over the network, {what}", size,
                lite_pull, (1.5, 1.2)[at] if number == "5" else None, in_spark,
                partial(reading, body_bytes=size, spark_columns=number), _SPARK_LIMIT,
            )  # fmt: skip
        yield _case(
            f"cluster-sends-{size}", "batch sends, without Spark", size, by_batches, (2.5, 2)[at], sends,
            partial(sending, body_bytes=size), _SEND_LIMIT,
        )  # fmt: skip
        yield _case(
            f"cluster-spark-write-{size}", "Spark batch write over the network", size, by_batches, 1.3, written,
            partial(sending, body_bytes=size, spark=True), _SPARK_LIMIT,
        )  # fmt: skip
        yield _case(
            f"cluster-spark-write-singles-{size}", "Spark batch write over the network", size, by_singles, 10, written,
            partial(sending, body_bytes=size, spark=True, singles=True), _SPARK_LIMIT,
        )  # fmt: skip
    yield _case(
        f"cluster-lanes-disk-{BODY_BYTES[0]}", "lanes of pulls to Arrow, without Spark, from the broker's disk",
        BODY_BYTES[0], lite_pull, 2,
        (*lanes, "accessMessageInMemoryMaxRatio=0: a pull brings 8 messages or 64 KiB."),
        partial(reading, body_bytes=BODY_BYTES[0], settings=FROM_DISK), _READ_LIMIT,
    )  # fmt: skip
    yield _case(
        "cluster-trigger-10-rows", f"trigger with {TRIGGER_ROWS} rows over the network", BODY_BYTES[1],
        "null source, Spark's noop sink", 1.3,
        (f"local[2], {PARTITIONS} queues; the median of {TRIGGERS - TRIGGERS_LEFT_OUT} triggers of one query after "
         f"{TRIGGERS_LEFT_OUT} others.",),
        few_rows, "Calls to the broker: ends of queues, one compared message, and a connection of each Python worker.",
        unit="ms", at_least=False,
    )  # fmt: skip


CASES = tuple(_cases())
