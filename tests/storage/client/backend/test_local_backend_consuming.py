"""A store directory as a broker, for consumers: pulls, offsets, failed messages.

Sources: ConsumerManageProcessor (the rule of offset 0, offsets), PullMessageProcessor, AbstractSendMessageProcessor
(send-back).
"""

from __future__ import annotations

import os
import zlib
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_store import CorruptRecordError, Message, SubscriptionGroup, TopicConfig
from rmq_store.broker.processor import local_pull
from rmq_store.broker.processor.local_broker import LocalBroker
from rmq_store.client.backend.local import LocalBackend
from rmq_store.format.batches import frame_decoder
from rmq_store.format.tables.schema import MESSAGE_SCHEMA
from rmq_store.protocol.errors import MQBrokerError, ResponseCode
from rmq_store.protocol.messages import MessageQueue, PullStatus
from rmq_store.protocol.stored_messages import messages_of

from ..conftest import QUEUE, START_MS, advance, create_store, send_to

# -- pulling -----------------------------------------------------------------------------------------------------------


def test_a_pulled_message_has_every_field(broker: LocalBroker) -> None:
    sent = send_to(broker, b"hello", tags="TagA", keys="k1 k2", properties={"own": "p"}, flag=7, born_timestamp_ms=123)
    result = broker.pull("g", QUEUE, 0, 32)
    assert (result.status, result.next_begin_offset) == (PullStatus.FOUND, 1)
    assert (result.min_offset, result.max_offset) == (0, 1)
    (message,) = result.messages
    assert (message.topic, message.body, message.tags, message.keys) == ("T", b"hello", "TagA", "k1 k2")
    assert (message.queue_id, message.queue_offset, message.commit_log_offset) == (0, 0, sent.commit_log_offset)
    assert (message.msg_id, message.offset_msg_id) == (sent.msg_id, sent.offset_msg_id)
    assert (message.reconsume_times, message.flag, message.sys_flag) == (0, 7, 0)
    assert (message.born_timestamp_ms, message.store_timestamp_ms) == (123, START_MS)
    assert (message.born_host, message.store_host) == ("127.0.0.1:0", "127.0.0.1:10911")
    assert message.properties["own"] == "p"


def test_a_pull_answers_what_there_is(broker: LocalBroker) -> None:
    """PullMessageProcessor: the statuses of a store as a client sees them."""
    assert broker.pull("g", QUEUE, 0, 32).status is PullStatus.NO_NEW_MSG
    for n in range(5):
        send_to(broker, b"%d" % n)
    assert [m.body for m in broker.pull("g", QUEUE, 1, 3).messages] == [b"1", b"2", b"3"]
    assert broker.pull("g", QUEUE, 1, 3).next_begin_offset == 4
    end = broker.pull("g", QUEUE, 5, 3)
    assert (end.status, end.next_begin_offset) == (PullStatus.NO_NEW_MSG, 5)
    behind = broker.pull("g", QUEUE, 6, 3)
    assert (behind.status, behind.next_begin_offset) == (PullStatus.OFFSET_ILLEGAL, 5)
    before = broker.pull("g", QUEUE, -1, 3)
    assert (before.status, before.next_begin_offset) == (PullStatus.OFFSET_ILLEGAL, 0)


def test_a_pull_filters_by_tags(broker: LocalBroker) -> None:
    for n in range(300):
        send_to(broker, b"%d" % n, tags="TagA" if n % 100 == 50 else "TagB")
    result = broker.pull("g", QUEUE, 0, 32, "TagA")
    assert [m.body for m in result.messages] == [b"50", b"150", b"250"]
    assert (result.status, result.next_begin_offset) == (PullStatus.FOUND, 300)
    nothing = broker.pull("g", QUEUE, 0, 32, "TagC")
    assert (nothing.status, nothing.next_begin_offset, nothing.messages) == (PullStatus.NO_MATCHED_MSG, 300, [])
    assert len(broker.pull("g", QUEUE, 0, 32, "*").messages) == 32
    assert len(broker.pull("g", QUEUE, 0, 400, "TagA || TagB").messages) == 300
    # More matched than was asked for: the next pull begins behind the last one given.
    two = broker.pull("g", QUEUE, 0, 2, "TagA")
    assert ([m.body for m in two.messages], two.next_begin_offset) == ([b"50", b"150"], 151)


