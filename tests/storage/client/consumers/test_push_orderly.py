"""Ordered listeners: one batch of a queue at a time, repeated in place until done (ConsumeMessageOrderlyService)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rmq_store.client.consume_service.consume_orderly import CONTINUOUS_MS_MAX
from rmq_store.client.consume_service.listener import ConsumeOrderlyStatus
from rmq_store.client.group.consumer_config import PushConsumerConfig
from rmq_store.client.group.rate_limiter import RateLimiter
from rmq_store.protocol.errors import RemotingConnectError
from rmq_store.protocol.messages import MessageExt

SUCCESS, ROLLBACK, COMMIT, SUSPEND = (
    ConsumeOrderlyStatus.SUCCESS,
    ConsumeOrderlyStatus.ROLLBACK,
    ConsumeOrderlyStatus.COMMIT,
    ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT,
)
TOPIC, GROUP = "Orders", "cg_orders"
RETRY, DLQ = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"


def times_of(lab: Any, body: str) -> list[int]:
    return [each.at_ms - lab.seen[0].at_ms for each in lab.seen if each.body == body]


def raise_error(messages: Sequence[MessageExt], context: Any) -> None:
    raise ValueError("broken")


@pytest.mark.parametrize(
    "answer",
    [lambda messages, context: SUSPEND, lambda messages, context: "none", raise_error, lambda messages, context: True],
    ids=["SUSPEND", "None", "exception", "nonsense"],
)
@pytest.mark.statement("B12", "B01", "B02")
def test_a_failed_message_is_repeated_in_place_and_blocks_its_queue_only(lab: Any, answer: Any) -> None:
    """B12: retried until success, 1000 ms apart by default; other queues go on; nothing is sent anywhere."""
    lab.topic(queues=2)
    lab.send(3, queue=0)
    lab.send(2, queue=1)
    good_at_ms = lab.now_ms + 3000

    def fail_for_a_while(messages: Sequence[MessageExt], context: Any) -> Any:
        is_bad = messages[0].body == b"m0" and lab.now_ms < good_at_ms
        return answer(messages, context) if is_bad else None

    lab.ordered(fail_for_a_while)
    lab.settle()
    assert sorted(lab.bodies()) == ["m0", "m3", "m4"]
    for _ in range(30):
        lab.advance(100)
    assert times_of(lab, "m0") == [0, 1000, 2000, 3000]
    assert [each.body for each in lab.seen if each.queue_id == 0] == ["m0", "m0", "m0", "m0", "m1", "m2"]
    assert [each.reconsume_times for each in lab.seen if each.body == "m0"] == [0, 1, 2, 3]
    assert RETRY not in lab.store.topics()


@pytest.mark.statement("B12", "B13")
@pytest.mark.parametrize(
    ("of_consumer", "of_context", "gap_ms"),
    [
        (1000, -1, 1000), (3000, -1, 3000), (1, -1, 10), (60_000, -1, 30_000),
        (1000, 500, 500), (1000, 5, 10), (1000, 90_000, 30_000),
    ],
)
def test_the_pause_is_settable_within_10_and_30000_ms(lab: Any, of_consumer: int, of_context: int, gap_ms: int) -> None:
    """B12: suspendCurrentQueueTimeMillis 10..30000. B13: FIFO consumers of 5.x 3 s."""
    lab.topic()
    lab.send(1)

    def answer(messages: Sequence[MessageExt], context: Any) -> Any:
        context.suspend_current_queue_time_millis = of_context
        return SUSPEND

    lab.ordered(answer, suspend_current_queue_time_millis=of_consumer)
    lab.settle()
    lab.advance(gap_ms - 1)
    assert len(lab.seen) == 1
    lab.advance(1)
    assert len(lab.seen) == 2


def test_the_default_pause_is_one_second_and_the_default_maximum_endless() -> None:
    """The defaults of DefaultMQPushConsumer."""
    config = PushConsumerConfig()
    assert (config.suspend_current_queue_time_millis, config.max_reconsume_times) == (1000, -1)


@pytest.mark.statement("B12")
def test_without_a_maximum_it_is_repeated_without_end(lab: Any) -> None:
    """B12: the retries never stop: whoever consumes in order must watch for failures."""
    lab.topic()
    lab.send(2)
    lab.ordered(lambda messages, context: SUSPEND)
    lab.settle()
    for _ in range(500):
        lab.advance(1000)
    assert set(lab.bodies()) == {"m0"}
    assert (len(lab.seen), lab.seen[-1].reconsume_times) == (501, 500)
    assert DLQ not in lab.store.topics()


@pytest.mark.statement("B12")
def test_an_exhausted_message_becomes_a_dead_letter_and_the_queue_goes_on_at_once(lab: Any) -> None:
    """checkReconsumeTimes: max 2, suspend 1000 ms: deliveries at t, t+1 s, t+2 s, then the next message at once,
    and one record in the DLQ, with the properties that a real 5.5.0 broker's store has (golden, %DLQ%cg_fifo).
    """
    lab.topic()
    lab.send(2, tags="F")
    consumer = lab.ordered(
        lambda messages, context: SUSPEND if messages[0].body == b"m0" else None, max_reconsume_times=2
    )
    lab.settle()
    for _ in range(30):
        lab.advance(100)
    assert times_of(lab, "m0") == [0, 1000, 2000]
    assert times_of(lab, "m1") == [2000]
    (dead,) = lab.read(DLQ)
    assert (dead["body"], dead["reconsumeTimes"]) == (b"m0", 3)
    properties = dead["properties"]
    assert properties["RECONSUME_TIME"] == "3"
    assert properties["MAX_RECONSUME_TIMES"] == "2"
    assert properties["RETRY_TOPIC"] == TOPIC
    assert properties["ORIGIN_MESSAGE_ID"] == properties["UNIQ_KEY"] == lab.seen[0].properties["UNIQ_KEY"]
    assert (properties["MIN_OFFSET"], properties["MAX_OFFSET"]) == ("0", "2")
    assert "CONSUME_START_TIME" not in properties
    assert lab.read(RETRY) == []
    consumer.shutdown()
    assert lab.committed() == 2


def test_a_message_that_no_broker_takes_is_repeated(lab: Any) -> None:
    """ConsumeMessageOrderlyService#checkReconsumeTimes: the send fails, so the queue is suspended."""
    lab.topic()
    lab.send(2)

    class Refusing:
        down = True

        def __getattr__(self, name: str) -> Any:
            return getattr(lab.backend, name)

        def brokers(self) -> Any:
            return {name: Broker(broker) for name, broker in lab.backend.brokers().items()}

    class Broker:
        def __init__(self, broker: Any) -> None:
            self._broker = broker

        def __getattr__(self, name: str) -> Any:
            return getattr(self._broker, name)

        def send_to_retry(self, *arguments: Any) -> None:
            if backend.down:
                raise RemotingConnectError("gone")
            self._broker.send_to_retry(*arguments)

    backend = Refusing()
    lab.ordered(
        lambda messages, context: SUSPEND if messages[0].body == b"m0" else None, max_reconsume_times=0, backend=backend
    )
    lab.settle()
    lab.advance(1000)
    assert [each.reconsume_times for each in lab.seen] == [0, 1]
    backend.down = False
    lab.advance(1000)
    assert lab.bodies() == ["m0", "m0", "m0", "m1"]
    assert [row["reconsumeTimes"] for row in lab.read(DLQ)] == [3]


