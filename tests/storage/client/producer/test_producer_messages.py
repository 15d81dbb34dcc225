"""What may be sent and how it is made ready; names, states, errors and results of a producer.

Sources: Validators.java, MessageBatch.java, DefaultMQProducerImpl.java, MessageClientIDSetter.java.
"""

from __future__ import annotations

import pickle  # noqa: TID251
import random
import zlib

import pytest

from rmq_store import Message, SendResult, SendStatus, StoreError, UsageError
from rmq_store.client.producer.producer import Producer
from rmq_store.client.producer.producer_config import ProducerConfig
from rmq_store.format.properties.mirror_properties import MIRROR_PROPERTIES
from rmq_store.protocol.errors import (
    MessageIllegalError,
    MQBrokerError,
    MQClientError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
    RemotingTooMuchRequestError,
)
from rmq_store.protocol.messages import MessageQueue

from ..conftest import FakeBackend, Made, fail_all

MESSAGE = Message("T", b"hello", tags="TagA")


def test_a_producer_works_only_between_start_and_shutdown(cluster: FakeBackend) -> None:
    producer = Producer("pg", cluster)
    with pytest.raises(MQClientError, match="CREATE_JUST"):
        producer.send(MESSAGE)
    with producer:
        producer.start()  # the block has done so
        assert producer.send(MESSAGE).status is SendStatus.SEND_OK
    for call in (producer.send, producer.send_async, producer.send_oneway):
        with pytest.raises(MQClientError, match="SHUTDOWN_ALREADY"):
            call(MESSAGE)
    producer.shutdown()
    with pytest.raises(MQClientError):
        producer.start()


@pytest.mark.parametrize("group", ["", "with space", "x" * 121, "DEFAULT_PRODUCER"])
def test_a_producer_needs_a_group_of_its_own(cluster: FakeBackend, group: str) -> None:
    with pytest.raises(MessageIllegalError):
        Producer(group, cluster)


def test_the_group_travels_with_each_request_and_queues_can_be_asked_for(cluster: FakeBackend, made: Made) -> None:
    producer = made(cluster, default_topic_queue_nums=3)
    producer.send(MESSAGE)
    assert cluster.sent[0].group == "pg"
    assert len(producer.fetch_publish_message_queues("T")) == 6
    assert len(producer.fetch_publish_message_queues("New")) == 9


@pytest.mark.parametrize("flag", [1 << 31, -(1 << 31) - 1])
def test_a_flag_beyond_32_bits_is_refused_before_a_broker_is_asked(cluster: FakeBackend, made: Made, flag: int) -> None:
    """A broker would call it a malformed request, and be asked three times."""
    with pytest.raises(MessageIllegalError, match=f"flag={flag} is no 32-bit integer"):
        made(cluster).send(Message("T", b"x", flag=flag))
    assert cluster.sent == []


ERRORS = [
    RemotingError("x"),
    RemotingConnectError("x"),
    RemotingTimeoutError("x"),
    RemotingTooMuchRequestError("x"),
    MQBrokerError(14, "disk full", "broker-a"),
    MQClientError("given up", 10002),
    MessageIllegalError("empty"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_are_part_of_the_tree_and_travel_between_processes(error: StoreError) -> None:
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(again) is type(error)
    assert isinstance(again, StoreError)
    assert (str(again), again.__dict__) == (str(error), error.__dict__)


def test_an_answer_of_a_broker_says_code_remark_and_broker() -> None:
    assert str(MQBrokerError(14, "disk full", "broker-a")) == "CODE: 14  DESC: disk full BROKER: broker-a"
    named = MQBrokerError(14, "disk full", "broker-a", "10.0.0.3:10911")
    assert str(named) == "CODE: 14  DESC: disk full BROKER: broker-a (10.0.0.3:10911)"
    assert MessageIllegalError("empty").response_code == 13
    assert isinstance(MessageIllegalError("empty"), UsageError)


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (RemotingTimeoutError("x"), True),
        (MQBrokerError(2, "busy"), True),
        (MQBrokerError(14, "disk full"), True),
        (MQBrokerError(1500, "go away"), True),
        (MQBrokerError(13, "too large"), False),
        (MQClientError("given up", 10001), True),
        (MQClientError("no topic", 10005), False),
        (MessageIllegalError("empty"), False),
    ],
    ids=str,
)
def test_errors_say_whether_the_same_call_may_succeed_later(error: StoreError, retryable: bool) -> None:
    assert error.retryable is retryable


