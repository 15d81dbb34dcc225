"""A store and a Kafka cluster as links, with the mirrors between them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from rmq_store.bridge.kafka.connect import connected, open_reader, open_writers
from rmq_store.bridge.kafka.connection import KafkaConnection
from rmq_store.bridge.offsets.kafka_side import KafkaSide
from rmq_store.bridge.offsets.letters import letters_of_kafka, letters_of_store
from rmq_store.bridge.offsets.mirrors import IntoKafka, IntoStore
from rmq_store.bridge.offsets.pair import Link
from rmq_store.bridge.offsets.side import MirrorPositions, no_positions
from rmq_store.bridge.offsets.store_side import StoreSide
from rmq_store.bridge.positions.kafka_positions import KafkaPositions, positions_topic
from rmq_store.bridge.positions.store_positions import StorePositions
from rmq_store.broker.store.store import Store


@contextmanager
def kafka_to_store(
    store: Store, connection: KafkaConnection, cluster_id: str, mirror: str, way_back: str
) -> Iterator[Link]:
    """Groups move from Kafka to the store: `mirror` names the mirror into the store, `way_back` the one into Kafka.
    `cluster_id` is the store's. Connections are closed after the block; the caller closes the store.

    Raises:
        UsageError: the extra `[kafka]` is missing, an invalid name, or a cluster id other than the mirror's.
        KafkaUnavailableError, KafkaRefusedError.
    """
    with _opened(store, connection, cluster_id, into_store=mirror, into_kafka=way_back) as (kafka, rmq, there, back):
        into_kafka = functools.partial(letters_of_kafka, kafka.administration, kafka.reader, way_back, cluster_id)
        into_store = functools.partial(letters_of_store, store, mirror, kafka.cluster_id)
        yield Link(kafka, rmq, there, back, into_kafka, into_store)


@contextmanager
def store_to_kafka(
    store: Store, connection: KafkaConnection, cluster_id: str, mirror: str, way_back: str
) -> Iterator[Link]:
    """Groups move from the store to Kafka: `mirror` names the mirror into Kafka, `way_back` the one into the store.
    Otherwise as `kafka_to_store`.
    """
    with _opened(store, connection, cluster_id, into_store=way_back, into_kafka=mirror) as (kafka, rmq, back, there):
        into_kafka = functools.partial(letters_of_kafka, kafka.administration, kafka.reader, mirror, cluster_id)
        into_store = functools.partial(letters_of_store, store, way_back, kafka.cluster_id)
        yield Link(rmq, kafka, there, back, into_store, into_kafka)


@contextmanager
def _opened(
    store: Store, connection: KafkaConnection, cluster_id: str, *, into_store: str, into_kafka: str
) -> Iterator[tuple[KafkaSide, StoreSide, MirrorPositions, MirrorPositions]]:
    with ExitStack() as opened:
        administration, reader = opened.enter_context(connected(connection))
        kafka, rmq = KafkaSide(administration, reader), StoreSide(store, cluster_id)
        there = IntoStore(StorePositions(store, into_store, kafka.cluster_id), kafka, rmq)
        back: MirrorPositions = no_positions
        topic = positions_topic(into_kafka, cluster_id)
        if topic in administration.topics([topic]):
            own_reader = opened.enter_context(closing(open_reader(connection)))
            writers = opened.enter_context(closing(open_writers(connection, administration)))
            positions = KafkaPositions(into_kafka, cluster_id, own_reader, administration, writers)
            back = IntoKafka(positions, store, kafka, rmq)
        yield kafka, rmq, there, back
