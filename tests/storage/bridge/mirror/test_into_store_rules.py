"""The rules of the mirror into a store: starts, losses, replaced topics, growth, waiting, and what stops alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_store import (
    CorruptBatchError,
    KafkaRefusedError,
    KafkaUnavailableError,
    MirrorConflictError,
    MirrorLettersError,
    MirrorSourceError,
    Store,
    StoreConfig,
    StoreFullError,
    UsageError,
)
from rmq_store.bridge.kafka.client import Partition, Position
from rmq_store.bridge.mirror import into_store, source_topics, store_units
from rmq_store.bridge.mirror.into_store import IntoStore
from rmq_store.bridge.mirror.options import IntoStoreOptions
from rmq_store.bridge.mirror.report import MirrorReport
from rmq_store.bridge.positions.store_positions import StorePositions
from rmq_store.bridge.positions.topics import Rename
from rmq_store.bridge.records.unmappable_record import letter_topic, read_letters
from storage.bridge.mirror.fake_kafka import CLUSTER_ID, FakeKafka
from storage.bridge.mirror.into_store_lab import copied, options, source_offsets

TOPIC = "orders"


@pytest.fixture
def kafka_in_memory() -> FakeKafka:
    return FakeKafka()


@pytest.fixture
def store(scratch: Path, small: StoreConfig) -> Iterator[Store]:
    with Store.open(scratch / "store", create=True, config=small) as opened:
        yield opened


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(into_store, "REFRESH_S", 0.0)


def mirror_of(fake: FakeKafka, store: Store, wanted: IntoStoreOptions, **more: Any) -> IntoStore:
    return IntoStore(store, fake, fake, wanted, **{"wait": lambda seconds: False, "patience_s": 0.0} | more)


def copy_all(fake: FakeKafka, store: Store, wanted: IntoStoreOptions | None = None) -> MirrorReport:
    return mirror_of(fake, store, wanted or options(TOPIC)).run(until_caught_up=True)


def stops_after(turns: int) -> Callable[[float], bool]:
    """A `wait` that says stop when it was asked so often."""
    left = iter(range(turns))
    return lambda seconds: next(left, None) is None


def positions(store: Store, mirror: str = "m") -> StorePositions:
    return StorePositions(store, mirror, CLUSTER_ID)


# -- where it begins -------------------------------------------------------------------------------------------------


def test_a_first_run_from_the_latest_copies_only_what_comes_after(kafka_in_memory: FakeKafka, store: Store) -> None:
    (log,) = kafka_in_memory.make(TOPIC)
    log.append(b"old")
    wanted = options(TOPIC, start="latest")
    copy_all(kafka_in_memory, store, wanted)
    log.append(b"new")
    copy_all(kafka_in_memory, store, wanted)
    assert [message.body for message in copied(store, TOPIC)] == [b"new"]


def test_a_start_is_kept_before_anything_is_copied(kafka_in_memory: FakeKafka, store: Store) -> None:
    """Else a mirror that dies before its first record would begin elsewhere, and lose what came in between."""
    first, second = kafka_in_memory.make(TOPIC, 2)
    first.append(b"old")
    wanted = options(TOPIC, start="latest")
    mirror_of(kafka_in_memory, store, wanted)
    first.append(b"between 1")
    second.append(b"between 2")
    copy_all(kafka_in_memory, store, wanted)
    assert [message.body for queue in range(2) for message in copied(store, TOPIC, queue)] == [
        b"between 1",
        b"between 2",
    ]


def test_starts_of_all_partitions_of_a_topic_are_one_append(
    kafka_in_memory: FakeKafka, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions without a start would look like those that came later, and begin at the earliest."""
    for log in kafka_in_memory.make(TOPIC, 8):
        log.append(b"old")
    appended: list[str] = []
    append_unit = Store.append_unit

    def counted(self: Store, batches: Any, *, key: str, **more: Any) -> Any:
        appended.append(key)
        return append_unit(self, batches, key=key, **more)

    monkeypatch.setattr(Store, "append_unit", counted)
    mirror_of(kafka_in_memory, store, options(TOPIC, start="latest"))
    assert appended == [f"m/{CLUSTER_ID}/{TOPIC}", f"m/{CLUSTER_ID}"]
    known = positions(store).read(TOPIC)
    assert known is not None
    assert {at.start_offset for at in known.partitions.values()} == {1} and len(known.partitions) == 8


