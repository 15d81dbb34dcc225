"""The consumer that is driven by poll (DefaultLitePullConsumer, under its Python names)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rmq_store import Message, UsageError
from rmq_store.broker.filter.subscription import MessageSelector
from rmq_store.client.consumer.lite_pull_consumer import LitePullConsumer
from rmq_store.client.group.consumer_config import ConsumeFromWhere, LitePullConsumerConfig, MessageModel
from rmq_store.protocol.errors import ClientErrorCode, MQBrokerError, MQClientError
from rmq_store.protocol.messages import MessageQueue

TOPIC, GROUP, BROKER = "Orders", "cg_report", "rmq-embedded"


def queue(number: int) -> MessageQueue:
    return MessageQueue(TOPIC, BROKER, number)


@pytest.fixture
def make(lab: Any) -> Iterator[Callable[..., LitePullConsumer]]:
    made: list[LitePullConsumer] = []

    def one(client_id: str = "l1", group: str = GROUP, **settings: Any) -> LitePullConsumer:
        made.append(LitePullConsumer(group, lab.backend, LitePullConsumerConfig(**settings), client_id=client_id))
        return made[-1]

    yield one
    for consumer in made:
        consumer.shutdown()


def polled(consumer: LitePullConsumer) -> list[str]:
    """All there is now."""
    bodies: list[str] = []
    while messages := consumer.poll(0):
        bodies += [message.body.decode() for message in messages]
    return bodies


def test_poll_returns_small_batches_of_one_queue_in_order(lab: Any, make: Any) -> None:
    """pullBatchSize 10."""
    lab.topic(queues=2)
    lab.send(15, queue=0)
    lab.send(3, queue=1)
    consumer = make()
    consumer.subscribe(TOPIC)
    consumer.start(threads=False)
    batches = [consumer.poll(0) for _ in range(3)]
    assert sorted([each.queue_id for each in batch] for batch in batches) == [[0] * 5, [0] * 10, [1] * 3]
    assert consumer.poll(0) == []
    offsets = [each.queue_offset for batch in batches for each in batch if each.queue_id == 0]
    assert offsets == list(range(15))
    assert batches[0][0].properties["MIN_OFFSET"] == "0"


def test_what_was_polled_is_committed_by_a_later_poll_every_five_seconds(lab: Any, make: Any) -> None:
    """autoCommit true, autoCommitIntervalMillis 5000: maybeAutoCommit at the begin of poll."""
    lab.topic()
    lab.send(3)
    consumer = make()
    consumer.subscribe(TOPIC)
    consumer.start(threads=False)
    assert polled(consumer) == ["m0", "m1", "m2"]
    lab.now_ms += 4_999
    consumer.poll(0)
    assert lab.committed(group=GROUP) is None
    lab.now_ms += 1
    consumer.poll(0)
    assert lab.committed(group=GROUP) == 3
    assert consumer.committed(queue(0)) == 3


def test_the_batch_that_was_polled_last_comes_again_if_it_was_not_committed(lab: Any, make: Any) -> None:
    """At least once: a message counts as consumed when poll is called again, and only by a commit."""
    lab.topic()
    lab.send(30)
    consumer = make(auto_commit_interval_millis=1000)
    consumer.subscribe(TOPIC)
    consumer.start(threads=False)
    consumer.poll(0)
    lab.now_ms += 1000
    consumer.poll(0)
    consumer.shutdown()
    assert lab.committed(group=GROUP) == 10
    again = make("l2")
    again.subscribe(TOPIC)
    again.start(threads=False)
    assert again.poll(0)[0].body == b"m10"


def test_manual_commits(lab: Any, make: Any) -> None:
    """commit(), commit(queues), commit({queue: offset}), and in memory only."""
    lab.topic(queues=2)
    lab.send(10, queue=0)
    lab.send(10, queue=1)
    consumer = make(auto_commit=False)
    consumer.subscribe(TOPIC)
    consumer.start(threads=False)
    polled(consumer)
    lab.now_ms += 100_000
    consumer.poll(0)
    assert lab.store.committed_offsets(GROUP) == {}
    consumer.commit([queue(1)])
    assert lab.store.committed_offsets(GROUP) == {(TOPIC, 1): 10}
    consumer.commit({queue(0): 4})
    assert lab.committed(0, group=GROUP) == 4
    consumer.commit(persist=False)
    assert (lab.committed(0, group=GROUP), consumer.committed(queue(0))) == (4, 10)
    consumer.shutdown()
    assert lab.committed(0, group=GROUP) == 10


@pytest.mark.parametrize("offset", [-1, None, "5", 1.0, True, 1 << 63])
@pytest.mark.parametrize("persist", [True, False])
def test_a_refused_commit_leaves_everything_as_it_was(lab: Any, make: Any, offset: Any, persist: bool) -> None:
    """One offset that cannot be one: the client does not keep it, and the other queues' progress is stored later."""
    lab.topic(queues=2)
    lab.send(3, queue=0)
    lab.send(4, queue=1)
    consumer = make()
    consumer.assign([queue(0), queue(1)])
    consumer.start(threads=False)
    polled(consumer)
    consumer.commit({queue(0): 2})
    with pytest.raises(MQClientError, match=r"queueId=0\]: offset .* is not an integer") as refused:
        consumer.commit({queue(1): 1, queue(0): offset}, persist=persist)
    assert isinstance(refused.value, UsageError)
    assert (consumer.committed(queue(0)), consumer.committed(queue(1))) == (2, 0)
    consumer.commit([queue(1)])
    consumer.shutdown()
    assert lab.store.committed_offsets(GROUP) == {(TOPIC, 0): 2, (TOPIC, 1): 4}


