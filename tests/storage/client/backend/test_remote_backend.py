"""A cluster over the network as the clients see it: sends, pulls that the broker holds, members, offsets, retries."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import Message, SendStatus, UsageError
from rmq_store.broker.filter.subscription import Subscription
from rmq_store.client import (
    InvalidReceiptHandleError,
    LitePullConsumer,
    MessageListenerConcurrently,
    MessageListenerOrderly,
    MessageSelector,
    Producer,
    PushConsumer,
    PushConsumerConfig,
    SimpleConsumer,
    TimerNotSupportedError,
)
from rmq_store.client.backend.backend import Backend
from rmq_store.client.backend.local import backend_of
from rmq_store.client.backend.remote import RemoteBackend
from rmq_store.client.backend.remote_broker import RemoteBroker
from rmq_store.client.consume_service.listener import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus
from rmq_store.client.delivery.timers import refuse_timers
from rmq_store.protocol.bodies.groups import ResetOffsetBody
from rmq_store.protocol.errors import MQBrokerError, MQClientError, RemotingConnectError
from rmq_store.protocol.messages import MessageQueue, PoppedMessage, PullStatus
from rmq_store.protocol.wire.command import RemotingCommand, response_to
from rmq_store.remoting.cluster.routes import POLL_EVERY_MS

from ...remoting.cluster.conftest import Timer
from ...remoting.cluster.fake_cluster import FakeNet

A0, A1 = MessageQueue("Orders", "broker-a", 0), MessageQueue("Orders", "broker-a", 1)


@pytest.fixture
def net() -> FakeNet:
    net = FakeNet()
    net.add_broker("broker-a", slaves=1).create_topic("Orders", 2)
    return net


@pytest.fixture
def timer() -> Timer:
    return Timer()


@pytest.fixture
def backend(net: FakeNet) -> Iterator[RemoteBackend]:
    with RemoteBackend(net.cluster()) as backend:
        yield backend


def broker(backend: RemoteBackend, name: str = "broker-a") -> RemoteBroker:
    return backend.brokers()[name]


# -- one spelling --------------------------------------------------------------------------------------------------


def test_a_text_that_begins_with_rmq_is_a_cluster_and_everything_else_a_path() -> None:
    made, close = backend_of("rmq://ns1:9876;ns2:9876")
    assert isinstance(made, RemoteBackend)
    assert made.cluster.settings.name_servers == ("ns1:9876", "ns2:9876")
    close()
    with pytest.raises(UsageError, match="no address"):
        backend_of("rmq://ns1")


def test_a_client_that_made_its_cluster_closes_it() -> None:
    consumer = LitePullConsumer("cg", "rmq://127.0.0.1:1")
    consumer.shutdown()
    with pytest.raises(UsageError):
        consumer._backend.brokers()


# -- sends -------------------------------------------------------------------------------------------------------------


def test_a_producer_sends_and_says_where_it_is(net: FakeNet, backend: RemoteBackend) -> None:
    with Producer("pg", backend) as producer:
        result = producer.send(Message("Orders", b"tea", tags="TagA", keys="k"), queue=A0)
    assert (result.broker_name, result.queue_id, result.queue_offset) == ("broker-a", 0, 0)
    assert (result.commit_log_offset, result.status) == (7_000, SendStatus.SEND_OK)
    (sent,) = net.brokers["broker-a"].sent
    assert sent.body == b"tea"
    assert sent.ext_fields["a"] == "pg" and sent.ext_fields["m"] == "false"
    assert dict(piece.split("\x01") for piece in sent.ext_fields["i"].split("\x02") if piece) == {
        "KEYS": "k", "TAGS": "TagA", "UNIQ_KEY": result.msg_id,
    }  # fmt: skip


def test_a_batch_is_one_request_without_unique_key_of_its_own(net: FakeNet, backend: RemoteBackend) -> None:
    with Producer("pg", backend) as producer:
        result = producer.send_batch([Message("Orders", b"one"), Message("Orders", b"two")], queue=A0)
    (sent,) = net.brokers["broker-a"].sent
    assert (sent.code, sent.ext_fields["i"]) == (320, "WAIT\x01true\x02")
    assert len(result.msg_id.split(",")) == len(result.offset_msg_id.split(",")) == 2
    assert result.queue_offset == 0


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
def test_codes_of_stored_messages_are_statuses(
    net: FakeNet, backend: RemoteBackend, code: int, status: SendStatus
) -> None:
    net.brokers["broker-a"].send_code = code
    with Producer("pg", backend) as producer:
        assert producer.send(Message("Orders", b"tea")).status is status


def test_a_producer_goes_to_the_other_broker_when_one_is_down(net: FakeNet) -> None:
    net.add_broker("broker-b").create_topic("Orders", 2)
    net.brokers["broker-a"].processes[0].down = True
    with Producer("pg", RemoteBackend(net.cluster())) as producer:
        results = [producer.send(Message("Orders", b"tea")) for _ in range(8)]
    assert {result.broker_name for result in results} == {"broker-b"}


TIMED = Message("Orders", b"later", properties={"TIMER_DELAY_SEC": "60"})


def test_a_broker_without_timers_gets_no_message_with_a_deliver_time(net: FakeNet, backend: RemoteBackend) -> None:
    """Brokers of 4.9 keep TIMER_DELAY_SEC as a property like any other, and deliver the message at once."""
    net.brokers["broker-a"].processes[0].version = 407
    with Producer("pg", backend) as producer:
        for send in (producer.send, producer.send_oneway, lambda message: producer.send(message, queue=A0)):
            with pytest.raises(TimerNotSupportedError, match=r"broker broker-a is older than 5\.0") as caught:
                send(TIMED)
            assert (caught.value.response_code, caught.value.broker_name) == (15, "broker-a")
        with pytest.raises(TimerNotSupportedError):
            producer.send_async(TIMED).result(10)
        producer.send(Message("Orders", b"later", properties={"DELAY": "3", "TIMER_DELAY_SEC": "60"}))
    assert [sent.body for sent in net.brokers["broker-a"].sent] == [b"later"]


def test_a_message_with_a_deliver_time_goes_to_a_broker_with_timers_which_is_asked_once(net: FakeNet) -> None:
    net.brokers["broker-a"].processes[0].version = 407
    net.add_broker("broker-b").create_topic("Orders", 2)
    net.brokers["broker-b"].refused[30] = (16, "no right to ask, but the answer has the version")
    with Producer("pg", RemoteBackend(net.cluster())) as producer:
        assert {producer.send(TIMED).broker_name for _ in range(6)} == {"broker-b"}
    assert len([command for command in net.brokers["broker-b"].processes[0].asked if command.code == 30]) == 1


@pytest.mark.parametrize("code", [2, 16])
def test_a_broker_that_may_be_a_served_store_and_does_not_tell_its_figures_is_not_called_too_old(
    net: FakeNet, code: int
) -> None:
    net.brokers["broker-a"].processes[0].version = 407
    net.brokers["broker-a"].refused[28] = (code, "not now")
    with pytest.raises(MQBrokerError) as caught:
        refuse_timers(net.cluster(), "Orders", ["broker-a"])
    assert (caught.value.response_code, caught.value.retryable) == (code, code == 2)
    net.brokers["broker-a"].refused[28] = (3, "request type 28 not supported")
    with pytest.raises(TimerNotSupportedError):
        refuse_timers(net.cluster(), "Orders", ["broker-a"])


def test_a_missing_topic_is_made_by_its_first_message_where_brokers_allow_that(net: FakeNet) -> None:
    backend = RemoteBackend(net.cluster())
    with Producer("pg", backend) as producer:
        with pytest.raises(MQClientError, match="No route info of this topic: Bills"):
            producer.send(Message("Bills", b"one"))
        net.brokers["broker-a"].create_topic("TBW102", 8, perm=7)
        assert len(producer.fetch_publish_message_queues("Bills")) == 4
        producer.send(Message("Bills", b"one"))
    assert net.brokers["broker-a"].topics["Bills"]["queues"] == 4
    assert backend.publish_queues("%RETRY%cg") == []


def test_names_on_the_wire_have_the_namespace_and_messages_say_it(net: FakeNet) -> None:
    net.brokers["broker-a"].create_topic("ns1%Orders")
    backend = RemoteBackend(net.cluster("ns1"))
    with Producer("pg", backend) as producer:
        assert producer.send(Message("Orders", b"tea")).topic == "Orders"
    (sent,) = net.brokers["broker-a"].sent
    assert (sent.ext_fields["a"], sent.ext_fields["b"]) == ("ns1%pg", "ns1%Orders")
    assert "INSTANCE_ID\x01ns1\x02" in sent.ext_fields["i"]
    (message,) = broker(backend).pull("cg", A0, 0, 32).messages
    assert message.topic == "Orders"


def test_a_topic_of_another_kind_is_refused(net: FakeNet, backend: RemoteBackend) -> None:
    net.brokers["broker-a"].topics["Orders"]["attributes"] = {"cleanup.policy": "COMPACTION"}
    with pytest.raises(MQClientError, match="'Orders'"):
        backend.subscribe_queues("Orders")


@pytest.mark.parametrize("way", ["no answer", "busy", "a late slave"])
def test_a_topic_of_another_kind_is_refused_later_if_its_broker_has_not_told_it_at_first(
    net: FakeNet, timer: Timer, way: str
) -> None:
    net.add_broker("broker-b").create_topic("Batches", attributes={"queue.type": "BatchCQ"})
    net.brokers["broker-a"].create_topic("Batches", 2)
    broker = net.brokers["broker-a" if way == "a late slave" else "broker-b"]
    broker.topics["Batches"]["attributes"] = {"queue.type": "BatchCQ"}
    net.brokers["broker-b"].topics["Batches"].pop("attributes", None) if way == "a late slave" else None
    master = broker.processes[0]
    master.down = way != "busy"
    if way == "busy":
        broker.refused[351] = (2, "[OVERLOAD]system busy")
    if way == "a late slave":
        broker.processes[1].answers.append(lambda asked: response_to(asked, 17, "No topic in this broker."))
    with RemoteBackend(net.cluster(timer=timer)) as backend:
        assert backend.subscribe_queues("Batches")
        asked = net.codes().count(351)
        master.down = False
        broker.refused.clear()
        assert backend.subscribe_queues("Batches") and net.codes().count(351) == asked, "not at each send"
        timer.now_ms += POLL_EVERY_MS
        with pytest.raises(MQClientError, match="'Batches'"):
            backend.subscribe_queues("Batches")


def test_the_kind_of_a_topic_is_asked_for_once_if_all_brokers_tell_it(net: FakeNet, timer: Timer) -> None:
    net.brokers["broker-a"].refused[351] = (16, "no right, and a question of administrators")
    with RemoteBackend(net.cluster(timer=timer)) as backend:
        for _ in range(2):
            assert backend.subscribe_queues("Orders")
            timer.now_ms += 2 * POLL_EVERY_MS
    assert net.codes().count(351) == 1


# -- pulls -------------------------------------------------------------------------------------------------------------


def test_a_pull_gives_messages_and_the_range(net: FakeNet, backend: RemoteBackend) -> None:
    net.brokers["broker-a"].put("Orders", 0, 40)
    result = broker(backend).pull("cg", A0, 5, 32)
    assert [message.queue_offset for message in result.messages] == list(range(5, 37))
    assert {message.broker_name for message in result.messages} == {"broker-a"}
    assert (result.status, result.next_begin_offset, result.max_offset) == (PullStatus.FOUND, 37, 40)
    assert broker(backend).pull("cg", A0, 40, 32).status is PullStatus.NO_NEW_MSG
    beyond = broker(backend).pull("cg", A0, 400, 32)
    assert (beyond.status, beyond.next_begin_offset) == (PullStatus.OFFSET_ILLEGAL, 40)


def test_tags_are_compared_as_texts(net: FakeNet, backend: RemoteBackend) -> None:
    net.brokers["broker-a"].put("Orders", 0, 1, tags="Aa")

    def same_hash(command: RemotingCommand) -> RemotingCommand:
        body = net.brokers["broker-a"].queues["Orders", 0].frames[0]
        fields = {"nextBeginOffset": "1", "minOffset": "0", "maxOffset": "1", "suggestWhichBrokerId": "0"}
        return response_to(command, 0, "FOUND", fields, body)

    backend.brokers()
    net.brokers["broker-a"].processes[0].answers.append(same_hash)
    result = broker(backend).pull("cg", A0, 0, 32, "BB")
    assert (result.status, result.messages, result.next_begin_offset) == (PullStatus.NO_MATCHED_MSG, [], 1)


@pytest.mark.parametrize("filters", [True, False])
def test_a_condition_is_sent_to_a_broker_that_evaluates_it(
    net: FakeNet, backend: RemoteBackend, filters: bool, caplog: pytest.LogCaptureFixture
) -> None:
    net.brokers["broker-a"].property_filter = filters
    for tag in ("TagA", "TagB", "TagA"):
        net.brokers["broker-a"].put("Orders", 0, 1, tags=tag)
    told = {"Orders": Subscription.of("Orders", MessageSelector.by_sql("TAGS = 'TagA'"))}
    broker(backend).heartbeat("cg", "me", topics=told)
    found = [broker(backend).pull("cg", A0, 0, 32) for _ in range(2)][-1]
    assert (found.status, found.next_begin_offset) == (PullStatus.FOUND, 3)
    assert [message.queue_offset for message in found.messages] == ([0, 2] if filters else [0, 1, 2])
    assert caplog.text.count("broker-a does not evaluate SQL92") == (not filters)
    asked = [command.ext_fields["expressionType"] for _, command in net.calls if command.code == 11]
    assert asked == (["SQL92"] * 2 if filters else ["SQL92", "TAG"]), "a refusal is remembered"
    assert broker(backend).pull("other", A0, 0, 32).messages[1].queue_offset == 1


def test_a_pull_that_the_broker_holds_is_asked_once_and_answered_later(net: FakeNet, backend: RemoteBackend) -> None:
    broker(backend)
    net.held = []
    begin = time.monotonic()
    for _ in range(5):
        assert broker(backend).pull("cg", A0, 0, 32).status is PullStatus.NO_NEW_MSG
    assert time.monotonic() - begin < 14, "the broker holds one for 15 s"
    assert len(net.held) == 1
    fields = net.held[0][2].ext_fields
    assert (fields["sysFlag"], fields["suspendTimeoutMillis"]) == ("6", "15000")
    net.brokers["broker-a"].put("Orders", 0, 3)
    net.release()
    assert len(broker(backend).pull("cg", A0, 0, 32).messages) == 3


def test_another_offset_is_asked_for_at_once(net: FakeNet, backend: RemoteBackend) -> None:
    net.brokers["broker-a"].put("Orders", 0, 9)
    broker(backend)
    net.held = []
    broker(backend).pull("cg", A0, 9, 32)
    net.held, old = None, net.held
    assert len(broker(backend).pull("cg", A0, 2, 32).messages) == 7
    assert len(old) == 1


def test_pulls_go_to_the_slave_while_the_master_is_away_and_never_back(net: FakeNet, backend: RemoteBackend) -> None:
    fake = net.brokers["broker-a"]
    fake.put("Orders", 0, 40)
    fake.processes[1].end = 20
    fake.processes[0].down = True
    with pytest.raises(RemotingConnectError):
        broker(backend).pull("cg", A0, 0, 32)
    assert len(broker(backend).pull("cg", A0, 0, 32).messages) == 20
    # What the slave does not have yet is no end, and its end is no place to go back to.
    behind = broker(backend).pull("cg", A0, 30, 32)
    assert (behind.status, behind.next_begin_offset) == (PullStatus.NO_NEW_MSG, 30)


def test_the_end_of_a_slave_is_no_place_to_go_back_to_when_reads_have_left_it(
    net: FakeNet, backend: RemoteBackend
) -> None:
    """A pull is in flight at the slave when another queue's answer sends the reads to the master again."""
    fake = net.brokers["broker-a"]
    fake.put("Orders", 0, 40)
    fake.put("Orders", 1, 40)
    fake.processes[1].end, fake.processes[1].version = 20, 405
    fake.processes[0].suggest = 1
    assert len(broker(backend).pull("cg", A0, 0, 32).messages) == 32, "and the slave is asked from now on"
    net.held = []
    assert broker(backend).pull("cg", A0, 32, 32).status is PullStatus.NO_NEW_MSG
    assert broker(backend).pull("cg", A1, 0, 32).status is PullStatus.NO_NEW_MSG
    net.release(1)
    assert len(broker(backend).pull("cg", A1, 0, 32).messages) == 20
    net.release(0)
    late = broker(backend).pull("cg", A0, 32, 32)
    assert (late.status, late.next_begin_offset) == (PullStatus.NO_NEW_MSG, 32)
    net.held = None
    assert len(broker(backend).pull("cg", A0, 32, 32).messages) == 8


