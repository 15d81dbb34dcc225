"""Transactions at brokers of released versions: commits are seen once, rollbacks never, and brokers ask a living member
of the group for what a dead one has left open.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.fixtures import require_released
from helpers.cluster.java_process import VERSIONS
from helpers.cluster.requests import body_of
from rmq_store import Message
from rmq_store.client import LocalTransactionState, MessageExt, TransactionListener, TransactionProducer
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.pulling import read_range
from rmq_store.remoting.cluster.topics import topic_stats
from rmq_store.remoting.transport.settings import ClusterSettings

COMMIT, ROLLBACK, UNKNOW = LocalTransactionState

# Brokers ask for the outcome of a transaction soon, and not after half a minute. The last one is of 5.x: a broker that
# asks again before it has noted an end would commit twice.
CHECK_SOON = {"transactionTimeOut": 1000, "transactionCheckInterval": 2000, "transactionOpBatchInterval": 100}

KILLED = """
import os, signal, sys
from rmq_store import Message
from rmq_store.client import TransactionListener, TransactionProducer

def execute(message, arg):
    print(message.properties["__transactionId__"], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

place, group, topic = sys.argv[1:]
with TransactionProducer(group, place, listener=TransactionListener(execute)) as producer:
    producer.send_message_in_transaction(Message(topic, b"half"))
"""


@pytest.fixture(scope="module", params=VERSIONS)
def cluster(request: pytest.FixtureRequest) -> Iterator[RocketmqCluster]:
    """A cluster of these tests alone: after a transaction, a thread of a 5.5.0 broker keeps a processor busy."""
    require_released(request.param)
    with RocketmqCluster(request.param, properties=CHECK_SOON) as made:
        yield made


def place(cluster: RocketmqCluster) -> str:
    return f"rmq://{cluster.name_server}"


def bodies(cluster: RocketmqCluster, topic: str) -> list[bytes]:
    """All that consumers see, sorted."""
    found = []
    with Cluster(ClusterSettings.of_text(place(cluster))) as known:
        for queue, span in topic_stats(known, topic).items():
            frames = b"".join(read_range(known, queue, span.min_offset, span.max_offset))
            while frames:
                size = int.from_bytes(frames[:4], "big")
                found.append(body_of(frames[:size]))
                frames = frames[size:]
    return sorted(found)


def until(fulfilled: Callable[[], object], timeout_s: float = 90) -> None:
    ends_at = time.monotonic() + timeout_s
    while not fulfilled():
        assert time.monotonic() < ends_at
        time.sleep(0.1)


def test_commits_are_seen_once_rollbacks_never_and_open_ones_as_the_check_says(
    cluster: RocketmqCluster, new_name: Callable[[str], str]
) -> None:
    topic = cluster.create_topic(new_name("Orders"), 2)
    asked: list[MessageExt] = []

    def execute(message: Message, arg: Any) -> LocalTransactionState:
        assert bodies(cluster, topic) == [b"commit %d" % number for number in range(arg)]
        return COMMIT if message.body.startswith(b"commit") else ROLLBACK if message.body == b"rollback" else UNKNOW

    def check(message: MessageExt) -> LocalTransactionState:
        asked.append(message)
        times = sum(one.msg_id == message.msg_id for one in asked)
        return UNKNOW if times < 2 else COMMIT if message.body == b"open, then commit" else ROLLBACK

    with TransactionProducer(new_name("pg"), place(cluster), listener=TransactionListener(execute, check)) as producer:
        for number in range(3):
            producer.send_message_in_transaction(Message(topic, b"commit %d" % number, tags="TagA"), number)
            until(lambda number=number: len(bodies(cluster, topic)) == number + 1)  # type: ignore[misc]
        open_ones = [
            producer.send_message_in_transaction(Message(topic, body), 3).transaction_id
            for body in (b"rollback", b"open, then rollback", b"open, then commit")
        ][1:]
        until(lambda: b"open, then commit" in bodies(cluster, topic))
        until(lambda: all(sum(one.msg_id == open_one for one in asked) >= 2 for open_one in open_ones))
    found = bodies(cluster, topic)
    # A broker that asks again before an answer has reached it commits each copy that it has asked for.
    assert found[:4] == [b"commit 0", b"commit 1", b"commit 2", b"open, then commit"]
    assert set(found[4:]) <= {b"open, then commit"}
    assert {one.msg_id for one in asked} >= set(open_ones)
    assert {(one.topic, one.broker_name) for one in asked} == {(topic, "broker-a")}


@pytest.mark.slow
@pytest.mark.parametrize("state", [COMMIT, ROLLBACK])
def test_another_member_answers_for_a_producer_that_was_killed_between_half_message_and_commit(
    cluster: RocketmqCluster, new_name: Callable[[str], str], state: LocalTransactionState
) -> None:
    topic, group = cluster.create_topic(new_name("Orders"), 1), new_name("pg")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, place(cluster), group, topic], capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    asked: list[str] = []
    listener = TransactionListener(check=lambda message: asked.append(message.msg_id) or state)
    with TransactionProducer(group, place(cluster), listener=listener):
        until(lambda: asked)
        if state is COMMIT:
            until(lambda: bodies(cluster, topic))
        else:
            time.sleep(5)
    assert set(asked) == {killed.stdout.strip()}
    assert bodies(cluster, topic) == ([b"half"] if state is COMMIT else [])