def test_a_time_is_looked_up(kafka_in_memory: FakeKafka, store: Store) -> None:
    (log,) = kafka_in_memory.make(TOPIC)
    log.append(b"0", b"1", b"2")
    copy_all(kafka_in_memory, store, options(TOPIC, start=2))
    assert source_offsets(store, TOPIC) == [2]


def test_partitions_and_topics_that_come_later_begin_at_the_earliest(kafka_in_memory: FakeKafka, store: Store) -> None:
    kafka_in_memory.make("shop-1")[0].append(b"old")
    wanted = options(pattern="shop-.*", start="latest")
    copy_all(kafka_in_memory, store, wanted)
    kafka_in_memory.grow_topic("shop-1", 3)
    kafka_in_memory.logs["shop-1"][2].append(b"grown")
    kafka_in_memory.make("shop-2")[0].append(b"found")
    report = copy_all(kafka_in_memory, store, wanted)
    assert report.copied == 2
    assert [message.body for message in copied(store, "shop-1", 2)] == [b"grown"]
    assert [message.body for message in copied(store, "shop-2")] == [b"found"]
    assert store.topic("shop-1").write_queue_nums == 3 == store.topic("shop-1").read_queue_nums


def test_partitions_that_come_while_it_runs_are_copied(kafka_in_memory: FakeKafka, store: Store) -> None:
    kafka_in_memory.make(TOPIC)[0].append(b"first")
    mirror = mirror_of(kafka_in_memory, store, options(TOPIC, start="latest"), wait=stops_after(6))
    kafka_in_memory.grow_topic(TOPIC, 2)
    kafka_in_memory.logs[TOPIC][1].append(b"second")
    assert mirror.run().copied == 1
    assert [message.body for message in copied(store, TOPIC, 1)] == [b"second"]


# -- what is refused at the start ------------------------------------------------------------------------------------


def test_a_target_without_queues_enough_is_refused_unless_it_may_grow(kafka_in_memory: FakeKafka, store: Store) -> None:
    kafka_in_memory.make(TOPIC, 5)
    with pytest.raises(UsageError, match=r"the store has no topic 'orders'.*--create-topics"):
        copy_all(kafka_in_memory, store, options(TOPIC, create_topics=False))
    store.create_topic(TOPIC, 4)
    with pytest.raises(UsageError, match=r"has 4 queues, and Kafka's 'orders' 5 partitions.*--create-topics"):
        copy_all(kafka_in_memory, store, options(TOPIC, create_topics=False))
    copy_all(kafka_in_memory, store)
    assert store.topic(TOPIC).write_queue_nums == 5


def test_a_topic_that_is_not_there_is_refused_by_name(kafka_in_memory: FakeKafka, store: Store) -> None:
    with pytest.raises(UsageError, match="the source has no topic 'orders'"):
        copy_all(kafka_in_memory, store)


def test_two_topics_that_would_become_one_are_refused_also_later(kafka_in_memory: FakeKafka, store: Store) -> None:
    for name in ("a.b", "a-b"):
        kafka_in_memory.make(name)[0].append(b"x")
    wanted = options(pattern="a.b", dots_as="-")
    with pytest.raises(UsageError, match=r"'a-b' and 'a.b' would both become 'a-b'"):
        copy_all(kafka_in_memory, store, wanted)
    other = kafka_in_memory.logs.pop("a.b")
    mirror = mirror_of(kafka_in_memory, store, wanted, wait=stops_after(6))
    kafka_in_memory.logs["a.b"] = other
    kafka_in_memory.logs["a-b"][0].append(b"y")
    mirror.run()
    assert [message.body for message in copied(store, "a-b")] == [b"x", b"y"]


