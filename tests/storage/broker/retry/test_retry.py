"""Send-backs of single messages: every step of CONSUMER_SEND_MSG_BACK, and the way of one message hop by hop.

Rules: AbstractSendMessageProcessor#consumerSendMsgBack, ScheduleMessageService#messageTimeUp.
"""

from __future__ import annotations

import json
import shutil
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmq_store import (
    CorruptRecordError,
    Message,
    ReadOnlyError,
    ResponseError,
    SentBack,
    Store,
    StoreConfig,
    StoredMessage,
    StoreError,
    SubscriptionGroup,
    TopicConfig,
    UsageError,
    failure,
)
from rmq_store.files import durable
from rmq_store.format.batches.frame_encoder import EncodeOptions, encode_batch
from rmq_store.format.text.hashing import java_hash
from rmq_store.format.text.host import Host
from rmq_store.log.append.append import append, append_lock
from rmq_store.verify import verify_store

GROUP = "CG1"
RETRY, DLQ, SCHEDULE = "%RETRY%CG1", "%DLQ%CG1", "SCHEDULE_TOPIC_XXXX"


@pytest.fixture
def store(parking: Any) -> Any:
    with parking.open() as opened:
        opened.create_topic("TopicJ", 2)
        yield opened
    assert verify_store(parking.root).status == "clean"


def send(store: Store, body: bytes = b"tea", **fields: Any) -> int:
    properties = {"WAIT": "true", "mine": "π", **fields.pop("properties", {})}
    message = Message("TopicJ", body, tags="TagA", keys="k1 k2", properties=properties, flag=-7, queue_id=1, **fields)
    return store.send(message).commit_log_offset


def newest(store: Store, topic: str, queue_id: int) -> StoredMessage:
    last = store.queue_range(topic, queue_id).max_offset
    (batch,) = store.read(topic, queue_id, last - 1, last, columns=["commitLogOffset"])
    return store.message_at(batch.column(0)[0].as_py())


def tags_code(store: Store, topic: str, queue_id: int) -> int:
    last = store.queue_range(topic, queue_id).max_offset
    return int(store._log.views.queue(topic, queue_id).entry(last - 1)[2])


def without(properties: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name not in names}


# -- the hop table ----------------------------------------------------------------------------------------------------


@pytest.mark.statement("B03", "B05", "B14", "C03", "C04", "C06", "D01", "D04")
@pytest.mark.parametrize("crc_property", [True, False])
def test_one_message_hop_by_hop_with_two_retries(parking: Any, scratch: Path, crc_property: bool) -> None:
    """Values of a real broker (4.9.8): every column of the table, and what is constant over all hops."""
    config = replace(parking.config, enabled_append_prop_crc=crc_property, broker_host="10.0.0.9:10911")
    case = replace(parking, root=scratch / "hops", config=config)
    with case.open() as store:
        store.create_topic("TopicJ", 2)
        store.create_group(SubscriptionGroup(GROUP, retry_max_times=2))
        original = store.message_at(send(store, born_timestamp_ms=123_456))
        assert (original.topic, original.queue_id, original.reconsume_times) == ("TopicJ", 1, 0)
        assert tags_code(store, "TopicJ", 1) == java_hash("TagA")
        added = {"RETRY_TOPIC": "TopicJ", "ORIGIN_MESSAGE_ID": original.offset_msg_id, "WAIT": "false"}
        real = {"REAL_TOPIC": RETRY, "REAL_QID": "0"}
        failed = original
        for times, level, delay_ms in ((1, 3, 10_000), (2, 4, 30_000)):
            answer = store.retry.send_back(GROUP, failed.commit_log_offset)
            parked = newest(store, SCHEDULE, level - 1)
            assert answer == SentBack(RETRY, level, times, parked.commit_log_offset)
            assert (parked.topic, parked.queue_id, parked.reconsume_times) == (SCHEDULE, level - 1, times)
            assert parked.properties == original.properties | added | real | {"DELAY": str(level)}
            assert parked.store_timestamp_ms == case.now_ms
            assert tags_code(store, SCHEDULE, level - 1) == case.now_ms + delay_ms
            case.now_ms += delay_ms - 1
            assert store.schedule.deliver_due().delivered == 0
            case.now_ms += 1
            assert store.schedule.deliver_due().delivered == 1
            due = newest(store, RETRY, 0)
            assert (due.topic, due.queue_id, due.reconsume_times) == (RETRY, 0, times)
            assert due.properties == parked.properties
            if not crc_property:
                assert due.properties_raw == parked.properties_raw
            assert tags_code(store, RETRY, 0) == java_hash("TagA")
            failed = due
        assert DLQ not in store.topics()
        answer = store.retry.send_back(GROUP, failed.commit_log_offset)
        dead = newest(store, DLQ, 0)
        assert answer == SentBack(DLQ, 0, 3, dead.commit_log_offset)
        assert answer.is_dead
        assert (dead.topic, dead.queue_id, dead.reconsume_times) == (DLQ, 0, 3)
        assert dead.properties == original.properties | added | real | {"DELAY": "0"}
        assert tags_code(store, DLQ, 0) == java_hash("TagA")
        for hop in (parked, due, dead):
            for name in ("body", "body_crc", "flag", "sys_flag", "born_timestamp_ms", "born_host", "msg_id", "keys"):
                assert getattr(hop, name) == getattr(original, name), name
            assert hop.store_host == Host.parse("10.0.0.9:10911")
            assert hop.prepared_transaction_offset == 0
    assert verify_store(case.root).status == "clean"


