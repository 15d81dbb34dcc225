"""Several consumers of a group: who has which queue, and what happens when that changes (RebalanceImpl)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest

from rmq_store import LeaseHeldError, UsageError
from rmq_store.client.backend.local import LocalBackend
from rmq_store.client.consume_service.listener import (
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    MessageListenerConcurrently,
)
from rmq_store.client.consumer.push_consumer import PushConsumer
from rmq_store.client.group import rebalance as rebalance_module
from rmq_store.client.group.consumer_config import (
    ConsumeFromWhere,
    LitePullConsumerConfig,
    MessageModel,
    PushConsumerConfig,
)
from rmq_store.protocol.allocate import AllocateMessageQueueAveragelyByCircle, AllocateMessageQueueByConfig
from rmq_store.protocol.errors import ClientError
from rmq_store.protocol.messages import MessageExt, MessageQueue

TOPIC, GROUP, BROKER = "Orders", "cg_orders", "rmq-embedded"
LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER


def ids(consumer: PushConsumer) -> list[int]:
    return [each.queue_id for each in consumer.queues() if each.topic == TOPIC]


def test_members_divide_the_queues_and_take_over_from_one_that_leaves(lab: Any) -> None:
    """AVG over the sorted client ids; a change is seen within a second, and two later a queue is taken over."""
    lab.topic(queues=8)
    a, b, c = (lab.concurrent(client_id=name) for name in ("a", "b", "c"))
    for _ in range(3):
        lab.advance(1000)
    assert [ids(each) for each in (a, b, c)] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    b.shutdown()
    lab.consumers.remove(b)
    lab.advance(1000)
    assert [ids(each) for each in (a, c)] == [[0, 1, 2], [6, 7]]
    for _ in range(3):
        lab.advance(1000)
    assert [ids(each) for each in (a, c)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    for queue_id in range(8):
        lab.send(1, queue=queue_id)
    lab.settle()
    assert sorted((each.queue_id, each.client_id) for each in lab.seen) == [
        (queue_id, "a" if queue_id < 4 else "c") for queue_id in range(8)
    ]


def test_a_queue_is_handed_over_without_repeating_what_was_done(lab: Any) -> None:
    """The new member waits until the old one has seen the change and stored its progress, though nothing was stored
    before: the next persist was seconds away.
    """
    lab.topic(queues=2)
    lab.send(50, queue=1)
    old = lab.concurrent(client_id="a")
    lab.settle()
    new = lab.concurrent(client_id="b")
    assert (ids(new), lab.committed(1)) == ([], None)
    lab.send(50, queue=1)
    for _ in range(4):
        lab.advance(1000, new, old)
    assert (ids(old), ids(new)) == ([0], [1])
    assert lab.bodies() == [f"m{number}" for number in range(100)]
    assert {each.client_id for each in lab.seen[50:]} == {"b"}


def test_a_retry_topic_that_comes_into_being_is_consumed_at_once(lab: Any) -> None:
    """Nobody can have a queue that did not exist before; a retry after one second must not be late."""
    lab.topic(queues=2)

    def once(messages: Sequence[MessageExt], context: Any) -> Any:
        context.delay_level_when_next_consume = 1
        return None if messages[0].reconsume_times else LATER

    for name in ("a", "b"):
        lab.concurrent(once, client_id=name)
    for _ in range(3):
        lab.advance(1000)
    lab.send(1)
    lab.settle()
    lab.advance(1000)
    assert [each.reconsume_times for each in lab.seen] == [0, 1]


def test_the_progress_stored_when_a_queue_goes_knows_what_was_just_sent_back(lab: Any) -> None:
    """The queue goes while a failed message is being sent back: the next member must not get it, or it would be sent
    back twice.
    """
    lab.topic(queues=2)
    lab.send(1, queue=1)
    broker = lab.backend.brokers()[BROKER]
    entered, stored = threading.Event(), threading.Event()

    class Slow:
        def __init__(self, sender: Any) -> None:
            self._sender = sender

        def send_back(self, message: MessageExt, level: int) -> bool:
            entered.set()
            # Without the lock the queue goes in the meantime, which this wait makes sure of.
            stored.wait(0.05)
            return bool(self._sender.send_back(message, level))

    consumer = lab.concurrent(lambda messages, context: LATER, client_id="a")
    service: Any = consumer._pulls._service
    service._sender = Slow(service._sender)

    def rebalance() -> None:
        entered.wait(30)
        broker.heartbeat(GROUP, "b")
        lab.now_ms += 1000
        consumer._membership.run_due()
        stored.set()

    other = threading.Thread(target=rebalance)
    other.start()
    lab.settle()
    other.join()
    assert ids(consumer) == [0]
    assert lab.committed(1) == 1


def test_strategies_are_a_setting(lab: Any) -> None:
    lab.topic(queues=4)
    circle = AllocateMessageQueueAveragelyByCircle()
    a, b = (lab.concurrent(client_id=name, allocate_message_queue_strategy=circle) for name in ("a", "b"))
    fixed = AllocateMessageQueueByConfig([MessageQueue(TOPIC, BROKER, 3)])
    other = lab.concurrent(group="cg_fixed", client_id="z", allocate_message_queue_strategy=fixed)
    for _ in range(3):
        lab.advance(1000)
    assert (ids(a), ids(b), ids(other)) == ([0, 2], [1, 3], [3])


def test_queues_that_are_added_to_a_topic_are_found(lab: Any) -> None:
    """Java polls routes every 30 s; here each look compares them. A topic may come into being after its consumer."""
    consumer = lab.concurrent()
    assert ids(consumer) == []
    lab.topic(queues=2)
    lab.advance(1000)
    assert ids(consumer) == [0, 1]


@pytest.mark.statement("G08")
def test_a_queue_that_moves_takes_its_progress_along_and_leaves_unfinished_work_behind(lab: Any) -> None:
    """RebalancePushImpl#removeUnnecessaryMessageQueue: persisted at once. The result of a listener that ends later is
    void: the message comes again at the next owner, and that is a duplicate which consumers must expect.
    """
    lab.topic(queues=2)
    lab.send(3, queue=1)
    broker = lab.backend.brokers()[BROKER]

    def slow(messages: Sequence[MessageExt], context: Any) -> Any:
        if messages[0].body == b"m1":
            broker.heartbeat(GROUP, "b")
            lab.now_ms += 1000
            first._membership.run_due()
            assert lab.committed(1) == 1
        return LATER if messages[0].body == b"m1" else None

    first = lab.concurrent(slow, client_id="a")
    lab.settle(first)
    assert ids(first) == [0]
    broker.unregister(GROUP, "b")
    lab.concurrent(client_id="b")
    lab.advance(1000)
    lab.advance(20_000)
    assert [(each.client_id, each.body) for each in lab.seen] == [("a", "m0"), ("a", "m1"), ("b", "m1"), ("b", "m2")]
    assert f"%RETRY%{GROUP}" not in lab.store.topics()


def test_an_ordered_queue_is_not_given_away_while_its_listener_runs(lab: Any) -> None:
    """removeUnnecessaryMessageQueue unlocks; the new owner waits for the lock. Nothing is consumed out of order."""
    lab.topic(queues=2)
    lab.send(3, queue=1)
    during: list[list[int]] = []

    def slow(messages: Sequence[MessageExt], context: Any) -> None:
        if messages[0].body == b"m1" and len(lab.consumers) == 1:
            lab.ordered(client_id="b")
            second = lab.consumers[-1]
            for _ in range(3):
                lab.now_ms += 1000
                first._membership.run_due()
                second.run_once()
            during.append(ids(second))

    first = lab.ordered(slow, client_id="a")
    lab.settle(first)
    assert during == [[]]
    for _ in range(3):
        lab.advance(1000)
    assert [ids(each) for each in lab.consumers] == [[0], [1]]
    assert [(each.client_id, each.body) for each in lab.seen] == [("a", "m0"), ("a", "m1"), ("b", "m1"), ("b", "m2")]


def test_an_ordered_consumer_without_the_lock_consumes_nothing_until_it_has_it(lab: Any) -> None:
    """RebalanceImpl#lock: LOCK_BATCH_MQ at assignment; retried a second later (an unbalanced result)."""
    lab.topic()
    lab.send(1)
    broker = lab.backend.brokers()[BROKER]
    queue = MessageQueue(TOPIC, BROKER, 0)
    assert broker.lock_queues(GROUP, "stranger", [queue]) == {queue}
    consumer = lab.ordered()
    lab.advance(20_000)
    assert (lab.seen, ids(consumer)) == ([], [])
    broker.unlock_queues(GROUP, "stranger", [queue])
    lab.advance(1000)
    assert lab.bodies() == ["m0"]


