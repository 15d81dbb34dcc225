"""Which marks a process writes: `rmq_store.reliable.inbox.high_water`."""

from __future__ import annotations

from rmq_store.reliable.inbox.deliveries import Delivery
from rmq_store.reliable.inbox.high_water import HighWater

QUEUE = ("broker-a", "Orders", 0)


def delivery(offset: int, *, topic: str = "Orders", reconsume_times: int = 0, queue_id: int = 0) -> Delivery:
    return Delivery(f"M{offset}", "broker-a", topic, queue_id, offset, reconsume_times, 10_000, False)


def test_a_higher_offset_of_a_first_delivery_is_written_once() -> None:
    marks = HighWater()
    first = marks.enter([delivery(3), delivery(5), delivery(4), delivery(9, queue_id=1)])
    assert first == {QUEUE: 5, ("broker-a", "Orders", 1): 9}
    assert marks.leave(first, is_committed=True) == {}
    assert marks.enter([delivery(5), delivery(2)]) == {}


def test_retries_have_no_mark() -> None:
    assert HighWater().enter([delivery(7, topic="%RETRY%cg"), delivery(8, reconsume_times=1)]) == {}


def test_one_thread_writes_at_a_time_and_the_last_one_writes_what_is_left() -> None:
    marks = HighWater()
    first = marks.enter([delivery(1)])
    second = marks.enter([delivery(2)])
    third = marks.enter([delivery(3)])
    assert (first, second, third) == ({QUEUE: 1}, {}, {})
    assert marks.leave(first, is_committed=True) == {}, "others are there"
    assert marks.leave(second, is_committed=True) == {}
    left = marks.leave(third, is_committed=True)
    assert left == {QUEUE: 3}
    marks.wrote(left)
    assert marks.enter([delivery(3)]) == {}


def test_who_comes_next_writes_what_others_have_left() -> None:
    marks = HighWater()
    first = marks.enter([delivery(1)])
    marks.enter([delivery(5)])
    marks.leave(first, is_committed=True)
    assert marks.enter([delivery(2)]) == {QUEUE: 5}


def test_a_transaction_that_fails_leaves_its_marks_to_others() -> None:
    marks = HighWater()
    first = marks.enter([delivery(1)])
    assert marks.leave(first, is_committed=False) == {}
    assert marks.enter([delivery(0)]) == {QUEUE: 1}


def test_what_grows_while_the_rest_is_written_is_not_forgotten() -> None:
    marks = HighWater()
    first, second = marks.enter([delivery(1)]), marks.enter([delivery(2)])
    marks.leave(first, is_committed=True)
    left = marks.leave(second, is_committed=True)
    writing = marks.enter([delivery(3)])
    marks.wrote(left)
    assert writing == {QUEUE: 3}
    assert marks.leave(writing, is_committed=False) == {}
    assert marks.enter([]) == {QUEUE: 3}
