"""What was pulled and is not done: the minimum-offset rule, for batches of objects and of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from rmq_store.client.consume_service.message_batch import MessageBatch
from rmq_store.client.consume_service.process_queue import Batch, ProcessQueue
from rmq_store.client.consume_service.row_batch import RowBatch
from rmq_store.protocol.messages import MessageExt


def message(offset: int, body: bytes = b"x") -> MessageExt:
    return MessageExt(
        topic="T", body=body, queue_id=0, queue_offset=offset, commit_log_offset=offset * 100, msg_id=str(offset),
        offset_msg_id=str(offset), broker_name="b", reconsume_times=0, flag=0, sys_flag=0, born_timestamp_ms=0,
        born_host="127.0.0.1:0", store_timestamp_ms=0, store_host="127.0.0.1:0", properties={},
    )  # fmt: skip


class Pull:
    """What a pull has found at these offsets; knows of which rows objects were made."""

    def __init__(self, offsets: Sequence[int], body: bytes = b"x") -> None:
        self.offsets, self.body = offsets, body
        self.taken: list[int] = []

    def queue_offset(self, row: int) -> int:
        return self.offsets[row]

    def body_bytes(self, first: int, behind: int) -> int:
        return len(self.body) * (behind - first)

    def take(self, first: int, behind: int, added: Mapping[str, str]) -> list[MessageExt]:
        self.taken += range(first, behind)
        made = [message(offset, self.body) for offset in self.offsets[first:behind]]
        for each in made:
            each.properties.update(added)  # type: ignore[attr-defined]
        return made


def of_messages(offsets: Sequence[int], body: bytes = b"x") -> MessageBatch:
    return MessageBatch(Pull(offsets, body), 0, len(offsets))  # type: ignore[arg-type]


def of_rows(offsets: Sequence[int], body: bytes = b"x") -> RowBatch:
    bodies = pa.array([body] * len(offsets), pa.binary())
    return RowBatch(pa.RecordBatch.from_pydict({"queueOffset": pa.array(offsets, pa.int64()), "body": bodies}))


def offsets_of(left: Any) -> list[int]:
    if isinstance(left, pa.RecordBatch):
        column: list[int] = left.column("queueOffset").to_pylist()
        return column
    return [each.queue_offset for each in left]


class Queue(ProcessQueue[Any]):
    """Filled with batches of one kind, and told which offsets of them are not done."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make

    def filled(self, *batches: Sequence[int], body: bytes = b"x") -> list[Batch[Any]]:
        made = [self.make(offsets, body) for offsets in batches]
        for batch in made:
            self.put(batch)
        return made

    def only_left(self, batch: Batch[Any], *offsets: int) -> int:
        left = batch.left()
        if isinstance(left, pa.RecordBatch):
            return self.settle(batch, left.filter(pc.is_in(left.column("queueOffset"), pa.array(offsets, pa.int64()))))
        return self.settle(batch, [each for each in left if each.queue_offset in offsets])


@pytest.fixture(params=[of_messages, of_rows])
def queue(request: pytest.FixtureRequest) -> Queue:
    return Queue(request.param)


@pytest.mark.statement("G08", "G09")
@pytest.mark.parametrize("size", [1, 3, 32])
def test_the_smallest_unfinished_offset_is_the_progress(queue: Queue, size: int) -> None:
    """G09: of 2101-2200 only 2101 is not done: 2101; then it is: 2201. ProcessQueue#removeMessage."""
    first, *others = queue.filled(*(range(at, min(at + size, 2201)) for at in range(2101, 2201, size)))
    for batch in reversed(others):
        assert queue.only_left(batch) == 2101
    assert queue.only_left(first, 2101) == 2101
    assert queue.only_left(first) == 2201
    assert offsets_of(first.left()) == []


def test_what_is_left_of_a_batch_holds_back_the_progress(queue: Queue) -> None:
    """Gaps, which a filter makes, are passed with what lies before them."""
    first, second = queue.filled([3, 7], [20, 21])
    assert queue.only_left(second, 21) == 3
    assert offsets_of(second.left()) == [21]
    assert queue.only_left(first, 7) == 7
    assert queue.only_left(first) == 21
    assert queue.only_left(second) == 22


def test_count_bytes_and_span_are_those_of_what_is_not_done(queue: Queue) -> None:
    """pullMessage: flow control counts messages, bytes and the distance from first to last."""
    first, second = queue.filled([3, 7], [20], body=b"12345")
    assert (queue.count, queue.size_bytes, queue.max_span) == (3, 15, 17)
    queue.only_left(second)
    assert (queue.count, queue.size_bytes, queue.max_span) == (2, 10, 4)
    queue.only_left(first, 7)
    assert (queue.count, queue.size_bytes, queue.max_span) == (1, 5, 0)
    queue.only_left(first)
    assert (queue.count, queue.size_bytes, queue.max_span) == (0, 0, 0)


def test_only_the_first_batch_expires_and_only_after_a_listener_got_it(queue: Queue) -> None:
    """ProcessQueue#cleanExpiredMsg: from the head of the tree, by CONSUME_START_TIME; what is left of it too."""
    first, second = queue.filled([0, 1], [2, 3])
    second.started_ms = 0
    assert queue.first_expired(1000, 5000) is None
    first.started_ms = 100
    assert queue.first_expired(1000, 1100) is None
    assert queue.first_expired(1000, 1101) is first
    queue.only_left(first, 1)
    assert queue.first_expired(1000, 1101) is first
    queue.only_left(first)
    assert queue.first_expired(1000, 1101) is second
    queue.only_left(second)
    assert queue.first_expired(1000, 1101) is None


def test_objects_are_made_once_when_they_are_asked_for() -> None:
    """Of messages that wait there are none; each listener that gets them is told when."""
    pull = Pull(range(4))
    first, second = [MessageBatch(pull, at, at + 2) for at in (0, 2)]  # type: ignore[arg-type]
    assert pull.taken == []
    made = first.left(5)
    assert (pull.taken, made[1].properties) == ([0, 1], {"CONSUME_START_TIME": "5"})
    again = first.left(7)
    assert all(one is other for one, other in zip(made, again, strict=True))
    assert made[1].properties == {"CONSUME_START_TIME": "7"}
    assert second.left()[0].properties == {}
    assert pull.taken == [0, 1, 2, 3]


def test_what_is_put_in_the_place_of_a_message_is_what_comes_again() -> None:
    queue = Queue(of_messages)
    (batch,) = queue.filled([0, 1, 2])
    kept = [replace(each, reconsume_times=1, body=b"longer") for each in batch.left()[1:]]
    assert queue.settle(batch, kept) == 1
    assert batch.left() == kept
    assert (queue.count, queue.size_bytes) == (2, 12)
