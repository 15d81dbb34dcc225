"""Failed records of Kafka wait in RocketMQ's ladder, and return: each once, and not for ever."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from helpers.kafka_in_memory import MemoryAdministration, MemoryKafka, MemoryReader, MemoryWriter, rows_of
from rmq_store import Message, MirrorConflictError, MirrorSourceError, Store, SubscriptionGroup, UsageError
from rmq_store.bridge.dead_letters.formats import parse_letters
from rmq_store.bridge.dead_letters.retry_return import transactional_id
from rmq_store.bridge.dead_letters.retry_topic import KafkaRetry
from rmq_store.bridge.kafka.client import Partition
from rmq_store.broker.monitoring.dead_letter_rows import DeadLetterRows

GROUP = "billing"
QUEUE = "%RETRY%billing"
OWN = [(b"trace", b"1"), (b"trace", b"\xff")]
# RocketMQ's levels 3 to 6.
DELAYS_MS = [10_000, 30_000, 60_000, 120_000]


class Clock:
    now_ms = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now_ms


@dataclass
class Ladder:
    """A store whose clock stands still, a Kafka, and a consumer that fails."""

    root: Path
    kafka: MemoryKafka
    clock: Clock = field(default_factory=Clock)
    stores: list[Store] = field(default_factory=list)

    def open(self) -> Store:
        self.stores.append(Store.open(self.root, create=True, clock=self.clock))
        return self.stores[-1]

    @property
    def store(self) -> Store:
        return self.stores[-1]

    def retry(self, **options: Any) -> KafkaRetry:
        self.writer = MemoryWriter(self.kafka, transactional_id(GROUP))
        given = {"mirror": "retry", "cluster_id": "rocketmq-1", "failed": ["orders-failed"], "topics": ["orders"]}
        return KafkaRetry(
            self.store, MemoryReader(self.kafka), MemoryAdministration(self.kafka), self.writer, GROUP,
            **{**given, **options},
        )  # fmt: skip

    def run(self, after_ms: int = 0, **options: Any) -> KafkaRetry:
        self.clock.now_ms += after_ms
        made = self.retry(**options)
        made.run(wait=lambda seconds: False, until_caught_up=True)
        return made

    def returned(self, topic: str = "orders", partition: int = 0) -> list[Any]:
        return self.kafka.records(topic, partition)

    def fail(self, *records: Any, partition: int = 0) -> None:
        self.kafka.produce("orders-failed", *records, partition=partition)


@pytest.fixture
def ladder(scratch: Path) -> Iterator[Ladder]:
    kafka = MemoryKafka()
    kafka.create_topic("orders", 2)
    kafka.create_topic("orders-failed", 2)
    made = Ladder(scratch / "store", kafka)
    made.open()
    yield made
    for store in made.stores:
        store.close()


def attempts_of(record: Any) -> bytes:
    return dict(record[2])[b"rmq.attempts"]


def test_a_failed_record_waits_as_rocketmqs_retry_does_and_returns_as_it_was(ladder: Ladder) -> None:
    ladder.fail((b"\x00k", b"two teas", [*OWN, (b"kafka_dlt-exception-fqcn", b"E")]))
    first = ladder.run()
    assert (first.waiting_count, first.dead_count, ladder.returned()) == (1, 0, [])
    ladder.run(DELAYS_MS[0] - 1)
    assert ladder.returned() == []
    ladder.run(1)
    assert ladder.returned() == [
        (b"\x00k", b"two teas", [*OWN, (b"rmq.attempts", b"1"), (b"rmq.retry-group", GROUP.encode())])
    ]
    ladder.run(DELAYS_MS[0])
    assert len(ladder.returned()) == 1
    assert ladder.store.committed_offsets(GROUP) == {(QUEUE, 0): 1}  # what `rmq lag` and metrics count from


def test_each_failure_waits_longer_and_after_the_last_one_the_record_is_dead(ladder: Ladder) -> None:
    spring = [
        (b"kafka_dlt-original-topic", b"orders"),
        (b"kafka_dlt-original-partition", b"\0\0\0\1"),
        (b"kafka_dlt-exception-fqcn", b"java.lang.IllegalStateException"),
    ]
    failing: Any = (b"k", b"v", [*OWN, *spring])
    for number, delay_ms in enumerate(DELAYS_MS[:3], start=1):
        ladder.fail(failing)
        ladder.run(max_attempts=3)
        ladder.run(delay_ms - 1, max_attempts=3)
        assert len(ladder.returned(partition=1)) == number - 1
        ladder.run(1, max_attempts=3)
        returned = ladder.returned(partition=1)
        assert attempts_of(returned[-1]) == b"%d" % number
        failing = (*returned[-1][:2], [*returned[-1][2], *spring])
    ladder.fail(failing)
    ladder.run(max_attempts=3)
    assert len(ladder.returned(partition=1)) == 3
    [dead] = ladder.returned("orders-dead-letters", partition=1)
    assert dead[:2] == (b"k", b"v")
    names = dict(dead[2])
    assert names[b"rmq.letter.attempts"] == b"4"
    assert names[b"rmq.letter.error-class"] == b"java.lang.IllegalStateException"
    assert [pair for pair in dead[2] if pair[0] == b"trace"] == OWN
    rows = ladder.kafka.logs[Partition("orders-dead-letters", 1)]
    [letter] = parse_letters(rows_of(rows)).to_pylist()
    assert (letter["format"], letter["group"], letter["attempts"]) == ("rmq", GROUP, 4)


@pytest.mark.parametrize("odd", [b"", b"-5", b"x", b"99999999999", b"\xff", None])
def test_an_odd_count_is_none(ladder: Ladder, odd: bytes | None) -> None:
    ladder.fail((b"k", b"v", [(b"rmq.attempts", odd)]))
    assert ladder.run().waiting_count == 1
    ladder.run(DELAYS_MS[0])
    assert attempts_of(ladder.returned()[0]) == b"1"


def test_a_count_beyond_the_maximum_is_dead_and_no_delay_level(ladder: Ladder) -> None:
    ladder.fail((b"k", b"v", [(b"rmq.attempts", b"999999999")]))
    assert ladder.run().dead_count == 1
    assert [value for _, value, _ in ladder.returned("orders-dead-letters")] == [b"v"]


def test_records_return_only_to_topics_that_the_user_named(ladder: Ladder) -> None:
    ladder.kafka.create_topic("payments")
    ladder.fail((b"k", b"1", [(b"kafka_dlt-original-topic", b"payments")]), (b"k", b"2", []))
    ladder.run()
    ladder.run(DELAYS_MS[0])
    assert [value for _, value, _ in ladder.returned()] == [b"2"]
    assert [value for _, value, _ in ladder.returned("orders-dead-letters")] == [b"1"]
    assert ladder.returned("payments") == []


@pytest.mark.parametrize(("dies", "before"), [("before", 0), ("after", 3)])
def test_a_death_around_the_commit_neither_loses_nor_repeats(ladder: Ladder, dies: str, before: int) -> None:
    ladder.fail(*[(b"k", b"%d" % number, []) for number in range(3)])
    ladder.run()
    ladder.clock.now_ms += DELAYS_MS[0]
    made = ladder.retry()
    ladder.writer.fail_commit = dies
    with pytest.raises(KeyboardInterrupt):
        made.run(wait=lambda seconds: False, until_caught_up=True)
    assert len(ladder.returned()) == before
    ladder.run()
    assert [value for _, value, _ in ladder.returned()] == [b"0", b"1", b"2"]
    ladder.run(DELAYS_MS[0])
    assert len(ladder.returned()) == 3


def test_a_process_that_died_behind_each_step_is_followed_by_another(ladder: Ladder) -> None:
    ladder.fail((b"k", b"v", []))
    ladder.retry().intake.refresh_topics()  # dies at once
    reading = ladder.retry()
    reading.intake.refresh_topics()
    assert reading.intake.poll(0) == 1  # and dies: the record waits
    ladder.clock.now_ms += DELAYS_MS[0]
    ladder.store.schedule.deliver_due()  # somebody else's process
    ladder.run()
    ladder.run()
    assert len(ladder.returned()) == 1


def test_a_second_process_takes_over_and_the_first_ends(ladder: Ladder) -> None:
    ladder.fail((b"k", b"v", []))
    ladder.run()
    ladder.clock.now_ms += DELAYS_MS[0]
    first = ladder.retry()
    first.returning.begin()
    ladder.store.schedule.deliver_due()
    second = ladder.retry()
    second.returning.begin()
    with pytest.raises(MirrorConflictError):
        first.returning.step()
    assert second.returning.step() == 1
    assert len(ladder.returned()) == 1


def test_messages_of_rocketmq_in_the_same_queue_stay_rocketmqs(ladder: Ladder) -> None:
    ladder.run()
    copied = {"KAFKA_RETRY": "retry", "KAFKA_RETRY_TOPIC": "orders", "KAFKA_RETRY_PARTITION": "0"}
    for properties in ({}, copied):
        ladder.store.send(Message(QUEUE, b"of RocketMQ", properties=properties, queue_id=0))
    ladder.run()
    assert (ladder.returned(), ladder.returned("orders-dead-letters")) == ([], [])


def test_a_group_that_consumes_topics_of_the_store_is_refused(ladder: Ladder) -> None:
    ladder.store.create_topic("Orders", 1)
    ladder.store.commit_offsets(GROUP, {("Orders", 0): 0})
    with pytest.raises(UsageError, match="its retries are not Kafka's"):
        ladder.retry()


def test_a_topic_is_not_its_own_topic_of_failed_records(ladder: Ladder) -> None:
    with pytest.raises(UsageError, match="the one that they return to"):
        ladder.retry(failed=["orders"])


def test_a_group_without_retry_queues_is_refused(ladder: Ladder) -> None:
    ladder.store.create_group(SubscriptionGroup(GROUP, retry_queue_nums=0))
    with pytest.raises(UsageError, match="no retry queues"):
        ladder.retry()


def test_what_kafka_does_not_take_is_a_dead_letter_here_and_holds_up_no_other(ladder: Ladder) -> None:
    ladder.fail(*[(b"k", value, []) for value in (b"1", b"large", b"refused", b"4")])
    ladder.run()
    for _ in range(2):
        ladder.run(DELAYS_MS[0])
    went = [value for _, value, _ in ladder.returned()]
    letters = [row for batch in DeadLetterRows(ladder.store, GROUP).batches() for row in batch.to_pylist()]
    assert sorted([*went, *(row["body"] for row in letters)]) == [b"1", b"4", b"large", b"refused"]
    assert {b"large", b"refused"} <= {row["body"] for row in letters}
    assert {row["errorClass"] for row in letters} == {"KafkaRefused"}


@pytest.mark.parametrize("dies", ["before", "after"])
def test_what_kafka_does_not_take_is_one_dead_letter_over_a_death_too(ladder: Ladder, dies: str) -> None:
    ladder.fail(*[(b"k", value, []) for value in (b"1", b"2", b"large")])
    ladder.run()
    ladder.clock.now_ms += DELAYS_MS[0]
    made = ladder.retry()
    ladder.writer.fail_commit = dies
    with pytest.raises(KeyboardInterrupt):
        made.run(wait=lambda seconds: False, until_caught_up=True)
    ladder.kafka.takes_large = True  # too late: it is a dead letter
    ladder.run()
    assert [value for _, value, _ in ladder.returned()] == [b"1", b"2"]
    letters = [row for batch in DeadLetterRows(ladder.store, GROUP).batches() for row in batch.to_pylist()]
    assert [row["body"] for row in letters] == [b"large"]


def test_a_store_that_was_set_back_is_noticed(ladder: Ladder, scratch: Path) -> None:
    ladder.fail((b"k", b"v", []))
    ladder.run()
    ladder.run(DELAYS_MS[0])
    ladder.root = scratch / "older"
    ladder.open()
    with pytest.raises(MirrorSourceError, match="set back or replaced"):
        ladder.run()


def test_partitions_are_those_of_the_failed_records_as_far_as_they_go(ladder: Ladder) -> None:
    ladder.fail((b"k", b"1", []), partition=1)
    ladder.kafka.create_topic("many-failed", 5)
    ladder.kafka.produce("many-failed", (b"k", b"4", []), partition=4)
    ladder.run(failed=["orders-failed", "many-failed"])
    ladder.run(DELAYS_MS[0], failed=["orders-failed", "many-failed"])
    assert [value for _, value, _ in ladder.returned(partition=1)] == [b"1"]
    assert [value for _, value, _ in ladder.returned(partition=0)] == [b"4"]
