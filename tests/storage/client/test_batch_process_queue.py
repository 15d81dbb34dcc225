"""Batches that were pulled and are not done: the minimum-offset rule by ranges, and what flow control sees."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from rmq_store.client.batch_process_queue import BatchProcessQueue


def rows(offsets: Sequence[int], body: bytes = b"x") -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({
        "queueOffset": pa.array(offsets, pa.int64()),
        "body": pa.array([body] * len(offsets), pa.binary()),
    })


NONE = rows([])


@pytest.mark.statement("G08", "G09")
def test_the_smallest_unfinished_offset_is_the_progress() -> None:
    """Seed 004, section 2.3, for batches that end out of order: the first one that is left decides."""
    queue = BatchProcessQueue()
    first, second, third = [queue.put(rows(range(start, start + 10))) for start in (2101, 2111, 2121)]
    assert queue.settle(second, NONE) == 2101
    assert queue.settle(first, NONE) == 2121
    assert queue.settle(third, NONE) == 2131


def test_the_rows_of_a_batch_that_are_left_hold_their_own_place() -> None:
    queue = BatchProcessQueue()
    first, second = queue.put(rows(range(5))), queue.put(rows(range(5, 9)))
    assert queue.settle(first, rows([3, 4])) == 3
    assert queue.left(first) == rows([3, 4])
    assert queue.settle(second, NONE) == 3
    assert queue.settle(first, rows([4])) == 4
    assert queue.settle(first, NONE) == 9
    assert queue.left(first) is None


def test_what_a_filter_left_out_is_passed_with_the_rows_before_it() -> None:
    """Offsets have gaps then: the progress is that of the next row that is not done, or behind the last one."""
    queue = BatchProcessQueue()
    first, second = queue.put(rows([3, 7])), queue.put(rows([20, 30]))
    assert queue.settle(first, NONE) == 20
    assert queue.settle(second, NONE) == 31


def test_count_bytes_and_span_are_those_of_what_is_not_done() -> None:
    """broker-semantics 3.1: flow control counts messages, bytes and the distance from first to last."""
    queue = BatchProcessQueue()
    first, second = queue.put(rows([3, 7], b"12345")), queue.put(rows([20], b"123"))
    assert (queue.count, queue.size_bytes, queue.max_span) == (3, 13, 17)
    queue.settle(first, rows([7], b"12345"))
    assert (queue.count, queue.size_bytes, queue.max_span) == (2, 8, 13)
    queue.settle(second, NONE)
    assert (queue.count, queue.size_bytes, queue.max_span) == (1, 5, 0)
    queue.settle(first, NONE)
    assert (queue.count, queue.size_bytes, queue.max_span) == (0, 0, 0)


def test_only_the_first_batch_expires_and_only_after_a_listener_got_it() -> None:
    """ProcessQueue#cleanExpiredMsg: from the head of the tree, by CONSUME_START_TIME; what is left of it too."""
    queue = BatchProcessQueue()
    first, second = queue.put(rows([0, 1])), queue.put(rows([2]))
    queue.mark_started(second, 0)
    assert queue.first_expired(1000, 5000) is None
    queue.mark_started(first, 100)
    assert queue.first_expired(1000, 1100) is None
    assert queue.first_expired(1000, 1101) == first
    queue.settle(first, rows([1]))
    assert queue.first_expired(1000, 1101) == first
    queue.settle(first, NONE)
    assert queue.first_expired(1000, 1101) == second
    queue.settle(second, NONE)
    assert queue.first_expired(1000, 1101) is None


def test_a_batch_that_was_done_in_the_meantime_is_not_marked() -> None:
    queue = BatchProcessQueue()
    number = queue.put(rows([0]))
    queue.settle(number, NONE)
    queue.mark_started(number, 0)
    assert (queue.left(number), queue.count) == (None, 0)