def test_an_exhausted_message_of_a_batch_is_sent_away_once_while_the_rest_is_repeated(lab: Any) -> None:
    """Java puts the whole batch back and sends the exhausted message again at every repetition; here it is gone."""
    lab.topic()
    lab.send(1)
    lab.ordered(lambda messages, context: SUSPEND, max_reconsume_times=1, consume_message_batch_max_size=2)
    lab.settle()
    lab.send(1)
    lab.advance(1000)
    lab.advance(1000)
    assert lab.bodies() == ["m0", "m0", "m1", "m1"]
    assert [row["body"] for row in lab.read(DLQ)] == [b"m0", b"m1"]


def test_a_rollback_does_not_bring_back_what_was_sent_away(lab: Any) -> None:
    """autoCommit False: m0 is a dead letter since the batch of both was suspended; only m1 is rolled back."""
    lab.topic()
    lab.send(1)
    answers = iter([SUSPEND, SUSPEND, ROLLBACK, COMMIT])

    def answer(messages: Sequence[MessageExt], context: Any) -> Any:
        context.auto_commit = False
        return next(answers)

    consumer = lab.ordered(answer, max_reconsume_times=1, consume_message_batch_max_size=2)
    lab.settle()
    lab.send(1)
    for _ in range(3):
        lab.advance(1000)
    assert lab.bodies() == ["m0", "m0", "m1", "m1", "m1"]
    assert [row["body"] for row in lab.read(DLQ)] == [b"m0"]
    consumer.persist_consumer_offset()
    assert lab.committed() == 2