def test_a_changed_rename_rule_is_refused(kafka_in_memory: FakeKafka, store: Store) -> None:
    kafka_in_memory.make(TOPIC)[0].append(b"x")
    copy_all(kafka_in_memory, store)
    with pytest.raises(UsageError, match="mirrored to another topic than 'other' before"):
        copy_all(kafka_in_memory, store, options(TOPIC, renames=(Rename.parse("orders=other"),)))


def test_a_changed_cluster_id_is_refused(kafka_in_memory: FakeKafka, store: Store) -> None:
    kafka_in_memory.make(TOPIC)
    copy_all(kafka_in_memory, store)
    with pytest.raises(UsageError, match="another cluster id than 'changed'"):
        copy_all(kafka_in_memory, store, replace(options(TOPIC), cluster_id="changed"))


def test_the_cluster_id_of_kafka_is_refused_for_the_store(kafka_in_memory: FakeKafka, store: Store) -> None:
    kafka_in_memory.make(TOPIC)
    with pytest.raises(UsageError, match="the same cluster id"):
        copy_all(kafka_in_memory, store, replace(options(TOPIC), cluster_id=CLUSTER_ID))


@pytest.mark.parametrize(
    ("limit", "name"), [("topics_max", "--max-topics 1"), ("partitions_max", "--max-partitions 1")]
)
def test_more_topics_or_partitions_than_allowed_are_refused(
    limit: str, name: str, kafka_in_memory: FakeKafka, store: Store
) -> None:
    for topic in ("shop-1", "shop-2"):
        kafka_in_memory.make(topic, 2)
    with pytest.raises(UsageError, match=name):
        copy_all(kafka_in_memory, store, options(pattern=".*", **{limit: 1}))


def test_topics_of_the_systems_are_never_taken_by_a_pattern(kafka_in_memory: FakeKafka, store: Store) -> None:
    names = ["__consumer_offsets", "__pyrmq.m.positions", "_schemas", "orders-dead-letters", "orders"]
    for name in names:
        kafka_in_memory.make(name)[0].append(b"x")
    assert copy_all(kafka_in_memory, store, options(pattern=".*")).copied == 1
    with pytest.raises(UsageError, match="holds positions of mirrors"):
        options("__pyrmq.m.positions")


# -- a source that is not what it was --------------------------------------------------------------------------------


def test_records_that_were_deleted_before_they_were_copied_stop_the_partition(
    kafka_in_memory: FakeKafka, store: Store
) -> None:
    first, second = kafka_in_memory.make(TOPIC, 2)
    first.append(*[b"x"] * 10)
    second.append(b"y")
    mirror_of(kafka_in_memory, store, options(TOPIC))
    first.start = 4
    report = copy_all(kafka_in_memory, store)
    assert report.copied == 1 and not report.is_caught_up
    (reason,) = report.failures.values()
    assert "[0, 4) were deleted" in reason and "--on-data-loss count" in reason
    assert source_offsets(store, TOPIC) == []


def test_lost_records_are_counted_where_that_is_asked(kafka_in_memory: FakeKafka, store: Store) -> None:
    (log,) = kafka_in_memory.make(TOPIC)
    log.append(*[b"x"] * 10)
    wanted = options(TOPIC, on_data_loss="count")
    mirror_of(kafka_in_memory, store, wanted)
    log.start = 4
    report = copy_all(kafka_in_memory, store, wanted)
    assert (report.copied, report.lost) == (6, 4)
    assert source_offsets(store, TOPIC) == list(range(4, 10))
    known = positions(store).read(TOPIC)
    assert known is not None
    assert (known.partitions[0].lost_count, known.partitions[0].lost_end) == (4, 4)


def test_a_position_beyond_the_end_is_a_truncated_source_also_where_losses_are_counted(
    kafka_in_memory: FakeKafka, store: Store
) -> None:
    (log,) = kafka_in_memory.make(TOPIC)
    log.append(*[b"x"] * 10)
    wanted = options(TOPIC, on_data_loss="count")
    copy_all(kafka_in_memory, store, wanted)
    log.end = 7
    with pytest.raises(MirrorSourceError, match="shorter than it was"):
        copy_all(kafka_in_memory, store, wanted)
    assert positions(store).read(TOPIC).partitions[0].next_offset == 10  # type: ignore[union-attr]


