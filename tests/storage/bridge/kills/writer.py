"""Writes to a Kafka topic until it is killed, whatever happens to the broker.

    python writer.py ADDRESS TOPIC PARTITIONS SEED

Plain batches, and transactions of which some are aborted, over all partitions, in every compression. Values differ. A
producer that failed is thrown away; what of its records is there afterwards is for Kafka to say. kafka-python waits for
the answer to a commit without an end, so a writer that is stuck begins anew.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType

from kafka import KafkaProducer
from kafka.errors import KafkaError

COMPRESSIONS = (None, "gzip", "snappy", "lz4", "zstd")
PAUSE_S = 0.02
STUCK_S = 20
BATCH_ROWS = 200


def begin_anew(number: int, frame: FrameType | None) -> None:
    *words, seed = sys.argv
    os.execv(sys.executable, [sys.executable, *words, str(int(seed) + 1)])


def main(address: str, topic: str, partitions: str, seed: str) -> None:
    signal.signal(signal.SIGALRM, begin_anew)
    chance = random.Random(int(seed))
    numbers = iter(range(int(seed) << 32, 1 << 62))
    while True:
        signal.alarm(STUCK_S)
        with contextlib.suppress(KafkaError, OSError, RuntimeError, AssertionError):
            write(address, topic, int(partitions), chance, numbers)
        time.sleep(0.2)


def write(address: str, topic: str, partitions: int, chance: random.Random, numbers: Iterator[int]) -> None:
    """Until the producer fails."""
    settings = {
        "bootstrap_servers": address, "compression_type": chance.choice(COMPRESSIONS), "linger_ms": 5,
        "max_block_ms": 5_000, "request_timeout_ms": 5_000, "delivery_timeout_ms": 10_000,
    }  # fmt: skip
    transactional = chance.random() < 0.7
    if transactional:
        settings |= {"transactional_id": f"writer-{topic}", "transaction_timeout_ms": 5_000}
    producer = KafkaProducer(**settings)
    try:
        if transactional:
            producer.init_transactions()
        for _ in range(30):
            signal.alarm(STUCK_S)
            if transactional:
                producer.begin_transaction()
            for _ in range(chance.randrange(1, BATCH_ROWS)):
                number = next(numbers)
                producer.send(
                    topic, key=f"k{number % 97}".encode(), value=f"value {number}".encode() * chance.choice((1, 1, 40)),
                    headers=[("n", str(number).encode())], partition=chance.randrange(partitions),
                )  # fmt: skip
            producer.flush(10)
            if transactional:
                if chance.random() < 0.3:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
            time.sleep(PAUSE_S)
    finally:
        producer.close(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
