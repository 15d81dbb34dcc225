"""A mirror from the real Kafka into a store, in this process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from helpers.kafka_server import KafkaServer
from rmq_store import Store
from rmq_store.bridge.kafka.connect import open_administration, open_reader
from rmq_store.bridge.kafka.connection import KafkaConnection
from rmq_store.bridge.mirror.into_store import IntoStore
from rmq_store.bridge.mirror.options import IntoStoreOptions
from rmq_store.bridge.mirror.report import MirrorReport
from rmq_store.bridge.positions.topics import TopicChoice

CLUSTER_ID = "rocketmq-of-tests"
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Copied:
    """A message of a target queue: what the tests look at."""

    body: bytes
    key: str | None
    properties: dict[str, str]


def options(*topics: str, mirror: str = "m", pattern: str | None = None, **more: Any) -> IntoStoreOptions:
    choice = TopicChoice(
        topics, re.compile(pattern) if pattern else None, more.pop("renames", ()), more.pop("dots_as", "")
    )
    return IntoStoreOptions(mirror, CLUSTER_ID, choice, **{"create_topics": True} | more)


@contextmanager
def mirror(kafka: KafkaServer, store: Store, wanted: IntoStoreOptions, **more: Any) -> Iterator[IntoStore]:
    """A mirror that does nothing yet, but has begun."""
    connection = KafkaConnection((kafka.address,))
    reader, administration = open_reader(connection), open_administration(connection)
    settings = {"wait": lambda seconds: False, "patience_s": PATIENCE_S} | more
    try:
        yield IntoStore(store, reader, administration, wanted, **settings)
    finally:
        reader.close()
        administration.close()


def copy_all(kafka: KafkaServer, store: Store, wanted: IntoStoreOptions) -> MirrorReport:
    """Copy what is there now."""
    with mirror(kafka, store, wanted) as made:
        return made.run(until_caught_up=True)


def copied(store: Store, topic: str, queue_id: int = 0) -> list[Copied]:
    """All messages of a queue."""
    first, end = store.queue_range(topic, queue_id)
    columns = ["body", "properties"]
    return [
        Copied(row["body"], dict(row["properties"]).get("__SHARDINGKEY"), dict(row["properties"]))
        for batch in store.read(topic, queue_id, first, end, columns=columns)
        for row in batch.to_pylist()
    ]


def source_offsets(store: Store, topic: str, queue_id: int = 0) -> list[int]:
    """Of all messages of a queue, by their marks."""
    return [int(message.properties["MIRROR_FROM"].split()[3]) for message in copied(store, topic, queue_id)]