def test_a_truncation_that_the_client_finds_stops_only_its_partition(kafka_in_memory: FakeKafka, store: Store) -> None:
    first, second = kafka_in_memory.make(TOPIC, 2)
    first.append(b"x")
    second.append(b"y")

    def truncated() -> None:
        if Partition(TOPIC, 0) in kafka_in_memory.positions:
            raise MirrorSourceError("orders/0 was truncated", [(TOPIC, 0)])

    kafka_in_memory.before_poll = truncated
    report = copy_all(kafka_in_memory, store)
    assert report.failures == {Partition(TOPIC, 0): "orders/0 was truncated"}
    assert source_offsets(store, TOPIC, 1) == [0]


def test_the_epoch_of_the_last_batch_is_kept_for_the_next_run(kafka_in_memory: FakeKafka, store: Store) -> None:
    (log,) = kafka_in_memory.make(TOPIC)
    log.append(b"x")
    log.epoch = 7
    copy_all(kafka_in_memory, store)
    mirror_of(kafka_in_memory, store, options(TOPIC))
    assert kafka_in_memory.assigned[-1] == {Partition(TOPIC, 0): Position(1, 7)}


def test_a_topic_that_was_made_again_is_refused_at_the_start(kafka_in_memory: FakeKafka, store: Store) -> None:
    kafka_in_memory.make(TOPIC)[0].append(b"x", b"y")
    copy_all(kafka_in_memory, store)
    kafka_in_memory.make(TOPIC)[0].append(b"new")
    with pytest.raises(MirrorSourceError, match=r"deleted and made again.*--restart-replaced"):
        copy_all(kafka_in_memory, store)
    wanted = options(TOPIC, restart_replaced=True)
    assert copy_all(kafka_in_memory, store, wanted).copied == 1
    kafka_in_memory.logs[TOPIC][0].append(b"newer")
    assert copy_all(kafka_in_memory, store, wanted).copied == 1
    messages = copied(store, TOPIC)
    assert [message.body for message in messages] == [b"x", b"y", b"new", b"newer"]
    assert len({message.properties["UNIQ_KEY"] for message in messages}) == 4


def test_what_was_read_of_a_topic_made_again_meanwhile_is_not_stored(kafka_in_memory: FakeKafka, store: Store) -> None:
    """The offset is there in the new topic as well, but what was below it was never copied."""
    kafka_in_memory.make(TOPIC)[0].append(*[b"old"] * 5)
    kafka_in_memory.make("other")[0].append(b"fine")
    wanted = options(TOPIC, "other")
    copy_all(kafka_in_memory, store, wanted)
    mirror = mirror_of(kafka_in_memory, store, wanted)
    kafka_in_memory.make(TOPIC)[0].append(*[b"new"] * 9)
    kafka_in_memory.logs["other"][0].append(b"fine too")
    # Without the look at the topics that would notice it before the poll.
    mirror._refreshed_s = float("inf")
    report = mirror.run(until_caught_up=True)
    assert {message.body for message in copied(store, TOPIC)} == {b"old"}
    assert [message.body for message in copied(store, "other")] == [b"fine", b"fine too"]
    assert "deleted and made again" in report.failures[Partition(TOPIC, 0)]


def test_a_topic_that_is_deleted_stops_alone(kafka_in_memory: FakeKafka, store: Store) -> None:
    for name in (TOPIC, "other"):
        kafka_in_memory.make(name)[0].append(b"x")
    mirror = mirror_of(kafka_in_memory, store, options(pattern=".*"), wait=stops_after(6))
    del kafka_in_memory.logs[TOPIC]
    report = mirror.run()
    assert report.failures == {Partition(TOPIC, 0): "Kafka has no topic 'orders' any more"}
    assert source_offsets(store, "other") == [0]