# -- step by step -----------------------------------------------------------------------------------------------------


@pytest.mark.statement("C11", "C12", "D05")
def test_steps_1_and_5_make_the_group_and_its_retry_topic_when_a_message_needs_them(store: Store) -> None:
    assert GROUP not in store.groups()
    assert RETRY not in store.topics()
    store.retry.send_back(GROUP, send(store))
    assert store.groups()[GROUP] == SubscriptionGroup(GROUP)
    assert store.topic(RETRY) == TopicConfig(RETRY, 1, 1, 6)
    assert DLQ not in store.topics()
    store.retry.send_back(GROUP, send(store), delay_level=-1)
    assert store.topic(DLQ) == TopicConfig(DLQ, 1, 1, 6)


def test_step_1_refuses_an_unknown_group_when_none_is_made(parking: Any, scratch: Path) -> None:
    """26 SUBSCRIPTION_GROUP_NOT_EXIST; a known group is served."""
    config = replace(parking.config, auto_create_subscription_group=False)
    case = replace(parking, root=scratch / "closed", config=config)
    with case.open() as store:
        offset = send(store)
        end = store.log_range()
        for call in (
            lambda: store.retry.send_back(GROUP, offset),
            lambda: store.retry.send_back_all(GROUP, pa.record_batch({"commitLogOffset": [offset], "msgId": ["x"]})),
            lambda: store.retry.send_to_retry(GROUP, Message("TopicJ", b""), 1),
            lambda: store.retry.set_max_reconsume_times(GROUP, 1),
            lambda: store.retry.prepare(GROUP),
        ):
            with pytest.raises(ResponseError, match=GROUP) as caught:
                call()
            assert caught.value.response_code == 26
        assert (store.log_range(), GROUP in store.groups(), RETRY in store.topics()) == (end, False, False)
        store.create_group(SubscriptionGroup(GROUP))
        assert store.retry.send_back(GROUP, offset).reconsume_times == 1


def test_step_2_a_store_opened_for_reading_sends_nothing_back(parking: Any, store: Store) -> None:
    store.flush()
    with parking.open(read_only=True) as reader, pytest.raises(ReadOnlyError):
        reader.retry.send_back(GROUP, 0)