def test_ordered_locks_are_renewed_and_given_back_at_shutdown(lab: Any) -> None:
    """RebalanceImpl#lockAll: renewed every 20 s, valid 30 s; UNLOCK at shutdown."""
    lab.topic()
    consumer = lab.ordered()
    broker = lab.backend.brokers()[BROKER]
    queue = MessageQueue(TOPIC, BROKER, 0)
    for _ in range(8):
        lab.advance(10_000)
        assert consumer._rebalance.assignments()[0].process_queue.is_locked(lab.now_ms)
        assert broker.lock_queues(GROUP, "stranger", [queue]) == set()
    consumer.shutdown()
    assert broker.lock_queues(GROUP, "stranger", [queue]) == {queue}


def test_a_lost_lock_stops_consumption_in_order_until_it_is_back(lab: Any) -> None:
    """ConsumeMessageOrderlyService#tryLockLaterAndReconsume: again after 3 s. Offsets are not committed without it."""
    lab.topic()
    lab.send(2)
    broker = lab.backend.brokers()[BROKER]
    queue = MessageQueue(TOPIC, BROKER, 0)

    def lose(messages: Sequence[MessageExt], context: Any) -> None:
        if messages[0].body == b"m0":
            broker.unlock_queues(GROUP, "c1", [queue])
            broker.lock_queues(GROUP, "stranger", [queue])
            lab.now_ms += 31_000

    consumer = lab.ordered(lose)
    lab.settle()
    assert lab.bodies() == ["m0"]
    consumer.persist_consumer_offset()
    assert lab.committed() is None
    lab.advance(3_000)
    lab.send(1)
    lab.advance(3_000)
    assert lab.bodies() == ["m0"]
    assert consumer._rebalance.assignments()[0].next_offset == 2
    broker.unlock_queues(GROUP, "stranger", [queue])
    lab.advance(3_000)
    assert lab.bodies() == ["m0", "m1", "m2"]