@pytest.mark.parametrize("model", list(MessageModel))
def test_a_commit_for_a_queue_that_is_not_ours_is_refused(lab: Any, make: Any, tmp_path: Any, model: Any) -> None:
    lab.topic(queues=2)
    lab.send(3, queue=0)
    first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    consumer = make(message_model=model, offset_store_directory=tmp_path, consume_from_where=first)
    consumer.assign([queue(0)])
    consumer.start(threads=False)
    polled(consumer)
    for where in (queue(1), queue(99), MessageQueue("Other", BROKER, 0), MessageQueue(TOPIC, "no-such-broker", 0)):
        with pytest.raises(MQClientError, match=r"not assigned|no-such-broker"):
            consumer.commit({queue(0): 1, where: 2})
    with pytest.raises(MQClientError, match="no-such-broker"):
        consumer.commit([queue(0), MessageQueue(TOPIC, "no-such-broker", 0)])
    with pytest.raises(MQClientError, match="offset -1"):
        consumer.commit({queue(0): -1})
    consumer.commit()
    assert consumer.committed(queue(0)) == 3
    consumer.shutdown()
    again = make(message_model=model, offset_store_directory=tmp_path, consume_from_where=first)
    again.assign([queue(0)])
    again.start(threads=False)
    assert polled(again) == []


def test_an_assigned_queue_must_exist(lab: Any, make: Any) -> None:
    """All of them are as before; what is asked about such a queue is an error, too."""
    lab.topic(queues=2)
    lab.send(1, queue=1)
    consumer = make()
    consumer.assign([queue(1)])
    consumer.start(threads=False)
    nowhere = MessageQueue(TOPIC, "no-such-broker", 0)
    for where in (nowhere, queue(2), queue(-1), MessageQueue("Missing", BROKER, 0), MessageQueue("a/b", BROKER, 0)):
        for call in (
            lambda where: consumer.assign([queue(0), where]),
            consumer.committed,
            lambda where: consumer.offset_for_timestamp(where, 0),
        ):
            with pytest.raises(MQClientError) as refused:
                call(where)
            code = "BROKER_NOT_EXIST_EXCEPTION" if where is nowhere else "NOT_FOUND_TOPIC_EXCEPTION"
            assert refused.value.response_code == getattr(ClientErrorCode, code)
    assert consumer.assignment() == [queue(1)]
    assert polled(consumer) == ["m0"]


def test_shutdown_stores_what_was_consumed(lab: Any, make: Any) -> None:
    """auto_commit: all that polls before the last one have returned, whatever the time; Java waits for the interval."""
    lab.topic(queues=2)
    lab.send(15, queue=0)
    consumer = make()
    consumer.assign([queue(0), queue(1)])
    consumer.start(threads=False)
    assert [len(consumer.poll(0)) for _ in range(2)] == [10, 5]
    consumer.shutdown()
    assert lab.store.committed_offsets(GROUP) == {(TOPIC, 0): 10}
    for auto_commit, committed in ((False, 10), (True, 15)):
        again = make(auto_commit=auto_commit)
        again.assign([queue(0)])
        again.start(threads=False)
        assert polled(again) == ["m10", "m11", "m12", "m13", "m14"]
        again.shutdown()
        assert lab.committed(group=GROUP) == committed