def test_a_result_names_its_broker_and_place(cluster: FakeBackend, made: Made) -> None:
    result = made(cluster).send(MESSAGE)
    assert isinstance(result, SendResult)
    assert cluster[result.broker_name].stored["T", result.queue_id][result.queue_offset].body == b"hello"


# -- what may be sent ------------------------------------------------------------------------------------------------

ILLEGAL = {
    "no message": ("text", 13),
    "no body": (Message("T", None), 13),  # type: ignore[arg-type]
    "text as body": (Message("T", "text"), 13),  # type: ignore[arg-type]
    "empty body": (Message("T", b""), 13),
    "body over the limit": (Message("T", b"x" * 101), 13),
    "separator in a property": (Message("T", b"x", properties={"a": "b\x01"}), 13),
    "too many properties": (Message("T", b"x", properties={"a": "b" * 32_768}), 13),
    "no topic": (Message("", b"x"), -1),
    "characters of the topic": (Message("with space", b"x"), -1),
    "length of the topic": (Message("x" * 128, b"x"), -1),
    "topic of the broker": (Message("SCHEDULE_TOPIC_XXXX", b"x"), -1),
}


@pytest.mark.parametrize("case", ILLEGAL)
def test_a_message_that_breaks_a_rule_is_not_sent(cluster: FakeBackend, made: Made, case: str) -> None:
    """Validators#checkMessage, #checkTopic, #isNotAllowedSendTopic."""
    message, code = ILLEGAL[case]
    producer = made(cluster, max_message_size=100)
    with pytest.raises(MessageIllegalError) as caught:
        producer.send(message)  # type: ignore[arg-type]
    assert caught.value.response_code == code
    with pytest.raises(MessageIllegalError):
        producer.send_oneway(message)  # type: ignore[arg-type]
    with pytest.raises(MessageIllegalError):
        producer.send_batch([MESSAGE, message])  # type: ignore[list-item]
    assert cluster.sent == []
    assert producer.send(Message("T", b"x" * 100)).status is SendStatus.SEND_OK


def test_marks_of_a_mirror_are_not_sent_with_another_message(cluster: FakeBackend, made: Made) -> None:
    forwarded = dict.fromkeys(MIRROR_PROPERTIES, "x") | {"a": "1", "MIRROR_OF_OURS": "2", "UNIQ_KEY": "K"}
    producer = made(cluster)
    producer.send(Message("T", b"again", properties=forwarded))
    producer.send_batch([Message("T", b"one", properties=forwarded), Message("T", b"two", properties=forwarded)])
    sent = [message for request in cluster.sent for message in request.messages]
    assert [message.body for message in sent] == [b"again", b"one", b"two"]
    assert len({message.properties["UNIQ_KEY"] for message in sent} | {"K"}) == 4
    for message in sent:
        own = {name: text for name, text in message.properties.items() if name != "UNIQ_KEY"}
        assert own == {"a": "1", "MIRROR_OF_OURS": "2"}
    assert MIRROR_PROPERTIES <= forwarded.keys()


# -- compression -----------------------------------------------------------------------------------------------------


def test_bodies_from_4096_bytes_on_are_compressed(cluster: FakeBackend, made: Made) -> None:
    producer = made(cluster)
    producer.send(Message("T", b"x" * 4_095))
    producer.send(Message("T", b"x" * 4_096))
    plain, packed = cluster.sent
    assert (plain.message.body, plain.sys_flag) == (b"x" * 4_095, 0)
    # 1: compressed, 0x300: by zlib, as a 5.x client says it.
    assert packed.sys_flag == 0x301
    assert packed.message.body == zlib.compress(b"x" * 4_096, 5)


def test_each_try_carries_the_body_that_was_compressed_once(cluster: FakeBackend, made: Made) -> None:
    fail_all(cluster, RemotingTimeoutError("x"))
    with pytest.raises(MQClientError):
        made(cluster).send(Message("T", b"x" * 10_000))
    assert {(sent.message.body, sent.sys_flag) for sent in cluster.sent} == {(zlib.compress(b"x" * 10_000, 5), 0x301)}


def test_a_body_that_does_not_get_smaller_stays_as_it_is(cluster: FakeBackend, made: Made) -> None:
    body = random.Random(5).randbytes(10_000)
    made(cluster).send(Message("T", body))
    assert (cluster.sent[0].message.body, cluster.sent[0].sys_flag) == (body, 0)


def test_the_limit_holds_for_the_body_before_it_is_compressed(cluster: FakeBackend, made: Made) -> None:
    with pytest.raises(MessageIllegalError):
        made(cluster, max_message_size=5_000).send(Message("T", b"x" * 5_001))


# -- batches ---------------------------------------------------------------------------------------------------------