def test_an_ordered_queue_that_comes_back_while_its_listener_runs_is_taken_anew(lab: Any) -> None:
    """It was given up already when the other member left again: the running result is void, the message comes again."""
    lab.topic(queues=2)
    lab.send(2, queue=1)
    broker = lab.backend.brokers()[BROKER]

    def slow(messages: Sequence[MessageExt], context: Any) -> None:
        if len(lab.seen) == 1:
            for join_or_leave in (broker.heartbeat, broker.unregister):
                join_or_leave(GROUP, "b")
                lab.now_ms += 1000
                consumer._membership.run_due()

    consumer = lab.ordered(slow, client_id="a")
    lab.settle()
    lab.advance(1000)
    assert lab.bodies() == ["m0", "m0", "m1"]
    assert ids(consumer) == [0, 1]


def test_a_queue_that_comes_back_starts_where_the_others_are_by_now(lab: Any) -> None:
    """RebalanceImpl#removeDirtyOffset: what a listener leaves in memory after its queue went counts no more."""
    lab.topic(queues=2)
    lab.send(2, queue=1)
    broker = lab.backend.brokers()[BROKER]

    class Slow:
        def send_back(self, message: MessageExt, level: int) -> bool:
            broker.heartbeat(GROUP, "b")
            lab.now_ms += 1000
            consumer._membership.run_due()
            return True

    consumer = lab.concurrent(lambda messages, context: LATER if len(lab.seen) == 1 else None, client_id="a")
    consumer._pulls._service._sender = Slow()  # type: ignore[attr-defined]
    lab.settle()
    lab.store.commit_offsets(GROUP, {(TOPIC, 1): 2})
    broker.unregister(GROUP, "b")
    lab.advance(1000)
    assert ids(consumer) == [0, 1]
    assert lab.bodies() == ["m0"]