def test_step_3_a_group_without_retry_queues_drops_failed_messages(store: Store) -> None:
    """SUCCESS, and nothing is looked at: not even a wrong offset shows."""
    store.create_group(SubscriptionGroup(GROUP, retry_queue_nums=0))
    end = store.log_range()
    for offset in (send(store), -5):
        end = store.log_range()
        assert store.retry.send_back(GROUP, offset) == SentBack("", 0, 0, -1)
        assert store.log_range() == end
    assert RETRY not in store.topics()


def test_step_4_chooses_among_the_retry_queues_by_chance(store: Store) -> None:
    store.create_group(SubscriptionGroup(GROUP, retry_queue_nums=3))
    offset = send(store)
    copies = [store.retry.send_back(GROUP, offset).commit_log_offset for _ in range(60)]
    assert {store.message_at(copy).properties["REAL_QID"] for copy in copies} == {"0", "1", "2"}
    assert store.topic(RETRY).read_queue_nums == 3


def test_step_4_never_chooses_a_queue_that_the_topic_does_not_have(store: Store) -> None:
    """retryQueueNums was raised later: what goes to queue 1 and up would never be read."""
    store.create_group(SubscriptionGroup(GROUP))
    store.retry.prepare(GROUP)
    store.update_group(SubscriptionGroup(GROUP, retry_queue_nums=50))
    offset = send(store)
    copies = [store.retry.send_back(GROUP, offset).commit_log_offset for _ in range(20)]
    assert {store.message_at(copy).properties["REAL_QID"] for copy in copies} == {"0"}


@pytest.mark.parametrize("perm", [4, 0])
def test_step_5_refuses_a_retry_topic_that_may_not_be_written(store: Store, perm: int) -> None:
    """16 NO_PERMISSION."""
    store._topics.create(TopicConfig(RETRY, 1, 1, perm))
    with pytest.raises(ResponseError, match=RETRY) as caught:
        store.retry.send_back(GROUP, send(store))
    assert caught.value.response_code == 16


def test_step_6_refuses_an_offset_at_which_no_message_begins(store: Store) -> None:
    """1, "look message by offset failed": behind the end, inside a record, before the start; nothing is written."""
    offset = send(store)
    store.retry.prepare(GROUP)
    start, end = store.log_range()
    for wrong in (end, end + 5, offset + 1, offset - 1, -1, 2**62, start - 1):
        with pytest.raises(ResponseError, match=f"look message by offset failed, {wrong}") as caught:
            store.retry.send_back(GROUP, wrong)
        assert caught.value.response_code == 1
        assert store.log_range() == (start, end)


def test_step_6_a_damaged_message_is_not_copied(store: Store) -> None:
    """A copy would get a checksum of its own, and vouch for the damage."""
    offset = send(store, b"tea for two")
    store.flush()
    path = store._log.segments.path(0)
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(data.index(b"tea for two"))
        file.write(b"T")
    try:
        with pytest.raises(CorruptRecordError):
            store.retry.send_back(GROUP, offset)
        with pytest.raises(CorruptRecordError):
            store.message_at(offset)
    finally:
        with path.open("r+b") as file:
            file.write(data)


def test_step_6_the_message_must_be_the_one_that_the_caller_means(store: Store) -> None:
    offset = send(store)
    right = store.message_at(offset).msg_id
    with pytest.raises(UsageError, match=f"the message at {offset} is '{right}', not 'other'"):
        store.retry.send_back(GROUP, offset, msg_id="other")
    assert store.retry.send_back(GROUP, offset, msg_id=right).reconsume_times == 1


@pytest.mark.statement("B10")
def test_step_9_the_maximum_is_the_requests_own_else_the_groups(store: Store) -> None:
    """B10: the last one who sets it wins for the group; a request's own maximum counts for itself."""
    offset = send(store)
    store.retry.set_max_reconsume_times(GROUP, 5)
    store.retry.set_max_reconsume_times(GROUP, 0)
    assert store.groups()[GROUP].retry_max_times == 0
    assert store.retry.send_back(GROUP, offset).is_dead
    assert not store.retry.send_back(GROUP, offset, max_reconsume_times=1).is_dead
    assert store.groups()[GROUP].retry_max_times == 0
    store.retry.set_max_reconsume_times(GROUP, 1)
    assert not store.retry.send_back(GROUP, offset).is_dead
    assert store.retry.send_back(GROUP, offset, max_reconsume_times=-1).is_dead