def test_a_reset_that_a_broker_orders_moves_the_consumer(net: FakeNet, backend: RemoteBackend) -> None:
    fake = net.brokers["broker-a"]
    fake.put("Orders", 0, 40)
    fake.pending_reset["cg", "Orders", 0] = 7
    result = broker(backend).pull("cg", A0, 20, 32)
    assert (result.status, result.next_begin_offset) == (PullStatus.OFFSET_ILLEGAL, 7)
    # Brokers of 4.x send it to the members instead.
    broker(backend).heartbeat("cg", "me", topics=["Orders"])
    body = ResetOffsetBody(offset_table={A0: 5}).encode()
    ext = {"topic": "Orders", "group": "cg", "timestamp": "-1", "isForce": "true"}
    assert net.handlers[220]("broker-a-0:10911", RemotingCommand(220, ext, body)) is None
    result = broker(backend).pull("cg", A0, 20, 32)
    assert (result.status, result.next_begin_offset) == (PullStatus.OFFSET_ILLEGAL, 5)
    assert broker(backend).pull("cg", A0, 20, 32).status is PullStatus.FOUND


# -- members -----------------------------------------------------------------------------------------------------------


def test_a_heartbeat_tells_the_subscriptions_as_java_does(net: FakeNet, backend: RemoteBackend) -> None:
    told = {"Orders": Subscription.of("Orders", "TagA || TagB"), "%RETRY%cg": Subscription.of("%RETRY%cg", "*")}
    broker(backend).heartbeat("cg", "me@1", joins=True, topics=told)
    data: dict[str, Any] = net.brokers["broker-a"].members["cg"]["me@1"]
    assert (data["consumeType"], data["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
    orders, retry = data["subscriptionDataSet"]
    assert (orders["subString"], orders["tagsSet"], orders["codeSet"]) == ("TagA || TagB", ["TagA", "TagB"], [
        2598919, 2598920,
    ])  # fmt: skip
    assert (retry["subString"], retry["tagsSet"], retry["codeSet"]) == ("*", [], [])
    broker(backend).heartbeat("cg", "me@1", topics={**told, "Orders": Subscription.of("Orders", "TagC")})
    changed: Any = net.brokers["broker-a"].members["cg"]["me@1"]
    assert changed["subscriptionDataSet"][0]["subVersion"] > orders["subVersion"]
    broker(backend).heartbeat("cg2", "me@2@STREAM", topics=["Orders"], shares=False)
    lite: Any = net.brokers["broker-a"].members["cg2"]["me@2@STREAM"]
    assert (lite["consumeType"], lite["messageModel"]) == ("CONSUME_ACTIVELY", "BROADCASTING")


def test_two_members_of_a_group_do_not_share_connections(backend: RemoteBackend) -> None:
    broker(backend).heartbeat("cg", "one", topics=["Orders"])
    with pytest.raises(UsageError, match="a backend, or a text as rmq://ns1:9876, of its own"):
        broker(backend).heartbeat("cg", "two", topics=["Orders"])


def test_a_member_that_the_broker_has_lost_is_told_again_before_it_gives_up_its_queues(
    net: FakeNet, backend: RemoteBackend
) -> None:
    broker(backend).heartbeat("cg", "one", topics=["Orders"])
    net.brokers["broker-a"].members["cg"] = {"java@1": {}}
    assert broker(backend).consumer_ids("cg") == ["java@1", "one"]


def test_only_brokers_that_have_the_topics_know_all_members(net: FakeNet) -> None:
    """Java's members tell only those: others would make this member believe that it is alone."""
    net.add_broker("broker-0")
    backend = RemoteBackend(net.cluster())
    for name in backend.brokers():
        broker(backend, name).heartbeat("cg", "one", topics=["Orders", "%RETRY%cg"])
    net.brokers["broker-a"].members["cg"]["java@1"] = {}
    with pytest.raises(MQClientError, match="broker-0 has none of the topics"):
        broker(backend, "broker-0").consumer_ids("cg")
    assert broker(backend).consumer_ids("cg") == ["java@1", "one"]


def test_a_broker_that_does_not_answer_keeps_nobody_from_joining_at_the_others(net: FakeNet) -> None:
    net.add_broker("broker-b").create_topic("Orders", 2)
    net.brokers["broker-a"].processes[0].down = True
    backend = RemoteBackend(net.cluster())
    for name in backend.brokers():
        broker(backend, name).heartbeat("cg", "one", topics=["Orders"])
    assert list(net.brokers["broker-b"].members["cg"]) == ["one"]
    net.brokers["broker-b"].processes[0].down = True
    with pytest.raises(RemotingConnectError):
        broker(backend).heartbeat("cg", "one", topics=["Orders"])


def test_a_backend_that_closes_leaves_its_groups(net: FakeNet) -> None:
    with RemoteBackend(net.cluster()) as backend:
        broker(backend).heartbeat("cg", "one", topics=["Orders"])
    assert not net.brokers["broker-a"].members["cg"]
    assert not net.closed


def test_offsets_are_committed_at_the_master_and_the_group_is_made_if_need_be(
    net: FakeNet, backend: RemoteBackend
) -> None:
    assert broker(backend).update_consumer_offsets("cg", {A0: 3}) == {A0}
    assert net.brokers["broker-a"].offsets == {("cg", "Orders", 0): 3}
    assert net.codes().count(200) == 1
    assert broker(backend).query_consumer_offset("cg", A0) == 3


def test_offsets_of_ordered_queues_are_committed_while_the_lock_is_held(net: FakeNet, backend: RemoteBackend) -> None:
    other = MessageQueue("Orders", "broker-a", 1)
    net.brokers["broker-a"].locks["cg", "Orders", 1] = "someone"
    assert broker(backend).lock_queues("cg", "me", [A0, other]) == {A0}
    assert broker(backend).update_consumer_offsets("cg", {A0: 3, other: 4}, lock_owner="me") == {A0}
    broker(backend).unlock_queues("cg", "me", [A0])
    assert net.brokers["broker-a"].locks == {("cg", "Orders", 1): "someone"}


def test_ends_and_times_of_queues(net: FakeNet, backend: RemoteBackend) -> None:
    net.brokers["broker-a"].put("Orders", 0, 9)
    net.brokers["broker-a"].queues["Orders", 0].min_offset = 2
    asked: RemoteBroker = broker(backend)
    assert (asked.min_offset(A0), asked.max_offset(A0)) == (2, 9)
    assert asked.offset_by_time(A0, 1_700_000_000_004) == 4


# -- retries -----------------------------------------------------------------------------------------------------------


def test_messages_are_sent_back_to_their_broker_with_the_consumers_maximum(
    net: FakeNet, backend: RemoteBackend
) -> None:
    net.brokers["broker-a"].put("Orders", 0, 2)
    message = broker(backend).pull("cg", A0, 1, 1).messages[0]
    broker(backend).send_message_back("cg", message, 0, 3, 5000)
    (back,) = net.brokers["broker-a"].sent_back
    assert (back["offset"], back["group"], back["delayLevel"], back["maxReconsumeTimes"]) == ("14000", "cg", "0", "3")
    assert (back["originTopic"], back["originMsgId"]) == ("Orders", message.msg_id)
    with pytest.raises(UsageError):
        broker(backend).send_message_back("cg", message, 0, 3, 5000, properties={"REASON": "x"})


def test_rows_are_sent_back_one_at_a_time_or_not_at_all(net: FakeNet, backend: RemoteBackend) -> None:
    net.brokers["broker-a"].put("Orders", 0, 2)
    rows: pa.RecordBatch = broker(backend).pull_batch("cg", A0, 0, 2).batches[0]
    with pytest.raises(MQClientError, match="one at a time"):
        broker(backend).send_messages_back("cg", rows, 0, None, 5000)
    assert not net.brokers["broker-a"].sent_back
    broker(backend).send_messages_back("cg", rows.slice(1), -1, None, 5000)
    assert [back["delayLevel"] for back in net.brokers["broker-a"].sent_back] == ["-1"]


def test_a_message_that_cannot_be_sent_back_goes_to_the_retry_topic(net: FakeNet, backend: RemoteBackend) -> None:
    net.brokers["broker-a"].create_topic("TBW102", 8, perm=7)
    broker(backend).send_to_retry("cg", Message("Orders", b"tea", properties={"DELAY": "4"}), 2, 16)
    (sent,) = net.brokers["broker-a"].sent
    fields = sent.ext_fields
    assert (fields["a"], fields["b"], fields["d"]) == ("CLIENT_INNER_PRODUCER", "%RETRY%cg", "1")
    assert (fields["j"], fields["l"]) == ("2", "16")


# -- consumers ---------------------------------------------------------------------------------------------------------


def rounds(consumer: PushConsumer, until: Any) -> None:
    for _ in range(400):
        consumer.run_once()
        if until():
            return
        time.sleep(0.005)
    raise AssertionError("it did not come in 400 rounds")


def test_a_push_consumer_gets_the_messages_and_leaves_its_progress(net: FakeNet) -> None:
    net.brokers["broker-a"].put("Orders", 0, 30)
    net.brokers["broker-a"].put("Orders", 1, 30)
    got: list[Any] = []

    def handle(messages: Any, _context: Any) -> ConsumeConcurrentlyStatus:
        got.extend(messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    with PushConsumer("cg", RemoteBackend(net.cluster()), PushConsumerConfig(consume_thread_nums=1)) as consumer:
        consumer.subscribe("Orders")
        consumer.register_message_listener(MessageListenerConcurrently(handle))
        consumer.start(threads=False)
        rounds(consumer, lambda: len(got) == 60)
        assert consumer.client_id in net.brokers["broker-a"].members["cg"]
    assert len({(message.queue_id, message.queue_offset) for message in got}) == 60
    assert net.brokers["broker-a"].offsets == {("cg", "Orders", 0): 30, ("cg", "Orders", 1): 30}
    assert not net.brokers["broker-a"].members["cg"]


def test_a_push_consumer_shares_with_a_member_of_another_language(net: FakeNet) -> None:
    net.brokers["broker-a"].members["cg"]["zzz-java@1"] = {}
    with PushConsumer("cg", RemoteBackend(net.cluster()), client_id="one") as consumer:
        consumer.subscribe("Orders")
        consumer.register_message_listener(MessageListenerConcurrently(lambda *_: None))
        consumer.start(threads=False)
        rounds(consumer, lambda: consumer._rebalance.queues() or time.sleep(0.02))
        assert consumer._rebalance.queues() == [A0]


def test_a_lite_pull_consumer_polls_and_commits(net: FakeNet) -> None:
    net.brokers["broker-a"].put("Orders", 0, 40)
    with LitePullConsumer("cg", RemoteBackend(net.cluster())) as consumer:
        consumer.subscribe("Orders")
        consumer.start(threads=False)
        got = list(itertools.chain.from_iterable(consumer.poll(2000) for _ in range(4)))
        assert len(got) == 40
        consumer.commit()
    assert net.brokers["broker-a"].offsets["cg", "Orders", 0] == 40


def taken(consumer: PushConsumer, got: list[Any], count: int) -> list[tuple[int, int]]:
    """Where the messages were that came in the next rounds, at least `count` in all."""
    rounds(consumer, lambda: len(got) >= count)
    while consumer.run_once():
        pass
    return [(message.queue_id, message.queue_offset) for message in got]


@pytest.mark.parametrize("is_ordered", [False, True])
def test_a_push_consumer_takes_the_queues_that_may_be_read_and_no_others(net: FakeNet, is_ordered: bool) -> None:
    """`updateTopic -r 4 -w 2`, then `-r 2 -w 4`, then `-r 4 -w 4`, while it runs: it gets each message once."""
    fake, now_ms = net.brokers["broker-a"], [1_000_000.0]
    got: list[Any] = []

    def handle(messages: Any, _context: Any) -> Any:
        got.extend(messages)
        return ConsumeOrderlyStatus.SUCCESS if is_ordered else ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    def counts(read: int, write: int) -> None:
        fake.create_topic("Orders", 4, read=read, write=write)
        now_ms[0] += POLL_EVERY_MS

    counts(4, 2)
    for queue_id in range(4):
        fake.put("Orders", queue_id, 5)
    backend = RemoteBackend(net.cluster(timer=lambda: now_ms[0]))
    with PushConsumer("cg", backend, PushConsumerConfig(consume_thread_nums=1)) as consumer:
        listener = MessageListenerOrderly if is_ordered else MessageListenerConcurrently
        consumer.subscribe("Orders")
        consumer.register_message_listener(listener(handle))
        consumer.start(threads=False)
        everything = [(queue_id, offset) for queue_id in range(4) for offset in range(5)]
        assert sorted(taken(consumer, got, 20)) == everything
        counts(2, 4)
        consumer._membership.hurry()
        for queue_id in range(4):
            fake.put("Orders", queue_id, 1)
        assert sorted(taken(consumer, got, 22)) == sorted([*everything, (0, 5), (1, 5)])
        assert {queue.queue_id for queue in consumer.queues()} == {0, 1}
        counts(4, 4)
        consumer._membership.hurry()
        assert sorted(taken(consumer, got, 24)) == [(queue_id, offset) for queue_id in range(4) for offset in range(6)]
    assert fake.offsets == {("cg", "Orders", queue_id): 6 for queue_id in range(4)}


@pytest.mark.parametrize(("read", "write"), [(4, 2), (2, 4)])
def test_a_lite_pull_consumer_takes_the_queues_that_may_be_read_and_no_others(
    net: FakeNet, read: int, write: int
) -> None:
    net.brokers["broker-a"].create_topic("Orders", 4, read=read, write=write)
    for queue_id in range(4):
        net.brokers["broker-a"].put("Orders", queue_id, 5)
    with LitePullConsumer("cg", RemoteBackend(net.cluster())) as consumer:
        consumer.subscribe("Orders")
        consumer.start(threads=False)
        got = list(itertools.chain.from_iterable(consumer.poll(500) for _ in range(read + 1)))
        assert [queue.queue_id for queue in consumer.fetch_message_queues("Orders")] == list(range(read))
    assert sorted((message.queue_id, message.queue_offset) for message in got) == [
        (queue_id, offset) for queue_id in range(read) for offset in range(5)
    ]


# -- POP ---------------------------------------------------------------------------------------------------------------


def received(backend: RemoteBackend, tags: str = "*", count: int = 32) -> list[PoppedMessage]:
    return broker(backend).receive_message("cg", Subscription.of("Orders", tags), count, 10_000)


def test_messages_of_pop_come_with_handles_by_which_they_are_acknowledged(net: FakeNet, backend: RemoteBackend) -> None:
    fake = net.brokers["broker-a"]
    fake.put("Orders", 0, 3)
    assert [one.receipt_handle for one in received(backend, count=2)] == [
        "0 5 10000 3 0 broker-a 0 0", "0 5 10000 3 0 broker-a 0 1",
    ]  # fmt: skip
    (last,) = received(backend)
    assert (last.receipt_handle, last.delivery_attempt) == ("2 5 10000 3 0 broker-a 0 2", 1)
    changed = broker(backend).change_invisible_duration("cg", "Orders", last.receipt_handle, 20_000)
    assert changed == "2 9 20000 4 0 broker-a 0 2"
    broker(backend).ack_message("cg", "Orders", changed)
    assert fake.acked == [("Orders", 0, 2)]
    assert received(backend) == []


@pytest.mark.parametrize(("kind", "topic"), [("0", "Orders"), ("1", "%RETRY%cg_Orders"), ("2", "%RETRY%cg+Orders")])
def test_a_message_is_acknowledged_in_the_topic_that_it_lies_in(
    net: FakeNet, backend: RemoteBackend, kind: str, topic: str
) -> None:
    broker(backend).ack_message("cg", "Orders", f"0 5 10000 3 {kind} broker-a 0 7")
    assert net.brokers["broker-a"].acked == [(topic, 0, 7)]


def test_messages_that_are_not_wanted_are_acknowledged(net: FakeNet, backend: RemoteBackend) -> None:
    fake = net.brokers["broker-a"]
    fake.put("Orders", 0, 1, tags="Aa")
    fake.put("Orders", 0, 1, tags="BB")
    (wanted,) = received(backend, "BB")
    assert wanted.message.tags == "BB"
    assert fake.acked == [("Orders", 0, 0)]


@pytest.mark.parametrize("handle", ["", "x", "0 5 10000 3 0 broker-a 0", "0 5 10000 3 x broker-a 0 7"])
def test_a_handle_that_is_none_is_refused(backend: RemoteBackend, handle: str) -> None:
    with pytest.raises(InvalidReceiptHandleError):
        broker(backend).ack_message("cg", "Orders", handle)


def test_a_handle_that_the_broker_does_not_know_is_refused(net: FakeNet, backend: RemoteBackend) -> None:
    net.brokers["broker-a"].refused[200051] = (208, "offset is out of range")
    with pytest.raises(InvalidReceiptHandleError, match="out of range"):
        broker(backend).ack_message("cg", "Orders", "0 5 10000 3 0 broker-a 0 7")


def test_pop_needs_brokers_of_5_and_takes_the_groups_own_maximum(net: FakeNet, backend: RemoteBackend) -> None:
    with pytest.raises(UsageError, match="retryMaxTimes"):
        broker(backend).receive_message(
            "cg", Subscription.of("Orders", "*"), 1, 10_000, max_delivery_attempts=3
        )
    net.brokers["broker-a"].processes[0].version = 405
    with pytest.raises(UsageError, match="needs brokers of 5"):
        received(backend)


def test_a_simple_consumer_receives_and_acknowledges(net: FakeNet) -> None:
    fake = net.brokers["broker-a"]
    fake.put("Orders", 0, 3)
    with SimpleConsumer("cg", RemoteBackend(net.cluster()), {"Orders": "*"}) as consumer:
        views = consumer.receive(10, timedelta(seconds=10))
        for view in views:
            consumer.ack(view)
    assert fake.acked == [("Orders", 0, number) for number in range(3)]


def test_a_backend_is_what_clients_expect(backend: RemoteBackend) -> None:
    known: Backend = backend
    assert isinstance(known.clock(), int)
    with pytest.raises(MQBrokerError):
        backend.cluster.call_broker("broker-a", RemotingCommand(9999))


@pytest.mark.parametrize("way", ["down", "silent", "busy"])
def test_a_simple_consumer_goes_on_without_a_broker_that_is_away(
    net: FakeNet, timer: Timer, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    net.add_broker("broker-b").create_topic("Orders", 1)
    goes, master = net.brokers["broker-a"], net.brokers["broker-a"].processes[0]
    nothing = timedelta(0)

    def received(consumer: SimpleConsumer) -> list[str]:
        return [view.broker_name for _ in range(4) for view in consumer.receive(1, timedelta(seconds=10))]

    def pops(name: str) -> int:
        addresses = {process.address for process in net.brokers[name].processes.values()}
        return sum(address in addresses and command.code == 200050 for address, command in net.calls)

    backend = RemoteBackend(net.cluster(timer=timer))
    with SimpleConsumer("cg", backend, {"Orders": "*"}, await_duration=nothing) as consumer:
        master.down, master.silent = way == "down", way == "silent"
        if way == "busy":
            goes.refused[200050] = (2, "[OVERLOAD]system busy")
        net.brokers["broker-b"].put("Orders", 0, 3)
        assert received(consumer) == ["broker-b"] * 3
        assert pops("broker-a") == 1, "asked no more: others wait for it, and it may not answer in time"
        master.down = master.silent = False
        goes.refused.clear()
        goes.put("Orders", 0, 1)
        assert received(consumer) == [], "not before a probe is due"
        timer.now_ms += 1_000
        assert received(consumer) == ["broker-a"]
    warnings = [record.message for record in caplog.records if record.name.endswith("simple_consumer")]
    assert [line.split(":")[1][:24] for line in warnings] == [" broker broker-a is away", " broker broker-a is back"]


@pytest.mark.parametrize("kind", ["refused", "silent"])
def test_a_simple_consumer_goes_on_without_a_name_server(net: FakeNet, timer: Timer, kind: str) -> None:
    """No name server has told where the retry topic is, because nothing has failed yet."""
    backend = RemoteBackend(net.cluster(timer=timer))
    with SimpleConsumer("cg", backend, {"Orders": "*"}, await_duration=timedelta(0)) as consumer:
        assert consumer.receive(1, timedelta(seconds=10)) == []
        for address in net.name_servers:
            server = net.name_servers[address]
            server.down, server.silent = kind == "refused", kind == "silent"
        for _ in range(3):
            timer.now_ms += POLL_EVERY_MS + 1
            net.brokers["broker-a"].put("Orders", 0, 1)
            assert len(consumer.receive(1, timedelta(seconds=10))) == 1


def test_a_simple_consumer_ends_at_a_refusal(net: FakeNet) -> None:
    net.brokers["broker-a"].refused[200050] = (16, "no right")
    with SimpleConsumer("cg", RemoteBackend(net.cluster()), {"Orders": "*"}) as consumer:
        with pytest.raises(MQBrokerError, match="no right"):
            consumer.receive(1, timedelta(seconds=10))
