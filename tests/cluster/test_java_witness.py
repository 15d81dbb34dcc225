"""Java's clients and we, at one cluster: what one sends the other reads, field by field."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from helpers.cluster import requests
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.java_process import VERSIONS
from helpers.cluster.witness import Witness
from rmq_store.client import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    MessageListenerConcurrently,
    PushConsumer,
    PushConsumerConfig,
)
from rmq_store.format.batches.answer_batches import AnswerRequest, answer_batches
from rmq_store.format.frames.frame_walk import frames_of_answer
from rmq_store.format.frames.stored_message import decode_frame
from rmq_store.protocol.messages import MessageExt, MessageQueue
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.pulling import read_range
from rmq_store.remoting.transport.settings import ClusterSettings

NewName = Callable[[str], str]
BROKER = "broker-a"
COLUMNS = (
    "topic", "queueId", "queueOffset", "body", "tags", "keys", "msgId", "flag", "bornTimestamp", "storeTimestamp",
    "bornHost", "reconsumeTimes", "properties", "brokerName",
)  # fmt: skip
PATIENCE_MS = 60_000
MESSAGES = [
    {"body": "plain"},
    {"body": "tagged", "tags": "TagA", "keys": "k1 k2", "flag": 7},
    {"body": "Wörter 消息 \N{GRINNING FACE}", "properties": {"a": "ä=1", "empty-ish": " "}},
    {"body": "x" * 10_000, "tags": "TagA"},  # Java compresses it.
]


@pytest.fixture(params=["a client alike", pytest.param("a client of the other version", marks=pytest.mark.slow)])
def witness(request: pytest.FixtureRequest, cluster: RocketmqCluster) -> Iterator[Witness]:
    """A client of each version, also at a broker of the other one."""
    first, second = VERSIONS
    other = second if cluster.version == first else first
    with Witness(cluster, cluster.version if request.param == "a client alike" else other) as witness:
        yield witness


@pytest.fixture
def topic(cluster: RocketmqCluster, new_name: NewName) -> str:
    return cluster.create_topic(new_name("Witnessed"), 2)


def read(brokers: RocketmqCluster, topic: str, queue_id: int, end: int) -> list[dict[str, object]]:
    """The rows [0, end) of a queue, as our readers see them."""
    with brokers.connect() as broker:
        requests.await_end(broker, topic, end, queue_id)
    wanted = AnswerRequest(BROKER, topic, queue_id, COLUMNS)
    with Cluster(ClusterSettings(name_servers=brokers.name_servers)) as cluster:
        blocks = read_range(cluster, MessageQueue(topic, BROKER, queue_id), 0, end)
        return [row for batch in answer_batches(blocks, wanted) for row in batch.to_pylist()]


@pytest.mark.parametrize("how", ["send", "batch"])
def test_what_java_sends_we_read_field_by_field(
    cluster: RocketmqCluster, witness: Witness, topic: str, new_name: NewName, how: str
) -> None:
    placed = witness.ask(how, topic=topic, messages=MESSAGES, brokerName=BROKER, queueId=1)
    rows = read(cluster, topic, 1, len(MESSAGES))
    witness.ask("push", group=new_name("cg"), topic=topic)
    seen = witness.ask("received", count=len(MESSAGES), timeoutMs=PATIENCE_MS)
    # A batch of 5.x has a key of its own, which brokers of 4.9 add to each message: Java shows that one, we the first.
    two_keys = how == "batch" and witness.version.startswith("5.") and cluster.version.startswith("4.")
    for row, message, java in zip(rows, MESSAGES, sorted(seen, key=lambda one: one["queueOffset"]), strict=True):
        assert row["body"].decode() == message["body"] == java["body"]
        assert (row["tags"], row["keys"], row["flag"]) == (message.get("tags"), message.get("keys"), java["flag"])
        for name in ("topic", "brokerName", "queueId", "queueOffset", "reconsumeTimes"):
            assert row[name] == java[name], name
        assert (row["msgId"] == java["msgId"]) is not two_keys
        for name in ("bornTimestamp", "storeTimestamp"):
            assert round(row[name].timestamp() * 1000) == java[name], name
        assert dict(message.get("properties", {})).items() <= dict(row["properties"]).items()
    if how == "send":
        assert [row["msgId"] for row in rows] == [one["msgId"] for one in placed]
    else:
        assert placed["msgId"].split(",") == [row["msgId"] for row in rows]
    witness.ask("leave")


def test_java_reads_what_others_send_by_push_and_by_lite_pull(
    cluster: RocketmqCluster, witness: Witness, topic: str, new_name: NewName
) -> None:
    with cluster.connect() as broker:
        requests.send_batch(broker, topic, [b"1", b"2"], 0, properties={"TAGS": "TagA", "KEYS": "k", "UNIQ_KEY": "U1"})
        requests.send(broker, topic, 1, b"3", {"UNIQ_KEY": "U2", "mine": "yes"})
        requests.await_end(broker, topic, 2, 0)
        requests.await_end(broker, topic, 1, 1)
    witness.ask("push", group=new_name("cg"), topic=topic)
    pushed = witness.ask("received", count=3, timeoutMs=PATIENCE_MS)
    witness.ask("leave")
    assert sorted(one["body"] for one in pushed) == ["1", "2", "3"]
    assert {one["body"]: (one["tags"], one["msgId"]) for one in pushed} == {
        "1": ("TagA", "U1"), "2": ("TagA", "U1"), "3": (None, "U2"),
    }  # fmt: skip
    if witness.version.startswith("5.") and cluster.version.startswith("4."):
        # A lite pull of 5.x is request 361, which these brokers do not know.
        return
    pulled = witness.ask("lite", group=new_name("cg"), topic=topic, count=3, timeoutMs=PATIENCE_MS)
    assert sorted(one["body"] for one in pulled) == ["1", "2", "3"]


def test_a_body_that_cannot_be_inflated_costs_java_all_behind_it_in_the_answer_and_us_nothing(
    cluster: RocketmqCluster, witness: Witness, topic: str, new_name: NewName
) -> None:
    """Brokers store it. MessageDecoder#decodesBatch of Java ends there, and the consumer goes on behind the answer."""
    sent = [(b"good 0", 0), (b"not zlib", 1), (b"good 1", 0), (b"unknown type", 0x701), (b"good 2", 0)]
    with cluster.connect() as broker:
        for body, flags in sent:
            assert requests.send(broker, topic, 0, body, {"UNIQ_KEY": body.hex()}, sys_flag=flags).code == 0
        requests.await_end(broker, topic, len(sent), 0)
        witness.ask("push", group=new_name("cg"), topic=topic)
        witness.ask("received", count=1, timeoutMs=PATIENCE_MS)
        requests.send(broker, topic, 0, b"later", {"UNIQ_KEY": "L"})
        requests.await_end(broker, topic, len(sent) + 1, 0)
    seen = witness.ask("received", count=2, timeoutMs=PATIENCE_MS)
    witness.ask("leave")
    assert [one["body"] for one in seen] == ["good 0", "later"]

    wanted = AnswerRequest(BROKER, topic, 0, ("body", "sysFlag"))
    with Cluster(ClusterSettings(name_servers=cluster.name_servers)) as ours:
        blocks = read_range(ours, MessageQueue(topic, BROKER, 0), 0, len(sent))
        rows = [row for batch in answer_batches(blocks, wanted) for row in batch.to_pylist()]
    assert [(row["body"], row["sysFlag"]) for row in rows] == sent

    got: list[bytes] = []
    config = PushConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    group = new_name("cg")
    letters = f"%DLQ%{group}"

    def consume(messages: Sequence[MessageExt], context: object) -> ConsumeConcurrentlyStatus:
        got.extend(one.body for one in messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    with PushConsumer(group, f"rmq://{cluster.name_server}", config) as consumer:
        consumer.subscribe(topic)
        consumer.register_message_listener(MessageListenerConcurrently(consume))
        consumer.start()
        until_s = time.monotonic() + PATIENCE_MS / 1000
        while len(got) < 4 and time.monotonic() < until_s:
            time.sleep(0.1)
        with cluster.connect() as broker:
            requests.await_end(broker, letters, 2, 0)
    assert sorted(got) == [b"good 0", b"good 1", b"good 2", b"later"]
    with cluster.connect() as broker:
        answer = requests.pull(broker, letters)
    view, (places, _) = memoryview(answer.body), frames_of_answer(answer.body)
    letters_found = [decode_frame(view, at, len(view)) for at in places.tolist()]
    assert sorted((one.body, one.sys_flag) for one in letters_found) == sorted(row for row in sent if row[1])