def test_setting_the_same_maximum_again_writes_nothing(store: Store) -> None:
    store.retry.set_max_reconsume_times(GROUP, 3)
    path = store.path / "config" / "subscriptionGroup.json"
    before = path.stat().st_ino, path.read_bytes()
    store.retry.set_max_reconsume_times(GROUP, 3)
    store.retry.prepare(GROUP, 3)
    assert (path.stat().st_ino, path.read_bytes()) == before
    for bad in (None, "3", 2**31, True):
        with pytest.raises(UsageError, match="32-bit"):
            store.retry.set_max_reconsume_times(GROUP, bad)  # type: ignore[arg-type]


def test_a_change_of_the_maximum_keeps_what_others_changed_meanwhile(store: Store) -> None:
    store.create_group(SubscriptionGroup(GROUP, consume_enable=False, attributes={"a": "b"}))
    store.retry.set_max_reconsume_times(GROUP, 3)
    assert store.groups()[GROUP] == SubscriptionGroup(
        GROUP, consume_enable=False, attributes={"a": "b"}, retry_max_times=3
    )


def test_step_10_dead_letter_topics_get_the_stores_dlq_perm(parking: Any, scratch: Path) -> None:
    """Brokers before 4.9.2 made them write-only."""
    case = replace(parking, root=scratch / "perm", config=replace(parking.config, dlq_perm=2))
    with case.open() as store:
        store.retry.send_back(GROUP, send(store), delay_level=-1)
        assert store.topic(DLQ).perm == 2
    with pytest.raises(UsageError, match="dlqPerm"):
        StoreConfig(dlq_perm=4)


def test_step_12_bodies_stay_as_they_are_stored_and_so_does_their_flag(store: Store) -> None:
    """A body that its producer compressed: sysFlag 1 and the bits of zlib."""
    message = Message("TopicJ", bytes(range(256)), queue_id=0)
    offset = store.send(message, sys_flag=0x301).commit_log_offset
    for level in (0, -1):
        copy = store.message_at(store.retry.send_back(GROUP, offset, delay_level=level).commit_log_offset)
        assert (copy.body, copy.sys_flag) == (message.body, 0x301)


def test_a_half_message_cannot_have_failed(store: Store) -> None:
    row = pa.record_batch({"topic": ["TopicJ"], "body": [b"half"], "sysFlag": pa.array([4], pa.int32())})
    options = EncodeOptions(
        store_host=Host.parse("127.0.0.1:1"), born_host=Host.parse("127.0.0.1:0"), now_ms=1, crc_property=True
    )
    with append_lock(store._log):
        appended = append(store._log, [encode_batch(row, queue_ids=np.zeros(1, np.int32), options=options)])
    with pytest.raises(ResponseError, match="half message"):
        store.retry.send_back(GROUP, appended.start)
    rows = pa.record_batch({"commitLogOffset": [appended.start], "msgId": [store.message_at(appended.start).msg_id]})
    with pytest.raises(ResponseError, match=r"row 0: .* half message"):
        store.retry.send_back_all(GROUP, rows)


@pytest.mark.parametrize("group", ["", "a b", "../x", "x" * 121])
def test_what_is_no_group_name_is_refused(store: Store, group: str) -> None:
    with pytest.raises(UsageError, match="group"):
        store.retry.send_back(group, 0)


# -- reasons ----------------------------------------------------------------------------------------------------------


