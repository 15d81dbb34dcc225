"""A store into the real Kafka: what arrives, once, in its order, and where the mirror goes on."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import kafka.errors as kafka_errors
import pytest
from kafka.admin import ConfigResource, ConfigResourceType

from helpers.kafka_mirrors import RMQ_CLUSTER, committed_rows, copy_all, fill, headers, kafka_side, mirror_of, values
from helpers.kafka_server import KafkaServer
from helpers.mirrored import record, records
from rmq_store import (
    KafkaUnavailableError,
    MirrorConflictError,
    MirrorLettersError,
    MirrorSourceError,
    MirrorTargetError,
    Store,
)
from rmq_store.backoff import Backoff
from rmq_store.bridge.kafka.client import Partition
from rmq_store.bridge.mirror import into_kafka
from rmq_store.bridge.mirror.kafka_side import CopyRules
from rmq_store.bridge.mirror.kafka_targets import TargetRules
from rmq_store.bridge.positions.kafka_positions import TopicPosition, positions_topic
from rmq_store.bridge.positions.topics import Rename, TopicChoice

DAY_MS = 86_400_000
DIFFERENCE = "message.timestamp.difference.max.ms"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store", create=True) as opened:
        yield opened


@pytest.fixture
def topic(kafka: KafkaServer, store: Store) -> str:
    """A topic of two queues that no test had before."""
    name = kafka.new_topic("Orders", partition_count=2)
    store.create_topic(name, queue_count=2)
    return name


def stops_after(count: int, seconds: float = 0.0) -> Any:
    """A `wait` that asks to stop once it was asked so often."""
    asked = iter(range(1_000_000))

    def wait(pause_s: float) -> bool:
        time.sleep(min(pause_s, seconds) if seconds else pause_s)
        return next(asked) >= count

    return wait


def test_messages_arrive_in_their_partitions_and_in_order(kafka: KafkaServer, store: Store, topic: str) -> None:
    fill(store, topic, [b"a%d" % number for number in range(50)], 0, keys="k", tags="T", properties={"user": "x"})
    fill(store, topic, [b"b%d" % number for number in range(50)], 1, sharding_key="s")
    report = copy_all(kafka, store, "plain", [topic])
    assert report.copied == 100 and report.letters == 0
    assert report.is_caught_up and report.lag == 0
    rows = committed_rows(kafka, topic, 0)
    assert [row["value"] for row in rows] == [b"a%d" % number for number in range(50)]
    assert {row["key"] for row in rows} == {b"k"}
    assert headers(rows[7])["user"] == b"x" and headers(rows[7])["MIRROR_FROM"].split()[:2] == [
        RMQ_CLUSTER.encode(), topic.encode(),
    ]  # fmt: skip
    assert values(kafka, topic, 1) == [b"b%d" % number for number in range(50)]


def test_a_mirror_goes_on_where_it_was(kafka: KafkaServer, store: Store, topic: str) -> None:
    fill(store, topic, [b"1", b"2"])
    copy_all(kafka, store, "goes-on", [topic])
    fill(store, topic, [b"3"])
    fill(store, topic, [b"other"], 1)
    assert copy_all(kafka, store, "goes-on", [topic]).copied == 2
    assert copy_all(kafka, store, "goes-on", [topic]).copied == 0
    assert values(kafka, topic, 0) == [b"1", b"2", b"3"]
    assert values(kafka, topic, 1) == [b"other"]


def test_latest_is_written_before_anything_is_copied(kafka: KafkaServer, store: Store, topic: str) -> None:
    """A mirror that ends before its first message must not begin later than it was told to."""
    fill(store, topic, [b"before"])
    rules = CopyRules(start="latest")
    copy_all(kafka, store, "latest", [topic], rules=rules)
    fill(store, topic, [b"after"])
    copy_all(kafka, store, "latest", [topic], rules=rules)
    assert values(kafka, topic) == [b"after"]


def test_a_time_is_where_a_mirror_begins(kafka: KafkaServer, store: Store, topic: str) -> None:
    fill(store, topic, [b"before"])
    time.sleep(0.005)
    now_ms = int(time.time() * 1000)
    time.sleep(0.005)
    fill(store, topic, [b"after"])
    copy_all(kafka, store, "time", [topic], rules=CopyRules(start=now_ms))
    assert values(kafka, topic) == [b"after"]


def test_windows_are_small_transactions_of_all_queues(kafka: KafkaServer, store: Store, topic: str) -> None:
    for queue_id in (0, 1):
        fill(store, topic, [b"%d" % number for number in range(45)], queue_id)
    report = copy_all(kafka, store, "small", [topic], rules=CopyRules(window_rows=20))
    assert report.units == 5
    assert values(kafka, topic, 0) == values(kafka, topic, 1) == [b"%d" % number for number in range(45)]


@pytest.mark.slow
def test_what_failed_is_repeated_once(
    kafka: KafkaServer, store: Store, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An aborted transaction is not seen, and a commit whose answer is lost is not done twice."""
    monkeypatch.setattr(into_kafka, "_PAUSES", Backoff(first_ms=10, max_ms=1_000))
    fill(store, topic, [b"%d" % number for number in range(10)])
    with mirror_of(kafka, store, "repeats", [topic], rules=CopyRules(window_rows=2)) as mirror:
        faults = iter(["claim", "before", "", "after", "before", "after"])
        make = mirror._side.writers.writer

        def faulty(transactional_id: str) -> Any:
            writer = make(transactional_id)
            commit = writer.commit

            def unsure() -> None:
                fault = next(faults, "")
                if fault == "before":
                    writer.flush()
                    writer._must_reset, writer._is_open = True, False
                    raise KafkaUnavailableError("lost before")
                commit()
                if fault == "after":
                    writer._must_reset = True
                    raise KafkaUnavailableError("lost after")

            writer.commit = unsure
            return writer

        mirror._side.writers.writer = faulty  # type: ignore[method-assign]
        report = mirror.run(until_caught_up=True)
    assert not report.failures and next(faults, None) is None
    assert values(kafka, topic) == [b"%d" % number for number in range(10)]