def test_a_member_that_the_broker_does_not_list_gets_nothing(lab: Any) -> None:
    """RebalanceImpl#rebalanceByTopic; with CONFIG too, whose list is fixed."""
    lab.topic()
    fixed = AllocateMessageQueueByConfig([MessageQueue(TOPIC, BROKER, 0)])
    consumer = lab.concurrent(allocate_message_queue_strategy=fixed)
    assert ids(consumer) == [0]
    lab.backend.brokers()[BROKER].unregister(GROUP, "c1")
    lab.advance(1000)
    assert ids(consumer) == []
    lab.advance(30_000)
    lab.advance(1000)
    assert ids(consumer) == [0]


@pytest.mark.statement("C08", "G07")
@pytest.mark.parametrize(
    ("where", "comes_again"),
    [
        (ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, True),
        (ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, True),
        (ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, False),
    ],
)
def test_a_retry_topic_is_consumed_from_its_begin(lab: Any, where: ConsumeFromWhere, comes_again: bool) -> None:
    """computePullFromWhereWithException: 0, or the end for TIMESTAMP; without the broker's rule for young queues."""
    lab.topic()
    lab.send(1)
    lab.store.commit_offsets(GROUP, {(TOPIC, 0): 0})
    backend = LocalBackend(lab.store, strict_last_offset=True)
    first = lab.concurrent(lambda messages, context: LATER, backend=backend)
    lab.settle(first)
    first.shutdown()
    lab.now_ms += 10_000
    lab.store.schedule.deliver_due()
    second = lab.concurrent(client_id="c2", backend=backend, consume_from_where=where)
    lab.settle(second)
    assert [each.reconsume_times for each in lab.seen] == ([0, 1] if comes_again else [0])


@pytest.mark.statement("G07")
@pytest.mark.parametrize(
    ("where", "strict", "expected"),
    [
        (ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, False, ["m0", "m1", "m2", "m3"]),
        (ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, True, ["m3"]),
        (ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, True, ["m0", "m1", "m2", "m3"]),
        (ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, True, ["m2", "m3"]),
    ],
)
def test_where_a_new_group_starts(
    lab: Any, where: ConsumeFromWhere, strict: bool, expected: list[str]
) -> None:
    """G07: LAST is the default, FIRST, TIMESTAMP half an hour ago. ConsumerManageProcessor#queryConsumerOffset lets a
    new group start at 0 while the queue is young, unless `strict_last_offset` forbids it.
    """
    lab.topic()
    lab.send(1)
    lab.now_ms += 60_000
    lab.send(1)
    lab.now_ms += 25 * 60_000
    lab.send(1)
    lab.now_ms += 10 * 60_000
    backend = LocalBackend(lab.store, strict_last_offset=strict)
    consumer = lab.concurrent(backend=backend, consume_from_where=where)
    lab.send(1)
    lab.settle(consumer)
    assert lab.bodies() == expected