def test_without_reasons_a_copy_says_nothing_that_a_brokers_would_not(store: Store) -> None:
    copy = store.message_at(store.retry.send_back(GROUP, send(store)).commit_log_offset)
    assert not [name for name in copy.properties if name.startswith("PYRMQ")]


def test_reasons_travel_to_the_dead_letter_with_the_place_of_the_original(store: Store) -> None:
    """The origin is written down when a message fails first."""
    offset = send(store)
    original = store.message_at(offset)
    sent = store.retry.send_back(
        GROUP, offset, properties={failure.ERROR_CLASS: "KeyError", failure.FIRST_FAILURE_MS: "1"}
    )
    second = store.retry.send_back(
        GROUP, sent.commit_log_offset, delay_level=-1,
        properties={failure.ERROR_CLASS: "OSError", failure.FIRST_FAILURE_MS: "2", "note": "x"},
    )  # fmt: skip
    dead = store.message_at(second.commit_log_offset)
    assert {name: value for name, value in dead.properties.items() if name.startswith("PYRMQ") or name == "note"} == {
        failure.ERROR_CLASS: "OSError", failure.FIRST_FAILURE_MS: "1", "note": "x", failure.ORIGIN_TOPIC: "TopicJ",
        failure.ORIGIN_QUEUE_ID: "1", failure.ORIGIN_QUEUE_OFFSET: str(original.queue_offset),
    }  # fmt: skip


def test_a_message_whose_own_properties_leave_no_room_stays_with_the_caller(store: Store) -> None:
    """1 PROPERTIES_SIZE_EXCEEDED: nothing is written, nothing of the message is thrown away."""
    small = send(store, properties={"large": "x"})
    parked = store.message_at(store.retry.send_back(GROUP, small).commit_log_offset)
    room = 32_767 - 20 - failure.size_bytes(parked.properties)  # 20: the CRC property
    fits = send(store, properties={"large": "x" * (1 + room)})
    assert len(store.message_at(store.retry.send_back(GROUP, fits).commit_log_offset).properties_raw) == 32_767
    offset = send(store, properties={"large": "x" * (2 + room)})
    end = store.log_range()
    with pytest.raises(ResponseError, match="PROPERTIES_SIZE_EXCEEDED") as caught:
        store.retry.send_back(GROUP, offset, properties={failure.ERROR_CLASS: "E"})
    assert caught.value.response_code == 1
    assert store.log_range() == end
    # A dead letter says less (no REAL_TOPIC), so there is room for it, and for a message that is cut.
    dead = store.retry.send_back(GROUP, offset, delay_level=-1, properties={failure.ERROR_MESSAGE: "m" * 500})
    copy = store.message_at(dead.commit_log_offset)
    assert copy.properties["large"] == "x" * (2 + room)
    assert len(copy.properties_raw) <= 32_767


def test_a_reason_is_cut_to_the_byte_that_is_left(store: Store) -> None:
    offset = send(store, properties={"large": "x" * 32_000})
    reasons = {failure.ERROR_MESSAGE: "m" * 2000, failure.ERROR_CLASS: "E"}
    sent = store.retry.send_back(GROUP, offset, properties=reasons)
    copy = store.message_at(sent.commit_log_offset)
    assert len(copy.properties_raw) == 32_767
    assert copy.properties[failure.ERROR_CLASS] == "E"
    assert 100 < len(copy.properties[failure.ERROR_MESSAGE]) < 2000
    # The next hop says the same at the same length: the reasons of the first give way to it.
    again = store.message_at(store.retry.send_back(GROUP, sent.commit_log_offset, delay_level=10).commit_log_offset)
    assert len(again.properties_raw) == 32_767


# -- SEND to the retry topic: SendMessageProcessor#handleRetryAndDLQ ---------------------------------------------------