@pytest.mark.parametrize("tags", [None, "TagA", "TagA || TagB", "TagC"])
@pytest.mark.parametrize("max_count", [1, 2, 32, 400])
def test_a_pull_of_rows_is_the_pull_of_messages(broker: LocalBroker, tags: str | None, max_count: int) -> None:
    """Status, bounds, where to go on, and each message, from every kind of offset."""
    for n in range(300):
        send_to(broker, b"%d" % n, tags="TagA" if n % 100 == 50 else "TagB")
    for offset in (-1, 0, 51, 299, 300, 301):
        rows = broker.pull_batch("g", QUEUE, offset, max_count, tags)
        messages = broker.pull("g", QUEUE, offset, max_count, tags)
        said = [
            (each.status, each.next_begin_offset, each.min_offset, each.max_offset) for each in (rows, messages)
        ]
        assert said[0] == said[1]
        assert [m for batch in rows.batches for m in messages_of(batch, "broker-a")] == list(messages.messages)
        assert all(batch.schema == MESSAGE_SCHEMA and batch.num_rows for batch in rows.batches)


def test_rows_that_a_filter_leaves_are_one_batch(broker: LocalBroker) -> None:
    """256 entries are looked at in one go: each go by itself would be a call of a listener for a row or two."""
    for n in range(600):
        send_to(broker, b"%d" % n, tags="TagA" if n % 100 == 50 else "TagB")
    (batch,) = broker.pull_batch("g", QUEUE, 0, 32, "TagA").batches
    assert batch.column("body").to_pylist() == [b"50", b"150", b"250", b"350", b"450", b"550"]


