"""Concurrent listeners: what their answers do to messages and to the progress (ConsumeMessageConcurrentlyService)."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import pytest

from rmq_store.client.consume_service.listener import ConsumeConcurrentlyStatus
from rmq_store.client.group.consumer_config import ConsumeFromWhere, MessageModel
from rmq_store.client.group.rate_limiter import RateLimiter
from rmq_store.files import durable
from rmq_store.protocol.errors import MQBrokerError, RemotingConnectError
from rmq_store.protocol.messages import MessageExt

LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER
SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
TOPIC, GROUP = "Orders", "cg_orders"
RETRY, DLQ = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"
# The gaps of B06.
LADDER_S = [10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]


@pytest.mark.statement("G18")
def test_messages_are_consumed_once_and_the_progress_is_stored_at_shutdown(lab: Any) -> None:
    """G18: what is consumed stays in the store, and the position decides what comes next."""
    lab.topic()
    lab.send(100)
    consumer = lab.concurrent()
    lab.settle()
    assert lab.bodies() == [f"m{number}" for number in range(100)]
    assert lab.committed() is None
    consumer.shutdown()
    assert lab.committed() == 100

    lab.concurrent(client_id="c2")
    lab.settle(lab.consumers[-1])
    assert len(lab.seen) == 100
    assert len(lab.read(TOPIC)) == 100


@pytest.mark.statement("G10")
def test_the_progress_is_stored_after_ten_seconds_and_then_every_five(lab: Any) -> None:
    """MQClientInstance: persistConsumerOffsetInterval 5 s, first after 10 s."""
    lab.topic()
    lab.send(3)
    lab.concurrent()
    lab.settle()
    lab.advance(9_999)
    assert lab.committed() is None
    lab.advance(1)
    assert lab.committed() == 3
    lab.send(1)
    lab.advance(4_999)
    assert lab.committed() == 3
    lab.advance(1)
    assert lab.committed() == 4


def raise_error(messages: Sequence[MessageExt], context: Any) -> None:
    raise ValueError("the database is down")


@pytest.mark.parametrize(
    "answer",
    [lambda messages, context: LATER, lambda messages, context: "none", raise_error, lambda messages, context: "yes"],
    ids=["RECONSUME_LATER", "None", "exception", "nonsense"],
)
@pytest.mark.statement("B01", "B02", "B03", "B04", "C08", "C09", "B14")
def test_a_failed_message_comes_again_under_its_own_topic_after_ten_seconds(lab: Any, answer: Any) -> None:
    """B02: the three ways to ask for a retry. The retry topic is subscribed by itself, and the listener sees
    the original topic; the copy in the retry topic is a new record.
    """
    lab.topic()
    lab.send(1)
    consumer = lab.concurrent(lambda messages, context: answer(messages, context) if len(lab.seen) == 1 else None)
    lab.settle()
    lab.advance(9_999)
    assert [(each.topic, each.reconsume_times) for each in lab.seen] == [(TOPIC, 0)]
    lab.advance(1)
    assert [(each.topic, each.reconsume_times) for each in lab.seen] == [(TOPIC, 0), (TOPIC, 1)]
    lab.advance(100_000_000)
    assert len(lab.seen) == 2
    consumer.shutdown()
    assert (lab.committed(), lab.committed(topic=RETRY)) == (1, 1)
    assert [row["body"] for row in lab.read(TOPIC) + lab.read(RETRY)] == [b"m0", b"m0"]


@pytest.mark.statement("B02")
def test_success_after_a_caught_exception_means_no_retry(lab: Any) -> None:
    """B02, last part."""
    lab.topic()
    lab.send(1)

    def swallow(messages: Sequence[MessageExt], context: Any) -> ConsumeConcurrentlyStatus:
        try:
            raise ValueError("broken")
        except ValueError:
            return SUCCESS

    lab.concurrent(swallow)
    lab.settle()
    lab.advance(100_000_000)
    assert len(lab.seen) == 1
    assert RETRY not in lab.store.topics()


@pytest.mark.statement("B05", "B06", "B08", "B03", "D01")
def test_sixteen_retries_by_the_ladder_and_then_the_dead_letters(lab: Any) -> None:
    """B06, B08: gaps 10 s ... 2 h; the 16th retry 4 h 45 min 40 s after the first delivery; then the DLQ."""
    lab.topic()
    lab.send(1)
    consumer = lab.concurrent(lambda messages, context: LATER)
    lab.settle()
    for gap_s in LADDER_S:
        deliveries = len(lab.seen)
        lab.advance(gap_s * 1000 - 1)
        assert len(lab.seen) == deliveries, f"too early for the gap of {gap_s} s"
        lab.advance(1)
        assert len(lab.seen) == deliveries + 1
    assert [each.reconsume_times for each in lab.seen] == list(range(17))
    assert lab.seen[-1].at_ms - lab.seen[0].at_ms == 17_140_000
    lab.advance(10 * 7_200_000)
    assert len(lab.seen) == 17
    dead = lab.read(DLQ)
    assert [(row["body"], row["reconsumeTimes"]) for row in dead] == [(b"m0", 17)]
    assert dead[0]["properties"]["RETRY_TOPIC"] == TOPIC
    consumer.shutdown()
    assert lab.committed(topic=RETRY) == 16


@pytest.mark.statement("B05", "B09")
@pytest.mark.parametrize("maximum", [0, 1, 3])
def test_a_maximum_of_n_retries_means_n_plus_one_deliveries(lab: Any, maximum: int) -> None:
    """B05: "if the maximum number of retries is 3, the message can be delivered up to 4 times"."""
    lab.topic()
    lab.send(1)
    lab.concurrent(lambda messages, context: LATER, max_reconsume_times=maximum)
    lab.settle()
    for gap_s in LADDER_S[: maximum + 2]:
        lab.advance(gap_s * 1000)
    gaps_ms = [second.at_ms - first.at_ms for first, second in zip(lab.seen, lab.seen[1:], strict=False)]
    assert gaps_ms == [gap_s * 1000 for gap_s in LADDER_S[:maximum]]
    assert [row["reconsumeTimes"] for row in lab.read(DLQ)] == [maximum + 1]


@pytest.mark.statement("B07")
def test_more_than_sixteen_retries_are_two_hours_apart(lab: Any) -> None:
    """B07: above 16 each further gap is 2 h."""
    lab.topic()
    lab.send(1)
    lab.concurrent(lambda messages, context: LATER, max_reconsume_times=18)
    lab.settle()
    for gap_s in [*LADDER_S, 7200, 7200, 7200]:
        lab.advance(gap_s * 1000)
    gaps_s = [(b.at_ms - a.at_ms) // 1000 for a, b in zip(lab.seen, lab.seen[1:], strict=False)]
    assert gaps_s == [*LADDER_S, 7200, 7200]
    assert len(lab.read(DLQ)) == 1


@pytest.mark.statement("B10")
def test_the_maximum_of_one_consumer_holds_for_its_group_and_the_last_one_wins(lab: Any) -> None:
    """B10: stored in the group's settings."""
    lab.topic()
    lab.send(1)
    plain = lab.concurrent(lambda messages, context: LATER, client_id="c1")
    other = lab.concurrent(client_id="c2", max_reconsume_times=5)
    other.shutdown()
    latest = lab.concurrent(client_id="c3", max_reconsume_times=1)
    latest.shutdown()
    assert lab.store.groups()[GROUP].retry_max_times == 1
    lab.advance(1000, plain)
    lab.advance(10_000, plain)
    assert [each.reconsume_times for each in lab.seen] == [0, 1]
    assert len(lab.read(DLQ)) == 1