def test_a_message_sent_to_retry_is_parked_and_comes_back(parking: Any, store: Store) -> None:
    message = Message(
        "TopicJ", b"tea", tags="TagA", keys="k", properties={"UNIQ_KEY": "u", "DELAY": "9", "TRAN_MSG": "true"}, flag=3,
        born_timestamp_ms=77,
    )  # fmt: skip
    answer = store.retry.send_to_retry(GROUP, message, 1, 16)
    parked = store.message_at(answer.commit_log_offset)
    assert answer == SentBack(RETRY, 3, 1, parked.commit_log_offset)
    assert (parked.topic, parked.queue_id, parked.reconsume_times, parked.flag) == (SCHEDULE, 2, 1, 3)
    assert (parked.born_timestamp_ms, parked.body) == (77, b"tea")
    assert parked.properties == {
        "UNIQ_KEY": "u", "KEYS": "k", "TAGS": "TagA", "DELAY": "3", "RETRY_TOPIC": "TopicJ", "ORIGIN_MESSAGE_ID": "u",
        "RECONSUME_TIME": "1", "MAX_RECONSUME_TIMES": "16", "REAL_TOPIC": RETRY, "REAL_QID": "0",
    }  # fmt: skip
    parking.now_ms += 10_000
    assert store.schedule.deliver_due().delivered == 1
    assert newest(store, RETRY, 0).reconsume_times == 1


def test_an_exhausted_ordered_message_is_dead_at_once_as_in_a_real_5x_broker(store: Store, golden: Path) -> None:
    """golden: cg_fifo, maximum 2, user-7-003; born host and the properties that its client added are the client's."""
    with Store.open(golden / "store", read_only=True) as broker:
        (batch,) = broker.read("%DLQ%cg_fifo", 0, 0, 1, columns=["commitLogOffset"])
        theirs = broker.message_at(batch.column(0)[0].as_py())
    given = without(
        theirs.properties, "DELAY", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID"
    )
    message = Message(
        "FifoTopic", theirs.body, properties=given, flag=theirs.flag, born_timestamp_ms=theirs.born_timestamp_ms
    )
    ours = store.message_at(store.retry.send_to_retry("cg_fifo", message, 3, 2).commit_log_offset)
    for name in ("topic", "queue_id", "reconsume_times", "sys_flag", "flag", "body", "born_timestamp_ms", "properties"):
        assert getattr(ours, name) == getattr(theirs, name), name


def test_the_maximum_of_a_resent_message_is_the_groups_unless_it_brings_its_own(store: Store) -> None:
    store.create_group(SubscriptionGroup(GROUP, retry_max_times=1))
    message = Message("TopicJ", b"")
    assert not store.retry.send_to_retry(GROUP, message, 1).is_dead
    assert store.retry.send_to_retry(GROUP, message, 2).is_dead
    assert not store.retry.send_to_retry(GROUP, message, 2, 2).is_dead
    assert store.retry.send_to_retry(GROUP, message, 1, n_plus_one=False).is_dead
    assert store.retry.send_to_retry(GROUP, message, 2).delay_level == 0


def test_a_resent_message_gets_a_queue_even_in_a_group_without_retry_queues(store: Store) -> None:
    store.create_group(SubscriptionGroup(GROUP, retry_queue_nums=0))
    assert store.retry.send_to_retry(GROUP, Message("TopicJ", b""), 1).topic == RETRY
    assert store.topic(RETRY).read_queue_nums == 1


def test_a_resent_message_that_is_too_large_is_illegal(parking: Any, store: Store) -> None:
    """13 MESSAGE_ILLEGAL."""
    for message in (
        Message("TopicJ", bytes(store.config.max_message_size + 1)),
        Message("TopicJ", b"", properties={"large": "x" * 32_700}),
        Message("TopicJ", None),  # type: ignore[arg-type]
    ):
        with pytest.raises(ResponseError) as caught:
            store.retry.send_to_retry(GROUP, message, 1)
        assert caught.value.response_code == 13


