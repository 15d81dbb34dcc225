"""What producers write into the Kafka of the tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kafka import KafkaProducer

from helpers import kafka_server

Header = tuple[str, bytes]
Record = tuple[bytes | None, bytes | None, Sequence[Header]]
"""Key, value, headers; not both None: kafka-python refuses that."""


@contextmanager
def producer(kafka: kafka_server.KafkaServer, **settings: Any) -> Iterator[KafkaProducer]:
    """A producer for a `with` block."""
    made = KafkaProducer(bootstrap_servers=kafka.address, max_request_size=8 << 20, **settings)
    try:
        yield made
    finally:
        made.close()


def produce(
    kafka: kafka_server.KafkaServer, topic: str, records: Iterable[Record], *, partition: int = 0, **settings: Any
) -> list[int]:
    """Write records to a partition, in their order: their offsets."""
    with producer(kafka, **settings) as made:
        futures = [
            made.send(topic, key=key, value=value, headers=list(headers), partition=partition)
            for key, value, headers in records
        ]
        made.flush()
        return [future.get(30).offset for future in futures]


def produce_in_transactions(
    kafka: kafka_server.KafkaServer, topic: str, transactions: Iterable[tuple[bool, Sequence[Record]]], *,
    partition: int = 0,
) -> None:  # fmt: skip
    """Write transactions to a partition one after the other: (committed, records)."""
    with producer(kafka, transactional_id=f"upstream-{topic}-{partition}") as made:
        made.init_transactions()
        for is_committed, records in transactions:
            made.begin_transaction()
            for key, value, headers in records:
                made.send(topic, key=key, value=value, headers=list(headers), partition=partition)
            made.flush()
            if is_committed:
                made.commit_transaction()
            else:
                made.abort_transaction()


def numbered(count: int, start: int = 0) -> list[Record]:
    """Records that differ, each with a key and a header."""
    return [(f"k{n}".encode(), f"value {n}".encode(), [("n", str(n).encode())]) for n in range(start, start + count)]