@pytest.mark.parametrize("status", [SUCCESS, COMMIT, ROLLBACK])
def test_with_auto_commit_everything_but_suspend_moves_the_offset(lab: Any, status: ConsumeOrderlyStatus) -> None:
    """processConsumeResult with autoCommit=true."""
    lab.topic()
    lab.send(3)
    consumer = lab.ordered(lambda messages, context: status)
    lab.settle()
    assert lab.bodies() == ["m0", "m1", "m2"]
    consumer.persist_consumer_offset()
    assert lab.committed() == 3


def test_without_auto_commit_only_commit_moves_the_offset_and_rollback_repeats_all_since(lab: Any) -> None:
    """processConsumeResult with autoCommit=false."""
    lab.topic()
    lab.send(5)
    answers = iter([SUCCESS, SUCCESS, COMMIT, SUCCESS, ROLLBACK, SUCCESS, COMMIT])

    def answer(messages: Sequence[MessageExt], context: Any) -> Any:
        context.auto_commit = False
        return next(answers)

    consumer = lab.ordered(answer)
    lab.settle()
    assert lab.bodies() == ["m0", "m1", "m2", "m3", "m4"]
    consumer.persist_consumer_offset()
    assert lab.committed() == 3
    lab.advance(999)
    assert len(lab.seen) == 5
    lab.advance(1)
    assert lab.bodies()[5:] == ["m3", "m4"]
    consumer.persist_consumer_offset()
    assert lab.committed() == 5


def test_without_auto_commit_a_suspended_batch_is_repeated_alone(lab: Any) -> None:
    """processConsumeResult: SUSPEND is the same with and without autoCommit; what was taken before stays taken."""
    lab.topic()
    lab.send(2)
    answers = iter([SUCCESS, SUSPEND, COMMIT])

    def answer(messages: Sequence[MessageExt], context: Any) -> Any:
        context.auto_commit = False
        return next(answers)

    consumer = lab.ordered(answer)
    lab.settle()
    lab.advance(1000)
    assert lab.bodies() == ["m0", "m1", "m1"]
    consumer.persist_consumer_offset()
    assert lab.committed() == 2


def test_one_run_of_a_queue_lasts_a_minute_at_most(lab: Any) -> None:
    """MAX_TIME_CONSUME_CONTINUOUSLY: one continuous run at most 60 s; then other queues get the thread."""
    lab.topic(queues=2)
    lab.send(4, queue=0)
    lab.send(1, queue=1)

    def slow(messages: Sequence[MessageExt], context: Any) -> None:
        lab.now_ms += CONTINUOUS_MS_MAX // 2 + 1

    lab.ordered(slow)
    lab.settle()
    assert lab.bodies() == ["m0", "m1", "m4", "m2", "m3"]


@pytest.mark.statement("B12")
def test_a_new_member_starts_to_count_anew(lab: Any) -> None:
    """checkReconsumeTimes: reconsumeTimes of ordered messages lives in the client."""
    lab.topic()
    lab.send(1)
    first = lab.ordered(lambda messages, context: SUSPEND, max_reconsume_times=5)
    lab.settle()
    lab.advance(1000)
    lab.advance(1000)
    first.shutdown()
    second = lab.ordered(lambda messages, context: None, client_id="c2")
    lab.settle(second)
    assert [each.reconsume_times for each in lab.seen] == [0, 1, 2, 0]


def test_ordered_messages_above_the_rate_wait(lab: Any) -> None:
    """B16: throttle before the listener, in order too."""
    lab.topic()
    lab.send(5)
    lab.ordered(rate_limiter=RateLimiter(10, clock=lab.clock))
    lab.settle()
    for _ in range(4):
        lab.advance(100)
    assert [(each.body, each.at_ms - lab.seen[0].at_ms) for each in lab.seen] == [
        (f"m{number}", number * 100) for number in range(5)
    ]
