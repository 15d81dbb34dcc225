"""Listeners that get rows, and their queues: progress, bounds, queues that go, threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from rmq_store.client.consume_service.listener import ConsumeConcurrentlyStatus

LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER
TOPIC, GROUP, BROKER = "Orders", "cg_orders", "rmq-embedded"
RETRY = f"%RETRY%{GROUP}"
HANG_S = 30


def wait_for(condition: Callable[[], bool]) -> None:
    """Until it holds; the deadline is only for a test that would hang."""
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


def first_of(batch: pa.RecordBatch) -> int:
    return int(batch.column("queueOffset")[0].as_py())


@pytest.mark.statement("G08", "G09", "G10")
def test_a_stuck_batch_holds_the_progress_until_it_ends(lab: Any) -> None:
    """G09, at the grain of a batch: 2101-2200 are pulled, the batch of 2101 does not end, all others do."""
    lab.topic()
    lab.send(2201)
    lab.store.commit_offsets(GROUP, {(TOPIC, 0): 2101})
    release = threading.Event()
    consumer = lab.arrow(
        lambda batch, context: release.wait(HANG_S) and None if first_of(batch) == 2101 else None,
        start=False,
        poll_interval_millis=1,
        consume_message_batch_max_size=10,
    )
    consumer.start()
    lab.consumers.append(consumer)
    (held,) = [each.process_queue for each in consumer._rebalance.assignments()]
    wait_for(lambda: len(lab.seen) == 100 and held.count == 10)
    consumer.persist_consumer_offset()
    assert lab.committed() == 2101
    release.set()
    wait_for(lambda: held.count == 0)
    consumer.shutdown()
    assert lab.committed() == 2201
    assert sorted(each.queue_offset for each in lab.seen) == list(range(2101, 2201))


def test_many_threads_on_many_queues_do_every_row_once(lab: Any) -> None:
    """Batches of a queue end in any order; nothing is left over, twice or behind."""
    lab.topic(queues=3)
    for queue in range(3):
        lab.send(700, queue=queue)
    consumer = lab.arrow(
        lambda batch, context: time.sleep(0.0005 * (first_of(batch) % 5)),
        start=False, poll_interval_millis=1, consume_message_batch_max_size=7, pull_batch_size=50,
        consume_thread_nums=8,
    )  # fmt: skip
    consumer.start()
    wait_for(lambda: len(lab.seen) >= 2100 and not any(
        each.process_queue.count for each in consumer._rebalance.assignments()
    ))  # fmt: skip
    consumer.shutdown()
    assert sorted((each.queue_id, each.queue_offset) for each in lab.seen) == [
        (queue, offset) for queue in range(3) for offset in range(700)
    ]
    assert [lab.committed(queue) for queue in range(3)] == [700] * 3


def test_shutdown_waits_for_a_batch_that_runs_and_leaves_the_others(lab: Any) -> None:
    """awaitTerminateMillisWhenShutdown. What was pulled and not begun is left to the next member."""
    lab.topic()
    lab.send(10)
    begun, release = threading.Event(), threading.Event()

    def slow(batch: pa.RecordBatch, context: Any) -> None:
        begun.set()
        release.wait(HANG_S)

    settings: dict[str, Any] = {"consume_message_batch_max_size": 4}
    consumer = lab.arrow(slow, start=False, consume_thread_nums=1, poll_interval_millis=1, **settings)
    consumer.start()
    assert begun.wait(HANG_S)
    ending = threading.Thread(target=consumer.shutdown)
    ending.start()
    wait_for(lambda: consumer._executor._stopped)
    release.set()
    ending.join(HANG_S)
    assert not ending.is_alive()
    assert (lab.bodies(), lab.committed()) == (["m0", "m1", "m2", "m3"], 4)
    lab.arrow(client_id="c2", **settings)
    lab.settle()
    assert lab.bodies()[4:] == [f"m{number}" for number in range(4, 10)]


def test_a_listener_that_outlasts_shutdown_changes_nothing_any_more(lab: Any) -> None:
    """Its rows belong to the next member; a send-back as well would double them."""
    lab.topic()
    lab.send(3)
    begun, release = threading.Event(), threading.Event()

    def endless(batch: pa.RecordBatch, context: Any) -> Any:
        begun.set()
        release.wait(HANG_S)
        return LATER

    consumer = lab.arrow(
        endless, start=False, poll_interval_millis=1, await_termination_millis_when_shutdown=0,
        consume_message_batch_max_size=3,
    )  # fmt: skip
    consumer.start()
    assert begun.wait(HANG_S)
    consumer.shutdown()
    release.set()
    for thread in consumer._executor._threads:
        thread.join(HANG_S)
    assert lab.committed() in (None, 0)
    assert RETRY not in lab.store.topics()


@pytest.mark.parametrize("answer", [LATER, None])
def test_a_queue_that_moves_takes_its_progress_along_and_leaves_unfinished_work_behind(lab: Any, answer: Any) -> None:
    """RebalancePushImpl#removeUnnecessaryMessageQueue. The result of a listener that ends later is void, and batches
    that wait are not begun: both come again at the next owner.
    """
    lab.topic(queues=2)
    lab.send(6, queue=1)
    broker = lab.backend.brokers()[BROKER]

    def slow(batch: pa.RecordBatch, context: Any) -> Any:
        if first_of(batch) == 2:
            broker.heartbeat(GROUP, "b")
            lab.now_ms += 1000
            first._membership.run_due()
            assert lab.committed(1) == 2
            return answer
        return None

    first = lab.arrow(slow, client_id="a", consume_message_batch_max_size=2)
    lab.settle(first)
    assert [queue.queue_id for queue in first.queues() if queue.topic == TOPIC] == [0]
    broker.unregister(GROUP, "b")
    lab.arrow(client_id="b", consume_message_batch_max_size=2)
    lab.advance(1000)
    lab.advance(20_000)
    seen = [(each.client_id, each.queue_offset) for each in lab.seen]
    assert seen == [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("b", 2), ("b", 3), ("b", 4), ("b", 5)]
    assert RETRY not in lab.store.topics()


@pytest.mark.parametrize("late", [False, True])
def test_the_progress_stored_when_a_queue_goes_knows_what_was_just_sent_back(lab: Any, late: bool) -> None:
    """The queue goes while rows are being sent back, failed ones or ones that took too long (`late`): the next member
    must not get them, or they would be sent back twice.
    """
    lab.topic(queues=2)
    lab.send(2, queue=1)
    broker = lab.backend.brokers()[BROKER]
    entered, stored = threading.Event(), threading.Event()

    class Slow:
        def __init__(self, sender: Any) -> None:
            self._sender = sender

        def send_rows_back(self, *arguments: Any) -> Any:
            entered.set()
            # Without the lock the queue goes in the meantime, which this wait makes sure of.
            stored.wait(0.05)
            return self._sender.send_rows_back(*arguments)

    def rebalance() -> None:
        entered.wait(HANG_S)
        broker.heartbeat(GROUP, "b")
        consumer._rebalance.rebalance([TOPIC])
        stored.set()

    def answer(batch: pa.RecordBatch, context: Any) -> Any:
        if late:
            lab.now_ms += 16 * 60_000
            service.clean_expired(consumer._rebalance.assignments())
        return LATER

    consumer = lab.arrow(answer, client_id="a", consume_message_batch_max_size=2)
    service: Any = consumer._pulls._service
    service._sender = Slow(service._sender)
    other = threading.Thread(target=rebalance)
    other.start()
    lab.settle()
    other.join()
    assert lab.committed(1) == 2
    assert len(lab.read("SCHEDULE_TOPIC_XXXX")) == 2


def test_expired_rows_of_a_queue_that_went_are_left_to_its_next_owner(lab: Any) -> None:
    lab.topic()
    lab.send(2)

    def slow(batch: pa.RecordBatch, context: Any) -> Any:
        (assignment,) = consumer._rebalance.assignments()
        lab.now_ms += 16 * 60_000
        assignment.process_queue.dropped = True
        consumer._pulls._service.clean_expired([assignment])
        return LATER

    consumer = lab.arrow(slow, consume_message_batch_max_size=2)
    consumer.run_once()
    assert len(lab.seen) == 2
    assert RETRY not in lab.store.topics()


def test_flow_control_keeps_what_is_pulled_within_bounds(lab: Any) -> None:
    """pullThresholdForQueue: more than 1000 messages: no more pulls of that queue."""
    lab.topic()
    lab.send(3000)
    consumer = lab.arrow(consume_message_batch_max_size=100)
    consumer._executor.run_ready = lambda: 0
    for _ in range(200):
        consumer.run_once()
    (held,) = consumer._rebalance.assignments()
    assert 1000 < held.process_queue.count <= 1000 + 32
    del consumer._executor.run_ready
    lab.settle()
    assert len(lab.seen) == 3000


def test_the_span_of_what_is_not_done_is_bounded(lab: Any) -> None:
    """consumeConcurrentlyMaxSpan 2000, though only a handful of rows are not done."""
    lab.topic()
    lab.send(3000)

    class Nobody:
        def send_rows_back(self, rows: pa.RecordBatch, *arguments: Any) -> pa.RecordBatch:
            return rows

    consumer = lab.arrow(
        lambda batch, context: LATER if first_of(batch) % 500 == 0 else None,
        consume_message_batch_max_size=20, pull_batch_size=20,
    )  # fmt: skip
    service: Any = consumer._pulls._service
    service._sender = Nobody()
    lab.settle()
    assert 2000 < len(lab.seen) <= 2000 + 40
    assert consumer._rebalance.assignments()[0].process_queue.count == 100


def test_size_and_topic_bounds_hold_too(lab: Any) -> None:
    """pullThresholdSizeForQueue in MiB; pullThresholdForTopic is shared by the queues."""
    lab.topic(queues=2)
    bodies = pa.array([bytes(300_000)] * 40, pa.binary())
    for queue_id in range(2):
        rows = {"body": bodies, "queueId": pa.array([queue_id] * 40, pa.int32())}
        lab.store.append(pa.RecordBatch.from_pydict(rows), topic=TOPIC)
    by_size = lab.arrow(group="by_size", pull_threshold_size_for_queue=2, pull_batch_size=1)
    by_topic = lab.arrow(group="by_topic", client_id="c2", pull_threshold_for_topic=10, pull_batch_size=1)
    for consumer in (by_size, by_topic):
        consumer._executor.run_ready = lambda: 0
        for _ in range(60):
            consumer.run_once()
    assert all(3 << 20 <= each.process_queue.size_bytes < 4 << 20 for each in by_size._rebalance.assignments())
    assert [each.process_queue.count for each in by_topic._rebalance.assignments()] == [6, 6]


def test_a_pause_between_pulls_and_suspension_hold_back_rows(lab: Any) -> None:
    """pullInterval; DefaultMQPushConsumer#suspend, #resume."""
    lab.topic()
    lab.send(64)
    consumer = lab.arrow(pull_interval=500, consume_message_batch_max_size=32)
    lab.settle()
    assert len(lab.seen) == 32
    consumer.suspend()
    lab.advance(500)
    assert len(lab.seen) == 32
    consumer.resume()
    lab.settle()
    assert len(lab.seen) == 64


def test_an_offset_that_the_queue_does_not_have_is_corrected(lab: Any) -> None:
    """DefaultMQPushConsumerImpl#pullMessage, OFFSET_ILLEGAL."""
    lab.topic()
    lab.send(3)
    lab.store.commit_offsets(GROUP, {(TOPIC, 0): 50})
    lab.arrow()
    lab.settle()
    assert lab.committed() == 3
    lab.send(1)
    lab.settle()
    assert lab.bodies() == ["m3"]
