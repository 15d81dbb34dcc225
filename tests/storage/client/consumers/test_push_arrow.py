"""Listeners that get rows: what their answers do to messages and progress (ConsumeMessageConcurrentlyService)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmq_store import Message
from rmq_store.broker.filter.subscription import MessageSelector
from rmq_store.broker.processor import local_broker
from rmq_store.client.consume_service.listener import ConsumeConcurrentlyStatus, MessageListenerArrow
from rmq_store.client.group.rate_limiter import RateLimiter
from rmq_store.format.tables.schema import MESSAGE_SCHEMA
from rmq_store.protocol.messages import MessageExt

LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER
SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
TOPIC, GROUP, BROKER = "Orders", "cg_orders", "rmq-embedded"
RETRY, DLQ = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"
MINUTE_MS = 60_000


def bodies_of(batch: pa.RecordBatch) -> list[str]:
    return [body.decode() for body in batch.column("body").to_pylist()]


def fails_once(batch: pa.RecordBatch, context: Any) -> Any:
    return None if batch.column("reconsumeTimes")[0].as_py() else LATER


# -- what a listener gets ----------------------------------------------------------------------------------------------


@pytest.mark.statement("G18")
def test_rows_are_consumed_once_and_the_progress_is_stored_at_shutdown(lab: Any) -> None:
    lab.topic()
    lab.send(100)
    consumer = lab.arrow(consume_message_batch_max_size=30)
    lab.settle()
    assert lab.bodies() == [f"m{number}" for number in range(100)]
    assert lab.committed() is None
    consumer.shutdown()
    assert lab.committed() == 100

    lab.arrow(client_id="c2", consume_message_batch_max_size=30)
    lab.settle(lab.consumers[-1])
    assert len(lab.seen) == 100


@pytest.mark.statement("B15")
@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({}, [1] * 70),
        ({"consume_message_batch_max_size": 20}, [20, 12, 20, 12, 6]),
        ({"consume_message_batch_max_size": 50, "pull_batch_size": 60}, [50, 10, 10]),
        ({"consume_message_batch_max_size": 1024, "pull_batch_size": 1024}, [70]),
    ],
)
def test_a_batch_is_never_larger_than_the_listener_wants(
    lab: Any, settings: dict[str, int], sizes: Sequence[int]
) -> None:
    """consumeMessageBatchMaxSize 1 by default; what one pull brings (32 by default) is divided by it."""
    lab.topic()
    lab.send(70)
    seen: list[int] = []
    lab.arrow(lambda batch, context: seen.append(batch.num_rows), **settings)
    lab.settle()
    assert seen == list(sizes)


def test_a_row_has_all_columns_as_they_are_stored(lab: Any) -> None:
    """Those of Store.read. What a client adds to the properties of objects is not added to rows."""
    lab.topic()
    lab.store.send(Message(TOPIC, b"tea", tags="TagA", keys="k", properties={"own": "p"}, queue_id=0, flag=7))
    lab.send(2)
    batches: list[pa.RecordBatch] = []
    queues: list[Any] = []

    def keep(batch: pa.RecordBatch, context: Any) -> None:
        batches.append(batch)
        queues.append((context.message_queue.topic, context.message_queue.broker_name, context.message_queue.queue_id))

    lab.arrow(keep, consume_message_batch_max_size=32)
    lab.settle()
    assert batches == list(lab.store.read(TOPIC, 0, 0, 3))
    assert batches[0].schema == MESSAGE_SCHEMA
    assert queues == [(TOPIC, BROKER, 0)]


def test_batches_of_one_pull_share_its_memory(lab: Any) -> None:
    """Slices, not copies."""
    lab.topic()
    lab.send(32)
    batches: list[pa.RecordBatch] = []
    lab.arrow(lambda batch, context: batches.append(batch), consume_message_batch_max_size=8)
    lab.settle()
    assert len(batches) == 4
    for name in MESSAGE_SCHEMA.names:
        assert len({batch.column(name).buffers()[-1].address for batch in batches}) == 1, name


def test_no_object_is_made_for_a_message(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for one that is done nor for one that fails, takes too long, comes again, or becomes a dead letter."""
    lab.topic()
    lab.send(200, tags="A")

    def refuse(*arguments: Any, **fields: Any) -> None:
        raise AssertionError("an object for a message")

    monkeypatch.setattr(MessageExt, "__init__", refuse)
    monkeypatch.setattr(local_broker, "messages_of", refuse)

    def answer(batch: pa.RecordBatch, context: Any) -> Any:
        if batch.column("queueOffset")[0].as_py() == 64 and not batch.column("reconsumeTimes")[0].as_py():
            lab.now_ms += 16 * MINUTE_MS
            consumer._membership.run_due()
        context.ack_index = 9
        return SUCCESS

    consumer = lab.arrow(answer, start=False, consume_message_batch_max_size=32, max_reconsume_times=1)
    consumer.subscribe(TOPIC, "A")
    consumer.start(threads=False)
    lab.consumers.append(consumer)
    lab.settle()
    lab.advance(100_000)
    assert len({each.body for each in lab.seen}) == 200
    assert len(lab.read(DLQ)) > 0
    with pytest.raises(AssertionError, match="an object"):
        lab.backend.brokers()[BROKER].pull(GROUP, consumer.queues()[-1], 0, 1)