@pytest.mark.statement("B11")
def test_broadcasting_drops_failed_messages_and_goes_on(lab: Any, tmp_path: Any) -> None:
    """B11: no retry in broadcasting; the next messages are consumed. No retry topic is subscribed."""
    lab.topic()
    lab.send(3)
    consumer = lab.concurrent(
        lambda messages, context: LATER if messages[0].body == b"m1" else None,
        message_model=MessageModel.BROADCASTING,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        offset_store_directory=tmp_path,
    )
    lab.settle()
    lab.advance(100_000_000)
    assert lab.bodies() == ["m0", "m1", "m2"]
    assert RETRY not in lab.store.topics()
    consumer.shutdown()
    assert lab.committed() is None
    assert (tmp_path / "c1" / GROUP / "offsets.json").exists()


def test_a_broadcasting_consumer_outlives_a_disk_that_is_full_for_a_while(
    lab: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LocalFileOffsetStore#persistAll logs what it cannot write; the file comes with the next attempt."""
    lab.topic()
    lab.send(1)
    lab.concurrent(message_model=MessageModel.BROADCASTING, offset_store_directory=tmp_path)

    def refuse(operation: str, path: str) -> None:
        if operation == "write" and path.startswith(str(tmp_path)):
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(durable, "hook", refuse)
        lab.settle()
        for _ in range(3):
            lab.advance(10_000)
        assert not (tmp_path / "c1" / GROUP / "offsets.json").exists()
    lab.advance(5000)
    assert b":1" in (tmp_path / "c1" / GROUP / "offsets.json").read_bytes()


def test_every_broadcasting_consumer_gets_everything_and_goes_on_where_it_was(lab: Any, tmp_path: Any) -> None:
    """LocalFileOffsetStore: the offsets of a broadcasting consumer are in a file of its own."""
    lab.topic(queues=2)
    settings = {"message_model": MessageModel.BROADCASTING, "offset_store_directory": tmp_path}
    for client_id in ("c1", "c2"):
        lab.concurrent(client_id=client_id, **settings)
    lab.send(2, queue=0)
    lab.send(2, queue=1)
    lab.settle()
    assert sorted((each.client_id, each.body) for each in lab.seen) == [
        (client_id, f"m{number}") for client_id in ("c1", "c2") for number in range(4)
    ]
    lab.consumers[0].shutdown()
    lab.send(1)
    lab.seen.clear()
    lab.concurrent(client_id="c1", **settings)
    lab.settle(lab.consumers[-1])
    assert lab.bodies() == ["m4"]


@pytest.mark.statement("B15")
def test_the_listener_gets_one_message_unless_it_asks_for_more(lab: Any) -> None:
    """B15: the unit of success is the batch of the listener. consumeMessageBatchMaxSize 1 by default."""
    lab.topic()
    lab.send(10)
    sizes: list[int] = []
    lab.concurrent(lambda messages, context: sizes.append(len(messages)))
    lab.settle()
    assert sizes == [1] * 10
    sizes.clear()
    lab.concurrent(
        lambda messages, context: sizes.append(len(messages)), group="cg_batch", consume_message_batch_max_size=4
    )
    lab.settle(lab.consumers[-1])
    assert sizes == [4, 4, 2]


@pytest.mark.statement("C01", "B15")
@pytest.mark.parametrize(
    ("status", "ack_index", "again"),
    [
        (SUCCESS, None, []),
        (SUCCESS, 1, ["m2", "m3"]),
        (SUCCESS, -1, ["m0", "m1", "m2", "m3"]),
        (SUCCESS, 99, []),
        (LATER, 1, ["m0", "m1", "m2", "m3"]),
    ],
)
def test_messages_behind_the_ack_index_failed(lab: Any, status: Any, ack_index: int | None, again: list[str]) -> None:
    """C01: for i > ackIndex each message is sent back. processConsumeResult: RECONSUME_LATER sets it to -1."""
    lab.topic()
    lab.send(4)

    def answer(messages: Sequence[MessageExt], context: Any) -> Any:
        if messages[0].reconsume_times:
            return None
        if ack_index is not None:
            context.ack_index = ack_index
        return status

    lab.concurrent(answer, consume_message_batch_max_size=4)
    lab.settle()
    assert lab.bodies() == ["m0", "m1", "m2", "m3"]
    lab.advance(10_000)
    assert sorted(lab.bodies()[4:]) == again


@pytest.mark.statement("C02")
@pytest.mark.parametrize(("level", "gap_ms", "dead"), [(1, 1000, 0), (5, 60_000, 0), (-1, None, 1)])
def test_the_listener_chooses_the_delay_level(lab: Any, level: int, gap_ms: int | None, dead: int) -> None:
    """ConsumeConcurrentlyContext.delayLevelWhenNextConsume; -1 is straight to the DLQ."""
    lab.topic()
    lab.send(1)

    def answer(messages: Sequence[MessageExt], context: Any) -> Any:
        context.delay_level_when_next_consume = level
        return None if messages[0].reconsume_times else LATER

    lab.concurrent(answer)
    lab.settle()
    if gap_ms is not None:
        lab.advance(gap_ms - 1)
        assert len(lab.seen) == 1
        lab.advance(1)
        assert len(lab.seen) == 2
    assert len(lab.read(DLQ)) == dead


def test_messages_at_the_listener_tell_where_the_queue_was_and_when_it_began(lab: Any) -> None:
    """PullAPIWrapper#processPullResult: MIN_OFFSET, MAX_OFFSET, CONSUME_START_TIME; msgId is UNIQ_KEY."""
    lab.topic()
    lab.send(5)
    ids: list[str] = []
    lab.concurrent(lambda messages, context: ids.append(messages[0].msg_id))
    lab.settle()
    properties = lab.seen[3].properties
    assert (properties["MIN_OFFSET"], properties["MAX_OFFSET"]) == ("0", "5")
    assert properties["CONSUME_START_TIME"] == str(lab.now_ms)
    assert ids[3] == properties["UNIQ_KEY"]


def test_a_retried_message_keeps_place_and_id_of_its_retry_record(lab: Any) -> None:
    """resetRetryAndNamespace: topic reset, queue id and offset those of the retry topic, UNIQ_KEY constant."""
    lab.topic(queues=3)
    lab.send(1, queue=2)
    lab.concurrent(lambda messages, context: None if messages[0].reconsume_times else LATER)
    lab.settle()
    lab.advance(10_000)
    first, second = lab.seen
    assert (second.topic, second.queue_id, second.queue_offset) == (TOPIC, 0, 0)
    assert second.properties["UNIQ_KEY"] == first.properties["UNIQ_KEY"]
    assert second.properties["RETRY_TOPIC"] == TOPIC
    assert second.properties["DELAY"] == "3"


class Refusing:
    """A backend in which send-backs, or ordinary messages to retry topics too, fail as long as they should."""

    def __init__(self, backend: Any, *methods: str, error: Exception | None = None) -> None:
        self._backend = backend
        self.methods = set(methods)
        self.error = error or MQBrokerError(1, "look message by offset failed")
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def brokers(self) -> Any:
        return {name: _RefusingBroker(self, broker) for name, broker in self._backend.brokers().items()}


class _RefusingBroker:
    def __init__(self, owner: Refusing, broker: Any) -> None:
        self._owner, self._broker = owner, broker

    def __getattr__(self, name: str) -> Any:
        if name in self._owner.methods:

            def refuse(*arguments: Any, **options: Any) -> Any:
                self._owner.calls.append(name)
                raise self._owner.error

            return refuse
        return getattr(self._broker, name)


@pytest.mark.statement("C01", "C02")
def test_a_send_back_that_fails_is_followed_by_an_ordinary_message_to_the_retry_topic(lab: Any) -> None:
    """sendMessageBack: RECONSUME_TIME n+1, MAX_RECONSUME_TIMES, DELAY 3+n, ORIGIN_MESSAGE_ID, RETRY_TOPIC."""
    lab.topic()
    lab.send(1)
    backend = Refusing(lab.backend, "send_message_back")
    lab.concurrent(lambda messages, context: None if messages[0].reconsume_times else LATER, backend=backend)
    lab.settle()
    assert backend.calls == ["send_message_back"]
    lab.advance(9_999)
    assert len(lab.seen) == 1
    lab.advance(1)
    first, second = lab.seen
    assert (second.topic, second.reconsume_times, second.body) == (TOPIC, 1, "m0")
    assert second.properties["ORIGIN_MESSAGE_ID"] == first.properties["UNIQ_KEY"]
    assert second.properties["UNIQ_KEY"] == first.properties["UNIQ_KEY"]
    assert second.properties["MAX_RECONSUME_TIMES"] == "16"


def test_a_listener_that_empties_its_list_and_fails_gets_the_messages_again(lab: Any) -> None:
    """Java's listener gets a list that it cannot change."""
    lab.topic()
    lab.send(3)

    def forget(messages: list[MessageExt], context: Any) -> ConsumeConcurrentlyStatus:
        messages.clear()
        return LATER if len(lab.seen) <= 3 else SUCCESS

    lab.concurrent(forget, consume_message_batch_max_size=3)
    lab.settle()
    lab.advance(10_000)
    assert lab.bodies() == ["m0", "m1", "m2"] * 2


@pytest.mark.statement("C01")
def test_a_message_that_nobody_takes_back_comes_again_after_five_seconds_and_holds_the_progress(lab: Any) -> None:
    """C01: its reconsumeTimes grows and it is submitted again later. submitConsumeRequestLater: after 5 s; and the
    offset does not pass it.
    """
    lab.topic()
    lab.send(3)
    backend = Refusing(lab.backend, "send_message_back", "send_to_retry", error=RemotingConnectError("gone"))
    consumer = lab.concurrent(
        lambda messages, context: LATER if messages[0].body == b"m1" and lab.now_ms < 1_700_000_010_000 else None,
        backend=backend,
    )
    lab.settle()
    lab.advance(4_999)
    assert lab.bodies() == ["m0", "m1", "m2"]
    consumer.persist_consumer_offset()
    assert lab.committed() == 1
    lab.advance(1)
    assert (lab.seen[-1].body, lab.seen[-1].reconsume_times, lab.seen[-1].topic) == ("m1", 1, TOPIC)
    consumer.persist_consumer_offset()
    assert lab.committed() == 1
    lab.advance(5_000)
    assert (lab.seen[-1].body, lab.seen[-1].reconsume_times) == ("m1", 2)
    consumer.persist_consumer_offset()
    assert lab.committed() == 3
    assert lab.read(RETRY) == []


@pytest.mark.statement("B01")
def test_a_listener_that_takes_too_long_loses_its_message_to_a_retry(lab: Any) -> None:
    """ProcessQueue#cleanExpiredMsg: sent back with delay level 3; the listener goes on, and what it then says
    changes nothing, not even that it failed.
    """
    lab.topic()
    lab.send(2)

    def answer(messages: Sequence[MessageExt], context: Any) -> Any:
        if messages[0].body == b"m0" and not messages[0].reconsume_times:
            lab.now_ms += 16 * 60_000
            consumer._membership.run_due()
            return LATER
        return None

    consumer = lab.concurrent(answer)
    lab.settle()
    assert lab.bodies() == ["m0", "m1"]
    lab.advance(9_999)
    assert len(lab.seen) == 2
    lab.advance(1)
    assert [(each.body, each.reconsume_times) for each in lab.seen[2:]] == [("m0", 1)]
    consumer.shutdown()
    assert lab.committed() == 2
    assert len(lab.read(RETRY)) == 1


@pytest.mark.statement("B01")
@pytest.mark.parametrize(("counts", "sent_back"), [(True, ["m0", "m1", "m2"]), (False, ["m0"])])
def test_time_in_the_queue_counts_for_the_timeout_if_asked_for(lab: Any, counts: bool, sent_back: list[str]) -> None:
    """B01: "including queuing timeout in PushConsumer" (5.x clients); 4.x clients count from the listener on."""
    lab.topic()
    lab.send(3)

    def slow(messages: Sequence[MessageExt], context: Any) -> None:
        if messages[0].body == b"m0" and not messages[0].reconsume_times:
            lab.now_ms += 16 * 60_000
            consumer._membership.run_due()

    consumer = lab.concurrent(slow, consume_timeout_includes_queueing=counts)
    lab.settle()
    assert lab.bodies() == (["m0"] if counts else ["m0", "m1", "m2"])
    lab.advance(10_000)
    assert [each.body for each in lab.seen if each.reconsume_times == 1] == sent_back


def test_of_a_batch_that_took_too_long_each_message_is_sent_back_once(lab: Any) -> None:
    """Sixteen at each look (cleanExpireMsg); the listener, which then fails, gives back the others and not these."""
    lab.topic()
    lab.send(20)

    def slow(messages: Sequence[MessageExt], context: Any) -> Any:
        if len(messages) < 20:
            return SUCCESS
        lab.now_ms += 16 * 60_000
        consumer._membership.run_due()
        assert consumer._rebalance.assignments()[0].process_queue.count == 4
        return LATER

    consumer = lab.concurrent(slow, consume_message_batch_max_size=32)
    lab.settle()
    lab.advance(60_000)
    again = [each.body for each in lab.seen if each.reconsume_times == 1]
    assert sorted(again) == sorted(f"m{number}" for number in range(20))
    assert consumer._rebalance.assignments()[0].process_queue.count == 0


def test_a_batch_that_was_sent_back_before_its_turn_asks_for_no_permits(lab: Any) -> None:
    """A limiter grants one permit at least, and would end the consumer."""
    lab.topic()
    lab.send(3)

    def slow(messages: Sequence[MessageExt], context: Any) -> None:
        if not messages[0].reconsume_times:
            lab.now_ms += 16 * 60_000
            consumer._membership.run_due()

    limiter = RateLimiter(1_000_000, clock=lab.clock)
    consumer = lab.concurrent(slow, consume_timeout_includes_queueing=True, rate_limiter=limiter)
    lab.settle()
    lab.advance(10_000)
    assert [(each.body, each.reconsume_times) for each in lab.seen] == [("m0", 0), ("m0", 1), ("m1", 1), ("m2", 1)]


def test_a_batch_that_was_sent_back_while_it_waited_for_permits_is_not_shown(lab: Any) -> None:
    lab.topic()
    lab.send(2)
    sizes: list[int] = []
    consumer = lab.concurrent(
        lambda messages, context: sizes.append(len(messages)),
        consume_timeout_includes_queueing=True, rate_limiter=RateLimiter(1, clock=lab.clock),
    )  # fmt: skip
    lab.settle()
    assert lab.bodies() == ["m0"]
    lab.now_ms += 16 * 60_000
    consumer._membership.run_due()
    lab.advance(20_000)
    assert [(each.body, each.reconsume_times) for each in lab.seen] == [("m0", 0), ("m1", 1)]
    assert sizes == [1, 1]


def test_a_backlog_is_read_in_large_steps_and_handed_out_as_pulls_would_be(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pullBatchSize bounds what a listener gets at once; a read of the store is for as many as the bounds allow."""
    lab.topic()
    lab.send(1000)
    reads: list[int] = []
    read = lab.store.read
    monkeypatch.setattr(lab.store, "read", lambda *asked, **named: reads.append(asked[3]) or read(*asked, **named))
    sizes: list[int] = []
    lab.concurrent(
        lambda messages, context: sizes.append(len(messages)), consume_message_batch_max_size=100, pull_batch_size=30
    )
    lab.settle()
    assert lab.bodies() == [f"m{number}" for number in range(1000)]
    assert reads == [256, 1000]
    assert sizes == [30] * 33 + [10]


def test_what_is_read_ahead_keeps_within_the_bounds(lab: Any) -> None:
    """pullMessage: pulled while no more than 20 are not done, so 20 and one pull at the most."""
    lab.topic()
    lab.send(100)
    by_count = lab.concurrent(group="by_count", pull_threshold_for_queue=20, pull_batch_size=8)
    by_span = lab.concurrent(group="by_span", client_id="c2", consume_concurrently_max_span=40, pull_batch_size=8)
    for consumer, wanted in ((by_count, [20, 28]), (by_span, [40, 48])):
        consumer._executor.run_ready = lambda: 0  # type: ignore[method-assign]
        counts = []
        for _ in range(5):
            consumer.run_once()
            counts.append(consumer._rebalance.assignments()[0].process_queue.count)
        assert list(dict.fromkeys(counts)) == wanted


@pytest.mark.statement("B16")
def test_messages_above_the_rate_wait_in_their_queue_and_are_not_retried(lab: Any) -> None:
    """B16, "Do not use retry instead of throttling": the backlog stays; nothing goes to the retry topic."""
    lab.topic()
    lab.send(120)
    limiter = RateLimiter(10, clock=lab.clock)
    consumer = lab.concurrent(rate_limiter=limiter, pull_threshold_for_queue=20, pull_batch_size=8)
    for _ in range(50):
        lab.advance(100)
    assert len(lab.seen) == 51
    consumer.persist_consumer_offset()
    assert lab.committed() == 51
    assert consumer._rebalance.assignments()[0].next_offset <= 51 + 20 + 8
    assert RETRY not in lab.store.topics()
    for _ in range(80):
        lab.advance(100)
    assert lab.bodies() == [f"m{number}" for number in range(120)]


def test_a_rate_limiter_may_have_another_clock_than_its_consumer(lab: Any) -> None:
    """The default one has the machine's, and the consumer the store's, which tests set to any time."""
    lab.topic()
    lab.send(3)
    other_ms = lab.now_ms + 86_400_000
    lab.concurrent(rate_limiter=RateLimiter(10, clock=lambda: other_ms))
    for _ in range(3):
        lab.advance(100)
    assert lab.bodies() == ["m0", "m1", "m2"]


@pytest.mark.parametrize("extends", [True, False])
def test_a_listener_that_extends_its_time_is_not_taken_too_long(lab: Any, extends: bool) -> None:
    """It holds its messages for an hour, while what it needs is away; consumeTimeout counts from its last word on."""
    lab.topic()
    lab.send(1)

    def holds(messages: Sequence[MessageExt], context: Any) -> None:
        for _ in range(0 if messages[0].reconsume_times else 60):
            lab.now_ms += 60_000
            if extends:
                assert context.extend()
            consumer._membership.run_due()

    consumer = lab.concurrent(holds)
    lab.settle()
    lab.advance(60_000)
    assert [each.reconsume_times for each in lab.seen] == ([0] if extends else [0, 1])
    assert lab.committed() == 1


def test_what_a_listener_answers_that_was_told_to_give_up_is_void(lab: Any) -> None:
    """Its consumer ends: the message comes again to another member, and no retry is counted."""
    lab.topic()
    lab.send(1)
    said: list[bool] = []

    def gives_up(messages: Sequence[MessageExt], context: Any) -> Any:
        consumer._executor.stop(0)
        said.append(context.extend())
        return LATER

    consumer = lab.concurrent(gives_up)
    lab.settle()
    assert said == [False]
    consumer.shutdown()
    assert lab.committed() in (None, 0)
    assert lab.read(RETRY) == []


@pytest.mark.parametrize("listener", ["concurrent", "ordered"])
def test_a_clock_that_is_set_back_stops_no_pull(lab: Any, listener: str) -> None:
    lab.topic()
    lab.send(1)
    getattr(lab, listener)()
    lab.settle()
    lab.advance(-3_600_000)
    lab.send(1)
    lab.settle()
    assert len(lab.bodies()) == 2
