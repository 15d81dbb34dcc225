"""What a stream notices of a home that changes under it: loss, rollback, closed queues. Call by call, in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pyspark_rmq.position.position import Queue
from rmq_store.errors import DataLossError, UnknownTopicError, UsageError

from ..planned_batches import LIMIT, T0, T1, first_batch, planned, through_spark

Make = Callable[..., Any]


def test_retention_under_a_stream_names_the_exact_range(
    fake_store: Make, stream_reader: Make, caplog: pytest.LogCaptureFixture
) -> None:
    home = fake_store({T0: (0, 8), T1: (0, 4)})
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "12"}
    _, at = first_batch(reader := stream_reader(home, **options))
    home.queues = {T0: (40, 100), T1: (0, 9)}
    later = through_spark(reader.latestOffset(at, LIMIT))
    with pytest.raises(DataLossError, match=r"T-0 \[8, 40\).*failOnDataLoss=false") as raised:
        reader.partitions(at, later)
    assert raised.value.ranges == [("T", 0, 8, 40)]
    lenient = stream_reader(home, **options, failOnDataLoss="false")
    kept = planned(lenient, at, later)
    assert sum(part[3] - part[2] for part in kept) == 12  # what is gone does not count
    assert kept[0][:3] == ("T", 0, 40)
    assert "T-0 [8, 40)" in caplog.text


def test_a_store_that_lost_its_tail_is_noticed(
    fake_store: Make, stream_reader: Make, caplog: pytest.LogCaptureFixture
) -> None:
    home = fake_store({T0: (0, 10)})
    _, end = first_batch(stream_reader(home, startingOffsets="earliest"))
    home.queues[T0] = (0, 6)
    with pytest.raises(DataLossError, match=r"has read T-0 \[6, 10\), .* do not exist .* rolled back") as raised:
        stream_reader(home).latestOffset(end, LIMIT)
    assert raised.value.ranges == [("T", 0, 6, 10)]
    lenient = stream_reader(home, failOnDataLoss="false")
    back = through_spark(lenient.latestOffset(end, LIMIT))
    assert planned(lenient, end, back) == []
    home.queues[T0] = (0, 8)
    later = through_spark(lenient.latestOffset(back, LIMIT))
    assert planned(lenient, back, later) == [("T", 0, 6, 8)]


def test_a_store_that_was_rolled_back_and_written_again_is_noticed_by_the_message_before(
    fake_store: Make, stream_reader: Make
) -> None:
    home = fake_store({T0: (0, 10)}, identity="")
    _, end = first_batch(stream_reader(home, startingOffsets="earliest"))
    home.base, home.queues[T0] = 7, (0, 30)
    for call in (
        lambda reader: reader.latestOffset(end, LIMIT),
        lambda reader: reader.partitions(end, {**end, "topics": {"T": {"0": 20}}, "after": {}}),
    ):
        with pytest.raises(
            DataLossError, match=r"message 9 of queue T-0 was at commit-log offset 900 .* is at commit-log offset 907"
        ):
            call(stream_reader(home))


@pytest.mark.parametrize(("end_now", "group"), [(12, {}), (12, {"group": "g"}), (8, {})])
def test_messages_that_came_instead_of_read_ones_are_all_read_and_those_are_reported(
    fake_store: Make, stream_reader: Make, caplog: pytest.LogCaptureFixture, end_now: int, group: dict[str, str]
) -> None:
    """A power cut took [4, 10), and others were sent. They were skipped, up to where the stream had been."""
    home = fake_store({T0: (0, 10)})
    before, end = first_batch(stream_reader(home, startingOffsets="earliest", **group))
    assert end["stored"] == {"T": {"0": 9000}}
    home.later_from, home.times_ms, home.queues[T0] = 4, 70_000, (0, end_now)
    home.leases.clear()
    with pytest.raises(DataLossError, match=r"has read T-0 \[4, 10\), .* rolled back") as raised:
        stream_reader(home).latestOffset(end, LIMIT)
    assert raised.value.ranges == [("T", 0, 4, 10)]
    lenient = stream_reader(home, failOnDataLoss="false", minOffsetsPerTrigger="100", **group)
    assert planned(lenient, before, end) == [("T", 0, 0, 4)], "what is left of a batch that was planned before"
    later = through_spark(lenient.latestOffset(end, LIMIT))
    for again in (lenient, stream_reader(home, failOnDataLoss="false")):
        assert planned(again, end, later) == [("T", 0, 4, end_now)]
    lenient.commit(end)
    assert home.committed == ({T0: 4} if group else {})
    assert lenient.latestOffset(later, LIMIT) == later
    assert later["stored"] == {"T": {"0": 70_000 + 1000 * (end_now - 1)}}
    assert "T-0 [4, 10)" in caplog.text


def test_messages_that_were_stored_together_with_lost_ones_are_not_read_again(
    fake_store: Make, stream_reader: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_store({T0: (0, 10)})
    monkeypatch.setattr(home, "store_timestamp", lambda *place: 5000)
    _, end = first_batch(stream_reader(home, startingOffsets="earliest"))
    home.queues[T0] = (0, 6)
    with pytest.raises(DataLossError) as raised:
        stream_reader(home).latestOffset(end, LIMIT)
    assert raised.value.ranges == [("T", 0, 6, 10)]


def test_of_a_message_that_is_another_one_now_both_are_named(fake_store: Make, stream_reader: Make) -> None:
    home = fake_store({T0: (0, 10)})
    _, end = first_batch(stream_reader(home, startingOffsets="earliest"))
    home.times_ms = 70_000
    wanted = r"at commit-log offset 900 \(stored at 9000 ms\) .* \(stored at 79000 ms\) now; the store was rolled back"
    with pytest.raises(DataLossError, match=wanted):
        stream_reader(home).latestOffset(end, LIMIT)


@pytest.mark.parametrize("what", ["no time was known", "the clock was set back", "damage"])
def test_if_times_do_not_tell_where_other_messages_begin_all_before_the_position_are_reported(
    fake_store: Make, stream_reader: Make, what: str
) -> None:
    home = fake_store({T0: (0, 10)})
    _, end = first_batch(stream_reader(home, startingOffsets="earliest"))
    home.base, home.queues[T0] = 7, (2, 12)
    if what == "no time was known":
        del end["stored"]
    elif what == "the clock was set back":
        home.times_ms = -70_000
    else:
        home.times_ms, home.damaged = 70_000, {2}
    with pytest.raises(DataLossError) as raised:
        stream_reader(home).latestOffset(end, LIMIT)
    assert raised.value.ranges == [("T", 0, 2, 10)]
    lenient = stream_reader(home, failOnDataLoss="false")
    later = through_spark(lenient.latestOffset(end, LIMIT))
    assert planned(lenient, end, later) == [("T", 0, 10, 12)]
    home.queues[T0] = (2, 10)
    known = through_spark(stream_reader(home, failOnDataLoss="false").latestOffset(end, LIMIT))
    assert planned(lenient, end, known) == []
    assert stream_reader(home).latestOffset(known, LIMIT) == known


def test_a_queue_that_ends_before_the_position_goes_on_at_its_end_if_times_do_not_tell_and_all_is_reported(
    fake_store: Make, stream_reader: Make
) -> None:
    """Nobody knows which of its messages are those that were read."""
    home = fake_store({T0: (0, 10)})
    _, end = first_batch(stream_reader(home, startingOffsets="earliest"))
    del end["stored"]
    home.queues[T0] = (2, 8)
    with pytest.raises(DataLossError) as raised:
        stream_reader(home).latestOffset(end, LIMIT)
    assert raised.value.ranges == [("T", 0, 2, 10)]
    lenient = stream_reader(home, failOnDataLoss="false")
    back = through_spark(lenient.latestOffset(end, LIMIT))
    home.queues[T0] = (2, 12)
    assert planned(lenient, back, through_spark(lenient.latestOffset(back, LIMIT))) == [("T", 0, 8, 12)]


@pytest.mark.parametrize("short", [T0, T1])
def test_while_a_stream_runs_a_queue_that_lost_its_tail_has_all_others_compared(
    fake_store: Make, stream_reader: Make, short: Queue
) -> None:
    """A backup was copied over the store: one queue is shorter than what was read, the other has grown beyond it."""
    home = fake_store({T0: (0, 10), T1: (0, 10)})
    _, end = first_batch(reader := stream_reader(home, startingOffsets="earliest", failOnDataLoss="false"))
    grown = T1 if short == T0 else T0
    home.later_from, home.times_ms, home.queues = 4, 70_000, {short: (0, 4), grown: (0, 12)}
    later = through_spark(reader.latestOffset(end, LIMIT))
    assert planned(reader, end, later) == [("T", grown.queue_id, 4, 12)]


def test_a_checkpoint_of_an_older_version_goes_on_and_learns_the_times(fake_store: Make, stream_reader: Make) -> None:
    home = fake_store({T0: (0, 10), T1: (0, 5)})
    _, end = first_batch(stream_reader(home, startingOffsets="earliest"))
    del end["stored"]
    home.times_ms, home.queues[T0] = 70_000, (0, 12)
    later = through_spark(stream_reader(home).latestOffset(end, LIMIT))
    assert later["stored"] == {"T": {"0": 81_000, "1": 74_000}}


def test_a_damaged_message_before_the_position_is_not_the_streams_to_read(
    fake_store: Make, stream_reader: Make
) -> None:
    home = fake_store({T0: (0, 10)}, damaged={9, 11})
    reader = stream_reader(home, startingOffsets="earliest")
    _, end = first_batch(reader)
    assert "stored" not in end
    home.queues[T0] = (0, 12)
    assert planned(reader, end, through_spark(reader.latestOffset(end, LIMIT))) == [("T", 0, 10, 12)]
    home.damaged.clear()
    known = through_spark(stream_reader(home).latestOffset(end, LIMIT))
    home.damaged, home.queues[T0] = {11}, (0, 13)
    assert stream_reader(home).latestOffset(known, LIMIT)["topics"] == {"T": {"0": 13}}


def test_a_message_that_was_read_and_then_lost_is_not_taken_for_a_store_that_was_rolled_back(
    fake_store: Make, stream_reader: Make
) -> None:
    home = fake_store({T0: (0, 10)})
    _, end = first_batch(stream_reader(home, startingOffsets="earliest"))
    home.damaged, home.base = {9}, 50  # repaired: its entry leads to where the lost range begins
    home.queues[T0] = (0, 12)
    reader = stream_reader(home)
    assert planned(reader, end, through_spark(reader.latestOffset(end, LIMIT))) == [("T", 0, 10, 12)]


def test_a_foreign_store_that_got_an_identity_keeps_its_checkpoint(fake_store: Make, stream_reader: Make) -> None:
    home = fake_store({T0: (0, 10)}, identity="")
    _, end = first_batch(stream_reader(home, startingOffsets="earliest"))
    home.identity, home.queues[T0] = "store-1", (0, 11)
    later = through_spark(stream_reader(home).latestOffset(end, LIMIT))
    assert later["store"] == "store-1"


def test_another_store_under_the_same_path_is_always_an_error(fake_store: Make, stream_reader: Make) -> None:
    home = fake_store({T0: (0, 10)})
    _, end = first_batch(stream_reader(home, startingOffsets="earliest"))
    home.identity = "store-2"
    with pytest.raises(UsageError, match="belongs to store store-1, but the store that is there is store-2"):
        stream_reader(home, failOnDataLoss="false").latestOffset(end, LIMIT)


def test_retention_of_the_message_before_is_not_a_replaced_store(fake_store: Make, stream_reader: Make) -> None:
    home = fake_store({T0: (0, 10)})
    _, end = first_batch(stream_reader(home, startingOffsets="earliest"))
    home.queues[T0] = (10, 11)
    reader = stream_reader(home)
    assert planned(reader, end, through_spark(reader.latestOffset(end, LIMIT))) == [("T", 0, 10, 11)]


def test_a_deleted_topic_is_loss_and_an_unsubscribed_one_is_not(
    fake_store: Make, stream_reader: Make, caplog: pytest.LogCaptureFixture
) -> None:
    home = fake_store({T0: (0, 10), Queue("U", 0): (0, 5)})
    _, end = first_batch(stream_reader(home, subscribe="T,U", startingOffsets="earliest"))
    assert set(stream_reader(home).latestOffset(end, LIMIT)["topics"]) == {"T"}
    del home.queues[Queue("U", 0)]
    assert set(stream_reader(home).latestOffset(end, LIMIT)["topics"]) == {"T"}
    with pytest.raises(DataLossError, match="topics were deleted that the stream reads: U-0 at offset 5"):
        stream_reader(home, subscribePattern="[TU]").latestOffset(end, LIMIT)
    going_on = stream_reader(home, subscribePattern="[TU]", failOnDataLoss="false")
    assert set(going_on.latestOffset(end, LIMIT)["topics"]) == {"T"}
    with pytest.raises(UnknownTopicError):
        stream_reader(home, subscribe="T,U").initialOffset()


def test_a_group_goes_on_without_a_topic_that_was_unsubscribed_or_deleted(
    fake_store: Make, stream_reader: Make
) -> None:
    other = Queue("U", 0)
    home = fake_store({T0: (0, 10), other: (0, 5)})
    begun = stream_reader(home, subscribePattern="[TU]", group="g", startingOffsets="earliest")
    _, end = first_batch(begun)
    begun.stop()
    unsubscribed = stream_reader(home, subscribePattern="T", group="g")
    later = through_spark(unsubscribed.latestOffset(end, LIMIT))
    unsubscribed.commit(end)
    assert set(later["topics"]) == {"T"}
    assert home.committed == {T0: 10, other: 0}
    unsubscribed.stop()
    del home.queues[other]
    deleted = stream_reader(home, subscribePattern="[TU]", group="g", failOnDataLoss="false")
    deleted.latestOffset(end, LIMIT)
    deleted.commit(end)
    assert home.committed[other] == 0


def test_unread_messages_in_a_queue_that_was_closed_for_reading_are_loss(
    fake_store: Make, stream_reader: Make, caplog: pytest.LogCaptureFixture
) -> None:
    home = fake_store({T0: (0, 10), T1: (0, 5)})
    _, end = first_batch(stream_reader(home, startingOffsets="earliest"))
    home.closed.add(T1)
    assert stream_reader(home).latestOffset(end, LIMIT)["topics"] == {"T": {"0": 10}}  # all of it was read before
    home.queues[T1] = (0, 8)
    with pytest.raises(DataLossError, match=r"readQueueNums was lowered .* T-1 \[5, 8\)") as raised:
        stream_reader(home).latestOffset(end, LIMIT)
    assert raised.value.ranges == [("T", 1, 5, 8)]
    assert stream_reader(home, assign='{"T":[0]}').latestOffset(end, LIMIT)["topics"] == {"T": {"0": 10}}
    assert not caplog.records
    lenient = stream_reader(home, failOnDataLoss="false")
    later = through_spark(lenient.latestOffset(end, LIMIT))
    lenient.latestOffset(later, LIMIT)
    assert caplog.text.count("readQueueNums") == 1


@pytest.mark.parametrize("group", [{}, {"group": "g"}])
def test_a_queue_that_was_closed_goes_on_where_it_was_read_to_when_it_is_opened_again(
    fake_store: Make, stream_reader: Make, group: dict[str, str]
) -> None:
    """readQueueNums was lowered and raised again: the queue was taken for a new one, and read from its beginning."""
    home = fake_store({T0: (0, 10), T1: (0, 5)})
    options = {"startingOffsets": "earliest"} | group
    reader = stream_reader(home, **options)
    _, at = first_batch(reader)
    home.closed.add(T1)
    at = through_spark(reader.latestOffset(at, LIMIT))
    home.queues[T0] = (0, 11)
    at = through_spark(reader.latestOffset(at, LIMIT))
    assert (at["topics"], at["closed"]) == ({"T": {"0": 11}}, {"T": {"1": 5}})
    home.leases.clear()
    reader = stream_reader(home, **options)  # another process, with the checkpoint
    assert reader.latestOffset(at, LIMIT) == at
    home.closed.clear()
    home.log_end = 1  # something happened
    assert reader.latestOffset(at, LIMIT) == at, "there is nothing to read"
    home.queues[T1], home.log_end = (0, 8), 2
    later = through_spark(reader.latestOffset(at, LIMIT))
    for again in (reader, stream_reader(home, **options, commitOffsets="false") if group else stream_reader(home)):
        assert planned(again, at, later) == [("T", 1, 5, 8)]
    assert "closed" not in later
    home.queues[T1], home.log_end = (0, 9), 3
    assert planned(reader, later, through_spark(reader.latestOffset(later, LIMIT))) == [("T", 1, 8, 9)]


def test_what_was_reported_of_a_closed_queue_is_not_read_when_it_is_opened_again(
    fake_store: Make, stream_reader: Make
) -> None:
    home = fake_store({T0: (0, 10), T1: (0, 5)})
    _, at = first_batch(stream_reader(home, startingOffsets="earliest"))
    home.closed.add(T1)
    home.queues[T1] = (0, 8)
    lenient = stream_reader(home, failOnDataLoss="false")
    at = through_spark(lenient.latestOffset(at, LIMIT))
    assert (at["closed"], at["stored"]["T"]["1"]) == ({"T": {"1": 8}}, 7000)
    home.closed.clear()
    home.queues[T1], home.log_end = (0, 10), 1
    assert planned(lenient, at, through_spark(lenient.latestOffset(at, LIMIT))) == [("T", 1, 8, 10)]


def test_a_queue_that_assign_leaves_out_goes_on_where_it_was_read_to_when_it_is_named_again(
    fake_store: Make, stream_reader: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """readQueueNums was lowered and raised again, and the option followed: what had been read was read again."""
    home = fake_store({T0: (0, 10), T1: (0, 5)})
    both, one = '{"T":[0,1]}', '{"T":[0]}'
    _, at = first_batch(stream_reader(home, assign=both, startingOffsets="earliest"))
    home.closed.add(T1)
    home.queues[T1] = (0, 8)
    with pytest.raises(UsageError, match=r"'T' has no queue 1 to read; it has \[0\]"):
        stream_reader(home, assign=both).latestOffset(at, LIMIT)
    for end in (11, 12):
        home.queues[T0] = (0, end)
        at = through_spark(stream_reader(home, assign=one).latestOffset(at, LIMIT))
        assert (at["topics"], at["closed"]) == ({"T": {"0": end}}, {"T": {"1": 5}})
    home.closed.clear()
    again = stream_reader(home, assign=both)
    assert planned(again, at, through_spark(again.latestOffset(at, LIMIT))) == [("T", 1, 5, 8)]
    assert not caplog.records


def test_a_queue_that_lost_its_tail_while_it_was_closed_is_noticed_when_it_is_opened_again(
    fake_store: Make, stream_reader: Make
) -> None:
    home = fake_store({T0: (0, 10), T1: (0, 5)})
    _, at = first_batch(stream_reader(home, startingOffsets="earliest"))
    home.closed.add(T1)
    at = through_spark(stream_reader(home).latestOffset(at, LIMIT))
    home.closed.clear()
    home.queues[T1] = (0, 3)
    with pytest.raises(DataLossError, match=r"T-1 \[3, 5\)"):
        stream_reader(home).latestOffset(at, LIMIT)
    home.queues[T1], home.times_ms = (0, 9), 70_000
    with pytest.raises(DataLossError, match="message 4 of queue T-1"):
        stream_reader(home).latestOffset(at | {"after": {"T": {"1": 400}}}, LIMIT)


def test_a_closed_queue_is_forgotten_with_its_topic(fake_store: Make, stream_reader: Make) -> None:
    other = Queue("U", 0)
    home = fake_store({T0: (0, 10), T1: (0, 5), other: (0, 1)})
    options = {"subscribePattern": "[TU]", "startingOffsets": "earliest"}
    _, at = first_batch(stream_reader(home, **options))
    home.closed.add(T1)
    at = through_spark(stream_reader(home, **options).latestOffset(at, LIMIT))
    assert at["closed"] == {"T": {"1": 5}}
    home.queues[other] = (0, 2)
    assert "closed" not in stream_reader(home, subscribe="U").latestOffset(at, LIMIT)
    del home.queues[T0], home.queues[T1]
    assert "closed" not in stream_reader(home, **options, failOnDataLoss="false").latestOffset(at, LIMIT)


def test_what_was_planned_in_a_queue_that_was_closed_then_is_still_read(fake_store: Make, stream_reader: Make) -> None:
    home = fake_store({T0: (0, 10), T1: (0, 5)})
    start, end = first_batch(stream_reader(home, startingOffsets="earliest"))
    home.closed.add(T1)
    assert planned(stream_reader(home, startingOffsets="earliest"), start, end) == [("T", 0, 0, 10), ("T", 1, 0, 5)]


def test_after_a_rollback_the_position_goes_back_also_while_a_minimum_is_waited_for(
    fake_store: Make, stream_reader: Make, caplog: pytest.LogCaptureFixture
) -> None:
    home = fake_store({T0: (0, 10)})
    options = {"minOffsetsPerTrigger": "5", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    reader = stream_reader(home, **options)
    _, end = first_batch(reader)
    home.queues[T0] = (0, 6)
    back = through_spark(reader.latestOffset(end, LIMIT))
    assert back["topics"]["T"]["0"] == 6
    for _ in range(3):
        assert reader.latestOffset(back, LIMIT) == back
    assert caplog.text.count("T-0 [6, 10)") == 1


def test_what_retention_took_before_it_was_pinned_is_lost(
    fake_store: Make, stream_reader: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_store({T0: (0, 10)})
    reader = stream_reader(home, startingOffsets="earliest")
    start, end = first_batch(reader)
    pin = home.pin

    def too_late(start_offset: int, end_offset: int) -> Any:
        home.queues[T0] = (4, 10)
        return pin(start_offset, end_offset)

    monkeypatch.setattr(home, "pin", too_late)
    with pytest.raises(DataLossError) as raised:
        reader.partitions(start, end)
    assert raised.value.ranges == [("T", 0, 0, 4)]