# -- answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.statement("C01", "B15")
@pytest.mark.parametrize(
    ("status", "ack_index", "again"),
    [
        (SUCCESS, None, []),
        (SUCCESS, 1, ["m2", "m3"]),
        (SUCCESS, np.int64(2), ["m3"]),
        (SUCCESS, -1, ["m0", "m1", "m2", "m3"]),
        (SUCCESS, -9, ["m0", "m1", "m2", "m3"]),
        (SUCCESS, 99, []),
        (SUCCESS, "1", ["m0", "m1", "m2", "m3"]),
        (LATER, 1, ["m0", "m1", "m2", "m3"]),
    ],
)
def test_rows_behind_the_ack_index_failed(lab: Any, status: Any, ack_index: Any, again: list[str]) -> None:
    """C01: for i > ackIndex each message is sent back. An index that is no number is a listener that failed."""
    lab.topic()
    lab.send(4)

    def answer(batch: pa.RecordBatch, context: Any) -> Any:
        if batch.column("reconsumeTimes")[0].as_py():
            return None
        if ack_index is not None:
            context.ack_index = ack_index
        return status

    consumer = lab.arrow(answer, consume_message_batch_max_size=4)
    lab.settle()
    consumer.persist_consumer_offset()
    assert lab.committed() == 4
    lab.advance(9_999)
    assert lab.bodies() == ["m0", "m1", "m2", "m3"]
    lab.advance(1)
    assert sorted(lab.bodies()[4:]) == again


@pytest.mark.statement("B01", "B02")
@pytest.mark.parametrize("wrong", ["none", "CONSUME_SUCCESS", True, 0, ValueError("a bug"), KeyError("a column")])
def test_no_answer_a_wrong_one_and_an_exception_fail_all_rows(
    lab: Any, wrong: Any, caplog: pytest.LogCaptureFixture
) -> None:
    lab.topic()
    lab.send(3)

    def answer(batch: pa.RecordBatch, context: Any) -> Any:
        if batch.column("reconsumeTimes")[0].as_py():
            return None
        if isinstance(wrong, Exception):
            raise wrong
        return wrong

    consumer = lab.arrow(answer, consume_message_batch_max_size=32)
    with caplog.at_level(logging.WARNING):
        lab.settle()
    assert "messages 0 to 2 of MessageQueue [topic=Orders" in caplog.text
    lab.advance(10_000)
    assert sorted(lab.bodies()[3:]) == ["m0", "m1", "m2"]
    assert consumer.failure is None


def test_a_listener_may_be_a_class_of_its_own_and_one_without_a_function_fails(lab: Any) -> None:
    lab.topic()
    lab.send(2)

    class Counting(MessageListenerArrow):
        rows = 0

        def consume_message(self, batch: pa.RecordBatch, context: Any) -> ConsumeConcurrentlyStatus:
            self.rows += batch.num_rows
            return SUCCESS

    counting = Counting()
    lab._made(counting, "cg_counting", "c1", None, True, {})
    lab._made(MessageListenerArrow(), GROUP, "c1", None, True, {"max_reconsume_times": 0})
    lab.settle()
    assert counting.rows == 2
    assert len(lab.read(DLQ)) == 2


