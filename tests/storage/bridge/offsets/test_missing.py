"""Records that mirrors have left out, wherever they are behind the group's position: the mirrors are real."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.kafka_in_memory import MemoryAdministration, MemoryKafka, MemoryReader, MemoryWriter
from rmq_store import CorruptBatchError, Message, Store
from rmq_store.bridge.kafka.client import Partition
from rmq_store.bridge.mirror import kafka_side as mirror_side
from rmq_store.bridge.mirror.into_kafka import IntoKafka as MirrorIntoKafka
from rmq_store.bridge.mirror.into_store import IntoStore as MirrorIntoStore
from rmq_store.bridge.mirror.kafka_targets import TargetRules
from rmq_store.bridge.offsets.kafka_side import KafkaSide
from rmq_store.bridge.offsets.letters import letters_of_kafka, letters_of_store
from rmq_store.bridge.offsets.links import IntoKafka, IntoStore
from rmq_store.bridge.offsets.pair import Link
from rmq_store.bridge.offsets.plan import Move, Rules, Status, plan_move
from rmq_store.bridge.offsets.store_side import StoreSide
from rmq_store.bridge.positions.kafka_positions import KafkaPositions
from rmq_store.bridge.positions.store_positions import StorePositions
from rmq_store.bridge.positions.topics import TopicChoice
from storage.bridge.mirror.into_store_lab import CLUSTER_ID, options

TOPIC, GROUP = "orders", "billing"
TOO_MANY_HEADERS = [(b"big", b"z" * 40_000)]
"""No message has so many bytes of properties."""
FITS_NO_RECORD = b"large"
"""`MemoryWriter` refuses such a value."""


class Administration(MemoryAdministration):
    """With a group, and settings of topics."""

    def __init__(self, kafka: MemoryKafka) -> None:
        super().__init__(kafka)
        self.offsets: dict[Partition, int] = {}
        self.policy = "delete"

    def topic_settings(self, name: str) -> Mapping[str, str]:
        return super().topic_settings(name) if name.startswith("__") else {"cleanup.policy": self.policy}

    def group_offsets(self, group: str) -> Mapping[Partition, int]:
        return self.offsets

    def group_member_count(self, group: str) -> int:
        return 0


class Writer(MemoryWriter):
    """Only the topic itself is strict."""

    def add(self, partition: Partition, rows: pa.RecordBatch) -> None:
        self._kafka.takes_large = partition.topic != TOPIC
        super().add(partition, rows)


class Writers:
    """`KafkaWriters`."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self._kafka = kafka

    def writer(self, transactional_id: str) -> MemoryWriter:
        return Writer(self._kafka, transactional_id)

    def high_watermark(self, partition: Partition) -> int:
        return len(self._kafka.logs[partition])

    def close(self) -> None:
        pass