def test_a_second_mirror_of_the_name_ends_the_first(kafka: KafkaServer, store: Store, topic: str) -> None:
    fill(store, topic, [b"1"])
    with mirror_of(kafka, store, "twice", [topic], wait=stops_after(50)) as first:
        first._refresh_topics()
        (state,) = first._topics.values()
        assert state.copy.copy() == 1
        fill(store, topic, [b"2"])
        copy_all(kafka, store, "twice", [topic])
        fill(store, topic, [b"3"])
        with pytest.raises(KafkaUnavailableError):
            state.copy.copy()
        with pytest.raises(MirrorConflictError, match="Another mirror of the name 'twice'"):
            state.copy.copy()
        with pytest.raises(MirrorConflictError):
            first.run()
    copy_all(kafka, store, "twice", [topic])
    assert values(kafka, topic) == [b"1", b"2", b"3"]


def test_the_first_does_not_disturb_the_open_transaction_of_the_second(
    kafka: KafkaServer, store: Store, topic: str
) -> None:
    """InitProducerId aborts what is open under the id, whoever has it: a fenced mirror must not send it."""
    fill(store, topic, [b"1"])
    with mirror_of(kafka, store, "open", [topic]) as first, mirror_of(kafka, store, "open", [topic]) as second:
        first._refresh_topics()
        second._refresh_topics()
        old, new = first._topics[topic].copy, second._topics[topic].copy
        old.copy()
        fill(store, topic, [b"2"])
        new.open()
        with pytest.raises(KafkaUnavailableError):
            old.copy()
        writer = new._writer
        assert writer is not None
        writer.begin()
        writer.add(Partition(topic, 1), records(record(b"v", time_ms=int(time.time() * 1000))))
        writer.flush()
        with pytest.raises(MirrorConflictError):
            old.copy()
        writer.commit()
    assert len(values(kafka, topic, 1)) == 1


@pytest.mark.slow
def test_a_transaction_that_took_too_long_is_no_second_mirror(kafka: KafkaServer, store: Store, topic: str) -> None:
    fill(store, topic, [b"1"])
    options = {"side_options": {"transaction_timeout_ms": 1000}}
    with mirror_of(kafka, store, "slow", [topic], **options) as mirror:
        mirror._refresh_topics()
        copy = mirror._topics[topic].copy
        assert copy.copy() == 1
        fill(store, topic, [b"2"])
        writer = copy._writer
        assert writer is not None
        commit = writer.commit

        def late() -> None:
            writer.flush()
            values(kafka, topic)  # waits until Kafka has aborted it
            commit()

        writer.commit = late  # type: ignore[method-assign]
        with pytest.raises(KafkaUnavailableError):
            copy.copy()
        writer.commit = commit  # type: ignore[method-assign]
        assert copy.copy() == 1
    assert values(kafka, topic) == [b"1", b"2"]


