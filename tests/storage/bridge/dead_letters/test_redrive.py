"""Dead letters of Kafka go back to their topics: as they were, once each, and only where the user says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from helpers.kafka_in_memory import MemoryAdministration, MemoryKafka, MemoryReader, MemoryWriter
from rmq_store import Message, MirrorConflictError, MirrorTargetError, Store, UsageError
from rmq_store.bridge.dead_letters.intake import Intake
from rmq_store.bridge.dead_letters.letter_rows import LetterGroups, letter_rows
from rmq_store.bridge.dead_letters.redrive import KafkaRedrive, RedriveTotals
from rmq_store.bridge.dead_letters.redriven_topic import topic_of, transactional_id_of
from rmq_store.bridge.kafka.client import Partition
from rmq_store.bridge.records.route import Route
from rmq_store.bridge.records.to_rmq import RmqRules
from rmq_store.broker.monitoring.dead_letter_rows import Wanted

GROUP = "billing"
OWN = [(b"trace", b"1"), (b"trace", b"\xff"), (b"", None)]


def spring(number: int, topic: bytes = b"orders", partition: int = 1) -> list[tuple[bytes, bytes | None]]:
    return [
        *OWN, (b"kafka_dlt-original-topic", topic), (b"kafka_dlt-original-partition", partition.to_bytes(4, "big")),
        (b"kafka_dlt-exception-fqcn", b"java.lang.Even" if number % 2 == 0 else b"java.lang.Odd"),
    ]  # fmt: skip


@dataclass
class Letters:
    """A store with dead letters of Kafka, and the Kafka that they came from."""

    store: Store
    kafka: MemoryKafka

    def take(self, *records: Any, topic: str = "orders.DLT") -> None:
        self.kafka.produce(topic, *records)
        groups = LetterGroups(GROUP)

        def to_messages(rows: Any, partition: Partition, topic_id: str) -> Any:
            route = Route(self.kafka.cluster_id, partition.topic, partition.partition, "rocketmq-1", "", 0, topic_id)
            return letter_rows(rows, route, RmqRules("letters", self.store.clock()), groups).batches

        reading = Intake(
            self.store, MemoryReader(self.kafka), MemoryAdministration(self.kafka), "letters", "rocketmq-1", [topic],
            GROUP, to_messages,
        )  # fmt: skip
        reading.refresh_topics()
        assert reading.poll(0) == len(records)

    def redrive(self, **options: Any) -> KafkaRedrive:
        options.setdefault("topics", ["orders"])
        return KafkaRedrive(self.store, GROUP, MemoryAdministration(self.kafka), MemoryReader(self.kafka), **options)

    def writer(self) -> MemoryWriter:
        return MemoryWriter(self.kafka, transactional_id_of(GROUP))

    def run(self, limit: int | None = None, **options: Any) -> RedriveTotals:
        return self.redrive(**options).run(self.writer(), limit, sleep=lambda seconds: None)

    def went(self, topic: str = "orders", partition: int = 1) -> list[bytes | None]:
        return [value for _, value, _ in self.kafka.records(topic, partition)]


@pytest.fixture
def letters(scratch: Path) -> Iterator[Letters]:
    kafka = MemoryKafka()
    for topic, partitions in (("orders", 3), ("orders.DLT", 1), ("payments", 1)):
        kafka.create_topic(topic, partitions)
    with Store.open(scratch / "store", create=True) as store:
        yield Letters(store, kafka)


def test_a_letter_goes_back_with_the_key_value_and_headers_that_it_had(letters: Letters) -> None:
    letters.take((b"\x00\xff", b"two teas", spring(1)), (None, b"", spring(2)), (b"plain", None, spring(3)))
    totals = letters.run()
    assert letters.kafka.records("orders", 1) == [
        (b"\x00\xff", b"two teas", OWN),
        (None, b"", OWN),
        (b"plain", None, OWN),
    ]
    assert (totals.outcomes, totals.topics) == ({"REDRIVEN": 3}, {"orders": 3})
    times = {row["timestampMs"] for row in letters.kafka.logs[Partition("orders", 1)] if row}
    assert min(times) > letters.kafka.now_ms  # not that of the letter, or retention would take it at once


def test_none_goes_twice_and_the_listing_shows_which_went(letters: Letters) -> None:
    letters.take((b"k", b"1", spring(1)), (b"k", b"2", spring(2)))
    assert letters.run(limit=1).outcomes == {"REDRIVEN": 1}
    assert letters.run().outcomes == {"ALREADY_REDRIVEN": 1, "REDRIVEN": 1}
    assert letters.run().outcomes == {"ALREADY_REDRIVEN": 2}
    assert letters.went() == [b"1", b"2"]
    assert letters.store.dead_letters.redriven(GROUP) == {0: [(0, 2)]}


def test_rows_chosen_in_any_order_all_go(letters: Letters) -> None:
    """A position behind the last one that went would say that the first one went, too."""
    letters.take((b"k", b"0", spring(0)), (b"k", b"1", spring(1)), (b"k", b"2", spring(2)))
    assert letters.run(wanted=Wanted(reason="Odd")).outcomes == {"REDRIVEN": 1}
    assert letters.run(wanted=Wanted(reason="Even")).outcomes == {"REDRIVEN": 2}
    assert letters.went() == [b"1", b"0", b"2"]


@pytest.mark.parametrize(("dies", "went_before"), [("before", []), ("after", [b"1", b"2"])])
def test_a_death_around_the_commit_neither_loses_nor_repeats(
    letters: Letters, dies: str, went_before: list[bytes]
) -> None:
    letters.take((b"k", b"1", spring(1)), (b"k", b"2", spring(2)))
    writer = letters.writer()
    writer.fail_commit = dies
    with pytest.raises(KeyboardInterrupt):
        letters.redrive().run(writer)
    assert letters.went() == went_before
    assert letters.store.dead_letters.redriven(GROUP) == {}
    letters.run()
    assert letters.went() == [b"1", b"2"]
    assert letters.store.dead_letters.redriven(GROUP) == {0: [(0, 2)]}


def test_a_store_that_was_set_back_does_not_send_letters_again(letters: Letters, scratch: Path) -> None:
    """The store forgot both its letters and what went; the same topic of dead letters is imported again."""
    letters.take((b"k", b"1", spring(1)))
    letters.run()
    with Store.open(scratch / "older", create=True) as older:
        other = Letters(older, letters.kafka)
        letters.kafka.logs[Partition("orders.DLT", 0)], kept = [], letters.kafka.logs[Partition("orders.DLT", 0)]
        other.take(*[(row["key"], row["value"], spring(1)) for row in kept if row])
        assert other.run().outcomes == {"ALREADY_REDRIVEN": 1}
        assert older.dead_letters.redriven(GROUP) == {0: [(0, 1)]}
    assert letters.went() == [b"1"]


def test_a_letter_restored_from_an_archive_beside_itself_goes_once(letters: Letters, scratch: Path) -> None:
    letters.take((b"k", b"1", spring(1)), (b"k", b"2", spring(2)))
    letters.store.archive(scratch / "archive").archive_up_to(letters.store.log_range()[1])
    letters.store.dead_letters.restore(scratch / "archive", again=True)
    assert letters.run().outcomes == {"REDRIVEN": 2, "ALREADY_REDRIVEN": 2}
    assert letters.went() == [b"1", b"2"]
    letters.run()
    assert letters.store.dead_letters.redriven(GROUP) == {0: [(0, 4)]}


def test_a_second_process_takes_over_and_the_first_ends(letters: Letters) -> None:
    letters.take((b"k", b"1", spring(1)))
    first, second = letters.writer(), letters.writer()
    first.begin()
    second.begin()
    with pytest.raises(MirrorConflictError):
        letters.redrive().run(first)
    assert letters.went() == []


def test_only_topics_that_the_user_named_get_letters(letters: Letters) -> None:
    letters.take(
        (b"k", b"1", spring(1)), (b"k", b"2", spring(2, b"payments", 0)),
        (b"k", b"3", spring(3, topic_of(GROUP).encode(), 0)), (b"k", b"4", spring(4, b"gone", 0)),
    )  # fmt: skip
    plan = letters.redrive(topics=[]).plan()
    assert (plan.outcomes, plan.topics) == ({"REDRIVEN": 2, "REFUSED": 2}, {"orders": 1, "payments": 1})
    with pytest.raises(UsageError, match="name the topics"):
        letters.run(topics=[])
    totals = letters.run()
    assert totals.outcomes == {"REDRIVEN": 1, "REFUSED": 3}
    assert totals.reasons == {
        "it names an internal topic of Kafka or of a mirror": 1, "Kafka has no such topic any more": 1,
        "its topic is not among those named": 1,
    }  # fmt: skip
    with pytest.raises(UsageError, match="no letter is sent to it"):
        letters.redrive(topics=[topic_of(GROUP)])
    with pytest.raises(UsageError, match="no topic 'nowhere'"):
        letters.redrive(topics=["nowhere"])


def test_a_letter_of_unknown_origin_goes_where_the_user_says(letters: Letters) -> None:
    letters.take((b"k", b"1", OWN))
    assert letters.run().reasons == {"its Kafka topic is not known: name one with --to-topic": 1}
    assert letters.run(to_topic="payments").outcomes == {"REDRIVEN": 1}
    assert letters.kafka.records("payments") == [(b"k", b"1", OWN)]


def test_a_partition_that_is_not_there_any_more_is_not_asked_for(letters: Letters) -> None:
    letters.take((b"k", b"1", spring(1, partition=7)))
    letters.run()
    assert letters.went(partition=0) == [b"1"]


def test_what_is_no_letter_of_this_kafka_stays(letters: Letters) -> None:
    letters.take((b"k", b"1", spring(1)))
    letters.store.send(Message("%DLQ%" + GROUP, b"of RocketMQ", queue_id=0))
    forged = {"KAFKA_LETTER": "spring", "PYRMQ_ORIGIN_TOPIC": "orders"}
    letters.store.send(Message("%DLQ%" + GROUP, b"forged", properties=forged, queue_id=0))
    assert sum(letters.run().reasons.values()) == 2
    assert letters.went() == [b"1"]
    letters.kafka.cluster_id = "kafka-2"
    letters.take((b"k", b"2", spring(2)), topic="payments")
    letters.kafka.cluster_id = "kafka-1"
    assert letters.run().reasons["it came from another Kafka cluster"] == 1


def test_a_plan_writes_nothing(letters: Letters) -> None:
    letters.take((b"k", b"1", spring(1)), (b"k", b"2", spring(2)))
    end = letters.store.log_range()[1]
    assert letters.redrive().plan(limit=1).outcomes == {"REDRIVEN": 1}
    assert (letters.went(), letters.store.log_range()[1]) == ([], end)
    assert topic_of(GROUP) not in letters.kafka.topics


def test_the_rate_is_kept_between_transactions(letters: Letters) -> None:
    letters.take(*[(b"k", b"%d" % number, spring(number)) for number in range(5)])
    waits: list[float] = []
    letters.redrive().run(letters.writer(), rate_per_second=2, sleep=waits.append)
    assert (len(letters.went()), waits) == (5, [1.0, 1.0])


def test_one_letter_that_kafka_does_not_take_holds_up_no_other(letters: Letters) -> None:
    letters.kafka.create_topic("compacted", 1)
    values = [b"0", b"large", b"2", b"refused a", b"4", b"refused b", b"6"]
    letters.take(*[(b"k", value, spring(number)) for number, value in enumerate(values)])
    letters.take((None, b"no key", spring(7, b"compacted", 0)), (b"k", b"keyed", spring(8, b"compacted", 0)))
    totals = letters.run(topics=["orders", "compacted"])
    assert sorted(letters.went()) == [b"0", b"2", b"4", b"6"]
    assert letters.kafka.records("compacted") == [(b"k", b"keyed", OWN)]
    assert totals.outcomes == {"REDRIVEN": 5, "REFUSED": 4}
    assert totals.reasons["Kafka refuses it: INVALID_RECORD"] == 2
    assert sum(totals.topics.values()) == 5
    assert letters.run(topics=["orders", "compacted"]).outcomes == {"ALREADY_REDRIVEN": 5, "REFUSED": 4}


def test_a_topic_that_forgets_what_went_is_refused(letters: Letters, monkeypatch: pytest.MonkeyPatch) -> None:
    letters.take((b"k", b"1", spring(1)))
    monkeypatch.setattr(MemoryAdministration, "topic_settings", lambda self, name: {"cleanup.policy": "delete"})
    with pytest.raises(MirrorTargetError, match="=delete"):
        letters.run()


def test_groups_have_topics_of_their_own_whatever_their_names(letters: Letters) -> None:
    assert topic_of("a%b|c-1") == "__pyrmq.redriven.a.25b.7cc-1"
    assert transactional_id_of("a%b") == "pyrmq.redrive.a.25b"
