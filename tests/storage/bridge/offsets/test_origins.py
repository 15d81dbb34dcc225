"""Where rows came from, as translation sees it: direct copies, others, and what came round or from a deleted topic."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.mirrored import KAFKA_RULES, RMQ_RULES, new_store, record, records, through_store
from rmq_store import Message, Store
from rmq_store.bridge.offsets.letters import letters_of_store
from rmq_store.bridge.offsets.origins import MESSAGE_COLUMNS, message_origins, record_origins
from rmq_store.bridge.offsets.side import Origin, Queue
from rmq_store.bridge.offsets.translate import OTHER, RETURNED
from rmq_store.bridge.records.origin import MARKS
from rmq_store.bridge.records.route import Route
from rmq_store.bridge.records.to_kafka import to_kafka
from rmq_store.bridge.records.to_rmq import to_rmq
from rmq_store.bridge.records.unmappable_record import letter_topic

TOPIC_ID, OLD_ID = "0b6bd57f-1a2b-4c3d-8e4f-5a6b7c8d9e0f", "f0e9d8c7-b6a5-4f4e-9d3c-2b1a0f0e0d0c"


def route(*, cluster: str = "K", topic: str = "T", partition: int = 0, topic_id: str = TOPIC_ID) -> Route:
    return Route(cluster, topic, partition, "R", "T", 0, topic_id)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with new_store(tmp_path / "store") as opened:
        opened.create_topic("T", queue_count=1)
        yield opened


def put(store: Store, of: Route, *rows: dict[str, Any]) -> None:
    """Rows of Kafka as a mirror stores them, and its dead letters."""
    mapped = to_rmq(records(*rows), of, RMQ_RULES)
    through_store(store, mapped.rows)
    through_store(store, mapped.letters)


def origins(store: Store, other: Origin) -> list[int]:
    start, end = store.queue_range("T", 0)
    rows = store.read("T", 0, start, end, columns=MESSAGE_COLUMNS)
    return [int(offset) for batch in rows for offset in message_origins(batch, other).source_offsets]


def test_only_direct_copies_of_the_queue_in_question_have_a_source_offset(store: Store) -> None:
    put(store, route(), record(offset=7), record(offset=9))
    store.send(Message("T", b"native"))
    put(store, route(partition=1), record(offset=5))
    put(store, route(cluster="K2"), record(offset=6))
    put(store, route(topic="U"), record(offset=8))
    assert origins(store, Origin("K", Queue("T", 0), TOPIC_ID)) == [7, 9, OTHER, RETURNED, OTHER, OTHER]
    assert origins(store, Origin("K", Queue("T", 1), TOPIC_ID))[3] == 5
    assert origins(store, Origin("K2", Queue("T", 0)))[4] == 6


def test_a_copy_of_a_topic_that_was_deleted_since_counts_as_returned(store: Store) -> None:
    put(store, route(topic_id=OLD_ID), record(offset=7))
    put(store, route(topic_id=""), record(offset=8))
    assert origins(store, Origin("K", Queue("T", 0), TOPIC_ID)) == [RETURNED, 8]
    assert origins(store, Origin("K", Queue("T", 0))) == [7, 8]


def test_what_came_over_a_third_cluster_counts_as_returned(store: Store) -> None:
    put(store, route(cluster="K"), record(b"round", offset=7))
    (message,) = store.read("T", 0, 0, 1)
    over = Route("R", "T", 0, "K2", "T", 0)
    in_kafka = to_kafka(message, over, KAFKA_RULES).rows
    assert record_origins(in_kafka, Queue("T", 0), Origin("R", Queue("T", 0))).source_offsets.tolist() == [0]
    assert record_origins(in_kafka, Queue("T", 0), Origin("K", Queue("T", 0))).source_offsets.tolist() == [RETURNED]
    assert record_origins(in_kafka, Queue("T", 1), Origin("R", Queue("T", 0))).source_offsets.tolist() == [OTHER]


def test_marks_on_a_message_that_they_were_not_made_for_do_not_count(store: Store) -> None:
    put(store, route(), record(offset=7))
    (message,) = store.read("T", 0, 0, 1)
    copied = dict(message.column("properties")[0].as_py())
    store.send(Message("T", b"made by a job", properties={name: copied[name] for name in MARKS if name in copied}))
    assert origins(store, Origin("K", Queue("T", 0), TOPIC_ID)) == [7, OTHER]


def test_a_copy_that_was_stored_once_more_for_a_redrive_counts_as_returned(store: Store) -> None:
    put(store, route(), record(offset=7), record(offset=8))
    (message,) = store.read("T", 0, 0, 1)
    store.retry.send_back("g", message.column("commitLogOffset")[0].as_py(), delay_level=-1)
    place = pa.record_batch({"queueId": pa.array([0], pa.int32()), "queueOffset": pa.array([0], pa.int64())})
    store.dead_letters.redrive("g", place, to_topic="T")
    assert origins(store, Origin("K", Queue("T", 0), TOPIC_ID)) == [7, 8, RETURNED]


def test_dead_letters_say_which_offsets_a_mirror_could_not_copy(store: Store) -> None:
    too_much = [(b"h%d" % number, b"x" * 4000) for number in range(10)]
    put(store, route(), record(b"fine", offset=3), record(b"bad", headers=too_much, offset=4))
    put(store, route(partition=1), record(b"bad", headers=too_much, offset=9))
    store.send(Message(letter_topic(RMQ_RULES.mirror), b"somebody else's"))
    letters = letters_of_store(store, RMQ_RULES.mirror, "K")
    assert letters(Queue("T", 0)).tolist() == [4]
    assert letters(Queue("T", 1)).tolist() == [9]
    assert letters(Queue("T", 2)).tolist() == []
    assert letters_of_store(store, RMQ_RULES.mirror, "K2")(Queue("T", 0)).tolist() == []
    assert letters_of_store(store, "other", "K")(Queue("T", 0)).tolist() == []