@pytest.mark.slow
def test_positions_are_read_behind_the_open_transaction_of_another(
    kafka: KafkaServer, store: Store, topic: str
) -> None:
    """The last stable offset of the position topic lies in front of it, perhaps for a minute."""
    other = kafka.new_topic("Other")
    store.create_topic(other, queue_count=1)
    fill(store, topic, [b"1"])
    with kafka_side(kafka, "behind", transaction_timeout_ms=2000) as side:
        copy_all(kafka, store, "behind", [other])
        writer = side.writers.writer("of another topic")
        writer.begin()
        writer.add(side.positions.partition, side.positions.rows(other, {}, TopicPosition("someone", other, "", 1)))
        writer.flush()
        assert copy_all(kafka, store, "behind", [topic]).copied == 1
        assert copy_all(kafka, store, "behind", [topic]).copied == 0
    assert values(kafka, topic) == [b"1"]


def test_a_record_that_is_too_large_is_a_letter(kafka: KafkaServer, store: Store) -> None:
    name = kafka.new_topic("Small", settings={"max.message.bytes": "2000"})
    store.create_topic(name, queue_count=1)
    fill(store, name, [b"1", bytes(3000), b"2", bytes(4000)], properties={"user": "x"})
    report = copy_all(kafka, store, "large", [name])
    assert (report.copied, report.letters) == (2, 2)
    assert values(kafka, name) == [b"1", b"2"]
    letters = committed_rows(kafka, "large-dead-letters")
    assert [len(row["value"]) for row in letters] == [3000, 4000]
    assert "2000" in headers(letters[0])["MIRROR_REASON"].decode()
    assert headers(letters[0])["MIRROR_FROM"].split()[-1] == b"1" and headers(letters[0])["user"] == b"x"


def test_a_letter_that_is_too_large_has_the_position(kafka: KafkaServer, store: Store) -> None:
    name = kafka.new_topic("Small", settings={"max.message.bytes": "2000"})
    kafka.create_topic("position-dead-letters", settings={"max.message.bytes": "2000"})
    store.create_topic(name, queue_count=1)
    fill(store, name, [bytes(3000), b"1"])
    assert copy_all(kafka, store, "position", [name]).letters == 1
    (letter,) = committed_rows(kafka, "position-dead-letters")
    assert letter["value"] is None and headers(letter)["MIRROR_LETTER"] == b"position"


def test_keyless_messages_for_a_compacted_topic_are_letters(kafka: KafkaServer, store: Store) -> None:
    name = kafka.new_topic("Compacted", settings={"cleanup.policy": "compact"})
    store.create_topic(name, queue_count=1)
    fill(store, name, [b"1"], keys="k")
    fill(store, name, [b"2"])
    with mirror_of(kafka, store, "compacted", [name]) as mirror, pytest.raises(MirrorSourceError) as caught:
        mirror.run(until_caught_up=True)
    assert "--compacted-target" in str(caught.value)
    report = copy_all(kafka, store, "compacted", [name], targets=TargetRules(compacted=True))
    assert (report.copied, report.letters) == (1, 1)
    assert values(kafka, name) == [b"1"]


