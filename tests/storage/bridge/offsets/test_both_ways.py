"""Two mirrors, one each way on one topic, with producers on both sides: a group goes to and fro and misses nothing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.structs import OffsetAndMetadata

from helpers.kafka_mirrors import copy_all as copy_into_kafka
from helpers.kafka_mirrors import fill
from helpers.kafka_server import KafkaServer
from helpers.kafka_upstream import produce, produce_in_transactions
from rmq_store import Store
from rmq_store.bridge.kafka.connection import KafkaConnection
from rmq_store.bridge.offsets.links import kafka_to_store, store_to_kafka
from rmq_store.bridge.offsets.plan import Rules, apply_move, plan_move
from storage.bridge.mirror.into_store_lab import CLUSTER_ID, copied, copy_all, options

GROUP = "cg_orders"


class World:
    """A topic on both sides, and a group that remembers what it was given."""

    def __init__(self, kafka: KafkaServer, store: Store) -> None:
        self.kafka = kafka
        self.store = store
        self.topic = kafka.new_topic("both-ways")
        self.connection = KafkaConnection((kafka.address,))
        self.numbers = iter(range(10_000))
        self.given: list[bytes] = []

    def write(self, side: str, count: int) -> None:
        """Producers: in Kafka also by transactions, some of which are aborted."""
        bodies = [f"{side} {next(self.numbers)}".encode() for _ in range(count)]
        records = [(body, body, []) for body in bodies]
        if side == "rmq":
            fill(self.store, self.topic, bodies)
        elif count % 2:
            produce(self.kafka, self.topic, records)
        else:
            produce_in_transactions(self.kafka, self.topic, [(False, [(b"no", b"no", [])]), (True, records)])

    def mirror(self) -> None:
        """Both mirrors copy what is there."""
        copy_all(self.kafka, self.store, options(self.topic))
        copy_into_kafka(self.kafka, self.store, "m", [self.topic], cluster_id=CLUSTER_ID)
        copy_all(self.kafka, self.store, options(self.topic))

    def consume_kafka(self, count: int) -> None:
        """The group at Kafka."""
        place = TopicPartition(self.topic, 0)
        consumer = KafkaConsumer(
            bootstrap_servers=self.kafka.address, group_id=GROUP, enable_auto_commit=False,
            auto_offset_reset="earliest", isolation_level="read_committed",
        )  # fmt: skip
        try:
            consumer.assign([place])
            end = consumer.end_offsets([place])[place]
            taken = 0
            while taken < count and consumer.position(place) < end:
                polled = consumer.poll(500, max_records=count - taken).get(place, [])
                self.given += [record.value for record in polled]
                taken += len(polled)
            consumer.commit({place: OffsetAndMetadata(consumer.position(place), "", -1)})
        finally:
            consumer.close(autocommit=False)

    def consume_rmq(self, count: int) -> None:
        """The group at the store."""
        first = self.store.committed_offsets(GROUP).get((self.topic, 0), 0)
        bodies = [message.body for message in copied(self.store, self.topic)][first : first + count]
        self.given += bodies
        self.store.commit_offsets(GROUP, {(self.topic, 0): first + len(bodies)})

    def go(self, side: str) -> int:
        """The group goes over to a side; how many records come again."""
        open_link = kafka_to_store if side == "rmq" else store_to_kafka
        with open_link(self.store, self.connection, CLUSTER_ID, "m", "m") as link:
            plan = plan_move(link, GROUP, GROUP, Rules())
            assert plan.is_clean, plan.moves
            apply_move(link, plan)
            return sum(move.redelivered for move in plan.moves)


@pytest.mark.slow
def test_a_group_that_goes_to_and_fro_on_a_topic_of_both_sides_misses_nothing(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    chance = random.Random(7)
    with Store.open(tmp_path / "store", create=True) as store:
        world = World(kafka, store)
        world.write("kafka", 3)
        world.mirror()
        world.consume_kafka(0)
        side = "kafka"
        redelivered = 0
        for _ in range(6):
            world.write("kafka", chance.randrange(1, 5))
            world.write("rmq", chance.randrange(1, 5))
            world.mirror()
            (world.consume_kafka if side == "kafka" else world.consume_rmq)(chance.randrange(1, 8))
            side = "rmq" if side == "kafka" else "kafka"
            redelivered += world.go(side)
        world.mirror()
        (world.consume_kafka if side == "kafka" else world.consume_rmq)(1000)
        everything = {message.body for message in copied(store, world.topic)}
        assert set(world.given) == everything
        assert len(world.given) - len(everything) <= redelivered
        assert redelivered > 0, "the history was too tame"
        other = "rmq" if side == "kafka" else "kafka"
        assert world.go(other) == 0
        before = len(world.given)
        (world.consume_kafka if other == "kafka" else world.consume_rmq)(1000)
        assert len(world.given) == before