def test_rights_that_end_for_a_topic_stop_it_alone(kafka_in_memory: FakeKafka, store: Store) -> None:
    for name in (TOPIC, "other"):
        kafka_in_memory.make(name)[0].append(b"x")

    def refused() -> None:
        if Partition(TOPIC, 0) in kafka_in_memory.positions:
            raise KafkaRefusedError("not authorized", [TOPIC])

    kafka_in_memory.before_poll = refused
    report = copy_all(kafka_in_memory, store, options(TOPIC, "other"))
    assert report.failures == {Partition(TOPIC, 0): "not authorized"}
    assert source_offsets(store, "other") == [0]


@pytest.mark.parametrize("how", ["fail", "letter"])
def test_a_broken_batch_stops_its_partition_or_becomes_a_letter_that_says_where(
    how: str, kafka_in_memory: FakeKafka, store: Store
) -> None:
    (log,) = kafka_in_memory.make(TOPIC)
    log.append(*[b"x"] * 5)

    def broken() -> None:
        if kafka_in_memory.positions[Partition(TOPIC, 0)].offset < 3:
            raise CorruptBatchError(offset=0, next_offset=3, reason="bad CRC", partition=(TOPIC, 0))

    kafka_in_memory.before_poll = broken
    wanted = options(TOPIC, on_bad_batch=how)
    if how == "fail":
        with pytest.raises(MirrorSourceError, match=r"bad CRC.*--on-bad-batch letter"):
            copy_all(kafka_in_memory, store, wanted)
        return
    report = copy_all(kafka_in_memory, store, wanted)
    assert (report.copied, report.letters) == (2, 1)
    assert source_offsets(store, TOPIC) == [3, 4]
    (batch,) = store.read(letter_topic("m"), 0, 0, 1)
    (letter,) = read_letters(batch)
    assert letter.record is None and letter.source.split()[3] == "0" and "bad CRC" in letter.reason


# -- letters, loops --------------------------------------------------------------------------------------------------


def test_a_record_that_cannot_be_stored_becomes_a_letter_and_the_mirror_goes_on(
    kafka_in_memory: FakeKafka, store: Store
) -> None:
    (log,) = kafka_in_memory.make(TOPIC)
    log.append(b"before", b"x" * (store.config.max_message_size + 1), b"after")
    report = copy_all(kafka_in_memory, store)
    assert (report.copied, report.letters) == (2, 1)
    assert source_offsets(store, TOPIC) == [0, 2]
    assert store.queue_range(letter_topic("m"), 0).max_offset == 1


@pytest.mark.parametrize("beside", [8, 100, 3000, 5000])
def test_a_record_as_large_as_a_segment_becomes_a_letter_that_fits_one(
    beside: int, kafka_in_memory: FakeKafka, store: Store
) -> None:
    (log,) = kafka_in_memory.make(TOPIC)
    log.append(b"x" * (store.config.mapped_file_size_commit_log - beside), b"after")
    report = copy_all(kafka_in_memory, store)
    assert report.copied + report.letters == 2
    assert source_offsets(store, TOPIC)[-1] == 1


def test_more_letters_than_allowed_end_the_mirror(kafka_in_memory: FakeKafka, store: Store) -> None:
    (log,) = kafka_in_memory.make(TOPIC)
    log.append(*[b"x" * (store.config.max_message_size + 1)] * 3)
    with pytest.raises(MirrorLettersError, match="more than 2 records"):
        copy_all(kafka_in_memory, store, options(TOPIC, letters_max=2))


# -- positions and rows that a foreign recovery has parted -----------------------------------------------------------


