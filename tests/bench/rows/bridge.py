"""Both mirrors of the Kafka bridge beside kafka-python's own consumer and producer, on one broker."""

from __future__ import annotations

import gc
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.case import Case, Pair, Target
from bench.kafka_broker import broker
from bench.messages import BODY_BYTES, plain
from bench.scratch import Scratch
from rmq_store import Store
from rmq_store.bridge.kafka.connect import open_administration, open_reader, open_writers
from rmq_store.bridge.kafka.connection import KafkaConnection
from rmq_store.bridge.mirror.into_kafka import IntoKafka
from rmq_store.bridge.mirror.into_store import IntoStore
from rmq_store.bridge.mirror.kafka_side import CopyRules, KafkaSide
from rmq_store.bridge.mirror.kafka_targets import TargetRules
from rmq_store.bridge.mirror.options import IntoStoreOptions
from rmq_store.bridge.positions.kafka_positions import KafkaPositions
from rmq_store.bridge.positions.topics import Rename, TopicChoice

ROWS = {100: 400_000, 1024: 150_000}
PARTITIONS = 4
CLUSTER_ID = "bench"
TOPIC = "Bridge"
HEADERS = (("region", b"eu-west"), ("priority", b"7"), ("origin", b"bench"))
_SENT = {"keyed": "key, value and 3 headers", "value": "value only"}
# By what is sent.
_TARGETS_IN = {"keyed": Target(2.0), "value": Target(1.2)}
_TARGET_OUT = Target(1.0)

_BROKER = ("transaction.state.log.replication.factor=1", "transaction.state.log.min.isr=1")
_SETTINGS = (
    "The same records for both, "
    + " and ".join(f"{rows:,} of {size:,} B" for size, rows in ROWS.items())
    + f", in {PARTITIONS} partitions and as many queues. Kafka: one node on loopback, 1 GiB of heap, no compression. "
    "Connections are made before the clock starts."
)
_IN = (
    "kafka-python's producer filled the topic, in batches of 16 KiB. The yardstick reads it as "
    "`kafka.benchmarks.consumer_performance` does, read committed, and keeps nothing. The mirror writes a new store "
    "each time, exactly once."
)
_OUT = (
    "The yardstick sends as `kafka.benchmarks.producer_performance` does, but with these records and a partition for "
    "each, idempotent, acks=all. The mirror reads a store, and commits records and positions in transactions. A new "
    "topic for each measurement."
)


def _records(rows: int, body_bytes: int) -> tuple[list[bytes], list[bytes]]:
    """Values and keys."""
    made = plain(rows, body_bytes)
    return made.column("body").to_pylist(), [key.encode() for key in made.column("keys").to_pylist()]


def _send_all(address: str, topic: str, rows: int, body_bytes: int, kind: str) -> float:
    """Records per second of kafka-python's producer, to the last answer."""
    from kafka import KafkaProducer

    values, keys = _records(rows, body_bytes)
    headers = list(HEADERS) if kind == "keyed" else None
    producer = KafkaProducer(bootstrap_servers=address, acks="all", metrics_enabled=False)
    try:
        producer.partitions_for(topic)
        gc.collect()
        begun_s = time.perf_counter()
        send = producer.send
        results = [
            send(topic, value, key if headers else None, headers, number % PARTITIONS)
            for number, (value, key) in enumerate(zip(values, keys, strict=True))
        ]
        producer.flush()
        taken_s = time.perf_counter() - begun_s
        assert all(result.succeeded() for result in results)
    finally:
        producer.close()
    return rows / taken_s


def _read_all(address: str, topic: str, rows: int) -> float:
    """Records per second of kafka-python's consumer."""
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        topic, bootstrap_servers=address, isolation_level="read_committed", auto_offset_reset="earliest",
        consumer_timeout_ms=60_000, metrics_enabled=False,
    )  # fmt: skip
    try:
        gc.collect()
        begun_s = time.perf_counter()
        count = 0
        for _ in consumer:
            count += 1
            if count == rows:
                break
        taken_s = time.perf_counter() - begun_s
        assert count == rows
    finally:
        consumer.close()
    return rows / taken_s


def _mirror_in(root: Path, address: str, topic: str, rows: int) -> float:
    connection = KafkaConnection((address,))
    options = IntoStoreOptions("bench", CLUSTER_ID, TopicChoice((topic,)), create_topics=True)
    with ExitStack() as stack:
        store = stack.enter_context(Store.open(root, create=True))
        administration = stack.enter_context(closing(open_administration(connection)))
        reader = stack.enter_context(closing(open_reader(connection)))
        mirror = IntoStore(store, reader, administration, options, wait=_sleep)
        gc.collect()
        begun_s = time.perf_counter()
        report = mirror.run(until_caught_up=True)
        taken_s = time.perf_counter() - begun_s
        assert report.copied == rows, report
    return rows / taken_s