@pytest.mark.statement("G07")
def test_a_stored_progress_wins(lab: Any) -> None:
    """G07: what the group has committed wins."""
    lab.topic()
    lab.send(5)
    lab.store.commit_offsets(GROUP, {(TOPIC, 0): 2})
    lab.concurrent(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    lab.settle()
    assert lab.bodies() == ["m2", "m3", "m4"]


def test_an_offset_that_the_queue_does_not_have_is_corrected(lab: Any) -> None:
    """OFFSET_ILLEGAL: progress := nextBeginOffset, persisted, then on from there."""
    lab.topic()
    lab.send(3)
    lab.store.commit_offsets(GROUP, {(TOPIC, 0): 50})
    lab.concurrent()
    lab.settle()
    assert lab.committed() == 3
    lab.send(1)
    lab.settle()
    assert lab.bodies() == ["m3"]


def test_a_queue_may_go_while_its_offset_is_corrected(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the timers may release it between the answer of the broker and the correction."""
    lab.topic()
    lab.send(3)
    lab.store.commit_offsets(GROUP, {(TOPIC, 0): 50})
    consumer = lab.concurrent()
    remove = consumer._rebalance.remove

    def removed_before(queue: MessageQueue) -> bool:
        remove(queue)
        return bool(remove(queue))

    with monkeypatch.context() as patch:
        patch.setattr(consumer._rebalance, "remove", removed_before)
        consumer.run_once()
    lab.send(1)
    lab.settle()
    assert lab.bodies() == ["m3"]


def test_flow_control_keeps_what_is_pulled_within_bounds(lab: Any) -> None:
    """pullMessage: more than 1000 messages, or a span of more than 2000: no more pulls of that queue."""
    lab.topic()
    lab.send(3000)
    consumer = lab.concurrent()
    consumer._executor.run_ready = lambda: 0  # type: ignore[method-assign]
    for _ in range(200):
        consumer.run_once()
    (held,) = consumer._rebalance.assignments()
    assert 1000 < held.process_queue.count <= 1000 + 32
    del consumer._executor.run_ready  # type: ignore[attr-defined]
    lab.settle()
    assert len(lab.seen) == 3000


def test_the_span_of_what_is_not_done_is_bounded(lab: Any) -> None:
    """consumeConcurrentlyMaxSpan 2000, though only a handful of messages are not done."""
    lab.topic()
    lab.send(3000)

    class Nobody:
        def send_back(self, message: MessageExt, level: int) -> bool:
            return False

    consumer = lab.concurrent(lambda messages, context: LATER if messages[0].queue_offset % 500 == 0 else None)
    consumer._pulls._service._sender = Nobody()  # type: ignore[attr-defined]
    lab.settle()
    assert 2500 < len(lab.seen) <= 2500 + 32
    assert consumer._rebalance.assignments()[0].process_queue.count == 6


def test_size_and_topic_bounds_hold_too(lab: Any) -> None:
    """pullThresholdSizeForQueue in MiB; pullThresholdForTopic is shared by the queues."""
    lab.topic(queues=2)
    bodies = pa.array([bytes(300_000)] * 40, pa.binary())
    for queue_id in range(2):
        rows = {"body": bodies, "queueId": pa.array([queue_id] * 40, pa.int32())}
        lab.store.append(pa.RecordBatch.from_pydict(rows), topic=TOPIC)
    by_size = lab.concurrent(group="by_size", pull_threshold_size_for_queue=2)
    by_topic = lab.concurrent(group="by_topic", client_id="c2", pull_threshold_for_topic=10, pull_batch_size=1)
    for consumer in (by_size, by_topic):
        consumer._executor.run_ready = lambda: 0  # type: ignore[method-assign]
        for _ in range(60):
            consumer.run_once()
    assert all(3 << 20 <= each.process_queue.size_bytes < 4 << 20 for each in by_size._rebalance.assignments())
    assert [each.process_queue.count for each in by_topic._rebalance.assignments()] == [6, 6]


def test_a_pause_between_pulls_and_suspension_hold_back_messages(lab: Any) -> None:
    """pullInterval; DefaultMQPushConsumer#suspend, #resume."""
    lab.topic()
    lab.send(64)
    consumer = lab.concurrent(pull_interval=500)
    lab.settle()
    assert len(lab.seen) == 32
    lab.advance(499)
    assert len(lab.seen) == 32
    consumer.suspend()
    lab.advance(1)
    assert len(lab.seen) == 32
    consumer.resume()
    lab.settle()
    assert len(lab.seen) == 64


def test_two_live_members_cannot_have_one_id(lab: Any) -> None:
    """A broker would take the second for the first, and give both the same queues."""
    lab.topic()
    lab.concurrent(client_id="same")
    other = lab.concurrent(client_id="same", backend=LocalBackend(lab.store), start=False)
    with pytest.raises(LeaseHeldError, match="same"):
        other.start(threads=False)


def test_one_id_twice_in_one_process_is_refused_and_the_first_member_stays(lab: Any) -> None:
    """MQClientInstance#registerConsumer: "The consumer group has been created before"."""
    lab.topic()
    lab.concurrent(client_id="same")
    with pytest.raises(LeaseHeldError, match=r"live member with the client id 'same'.*instance_name"):
        lab.concurrent(client_id="same", start=False).start(threads=False)
    assert lab.backend.brokers()[BROKER].consumer_ids(GROUP) == ["same"]
    lab.send(3)
    lab.settle()
    assert lab.bodies() == ["m0", "m1", "m2"]
    lab.consumers.pop().shutdown()
    lab.concurrent(client_id="same")


def test_a_topic_that_is_not_there_is_named_in_the_log(lab: Any, caplog: pytest.LogCaptureFixture) -> None:
    """RebalanceImpl#rebalanceByTopic: "the topic not exist"; who mistypes a topic must not wait in vain."""
    lab.concurrent()
    assert [record.message for record in caplog.records if "exist" in record.message] == [
        "group cg_orders: topic Orders does not exist (yet)"
    ]


def test_texts_are_members_of_enumerations() -> None:
    """What equals CLUSTERING must not be taken for BROADCASTING."""
    config = PushConsumerConfig(message_model="CLUSTERING", consume_from_where="CONSUME_FROM_FIRST_OFFSET")  # type: ignore[arg-type]
    assert config.message_model is MessageModel.CLUSTERING
    assert config.consume_from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    assert LitePullConsumerConfig(message_model="BROADCASTING").message_model is MessageModel.BROADCASTING  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="none of CLUSTERING, BROADCASTING"):
        PushConsumerConfig(message_model="CLUSTER")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="consume_from_where"):
        LitePullConsumerConfig(consume_from_where="LAST")  # type: ignore[arg-type]