def test_rows_behind_the_position_are_not_copied_again(kafka_in_memory: FakeKafka, store: Store) -> None:
    """A RocketMQ broker that recovers half a unit keeps its rows, and not the record that says the position."""
    (log,) = kafka_in_memory.make(TOPIC)
    log.append(*[b"x"] * 4)
    copy_all(kafka_in_memory, store)
    known = positions(store).read(TOPIC)
    assert known is not None
    # As if the last unit had said 2: the next run sees rows of offsets 2 and 3 in the queue.
    store.append_unit([], purpose="mirror", key=f"m/{CLUSTER_ID}/{TOPIC}/0", value=2, expect=4,
                      detail=dict(store.newest_unit("mirror", f"m/{CLUSTER_ID}/{TOPIC}/0").detail))  # type: ignore[union-attr]  # fmt: skip
    log.append(b"y")
    assert copy_all(kafka_in_memory, store).copied == 1
    assert source_offsets(store, TOPIC) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_store_that_has_forgotten_a_mirror_is_not_filled_again(
    start: str, scratch: Path, small: StoreConfig, kafka_in_memory: FakeKafka
) -> None:
    """Its units are gone, with the rows still there: as after a cleaner of RocketMQ and a lost pyrmq/units.json."""
    (log,) = kafka_in_memory.make(TOPIC)
    log.append(*[b"x"] * 4)
    with Store.open(scratch / "first", create=True, config=small) as first:
        copy_all(kafka_in_memory, first)
        rows = pa_rows(first)
    with Store.open(scratch / "second", create=True, config=small) as second:
        second.create_topic(TOPIC, 1)
        second.append_unit([rows], purpose="rows", key="k", value=1, expect=None, keep_unique_key=True)
        log.append(b"y")
        copy_all(kafka_in_memory, second, options(TOPIC, start=start))
        assert source_offsets(second, TOPIC) == [0, 1, 2, 3, 4]
        known = positions(second).read(TOPIC)
        assert known is not None and known.partitions[0].start_offset == 0


def pa_rows(store: Store) -> Any:
    import pyarrow as pa

    (batch,) = store.read(TOPIC, 0, 0, store.queue_range(TOPIC, 0).max_offset)
    count = batch.num_rows
    columns = {
        "topic": pa.array([TOPIC] * count), "body": batch.column("body"), "properties": batch.column("properties"),
        "bornTimestamp": batch.column("bornTimestamp"), "queueId": pa.array([0] * count, pa.int32()),
    }  # fmt: skip
    return pa.RecordBatch.from_pydict(columns)


# -- two of one name, stops, waits -----------------------------------------------------------------------------------


def test_of_two_mirrors_of_one_name_only_one_goes_on(kafka_in_memory: FakeKafka, store: Store) -> None:
    (log,) = kafka_in_memory.make(TOPIC)
    first = mirror_of(kafka_in_memory, store, options(TOPIC))
    log.append(b"x")
    copy_all(kafka_in_memory, store)
    kafka_in_memory.assign({Partition(TOPIC, 0): Position(0)})
    with pytest.raises(MirrorConflictError, match="another mirror named 'm'"):
        first.run(until_caught_up=True)
    assert source_offsets(store, TOPIC) == [0]


def test_mirrors_of_two_names_are_independent(kafka_in_memory: FakeKafka, store: Store) -> None:
    kafka_in_memory.make(TOPIC)[0].append(b"x")
    copy_all(kafka_in_memory, store, options(TOPIC, renames=(Rename.parse("orders=a"),)))
    copy_all(kafka_in_memory, store, options(TOPIC, mirror="n", renames=(Rename.parse("orders=b"),)))
    assert source_offsets(store, "a") == source_offsets(store, "b") == [0]


def test_a_stop_writes_the_position_of_what_had_no_records(kafka_in_memory: FakeKafka, store: Store) -> None:
    (log,) = kafka_in_memory.make(TOPIC)
    log.append(b"x")
    # The record comes with the first poll, a marker with each of the others.
    polls = iter(range(100))
    kafka_in_memory.before_poll = lambda: log.skip(min(1, next(polls)))
    mirror_of(kafka_in_memory, store, options(TOPIC), wait=stops_after(4)).run()
    assert positions(store).read(TOPIC).partitions[0].next_offset == log.end > 2  # type: ignore[union-attr]


def test_offsets_without_records_cost_few_units(kafka_in_memory: FakeKafka, store: Store) -> None:
    (log,) = kafka_in_memory.make(TOPIC)
    log.append(b"x")
    kafka_in_memory.before_poll = lambda: log.skip(1)
    units: list[int] = []
    append_unit = Store.append_unit
    with pytest.MonkeyPatch.context() as patch:

        def counted(self: Store, *args: Any, **more: Any) -> Any:
            units.append(1)
            return append_unit(self, *args, **more)

        patch.setattr(Store, "append_unit", counted)
        mirror_of(kafka_in_memory, store, options(TOPIC), wait=stops_after(100)).run()
    # The mirror's, the topic's, the record's, and one at the end.
    assert len(units) <= 5


