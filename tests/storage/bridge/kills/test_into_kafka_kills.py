"""Kills of the mirror into Kafka, and of that Kafka: nothing lost, nothing twice, the order kept.

As the kills of the other way, by RMQ_MIRROR_KILLS and RMQ_MIRROR_SEED. Judged by kafka-python's own reader of committed
records, beside the store.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from helpers.kafka_server import KafkaServer
from rmq_store import Store
from rmq_store.bridge.kafka.client import Partition
from rmq_store.bridge.kafka.writer import KafkaPythonWriters
from storage.bridge.kills import store_writer
from storage.bridge.kills.kill_loop import PATIENCE_S, committed, kill_loop, mirror_process, settle
from storage.bridge.kills.test_into_store_kills import KILLS, PARTITIONS, RATE, Verdict

pytestmark = pytest.mark.harness

# A mirror that writes rows and positions in two transactions, and can be killed in between.
TWO_TRANSACTIONS = """
import time
from rmq_store.bridge.kafka.writer import KafkaPythonWriter
add = KafkaPythonWriter.add
def in_two(self, partition, rows):
    if partition.topic.startswith("__pyrmq") and self._added:
        self.commit()
        time.sleep(0.5)
        self.begin()
    add(self, partition, rows)
KafkaPythonWriter.add = in_two
from rmq_store.cli import main
main()
"""


def arguments(kafka: KafkaServer, root: Path, topic: str, *more: str) -> list[str]:
    return [
        "rmq-to-kafka", str(root), "--name", f"m-{topic}", "--cluster-id", "rmq-killed", "--compression", "lz4",
        "--bootstrap-servers", kafka.address, "--topics", topic, *more,
    ]  # fmt: skip


def judge(kafka: KafkaServer, root: Path, topic: str) -> Verdict:
    """Kafka beside what the store has."""
    verdict = Verdict()
    with Store.open(root, read_only=True) as store:
        for queue_id in range(PARTITIONS):
            batches = store.read(topic, queue_id, *store.queue_range(topic, queue_id), columns=["body"])
            expected = [body for batch in batches for body in batch.column("body").to_pylist()]
            found = [value for _, _, value in committed(kafka, topic, queue_id)]
            verdict.rows += len(found)
            verdict.lost += len(set(expected) - set(found))
            verdict.duplicated += len(found) - len(set(found))
            verdict.altered += len(set(found) - set(expected))
            verdict.misplaced += found != expected
    return verdict


@contextlib.contextmanager
def progress_of(kafka: KafkaServer, topic: str) -> Iterator[list[KafkaPythonWriters]]:
    """Connections that ask how far the partitions are."""
    writers = [KafkaPythonWriters({"bootstrap_servers": [kafka.address]}, lambda topic: {})]
    try:
        yield writers
    finally:
        writers[0].close()


def written(writers: KafkaPythonWriters, topic: str) -> int:
    return sum(writers.high_watermark(Partition(topic, number)) for number in range(PARTITIONS))


@contextlib.contextmanager
def storing(root: Path, topic: str, seed: int) -> Iterator[None]:
    """Somebody writes to the store during the block."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    process = subprocess.Popen(
        [sys.executable, str(Path(store_writer.__file__)), str(root), topic, str(PARTITIONS), str(seed)],
        env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield
        assert process.poll() is None, "the writer has ended by itself"
    finally:
        process.kill()
        process.wait()


def prepared(kafka: KafkaServer, root: Path, prefix: str, rows: int) -> str:
    topic = kafka.new_topic(prefix, partition_count=PARTITIONS)
    chance, numbers = random.Random(0), count()
    with Store.open(root, create=True) as store:
        store.create_topic(topic, queue_count=PARTITIONS)
        for queue_id in range(PARTITIONS):
            store.send_all([store_writer.one(topic, queue_id, -1 - next(numbers), chance) for _ in range(rows)])
    return topic


@pytest.mark.minutes
def test_kills_of_mirror_and_broker_lose_and_repeat_nothing(kafka: KafkaServer, scratch: Path) -> None:
    seed = int(os.environ.get("RMQ_MIRROR_SEED", time.time_ns() % 1_000_000))
    root, log = scratch / "store", scratch / "mirror.log"
    topic = prepared(kafka, root, "into-kafka", 2000)
    with storing(root, topic, seed), progress_of(kafka, topic) as (writers,):
        tally = kill_loop(
            lambda: mirror_process(arguments(kafka, root, topic, "--rate", RATE), log),
            lambda: written(writers, topic),
            kafka,
            mirror_kills=KILLS,
            broker_kills=KILLS // 2,
            chance=random.Random(seed),
        )
    process = mirror_process(arguments(kafka, root, topic, "--once"), log)
    assert process.wait(PATIENCE_S) == 0, log.read_text()[-2000:]
    settle(kafka, topic, PARTITIONS)
    verdict = judge(kafka, root, topic)
    assert verdict.is_clean, (verdict, tally, seed)
    assert tally.in_progress > 0
    assert verdict.rows >= 2000 * PARTITIONS


@pytest.mark.teeth
def test_a_mirror_that_commits_rows_before_their_positions_is_caught(kafka: KafkaServer, scratch: Path) -> None:
    """The teeth of the test above."""
    root, log = scratch / "store", scratch / "mirror.log"
    topic = prepared(kafka, root, "toothed-kafka", 500)
    process = mirror_process(arguments(kafka, root, topic), log, program=TWO_TRANSACTIONS)
    deadline_s = time.monotonic() + PATIENCE_S
    with progress_of(kafka, topic) as (writers,):
        while written(writers, topic) == 0:
            assert process.poll() is None and time.monotonic() < deadline_s, log.read_text()[-2000:]
            time.sleep(0.01)
    settle(kafka, topic, PARTITIONS)  # the first transaction is committed
    process.kill()
    process.wait()
    process = mirror_process(arguments(kafka, root, topic, "--once"), log, program=TWO_TRANSACTIONS)
    assert process.wait(PATIENCE_S) == 0, log.read_text()[-2000:]
    settle(kafka, topic, PARTITIONS)
    assert judge(kafka, root, topic).duplicated > 0
