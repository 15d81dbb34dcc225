"""What was pulled and is not done: the minimum-offset rule, for batches of which objects are made late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from rmq_store.client.backend import MessageExt
from rmq_store.client.process_queue import Batch, ProcessQueue


def message(offset: int, body: bytes = b"x") -> MessageExt:
    return MessageExt(
        topic="T", body=body, queue_id=0, queue_offset=offset, commit_log_offset=offset * 100, msg_id=str(offset),
        offset_msg_id=str(offset), broker_name="b", reconsume_times=0, flag=0, sys_flag=0, born_timestamp_ms=0,
        born_host="127.0.0.1:0", store_timestamp_ms=0, store_host="127.0.0.1:0", properties={},
    )  # fmt: skip


class Rows:
    """What a pull has found at these offsets; knows of which rows objects were made."""

    def __init__(self, offsets: Sequence[int], body: bytes = b"x") -> None:
        self.offsets, self.body = offsets, body
        self.taken: list[int] = []

    def queue_offset(self, row: int) -> int:
        return self.offsets[row]

    def body_bytes(self, first: int, behind: int) -> int:
        return len(self.body) * (behind - first)

    def take(self, first: int, behind: int, added: dict[str, str]) -> list[MessageExt]:
        self.taken += range(first, behind)
        made = [message(offset, self.body) for offset in self.offsets[first:behind]]
        for each in made:
            each.properties.update(added)  # type: ignore[attr-defined]
        return made


def put(queue: ProcessQueue, offsets: Sequence[int], size: int, body: bytes = b"x") -> list[Batch]:
    """Batches of `size` messages of one pull."""
    rows = Rows(offsets, body)
    batches = [Batch.of(rows, at, min(at + size, len(offsets))) for at in range(0, len(offsets), size)]  # type: ignore[arg-type]
    for batch in batches:
        queue.put(batch)
    return batches


def offsets_left(queue: ProcessQueue, batch: Batch) -> list[int]:
    return [each.queue_offset for each in queue.left(batch, {})]


@pytest.mark.statement("G08", "G09")
@pytest.mark.parametrize("size", [1, 3, 32])
def test_the_smallest_unfinished_offset_is_the_progress(size: int) -> None:
    """Seed 004, section 2.3: of 2101-2200 only 2101 is not done: 2101; then it is: 2201. ProcessQueue#removeMessage."""
    queue = ProcessQueue()
    first, *others = put(queue, range(2101, 2201), size)
    for batch in reversed(others):
        assert queue.settle(batch, []) == 2101
    assert queue.settle(first, queue.left(first, {})[:1]) == 2101
    assert queue.settle(first, []) == 2201
    assert queue.left(first, {}) == []


def test_what_is_left_of_a_batch_holds_back_the_progress() -> None:
    """Gaps, which a filter makes, are passed with what lies before them."""
    queue = ProcessQueue()
    first, second = put(queue, [3, 7, 20, 21], 2)
    assert queue.settle(second, queue.left(second, {})[1:]) == 3
    assert offsets_left(queue, second) == [21]
    assert queue.settle(first, queue.left(first, {})[1:]) == 7
    assert queue.settle(first, []) == 21
    assert queue.settle(second, []) == 22


def test_count_bytes_and_span_are_those_of_what_is_not_done() -> None:
    """broker-semantics 3.1: flow control counts messages, bytes and the distance from first to last."""
    queue = ProcessQueue()
    first, second = put(queue, [3, 7, 20], 2, b"12345")
    assert (queue.count, queue.size_bytes, queue.max_span) == (3, 15, 17)
    queue.settle(second, [])
    assert (queue.count, queue.size_bytes, queue.max_span) == (2, 10, 4)
    queue.settle(first, queue.left(first, {})[1:])
    assert (queue.count, queue.size_bytes, queue.max_span) == (1, 5, 0)
    queue.settle(first, [])
    assert (queue.count, queue.size_bytes, queue.max_span) == (0, 0, 0)


def test_only_the_first_batch_expires_and_only_after_a_listener_got_it() -> None:
    """ProcessQueue#cleanExpiredMsg: from the head of the tree, by CONSUME_START_TIME; what is left of it too."""
    queue = ProcessQueue()
    first, second = put(queue, range(4), 2)
    second.started_ms = 0
    assert queue.first_expired(1000, 5000) is None
    first.started_ms = 100
    assert queue.first_expired(1000, 1100) is None
    assert queue.first_expired(1000, 1101) is first
    queue.settle(first, queue.left(first, {})[1:])
    assert queue.first_expired(1000, 1101) is first
    queue.settle(first, [])
    assert queue.first_expired(1000, 1101) is second
    queue.settle(second, [])
    assert queue.first_expired(1000, 1101) is None


def test_objects_are_made_once_when_they_are_asked_for_and_hold_no_pull() -> None:
    """Of messages that wait there are none; those of a listener get what is added to them again."""
    queue = ProcessQueue()
    first, second = put(queue, range(4), 2)
    rows = first.rows
    assert isinstance(rows, Rows) and rows.taken == []
    made = queue.left(first, {"a": "1"})
    assert rows.taken == [0, 1]
    assert first.rows is None and second.rows is rows
    again = queue.left(first, {"b": "2"})
    assert all(one is other for one, other in zip(made, again, strict=True))
    assert made[1].properties == {"a": "1", "b": "2"}
    made.clear()  # a listener may do with its list what it likes
    assert offsets_left(queue, first) == [0, 1]


def test_what_is_put_in_the_place_of_a_message_is_what_comes_again() -> None:
    queue = ProcessQueue()
    (batch,) = put(queue, range(3), 3)
    kept = [replace(each, reconsume_times=1, body=b"longer") for each in queue.left(batch, {})[1:]]
    assert queue.settle(batch, kept) == 1
    assert queue.left(batch, {}) == kept
    assert (queue.count, queue.size_bytes) == (2, 12)
