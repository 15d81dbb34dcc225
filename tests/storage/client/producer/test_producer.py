"""What a producer tries again, where, and what it says in the end, row by row.

Rules: section A of docs/conformance.md, which says where it differs from the source
(DefaultMQProducerImpl#sendDefaultImpl, MQClientAPIImpl#onExceptionImpl).
"""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest

from rmq_store import Message, SendStatus, StoreError, UsageError
from rmq_store.client.producer.producer_config import RETRY_RESPONSE_CODES_4X, ProducerConfig
from rmq_store.protocol.errors import (
    MessageIllegalError,
    MQBrokerError,
    MQClientError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
    RemotingTooMuchRequestError,
    ResponseCode,
)
from rmq_store.protocol.messages import MessageQueue
from rmq_store.reliable.outbox.sending import may_have_been_sent

from ..conftest import FakeBackend, Made, fail_all

HANG_S = 30
NOT_OK = [SendStatus.FLUSH_DISK_TIMEOUT, SendStatus.FLUSH_SLAVE_TIMEOUT, SendStatus.SLAVE_NOT_AVAILABLE]


MESSAGE = Message("T", b"hello", tags="TagA")


def brokers_of(cluster: FakeBackend) -> list[str]:
    return [sent.broker_name for sent in cluster.sent]


# -- defaults --------------------------------------------------------------------------------------------------------


@pytest.mark.statement("A01", "A12", "A16")
def test_the_defaults_are_those_of_the_documents() -> None:
    """DefaultMQProducer."""
    config = ProducerConfig()
    assert config.send_msg_timeout == 3_000
    assert config.send_msg_max_timeout_per_request == -1
    assert config.retry_times_when_send_failed == 2
    assert config.retry_times_when_send_async_failed == 2
    assert config.retry_another_broker_when_not_store_ok is None  # as the broker says, whose default is no
    assert config.compress_msg_body_over_howmuch == 4_096
    assert (config.compress_type, config.compress_level) == ("zlib", 5)
    assert config.max_message_size == 4_194_304
    assert config.default_topic_queue_nums == 4
    assert config.send_latency_fault_enable is False
    assert config.enable_backpressure_for_async_mode is False
    assert config.back_pressure_for_async_send_num == 1_024
    assert config.back_pressure_for_async_send_size == 100 * 1024 * 1024
    assert config.async_retry_other_broker is False
    assert RETRY_RESPONSE_CODES_4X == {17, 14, 1, 16, 204, 205}
    assert config.retry_response_codes == RETRY_RESPONSE_CODES_4X | {2, 42900}


