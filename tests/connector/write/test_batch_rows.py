"""The rows of a micro-batch in the driver: pieces of tasks, chunks, ids, marks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from pyspark_rmq.schema.message_ids import message_ids
from pyspark_rmq.write.batch_rows import CHUNK_BYTES_MAX, MEMORY_BYTES_MAX, BatchRows
from rmq_store.errors import NoMessageIdError, UsageError
from rmq_store.reliable import Batch


class Frame:
    """A data frame whose tasks run in this process, each with its own batches."""

    def __init__(self, *batches: pa.RecordBatch) -> None:
        self._batches = batches
        self._function: Any = None

    def mapInArrow(self, function: Callable[..., Any], schema: str) -> Frame:
        self._function = function
        return self

    def toLocalIterator(self) -> Iterator[tuple[bytes]]:
        for batch in self._batches:
            for answer in self._function(iter([batch])):
                yield from ((value,) for value in answer.column(0).to_pylist())


def rows(first: int, count: int, **more: Any) -> pa.RecordBatch:
    numbers = range(first, first + count)
    ids = pa.array([[("UNIQ_KEY", f"id-{n}")] for n in numbers], pa.map_(pa.string(), pa.string()))
    columns = {"properties": ids, "number": pa.array(numbers, pa.int64())}
    return pa.record_batch(columns | {name: pa.array([value] * count) for name, value in more.items()})


def taken(*batches: pa.RecordBatch, chunk_rows: int = 1_000) -> BatchRows:
    frame: Any = Frame(*batches)
    return BatchRows(frame, Batch("query", 0), chunk_rows)


def test_chunks_have_the_size_that_was_asked_for_however_tasks_were_cut() -> None:
    batches = [rows(start, 62) for start in range(0, 62 * 40, 62)] + [rows(2_480, 1_520)]
    with taken(*batches) as found:
        assert found.batch.row_count == 4_000
        for _ in range(2):  # a transaction that is repeated reads them again
            chunks = list(found.chunks())
            assert [len(ids) for ids, _ in chunks] == [1_000] * 4
            assert [n for _, chunk in chunks for n in chunk.column("number").to_pylist()] == list(range(4_000))
            assert [message_id for ids, _ in chunks for message_id in ids] == [f"id-{n}" for n in range(4_000)]
            assert chunks[0][1].schema == batches[0].schema


def test_large_rows_make_small_chunks_and_the_file_may_leave_memory() -> None:
    mib = b"x" * (1 << 20)
    batches = [rows(0, 20, body=mib), rows(20, 1, body=mib * 20), rows(21, 3, body=mib)]
    with taken(*batches) as found:
        chunks = [chunk for _, chunk in found.chunks()]
        sizes = [chunk.nbytes for chunk in chunks if chunk.num_rows > 1]
        assert max(sizes) <= CHUNK_BYTES_MAX + (1 << 16)
        assert [chunk.num_rows for chunk in chunks if chunk.nbytes > CHUNK_BYTES_MAX + (1 << 16)] == [1]
        assert sum(chunk.nbytes for chunk in chunks) > MEMORY_BYTES_MAX
        assert [n for chunk in chunks for n in chunk.column("number").to_pylist()] == list(range(24))


def test_a_batch_is_known_by_its_messages_and_not_by_their_order() -> None:
    with taken(rows(0, 10), rows(10, 5)) as one, taken(rows(10, 5), rows(0, 10), chunk_rows=4) as other:
        assert one.batch == other.batch
    with taken(rows(0, 14)) as fewer, taken(rows(1, 15)) as others:
        assert len({one.batch, fewer.batch, others.batch}) == 3


@pytest.mark.parametrize("chunk_rows", [1, 2, 1_000])
def test_a_message_with_several_rows_is_refused(chunk_rows: int) -> None:
    """An exploded stream: all rows of a message but the first would be left out, because it is done."""
    places = pa.array([10, 20, 20, 30], pa.int64())
    with pytest.raises(UsageError, match="several rows have the commitLogOffset 20: a message is written as a whole"):
        taken(rows(0, 4).append_column("commitLogOffset", places), chunk_rows=chunk_rows)
    # The same message twice, as after a resend, has two places.
    twice = pa.concat_batches([rows(0, 2), rows(0, 2)])
    with taken(twice.append_column("commitLogOffset", pa.array([10, 20, 30, 40], pa.int64()))) as found:
        assert found.batch.row_count == 4


@pytest.mark.parametrize("chunk_rows", [1, 2, 1_000])
def test_messages_of_two_brokers_may_have_one_log_offset(chunk_rows: int) -> None:
    places = pa.array([10, 10, 20, 20], pa.int64())
    both = rows(0, 4).append_column("commitLogOffset", places)
    brokers = pa.array(["broker-a", "broker-b"] * 2)
    with taken(both.append_column("brokerName", brokers), chunk_rows=chunk_rows) as found:
        assert found.batch.row_count == 4
    with pytest.raises(UsageError, match="the commitLogOffset 20"):
        one = pa.array(["broker-a", "broker-b", "broker-a", "broker-a"])
        taken(both.append_column("brokerName", one), chunk_rows=chunk_rows)


def test_an_empty_batch_has_no_chunks() -> None:
    with taken() as found:
        assert (found.batch.row_count, list(found.chunks()), found.marks) == (0, [], {})


def test_marks_say_how_far_first_deliveries_have_come() -> None:
    """A retry lies in another topic; its offset there says nothing about the one that a stub was sent to."""

    def at(topic: str, queue_id: int, first: int, reconsume_times: int) -> pa.RecordBatch:
        found = rows(first, 3, brokerName="b", topic="Orders", storeTopic=topic, reconsumeTimes=reconsume_times)
        queue = pa.array([queue_id] * 3, pa.int32())
        return found.append_column("queueId", queue).append_column("queueOffset", found.column("number"))

    batches = [at("Orders", 0, 10, 0), at("Orders", 1, 7, 0), at("Orders", 0, 4, 0), at("%RETRY%cg", 0, 90, 1)]
    batches.append(at("%RETRY%cg", 0, 80, 0))  # redriven
    with taken(*batches) as found:
        assert found.marks == {("b", "Orders", 0): 12, ("b", "Orders", 1): 9}
    with taken(rows(0, 3)) as found:  # the stream has dropped these columns
        assert found.marks == {}


@pytest.mark.statement("H01")
def test_an_id_is_the_kits_own_or_else_the_unique_key() -> None:
    properties = [
        [("UNIQ_KEY", "M1"), ("OUTBOX_ID", "M1")],
        [("UNIQ_KEY", "U2"), ("TAGS", "a")],
        [("OUTBOX_ID", "M3")],
        [("UNIQ_KEY", "U4"), ("OUTBOX_ID", "M1")],
        [("UNIQ_KEY", "U5"), ("OUTBOX_ID", "M5"), ("MIRROR_TO", "T U5 1 0"), ("MIRROR_PATH", '[["R","T"],["K","T"]]')],
    ]
    given = pa.record_batch({"properties": pa.array(properties, pa.map_(pa.string(), pa.string()))})
    assert message_ids(given) == ["M1", "U2", "M3", "U4", "M5"]


def test_a_message_without_an_id_is_named() -> None:
    for pairs, message in (
        ([("TAGS", "a")], "the message Orders, queue 2, offset 7 has neither OUTBOX_ID nor UNIQ_KEY"),
        (None, "the message Orders, queue 2, offset 7 has neither"),
        ([("OUTBOX_ID", "two words")], "the message Orders, queue 2, offset 7: its property OUTBOX_ID is no usable id"),
    ):
        columns = {
            "topic": pa.array(["Orders"]),
            "queueId": pa.array([2], pa.int32()),
            "queueOffset": pa.array([7], pa.int64()),
            "properties": pa.array([pairs], pa.map_(pa.string(), pa.string())),
        }
        with pytest.raises(NoMessageIdError, match=message):
            taken(pa.record_batch(columns))