def test_a_full_store_is_waited_for_and_loses_nothing(
    kafka_in_memory: FakeKafka, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (log,) = kafka_in_memory.make(TOPIC)
    log.append(b"x")
    append_unit = Store.append_unit
    fulls = iter(range(3))
    states: list[str] = []

    def full(self: Store, batches: Any, **more: Any) -> Any:
        if batches and next(fulls, None) is not None:
            raise StoreFullError("the disk is full")
        return append_unit(self, batches, **more)

    monkeypatch.setattr(Store, "append_unit", full)
    mirror_of(kafka_in_memory, store, options(TOPIC), on_report=lambda report: states.append(report.state)).run(
        until_caught_up=True
    )
    assert source_offsets(store, TOPIC) == [0]
    assert states.count("waiting for the store: the disk is full") == 3


def test_a_stop_while_the_store_is_full_ends_the_run(
    kafka_in_memory: FakeKafka, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (log,) = kafka_in_memory.make(TOPIC)
    mirror = mirror_of(kafka_in_memory, store, options(TOPIC), wait=stops_after(3))
    monkeypatch.setattr(into_store, "EMPTY_UNIT_S", 1e9)
    log.skip(5)

    def full(*args: Any, **more: Any) -> Any:
        raise StoreFullError("the disk is full")

    monkeypatch.setattr(Store, "append_unit", full)
    assert mirror.run().state == "stopped"


def test_a_kafka_that_does_not_answer_is_waited_for(kafka_in_memory: FakeKafka, store: Store) -> None:
    kafka_in_memory.make(TOPIC)[0].append(b"x")
    silences = iter(range(5))

    def silent() -> None:
        if next(silences, None) is not None:
            raise KafkaUnavailableError("nobody answers")

    kafka_in_memory.before_poll = silent
    with pytest.raises(KafkaUnavailableError):
        mirror_of(kafka_in_memory, store, options(TOPIC), patience_s=-1.0).run(until_caught_up=True)
    mirror_of(kafka_in_memory, store, options(TOPIC), patience_s=None).run(until_caught_up=True)
    assert source_offsets(store, TOPIC) == [0]


def test_large_fetches_are_several_units_and_a_stop_falls_between_them(
    kafka_in_memory: FakeKafka, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(into_store, "UNIT_ROWS", 10)
    (log,) = kafka_in_memory.make(TOPIC)
    log.append(*[b"x"] * 95)
    report = mirror_of(kafka_in_memory, store, options(TOPIC), wait=stops_after(4)).run()
    assert report.copied in range(10, 60) and report.copied % 10 == 0
    copy_all(kafka_in_memory, store)
    assert source_offsets(store, TOPIC) == list(range(95))


def test_a_unit_has_bytes_enough_for_one_record_however_large(
    kafka_in_memory: FakeKafka, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_units, "UNIT_BYTES", 100)
    (log,) = kafka_in_memory.make(TOPIC)
    log.append(b"a" * 5000, b"b", b"c" * 5000)
    assert copy_all(kafka_in_memory, store).units == 3
    assert source_offsets(store, TOPIC) == [0, 1, 2]


def test_all_partitions_stopped_is_an_error(kafka_in_memory: FakeKafka, store: Store) -> None:
    kafka_in_memory.make(TOPIC)[0].append(b"x")
    mirror = mirror_of(kafka_in_memory, store, options(TOPIC))
    del kafka_in_memory.logs[TOPIC]
    with pytest.raises(MirrorSourceError, match="every partition has stopped"):
        mirror.run()


def test_the_module_of_topics_knows_what_it_follows(kafka_in_memory: FakeKafka, store: Store) -> None:
    kafka_in_memory.make(TOPIC, 2)
    topics = source_topics.SourceTopics(store, kafka_in_memory, kafka_in_memory, options(TOPIC), CLUSTER_ID)
    assert topics.refresh() and not topics.refresh()
    assert sorted(topics.active) == [Partition(TOPIC, 0), Partition(TOPIC, 1)]