class Scene:
    """A topic on both sides, two mirrors, and a group."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.kafka = MemoryKafka()
        self.kafka.create_topic(TOPIC)
        self.administration: Any = Administration(self.kafka)
        self.reader: Any = MemoryReader(self.kafka, fetch_rows=3)
        self.writers: Any = Writers(self.kafka)

    def produce(self, *values: bytes | None, headers: Any = ()) -> None:
        """Records of Kafka, and a transaction marker behind them."""
        self.kafka.produce(TOPIC, *((b"key", value, headers) for value in values))
        self.kafka.logs[Partition(TOPIC, 0)].append(None)

    def into_store(self, **more: Any) -> None:
        made = MirrorIntoStore(
            self.store, MemoryReader(self.kafka), self.administration, options(TOPIC, **more),
            wait=lambda seconds: False,
        )  # type: ignore[arg-type]  # fmt: skip
        made.run(until_caught_up=True)

    def into_kafka(self, rules: TargetRules | None = None) -> None:
        positions = KafkaPositions("m", CLUSTER_ID, MemoryReader(self.kafka), self.administration, self.writers)
        positions.prepare()
        side = mirror_side.KafkaSide(
            "m", CLUSTER_ID, self.kafka.cluster_id, self.administration, self.writers, positions
        )
        made = MirrorIntoKafka(
            self.store, side, TopicChoice((TOPIC,)), mirror_side.CopyRules(), rules or TargetRules(create=True),
            wait=lambda seconds: False,
        )  # fmt: skip
        report = made.run(until_caught_up=True)
        assert not report.failures, report.failures

    def plan(self, *, to: str, at: int, rules: Rules | None = None) -> Move:
        """What `rmq mirror offsets` would do with a group that has consumed up to `at`."""
        kafka_side, store_side = KafkaSide(self.administration, self.reader), StoreSide(self.store, CLUSTER_ID)
        into_store = IntoStore(StorePositions(self.store, "m", self.kafka.cluster_id), kafka_side, store_side)
        positions = KafkaPositions("m", CLUSTER_ID, MemoryReader(self.kafka), self.administration, self.writers)
        positions.prepare()
        into_kafka = IntoKafka(positions, self.store, kafka_side, store_side)
        store_letters = lambda: letters_of_store(self.store, "m", self.kafka.cluster_id)  # noqa: E731
        kafka_letters = lambda: letters_of_kafka(self.administration, self.reader, "m", CLUSTER_ID)  # noqa: E731
        if to == "rmq":
            self.administration.offsets = {Partition(TOPIC, 0): at}
            link = Link(kafka_side, store_side, into_store, into_kafka, kafka_letters, store_letters)
        else:
            self.store.commit_offsets(GROUP, {(TOPIC, 0): at})
            link = Link(store_side, kafka_side, into_kafka, into_store, store_letters, kafka_letters)
        (move,) = plan_move(link, GROUP, GROUP, rules or Rules()).moves
        return move

    def missing(self, *, to: str, at: int) -> int:
        """MISSING, which is 0 exactly if the group may move."""
        move = self.plan(to=to, at=at)
        assert (move.status is Status.MISSING) == bool(move.missing)
        return move.missing


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with Store.open(tmp_path / "store", create=True) as store:
        yield Scene(store)


def test_a_dead_letter_anywhere_behind_the_groups_position_is_missing_in_the_store(scene: Scene) -> None:
    scene.produce(b"0", b"1", b"2")
    scene.produce(b"4", headers=TOO_MANY_HEADERS)
    scene.produce(b"6", b"7", None)
    scene.produce(b"10", b"11", headers=TOO_MANY_HEADERS)
    scene.produce(b"13")
    scene.into_store()
    assert [scene.missing(to="rmq", at=at) for at in range(16)] == [3] * 5 + [2] * 6 + [1] + [0] * 4


def test_a_dead_letter_anywhere_behind_the_groups_position_is_missing_in_kafka(scene: Scene) -> None:
    scene.store.create_topic(TOPIC, 1)
    for body in (b"0", b"1", FITS_NO_RECORD, b"3", FITS_NO_RECORD, b"5"):
        scene.store.send(Message(TOPIC, body))
    scene.into_kafka()
    assert [scene.missing(to="kafka", at=at) for at in range(7)] == [2, 2, 2, 1, 1, 0, 0]


def test_what_the_mirror_has_yet_to_copy_is_not_missing_and_what_no_mirror_brings_is(scene: Scene) -> None:
    scene.produce(b"0", b"1")
    scene.into_store()
    scene.store.send(Message(TOPIC, b"written here"))
    scene.produce(b"3", headers=TOO_MANY_HEADERS)
    assert scene.missing(to="rmq", at=0) == 0
    assert scene.missing(to="kafka", at=0) == 1
    scene.into_store()
    assert scene.missing(to="rmq", at=0) == 1


def test_a_group_that_stays_where_it_is_is_told_too_and_accepts_what_it_is_asked_to_accept(scene: Scene) -> None:
    scene.produce(b"0", b"1", b"2")
    scene.into_store()
    scene.store.commit_offsets(GROUP, {(TOPIC, 0): 1})
    assert scene.plan(to="rmq", at=1).status is Status.STAYS
    scene.produce(b"4", headers=TOO_MANY_HEADERS)
    scene.into_store()
    refused = scene.plan(to="rmq", at=1)
    assert (refused.status, refused.missing, refused.new) == (Status.MISSING, 1, None)
    accepted = scene.plan(to="rmq", at=1, rules=Rules(accept_missing=True))
    assert (accepted.status, accepted.missing, accepted.is_change) == (Status.STAYS, 1, False)


def test_records_before_the_start_of_the_mirror_and_those_of_a_broken_batch_are_missing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.produce(b"0", b"1", b"2")
    poll = MemoryReader.poll

    def broken_at_5(self: MemoryReader, timeout_ms: int) -> Any:
        found = poll(self, timeout_ms)
        for place, fetched in found.items():
            if place.topic == TOPIC and any(at in range(5, 8) for at in fetched.rows.column("offset").to_pylist()):
                before = fetched.rows.column("offset").to_numpy().searchsorted(5)
                if before:
                    self._positions[place] = 5
                    return {place: replace(fetched, rows=fetched.rows.slice(0, before), next_offset=5)}
                self._positions[place] = 5
                raise CorruptBatchError(offset=5, reason="its CRC", next_offset=8, partition=place)
        return found

    scene.into_store(start="latest")
    scene.produce(b"4", b"5", b"6", b"7", b"8")
    monkeypatch.setattr(MemoryReader, "poll", broken_at_5)
    scene.into_store(on_bad_batch="letter")
    assert [scene.missing(to="rmq", at=at) for at in range(10)] == [4, 3, 2, 1, 1, 1, 1, 1, 0, 0]


def test_a_damaged_message_is_missing_and_keeps_nobody_from_moving(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", create=True) as store:
        store.create_topic(TOPIC, 1)
        for number in range(6):
            store.send(Message(TOPIC, b"message %d" % number))
    damage(tmp_path / "store", b"message 3")
    with Store.open(tmp_path / "store") as store:
        scene = Scene(store)
        scene.into_kafka()
        assert [scene.missing(to="kafka", at=at) for at in range(7)] == [1, 1, 1, 1, 0, 0, 0]


def test_a_compacted_target_lacks_what_the_mirror_could_not_copy_and_not_what_compaction_took(scene: Scene) -> None:
    scene.administration.policy = "compact"
    scene.store.create_topic(TOPIC, 1)
    for number in range(3):
        scene.store.send(Message(TOPIC, b"%d" % number, properties={"KEYS": "k"}))
    scene.store.send(Message(TOPIC, b"no key"))
    scene.store.send(Message(TOPIC, b"4", properties={"KEYS": "k"}))
    scene.into_kafka(TargetRules(create=True, compacted=True))
    log = scene.kafka.logs[Partition(TOPIC, 0)]
    log[:3] = [None] * 3
    assert [scene.missing(to="kafka", at=at) for at in range(6)] == [1, 1, 1, 1, 0, 0]


def test_copies_that_retention_deleted_in_the_target_are_missing(scene: Scene) -> None:
    scene.store.create_topic(TOPIC, 1)
    for number in range(6):
        scene.store.send(Message(TOPIC, b"%d" % number))
    scene.into_kafka()
    scene.kafka.trim(TOPIC, 4)
    assert [scene.missing(to="kafka", at=at) for at in range(7)] == [4, 3, 2, 1, 0, 0, 0]


def test_what_mirrors_leave_out_because_it_came_from_there_is_not_missing(scene: Scene) -> None:
    scene.produce(b"0", b"1")
    scene.into_store()
    scene.store.send(Message(TOPIC, b"written here"))
    message = next(scene.store.read(TOPIC, 0, 0, 1)).to_pylist()[0]
    scene.store.retry.send_back(GROUP, message["commitLogOffset"], delay_level=-1)
    letter = pa.record_batch({"queueId": pa.array([0], pa.int32()), "queueOffset": pa.array([0], pa.int64())})
    scene.store.dead_letters.redrive(GROUP, letter, to_topic=TOPIC)
    assert scene.store.queue_range(TOPIC, 0) == (0, 4)
    scene.into_kafka()
    assert [scene.missing(to="kafka", at=at) for at in range(5)] == [0] * 5


def damage(root: Path, body: bytes) -> None:
    """Change the magic code of a message on the disk."""
    for path in (root / "commitlog").iterdir():
        at = path.read_bytes().find(body)
        if at >= 0:
            with path.open("r+b") as log:
                log.seek(at - 84)
                log.write(b"XXXX")
