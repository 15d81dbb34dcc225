"""Kafka as a side of translation, where its answers are late or odd."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from helpers.mirrored import record, records
from rmq_store.bridge.kafka.client import KafkaTopic, Partition
from rmq_store.bridge.offsets.kafka_side import KafkaSide
from rmq_store.bridge.offsets.side import Origin, Queue
from rmq_store.bridge.record_batches.schema import Fetched
from rmq_store.errors import KafkaUnavailableError

QUEUE = Queue("T", 0)


class Administration:
    """One topic, whose id Kafka does not tell."""

    def cluster_id(self) -> str:
        return "K"

    def topics(self, names: Any = None) -> dict[str, KafkaTopic]:
        return {"T": KafkaTopic("T", uuid.UUID(int=0), 3)}

    def topic_settings(self, name: str) -> dict[str, str]:
        return {"cleanup.policy": "compact,delete"}


class Reader:
    """Gives what it was told, one answer a poll."""

    def __init__(self, ends: list[int], polls: list[Fetched | None]) -> None:
        self.ends = ends
        self.polls = polls

    def stable_ends(self, partitions: Any) -> dict[Partition, int]:
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        return dict.fromkeys(partitions, end)

    def starts(self, partitions: Any) -> dict[Partition, int]:
        return dict.fromkeys(partitions, 5)

    def assign(self, positions: Any) -> None:
        pass

    def poll(self, timeout_ms: int) -> dict[Partition, Fetched]:
        fetched = self.polls.pop(0) if self.polls else None
        return {} if fetched is None else {Partition(*QUEUE): fetched}


def side(ends: list[int], *polls: Fetched | None) -> KafkaSide:
    reader: Any = Reader(ends, list(polls))
    administration: Any = Administration()
    return KafkaSide(administration, reader, patience_s=0.2)


def rows(*offsets: int) -> Any:
    return records(*(record(offset=offset) for offset in offsets))


def test_it_waits_until_a_transaction_shows_its_records_but_not_for_ever() -> None:
    side([3, 3, 8]).wait_for_end(QUEUE, 8)
    with pytest.raises(KafkaUnavailableError, match="transaction is open"):
        side([3]).wait_for_end(QUEUE, 8)


def test_it_reads_over_markers_to_the_end_that_it_was_told_and_no_further() -> None:
    polls = [Fetched(rows(), 7, 0), None, Fetched(rows(7, 8), 10, 0), Fetched(rows(10, 12), 13, 0)]
    found = side([20], *polls).origins(QUEUE, 5, 11, Origin("R", QUEUE))
    assert [offset for chunk in found for offset in chunk.positions.tolist()] == [7, 8, 10]


def test_a_partition_that_gives_nothing_is_an_error_in_time() -> None:
    with pytest.raises(KafkaUnavailableError, match="nothing comes from 5"):
        list(side([20]).origins(QUEUE, 5, 11, Origin("R", QUEUE)))
    assert list(side([20]).origins(QUEUE, 11, 11, Origin("R", QUEUE))) == []


def test_an_extent_is_never_turned_round_and_compaction_counts_beside_retention() -> None:
    (extent,) = side([3]).extents([QUEUE]).values()
    assert (extent.start, extent.end, extent.is_compacted) == (5, 5, True)
    assert side([3]).topic_id("T") == ""
    assert (side([3]).queue_count("T"), side([3]).queue_count("U")) == (3, 0)