def test_a_clock_that_is_set_back_holds_nothing_up(lab: Any) -> None:
    """Java measures intervals by System.nanoTime: progress is stored and queues go on, whatever the clock says."""
    lab.topic(2)
    failed: list[str] = []

    def once(messages: Any, context: Any) -> Any:
        if messages[0].body == b"m0" and not failed:
            failed.append("m0")
            return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        return None

    lab.ordered(once)
    lab.send(2)
    lab.settle()
    assert lab.bodies() == ["m0"]
    lab.advance(-3_600_000)
    lab.advance(1000)
    assert lab.bodies() == ["m0", "m0", "m1"]
    lab.advance(10_000)
    assert lab.committed() == 2
    lab.concurrent(group="cg_late")
    lab.send(1, queue=1)
    lab.settle()
    lab.advance(-3_600_000)
    lab.advance(10_000)
    assert lab.committed(1, group="cg_late") == 1


def test_a_consumer_opens_and_closes_a_store_that_it_was_given_by_path(lab: Any) -> None:
    lab.topic()
    lab.send(1)
    consumer = PushConsumer(GROUP, lab.store.path)
    consumer.subscribe(TOPIC)
    bodies: list[bytes] = []

    def consume(messages: Any, context: Any) -> ConsumeConcurrentlyStatus:
        bodies.extend(message.body for message in messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    consumer.register_message_listener(MessageListenerConcurrently(consume))
    consumer.start(threads=False)
    consumer.run_once()
    (broker,) = consumer._backend.brokers().values()
    consumer.shutdown()
    assert bodies == [b"m0"] and lab.committed() == 1
    with pytest.raises(UsageError, match="closed"):
        broker.max_offset(MessageQueue(TOPIC, BROKER, 0))
    never_started = PushConsumer(GROUP, lab.store.path)
    (broker,) = never_started._backend.brokers().values()
    never_started.shutdown()
    with pytest.raises(UsageError, match="closed"):
        broker.max_offset(MessageQueue(TOPIC, BROKER, 0))
    PushConsumer(GROUP, lab.store).shutdown()
    assert lab.store.queue_range(TOPIC, 0) == (0, 1), "an open store is its owner's to close"


def test_a_consumer_says_what_is_missing(lab: Any) -> None:
    config = PushConsumerConfig()
    consumer = PushConsumer(GROUP, lab.backend, config)
    with pytest.raises(UsageError, match="register_message_listener"):
        consumer.start()
    with pytest.raises(UsageError, match="MessageListenerConcurrently\\(function\\)"):
        consumer.register_message_listener(print)  # type: ignore[arg-type]
    consumer.register_message_listener(MessageListenerConcurrently(lambda messages, context: None))
    with pytest.raises(UsageError, match="subscribe"):
        consumer.start()
    with pytest.raises(UsageError, match="not running"):
        consumer.run_once()
    consumer.shutdown()
    with pytest.raises(UsageError, match="make a new consumer"):
        consumer.start()
    with pytest.raises(UsageError, match="group"):
        PushConsumer("no spaces", lab.backend)


@pytest.mark.parametrize(
    "settings",
    [
        {"consume_thread_nums": 0},
        {"pull_batch_size": 1025},
        {"consume_message_batch_max_size": 0},
        {"max_reconsume_times": -2},
        {"consume_timestamp": "yesterday"},
        {"pull_threshold_for_queue": 0},
        {"consume_concurrently_max_span": True},
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    """DefaultMQPushConsumerImpl#checkConfig."""
    with pytest.raises(UsageError, match=next(iter(settings))):
        PushConsumerConfig(**settings)


def test_the_listener_of_a_retried_ordered_message_is_not_mixed_up(lab: Any) -> None:
    """Ordered and concurrent groups of one topic do not disturb each other."""
    lab.topic()
    lab.send(3)
    lab.ordered(lambda messages, context: ConsumeOrderlyStatus.SUCCESS, group="cg_fifo", client_id="o")
    lab.concurrent(group="cg_plain", client_id="p")
    lab.settle()
    assert sorted((each.client_id, each.body) for each in lab.seen) == [
        (client_id, f"m{number}") for client_id in ("o", "p") for number in range(3)
    ]


def test_a_queue_that_is_kept_while_its_broker_is_away_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = MessageQueue(TOPIC, BROKER, 0)
    backend, offsets = MagicMock(), MagicMock()
    backend.clock.return_value = 0
    backend.brokers.return_value = {BROKER: MagicMock(**{"consumer_ids.return_value": ["a"]})}
    monkeypatch.setattr(rebalance_module, "pull_from_where", lambda *args: 0)
    rebalance = rebalance_module.Rebalance(
        backend, GROUP, "a", PushConsumerConfig(), offsets, MagicMock, ordered=False
    )  # fmt: skip

    def absence() -> None:
        backend.subscribe_queues.return_value = [queue]
        offsets.persist.side_effect = None
        assert rebalance.rebalance([TOPIC])
        backend.subscribe_queues.return_value = []
        offsets.persist.side_effect = ClientError("away")
        assert not any(rebalance.rebalance([TOPIC]) for _ in range(5))
        assert rebalance.queues() == [queue]

    absence()
    assert [record.getMessage() for record in caplog.records if "is kept" in record.getMessage()] == [
        f"group {GROUP}: {queue} is kept: away"
    ]
    absence()
    assert caplog.text.count("is kept") == 2