def _mirror_out(store: Store, address: str, topic: str, rows: int) -> float:
    connection, name = KafkaConnection((address,)), uuid.uuid4().hex
    with ExitStack() as stack:
        administration = stack.enter_context(closing(open_administration(connection)))
        writers = stack.enter_context(closing(open_writers(connection, administration)))
        reader = stack.enter_context(closing(open_reader(connection)))
        positions = KafkaPositions(name, CLUSTER_ID, reader, administration, writers)
        positions.prepare()
        side = KafkaSide(name, CLUSTER_ID, administration.cluster_id(), administration, writers, positions)
        choice = TopicChoice((TOPIC,), renames=(Rename.parse(f"{TOPIC}={topic}"),))
        mirror = IntoKafka(store, side, choice, CopyRules(), TargetRules(), wait=_sleep)
        gc.collect()
        begun_s = time.perf_counter()
        report = mirror.run(until_caught_up=True)
        taken_s = time.perf_counter() - begun_s
        assert report.copied == rows, report
    return rows / taken_s


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _make_store(root: Path, rows: int, body_bytes: int, kind: str) -> None:
    with Store.open(root, create=True) as store:
        store.create_topic(TOPIC, queue_count=PARTITIONS)
        made = plain(rows, body_bytes)
        columns: dict[str, Any] = {"body": made.column("body")}
        columns["queueId"] = pa.array(np.arange(rows, dtype=np.int32) % PARTITIONS)
        if kind == "keyed":
            columns["keys"] = made.column("keys")
            names = pa.array([name for name, _ in HEADERS] * rows)
            values = pa.array([value.decode() for _, value in HEADERS] * rows)
            offsets = np.arange(0, len(HEADERS) * rows + 1, len(HEADERS), dtype=np.int32)
            columns["properties"] = pa.MapArray.from_arrays(offsets, names, values)
        store.append(pa.RecordBatch.from_pydict(columns), TOPIC)


def _new_topic(address: str) -> str:
    administration = open_administration(KafkaConnection((address,)))
    try:
        return administration.create_topic(f"bench-{uuid.uuid4().hex}", PARTITIONS, {}).name
    finally:
        administration.close()


def _in(kind: str, body_bytes: int) -> Callable[[Scratch], Iterator[Pair]]:
    def prepare(scratch: Scratch) -> Iterator[Pair]:
        rows = scratch.rows(ROWS[body_bytes])
        scratch.touch_memory(4 * rows * (body_bytes + 300))
        with broker(scratch.directory, *_BROKER) as address:
            topic = _new_topic(address)
            _send_all(address, topic, rows, body_bytes, kind)

            def ours() -> float:
                return _mirror_in(scratch.directory / uuid.uuid4().hex, address, topic, rows)

            yield Pair(ours, lambda: _read_all(address, topic, rows))

    return prepare


def _out(kind: str, body_bytes: int) -> Callable[[Scratch], Iterator[Pair]]:
    def prepare(scratch: Scratch) -> Iterator[Pair]:
        rows = scratch.rows(ROWS[body_bytes])
        _make_store(scratch.directory / "store", rows, body_bytes, kind)
        scratch.touch_memory(4 * rows * (body_bytes + 300))
        with broker(scratch.directory, *_BROKER) as address, Store.open(scratch.directory / "store") as store:
            yield Pair(
                lambda: _mirror_out(store, address, _new_topic(address), rows),
                lambda: _send_all(address, _new_topic(address), rows, body_bytes, kind),
            )

    return prepare


def _cases() -> Iterator[Case]:
    for kind, sent in _SENT.items():
        for body_bytes in BODY_BYTES:
            yield Case(
                f"mirror-in-{kind}-{body_bytes}", f"Kafka to RocketMQ, {sent}", "mirror", body_bytes,
                "kafka-python's consumer", "records/s", _TARGETS_IN[kind], (_SETTINGS, _IN),
                contextmanager(_in(kind, body_bytes)), peers=True,
            )  # fmt: skip
    for kind, sent in _SENT.items():
        for body_bytes in BODY_BYTES:
            yield Case(
                f"mirror-out-{kind}-{body_bytes}", f"RocketMQ to Kafka, {sent}", "mirror", body_bytes,
                "kafka-python's producer", "records/s", _TARGET_OUT, (_SETTINGS, _OUT),
                contextmanager(_out(kind, body_bytes)), peers=True,
            )  # fmt: skip


CASES = tuple(_cases())