@pytest.mark.parametrize(
    "settings",
    [
        {"send_msg_timeout": 0},
        {"send_msg_max_timeout_per_request": -2},
        {"retry_times_when_send_failed": -1},
        {"retry_times_when_send_async_failed": -1},
        {"latency_preset": "6.x"},
        {"max_message_size": 0},
        {"default_topic_queue_nums": 0},
        {"async_sender_threads": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        ProducerConfig(**settings)  # type: ignore[arg-type]


# -- synchronous sends -----------------------------------------------------------------------------------------------


@pytest.mark.statement("A01", "A13")
def test_a_send_is_tried_three_times_and_then_the_last_error_is_returned(cluster: FakeBackend, made: Made) -> None:
    fail_all(cluster, RemotingTimeoutError("first and second"))
    producer = made(cluster)
    cluster["a"].fail(RemotingTimeoutError("1"))
    with pytest.raises(MQClientError, match=r"Send \[3\] times, still failed, cost \[0\]ms, Topic: T") as caught:
        producer.send(MESSAGE)
    assert len(cluster.sent) == 3
    assert isinstance(caught.value.__cause__, RemotingTimeoutError)


@pytest.mark.statement("A01")
@pytest.mark.parametrize("times", [0, 1, 5])
def test_the_number_of_retries_is_a_setting(cluster: FakeBackend, made: Made, times: int) -> None:
    fail_all(cluster, RemotingConnectError("down"))
    with pytest.raises(MQClientError):
        made(cluster, retry_times_when_send_failed=times).send(MESSAGE)
    assert len(cluster.sent) == times + 1


@pytest.mark.statement("A01", "A02")
def test_a_send_ends_with_the_first_success(cluster: FakeBackend, made: Made) -> None:
    for name in "abc":
        cluster[name].fail(RemotingTimeoutError("once"))
    fail_first = cluster.sent
    producer = made(cluster, retry_times_when_send_failed=9)
    result = producer.send(MESSAGE)
    assert result.status is SendStatus.SEND_OK
    assert len(fail_first) == 4
    assert result.broker_name == cluster.sent[-1].broker_name


RETRIED = [
    RemotingTimeoutError("no answer"),
    RemotingConnectError("refused"),
    RemotingError("send failed"),
    RemotingTooMuchRequestError("the client's own"),
    MQClientError("no such broker address"),
    *(MQBrokerError(code, "x") for code in (17, 14, 1, 16, 204, 205)),
]


@pytest.mark.statement("A14")
@pytest.mark.parametrize("error", RETRIED, ids=str)
def test_these_failures_are_retried(cluster: FakeBackend, made: Made, error: Exception) -> None:
    """sendDefaultImpl: RemotingException and MQClientException always, MQBrokerException by its code."""
    fail_all(cluster, error)
    with pytest.raises(MQClientError):
        made(cluster).send(MESSAGE)
    assert len(cluster.sent) == 3


@pytest.mark.statement("A14")
@pytest.mark.parametrize("code", [3, 13, 26, 29, 215, 1500, 99])
def test_an_answer_with_another_code_is_raised_at_once(cluster: FakeBackend, made: Made, code: int) -> None:
    fail_all(cluster, MQBrokerError(code, "no", "a"))
    with pytest.raises(MQBrokerError) as caught:
        made(cluster).send(MESSAGE)
    assert caught.value.response_code == code
    assert len(cluster.sent) == 1


def test_the_codes_that_are_retried_are_a_setting(cluster: FakeBackend, made: Made) -> None:
    fail_all(cluster, MQBrokerError(ResponseCode.GO_AWAY, "upgrading"))
    with pytest.raises(MQClientError) as caught:
        made(cluster, retry_response_codes=frozenset({ResponseCode.GO_AWAY})).send(MESSAGE)
    assert caught.value.response_code == ResponseCode.GO_AWAY
    assert len(cluster.sent) == 3


def test_an_interruption_is_not_retried(cluster: FakeBackend, made: Made) -> None:
    fail_all(cluster, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        made(cluster).send(MESSAGE)
    assert len(cluster.sent) == 1


def test_an_error_of_the_engine_is_not_retried(cluster: FakeBackend, made: Made) -> None:
    fail_all(cluster, UsageError("closed"))
    with pytest.raises(UsageError, match="closed"):
        made(cluster).send(MESSAGE)
    assert len(cluster.sent) == 1


@pytest.mark.statement("A13")
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RemotingConnectError("x"), 10001),
        (RemotingTimeoutError("x"), 10002),
        (MQClientError("x"), 10003),
        (MQBrokerError(14, "x"), 14),
        (RemotingError("x"), -1),
    ],
    ids=str,
)
def test_the_final_error_says_by_its_code_what_was_wrong(
    cluster: FakeBackend, made: Made, error: Exception, code: int
) -> None:
    """ClientErrorCode.java."""
    fail_all(cluster, error)
    with pytest.raises(MQClientError) as caught:
        made(cluster).send(MESSAGE)
    assert caught.value.response_code == code


@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.parametrize("doubt", [RemotingTimeoutError("no answer"), RemotingError("lost"), MQBrokerError(1, "disk")])
@pytest.mark.parametrize(
    ("last", "code"),
    [
        (RemotingConnectError("refused"), 10001), (MQClientError("not exist"), 10003), (MQBrokerError(14, "stops"), 14),
        (RemotingTooMuchRequestError("full"), -1), (MQBrokerError(16, "rights"), 16), (MQBrokerError(2, "busy"), 2),
        (MQBrokerError(1, "org.apache.rocketmq.acl.common.AclException: no"), 1),
    ],
    ids=str,
)  # fmt: skip
def test_what_may_be_stored_by_an_earlier_try_stays_in_doubt(
    cluster: FakeBackend, made: Made, doubt: Exception, last: Exception, code: int, is_batch: bool
) -> None:
    """A broker that dies: no answer to the first try, no connection for the next ones. Java's code and text stay."""
    cluster.topics["T"] = {"a": 1}
    cluster["a"].fail(doubt, last, last)
    producer = made(cluster)
    with pytest.raises((MQClientError, MQBrokerError)) as caught:
        producer.send_batch([MESSAGE, MESSAGE]) if is_batch else producer.send(MESSAGE)
    assert caught.value.response_code == code
    assert caught.value.doubt is doubt and may_have_been_sent(caught.value)
    if code != 2:
        assert "Send [3] times" in str(caught.value) and caught.value.__cause__ is last
    cluster["a"].recover()
    cluster["a"].fail(last, last, last)
    with pytest.raises((MQClientError, MQBrokerError)) as caught:
        producer.send(MESSAGE)
    assert caught.value.doubt is None and not may_have_been_sent(caught.value), "it is the doubt of that send alone"


def test_an_answer_that_is_not_retried_keeps_the_doubt_of_the_try_before(cluster: FakeBackend, made: Made) -> None:
    cluster.topics["T"] = {"a": 1}
    cluster["a"].fail(RemotingTimeoutError("no answer"), MQBrokerError(1500, "go away", "a", "a:1"))
    with pytest.raises(MQBrokerError) as caught:
        made(cluster).send(MESSAGE)
    assert (caught.value.response_code, caught.value.broker_name, caught.value.address) == (1500, "a", "a:1")
    assert "CODE: 1500" in str(caught.value) and may_have_been_sent(caught.value)


def test_a_budget_that_ends_keeps_the_doubt_of_the_first_try(cluster: FakeBackend, made: Made) -> None:
    cluster.topics["T"] = {"a": 1}
    cluster["a"].fail(RemotingTimeoutError("slow"), RemotingConnectError("refused"), latency_ms=1_500)
    with pytest.raises(RemotingTooMuchRequestError, match="the last try: refused") as caught:
        made(cluster).send(MESSAGE)
    assert may_have_been_sent(caught.value)


def test_a_cluster_without_brokers_and_a_topic_without_a_route(made: Made, cluster: FakeBackend) -> None:
    with pytest.raises(MQClientError) as caught:
        made(FakeBackend([])).send(MESSAGE)
    assert caught.value.response_code == 10004
    cluster.auto_create = False
    with pytest.raises(MQClientError, match="No route info of this topic: Nowhere") as caught:
        made(cluster).send(Message("Nowhere", b"x"))
    assert caught.value.response_code == 10005
    assert cluster.sent == []


def test_a_topic_that_is_made_while_it_is_looked_up_is_sent_to(
    cluster: FakeBackend, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has queues that may be written, and nobody is to look at its settings."""
    cluster.auto_create = False
    look_up = cluster.subscribe_queues

    def make_then_look_up(topic: str) -> list[MessageQueue]:
        cluster.create_topic(topic)
        return look_up(topic)

    monkeypatch.setattr(cluster, "publish_queues", lambda topic, nums=4: look_up(topic))
    monkeypatch.setattr(cluster, "subscribe_queues", make_then_look_up)
    assert made(cluster).send(Message("New", b"x")).status is SendStatus.SEND_OK


def test_a_route_to_a_broker_that_is_not_there_is_tried_elsewhere(cluster: FakeBackend, made: Made) -> None:
    cluster.topics["T"] = {"a": 1, "gone": 1}
    producer = made(cluster)
    for _ in range(4):
        assert producer.send(MESSAGE).broker_name == "a"
    cluster.topics["T"] = {"gone": 1}
    with pytest.raises(MQClientError, match="not exist") as caught:
        producer.send(MESSAGE)
    assert caught.value.response_code == 10003


@pytest.mark.statement("A09")
def test_ordinary_messages_go_to_the_queues_in_turn(cluster: FakeBackend, made: Made) -> None:
    producer = made(cluster)
    taken = [(result.broker_name, result.queue_id) for result in (producer.send(MESSAGE) for _ in range(12))]
    assert len(set(taken[:6])) == 6
    assert taken[:6] == taken[6:]


@pytest.mark.statement("A10")
def test_a_retry_avoids_the_broker_that_failed_last(cluster: FakeBackend, made: Made) -> None:
    fail_all(cluster, RemotingTimeoutError("x"))
    producer = made(cluster, retry_times_when_send_failed=30)
    with pytest.raises(MQClientError):
        producer.send(MESSAGE)
    names = brokers_of(cluster)
    assert len(names) == 31
    assert all(before != after for before, after in pairwise(names))


@pytest.mark.statement("A10")
def test_with_a_single_broker_a_retry_takes_another_queue_of_it(single: FakeBackend, made: Made) -> None:
    fail_all(single, RemotingTimeoutError("x"))
    with pytest.raises(MQClientError):
        made(single).send(MESSAGE)
    assert brokers_of(single) == ["a", "a", "a"]
    assert len({sent.queue_id for sent in single.sent}) == 3


@pytest.mark.statement("A08", "H01")
def test_every_try_carries_the_same_message_with_the_same_unique_key(cluster: FakeBackend, made: Made) -> None:
    """The answer was lost, not the message: it is stored twice, and both have one id."""
    stored = []

    class StoresAndTimesOut(RemotingTimeoutError):
        pass

    fail_all(cluster, StoresAndTimesOut("lost answer"))
    with pytest.raises(MQClientError):
        made(cluster).send(MESSAGE)
    stored = [sent.message for sent in cluster.sent]
    assert len(stored) == 3
    assert len({message.properties["UNIQ_KEY"] for message in stored}) == 1
    assert stored[0] == stored[1] == stored[2]


def test_each_send_has_a_unique_key_of_its_own_unless_it_is_a_copy(cluster: FakeBackend, made: Made) -> None:
    producer = made(cluster)
    first, second = producer.send(MESSAGE).msg_id, producer.send(MESSAGE).msg_id
    assert first != second
    assert len(first) == 32
    copy = Message("T", b"again", properties={"UNIQ_KEY": first})
    assert producer.send(copy).msg_id not in (first, second)
    assert producer.send(copy, keep_unique_key=True).msg_id == first


# -- the time budget -------------------------------------------------------------------------------------------------


@pytest.mark.statement("A12")
def test_the_timeout_is_a_budget_for_all_tries_together(cluster: FakeBackend, made: Made) -> None:
    fail_all(cluster, RemotingTimeoutError("slow"), latency_ms=1_200)
    with pytest.raises(MQClientError):
        made(cluster).send(MESSAGE)
    assert [sent.timeout_ms for sent in cluster.sent] == [3_000, 1_800, 600]


@pytest.mark.statement("A12")
def test_a_budget_that_is_used_up_ends_the_tries(cluster: FakeBackend, made: Made) -> None:
    fail_all(cluster, RemotingTimeoutError("slow"), latency_ms=1_500)
    with pytest.raises(RemotingTooMuchRequestError) as caught:
        made(cluster).send(MESSAGE)
    assert str(caught.value) == "sendDefaultImpl call timeout; the last try: slow"
    assert len(cluster.sent) == 2
    assert isinstance(caught.value.__cause__, RemotingTimeoutError)


@pytest.mark.statement("A12")
def test_the_timeout_can_be_set_for_the_producer_and_for_a_send(cluster: FakeBackend, made: Made) -> None:
    producer = made(cluster, send_msg_timeout=5_000)
    producer.send(MESSAGE)
    producer.send(MESSAGE, 700)
    assert [sent.timeout_ms for sent in cluster.sent] == [5_000, 700]
    with pytest.raises(RemotingTooMuchRequestError):
        producer.send(MESSAGE, 0)


def test_one_try_may_be_capped_unless_it_is_the_last(cluster: FakeBackend, made: Made) -> None:
    """sendMsgMaxTimeoutPerRequest."""
    fail_all(cluster, RemotingTimeoutError("slow"), latency_ms=500)
    with pytest.raises(MQClientError):
        made(cluster, send_msg_max_timeout_per_request=500).send(MESSAGE)
    assert [sent.timeout_ms for sent in cluster.sent] == [500, 500, 2_000]
    cluster.sent.clear()
    with pytest.raises(MQClientError):
        made(cluster, send_msg_max_timeout_per_request=2_700).send(MESSAGE)
    assert [sent.timeout_ms for sent in cluster.sent] == [2_700, 2_500, 2_000]


# -- stored, but not as asked ----------------------------------------------------------------------------------------


@pytest.mark.statement("A16")
@pytest.mark.parametrize("status", NOT_OK)
def test_a_status_other_than_ok_is_a_result_by_default(cluster: FakeBackend, made: Made, status: SendStatus) -> None:
    fail_all(cluster, status)
    result = made(cluster).send(MESSAGE)
    assert result.status is status
    assert result.msg_id
    assert len(cluster.sent) == 1


@pytest.mark.statement("A16")
@pytest.mark.parametrize("status", NOT_OK)
def test_another_broker_is_tried_if_the_option_says_so(cluster: FakeBackend, made: Made, status: SendStatus) -> None:
    for name in "abc":
        cluster[name].fail(status)
    producer = made(cluster, retry_another_broker_when_not_store_ok=True, retry_times_when_send_failed=3)
    assert producer.send(MESSAGE).status is SendStatus.SEND_OK
    names = brokers_of(cluster)
    assert len(names) == 4
    assert len(set(names[:3])) == 3


@pytest.mark.statement("A16")
def test_the_option_may_come_from_the_broker(cluster: FakeBackend, made: Made) -> None:
    """The article of A16 sets it in the broker's configuration, DefaultMQProducer in the producer."""
    fail_all(cluster, SendStatus.FLUSH_DISK_TIMEOUT)
    for broker in cluster.brokers().values():
        broker.retry_another_broker_when_not_store_ok = True
    assert made(cluster).send(MESSAGE).status is SendStatus.FLUSH_DISK_TIMEOUT
    assert len(cluster.sent) == 3
    cluster.sent.clear()
    made(cluster, retry_another_broker_when_not_store_ok=False).send(MESSAGE)
    assert len(cluster.sent) == 1


@pytest.mark.parametrize("then", [RemotingTimeoutError("x"), MQBrokerError(13, "x")], ids=str)
def test_what_is_stored_is_no_error_even_if_the_next_try_fails(
    cluster: FakeBackend, made: Made, then: Exception
) -> None:
    fail_all(cluster, then)
    for name in "abc":
        cluster[name].fail(SendStatus.FLUSH_DISK_TIMEOUT)
    producer = made(cluster, retry_another_broker_when_not_store_ok=True, retry_times_when_send_failed=5)
    assert producer.send(MESSAGE).status is SendStatus.FLUSH_DISK_TIMEOUT
    assert len(cluster.sent) > 3


def test_what_is_stored_is_no_error_even_if_the_budget_ends(cluster: FakeBackend, made: Made) -> None:
    fail_all(cluster, SendStatus.FLUSH_SLAVE_TIMEOUT, latency_ms=3_000)
    producer = made(cluster, retry_another_broker_when_not_store_ok=True)
    assert producer.send(MESSAGE).status is SendStatus.FLUSH_SLAVE_TIMEOUT
    assert len(cluster.sent) == 1


# -- what is never tried again ---------------------------------------------------------------------------------------


def to_last(queues: object, message: Message, arg: object) -> MessageQueue:
    assert arg == "key"
    return list(queues)[-1]  # type: ignore[call-overload,no-any-return]


ORDERED = {
    "selector": (MESSAGE, {"selector": to_last, "arg": "key"}),
    "sharding key": (Message("T", b"x", sharding_key="order-7"), {}),
    "queue": (MESSAGE, {"queue": MessageQueue("T", "b", 1)}),
}


@pytest.mark.statement("A04")
@pytest.mark.parametrize("kind", ORDERED)
def test_ordered_messages_are_tried_once_and_their_error_is_raised_as_it_is(
    cluster: FakeBackend, made: Made, kind: str
) -> None:
    message, wish = ORDERED[kind]
    producer = made(cluster)
    for error in (RemotingTimeoutError("x"), MQBrokerError(14, "x"), MQClientError("x")):
        cluster.sent.clear()
        fail_all(cluster, error)
        with pytest.raises(type(error)) as caught:
            producer.send(message, **wish)  # type: ignore[arg-type]
        assert caught.value is error
        assert len(cluster.sent) == 1
        cluster.sent.clear()
        with pytest.raises(type(error)):
            producer.send_async(message, **wish).result(HANG_S)  # type: ignore[arg-type]
        assert len(cluster.sent) == 1


@pytest.mark.statement("A04")
def test_ordered_messages_of_a_key_go_to_one_queue(cluster: FakeBackend, made: Made) -> None:
    producer = made(cluster)
    for key in ("order-1", "order-2", "order-3"):
        results = [producer.send(Message("T", b"x", sharding_key=key)) for _ in range(5)]
        assert len({(result.broker_name, result.queue_id) for result in results}) == 1
    result = producer.send(MESSAGE, selector=to_last, arg="key")
    assert (result.broker_name, result.queue_id) == ("c", 1)
    result = producer.send(MESSAGE, queue=MessageQueue("T", "b", 1))
    assert (result.broker_name, result.queue_id) == ("b", 1)


def test_a_queue_id_of_a_message_needs_exactly_one_broker(
    single: FakeBackend, cluster: FakeBackend, made: Made
) -> None:
    assert made(single).send(Message("T", b"x", queue_id=3)).queue_id == 3
    with pytest.raises(MessageIllegalError, match="3 brokers have queue 1"):
        made(cluster).send(Message("T", b"x", queue_id=1))
    with pytest.raises(MessageIllegalError, match="no broker has queue 9"):
        made(single).send(Message("T", b"x", queue_id=9))


def test_a_selector_that_fails_or_gives_nothing(cluster: FakeBackend, made: Made) -> None:
    producer = made(cluster)
    with pytest.raises(MQClientError, match="select message queue threw exception: KeyError"):
        producer.send(MESSAGE, selector=lambda queues, message, arg: {}["nothing"])
    with pytest.raises(MQClientError, match="select message queue return null"):
        producer.send(MESSAGE, selector=lambda queues, message, arg: None)
    with pytest.raises(MQClientError, match="returned 1, which is no MessageQueue"):
        producer.send(MESSAGE, selector=lambda queues, message, arg: 1)  # type: ignore[arg-type, return-value]
    with pytest.raises(MessageIllegalError, match="queue=1 is no MessageQueue"):
        producer.send(MESSAGE, queue=1)  # type: ignore[arg-type]
    with pytest.raises(MessageIllegalError, match="queue of 'Other'"):
        producer.send(MESSAGE, queue=MessageQueue("Other", "a", 0))
    assert cluster.sent == []


def test_an_ordered_send_without_time_left_is_not_begun(cluster: FakeBackend, made: Made) -> None:
    with pytest.raises(RemotingTooMuchRequestError, match="sendSelectImpl call timeout"):
        made(cluster).send(MESSAGE, 0, queue=MessageQueue("T", "a", 0))
    assert cluster.sent == []


@pytest.mark.statement("A03")
@pytest.mark.parametrize("error", [RemotingTimeoutError("x"), RemotingConnectError("x"), MQClientError("x")], ids=str)
def test_oneway_messages_are_never_tried_again(cluster: FakeBackend, made: Made, error: Exception) -> None:
    fail_all(cluster, error)
    with pytest.raises(MQClientError, match=r"Send \[1\] times"):
        made(cluster).send_oneway(MESSAGE)
    assert len(cluster.sent) == 1


@pytest.mark.statement("A03")
def test_nobody_reads_what_a_broker_answers_to_a_oneway_message(
    cluster: FakeBackend, made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    fail_all(cluster, MQBrokerError(14, "disk full"))
    producer = made(cluster)
    with caplog.at_level(logging.WARNING):
        assert producer.send_oneway(MESSAGE) is None
        assert producer.send_oneway(MESSAGE, queue=MessageQueue("T", "a", 0)) is None
    assert len(cluster.sent) == 2
    assert caplog.text.count("disk full") == 2
    fail_all(cluster, None)
    producer.send_oneway(MESSAGE, selector=to_last, arg="key")
    assert cluster.sent[-1].broker_name == "c"


HALF = Message("T", b"half", properties={"TRAN_MSG": "true", "PGROUP": "pg"})


@pytest.mark.statement("A07")
@pytest.mark.parametrize(
    "error",
    [RemotingTimeoutError("x"), RemotingError("x"), MQBrokerError(14, "x"), MQBrokerError(2, "x"), MQClientError("x")],
    ids=str,
)
def test_half_messages_are_not_tried_again_after_a_timeout_or_an_error(
    cluster: FakeBackend, made: Made, error: Exception
) -> None:
    """A07: as the article says, not as the 4.x client does (sendMessageInTransaction)."""
    fail_all(cluster, error)
    with pytest.raises(StoreError):
        made(cluster).send(HALF)
    assert len(cluster.sent) == 1
    assert cluster.sent[0].sys_flag & 4
    cluster.sent.clear()
    with pytest.raises(StoreError):
        made(cluster).send_async(HALF).result(HANG_S)
    assert len(cluster.sent) == 1


@pytest.mark.statement("A07")
def test_a_half_message_that_no_broker_has_seen_is_tried_again(cluster: FakeBackend, made: Made) -> None:
    for name in "abc":
        cluster[name].fail(RemotingConnectError("down"))
    producer = made(cluster, retry_times_when_send_failed=3, retry_times_when_send_async_failed=3)
    assert producer.send(HALF).status is SendStatus.SEND_OK
    assert len(cluster.sent) == 4
    fail_all(cluster, SendStatus.FLUSH_DISK_TIMEOUT)
    cluster.sent.clear()
    producer = made(cluster, retry_another_broker_when_not_store_ok=True)
    assert producer.send(HALF).status is SendStatus.FLUSH_DISK_TIMEOUT
    assert len(cluster.sent) == 1


# -- isolation -------------------------------------------------------------------------------------------------------


@pytest.mark.statement("A11")
@pytest.mark.parametrize(("preset", "isolated_ms"), [("4.x", 600_000), ("5.x", 10_000)])
def test_a_broker_that_failed_gets_no_messages_for_a_while(
    cluster: FakeBackend, made: Made, preset: str, isolated_ms: int
) -> None:
    producer = made(cluster, send_latency_fault_enable=True, latency_preset=preset)
    cluster["b"].fail_always(RemotingTimeoutError("x"))
    for _ in range(20):
        producer.send(MESSAGE)
    assert brokers_of(cluster).count("b") == 1
    cluster["b"].recover()
    cluster.clock.advance(isolated_ms)
    cluster.sent.clear()
    for _ in range(20):
        producer.send(MESSAGE)
    assert brokers_of(cluster).count("b") >= 6


ISOLATION = [
    (RemotingTimeoutError("x"), True, True),
    (MQBrokerError(14, "x"), True, True),
    (MQBrokerError(13, "x"), True, True),
    (MQClientError("x"), False, True),
    (KeyboardInterrupt(), False, True),
    (SendStatus.FLUSH_DISK_TIMEOUT, False, False),
]


@pytest.mark.statement("A11")
@pytest.mark.parametrize(("outcome", "in_5x", "in_4x"), ISOLATION, ids=[repr(row[0]) for row in ISOLATION])
def test_which_failures_speak_against_a_broker(
    cluster: FakeBackend, made: Made, outcome: object, in_5x: bool, in_4x: bool
) -> None:
    """DefaultMQProducerImpl#sendDefaultImpl, updateFaultItem."""
    for preset, isolates in (("5.x", in_5x), ("4.x", in_4x)):
        producer = made(
            cluster, send_latency_fault_enable=True, latency_preset=preset, retry_times_when_send_failed=0
        )
        cluster.topics["T"] = {"a": 1}
        cluster["a"].fail(outcome)
        try:
            producer.send(MESSAGE)
        except (StoreError, KeyboardInterrupt):
            pass
        cluster.topics["T"] = {"a": 1, "b": 1}
        cluster.sent.clear()
        for _ in range(4):
            producer.send(MESSAGE)
        assert ("a" not in brokers_of(cluster)) is isolates


@pytest.mark.statement("A11")
def test_isolation_is_off_unless_asked_for(cluster: FakeBackend, made: Made) -> None:
    producer = made(cluster)
    cluster["b"].fail_always(RemotingTimeoutError("x"))
    for _ in range(20):
        producer.send(MESSAGE)
    assert brokers_of(cluster).count("b") == 5