def test_a_resent_message_keeps_the_compression_of_its_body_and_its_host(store: Store) -> None:
    body, host = zlib.compress(b"tea" * 1000), Host.parse("192.0.2.1:4711")
    answer = store.retry.send_to_retry(GROUP, Message("TopicJ", body), 1, sys_flag=0x301, born_host=host)
    stored = store.message_at(answer.commit_log_offset)
    assert (stored.body, stored.sys_flag, stored.born_host) == (body, 0x301, host)
    with pytest.raises(UsageError, match="0x4: only the bits 0x701"):
        store.retry.send_to_retry(GROUP, Message("TopicJ", body), 1, sys_flag=4)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (Message("TopicJ", b"", properties={"a": "x\x02REAL_TOPIC\x01evil"}), "property 'a'"),
        (Message("TopicJ", b"", properties={"a\x01b": "x"}), "name of a property"),
        (Message("TopicJ", b"", properties={"": "x"}), "name of a property"),
        (Message("TopicJ", b"", properties={"a": "\ud800"}), "property 'a'"),
        (Message("TopicJ", b"", properties={"a": 5}), "property 'a' is int"),  # type: ignore[dict-item]
        (Message("T\x02REAL_TOPIC\x01evil", b""), "property 'RETRY_TOPIC'"),
    ],
)
def test_a_resent_message_whose_properties_cannot_be_stored_is_refused(
    store: Store, message: Message, problem: str
) -> None:
    """A value with a separator would bring properties of its own."""
    with pytest.raises(UsageError, match=problem):
        store.retry.send_to_retry(GROUP, message, 1)


def test_a_resent_message_keeps_values_as_they_were_read(store: Store) -> None:
    """A value may hold a separator of names (MessageDecoder#string2messageProperties)."""
    answer = store.retry.send_to_retry(GROUP, Message("TopicJ", b"", properties={"a": "x\x01y"}), 1)
    assert store.message_at(answer.commit_log_offset).properties["a"] == "x\x01y"


# -- a real broker's hops ---------------------------------------------------------------------------------------------

BROKER = StoreConfig(
    flush_interval_commit_log=10**9,  # no thread of this store may meet what other tests make fail
    broker_host="127.0.0.1:20911",
    message_delay_level="1s 1s 2s 2s 3s 3s 4s 4s 5s 5s 6s 6s 7s 7s 8s 8s 9s 2h",
    enabled_append_prop_crc=False,
)
FIELDS = (
    "topic", "queue_id", "reconsume_times", "flag", "sys_flag", "body", "body_crc", "born_timestamp_ms", "born_host",
    "store_host", "prepared_transaction_offset", "properties", "msg_id",
)  # fmt: skip


