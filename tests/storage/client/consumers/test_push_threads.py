"""Consumers with their own threads: the experiment of G09, shutdown, and errors that end a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import UsageError
from rmq_store.client.consume_service.listener import ConsumeConcurrentlyStatus
from rmq_store.protocol.messages import MessageExt

TOPIC, GROUP = "Orders", "cg_orders"
HANG_S = 30


def wait_for(condition: Callable[[], bool]) -> None:
    """Until it holds; the deadline is only for a test that would hang."""
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


def fill_to_2201(lab: Any) -> None:
    lab.topic()
    rows = {"body": pa.array([str(number).encode() for number in range(2201)], pa.binary())}
    lab.store.append(pa.RecordBatch.from_pydict(rows), topic=TOPIC)
    lab.store.commit_offsets(GROUP, {(TOPIC, 0): 2101})


@pytest.mark.statement("G08", "G09", "G10")
def test_one_stuck_message_of_a_hundred_holds_the_progress_until_it_ends(lab: Any) -> None:
    """G09: 2101-2200 are pulled, only 2101 does not end: progress 2101. It ends: 2201."""
    fill_to_2201(lab)
    release = threading.Event()
    consumer = lab.concurrent(
        lambda messages, context: release.wait(HANG_S) and None if messages[0].body == b"2101" else None,
        start=False,
        poll_interval_millis=1,
    )
    consumer.start()
    lab.consumers.append(consumer)
    (held,) = [each.process_queue for each in consumer._rebalance.assignments()]
    wait_for(lambda: len(lab.seen) == 100 and held.count == 1)
    consumer.persist_consumer_offset()
    assert lab.committed() == 2101
    release.set()
    wait_for(lambda: held.count == 0)
    consumer.shutdown()
    assert lab.committed() == 2201
    assert sorted(int(body) for body in lab.bodies()) == list(range(2101, 2201))


def test_shutdown_waits_for_listeners_that_run_and_stores_what_they_did(lab: Any) -> None:
    """awaitTerminateMillisWhenShutdown. What was pulled and not begun is left to the next member."""
    lab.topic()
    lab.send(10)
    begun, release = threading.Event(), threading.Event()

    def slow(messages: Sequence[MessageExt], context: Any) -> None:
        begun.set()
        release.wait(HANG_S)

    consumer = lab.concurrent(slow, start=False, consume_thread_nums=1, poll_interval_millis=1)
    consumer.start()
    assert begun.wait(HANG_S)
    ending = threading.Thread(target=consumer.shutdown)
    ending.start()
    wait_for(lambda: consumer._executor._stopped)
    release.set()
    ending.join(HANG_S)
    assert not ending.is_alive()
    assert lab.bodies() == ["m0"]
    assert lab.committed() == 1
    lab.concurrent(client_id="c2")
    lab.settle()
    assert lab.bodies()[1:] == [f"m{number}" for number in range(1, 10)]


def test_a_listener_that_outlasts_shutdown_changes_nothing_any_more(lab: Any) -> None:
    """Its message belongs to the next member; a send-back as well would double it."""
    lab.topic()
    lab.send(1)
    begun, release, returned = threading.Event(), threading.Event(), threading.Event()

    def endless(messages: Sequence[MessageExt], context: Any) -> Any:
        begun.set()
        release.wait(HANG_S)
        returned.set()
        return ConsumeConcurrentlyStatus.RECONSUME_LATER

    consumer = lab.concurrent(
        endless, start=False, poll_interval_millis=1, await_termination_millis_when_shutdown=0
    )
    consumer.start()
    assert begun.wait(HANG_S)
    consumer.shutdown()
    release.set()
    assert returned.wait(HANG_S)
    for thread in consumer._executor._threads:
        thread.join(HANG_S)
    assert lab.committed() in (None, 0)
    assert f"%RETRY%{GROUP}" not in lab.store.topics()


def test_a_listener_may_shut_its_consumer_down(lab: Any) -> None:
    """Its own message comes again: it was not done when the progress was stored."""
    lab.topic()
    lab.send(1)
    consumer = lab.concurrent(lambda messages, context: consumer.shutdown(), start=False, poll_interval_millis=1)
    consumer.start()
    wait_for(lambda: consumer._state == "ended" and not lab.backend.brokers()["rmq-embedded"].consumer_ids(GROUP))
    lab.concurrent(client_id="c2")
    lab.settle()
    assert lab.bodies() == ["m0", "m0"]


def test_a_listener_may_shut_its_consumer_down_while_that_still_starts(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.topic()
    lab.send(1)
    entered = threading.Event()
    start = threading.Thread.start

    def start_late(thread: threading.Thread) -> None:
        if thread.name.startswith("ClientFactory"):
            assert entered.wait(HANG_S)
            time.sleep(0.02)
        start(thread)

    def shut_down(messages: Any, context: Any) -> None:
        entered.set()
        consumer.shutdown()

    monkeypatch.setattr(threading.Thread, "start", start_late)
    consumer = lab.concurrent(shut_down, start=False, poll_interval_millis=1)
    consumer.start()
    wait_for(lambda: consumer._state == "ended" and not lab.backend.brokers()["rmq-embedded"].consumer_ids(GROUP))
    assert not any(thread.is_alive() for thread in consumer._loops)


def test_a_consumer_that_is_shut_down_while_it_starts_does_not_run(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another thread, or by the handler of a signal: the shutdown has found nothing to stop."""
    lab.topic()
    consumer = lab.concurrent(start=False)
    monkeypatch.setattr(consumer, "_publish_max_reconsume_times", consumer.shutdown)
    with pytest.raises(UsageError, match="shut down while it started"):
        consumer.start()
    assert not consumer._loops
    assert lab.backend.brokers()["rmq-embedded"].consumer_ids(GROUP) == []


