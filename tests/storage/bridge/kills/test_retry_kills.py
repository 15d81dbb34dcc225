"""Kills of `rmq mirror retry`, and of its Kafka: each failed record returns once.

A third of RMQ_MIRROR_KILLS (`make kafka`: 100) kill the process; RMQ_MIRROR_SEED repeats what is random here.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from kafka import KafkaConsumer, TopicPartition

from helpers.kafka_server import KafkaServer
from helpers.kafka_upstream import numbered, produce
from rmq_store import Store, StoreConfig
from rmq_store.verify import verify_store
from storage.bridge.kills.kill_loop import PATIENCE_S, committed, kill_loop, mirror_process, settle, writing

pytestmark = pytest.mark.harness

KILLS = max(int(os.environ.get("RMQ_MIRROR_KILLS", "5")) // 3, 2)
PARTITIONS = 2


def records_in(kafka: KafkaServer, topic: str) -> int:
    """Offsets of a topic; 0 while its broker is away."""
    places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    consumer = KafkaConsumer(bootstrap_servers=kafka.address, enable_auto_commit=False)
    try:
        return sum(consumer.end_offsets(places).values())
    finally:
        consumer.close()


@pytest.mark.timeout(300)
def test_kills_of_the_ladder_and_of_its_broker_lose_and_repeat_nothing(kafka: KafkaServer, scratch: Path) -> None:
    seed = int(os.environ.get("RMQ_MIRROR_SEED", time.time_ns() % 1_000_000))
    root, log = scratch / "store", scratch / "retry.log"
    Store.open(root, create=True, config=StoreConfig(message_delay_level=" ".join(["1s"] * 18))).close()
    orders = kafka.new_topic("returned", partition_count=PARTITIONS)
    failed = kafka.new_topic("failing", partition_count=PARTITIONS)
    for partition in range(PARTITIONS):
        produce(kafka, failed, numbered(1500), partition=partition)
    arguments = [
        "retry", "billing", "--store", str(root), "--cluster-id", "rmq-tests", "--bootstrap-servers", kafka.address,
        "--failed", failed, "--topic", orders,
    ]  # fmt: skip
    with writing(kafka, failed, PARTITIONS, seed):
        tally = kill_loop(
            lambda: mirror_process(arguments, log),
            lambda: records_in(kafka, orders),
            kafka,
            mirror_kills=KILLS,
            broker_kills=max(KILLS // 2, 1),
            chance=random.Random(seed),
        )
    expected = Counter(record[1:] for partition in range(PARTITIONS) for record in committed(kafka, failed, partition))
    deadline_s = time.monotonic() + PATIENCE_S
    found: Counter[tuple[bytes | None, bytes | None]] = Counter()
    while found.total() < expected.total() and time.monotonic() < deadline_s:
        process = mirror_process([*arguments, "--once"], log)
        assert process.wait(PATIENCE_S) == 0, log.read_text()[-2000:]
        settle(kafka, orders, PARTITIONS)
        found = Counter(record[1:] for partition in range(PARTITIONS) for record in committed(kafka, orders, partition))
        time.sleep(0.5)
    assert found == expected, (len(found - expected), len(expected - found), tally, seed)
    assert tally.in_progress > 0
    assert verify_store(root).status == "clean"
