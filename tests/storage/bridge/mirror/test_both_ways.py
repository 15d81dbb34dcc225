"""One topic mirrored both ways at once: each side gets the other's records, once, and then nothing moves any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.kafka_mirrors import copy_all as into_kafka
from helpers.kafka_mirrors import fill, mirror_of, values
from helpers.kafka_server import KafkaServer
from helpers.kafka_upstream import numbered, produce
from rmq_store import Store
from storage.bridge.mirror.into_store_lab import CLUSTER_ID, copied, mirror, options
from storage.bridge.mirror.into_store_lab import copy_all as into_store

ROUNDS = 5


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store", create=True) as opened:
        yield opened


@pytest.mark.slow
def test_both_ways_in_turns_settle(kafka: KafkaServer, store: Store) -> None:
    topic = kafka.new_topic("both")
    store.create_topic(topic, queue_count=1)
    produce(kafka, topic, numbered(20))
    fill(store, topic, [b"r%d" % number for number in range(20)], keys="k", tags="T")
    dropped = 0
    for _ in range(ROUNDS):
        down = into_store(kafka, store, options(topic, mirror="down"))
        up = into_kafka(kafka, store, "up", [topic], cluster_id=CLUSTER_ID)
        dropped += down.dropped_loops + up.dropped_loops
    assert down.copied == up.copied == 0
    assert dropped == 40  # each record has come back once, and was left out
    bodies = [message.body for message in copied(store, topic)]
    records = values(kafka, topic)
    assert len(bodies) == len(set(bodies)) == len(records) == len(set(records)) == 40
    assert set(bodies) == set(records)


@pytest.mark.slow
def test_both_ways_at_once_settle(kafka: KafkaServer, store: Store) -> None:
    topic = kafka.new_topic("at-once")
    store.create_topic(topic, queue_count=1)
    stop = threading.Event()
    errors: list[BaseException] = []

    def down() -> None:
        try:
            with mirror(kafka, store, options(topic, mirror="down"), wait=stop.wait) as made:
                made.run()
        except BaseException as error:
            errors.append(error)

    def up() -> None:
        try:
            with mirror_of(kafka, store, "up-at-once", [topic], cluster_id=CLUSTER_ID, wait=stop.wait) as made:
                made.run()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=down), threading.Thread(target=up)]
    for thread in threads:
        thread.start()
    try:
        for number in range(ROUNDS):
            produce(kafka, topic, [(b"k", b"k%d-%d" % (number, row), []) for row in range(20)])
            fill(store, topic, [b"r%d-%d" % (number, row) for row in range(20)])
        expected = {
            b"%s%d-%d" % (side, number, row) for side in (b"k", b"r") for number in range(ROUNDS) for row in range(20)
        }
        deadline_s = time.monotonic() + 60
        while store.queue_range(topic, 0).max_offset < len(expected) or len(values(kafka, topic)) < len(expected):
            assert not errors and time.monotonic() < deadline_s, errors
            time.sleep(0.1)
        time.sleep(1)  # anything that still goes round would come now
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert not errors
    bodies, records = [message.body for message in copied(store, topic)], values(kafka, topic)
    assert len(bodies) == len(records) == len(expected)
    assert set(bodies) == set(records) == expected