BATCH = [Message("T", b"%d" % number, tags="TagA") for number in range(5)]


def test_a_batch_is_one_request_to_one_queue_retried_as_a_whole(cluster: FakeBackend, made: Made) -> None:
    for name in "abc":
        cluster[name].fail(RemotingTimeoutError("x"))
    result = made(cluster, retry_times_when_send_failed=3).send_batch(BATCH)
    assert len(cluster.sent) == 4
    assert [message.body for message in cluster.sent[-1].messages] == [b"0", b"1", b"2", b"3", b"4"]
    assert cluster.sent[0].messages == cluster.sent[-1].messages
    keys = [message.properties["UNIQ_KEY"] for message in cluster.sent[-1].messages]
    assert result.msg_id == ",".join(keys)
    assert len(set(keys)) == 5
    assert cluster.sent[0].broker_name != cluster.sent[1].broker_name


def test_a_batch_is_not_compressed(cluster: FakeBackend, made: Made) -> None:
    made(cluster).send_batch([Message("T", b"x" * 10_000)])
    assert cluster.sent[0].message.body == b"x" * 10_000


REFUSED = {
    "nothing": [],
    "two topics": [Message("T", b"x"), Message("U", b"x")],
    "a delay level": [Message("T", b"x", properties={"DELAY": "3"})],
    "a delivery time": [Message("T", b"x", properties={"TIMER_DELIVER_MS": "1"})],
    "a retry topic": [Message("%RETRY%g", b"x")],
    "different WAIT": [Message("T", b"x"), Message("T", b"x", properties={"WAIT": "false"})],
    "two sharding keys": [Message("T", b"x", sharding_key="a"), Message("T", b"x", sharding_key="b")],
    "a queue id": [Message("T", b"x", queue_id=1)],
    "together too large": [Message("T", b"x" * 60), Message("T", b"x" * 60)],
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_batch_that_breaks_a_rule_is_not_sent(cluster: FakeBackend, made: Made, case: str) -> None:
    """MessageBatch#generateFromList; the size is that of the encoded batch."""
    with pytest.raises(MessageIllegalError):
        made(cluster, max_message_size=150).send_batch(REFUSED[case])
    assert cluster.sent == []


def test_the_size_of_a_batch_counts_heads_and_properties(cluster: FakeBackend, made: Made) -> None:
    """MessageDecoder#encodeMessage: 20 bytes of head, 2 for the length of the properties, here 42 of UNIQ_KEY."""
    assert made(cluster, max_message_size=2 * (22 + 42 + 10)).send_batch([Message("T", b"x" * 10)] * 2)
    with pytest.raises(MessageIllegalError, match="148 bytes"):
        made(cluster, max_message_size=147).send_batch([Message("T", b"x" * 10)] * 2)


def test_a_batch_to_a_chosen_queue_takes_several_sharding_keys(cluster: FakeBackend, made: Made) -> None:
    """DefaultMQProducerImpl#send(Collection, MessageQueue) looks at topics, delays and WAIT only."""
    messages = [Message("T", b"x", sharding_key=key) for key in ("a", "b")]
    made(cluster).send_batch(messages, queue=MessageQueue("T", "c", 1))
    assert [message.sharding_key for message in cluster.sent[-1].messages] == ["a", "b"]
    with pytest.raises(MessageIllegalError, match="queue id"):
        made(cluster).send_batch([Message("T", b"x", queue_id=1)], queue=MessageQueue("T", "c", 1))


def test_a_message_can_be_checked_without_a_cluster() -> None:
    producer = Producer("pg", "nowhere", ProducerConfig(max_message_size=3))
    producer.check(Message("T", b"abc"))
    for refused in (Message("T", b"abcd"), Message("T", b""), Message("a b", b"x"), Message("TBW102", b"x"), b"x"):
        with pytest.raises(MessageIllegalError):
            producer.check(refused)


def test_a_batch_of_one_sharding_key_or_with_a_queue_is_ordered(cluster: FakeBackend, made: Made) -> None:
    producer = made(cluster)
    places = {producer.send_batch([Message("T", b"x", sharding_key="k")] * 2).broker_name for _ in range(6)}
    assert len(places) == 1
    result = producer.send_batch(BATCH, queue=MessageQueue("T", "c", 1))
    assert (result.broker_name, result.queue_id) == ("c", 1)
    fail_all(cluster, RemotingTimeoutError("x"))
    cluster.sent.clear()
    with pytest.raises(RemotingTimeoutError):
        producer.send_batch(BATCH, queue=MessageQueue("T", "c", 1))
    assert len(cluster.sent) == 1
