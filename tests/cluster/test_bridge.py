"""A broker of a released version into a real Kafka, through deaths of the mirror around its commits."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from helpers.cluster.brokers import RocketmqCluster
from helpers.kafka_mirrors import RMQ_CLUSTER, values
from helpers.kafka_server import KafkaServer
from helpers.mirrored_cluster import copy_from_broker
from rmq_store import Message
from rmq_store.client import Producer
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.topics import topic_stats
from rmq_store.remoting.transport.settings import ClusterSettings

pytestmark = pytest.mark.slow  # Kafka's start; the default suite has a simulated cluster and the real Kafka

# The command, in a process that the system kills at its second commit: before it, or behind it.
_MIRROR = """
import os, signal, sys
from rmq_store.bridge.kafka.writer import KafkaPythonWriter
from rmq_store.cli import main

point, commits, commit = sys.argv.pop(1), 0, KafkaPythonWriter.commit

def dying(writer):
    global commits
    commits += 1
    if commits == 2 and point == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    commit(writer)
    if commits == 2:
        os.kill(os.getpid(), signal.SIGKILL)

KafkaPythonWriter.commit = dying
main()
"""


@pytest.mark.parametrize("point", ["before", "behind"])
def test_a_mirror_that_is_killed_around_its_commit_loses_nothing_and_doubles_nothing(
    cluster: RocketmqCluster, new_name: Callable[[str], str], kafka: KafkaServer, point: str
) -> None:
    topic = cluster.create_topic(new_name(f"Orders-{point}"), 2)
    queue = MessageQueue(topic, "broker-a", 1)
    bodies = [b"%d" % number for number in range(3_000)]
    with Producer("pg", f"rmq://{cluster.name_server}") as producer:
        for first in range(0, len(bodies), 500):
            producer.send_batch([Message(topic, body) for body in bodies[first : first + 500]], queue=queue)
    with Cluster(ClusterSettings.of_text(cluster.name_server)) as known:
        deadline = time.monotonic() + 60
        while topic_stats(known, topic)[queue].max_offset < len(bodies):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    arguments = [
        "-n", cluster.name_server, "mirror", "rmq-to-kafka", "--name", topic, "--cluster-id", RMQ_CLUSTER,
        "--bootstrap-servers", kafka.address, "--topics", topic, "--create-topics", "--once", "--json",
    ]  # fmt: skip
    killed = subprocess.run([sys.executable, "-c", _MIRROR, point, *arguments], check=False, timeout=300)
    assert killed.returncode == -9
    report = copy_from_broker(kafka, cluster.name_server, topic, topic)
    assert report.copied == (len(bodies) if point == "before" else 0)
    assert values(kafka, topic, 1) == bodies and values(kafka, topic, 0) == []
