"""Groups that go over from the real Kafka to a store, and back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.structs import OffsetAndMetadata

from helpers.kafka_server import KafkaServer
from helpers.kafka_upstream import numbered, produce, produce_in_transactions
from rmq_store import Store
from rmq_store.bridge.kafka.connect import open_administration, open_reader
from rmq_store.bridge.kafka.connection import KafkaConnection
from rmq_store.bridge.offsets.kafka_side import KafkaSide
from rmq_store.bridge.offsets.links import IntoStore
from rmq_store.bridge.offsets.pair import Link
from rmq_store.bridge.offsets.plan import Rules, Status, apply_move, plan_move
from rmq_store.bridge.offsets.side import Queue
from rmq_store.bridge.offsets.store_side import StoreSide
from rmq_store.bridge.positions.store_positions import StorePositions
from rmq_store.errors import GroupInUseError, MirrorSourceError, UsageError
from storage.bridge.mirror.into_store_lab import CLUSTER_ID, copied, copy_all, options, source_offsets

GROUP = "cg_orders"
COMPACTED = {
    "cleanup.policy": "compact", "segment.ms": "50", "min.cleanable.dirty.ratio": "0.001", "max.compaction.lag.ms": "50"
}  # fmt: skip


def consume(kafka: KafkaServer, topic: str, count: int, *, partition: int = 0, group: str = GROUP) -> list[bytes]:
    """A consumer of the group takes so many records of a partition from its position on, commits, and leaves."""
    place = TopicPartition(topic, partition)
    consumer = KafkaConsumer(
        bootstrap_servers=kafka.address, group_id=group, enable_auto_commit=False, auto_offset_reset="earliest",
        isolation_level="read_committed",
    )  # fmt: skip
    values: list[bytes] = []
    try:
        consumer.assign([place])
        end = consumer.end_offsets([place])[place]
        while len(values) < count and consumer.position(place) < end:
            polled = consumer.poll(500, max_records=count - len(values)).get(place, [])
            values += [record.value for record in polled]
        consumer.commit({place: OffsetAndMetadata(consumer.position(place), "", -1)})
    finally:
        consumer.close(autocommit=False)
    return values


@contextmanager
def links(kafka: KafkaServer, store: Store) -> Iterator[tuple[Link, Link]]:
    """Kafka to the store, and back, by the mirror `m` into the store."""
    connection = KafkaConnection((kafka.address,))
    reader, administration = open_reader(connection), open_administration(connection)
    try:
        kafka_side, store_side = KafkaSide(administration, reader), StoreSide(store, CLUSTER_ID)
        mirror = IntoStore(StorePositions(store, "m", kafka_side.cluster_id), kafka_side, store_side)
        yield Link(kafka_side, store_side, mirror), Link(store_side, kafka_side, way_back=mirror)
    finally:
        reader.close()
        administration.close()


def bodies(store: Store, topic: str, first: int, queue_id: int = 0) -> list[bytes]:
    """What is in a queue from an offset on."""
    skipped = first - store.queue_range(topic, queue_id)[0]
    return [message.body for message in copied(store, topic, queue_id)][skipped:]


@pytest.mark.slow
def test_a_group_goes_from_kafka_to_a_store_and_back_across_markers_and_aborts(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    topic = kafka.new_topic("there-and-back")
    produce(kafka, topic, numbered(5))
    produce_in_transactions(
        kafka, topic, [(True, numbered(3, 5)), (False, numbered(4, 100)), (True, numbered(4, 8)), (False, numbered(1))]
    )
    everything = [value for _, value, _ in numbered(12)]
    with Store.open(tmp_path / "store", create=True) as store:
        copy_all(kafka, store, options(topic))
        with links(kafka, store) as (there, back):
            seen: list[bytes] = []
            while len(seen) < len(everything):
                seen += consume(kafka, topic, 1)
                (move,) = (plan := plan_move(there, GROUP, GROUP, Rules())).moves
                assert (move.status, move.redelivered, move.missing) == (Status.MOVE, 0, 0)
                assert apply_move(there, plan) == 1
                position = store.committed_offsets(GROUP)[topic, 0]
                assert bodies(store, topic, position) == everything[len(seen) :]
                # It consumes one here, and goes back.
                if position < store.queue_range(topic, 0)[1]:
                    seen += bodies(store, topic, position)[:1]
                    store.commit_offsets(GROUP, {(topic, 0): position + 1})
                returned = plan_move(back, GROUP, GROUP, Rules())
                assert returned.is_clean
                apply_move(back, returned)
            assert seen == everything
            assert consume(kafka, topic, 1) == []


@pytest.mark.slow
def test_a_group_goes_over_from_each_place_of_a_compacted_topic(kafka: KafkaServer, tmp_path: Path) -> None:
    topic = kafka.new_topic("compacted", settings=COMPACTED)
    for number in range(6):
        produce(kafka, topic, [(f"k{key}".encode(), f"{key} {number}".encode(), []) for key in range(3)])
        time.sleep(0.06)
    produce(kafka, topic, [(b"last", b"last", [])])
    wait_until(lambda: len(offsets_there(kafka, topic)) < 19)
    with Store.open(tmp_path / "store", create=True) as store:
        copy_all(kafka, store, options(topic))
        all_bodies = bodies(store, topic, 0)
        with links(kafka, store) as (there, _):
            for position in range(20):
                group = f"{GROUP}_{position}"
                there.source.commit(group, {Queue(topic, 0): position}, force=False)
                plan = plan_move(there, group, group, Rules(accept_missing=False))
                assert plan.is_clean
                apply_move(there, plan)
                left = bodies(store, topic, store.committed_offsets(group)[topic, 0])
                assert left == all_bodies[len(all_bodies) - len(left) :]
                expected = [offset for offset in source_offsets(store, topic) if offset >= position]
                assert source_offsets(store, topic)[len(all_bodies) - len(left) :] == expected


def test_all_partitions_go_over_and_new_ones_are_followed(kafka: KafkaServer, tmp_path: Path) -> None:
    topic = kafka.new_topic("growing", partition_count=3)
    for partition in range(3):
        produce(kafka, topic, numbered(10 + partition), partition=partition)
        consume(kafka, topic, 2 + partition, partition=partition)
    with Store.open(tmp_path / "store", create=True) as store:
        copy_all(kafka, store, options(topic))
        with links(kafka, store) as (there, _):
            apply_move(there, plan_move(there, GROUP, GROUP, Rules()))
        assert store.committed_offsets(GROUP) == {(topic, partition): 2 + partition for partition in range(3)}
        grow(kafka, topic, 5)
        produce(kafka, topic, numbered(4), partition=4)
        with links(kafka, store) as (there, _):
            with pytest.raises(UsageError, match="3 queues"):
                plan_move(there, GROUP, GROUP, Rules())
            copy_all(kafka, store, options(topic))
            grown = plan_move(there, GROUP, GROUP, Rules())
            assert [move.status for move in grown.moves] == [Status.STAYS] * 3 + [Status.UNCOMMITTED] * 2
            assert apply_move(there, plan_move(there, GROUP, GROUP, Rules(from_start=True))) == 2
        assert store.committed_offsets(GROUP)[topic, 4] == 0


def test_a_group_at_work_on_either_side_is_not_moved(kafka: KafkaServer, tmp_path: Path) -> None:
    topic = kafka.new_topic("busy")
    produce(kafka, topic, numbered(6))
    consume(kafka, topic, 4)
    with Store.open(tmp_path / "store", create=True) as store, links(kafka, store) as (there, back):
        copy_all(kafka, store, options(topic))
        plan = plan_move(there, GROUP, GROUP, Rules())
        lease = store.lease(GROUP, topic, "a consumer")
        with pytest.raises(GroupInUseError, match="a consumer"):
            plan_move(there, GROUP, GROUP, Rules())
        with pytest.raises(GroupInUseError, match="a consumer"):
            apply_move(there, plan)
        assert store.committed_offsets(GROUP) == {}
        assert apply_move(there, plan, force=True) == 1
        lease.release()
        assert store.committed_offsets(GROUP) == {(topic, 0): 4}
        store.commit_offsets(GROUP, {(topic, 0): 5})
        member = KafkaConsumer(topic, bootstrap_servers=kafka.address, group_id=GROUP, metadata_max_age_ms=1000)
        try:
            wait_until(lambda: bool(member.poll(3000) is not None and member.assignment()))
            with pytest.raises(GroupInUseError, match="members"):
                plan_move(back, GROUP, GROUP, Rules())
            forced = plan_move(back, GROUP, GROUP, Rules(), force=True)
            with pytest.raises(GroupInUseError, match="members"):
                apply_move(back, forced, force=True)
        finally:
            member.close(autocommit=False)


def test_a_group_follows_a_topic_that_has_another_name_there(kafka: KafkaServer, tmp_path: Path) -> None:
    topic = kafka.new_topic("dotted.name")
    produce(kafka, topic, numbered(6))
    consume(kafka, topic, 4)
    with Store.open(tmp_path / "store", create=True) as store:
        store.create_topic("stranger")
        copy_all(kafka, store, options(topic, dots_as="_"))
        with links(kafka, store) as (there, back):
            apply_move(there, plan_move(there, GROUP, GROUP, Rules()))
            renamed = topic.replace(".", "_")
            assert store.committed_offsets(GROUP) == {(renamed, 0): 4}
            store.commit_offsets(GROUP, {(renamed, 0): 6, ("stranger", 0): 0})
            (move,) = plan_move(back, GROUP, GROUP, Rules()).moves
            assert (move.target, move.old, move.new) == (Queue(topic, 0), 4, 6)


def test_a_topic_that_was_made_again_is_refused_until_its_mirror_begins_anew(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    topic = kafka.new_topic("again")
    produce(kafka, topic, numbered(6))
    consume(kafka, topic, 4)
    with Store.open(tmp_path / "store", create=True) as store:
        copy_all(kafka, store, options(topic))
        kafka.delete_topic(topic)
        kafka.create_topic(topic)
        produce(kafka, topic, numbered(8, 100))
        consume(kafka, topic, 5)
        with links(kafka, store) as (there, _), pytest.raises(MirrorSourceError, match="made again"):
            plan_move(there, GROUP, GROUP, Rules())
        copy_all(kafka, store, options(topic, restart_replaced=True))
        with links(kafka, store) as (there, _):
            apply_move(there, plan_move(there, GROUP, GROUP, Rules()))
        left = bodies(store, topic, store.committed_offsets(GROUP)[topic, 0])
        assert left == [value for _, value, _ in numbered(8, 100)][5:]


def wait_until(done: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 100
    while not done():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def offsets_there(kafka: KafkaServer, topic: str) -> list[int]:
    place = TopicPartition(topic, 0)
    consumer = KafkaConsumer(bootstrap_servers=kafka.address, auto_offset_reset="earliest")
    found: list[int] = []
    try:
        consumer.assign([place])
        end = consumer.end_offsets([place])[place]
        while consumer.position(place) < end:
            found += [record.offset for record in consumer.poll(500).get(place, [])]
    finally:
        consumer.close(autocommit=False)
    return found


def grow(kafka: KafkaServer, topic: str, partition_count: int) -> None:
    administration = open_administration(KafkaConnection((kafka.address,)))
    try:
        administration.grow_topic(topic, partition_count)
    finally:
        administration.close()