@pytest.mark.parametrize("part", ["_pulls", "_membership"])
def test_an_error_of_our_own_ends_the_consumer_which_leaves_its_group_and_says_so(lab: Any, part: str) -> None:
    """A member that consumes nothing but keeps its queues would hold back the group for ever."""
    lab.topic()
    consumer = lab.concurrent(start=False, poll_interval_millis=1)
    consumer.start()

    def broken(*arguments: Any) -> None:
        raise RuntimeError("a bug")

    setattr(getattr(consumer, part), "pull_all" if part == "_pulls" else "run_due", broken)
    wait_for(lambda: consumer.failure is not None)
    wait_for(lambda: lab.backend.brokers()["rmq-embedded"].consumer_ids(GROUP) == [])
    with pytest.raises(RuntimeError, match="a bug"):
        consumer.shutdown()
    consumer.shutdown()


def test_an_error_in_a_consuming_thread_ends_the_consumer_too(lab: Any) -> None:
    """Not one of the listener's own: those are failed messages."""
    lab.topic()
    lab.send(1)
    consumer = lab.concurrent(start=False, poll_interval_millis=1)

    class Broken(Exception):
        pass

    consumer.start()
    consumer.suspend()

    def broken() -> None:
        raise Broken

    consumer._executor.submit(broken)
    wait_for(lambda: isinstance(consumer.failure, Broken))
    wait_for(lambda: lab.backend.brokers()["rmq-embedded"].consumer_ids(GROUP) == [])
    with pytest.raises(Broken):
        consumer.shutdown()


def test_threads_of_a_consumer_are_as_many_as_it_says_and_all_end(lab: Any) -> None:
    """consumeThreadMax, one pull loop, one timer loop."""
    lab.topic()
    lab.send(200)
    before = set(threading.enumerate())
    at_once, most, lock = 0, 0, threading.Lock()

    def count(messages: Sequence[MessageExt], context: Any) -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.002)
        with lock:
            at_once -= 1

    consumer = lab.concurrent(count, start=False, consume_thread_nums=3, poll_interval_millis=1)
    consumer.start()
    assert len(set(threading.enumerate()) - before) == 5
    with pytest.raises(UsageError, match="threads=False"):
        consumer.run_once()
    wait_for(lambda: len(lab.seen) == 200)
    consumer.shutdown()
    assert most <= 3
    assert set(threading.enumerate()) <= before
    assert lab.committed() == 200