def test_shutdown_stores_an_offset_that_was_committed_by_hand_and_no_other(lab: Any, make: Any) -> None:
    lab.topic(queues=2)
    lab.send(5, queue=0)
    lab.send(5, queue=1)
    consumer = make()
    consumer.assign([queue(0), queue(1)])
    consumer.start(threads=False)
    polled(consumer)
    consumer.commit({queue(0): 2}, persist=False)
    consumer.seek(queue(1), 3)
    consumer.shutdown()
    assert lab.store.committed_offsets(GROUP) == {(TOPIC, 0): 2, (TOPIC, 1): 3}


def test_the_store_refuses_a_commit_as_a_whole(lab: Any, make: Any) -> None:
    lab.topic(queues=2)
    for bad in ({(TOPIC, 1): -1}, {(TOPIC, -1): 1}, {("a/b", 0): 1}, {(TOPIC, 1): 1.0}):
        with pytest.raises(UsageError):
            lab.store.commit_offsets(GROUP, {(TOPIC, 0): 1, **bad})
        with pytest.raises(MQBrokerError):
            offsets = {MessageQueue(topic, BROKER, number): offset for (topic, number), offset in bad.items()}
            lab.backend.brokers()[BROKER].update_consumer_offsets(GROUP, {queue(0): 1, **offsets})
    assert lab.store.committed_offsets(GROUP) == {}


@pytest.mark.parametrize("offset", [None, "5", 1.0, True])
def test_what_is_sought_must_be_an_integer(lab: Any, make: Any, offset: Any) -> None:
    lab.topic()
    lab.send(3)
    consumer = make()
    consumer.assign([queue(0)])
    consumer.start(threads=False)
    with pytest.raises(MQClientError, match="is not an integer"):
        consumer.seek(queue(0), offset)
    assert polled(consumer) == ["m0", "m1", "m2"]
    consumer.commit()
    assert lab.committed(group=GROUP) == 3


def test_seek_goes_anywhere_in_the_queue(lab: Any, make: Any) -> None:
    """seek, seekToBegin, seekToEnd; illegal offsets and queues of others are refused."""
    lab.topic(queues=2)
    lab.send(5, queue=0)
    consumer = make()
    consumer.assign([queue(0)])
    consumer.start(threads=False)
    assert len(polled(consumer)) == 5
    consumer.seek(queue(0), 3)
    consumer.commit()
    assert lab.committed(group=GROUP) == 3
    assert polled(consumer) == ["m3", "m4"]
    consumer.seek_to_begin(queue(0))
    assert polled(consumer) == ["m0", "m1", "m2", "m3", "m4"]
    consumer.seek_to_end(queue(0))
    lab.send(1)
    assert polled(consumer) == ["m5"]
    with pytest.raises(MQClientError, match=r"offset 7 is not in 0\.\.6"):
        consumer.seek(queue(0), 7)
    with pytest.raises(MQClientError, match="not assigned"):
        consumer.seek(queue(1), 0)


