"""What was pulled and is not done, in order: what is taken, committed and given back."""

from __future__ import annotations

from dataclasses import replace

from rmq_store.client.consume_service.ordered_process_queue import NOTHING, OrderedProcessQueue
from rmq_store.client.group.held_queue import LOCK_LIVE_MS
from rmq_store.protocol.messages import MessageExt


def message(offset: int, body: bytes = b"x") -> MessageExt:
    return MessageExt(
        topic="T", body=body, queue_id=0, queue_offset=offset, commit_log_offset=offset * 100, msg_id=str(offset),
        offset_msg_id=str(offset), broker_name="b", reconsume_times=0, flag=0, sys_flag=0, born_timestamp_ms=0,
        born_host="127.0.0.1:0", store_timestamp_ms=0, store_host="127.0.0.1:0", properties={},
    )  # fmt: skip


def filled(start: int, end: int) -> OrderedProcessQueue:
    queue = OrderedProcessQueue()
    queue.put([message(offset) for offset in range(start, end)])
    return queue


def test_ordered_messages_are_taken_committed_or_put_back() -> None:
    """ProcessQueue#takeMessages, #commit, #makeMessageToConsumeAgain, #rollback."""
    queue = filled(0, 5)
    first = queue.take(2)
    assert [each.queue_offset for each in first] == [0, 1]
    assert queue.commit() == 2
    assert queue.commit() == NOTHING

    again = [replace(each, reconsume_times=1) for each in queue.take(2)]
    queue.consume_again(again)
    assert [(each.queue_offset, each.reconsume_times) for each in queue.take(3)] == [(2, 1), (3, 1), (4, 0)]
    queue.consume_again()
    assert [each.queue_offset for each in queue.take(9)] == [2, 3, 4]
    assert (queue.commit(), queue.count, queue.size_bytes) == (5, 0, 0)


def test_a_taken_message_that_went_elsewhere_is_neither_committed_nor_put_back() -> None:
    queue = filled(0, 2)
    first, second = queue.take(2)
    queue.forget_taken(first)
    assert queue.count == 1
    queue.consume_again()
    assert queue.take(2) == [second]
    assert (queue.commit(), queue.size_bytes) == (2, 0)


def test_repeating_a_message_for_ever_does_not_grow_the_queue() -> None:
    """An ordered listener that fails for days takes and gives back the same message again and again."""
    queue = filled(0, 2)
    for _ in range(1000):
        queue.consume_again(queue.take(1))
    assert queue.count == len(queue._waiting) == 2


def test_one_consumption_at_a_time_begins_and_ends_when_nothing_is_left() -> None:
    """ProcessQueue#putMessage answers whether to dispatch; takeMessages ends it."""
    queue = OrderedProcessQueue()
    assert queue.put([message(0)])
    assert not queue.put([message(1)])
    queue.take(2)
    assert not queue.put([message(2)])
    queue.take(1)
    assert queue.take(1) == []
    assert queue.put([message(3)])


def test_a_lock_counts_for_thirty_seconds() -> None:
    """REBALANCE_LOCK_MAX_LIVE_TIME: the client treats a lock as valid for 30 s."""
    queue = OrderedProcessQueue()
    assert not queue.is_locked(0)
    queue.lock_granted(1000)
    assert queue.is_locked(1000 + LOCK_LIVE_MS)
    assert not queue.is_locked(1001 + LOCK_LIVE_MS)
    queue.lock_granted(50_000)
    queue.lock_lost()
    assert not queue.is_locked(50_000)


def test_count_bytes_and_span_are_those_of_what_is_not_done() -> None:
    """DefaultMQPushConsumerImpl#pullMessage: flow control counts what is taken, too."""
    queue = OrderedProcessQueue()
    queue.put([message(offset, b"12345") for offset in (3, 7, 20)])
    assert (queue.count, queue.size_bytes, queue.max_span) == (3, 15, 17)
    queue.take(2)
    assert (queue.count, queue.size_bytes, queue.max_span) == (3, 15, 0)
    assert queue.commit() == 8
    assert (queue.count, queue.size_bytes) == (1, 5)
    queue.take(1)
    assert queue.max_span == 0
