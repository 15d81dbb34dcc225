"""Rows that failed, or took too long: how they go back, and what stays when nobody takes them."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmq_store import Message
from rmq_store.client.consume_service.listener import ConsumeConcurrentlyStatus
from rmq_store.client.group.consumer_config import ConsumeFromWhere, MessageModel
from rmq_store.client.group.rate_limiter import RateLimiter
from rmq_store.format.tables.schema import MESSAGE_SCHEMA
from rmq_store.protocol.errors import MQBrokerError
from rmq_store.protocol.messages import MessageExt

LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER
SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
TOPIC, GROUP = "Orders", "cg_orders"
RETRY, DLQ = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"
MINUTE_MS = 60_000


def bodies_of(batch: pa.RecordBatch) -> list[str]:
    return [body.decode() for body in batch.column("body").to_pylist()]


def fails_once(batch: pa.RecordBatch, context: Any) -> Any:
    return None if batch.column("reconsumeTimes")[0].as_py() else LATER


class Refusing:
    """A backend whose brokers refuse to take rows back together, and to take back messages with certain bodies."""

    def __init__(self, backend: Any, *bodies: str) -> None:
        self._backend = backend
        self.bodies = set(bodies)
        self.together = True
        self.calls: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def brokers(self) -> Any:
        return {name: _Broker(self, broker) for name, broker in self._backend.brokers().items()}


class _Broker:
    def __init__(self, owner: Refusing, broker: Any) -> None:
        self._owner, self._broker = owner, broker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    def send_messages_back(self, group: str, rows: pa.RecordBatch, *arguments: Any) -> None:
        self._note("together", ",".join(bodies_of(rows)), self._owner.together)
        self._broker.send_messages_back(group, rows, *arguments)

    def send_message_back(self, group: str, message: MessageExt, *arguments: Any) -> None:
        body = message.body.decode()
        self._note("back", body, body in self._owner.bodies)
        self._broker.send_message_back(group, message, *arguments)

    def send_to_retry(self, group: str, message: Message, *arguments: Any) -> None:
        body = message.body.decode()
        self._note("retry", body, body in self._owner.bodies)
        self._broker.send_to_retry(group, message, *arguments)

    def _note(self, what: str, body: str, refused: bool) -> None:
        self._owner.calls.append((what, body))
        if refused:
            raise MQBrokerError(1, "refused")


# -- failed rows -------------------------------------------------------------------------------------------------------


@pytest.mark.statement("C02")
@pytest.mark.parametrize(("level", "gap_ms", "dead"), [(1, 1000, 0), (np.int64(5), 60_000, 0), (-1, None, 2)])
def test_the_listener_chooses_the_delay_level_of_failed_rows(
    lab: Any, level: Any, gap_ms: int | None, dead: int
) -> None:
    lab.topic()
    lab.send(2)

    def answer(batch: pa.RecordBatch, context: Any) -> Any:
        context.delay_level_when_next_consume = level
        return fails_once(batch, context)

    lab.arrow(answer, consume_message_batch_max_size=2)
    lab.settle()
    if gap_ms is not None:
        lab.advance(gap_ms - 1)
        assert len(lab.seen) == 2
        lab.advance(1)
        assert len(lab.seen) == 4
    assert len(lab.read(DLQ)) == dead


@pytest.mark.statement("B05", "B09", "D01")
@pytest.mark.parametrize("maximum", [0, 1, 3])
def test_a_maximum_of_n_retries_means_n_plus_one_deliveries(lab: Any, maximum: int) -> None:
    lab.topic()
    lab.send(2)
    lab.arrow(lambda batch, context: LATER, max_reconsume_times=maximum, consume_message_batch_max_size=2)
    assert lab.store.groups()[GROUP].retry_max_times == maximum
    lab.settle()
    for gap_s in (10, 30, 60, 120)[: maximum + 1]:
        lab.advance(gap_s * 1000)
    times = [each.reconsume_times for each in lab.seen if each.body == "m1"]
    assert times == list(range(maximum + 1))
    assert [row["reconsumeTimes"] for row in lab.read(DLQ)] == [maximum + 1] * 2


@pytest.mark.statement("B10", "C02")
@pytest.mark.parametrize(("own", "dead"), [(0, 2), (-1, 0)])
def test_the_maximum_of_the_consumer_goes_with_its_rows(lab: Any, own: int, dead: int) -> None:
    """Whatever the group's is by now; -1: the group's."""
    lab.topic()
    lab.send(2)
    lab.arrow(lambda batch, context: LATER, max_reconsume_times=own, consume_message_batch_max_size=2)
    lab.store.retry.set_max_reconsume_times(GROUP, 5)
    lab.settle()
    assert len(lab.read(DLQ)) == dead


@pytest.mark.statement("C09")
def test_a_retried_row_shows_its_own_topic_and_the_place_of_its_retry_record(lab: Any) -> None:
    """resetRetryAndNamespace: topic reset, queue id and offset those of the retry topic, UNIQ_KEY constant."""
    lab.topic(queues=3)
    lab.send(1, queue=2)
    batches: list[pa.RecordBatch] = []

    def keep(batch: pa.RecordBatch, context: Any) -> Any:
        batches.append(batch)
        return fails_once(batch, context)

    consumer = lab.arrow(keep)
    lab.settle()
    lab.advance(10_000)
    first, second = lab.seen
    assert (second.topic, second.queue_id, second.queue_offset, second.reconsume_times) == (TOPIC, 0, 0, 1)
    assert second.properties["UNIQ_KEY"] == first.properties["UNIQ_KEY"]
    assert second.properties["RETRY_TOPIC"] == TOPIC
    assert batches[1].schema == MESSAGE_SCHEMA
    consumer.shutdown()
    assert lab.committed(topic=RETRY) == 1


def test_a_retry_record_without_its_own_topic_shows_the_retry_topic(lab: Any) -> None:
    """resetRetryAndNamespace: only what RETRY_TOPIC says is put back; other properties of its row do not matter."""
    lab.store.create_topic(RETRY, queue_count=1)
    for properties in ({"RETRY_TOPIC": "A"}, {"own": "p"}, {"own": "p", "RETRY_TOPIC": "B"}):
        lab.store.send(Message(RETRY, b"x", properties=properties, queue_id=0), as_given=True)
    lab.topic()
    lab.store.send(Message(TOPIC, b"x", properties={"RETRY_TOPIC": "A"}, queue_id=0), as_given=True)
    lab.arrow(consume_message_batch_max_size=32)
    lab.settle()
    assert [each.topic for each in lab.seen] == ["A", RETRY, "B", TOPIC]


def test_failed_rows_are_sent_back_together(lab: Any) -> None:
    """One append for all of them, and one fsync under SYNC_FLUSH."""
    lab.topic()
    lab.send(100)
    backend = Refusing(lab.backend)
    backend.together = False

    def half(batch: pa.RecordBatch, context: Any) -> Any:
        context.ack_index = 49
        return SUCCESS

    lab.arrow(half, consume_message_batch_max_size=100, pull_batch_size=100, backend=backend)
    lab.settle()
    assert backend.calls == [("together", ",".join(f"m{number}" for number in range(50, 100)))]


@pytest.mark.statement("C01", "C02")
def test_rows_that_are_not_taken_back_together_are_sent_back_one_by_one(lab: Any) -> None:
    """Each as an object would be: back to its broker, else as an ordinary message to the retry topic."""
    lab.topic()
    lab.send(3)
    backend = Refusing(lab.backend)
    lab.arrow(fails_once, consume_message_batch_max_size=3, backend=backend)
    lab.settle()
    assert backend.calls == [("together", "m0,m1,m2"), ("back", "m0"), ("back", "m1"), ("back", "m2")]
    lab.advance(10_000)
    assert sorted((each.body, each.topic, each.reconsume_times) for each in lab.seen[3:]) == [
        (f"m{number}", TOPIC, 1) for number in range(3)
    ]


@pytest.mark.statement("C01")
def test_a_row_that_nobody_takes_back_comes_again_after_five_seconds_and_holds_the_progress(lab: Any) -> None:
    """C01: its reconsumeTimes grows and it is submitted again later; the others of its batch are not."""
    lab.topic()
    lab.send(6)
    backend = Refusing(lab.backend, "m2", "m4")

    def answer(batch: pa.RecordBatch, context: Any) -> Any:
        context.ack_index = 0
        return LATER if batch.column("reconsumeTimes")[0].as_py() == 1 else SUCCESS

    def kept() -> list[tuple[str, int]]:
        return [(each.body, each.reconsume_times) for each in lab.seen if each.body in ("m2", "m4")]

    def progress() -> int | None:
        consumer.persist_consumer_offset()
        found: int | None = lab.committed()
        return found

    consumer = lab.arrow(answer, consume_message_batch_max_size=5, backend=backend)
    lab.settle()
    lab.advance(4_999)
    assert lab.bodies() == ["m0", "m1", "m2", "m3", "m4", "m5"]
    assert progress() == 2
    lab.advance(1)
    assert (kept()[2:], len(lab.seen), progress()) == ([("m2", 1), ("m4", 1)], 8, 2)
    assert lab.seen[-1].topic == TOPIC
    lab.advance(5_000)
    assert (kept()[4:], progress()) == ([("m2", 2), ("m4", 2)], 4)
    lab.advance(5_000)
    assert (kept()[6:], progress()) == ([("m4", 3)], 6)
    assert consumer._rebalance.assignments()[0].process_queue.count == 0


@pytest.mark.statement("B11")
def test_broadcasting_drops_failed_rows_and_goes_on(lab: Any, tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    """B11: no retry in broadcasting; no retry topic is subscribed."""
    lab.topic()
    lab.send(4)

    def answer(batch: pa.RecordBatch, context: Any) -> Any:
        context.ack_index = 0
        return SUCCESS

    consumer = lab.arrow(
        answer,
        consume_message_batch_max_size=2,
        message_model=MessageModel.BROADCASTING,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        offset_store_directory=tmp_path,
    )
    with caplog.at_level(logging.WARNING):
        lab.settle()
    dropped = [record.getMessage() for record in caplog.records if "broadcasting" in record.getMessage()]
    assert ["messages 1 to 1 of" in text for text in dropped] == [True, False]
    lab.advance(100_000_000)
    assert lab.bodies() == ["m0", "m1", "m2", "m3"]
    assert RETRY not in lab.store.topics()
    consumer.shutdown()
    assert lab.committed() is None
    assert b":4" in (tmp_path / "c1" / GROUP / "offsets.json").read_bytes()


# -- a listener that takes too long ------------------------------------------------------------------------------------


def slow_once(lab: Any, begun: str, answer: Any = None) -> Any:
    """A listener in whose batch, when it begins with `begun`, sixteen minutes pass and the timers run."""

    def consume(batch: pa.RecordBatch, context: Any) -> Any:
        if bodies_of(batch)[0] == begun and not batch.column("reconsumeTimes")[0].as_py():
            lab.now_ms += 16 * MINUTE_MS
            lab.consumers[0]._membership.run_due()
            return answer
        return None

    return consume


@pytest.mark.statement("B01")
@pytest.mark.parametrize("answer", [LATER, None])
def test_a_listener_that_takes_too_long_loses_its_batch_to_a_retry(lab: Any, answer: Any) -> None:
    """ProcessQueue#cleanExpiredMsg: delay level 3. The whole batch, for all of it was given out at one time;
    what the listener then says changes nothing.
    """
    lab.topic()
    lab.send(40)
    lab.arrow(slow_once(lab, "m0", answer), consume_message_batch_max_size=20)
    lab.settle()
    assert lab.bodies() == [f"m{number}" for number in range(40)]
    lab.advance(9_999)
    assert len(lab.seen) == 40
    lab.advance(1)
    assert sorted(each.body for each in lab.seen[40:] if each.reconsume_times == 1) == sorted(
        f"m{number}" for number in range(20)
    )
    lab.consumers[0].shutdown()
    assert lab.committed() == 40
    assert len(lab.read(RETRY)) == 20


def test_the_time_of_a_batch_is_the_consumers_and_not_over_a_moment_before(lab: Any) -> None:
    lab.topic()
    lab.send(1)

    def slow(batch: pa.RecordBatch, context: Any) -> Any:
        lab.now_ms += 2 * MINUTE_MS
        lab.consumers[0]._pulls._service.clean_expired(lab.consumers[0]._rebalance.assignments())
        return None

    lab.arrow(slow, consume_timeout=2)
    lab.settle()
    assert RETRY not in lab.store.topics()


def test_broadcasting_sends_nothing_back_however_long_it_takes(lab: Any, tmp_path: Any) -> None:
    lab.topic()
    lab.send(2)
    lab.arrow(
        slow_once(lab, "m0"), message_model=MessageModel.BROADCASTING, offset_store_directory=tmp_path,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )  # fmt: skip
    lab.settle()
    assert lab.bodies() == ["m0", "m1"]
    assert RETRY not in lab.store.topics()


@pytest.mark.statement("B01")
@pytest.mark.parametrize(("counts", "sent_back"), [(True, 17), (False, 1)])
def test_time_in_the_queue_counts_for_the_timeout_if_asked_for(lab: Any, counts: bool, sent_back: int) -> None:
    """5.x clients count from the pull on. Sixteen batches of a queue are sent back at each look, and the seventeenth
    at the next.
    """
    lab.topic()
    lab.send(17)

    def slow(batch: pa.RecordBatch, context: Any) -> Any:
        if batch.column("reconsumeTimes")[0].as_py() == 0 and bodies_of(batch) == ["m0"]:
            lab.now_ms += 16 * MINUTE_MS
            consumer._membership.run_due()
            looks.append(consumer._rebalance.assignments()[0].process_queue.count)
            lab.now_ms += 16 * MINUTE_MS
            consumer._membership.run_due()
        return None

    looks: list[int] = []
    consumer = lab.arrow(slow, consume_timeout_includes_queueing=counts)
    lab.settle()
    assert looks == ([1] if counts else [16])
    lab.advance(10_000)
    assert sum(each.reconsume_times == 1 for each in lab.seen) == sent_back
    assert len(lab.seen) == 18


@pytest.mark.parametrize(("counts", "sent_back"), [(True, ["m1"]), (False, [])])
def test_time_in_the_queue_and_at_the_listener_are_added_if_asked_for(
    lab: Any, counts: bool, sent_back: list[str]
) -> None:
    """Ten minutes in the queue and ten at the listener are more than fifteen from the pull on."""
    lab.topic()
    lab.send(2)

    def slow(batch: pa.RecordBatch, context: Any) -> Any:
        if not batch.column("reconsumeTimes")[0].as_py():
            lab.now_ms += 10 * MINUTE_MS
            consumer._pulls._service.clean_expired(consumer._rebalance.assignments())
        return None

    consumer = lab.arrow(slow, consume_timeout_includes_queueing=counts)
    lab.settle()
    lab.advance(10_000)
    assert [each.body for each in lab.seen if each.reconsume_times] == sent_back


def test_a_batch_that_is_sent_back_while_it_waits_for_its_rate_does_not_reach_the_listener(lab: Any) -> None:
    lab.topic()
    lab.send(4)
    limiter = RateLimiter(0.001, clock=lab.clock)
    consumer = lab.arrow(
        rate_limiter=limiter, consume_message_batch_max_size=2, consume_timeout_includes_queueing=True
    )
    lab.settle()
    lab.advance(16 * MINUTE_MS)
    assert lab.bodies() == ["m0", "m1"]
    lab.advance(17 * MINUTE_MS + 20_000)
    assert lab.bodies() == ["m0", "m1"]
    assert sorted(row["body"] for row in lab.read(RETRY)) == [b"m2", b"m3"]
    assert consumer.failure is None


def test_of_a_batch_that_took_too_long_only_what_was_sent_back_is_done(lab: Any) -> None:
    """One row is refused then: it stays with its listener, whose answer counts for this row and for no other."""
    lab.topic()
    lab.send(3)
    backend = Refusing(lab.backend, "m1")

    def slow(batch: pa.RecordBatch, context: Any) -> Any:
        if len(lab.seen) == 3:
            lab.now_ms += 16 * MINUTE_MS
            lab.consumers[0]._membership.run_due()
            assert sorted(backend.calls[1:]) == [("back", "m0"), ("back", "m1"), ("back", "m2"), ("retry", "m1")]
            assert lab.consumers[0]._rebalance.assignments()[0].process_queue.count == 1
            lab.consumers[0].persist_consumer_offset()
            assert lab.committed() == 1
            backend.calls.clear()
            backend.bodies.clear()
            return LATER
        return None

    consumer = lab.arrow(slow, consume_message_batch_max_size=3, backend=backend)
    lab.settle()
    assert backend.calls == [("together", "m1"), ("back", "m1")]
    lab.advance(10_000)
    assert sorted(each.body for each in lab.seen[3:]) == ["m0", "m1", "m2"]
    consumer.shutdown()
    assert lab.committed() == 3
