"""RocketMQ 5's released proxy before released brokers, by its remoting port alone: what docs/cluster.md says of it."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result

from cluster.test_clients import FROM_FIRST, wait_until
from helpers.cluster.asking import Connection
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.fixtures import require_released
from helpers.cluster.released_proxy import PROXY, VERSION, RocketmqProxy
from rmq_store import Message, UsageError
from rmq_store.cli import commands
from rmq_store.client import (
    ConsumeConcurrentlyStatus,
    LitePullConsumer,
    LitePullConsumerConfig,
    LocalTransactionState,
    MessageExt,
    MessageListenerConcurrently,
    MessageListenerOrderly,
    MessageSelector,
    Producer,
    PushConsumer,
    PushConsumerConfig,
    SimpleConsumer,
    TransactionListener,
    TransactionProducer,
)
from rmq_store.client.consume_service.listener import ConsumeOrderlyStatus
from rmq_store.cluster import Cluster, ClusterSettings, MQBrokerError
from rmq_store.protocol.errors import RemotingError, RemotingTimeoutError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster.offsets import query_consumer_offsets
from rmq_store.remoting.cluster.topics import topic_stats

NewName = Callable[[str], str]
SUCCESS, RECONSUME_LATER = ConsumeConcurrentlyStatus.CONSUME_SUCCESS, ConsumeConcurrentlyStatus.RECONSUME_LATER
# Brokers ask for the outcome of a transaction soon, and not after half a minute.
CHECK_SOON = {"transactionTimeOut": 1000, "transactionCheckInterval": 2000}


class Behind(NamedTuple):
    """A proxy, and the cluster behind it, which only the tests know."""

    proxy: RocketmqProxy
    cluster: RocketmqCluster

    @property
    def place(self) -> str:
        return f"rmq://{self.proxy.address}"

    def create_topic(self, topic: str, queue_count: int = 2, message_type: str = "") -> str:
        """Make a topic as an administrator does, at the brokers; the proxy, which remembers for 20 s that there was
        none, shows it when this returns.
        """
        self.cluster.create_topic(topic, queue_count, attributes=message_type and f"+message.type={message_type}")
        with Cluster(ClusterSettings.of_text(self.place)) as known:

            def is_shown() -> bool:
                route = known.refresh_route(topic)
                return route is not None and route.queues.keys() == set(self.cluster.broker_names)

            wait_until(is_shown, f"{topic} at the proxy")
        return topic

    def asked(self, code: int, **fields: object) -> tuple[int, str]:
        """The code and the remark of the proxy's answer."""
        with Connection(self.proxy.address) as connection:
            answer = connection.ask(code, fields)
        return answer.code, answer.remark or ""


@pytest.fixture(scope="module")
def behind() -> Iterator[Behind]:
    require_released(VERSION)
    require_released(PROXY)
    with RocketmqCluster(VERSION, groups=2, properties=CHECK_SOON) as cluster, RocketmqProxy(cluster) as proxy:
        yield Behind(proxy, cluster)


def rmq(address: str, *words: str) -> Result:
    clean = {"RMQ_STORE": None, "NAMESRV_ADDR": None, "RMQ_TIMEOUT": "20"}
    return CliRunner().invoke(commands, ["-n", address, *words], env=clean, prog_name="rmq")


def bodies(listener: list[MessageExt]) -> list[bytes]:
    return sorted(message.body for message in listener)


def pushed(
    behind: Behind, group: str, topic: str, *, selector: Any = "*", **config: Any
) -> tuple[PushConsumer, list[MessageExt]]:
    """A consumer that takes everything, and what it has got."""
    seen: list[MessageExt] = []

    def handle(messages: list[MessageExt], _: object) -> ConsumeConcurrentlyStatus:
        seen.extend(messages)
        return SUCCESS

    consumer = PushConsumer(group, behind.place, PushConsumerConfig(**FROM_FIRST, **config))
    consumer.subscribe(topic, selector)
    consumer.register_message_listener(MessageListenerConcurrently(handle))
    return consumer, seen