def test_decompressed_bodies_that_no_column_could_hold_together_are_not_joined(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the store they are small: 1,024 bodies of zeros may be gigabytes."""
    for _ in range(2):
        for _ in range(257):
            send_to(broker, b"x", tags="B")
        broker.send(Message("T", zlib.compress(bytes(90_000)), tags="A"), 0, 3_000, "pg", sys_flag=0x301)
    monkeypatch.setattr(local_pull, "PULL_BATCH_BYTES_MAX", 180_000 // 2)
    assert len(broker.pull_batch("g", QUEUE, 0, 32, "A").batches) == 1
    monkeypatch.setattr(local_pull, "PULL_BATCH_BYTES_MAX", 180_000 // 2 - 1)
    assert [batch.num_rows for batch in broker.pull_batch("g", QUEUE, 0, 32, "A").batches] == [1, 1]


def test_a_pull_of_rows_is_bounded_in_bytes_but_gives_at_least_one_row(scratch: Path) -> None:
    """A read costs the same for a row and for a thousand, so more of them share one than in a pull of messages."""
    root = create_store(scratch / "large", mapped_file_size_commit_log=16 << 20)
    with LocalBackend(root) as backend:
        (broker,) = backend.brokers().values()
        broker.store.create_topic("T", 1)
        queue = MessageQueue("T", broker.name, 0)
        for _ in range(6):
            send_to(broker, os.urandom(1_000_000))
        assert [batch.num_rows for batch in broker.pull_batch("g", queue, 0, 32).batches] == [4]
        send_to(broker, os.urandom(4_194_000))
        assert [batch.num_rows for batch in broker.pull_batch("g", queue, 6, 32).batches] == [1]


def test_rows_name_their_broker_as_its_cluster_does(broker: LocalBroker) -> None:
    send_to(broker)
    with LocalBackend({"another": broker.store}) as backend:
        batches = backend.brokers()["another"].pull_batch("g", QUEUE, 0, 32).batches
    assert [batch.column("brokerName").to_pylist() for batch in batches] == [["another"]]
    assert [batch.schema for batch in batches] == [MESSAGE_SCHEMA]


def test_rows_are_sent_back_together_or_not_at_all(broker: LocalBroker) -> None:
    for n in range(3):
        send_to(broker, b"%d" % n)
    (rows,) = broker.pull_batch("g", QUEUE, 0, 32).batches
    ids = pa.array([*rows.column("msgId").to_pylist()[:2], "another"])
    before = broker.store.log_range()
    with pytest.raises(MQBrokerError, match="another"):
        broker.send_messages_back("g", rows.set_column(3, "msgId", ids), 1, None, 5_000)
    assert broker.store.log_range() == before
    broker.send_messages_back("g", rows.slice(0, 2), 1, None, 5_000)
    broker.send_messages_back("g", rows.slice(2), 0, 0, 5_000)
    retry, dead = MessageQueue("%RETRY%g", "broker-a", 0), MessageQueue("%DLQ%g", "broker-a", 0)
    assert [m.body for m in broker.pull("g", dead, 0, 32).messages] == [b"2"]
    advance(broker, 999)
    broker.deliver_due()
    assert broker.max_offset(retry) == 0
    advance(broker, 1)
    broker.deliver_due()
    found = broker.pull("g", retry, 0, 32).messages
    assert sorted((m.body, m.reconsume_times) for m in found) == [(b"0", 1), (b"1", 1)]


@pytest.mark.parametrize("room", [0, 10, 32, 33, 255, 256, 257, 500, 1000])
def test_where_there_is_room_the_messages_of_the_next_pulls_come_along(broker: LocalBroker, room: int) -> None:
    """A read of a store costs nearly the same for a row and for a thousand."""
    for n in range(600):
        send_to(broker, b"%d" % n)
    for offset in (0, 300, 590, 600):
        result = broker.pull("g", QUEUE, offset, 32, room=room)
        end = min(600, offset + max(32, room))
        assert [m.body for m in result.messages] == [b"%d" % n for n in range(offset, end)]
        assert (result.next_begin_offset, result.max_offset) == (end, 600)


def test_with_a_filter_only_what_was_looked_at_anyway_comes_along(broker: LocalBroker) -> None:
    """Who consumes little of a queue is not taken farther through it, and commits no later, than by a broker's pull."""
    for n in range(600):
        send_to(broker, b"%d" % n, tags="TagA" if n % 2 else "TagB")
    result = broker.pull("g", QUEUE, 0, 32, "TagA", room=1000)
    assert [m.body for m in result.messages] == [b"%d" % n for n in range(1, 256, 2)]
    assert result.next_begin_offset == 256
    result = broker.pull("g", QUEUE, 0, 32, "TagA", room=50)
    assert ([m.body for m in result.messages][49:], result.next_begin_offset) == ([b"99"], 100)


def test_what_comes_along_is_bounded_in_bytes_too(broker: LocalBroker) -> None:
    for _ in range(8):
        send_to(broker, os.urandom(100_000))
    assert len(broker.pull("g", QUEUE, 0, 1, room=1000).messages) == 2
    for _ in range(600):
        broker.send(Message("T", zlib.compress(bytes(2_000))), 0, 3_000, "pg", sys_flag=0x301)
    # A read knows only afterwards how large bodies were before they were compressed.
    assert len(broker.pull("g", QUEUE, 8, 32, room=1000).messages) == 256


def test_rows_for_which_there_is_room_are_read_in_steps_of_a_size_that_was_seen(broker: LocalBroker) -> None:
    """2 MiB of bodies: so much stored, and of those that were compressed about so much."""
    for _ in range(24):
        send_to(broker, os.urandom(100_000))
    (batch,) = broker.pull_batch("g", QUEUE, 0, 1, room=1000).batches
    assert batch.num_rows == 20
    for _ in range(900):
        broker.send(Message("T", zlib.compress(bytes(4_000))), 0, 3_000, "pg", sys_flag=0x301)
    (batch,) = broker.pull_batch("g", QUEUE, 24, 32, room=1000).batches
    assert batch.num_rows == (2 << 20) // 4_000 + 1


def test_how_large_bodies_are_is_known_from_the_last_pull_of_their_queue(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(1200):
        send_to(broker, b"%d" % n)
    reads: list[tuple[int, int]] = []
    read = broker.store.read
    monkeypatch.setattr(broker.store, "read", lambda *asked, **named: reads.append(asked[2:]) or read(*asked, **named))
    broker.pull_batch("g", QUEUE, 0, 32, room=600)
    assert reads == [(0, 256), (256, 600)]
    (batch,) = broker.pull_batch("g", QUEUE, 600, 32, room=600).batches
    assert reads[2:] == [(600, 1200)]
    assert batch.column("body").to_pylist() == [b"%d" % n for n in range(600, 1200)]


def test_bodies_of_which_a_few_fill_a_batch_are_not_read_all_at_once(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_decoder, "DECOMPRESSED_BYTES_MAX", 200_000)
    for n in range(250):
        broker.send(Message("T", zlib.compress(b"%d" % n + bytes(20_000))), 0, 3_000, "pg", sys_flag=0x301)
    offset, firsts = 0, []
    while offset < 250:
        result = broker.pull_batch("g", QUEUE, offset, 32, room=1000)
        bodies = [body for batch in result.batches for body in batch.column("body").to_pylist()]
        assert sum(map(len, bodies)) < (2 << 20) + 200_000
        firsts += [int(body.split(b"\0")[0]) for body in bodies]
        offset = result.next_begin_offset
    assert firsts == list(range(250))


def test_damage_in_what_comes_along_keeps_nobody_from_what_is_before_it(broker: LocalBroker) -> None:
    places = [send_to(broker, b"body of %d" % n).commit_log_offset for n in range(50)]
    with (broker.store.path / "commitlog" / f"{0:020d}").open("r+b") as segment:
        segment.seek(places[40] + 4)
        segment.write(b"none")  # the frame's magic
    assert len(broker.pull("g", QUEUE, 0, 32, room=1000).messages) == 32
    assert len(broker.pull("g", QUEUE, 32, 8, room=1000).messages) == 8
    with pytest.raises(CorruptRecordError):
        broker.pull("g", QUEUE, 32, 9, room=1000)


def test_tags_of_equal_hash_are_told_apart(broker: LocalBroker) -> None:
    send_to(broker, b"1", tags="Aa")
    send_to(broker, b"2", tags="BB")
    assert [m.body for m in broker.pull("g", QUEUE, 0, 32, "BB").messages] == [b"2"]


def test_a_pull_is_bounded_in_bytes_but_gives_at_least_one_message(broker: LocalBroker) -> None:
    for _ in range(8):
        send_to(broker, os.urandom(100_000), tags="A")
    assert len(broker.pull("g", QUEUE, 0, 32).messages) == 2
    # With a filter it looks on after each 256 KiB of the queue, until it has so much.
    assert len(broker.pull("g", QUEUE, 0, 32, "A").messages) == 4
    send_to(broker, os.urandom(600_000))
    assert len(broker.pull("g", QUEUE, 8, 32).messages) == 1


def test_a_compressed_body_is_read_as_it_was_sent(broker: LocalBroker) -> None:
    broker.send(Message("T", zlib.compress(b"x" * 9_000)), 0, 3_000, "pg", sys_flag=0x301)
    (message,) = broker.pull("g", QUEUE, 0, 1).messages
    assert (message.body, message.sys_flag) == (b"x" * 9_000, 0x300)  # no more compressed
    batch = next(broker.store.read("T", 0, 0, 1, columns=["body"], raw_body=True))
    assert batch.column("body")[0].as_py() == zlib.compress(b"x" * 9_000)


def test_who_may_not_consume_is_told_so(broker: LocalBroker) -> None:
    def code(group: str, queue: MessageQueue) -> int:
        with pytest.raises(MQBrokerError) as caught:
            broker.pull(group, queue, 0, 1)
        return caught.value.response_code

    broker.store._groups.create(SubscriptionGroup("off", consume_enable=False))
    assert code("off", QUEUE) == ResponseCode.NO_PERMISSION
    assert code("g", MessageQueue("None", "broker-a", 0)) == ResponseCode.TOPIC_NOT_EXIST
    assert code("g", MessageQueue("T", "broker-a", 2)) == ResponseCode.SYSTEM_ERROR
    broker.store._topics.update(TopicConfig("T", 2, 2, 2))
    assert code("g", QUEUE) == ResponseCode.NO_PERMISSION


# -- offsets -----------------------------------------------------------------------------------------------------------


def test_offsets_of_a_queue(broker: LocalBroker) -> None:
    """getMaxOffsetInQueue, getMinOffsetInQueue: an unknown queue has neither messages nor a minimum."""
    assert (broker.min_offset(QUEUE), broker.max_offset(QUEUE)) == (0, 0)
    send_to(broker)
    advance(broker, 1_000)
    send_to(broker)
    assert (broker.min_offset(QUEUE), broker.max_offset(QUEUE)) == (0, 2)
    times = (START_MS - 1, START_MS, START_MS + 1, START_MS + 1_000, START_MS + 1_001)
    assert [broker.offset_by_time(QUEUE, time_ms) for time_ms in times] == [0, 0, 1, 1, 2]


def test_a_commit_changes_the_queues_it_names(broker: LocalBroker) -> None:
    other = MessageQueue("T", "broker-a", 1)
    assert broker.update_consumer_offsets("g", {QUEUE: 5, other: 6}) == {QUEUE, other}
    assert broker.update_consumer_offsets("g", {QUEUE: 3}) == {QUEUE}
    assert (broker.query_consumer_offset("g", QUEUE), broker.query_consumer_offset("g", other)) == (3, 6)
    assert broker.store.committed_offsets("g") == {("T", 0): 3, ("T", 1): 6}


def test_a_commit_can_be_bound_to_the_lock_of_the_queue(broker: LocalBroker) -> None:
    other = MessageQueue("T", "broker-a", 1)
    assert broker.lock_queues("g", "me", [QUEUE]) == {QUEUE}
    assert broker.update_consumer_offsets("g", {QUEUE: 5, other: 6}, lock_owner="me") == {QUEUE}
    assert broker.update_consumer_offsets("g", {QUEUE: 7}, lock_owner="you") == set()
    broker.unlock_queues("g", "me", [QUEUE])
    assert broker.update_consumer_offsets("g", {QUEUE: 8}, lock_owner="me") == set()
    assert broker.store.committed_offsets("g") == {("T", 0): 5}


@pytest.mark.statement("G07")
def test_a_new_group_starts_at_0_while_the_first_message_is_hot(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ConsumerManageProcessor#queryConsumerOffset with the 4.x rule: 40 % of the memory."""
    assert broker.query_consumer_offset("new", QUEUE) == 0  # empty queue
    first = send_to(broker)
    send_to(broker, os.urandom(20_000))
    distance = broker.store.log_range()[1] - first.commit_log_offset
    assert broker.query_consumer_offset("new", QUEUE) == 0

    def memory(pages: int) -> None:
        monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": pages, "SC_PAGE_SIZE": 1}.__getitem__)

    memory(distance * 100 // 40 + 3)
    assert broker.query_consumer_offset("new", QUEUE) == 0
    memory(distance * 100 // 40 - 3)
    assert broker.query_consumer_offset("new", QUEUE) is None
    # A committed offset wins, whatever is hot.
    broker.update_consumer_offsets("new", {QUEUE: 1})
    assert broker.query_consumer_offset("new", QUEUE) == 1


def test_a_queue_that_lost_its_first_messages_has_no_offset_for_a_new_group(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_to(broker)
    monkeypatch.setattr(LocalBroker, "min_offset", lambda self, queue: 1)
    assert broker.query_consumer_offset("new", QUEUE) is None


def test_the_rule_of_the_hot_queue_can_be_switched_off(local_home: dict[str, Path]) -> None:
    with LocalBackend(local_home, strict_last_offset=True) as backend:
        assert backend.brokers()["broker-a"].query_consumer_offset("new", QUEUE) is None


# -- failed and delayed messages ---------------------------------------------------------------------------------------


def test_a_message_sent_back_comes_again_when_it_is_due(broker: LocalBroker) -> None:
    send_to(broker, b"again")
    (message,) = broker.pull("g", QUEUE, 0, 1).messages
    broker.send_message_back("g", message, 0, None, 5_000, properties={"why": "because"})
    retry = MessageQueue("%RETRY%g", "broker-a", 0)
    broker.deliver_due()
    assert broker.max_offset(retry) == 0
    advance(broker, 10_000)
    broker.deliver_due()
    (again,) = broker.pull("g", retry, 0, 1).messages
    assert (again.body, again.reconsume_times, again.msg_id) == (b"again", 1, message.msg_id)
    assert (again.properties["RETRY_TOPIC"], again.properties["why"]) == ("T", "because")


def test_a_message_can_go_straight_to_the_dead_letters(local_cluster: LocalBackend, broker: LocalBroker) -> None:
    send_to(broker, b"dead")
    (message,) = broker.pull("g", QUEUE, 0, 1).messages
    broker.send_message_back("g", message, -1, None, 5_000)
    assert local_cluster.subscribe_queues("%DLQ%g") == [MessageQueue("%DLQ%g", "broker-a", 0)]
    assert broker.max_offset(MessageQueue("%DLQ%g", "broker-a", 0)) == 1


def test_a_message_that_is_not_there_cannot_be_sent_back(broker: LocalBroker) -> None:
    send_to(broker)
    (message,) = broker.pull("g", QUEUE, 0, 1).messages
    with pytest.raises(MQBrokerError) as caught:
        broker.send_message_back("g", replace(message, commit_log_offset=12_345_678), 0, None, 5_000)
    assert caught.value.response_code == ResponseCode.SYSTEM_ERROR


def test_what_cannot_be_sent_back_is_sent_to_the_retry_topic(broker: LocalBroker) -> None:
    broker.send_to_retry("g", Message("T", b"exhausted"), 3, 2)
    assert broker.max_offset(MessageQueue("%DLQ%g", "broker-a", 0)) == 1
    broker.send_to_retry("g", Message("T", b"not yet"), 1, 2)
    advance(broker, 60_000)
    broker.deliver_due()
    assert broker.max_offset(MessageQueue("%RETRY%g", "broker-a", 0)) == 1
