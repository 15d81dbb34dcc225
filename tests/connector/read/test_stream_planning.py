"""The life of a stream, call by call as Spark makes them, on a home in memory."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from pyspark_rmq.access.spark_api import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows
from pyspark_rmq.position.position import Queue
from pyspark_rmq.read import group as group_module
from pyspark_rmq.read import stream_reader as stream_reader_module
from rmq_store.errors import LeaseHeldError, StoreFullError, UsageError

from ..planned_batches import LIMIT, T0, T1, first_batch, planned, through_spark

Make = Callable[..., Any]


@pytest.fixture(autouse=True)
def _quick_claims(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "pyspark_rmq")
    monkeypatch.setattr(group_module, "CLAIM_TIMEOUT_S", 0.3)


def test_a_stream_without_group_starts_at_the_end_and_reads_what_comes_then(
    fake_store: Make, stream_reader: Make
) -> None:
    home = fake_store({T0: (0, 10), T1: (3, 20)})
    reader = stream_reader(home)
    start, end = first_batch(reader)
    assert planned(reader, start, end) == []
    home.queues[T0] = (0, 12)
    later = through_spark(reader.latestOffset(end, LIMIT))
    assert planned(reader, end, later) == [("T", 0, 10, 12)]


def test_when_nothing_is_new_the_offset_is_the_same_text_or_spark_would_run_a_batch(
    fake_store: Make, stream_reader: Make
) -> None:
    home = fake_store({T0: (0, 10), T1: (3, 20)})
    reader = stream_reader(home, startingOffsets="earliest", group="g")
    _, end = first_batch(reader)
    text = json.dumps(end)
    looked_up = home.looked_up
    for _ in range(5):
        assert json.dumps(reader.latestOffset(through_spark(end), LIMIT)) == text
    assert len(home.commits) == 2  # the start, and the end of the first batch: idle polls write nothing
    # and look at the log once, to check that the store is the same, and then at the newest message that was read
    assert home.looked_up <= looked_up + 2 + 4


def test_a_first_batch_that_was_not_completed_is_repeated_from_where_it_began(
    fake_store: Make, stream_reader: Make
) -> None:
    # Spark does not write the initial offset down. The driver died after batch 0 was planned; when it comes back,
    # "latest" has moved behind the end of that batch, and reading from there would lose it.
    home = fake_store({T0: (0, 10)})
    reader = stream_reader(home)
    start = through_spark(reader.initialOffset())
    home.queues[T0] = (0, 15)
    end = through_spark(reader.latestOffset(start, LIMIT))
    home.queues[T0] = (0, 40)
    restarted = stream_reader(home)
    assert planned(restarted, through_spark(restarted.initialOffset()), end) == [("T", 0, 10, 15)]
    # and only the first batch carries that
    assert "began" not in restarted.latestOffset(end, LIMIT)


@pytest.mark.statement("G07")
def test_a_group_starts_where_it_committed_and_the_rest_of_its_queues_young_at_0(
    fake_store: Make, stream_reader: Make, caplog: pytest.LogCaptureFixture
) -> None:
    home = fake_store({T0: (0, 10), T1: (0, 20)}, committed={T0: 7})
    start, end = first_batch(reader := stream_reader(home, group="g"))
    assert planned(reader, start, end) == [("T", 0, 7, 10), ("T", 1, 0, 20)]
    assert not caplog.records


@pytest.mark.statement("G07")
def test_a_committed_offset_wins_over_the_option_with_a_warning(
    fake_store: Make, stream_reader: Make, caplog: pytest.LogCaptureFixture
) -> None:
    home = fake_store({T0: (0, 10), T1: (0, 20)}, committed={T0: 7})
    start, end = first_batch(reader := stream_reader(home, group="g", startingOffsets='{"T":{"0":1,"1":2}}'))
    assert planned(reader, start, end) == [("T", 0, 7, 10), ("T", 1, 2, 20)]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "T-0 (7)" in caplog.text and "T-1" not in caplog.text


def test_a_checkpoint_wins_over_the_group(
    fake_store: Make, stream_reader: Make, caplog: pytest.LogCaptureFixture
) -> None:
    home = fake_store({T0: (0, 10)})
    _, end = first_batch(stream_reader(home, group="g", startingOffsets="earliest"))
    home.leases.clear()
    home.queues[T0] = (0, 12)
    home.committed[T0] = 99  # somebody moved the group while the query was down
    restarted = stream_reader(home, group="g", startingOffsets="earliest")
    later = restarted.latestOffset(end, LIMIT)
    assert planned(restarted, end, later) == [("T", 0, 10, 12)]
    assert home.committed[T0] == 99  # the query has not advanced
    assert "set back when the query advances" in caplog.text
    assert caplog.text.count("goes on from its checkpoint: the starting option is not used") == 1
    restarted.latestOffset(through_spark(later), LIMIT)
    assert home.committed[T0] == 12


def test_offsets_are_committed_when_the_start_moves_and_never_ahead_of_it(
    fake_store: Make, stream_reader: Make
) -> None:
    home = fake_store({T0: (0, 10)})
    reader = stream_reader(home, group="g", startingOffsets="earliest", maxOffsetsPerTrigger="4")
    start, end = first_batch(reader)
    assert home.committed == {T0: 0}
    reader.partitions(start, end)
    assert home.committed == {T0: 0}  # planned is not completed
    reader.latestOffset(through_spark(end), LIMIT)
    assert home.committed == {T0: 4}
    reader.commit(through_spark(end))
    assert home.commits == [{T0: 0}, {T0: 4}]


def test_a_failed_batch_commits_nothing_after_a_restart(fake_store: Make, stream_reader: Make) -> None:
    home = fake_store({T0: (0, 10)})
    _, end = first_batch(stream_reader(home, group="g", startingOffsets="earliest"))
    home.leases.clear()
    restarted = stream_reader(home, group="g", startingOffsets="earliest")
    restarted.partitions(through_spark(restarted.initialOffset()), end)
    assert home.committed == {T0: 0}
    restarted.latestOffset(end, LIMIT)  # its sink has succeeded this time
    assert home.committed == {T0: 10}


def test_a_second_query_of_the_group_is_refused_by_name_before_it_reads(fake_store: Make, stream_reader: Make) -> None:
    home = fake_store({T0: (0, 10)})
    first = stream_reader(home, group="g")
    first.initialOffset()
    second = stream_reader(home, group="g")
    for call in (second.initialOffset, lambda: second.partitions({}, {}), lambda: second.latestOffset({}, LIMIT)):
        with pytest.raises((LeaseHeldError, UsageError), match=r"query A|not of this data source"):
            call()
    stream_reader(home, group="other").initialOffset()
    stream_reader(home, group="g", commitOffsets="false").initialOffset()
    first.stop()
    second.initialOffset()


def test_a_query_that_lost_its_lease_commits_nothing(fake_store: Make, stream_reader: Make) -> None:
    home = fake_store({T0: (0, 10)})
    reader = stream_reader(home, group="g", startingOffsets="earliest")
    _, end = first_batch(reader)
    home.leases["g", "T"].alive = False
    with pytest.raises(LeaseHeldError, match="lost its lease"):
        reader.commit(through_spark(end))
    assert home.committed == {T0: 0}


def test_without_commits_a_group_only_says_where_to_start(fake_store: Make, stream_reader: Make) -> None:
    home = fake_store({T0: (0, 10)}, committed={T0: 7})
    reader = stream_reader(home, group="g", commitOffsets="false")
    start, end = first_batch(reader)
    assert planned(reader, start, end) == [("T", 0, 7, 10)]
    reader.commit(end)
    assert home.commits == [] and home.leases == {}


def test_available_now_reads_up_to_the_ends_at_its_start_and_then_stops(fake_store: Make, stream_reader: Make) -> None:
    home = fake_store({T0: (0, 10)})
    reader = stream_reader(
        home, group="g", startingOffsets="earliest", maxOffsetsPerTrigger="4", minOffsetsPerTrigger="3"
    )
    reader.prepareForTriggerAvailableNow()
    home.queues[T0] = (0, 50)
    at, ends = through_spark(reader.initialOffset()), []
    while (end := through_spark(reader.latestOffset(at, LIMIT))) != at:
        ends.append(end["topics"]["T"]["0"])
        at = end
    assert ends == [4, 8, 10]  # the last one although two are fewer than the minimum
    assert home.committed == {T0: 10}  # all of it, before the query ends


def test_available_now_never_goes_back_behind_a_later_start(fake_store: Make, stream_reader: Make) -> None:
    home = fake_store({T0: (0, 10)})
    reader = stream_reader(home)
    reader.prepareForTriggerAvailableNow()
    home.queues[T0] = (0, 12)
    _, end = first_batch(reader)
    assert end["topics"]["T"]["0"] == 12
    assert reader.latestOffset(end, LIMIT) == end


def test_limits_combine(fake_store: Make, stream_reader: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(stream_reader_module, "monotonic", lambda: clock[0])
    home = fake_store({T0: (0, 100)})
    reader = stream_reader(
        home,
        startingOffsets="earliest",
        maxOffsetsPerTrigger="50",
        maxBytesPerTrigger="3000",
        minOffsetsPerTrigger="30",
        maxTriggerDelay="10s",
    )
    _, end = first_batch(reader)
    assert end["topics"]["T"]["0"] == 30  # bytes are the tighter limit: 100 each
    at = through_spark(reader.latestOffset(end, LIMIT))
    at = through_spark(reader.latestOffset(at, LIMIT))
    assert at["topics"]["T"]["0"] == 90
    assert reader.latestOffset(at, LIMIT) == at  # 10 are fewer than 30
    clock[0] += 9.9
    assert reader.latestOffset(at, LIMIT) == at
    clock[0] += 0.1
    assert reader.latestOffset(at, LIMIT)["topics"]["T"]["0"] == 100


def test_trigger_once_takes_everything(fake_store: Make, stream_reader: Make) -> None:
    reader = stream_reader(fake_store({T0: (0, 100)}), startingOffsets="earliest", maxOffsetsPerTrigger="5")
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable())["topics"]["T"]["0"] == 100


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "6"}, ReadMaxRows(5)),
        ({"maxBytesPerTrigger": "6"}, ReadMaxBytes(6)),
        ({"minOffsetsPerTrigger": "7"}, ReadMinRows(7)),
    ],
)
def test_spark_is_told_that_there_is_a_limit(
    fake_store: Make, stream_reader: Make, options: dict[str, str], limit: object
) -> None:
    assert stream_reader(fake_store({}), **options).getDefaultReadLimit() == limit


def test_a_new_topic_is_read_from_its_first_message_also_when_that_batch_is_repeated(
    fake_store: Make, stream_reader: Make
) -> None:
    home = fake_store({T0: (0, 10)})
    reader = stream_reader(home, subscribePattern="T.*")
    _, end = first_batch(reader)
    new = Queue("T2", 0)
    home.queues[new] = (4, 9)
    later = through_spark(reader.latestOffset(end, LIMIT))
    assert planned(reader, end, later) == [("T2", 0, 4, 9)]
    home.queues[new] = (4, 30)
    assert planned(stream_reader(home, subscribePattern="T.*"), end, later) == [("T2", 0, 4, 9)]
    last = through_spark(reader.latestOffset(later, LIMIT))
    assert planned(reader, later, last) == [("T2", 0, 9, 30)]


def test_a_batch_costs_one_look_at_the_log_for_each_queue_that_moved(fake_store: Make, stream_reader: Make) -> None:
    """What a position says of the messages before it was taken from the store just now, or compared with it; only that
    the newest one is still there is looked at again.
    """
    home = fake_store({T0: (0, 10), T1: (0, 5)})
    reader = stream_reader(home, startingOffsets="earliest")
    _, at = first_batch(reader)
    for number in range(11, 14):
        home.queues[T0] = (0, number)
        looked_up = home.looked_up
        later = through_spark(reader.latestOffset(at, LIMIT))
        assert home.looked_up == looked_up + 1 + 1
        assert planned(reader, at, later) == [("T", 0, number - 1, number)]
        assert home.looked_up == looked_up + 2 + 2 + 2  # where the batch begins and ends, for its pin
        at = later


def test_two_topics_of_one_group_have_a_lease_and_offsets_each(fake_store: Make, stream_reader: Make) -> None:
    other = Queue("U", 0)
    home = fake_store({T0: (0, 10), other: (0, 5)})
    both = stream_reader(home, subscribe="T,U", group="g", startingOffsets="earliest")
    _, end = first_batch(both)
    both.latestOffset(end, LIMIT)
    assert home.committed == {T0: 10, other: 5}
    assert set(home.leases) == {("g", "T"), ("g", "U"), ("g", "%RETRY%g")}
    third = stream_reader(home, subscribe="V", group="g", retryTopic="false")
    home.queues[Queue("V", 0)] = (0, 1)
    third.initialOffset()  # another topic of the group is free
    with pytest.raises(LeaseHeldError, match="'U' is held"):
        stream_reader(home, subscribe="U", group="g").initialOffset()


def test_a_queue_that_appears_before_the_first_batch_is_planned_is_read_in_it(
    fake_store: Make, stream_reader: Make
) -> None:
    home = fake_store({T0: (0, 10)})
    reader = stream_reader(home)
    start = through_spark(reader.initialOffset())
    home.queues[T1] = (0, 3)
    end = through_spark(reader.latestOffset(start, LIMIT))
    assert planned(reader, start, end) == [("T", 1, 0, 3)]


def test_a_failed_first_batch_is_repeated_although_the_starting_option_lacks_a_new_queue(
    fake_store: Make, stream_reader: Make
) -> None:
    home = fake_store({T0: (0, 10)})
    options = {"startingOffsets": '{"T":{"0":4}}'}
    _, end = first_batch(stream_reader(home, **options))
    home.queues[T1] = (0, 3)
    restarted = stream_reader(home, **options)
    assert planned(restarted, through_spark(restarted.initialOffset()), end) == [("T", 0, 4, 10)]
    later = through_spark(restarted.latestOffset(end, LIMIT))
    assert planned(restarted, end, later) == [("T", 1, 0, 3)]
    new_query = stream_reader(home, **options)
    with pytest.raises(UsageError, match="must name every queue that is read; missing: T-1"):
        new_query.latestOffset(through_spark(new_query.initialOffset()), LIMIT)


def test_a_batch_without_rows_does_not_start_the_delay_again(
    fake_store: Make, stream_reader: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(stream_reader_module, "monotonic", lambda: clock[0])
    home = fake_store({T0: (0, 10)})
    options = {"minOffsetsPerTrigger": "5", "maxTriggerDelay": "10s", "startingOffsets": "earliest"}
    reader = stream_reader(home, subscribePattern="T.*", **options)
    _, at = first_batch(reader)
    home.queues[T0] = (0, 11)
    for number in range(2, 6):
        clock[0] += 2.5
        home.queues[Queue(f"T{number}", 0)] = (0, 0)
        later = through_spark(reader.latestOffset(at, LIMIT))
        assert later != at  # the new topic
        at = later
    assert at["topics"]["T"]["0"] == 11


def test_the_latest_offsets_are_reported_without_limits(fake_store: Make, stream_reader: Make) -> None:
    reader = stream_reader(fake_store({T0: (0, 100)}), startingOffsets="earliest", maxOffsetsPerTrigger="5")
    assert reader.reportLatestOffset() is None
    first_batch(reader)
    ends = {"version": 1, "store": "store-1", "topics": {"T": {"0": 100}}}
    assert reader.reportLatestOffset() == ends | {"path": reader._options.path}


def test_who_watches_is_told_where_the_ends_are_and_which_group_reads(fake_store: Make, stream_reader: Make) -> None:
    home = fake_store({T0: (0, 100)})
    reader = stream_reader(home, group="g", startingOffsets="earliest")
    begin, end = first_batch(reader)
    reported = reader.reportLatestOffset()
    assert (reported["path"], reported["group"]) == (reader._options.path, "g")
    restarted = stream_reader(home, startingOffsets="earliest")
    restarted.partitions(begin, end)  # a batch is repeated: nobody asks for its end
    assert restarted.reportLatestOffset()["topics"] == {"T": {"0": 100}}
    assert "group" not in restarted.reportLatestOffset()


def test_min_partitions_cut_the_queues(fake_store: Make, stream_reader: Make) -> None:
    reader = stream_reader(fake_store({T0: (0, 90), T1: (0, 10)}), startingOffsets="earliest", minPartitions="4")
    assert len(planned(reader, *first_batch(reader))) == 4


def test_a_reader_is_made_without_touching_anything_and_travels_to_the_workers() -> None:
    from pyspark import cloudpickle

    from pyspark_rmq.options.options import source_options
    from pyspark_rmq.read.stream_reader import RmqStreamReader
    from pyspark_rmq.schema.schema import SOURCE_SCHEMA

    options = source_options({"path": "/does/not/exist", "subscribe": "T", "group": "g"}, "stream read", 0)
    copy = cloudpickle.loads(cloudpickle.dumps(RmqStreamReader(options, SOURCE_SCHEMA)))
    assert copy._options == options


def test_what_a_batch_reads_is_pinned_until_it_is_completed_or_planned_again(
    fake_store: Make, stream_reader: Make
) -> None:
    home = fake_store({T0: (0, 10), T1: (3, 20)})
    reader = stream_reader(home, startingOffsets="earliest")
    start, end = first_batch(reader)
    for _ in range(2):
        assert planned(reader, start, end) == [("T", 0, 0, 10), ("T", 1, 3, 20)]
    assert [(pin.start_offset, pin.end_offset, pin.held) for pin in home.pins] == [(0, 1901, False), (0, 1901, True)]
    home.queues[T0] = (0, 12)
    later = through_spark(reader.latestOffset(end, LIMIT))
    assert not home.pins[1].held
    assert planned(reader, end, later) == [("T", 0, 10, 12)]
    assert (home.pins[2].start_offset, home.pins[2].held) == (1000, True)
    reader.stop()
    assert not home.pins[2].held


def test_a_disk_that_is_too_full_to_deliver_does_not_stop_the_stream(
    fake_store: Make, stream_reader: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker refuses what is put then, delivery too, and goes on reading (CleanCommitLogService)."""
    home = fake_store({T0: (0, 10)})
    reader = stream_reader(home, startingOffsets="earliest", group="g")

    def deliver(limit: int | None = None) -> None:
        raise StoreFullError("91 % full")

    monkeypatch.setattr(home, "deliver_due", deliver)
    start, end = first_batch(reader)
    assert planned(reader, start, end) == [("T", 0, 0, 10)]
    reader.latestOffset(end, LIMIT)
    assert caplog.text.count("delayed messages wait for room: 91 % full") == 1
