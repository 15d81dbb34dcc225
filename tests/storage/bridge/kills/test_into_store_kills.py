"""Kills of the mirror into a store, and of its Kafka: nothing lost, nothing twice, the order kept.

RMQ_MIRROR_KILLS says how many kills of the mirror (`make kafka`: 100), and half as many of the broker; RMQ_MIRROR_SEED
repeats what is random here.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from kafka import TopicPartition

from helpers.kafka_server import KafkaServer
from helpers.kafka_upstream import numbered, produce
from rmq_store import Store, StoreConfig
from rmq_store.bridge.positions.store_positions import StorePositions
from rmq_store.verify import verify_store
from storage.bridge.kills.kill_loop import (
    PATIENCE_S,
    committed,
    ends_of,
    kill_loop,
    mirror_process,
    settle,
    writing,
)
from storage.bridge.mirror.into_store_lab import CLUSTER_ID, copied

pytestmark = pytest.mark.harness

KILLS = int(os.environ.get("RMQ_MIRROR_KILLS", "5"))
# With so many both kinds of flush are tried, otherwise one.
MANY_KILLS = 20
PARTITIONS = 3
# Slow enough to be killed in between, and in units of as many rows.
RATE = "4000"

# A mirror that writes rows and position one after the other, and can be killed in between.
TWO_APPENDS = """
import time
from rmq_store.bridge.positions.store_positions import StorePositions
advance = StorePositions.advance
def in_two(self, topics, partition, position, batches=(), **how):
    if batches:
        for batch in batches:
            self._store.append_unit([batch], purpose="rows", key=str(time.time_ns()), value=1, expect=None,
                                    keep_unique_key=True)
        time.sleep(0.5)
    return advance(self, topics, partition, position, [], **how)
StorePositions.advance = in_two
from rmq_store.bridge.positions import queue_tail
queue_tail.last_source_offset = lambda store, route: None
from rmq_store.cli import main
main()
"""


@dataclass
class Verdict:
    """Of all partitions: records that are missing, that came more than once, and places out of order."""

    rows: int = 0
    lost: int = 0
    duplicated: int = 0
    misplaced: int = 0
    altered: int = 0

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.duplicated or self.misplaced or self.altered)


def judge(kafka: KafkaServer, root: Path, topic: str) -> Verdict:
    """The store beside what Kafka has, by kafka-python's own reader."""
    verdict = Verdict()
    with Store.open(root, read_only=True) as store:
        for partition in range(PARTITIONS):
            expected = committed(kafka, topic, partition)
            found = [
                (int(message.properties["MIRROR_FROM"].split()[3]), (message.key or "").encode(), message.body)
                for message in copied(store, topic, partition)
            ]
            counts = Counter(offset for offset, *_ in found)
            verdict.rows += len(found)
            verdict.lost += sum(offset not in counts for offset, *_ in expected)
            verdict.duplicated += sum(count - 1 for count in counts.values())
            verdict.misplaced += sum(a >= b for (a, *_), (b, *_) in pairwise(found))
            verdict.altered += len(set(found) - set(expected))
    return verdict


def arguments(kafka: KafkaServer, root: Path, topic: str, *more: str) -> list[str]:
    return [
        "kafka-to-rmq", str(root), "--name", "killed", "--cluster-id", CLUSTER_ID, "--create-topics",
        "--bootstrap-servers", kafka.address, "--topics", topic, *more,
    ]  # fmt: skip


def rows_in(root: Path, topic: str) -> int:
    with Store.open(root, read_only=True) as store:
        return sum(store.queue_range(topic, partition)[1] for partition in range(PARTITIONS))


def explain(kafka: KafkaServer, root: Path, topic: str, log: Path, seed: int) -> str:
    places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    stable, high = ends_of(kafka, places)
    with Store.open(root) as store:
        known = StorePositions(store, "killed", kafka.cluster_id).read(topic)
    return f"seed {seed}; stable ends {stable}, ends {high}, {known}; {log.read_text()[-3000:]}"


def finish(kafka: KafkaServer, root: Path, topic: str, log: Path) -> None:
    """What is there now is copied by a mirror that nobody kills."""
    process = mirror_process(arguments(kafka, root, topic, "--once"), log)
    assert process.wait(PATIENCE_S) == 0, log.read_text()[-2000:]


@pytest.mark.parametrize(
    "flush", ["ASYNC_FLUSH", pytest.param("SYNC_FLUSH", marks=[pytest.mark.slow] if KILLS < MANY_KILLS else [])]
)
def test_kills_of_mirror_and_broker_lose_and_repeat_nothing(kafka: KafkaServer, scratch: Path, flush: str) -> None:
    seed = int(os.environ.get("RMQ_MIRROR_SEED", time.time_ns() % 1_000_000))
    chance = random.Random(seed)
    root, log = scratch / "store", scratch / "mirror.log"
    Store.open(root, create=True, config=StoreConfig(flush_disk_type=flush)).close()
    topic = kafka.new_topic("killed", partition_count=PARTITIONS)
    for partition in range(PARTITIONS):
        produce(kafka, topic, numbered(2000), partition=partition)
    with writing(kafka, topic, PARTITIONS, seed):
        tally = kill_loop(
            lambda: mirror_process(arguments(kafka, root, topic, "--rate", RATE, "--json"), log),
            lambda: rows_in(root, topic),
            kafka,
            mirror_kills=KILLS,
            broker_kills=KILLS // 2,
            chance=chance,
            explain=lambda: explain(kafka, root, topic, log, seed),
        )
    finish(kafka, root, topic, log)
    verdict = judge(kafka, root, topic)
    assert verdict.is_clean, (verdict, tally, seed)
    assert tally.in_progress > 0
    assert verdict.rows >= 2000 * PARTITIONS
    assert verify_store(root).status == "clean"


@pytest.mark.teeth
def test_a_mirror_that_writes_rows_before_their_position_is_caught(kafka: KafkaServer, scratch: Path) -> None:
    """The teeth of the test above."""
    root, log = scratch / "store", scratch / "mirror.log"
    Store.open(root, create=True).close()
    topic = kafka.new_topic("toothed", partition_count=PARTITIONS)
    for partition in range(PARTITIONS):
        produce(kafka, topic, numbered(500), partition=partition)
    process = mirror_process(arguments(kafka, root, topic), log, program=TWO_APPENDS)
    deadline_s = time.monotonic() + PATIENCE_S
    while rows_in(root, topic) == 0:
        assert process.poll() is None and time.monotonic() < deadline_s, log.read_text()[-2000:]
        time.sleep(0.01)
    process.kill()
    process.wait()
    settle(kafka, topic, PARTITIONS)
    process = mirror_process(arguments(kafka, root, topic, "--once"), log, program=TWO_APPENDS)
    assert process.wait(PATIENCE_S) == 0, log.read_text()[-2000:]
    assert judge(kafka, root, topic).duplicated > 0
