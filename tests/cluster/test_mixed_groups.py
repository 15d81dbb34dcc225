"""Groups with Java members and ours: the same division by each strategy, and everything is consumed once, also when a
member leaves or dies.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from helpers.cluster import requests
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.witness import Witness
from rmq_store import Message
from rmq_store.client import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    LitePullConsumer,
    LitePullConsumerConfig,
    MessageExt,
    MessageListenerConcurrently,
    Producer,
    PushConsumer,
    PushConsumerConfig,
    SimpleConsumer,
)
from rmq_store.protocol.allocate import (
    AllocateMachineRoomNearby,
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueByMachineRoom,
    AllocateMessageQueueConsistentHash,
    AllocateMessageQueueStrategy,
)
from rmq_store.protocol.messages import MessageQueue

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
NewName = Callable[[str], str]

QUEUES = 8
# Java's clients look at the members of their group every 20 s, or when a broker says that they changed.
PATIENCE_S = 120
STRATEGIES = (
    AllocateMessageQueueAveragely(),
    AllocateMessageQueueAveragelyByCircle(),
    AllocateMessageQueueConsistentHash(),
)
SET_MESSAGE_REQUEST_MODE = 401


def room(name: str) -> str:
    return name.partition("@")[0]


ALL_STRATEGIES = (
    *STRATEGIES,
    AllocateMessageQueueByMachineRoom({"room-1", "room-2"}),
    AllocateMachineRoomNearby(AllocateMessageQueueAveragely(), lambda queue: room(queue.broker_name), room),
)


@pytest.fixture
def java(cluster: RocketmqCluster) -> Iterator[Witness]:
    with Witness(cluster) as witness:
        yield witness


@pytest.fixture
def topic(cluster: RocketmqCluster, new_name: NewName) -> str:
    return cluster.create_topic(new_name("Shared"), QUEUES)


def wait_until(fulfilled: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not fulfilled():
        assert time.monotonic() < deadline_s, what()
        time.sleep(0.1)


class OurMember:
    """A push consumer, or a lite pull consumer that polls in a thread; a member of a group within a `with` block."""

    def __init__(
        self, kind: str, group: str, cluster: RocketmqCluster, topic: str, strategy: AllocateMessageQueueStrategy
    ) -> None:
        self.bodies: list[str] = []
        self.topic = topic
        self._over = threading.Event()
        given = {"consume_from_where": "CONSUME_FROM_FIRST_OFFSET", "allocate_message_queue_strategy": strategy}
        place = f"rmq://{cluster.name_server}"
        self._thread: threading.Thread | None = None
        self.consumer: PushConsumer | LitePullConsumer
        if kind == "push":
            self.consumer = PushConsumer(group, place, PushConsumerConfig(**given))  # type: ignore[arg-type]
            self.consumer.register_message_listener(MessageListenerConcurrently(self._handle))
        else:
            self.consumer = LitePullConsumer(group, place, LitePullConsumerConfig(**given))  # type: ignore[arg-type]
            self._thread = threading.Thread(target=self._poll)
        self.consumer.subscribe(topic)
        self.consumer.start()
        if self._thread is not None:
            self._thread.start()

    def _handle(self, messages: list[MessageExt], context: object) -> ConsumeConcurrentlyStatus:
        self.bodies += [message.body.decode() for message in messages]
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    def _poll(self) -> None:
        assert isinstance(self.consumer, LitePullConsumer)
        while not self._over.is_set():
            self.bodies += [message.body.decode() for message in self.consumer.poll(200)]

    def queues(self) -> list[MessageQueue]:
        """Those of the topic."""
        own = self.consumer.queues() if isinstance(self.consumer, PushConsumer) else self.consumer.assignment()
        return sorted(queue for queue in own if queue.topic == self.topic)

    def leave(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self.consumer.shutdown()

    def __enter__(self) -> OurMember:
        return self

    def __exit__(self, *ignored: object) -> None:
        self.leave()


def queues_of(java: Witness, topic: str) -> list[MessageQueue]:
    return [MessageQueue(topic, broker, queue_id) for broker, queue_id in java.ask("assigned", topic=topic)]


def java_bodies(java: Witness) -> list[str]:
    return [one["body"] for one in java.ask("received", count=0, timeoutMs=0)]


@pytest.mark.parametrize("strategy", ALL_STRATEGIES, ids=lambda strategy: strategy.name)
def test_a_strategy_divides_as_javas_does(java: Witness, strategy: AllocateMessageQueueStrategy) -> None:
    chance = random.Random(42)
    for _ in range(40):
        brokers = [f"room-{chance.randint(1, 3)}@broker-{number}" for number in range(chance.randint(1, 4))]
        queues = sorted(
            MessageQueue("Orders", name, queue_id) for name in brokers for queue_id in range(chance.randint(1, 9))
        )
        members = sorted(f"room-{chance.randint(1, 3)}@{number}" for number in range(chance.randint(1, 7)))
        theirs = java.ask(
            "allocate", strategy=strategy.name, topic="Orders", members=members, rooms=["room-1", "room-2"],
            queues=[[queue.broker_name, queue.queue_id] for queue in queues],
        )  # fmt: skip
        ours = {member: strategy.allocate("group", member, queues, members) for member in members}
        assert theirs == {
            member: [[queue.broker_name, queue.queue_id] for queue in own] for member, own in ours.items()
        }


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
@pytest.mark.parametrize("kind", ["push", "poll"])
def test_members_of_both_kinds_share_the_queues_and_consume_everything_once(
    cluster: RocketmqCluster, java: Witness, topic: str, new_name: NewName, kind: str,
    strategy: AllocateMessageQueueStrategy,
) -> None:  # fmt: skip
    group = new_name("cg")
    java.ask(kind, group=group, topic=topic, strategy=strategy.name)
    every = [MessageQueue(topic, "broker-a", queue_id) for queue_id in range(QUEUES)]

    def shared(*members: OurMember) -> bool:
        parts = [queues_of(java, topic), *(member.queues() for member in members)]
        return all(parts) and sorted(queue for part in parts for queue in part) == every

    with Producer("pg", f"rmq://{cluster.name_server}") as producer:
        sent = 0

        def send(count: int) -> None:
            nonlocal sent
            for _ in range(count):
                producer.send(Message(topic, b"%d" % sent), queue=every[sent % QUEUES])
                sent += 1

        def consumed(*members: OurMember) -> list[str]:
            return [*java_bodies(java), *(body for member in members for body in member.bodies)]

        with (
            OurMember(kind, group, cluster, topic, strategy) as first,
            OurMember(kind, group, cluster, topic, strategy) as second,
        ):
            if strategy.name == "CONSISTENT_HASH":
                # By chance a member has no place on the ring in front of a queue, so nobody knows how many have to have
                # some before the last one has its own.
                wait_until(lambda: _is_settled(java, topic, first, second), lambda: "a division")
            else:
                wait_until(lambda: shared(first, second), lambda: _all(java, topic, first, second))
            send(200)
            wait_until(lambda: len(set(consumed(first, second))) == sent, lambda: Counter(consumed(first, second)))
            # Queues that move are read again from the last commit: the messages behind it may come twice. Members begin
            # to commit 10 s after their start.
            wait_until(lambda: sum(committed(cluster, group, topic)) == sent, lambda: committed(cluster, group, topic))
            assert Counter(consumed(first, second)) == {str(number): 1 for number in range(sent)}
            second.leave()
            wait_until(lambda: sorted(_all(java, topic, first)) == every, lambda: _all(java, topic, first))
            send(80)
            wait_until(lambda: len(set(consumed(first, second))) == sent, lambda: Counter(consumed(first, second)))
            java.ask("leave")
            wait_until(lambda: first.queues() == every, lambda: first.queues())
            send(80)
            wait_until(lambda: len(set(consumed(first, second))) == sent, lambda: Counter(consumed(first, second)))
    assert Counter(consumed(first, second)) == {str(number): 1 for number in range(sent)}


def committed(cluster: RocketmqCluster, group: str, topic: str) -> list[int]:
    """The offset of each queue that the broker has."""
    with cluster.connect() as broker:
        answers = [requests.committed(broker, group, topic, queue_id) for queue_id in range(QUEUES)]
    return [int(answer.ext_fields["offset"]) if answer.code == 0 else 0 for answer in answers]


def _is_settled(java: Witness, topic: str, *members: OurMember) -> bool:
    """Whether all queues have a member, and the same one as some rounds of heartbeats before."""

    def division() -> list[list[MessageQueue]]:
        return [queues_of(java, topic), *(sorted(member.queues()) for member in members)]

    before = division()
    time.sleep(5)
    return division() == before and sum(map(len, before)) == QUEUES


def _all(java: Witness, topic: str, *members: OurMember) -> list[MessageQueue]:
    return [*queues_of(java, topic), *(queue for member in members for queue in member.queues())]


def test_the_queues_of_a_java_member_that_dies_come_to_us(
    cluster: RocketmqCluster, java: Witness, topic: str, new_name: NewName
) -> None:
    group = new_name("cg")
    java.ask("push", group=group, topic=topic)
    every = [MessageQueue(topic, "broker-a", queue_id) for queue_id in range(QUEUES)]
    with (
        Producer("pg", f"rmq://{cluster.name_server}") as producer,
        OurMember("push", group, cluster, topic, STRATEGIES[0]) as ours,
    ):
        wait_until(lambda: len(ours.queues()) == len(queues_of(java, topic)) == QUEUES // 2, lambda: ours.queues())
        for number in range(80):
            producer.send(Message(topic, b"%d" % number), queue=every[number % QUEUES])
        wait_until(lambda: len(java_bodies(java)) == 40, lambda: java_bodies(java))
        before = java_bodies(java)
        java.kill()
        wait_until(lambda: ours.queues() == every, lambda: ours.queues())
        for number in range(80, 120):
            producer.send(Message(topic, b"%d" % number), queue=every[number % QUEUES])
        wait_until(lambda: len({*before, *ours.bodies}) == 120, lambda: Counter(ours.bodies))
    times = Counter(ours.bodies)
    # What the dead member had consumed and not committed may come again; what it had not consumed comes once.
    assert set(times.values()) == {1}
    assert {str(number) for number in range(80, 120)} <= times.keys()


def test_our_member_that_dies_leaves_its_queues_to_java(
    cluster: RocketmqCluster, java: Witness, topic: str, new_name: NewName
) -> None:
    group = new_name("cg")
    program = (
        "import sys, time\n"
        "from rmq_store.client import *\n"
        "consumer = PushConsumer(sys.argv[1], sys.argv[2], PushConsumerConfig(consume_from_where=\n"
        "    'CONSUME_FROM_FIRST_OFFSET'))\n"
        "consumer.subscribe(sys.argv[3])\n"
        "def handle(messages, context):\n"
        "    for message in messages:\n"
        "        sys.stdout.write(message.body.decode() + chr(10))\n"
        "        sys.stdout.flush()\n"
        "    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS\n"
        "consumer.register_message_listener(MessageListenerConcurrently(handle))\n"
        "consumer.start()\n"
        "time.sleep(600)\n"
    )
    java.ask("push", group=group, topic=topic)
    arguments = [sys.executable, "-c", program, group, f"rmq://{cluster.name_server}", topic]
    before: list[str] = []
    with (
        Producer("pg", f"rmq://{cluster.name_server}") as producer,
        subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as ours,
    ):
        lines = ours.stdout
        assert lines is not None
        reader = threading.Thread(target=lambda: before.extend(line.strip() for line in lines))
        reader.start()

        def send(first: int, last: int) -> None:
            for number in range(first, last):
                queue = MessageQueue(topic, "broker-a", number % QUEUES)
                producer.send(Message(topic, b"%d" % number), queue=queue)

        try:
            wait_until(lambda: len(queues_of(java, topic)) == QUEUES // 2, lambda: queues_of(java, topic))
            send(0, 80)
            wait_until(lambda: len({*before, *java_bodies(java)}) == 80, lambda: (before, java_bodies(java)))
        finally:
            ours.kill()
            reader.join()
        assert before
        wait_until(lambda: len(queues_of(java, topic)) == QUEUES, lambda: queues_of(java, topic))
        send(80, 120)
        expected = {str(number) for number in range(80, 120)}
        wait_until(lambda: expected <= set(java_bodies(java)), lambda: Counter(java_bodies(java)))
    # What the dead member had consumed and not committed may come to Java as well, but once.
    assert set(Counter(java_bodies(java)).values()) == {1}


def test_java_and_we_receive_by_pop_beside_each_other(
    cluster: RocketmqCluster, java: Witness, topic: str, new_name: NewName
) -> None:
    if cluster.version.startswith("4."):
        with pytest.raises(Exception, match="setClientRebalance"):
            java.ask("push", group=new_name("cg"), topic=topic, pop=True)
        return
    group = new_name("cg")
    mode: dict[str, Any] = {"topic": topic, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 0}
    with cluster.connect() as broker:
        answer = broker.ask(SET_MESSAGE_REQUEST_MODE, None, json.dumps(mode).encode())
        assert answer.code == 0, answer
    java.ask("push", group=group, topic=topic, pop=True)
    ours: list[str] = []
    with (
        Producer("pg", f"rmq://{cluster.name_server}") as producer,
        SimpleConsumer(
            group, f"rmq://{cluster.name_server}", {topic: "*"}, await_duration=timedelta(seconds=1),
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        ) as consumer,
    ):  # fmt: skip

        def receive() -> None:
            for view in consumer.receive(4, timedelta(seconds=60)):
                ours.append(view.body.decode())
                consumer.ack(view)

        sent = 0
        deadline_s = time.monotonic() + PATIENCE_S
        # The two take turns by chance: more comes until each of them has had some.
        while not (ours and java_bodies(java)):
            assert time.monotonic() < deadline_s, (ours, java_bodies(java))
            for _ in range(40):
                producer.send(Message(topic, b"%d" % sent))
                sent += 1
            receive()
        while len({*ours, *java_bodies(java)}) < sent:
            assert time.monotonic() < deadline_s, (sent, Counter([*ours, *java_bodies(java)]))
            receive()
    assert Counter([*ours, *java_bodies(java)]) == {str(number): 1 for number in range(sent)}