@pytest.mark.slow
def test_what_only_kafka_refuses_is_found_and_becomes_a_letter(
    kafka: KafkaServer, store: Store, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit that the mirror has not heard of: by the rows that Kafka names, and by halves where it names none."""
    fill(store, topic, [b"%d" % number for number in range(20)])
    fill(store, topic, [b"of tomorrow"], born_timestamp_ms=int(time.time() * 1000) + DAY_MS)
    fill(store, topic, [b"end"])
    fill(store, topic, [b"small"] * 5 + [bytes(5000)] + [b"small"] * 5, 1)
    monkeypatch.setattr("rmq_store.bridge.mirror.kafka_targets.MAX_AHEAD_MS", 10 * DAY_MS)
    with mirror_of(kafka, store, "verdict", [topic]) as mirror:
        told = mirror._side.administration.topic_settings

        def stale(name: str) -> dict[str, str]:
            return {**told(name), "message.timestamp.after.max.ms": str(10 * DAY_MS), "max.message.bytes": "1000000"}

        mirror._side.administration.topic_settings = stale  # type: ignore[method-assign]
        mirror._side.writers._topic_settings = stale  # type: ignore[attr-defined]
        with kafka.admin() as admin:
            # Before 4.0 timestamps have no limit of their own.
            limits = {"max.message.bytes": "2000"} | ({} if kafka.knows_writers else {DIFFERENCE: "3600000"})
            admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, limits)])
        report = mirror.run(until_caught_up=True)
    assert not report.failures
    assert (report.copied, report.letters) == (31, 2)
    assert values(kafka, topic, 0) == [*(b"%d" % number for number in range(20)), b"end"]
    assert values(kafka, topic, 1) == [b"small"] * 10
    reasons = [headers(row)["MIRROR_REASON"].decode() for row in committed_rows(kafka, "verdict-dead-letters")]
    assert any("Timestamp" in reason for reason in reasons) and any("TooLarge" in reason for reason in reasons)


def test_a_clock_that_is_ahead_does_not_stop_the_mirror(kafka: KafkaServer, store: Store, topic: str) -> None:
    """Kafka 4 refuses a whole transaction for a timestamp that is more than an hour ahead."""
    born_ms = int(time.time() * 1000) + DAY_MS
    fill(store, topic, [b"1"], born_timestamp_ms=born_ms)
    report = copy_all(kafka, store, "ahead", [topic])
    assert (report.copied, report.letters) == (1, 0)
    (row,) = committed_rows(kafka, topic)
    assert row["timestampMs"] < born_ms and str(born_ms) in headers(row)["MIRROR_TIMESTAMP"].decode()


def test_messages_that_retention_would_delete_at_once_are_refused_unless_told(
    kafka: KafkaServer, store: Store, topic: str
) -> None:
    fill(store, topic, [b"old"], born_timestamp_ms=int(time.time() * 1000) - 30 * DAY_MS)
    with mirror_of(kafka, store, "old", [topic]) as mirror, pytest.raises(MirrorSourceError, match="--old-timestamps"):
        mirror.run(until_caught_up=True)
    report = copy_all(kafka, store, "old", [topic], targets=TargetRules(old_timestamps="now"))
    assert (report.copied, report.older_than_retention) == (1, 0)
    (row,) = committed_rows(kafka, topic)
    assert abs(row["timestampMs"] - time.time() * 1000) < 600_000
    fill(store, topic, [b"old"], born_timestamp_ms=int(time.time() * 1000) - 30 * DAY_MS)
    assert copy_all(kafka, store, "old", [topic], targets=TargetRules(old_timestamps="keep")).older_than_retention == 1


def test_too_few_partitions_are_refused_and_grow_if_told(kafka: KafkaServer, store: Store) -> None:
    name = kafka.new_topic("Narrow", partition_count=1)
    store.create_topic(name, queue_count=3)
    fill(store, name, [b"1"], 2)
    with (
        mirror_of(kafka, store, "narrow", [name], targets=TargetRules()) as mirror,
        pytest.raises(MirrorSourceError, match="3 queues"),
    ):
        mirror.run(until_caught_up=True)
    copy_all(kafka, store, "narrow", [name])
    assert values(kafka, name, 2) == [b"1"]


def test_new_topics_and_queues_are_followed_from_their_beginning(
    kafka: KafkaServer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(into_kafka, "REFRESH_S", 0.0)
    store.create_topic("Follow-1", queue_count=1)
    fill(store, "Follow-1", [b"before"])
    choice = TopicChoice((), re.compile("Follow-.*"))
    rules = CopyRules(start="latest")
    with mirror_of(kafka, store, "follow", [], choice=choice, rules=rules, wait=stops_after(40, 0.01)) as mirror:
        mirror._refresh_topics()
        mirror._copy(mirror._topics["Follow-1"])
        store.create_topic("Follow-2", queue_count=1)
        fill(store, "Follow-2", [b"new topic"])
        store.admin.update_topic(
            "Follow-1",
            lambda config: replace(config, read_queue_nums=2, write_queue_nums=2),
            default=store.topic("Follow-1"),
        )
        fill(store, "Follow-1", [b"new queue"], 1)
        mirror.run()
    assert values(kafka, "Follow-1", 0) == []
    assert values(kafka, "Follow-1", 1) == [b"new queue"]
    assert values(kafka, "Follow-2", 0) == [b"new topic"]


def test_more_letters_than_allowed_end_the_mirror(kafka: KafkaServer, store: Store) -> None:
    name = kafka.new_topic("Small", settings={"max.message.bytes": "1000"})
    store.create_topic(name, queue_count=1)
    fill(store, name, [bytes(2000)] * 3)
    with (
        mirror_of(kafka, store, "letters", [name], letters_max=2) as mirror,
        pytest.raises(MirrorLettersError, match="3 dead letters"),
    ):
        mirror.run(until_caught_up=True)


def test_a_target_that_was_made_again_is_noticed(kafka: KafkaServer, store: Store, topic: str) -> None:
    fill(store, topic, [b"1"])
    copy_all(kafka, store, "again", [topic])
    kafka.delete_topic(topic)
    kafka.create_topic(topic, partition_count=2)
    with mirror_of(kafka, store, "again", [topic]) as mirror, pytest.raises(MirrorSourceError, match="made again"):
        mirror.run(until_caught_up=True)
    assert values(kafka, topic) == []


@pytest.mark.slow
def test_a_target_that_has_lost_its_end_is_noticed(
    kafka: KafkaServer, store: Store, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unclean election of the target partition, when the mirror starts and under way."""
    fill(store, topic, [b"1", b"2"])
    copy_all(kafka, store, "lost-end", [topic])
    fill(store, topic, [b"3"])
    with mirror_of(kafka, store, "lost-end", [topic]) as mirror:
        own, end_of = mirror._side.positions.partition, mirror._side.writers.high_watermark
        monkeypatch.setattr(mirror._side.writers, "high_watermark", lambda place: end_of(place) if place == own else 1)
        with pytest.raises(MirrorSourceError, match=r"Partition 0 .* ends at 1, and ended at 2"):
            mirror.run(until_caught_up=True)
    with mirror_of(kafka, store, "lost-end", [topic]) as mirror:
        mirror._refresh_topics()
        copy = mirror._topics[topic].copy
        copy.open()
        writer = copy._writer
        assert writer is not None
        monkeypatch.setattr(writer, "flush", lambda: {Partition(topic, 0): 1})
        with pytest.raises(MirrorTargetError, match="ends at 1 now, and ended at 2 before"):
            copy.copy()
        writer.close()
    assert values(kafka, topic) == [b"1", b"2"]


@pytest.mark.slow
def test_64_queues_are_copied(kafka: KafkaServer, store: Store) -> None:
    name = kafka.new_topic("Wide", partition_count=64)
    store.create_topic(name, queue_count=64)
    for queue_id in range(64):
        fill(store, name, [b"%d-%d" % (queue_id, number) for number in range(3)], queue_id)
    assert copy_all(kafka, store, "wide", [name], rules=CopyRules(window_rows=100)).copied == 192
    for queue_id in (0, 31, 63):
        assert values(kafka, name, queue_id) == [b"%d-%d" % (queue_id, number) for number in range(3)]


def test_a_position_topic_that_does_not_keep_positions_is_refused(kafka: KafkaServer, store: Store, topic: str) -> None:
    kafka.create_topic(positions_topic("forgets", RMQ_CLUSTER), settings={"cleanup.policy": "delete"})
    with (
        pytest.raises(Exception, match="positions would be lost"),
        mirror_of(kafka, store, "forgets", [topic]),
    ):
        pass


def test_lost_positions_are_noticed_by_the_records_that_are_there(kafka: KafkaServer, store: Store, topic: str) -> None:
    fill(store, topic, [b"1"], 1)
    copy_all(kafka, store, "loses", [topic])
    kafka.delete_topic(positions_topic("loses", RMQ_CLUSTER))
    with mirror_of(kafka, store, "loses", [topic]) as mirror, pytest.raises(MirrorSourceError, match="--begin-again"):
        mirror.run(until_caught_up=True)
    copy_all(kafka, store, "loses", [topic], rules=CopyRules(begin_again=True))
    assert values(kafka, topic, 1) == [b"1", b"1"]


def test_a_mirror_that_is_to_stop_does_not_wait_for_kafka(
    kafka: KafkaServer, store: Store, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, topic, [b"1"])
    asked = stops_after(9)
    options = {"side_options": {"is_stopping": lambda: asked(0)}}
    with mirror_of(kafka, store, "stops", [topic], wait=asked, patience_s=None, **options) as mirror:
        brokers = mirror._side.writers._brokers  # type: ignore[attr-defined]

        async def nobody(request: Any, node_id: int | None) -> Any:
            raise kafka_errors.KafkaConnectionError("nobody answers")

        monkeypatch.setattr(brokers, "send", nobody)
        began_s = time.monotonic()
        report = mirror.run()
        assert time.monotonic() - began_s < 20 and report.copied == 0


def test_another_target_for_a_topic_is_refused(kafka: KafkaServer, store: Store, topic: str) -> None:
    fill(store, topic, [b"1"])
    copy_all(kafka, store, "renamed", [topic])
    choice = TopicChoice((topic,), None, (Rename.parse(f"{topic}={topic}-elsewhere"),))
    with (
        mirror_of(kafka, store, "renamed", [], choice=choice) as mirror,
        pytest.raises(MirrorSourceError, match="Keep its --rename"),
    ):
        mirror.run(until_caught_up=True)