# -- filters and rates -------------------------------------------------------------------------------------------------


def test_tags_are_filtered_and_the_progress_passes_what_was_left_out(lab: Any) -> None:
    """DefaultMQPushConsumerImpl#pullMessage, NO_MATCHED_MSG; two tags of one hash are told apart."""
    lab.topic()
    for tag in ("AaAa", "BBBB", "C", None, "AaAa", "C"):
        lab.send(1, tags=tag)
    sizes: list[int] = []
    consumer = lab.arrow(
        lambda batch, context: sizes.append(batch.num_rows), start=False, consume_message_batch_max_size=32
    )
    consumer.subscribe(TOPIC, "AaAa || D")
    consumer.start(threads=False)
    lab.settle(consumer)
    assert (lab.bodies(), sizes) == (["m0", "m4"], [2])
    lab.send(5, tags="C")
    lab.settle(consumer)
    consumer.shutdown()
    assert lab.committed() == 11


def test_sql92_selectors_look_at_properties(lab: Any) -> None:
    """MessageSelector.bySql; a row that does not match is passed, and its retry topic copy is not filtered."""
    lab.topic()
    for price in (5, 50, 500, 60):
        lab.store.send(Message(TOPIC, f"p{price}".encode(), properties={"price": str(price)}, queue_id=0))
    sizes: list[int] = []

    def answer(batch: pa.RecordBatch, context: Any) -> Any:
        sizes.append(batch.num_rows)
        return fails_once(batch, context)

    consumer = lab.arrow(answer, start=False, consume_message_batch_max_size=32)
    consumer.subscribe(TOPIC, MessageSelector.by_sql("price BETWEEN 10 AND 100"))
    consumer.start(threads=False)
    lab.settle(consumer)
    assert (lab.bodies(), sizes) == (["p50", "p60"], [2])
    lab.advance(10_000, consumer)
    assert sorted((each.body, each.reconsume_times) for each in lab.seen[2:]) == [("p50", 1), ("p60", 1)]
    for _ in range(3):
        lab.store.send(Message(TOPIC, b"free", properties={"price": "0"}, queue_id=0))
    lab.settle(consumer)
    consumer.shutdown()
    assert (lab.committed(), len(lab.seen)) == (7, 4)


@pytest.mark.statement("B16")
def test_rows_above_the_rate_wait_in_their_queue_and_are_not_retried(lab: Any) -> None:
    """Each row takes a permit; a batch waits as a whole."""
    lab.topic()
    lab.send(120)
    limiter = RateLimiter(10, clock=lab.clock)
    consumer = lab.arrow(
        rate_limiter=limiter, consume_message_batch_max_size=10, pull_threshold_for_queue=20, pull_batch_size=10
    )
    for _ in range(50):
        lab.advance(100)
    assert len(lab.seen) == 60
    consumer.persist_consumer_offset()
    assert lab.committed() == 60
    assert RETRY not in lab.store.topics()
    for _ in range(80):
        lab.advance(100)
    assert lab.bodies() == [f"m{number}" for number in range(120)]


def test_rows_that_wait_for_their_rate_are_not_begun_when_their_queue_has_gone(lab: Any) -> None:
    lab.topic()
    lab.send(15)
    consumer = lab.arrow(rate_limiter=RateLimiter(10, clock=lab.clock), consume_message_batch_max_size=5)
    lab.advance(100)
    assert len(lab.seen) == 5
    (assignment,) = consumer._rebalance.assignments()
    assignment.process_queue.dropped = True
    lab.now_ms += 5000
    consumer._executor.release_due()
    consumer._executor.run_ready()
    assert len(lab.seen) == 5


def test_rows_of_a_queue_that_has_gone_take_nothing_of_the_rate(lab: Any) -> None:
    lab.topic()
    lab.send(5)
    limiter = RateLimiter(10, clock=lab.clock)
    consumer = lab.arrow(rate_limiter=limiter, consume_message_batch_max_size=5)
    consumer._timer_round()
    consumer._pull_round()
    (assignment,) = consumer._rebalance.assignments()
    assert assignment.process_queue.count == 5
    assignment.process_queue.dropped = True
    consumer._executor.run_ready()
    assert (limiter.wait_ms(1), lab.seen) == (0, [])
