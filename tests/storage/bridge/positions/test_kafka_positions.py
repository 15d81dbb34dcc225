"""What positions in Kafka say, without a Kafka."""

from __future__ import annotations

import json
from typing import Any

import pytest

from helpers.mirrored import record, records
from rmq_store import KafkaRefusedError, UsageError
from rmq_store.bridge.positions.kafka_positions import (
    KafkaPositions,
    Mark,
    QueuePosition,
    TopicPosition,
    positions_topic,
    transactional_id,
)

UNUSED: Any = None


@pytest.fixture
def positions() -> KafkaPositions:
    return KafkaPositions("m", "c", UNUSED, UNUSED, UNUSED)


def test_what_is_written_is_read_and_the_last_one_counts(positions: KafkaPositions) -> None:
    old = QueuePosition(Mark(5, 1_000, 77, 9), 0)
    new = old.moved(Mark(8, 2_000, 99, 12), lost_count=2, lost_end=7)
    claim = TopicPosition("me", "target", "id", 2)
    for queue in (old, new):
        positions._take(positions.rows("T", {1: queue}, claim))
    assert positions.queues("T") == {1: new} and positions.topic("T") == claim
    assert new.earlier == (old.mark,) and (new.lost_count, new.lost_end, new.start_offset) == (2, 7, 0)
    assert positions.topic("other") is None and positions.queues("other") == {}


def test_a_tombstone_takes_a_position_away(positions: KafkaPositions) -> None:
    positions._take(positions.rows("T", {0: QueuePosition(Mark(1), 0)}, TopicPosition("me", "t", "", 1)))
    keys = [json.dumps(key).encode() for key in (["m", "c", "T"], ["m", "c", "T", 0])]
    positions._take(records(*(record(None, key=key) for key in keys)))
    assert positions.topic("T") is None and positions.queues("T") == {}


def test_positions_of_another_cluster_are_left_alone(positions: KafkaPositions) -> None:
    other = KafkaPositions("m", "d", UNUSED, UNUSED, UNUSED)
    positions._take(other.rows("T", {0: QueuePosition(Mark(1), 0)}))
    assert positions.queues("T") == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"no json", b"{}"),
        (b'["m","c"]', b"{}"),
        (b'["m","c","T",0]', b"{}"),
        (b'["m","c","T",0]', b"[" * 100_000),
        (None, b"{}"),
        (b'["m","c","T","x"]', b'{"next":1}'),
        (b"\xff", b"{}"),
    ],
)
def test_what_is_no_position_is_told_with_its_place(positions: KafkaPositions, key: bytes | None, value: bytes) -> None:
    with pytest.raises(KafkaRefusedError, match="offset 0 of topic '__pyrmq-mirror-m-"):
        positions._take(records(record(value, key=key)))


def test_marks_of_before_are_few_and_thinner_the_older_they_are() -> None:
    position = QueuePosition(Mark(0), 0)
    for next_offset in range(1, 1_000):
        position = position.moved(Mark(next_offset, next_offset, next_offset, next_offset))
        assert len(position.earlier) <= 8
        if next_offset > 1:
            assert position.earlier[0].next_offset == next_offset - 1
    kept = [mark.next_offset for mark in position.earlier]
    assert kept == sorted(kept, reverse=True) and kept[-1] < 990


def test_no_two_mirrors_share_a_transactional_id_or_a_topic_of_positions() -> None:
    assert transactional_id("a", "b.c", "T") != transactional_id("a", "b", "c.T")
    assert positions_topic("a", "b") != positions_topic("a", "c") != positions_topic("a-c", "")
    for name in ("a/b", "a.b", "", "x" * 65, "ä"):
        with pytest.raises(UsageError):
            positions_topic(name, "c")