@pytest.fixture(scope="module")
def broker(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A copy of the golden store, opened for writing with its broker's settings."""
    root = tmp_path_factory.mktemp("retry") / "store"
    shutil.copytree(golden / "store", root, copy_function=shutil.copyfile)
    for path in [root, *root.rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)
    with Store.open(root, config=BROKER) as store:
        yield store


def hops_of(store: Store, group: str) -> dict[str, list[StoredMessage]]:
    """{UNIQ_KEY: the records of a message of this group in log order}, the original first."""
    found: dict[str, list[StoredMessage]] = {}
    topics = {"SCHEDULE_TOPIC_XXXX", f"%RETRY%{group}", f"%DLQ%{group}"}
    for topic in topics:
        for queue_id, (first, last) in store.queue_ranges(topic).items():
            for batch in store.read(topic, queue_id, first, last, columns=["commitLogOffset"]):
                for offset in batch.column(0).to_pylist():
                    record = store.message_at(offset)
                    if record.properties.get("REAL_TOPIC") == f"%RETRY%{group}":
                        found.setdefault(record.msg_id, []).append(record)
    for records in found.values():
        origin = int(records[0].properties["ORIGIN_MESSAGE_ID"][16:], 16)
        records.append(store.message_at(origin))
        records.sort(key=lambda record: record.commit_log_offset)
    return found


def test_all_hops_of_a_real_broker_come_out_the_same(broker: Store) -> None:
    """golden: 593 messages of cg_orders fail up to four times, maximum 3. For each record that a broker made from one
    that failed, ours made from the same one has the same fields and properties.
    """
    hops = hops_of(broker, "cg_orders")
    pairs = [
        (failed, made)
        for records in hops.values()
        for failed, made in zip(records[::2], records[1::2], strict=False)
    ]
    assert len(pairs) == 593 + 593 + 297 + 297
    rows = pa.record_batch(
        {
            "commitLogOffset": [failed.commit_log_offset for failed, _ in pairs],
            "msgId": [failed.msg_id for failed, _ in pairs],
        }
    )
    answers = broker.retry.send_back_all("cg_orders", rows, max_reconsume_times=3).to_pylist()
    for number, ((failed, theirs), answer) in enumerate(zip(pairs, answers, strict=True)):
        ours = broker.message_at(answer["commitLogOffset"])
        assert [getattr(ours, name) for name in FIELDS] == [getattr(theirs, name) for name in FIELDS]
        if number % 50 == 0:
            single = broker.retry.send_back("cg_orders", failed.commit_log_offset, max_reconsume_times=3)
            copy = broker.message_at(single.commit_log_offset)
            assert [getattr(copy, name) for name in FIELDS] == [getattr(theirs, name) for name in FIELDS]
    dead = [answer for answer in answers if answer["topic"] == "%DLQ%cg_orders"]
    assert (len(dead), {answer["reconsumeTimes"] for answer in dead}) == (297, {4})


def test_each_failed_delivery_of_a_real_broker_is_answered_as_it_was(broker: Store, golden: Path) -> None:
    """deliveries.jsonl: what came back has one more retry, and after the third retry nothing came back."""
    lines = (golden / "deliveries.jsonl").read_text(encoding="utf-8").splitlines()
    seen = [json.loads(line) for line in lines if '"group":"cg_orders"' in line]
    failed = [delivery for delivery in seen if delivery["result"] == "RECONSUME_LATER"]
    later = {(delivery["msgId"], delivery["reconsumeTimes"]) for delivery in seen}
    rows = pa.record_batch(
        {
            "commitLogOffset": [int(delivery["offsetMsgId"][16:], 16) for delivery in failed],
            "msgId": [delivery["msgId"] for delivery in failed],
        }
    )
    answers = broker.retry.send_back_all("cg_orders", rows, max_reconsume_times=3).to_pylist()
    for delivery, answer in zip(failed, answers, strict=True):
        assert answer["reconsumeTimes"] == delivery["reconsumeTimes"] + 1
        came_back = (delivery["msgId"], answer["reconsumeTimes"]) in later
        assert (answer["topic"] == "%RETRY%cg_orders") == came_back


# -- what may fail ----------------------------------------------------------------------------------------------------


def test_a_send_back_that_fails_at_any_operation_is_there_whole_or_not_at_all(
    parking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The k-th operation on a file fails. The message is the caller's still: it tries again."""
    with parking.open() as store:
        store.create_topic("TopicJ", 2)
        offset = send(store)
        store.retry.prepare(GROUP)
        failures = 0
        for fail_at in range(1, 100):
            countdown = [fail_at]

            def fail(operation: str, path: str, countdown: list[int] = countdown) -> None:
                countdown[0] -= 1
                if countdown[0] == 0:
                    raise OSError(5, "injected", path)

            before = store.queue_range(SCHEDULE, 2).max_offset
            monkeypatch.setattr(durable, "hook", fail)
            try:
                store.retry.send_back(GROUP, offset)
            except (StoreError, OSError):
                failures += 1
                monkeypatch.setattr(durable, "hook", None)
                assert store.queue_range(SCHEDULE, 2).max_offset == before
                continue
            finally:
                monkeypatch.setattr(durable, "hook", None)
            assert store.queue_range(SCHEDULE, 2).max_offset == before + 1
            break
        assert failures > 2
    assert verify_store(parking.root).status == "clean"