def test_retention_may_delete_the_begin_while_it_is_sought(
    lab: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.topic()
    lab.send(5)
    consumer = make()
    consumer.assign([queue(0)])
    consumer.start(threads=False)
    begins = iter([0, 2, 2, 2])
    with monkeypatch.context() as patch:
        patch.setattr(lab.backend.brokers()[BROKER], "min_offset", lambda queue: next(begins))
        consumer.seek_to_begin(queue(0))
    assert polled(consumer)[-1] == "m4"


def test_assigned_queues_are_read_whoever_else_reads_them(lab: Any, make: Any) -> None:
    """assign: no rebalance; a filter by setSubExpressionForAssign; a queue that stays goes on where it is."""
    lab.topic(queues=3)
    for number in range(3):
        lab.send(1, queue=number, tags="A")
        lab.send(1, queue=number, tags="B")
    first, second = make("l1"), make("l2")
    for consumer in (first, second):
        consumer.set_sub_expression_for_assign(TOPIC, "B")
        consumer.assign([queue(0), queue(1)])
        consumer.start(threads=False)
    assert polled(first) == polled(second) == ["m3", "m1"]
    lab.now_ms += 60_000
    first.poll(0)
    assert first.assignment() == [queue(0), queue(1)]
    first.assign([queue(1), queue(2)])
    assert polled(first) == ["m5"]


def test_subscribed_queues_are_shared_with_the_group(lab: Any, make: Any) -> None:
    lab.topic(queues=4)
    first, second = make("l1"), make("l2")
    for consumer in (first, second):
        consumer.subscribe(TOPIC)
        consumer.start(threads=False)
    for _ in range(3):
        lab.now_ms += 1000
        first.poll(0)
        second.poll(0)
    assert (first.assignment(), second.assignment()) == ([queue(0), queue(1)], [queue(2), queue(3)])
    second.shutdown()
    lab.now_ms += 1000
    first.poll(0)
    assert len(first.assignment()) == 4


def test_paused_queues_are_left_out(lab: Any, make: Any) -> None:
    lab.topic(queues=2)
    lab.send(1, queue=0)
    lab.send(1, queue=1)
    consumer = make()
    consumer.subscribe(TOPIC)
    consumer.start(threads=False)
    consumer.pause([queue(0)])
    assert polled(consumer) == ["m1"]
    consumer.resume([queue(0)])
    assert polled(consumer) == ["m0"]


@pytest.mark.statement("G07")
def test_where_a_new_group_starts_and_times_as_offsets(lab: Any, make: Any) -> None:
    lab.topic()
    lab.send(1)
    lab.now_ms += 3_600_000
    lab.send(1)
    consumer = make()
    assert consumer.fetch_message_queues(TOPIC) == [queue(0)]
    assert consumer.offset_for_timestamp(queue(0), lab.now_ms - 1) == 1
    local = make(
        "l2", "cg_all", message_model=MessageModel.BROADCASTING, offset_store_directory=lab.store.path / "offsets",
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
    )  # fmt: skip
    local.subscribe(TOPIC)
    local.start(threads=False)
    assert polled(local) == ["m1"]


def test_selectors_filter_subscribed_topics_and_the_progress_passes_what_was_left_out(lab: Any, make: Any) -> None:
    lab.topic()
    for price in (5, 50, 500):
        lab.store.send(Message(TOPIC, f"p{price}".encode(), properties={"price": str(price)}, queue_id=0))
    consumer = make()
    consumer.subscribe(TOPIC, MessageSelector.by_sql("price < 100"))
    consumer.start(threads=False)
    assert polled(consumer) == ["p5", "p50"]
    consumer.commit()
    assert lab.committed(group=GROUP) == 3


def test_due_messages_are_delivered_by_polling(lab: Any, make: Any) -> None:
    """Delivery without a daemon: whoever looks first delivers."""
    lab.topic()
    lab.store.send(Message(TOPIC, b"later", properties={"DELAY": "3"}, queue_id=0))
    consumer = make()
    consumer.subscribe(TOPIC)
    consumer.start(threads=False)
    lab.now_ms += 9_999
    assert polled(consumer) == []
    lab.now_ms += 1
    assert polled(consumer) == ["later"]


def test_a_thread_keeps_an_idle_consumer_in_its_group(lab: Any, make: Any) -> None:
    """Java's client sends heartbeats by itself; without them a member of 120 s ago is left out."""
    lab.topic()
    consumer = make()
    consumer.subscribe(TOPIC)
    consumer.start()
    lab.now_ms += 100_000
    deadline = 3_000
    while not consumer._ending.wait(0.02) and deadline:
        deadline -= 1
        (member,) = lab.backend.brokers()[BROKER]._groups._members.values()
        info = member.holder()
        if info is not None and info.heartbeat_ms == lab.now_ms:
            break
    assert deadline, "no heartbeat came"
    consumer.shutdown()
    assert lab.backend.brokers()[BROKER].consumer_ids(GROUP) == []


def test_misuse_is_named(lab: Any, make: Any) -> None:
    lab.topic()
    consumer = make()
    with pytest.raises(UsageError, match="not running"):
        consumer.poll(0)
    consumer.subscribe(TOPIC)
    with pytest.raises(UsageError, match="exclude each other"):
        consumer.assign([queue(0)])
    other = make("l2")
    other.assign([queue(0)])
    with pytest.raises(UsageError, match="exclude each other"):
        other.subscribe(TOPIC)
    other.start(threads=False)
    with pytest.raises(UsageError, match="comes before start"):
        other.set_sub_expression_for_assign(TOPIC, "A")
    with pytest.raises(UsageError, match="make a new consumer"):
        other.start(threads=False)
    nowhere = MessageQueue(TOPIC, "no-such-broker", 0)
    for call in (other.committed, other.seek_to_begin, lambda where: other.offset_for_timestamp(where, 0)):
        with pytest.raises(MQClientError, match="no-such-broker"):
            call(nowhere)
    with pytest.raises(UsageError, match="auto_commit_interval_millis"):
        LitePullConsumerConfig(auto_commit_interval_millis=999)