@pytest.mark.parametrize("shared_cluster", [VERSION], indirect=True)
def test_commands_and_clients_use_a_proxy_as_their_only_address(cluster: RocketmqCluster, new_name: NewName) -> None:
    """With a slave, whose address is the proxy's, too."""
    require_released(PROXY)
    topic, group = cluster.create_topic(new_name("Orders"), 2), new_name("cg")
    with RocketmqProxy(cluster) as proxy:
        behind = Behind(proxy, cluster)
        with Cluster(ClusterSettings.of_text(behind.place)) as known:
            route = known.known_route(topic)
            assert set(route.brokers["broker-a"].addresses.items()) == {(0, proxy.address), (1, proxy.address)}
            assert (known.name, known.broker_names()) == ("rmq-tests", ["broker-a"])
        assert rmq(proxy.address, "send", topic, "--body", "two teas").exit_code == 0
        consumer, seen = pushed(behind, group, topic)
        with consumer:
            consumer.start()
            wait_until(lambda: seen, "the message")
        assert bodies(seen) == [b"two teas"]
        for words in (["read", topic, "--json"], ["tail", topic, "--json"], ["consume", topic, "-g", "cg-p", "--peek"]):
            result = rmq(proxy.address, *words)
            assert result.exit_code == 0 and "two teas" in result.stdout, (words, result.output)
        for words, code in (
            (["topics"], "(206)"), (["groups"], "type 201"), (["lag", group], "type 201"), (["clusterList"], "(106)"),
            (["offsets", "export", group], "type 201"), (["updateTopic", "-c", "rmq-tests", "-t", "New"], "(106)"),
            (["queryMsgByKey", "-t", topic, "-k", "k"], "type 12"),
        ):  # fmt: skip
            result = rmq(proxy.address, *words)
            assert result.exit_code in (1, 2), (words, result.output)
            assert code in result.stderr and "need the address of a name server" in result.stderr, result.stderr
        doctor = rmq(proxy.address, "doctor")
        assert doctor.exit_code == 0 and f"{proxy.address}: RocketMQ 5's proxy" in doctor.output


@pytest.mark.slow
def test_its_answers_are_those_of_the_simulated_one(behind: Behind, new_name: NewName) -> None:
    """Codes and remarks in tests/helpers/cluster/simulated/proxy.py."""
    topic = behind.create_topic(new_name("Orders"))
    unknown = (RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
               RequestCode.GET_TOPIC_STATS_INFO, RequestCode.UPDATE_AND_CREATE_TOPIC,
               RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, RequestCode.GET_CONSUME_STATS, RequestCode.QUERY_MESSAGE,
               RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.GET_TOPIC_CONFIG)  # fmt: skip
    assert [behind.asked(code) for code in unknown] == [(3, f" request type {code} not supported") for code in unknown]
    assert behind.asked(RequestCode.GET_MAX_OFFSET, topic=topic, queueId=0) == (15, "Request doesn't have field bname")
    assert behind.asked(RequestCode.GET_MAX_OFFSET, topic=topic, queueId=0, bname="broker-b") == (0, "")
    code, remark = behind.asked(RequestCode.POP_MESSAGE, topic=topic, bname="broker-a")
    assert code == 1 and "PullMessageRequestHeader.getSysFlag()" in remark
    assert behind.asked(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="cg-none")[0] == 1
    assert behind.asked(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="cg-none")[0] == 206
    for silent, fields in (
        (RequestCode.ACK_MESSAGE, {}), (RequestCode.CHANGE_MESSAGE_INVISIBLETIME, {}),
        (RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": 0, "bname": "broker-z"}),
    ):  # fmt: skip
        with Connection(behind.proxy.address, timeout_s=3) as connection, pytest.raises(TimeoutError):
            connection.ask(silent, fields)


@pytest.mark.slow
def test_a_message_has_the_type_of_its_topic(behind: Behind, new_name: NewName) -> None:
    delayed = Message(behind.create_topic(new_name("Delayed"), message_type="DELAY"), b"late", delay_level=1)
    fifo = Message(behind.create_topic(new_name("Fifo"), message_type="FIFO"), b"a", properties={"__SHARDINGKEY": "k"})
    plain = behind.create_topic(new_name("Plain"))
    with Producer("pg", behind.place) as producer:
        producer.send(Message(plain, b"a"))
        producer.send_batch([Message(plain, b"%d" % number) for number in range(100)])
        producer.send(delayed)
        producer.send(fifo)
        for message, said in (
            (Message(plain, b"late", delay_level=1), r"is NORMAL, but .* DELAY: .*\+message\.type=DELAY"),
            (Message(plain, b"a", properties={"__SHARDINGKEY": "k"}), "is NORMAL, but .* FIFO"),
            (Message(delayed.topic, b"now"), "is DELAY, but .* NORMAL"),
            (Message(new_name("Nothing"), b"a"), "is UNSPECIFIED, but .*: no broker has the topic"),
        ):
            with pytest.raises(MQBrokerError, match=said):
                producer.send(message)
    result = rmq(behind.proxy.address, "send", plain, "--body", "late", "--delay-level", "2")
    assert result.exit_code == 1 and "takes only messages of the topic's type" in result.stderr


@pytest.mark.slow
def test_a_failed_message_is_tried_again_and_becomes_a_dead_letter(behind: Behind, new_name: NewName) -> None:
    topic, group = behind.create_topic(new_name("Orders")), new_name("cg")
    seen: list[tuple[bytes, int]] = []

    def handle(messages: list[MessageExt], context: Any) -> ConsumeConcurrentlyStatus:
        seen.extend((message.body, message.reconsume_times) for message in messages)
        context.delay_level_when_next_consume = 1
        return RECONSUME_LATER if any(message.body == b"bad" for message in messages) else SUCCESS

    consumer = PushConsumer(group, behind.place, PushConsumerConfig(max_reconsume_times=1, **FROM_FIRST))
    consumer.subscribe(topic, "TagA")
    consumer.register_message_listener(MessageListenerConcurrently(handle))
    with Producer("pg", behind.place) as producer, consumer, Cluster(ClusterSettings.of_text(behind.place)) as known:
        for body, tag in ((b"good", "TagA"), (b"bad", "TagA"), (b"other", "TagB")):
            producer.send(Message(topic, body, tags=tag))
        consumer.start()
        wait_until(lambda: known.refresh_route(f"%DLQ%{group}"), "the topic of dead letters", 120)
        wait_until(lambda: ends(known, f"%DLQ%{group}") == 1, "the dead letter")
    assert sorted(seen) == [(b"bad", 0), (b"bad", 1), (b"good", 0)]
    with Cluster(ClusterSettings.of_text(behind.place)) as known:
        of_topic = {queue: span.max_offset for queue, span in topic_stats(known, topic).items() if span.max_offset}
        found = query_consumer_offsets(known, group, of_topic)
        assert {queue: offset for queue, (offset, _) in found.items()} == of_topic


def ends(known: Cluster, topic: str) -> int:
    return sum(span.max_offset for span in topic_stats(known, topic).values())


@pytest.mark.slow
def test_orderly_consumers_lock_their_queues_and_fail_into_dead_letters(behind: Behind, new_name: NewName) -> None:
    topic, group = behind.create_topic(new_name("Orders")), new_name("cg")
    seen: dict[MessageQueue, list[tuple[int, int]]] = {}

    def handle(messages: list[MessageExt], context: Any) -> ConsumeOrderlyStatus:
        for one in messages:
            queue = MessageQueue(topic, one.broker_name, one.queue_id)
            seen.setdefault(queue, []).append((one.queue_offset, one.reconsume_times))
        context.suspend_current_queue_time_millis = 100
        is_bad = any(message.body == b"bad" for message in messages)
        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT if is_bad else ConsumeOrderlyStatus.SUCCESS

    config = PushConsumerConfig(max_reconsume_times=1, consume_message_batch_max_size=1, **FROM_FIRST)
    consumer = PushConsumer(group, behind.place, config)
    consumer.subscribe(topic)
    consumer.register_message_listener(MessageListenerOrderly(handle))
    with Producer("pg", behind.place) as producer, consumer, Cluster(ClusterSettings.of_text(behind.place)) as known:
        for number in range(40):
            producer.send(Message(topic, b"bad" if number == 7 else b"%d" % number))
        consumer.start()
        wait_until(lambda: sum(map(len, seen.values())) >= 41, "forty messages, one of them twice")
        wait_until(lambda: known.refresh_route(f"%DLQ%{group}"), "the topic of dead letters", 90)
    assert len(seen) == 4 and all(found == sorted(found) for found in seen.values())
    assert sorted(times for found in seen.values() for _, times in found) == [0] * 40 + [1]


@pytest.mark.slow
def test_two_members_share_the_queues_and_conditions_select(behind: Behind, new_name: NewName) -> None:
    topic, group = behind.create_topic(new_name("Orders"), 4), new_name("cg")
    selector = MessageSelector.by_sql("number >= 100")
    with ExitStack() as stack:
        members = [pushed(behind, group, topic, selector=selector) for _ in range(2)]
        for consumer, _ in members:
            stack.enter_context(consumer).start()
        wait_until(lambda: [len(of_topic(consumer, topic)) for consumer, _ in members] == [4, 4], "four queues each")
        assert not of_topic(members[0][0], topic) & of_topic(members[1][0], topic)
        with Producer("pg", behind.place) as producer:
            for number in range(300):
                producer.send(Message(topic, b"%d" % number, properties={"number": str(number)}))
        wait_until(lambda: sum(len(seen) for _, seen in members) >= 200, "two hundred messages")
        time.sleep(0.5)
    assert all(seen for _, seen in members)
    found = sorted(int(one.body) for _, seen in members for one in seen)
    assert found == list(range(100, 300))


def of_topic(consumer: PushConsumer, topic: str) -> set[MessageQueue]:
    return {queue for queue in consumer.queues() if queue.topic == topic}


@pytest.mark.slow
def test_lite_pull_commits_and_seeks_and_pop_is_refused(behind: Behind, new_name: NewName) -> None:
    topic, group = behind.create_topic(new_name("Orders")), new_name("cg")
    with Producer("pg", behind.place) as producer:
        for number in range(50):
            producer.send(Message(topic, b"%d" % number))
    with LitePullConsumer(group, behind.place, config=LitePullConsumerConfig(**FROM_FIRST)) as consumer:
        consumer.subscribe(topic)
        consumer.start()
        got: list[MessageExt] = []
        wait_until(lambda: len(got) >= 50 or got.extend(consumer.poll(500)), "fifty messages")
        consumer.commit()
        assert sorted(int(message.body) for message in got) == list(range(50))
        assert sum(consumer.committed(queue) for queue in consumer.assignment()) == 50
        consumer.seek_to_begin(min(consumer.assignment()))
        wait_until(lambda: consumer.poll(500), "messages again")
    with SimpleConsumer(new_name("cg"), behind.place, {topic: "*"}, await_duration=timedelta(seconds=1)) as simple:
        with pytest.raises(UsageError, match="proxy serves no POP"):
            simple.receive(1, timedelta(seconds=10))


@pytest.mark.slow
def test_the_check_of_a_transaction_decides_it(behind: Behind, new_name: NewName) -> None:
    """An end that was not asked for is answered, and does nothing."""
    topic, group = behind.create_topic(new_name("Orders"), message_type="TRANSACTION"), new_name("pg")
    asked: list[bytes] = []

    def state(body: bytes) -> LocalTransactionState:
        return LocalTransactionState[("COMMIT" if body.startswith(b"c") else "ROLLBACK") + "_MESSAGE"]

    def check(message: MessageExt) -> LocalTransactionState:
        asked.append(message.body)
        return state(message.body)

    listener = TransactionListener(lambda message, _: state(message.body), check)
    with (
        TransactionProducer(group, behind.place, listener=listener) as producer,
        Cluster(ClusterSettings.of_text(behind.place)) as known,
    ):
        sent = [producer.send_message_in_transaction(Message(topic, body)) for body in (b"c1", b"r1", b"c2", b"c3")]
        assert not any(one.end_was_sent for one in sent)
        wait_until(lambda: ends(known, topic) == 3, "three commits", 120)
        assert set(asked) >= {b"c1", b"c2", b"c3"}
    result = rmq(behind.proxy.address, "read", topic, "--json")
    assert sorted(json.loads(line)["body"] for line in result.stdout.splitlines()) == ["c1", "c2", "c3"]


@pytest.mark.slow
def test_requests_for_a_master_that_is_away_have_no_answer_until_routes_leave_it_out(
    behind: Behind, new_name: NewName
) -> None:
    """20 s at the proxy, and 30 s here."""
    topic = behind.create_topic(new_name("Orders"))
    with Producer("pg", behind.place) as producer, Cluster(ClusterSettings.of_text(behind.place)) as known:

        def places(count: int = 8) -> set[str]:
            with contextlib.suppress(RemotingError):
                return {producer.send(Message(topic, b"%d" % number)).broker_name for number in range(count)}
            return set()

        assert places() == {"broker-a", "broker-b"}
        behind.cluster.broker("broker-b").kill()
        try:
            with pytest.raises(RemotingTimeoutError, match=r"broker-b \(master\)"):
                topic_stats(known, topic)
            wait_until(lambda: places() == {"broker-a"}, "no more sends to broker-b", 150)
        finally:
            behind.cluster.heal()
        wait_until(lambda: places() == {"broker-a", "broker-b"}, "broker-b is back", 150)
        known.refresh_route(topic)
        assert ends(known, topic) >= 24
