"""`rmq metrics` over a cluster: figures of all brokers, by few requests, also when brokers refuse or do not answer."""

from __future__ import annotations

import gc
import json
import re
import signal
import subprocess
import sys
import tracemalloc
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from helpers.cluster.simulated import SimulatedBroker, SimulatedCluster
from helpers.cluster.simulated.server import V4_9_7
from rmq_store.cli import commands
from rmq_store.cli.cluster_care.cluster_samples import cluster_metrics
from rmq_store.protocol.bodies.groups import (
    ConsumeStats,
    OffsetWrapper,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from rmq_store.protocol.bodies.routes import KVTable
from rmq_store.protocol.bodies.topics import TopicConfig, TopicConfigTable
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings

INFO = {
    "commitLogMinOffset": "1000", "commitLogMaxOffset": "70000", "commitLogDiskRatio": "0.25",
    "earliestMessageTimeStamp": "1700000000000",
}  # fmt: skip


def administer(broker: SimulatedBroker, groups: dict[str, int]) -> None:
    """Answer 21, 201, 208 and 28; each group has this lag in each queue of Orders."""

    def topics(_: RemotingCommand) -> Any:
        counts = {topic: broker.queues.counts(topic) for topic in broker.queues.topics}
        table = {
            topic: TopicConfig(topic_name=topic, read_queue_nums=read, write_queue_nums=write)
            for topic, (read, write) in counts.items()
        }
        return 0, {}, TopicConfigTable(topic_config_table=table).encode()

    def all_groups(_: RemotingCommand) -> Any:
        table = {group: SubscriptionGroupConfig(group_name=group) for group in groups}
        return 0, {}, SubscriptionGroupTable(subscription_group_table=table).encode()

    def progress(request: RemotingCommand) -> Any:
        lag = groups[request.ext_fields["consumerGroup"]]
        table = {
            MessageQueue("Orders", broker.name, queue_id): OffsetWrapper(
                broker_offset=queue.end, consumer_offset=queue.end - lag
            )
            for queue_id, queue in broker.queues.topics["Orders"].items()
        }
        return 0, {}, ConsumeStats(offset_table=table).encode()

    broker._answerers[21] = topics
    broker._answerers[201] = all_groups
    broker._answerers[208] = progress
    broker._answerers[28] = lambda _: (0, {}, KVTable(table=INFO).encode())


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(brokers=2) as cluster:
        cluster.create_topic("Orders", queue_count=2, message_count=100, first=10)
        cluster.create_topic("%DLQ%cg", queue_count=1, message_count=3, first=1)
        for broker in cluster.brokers.values():
            administer(broker, {"cg": 7, "TOOLS_CONSUMER": 0})
        yield cluster


def metrics(cluster: SimulatedCluster, *arguments: str) -> Result:
    runner = CliRunner()
    return runner.invoke(
        commands, ["-n", cluster.name_server, "metrics", "--timeout", "20", *arguments],
        env={"RMQ_STORE": None, "NAMESRV_ADDR": None}, prog_name="rmq", catch_exceptions=False,
    )  # fmt: skip


def lines(result: Result, name: str) -> list[str]:
    assert result.exit_code == 0, result.output
    return [line for line in result.stdout.splitlines() if re.match(rf"{name}[{{ ]", line)]


def test_lag_topics_dead_letters_and_logs_have_their_broker(cluster: SimulatedCluster) -> None:
    result = metrics(cluster)
    node = 'cluster="simulated",node_type="broker",node_id="broker-000"'
    of_group = f'{node},consumer_group="cg",topic="Orders",is_retry="false",is_system="false"'
    assert f"rocketmq_consumer_lag_messages{{{of_group}}} 14" in lines(result, "rocketmq_consumer_lag_messages")
    assert len(lines(result, "rocketmq_consumer_lag_messages")) == 4
    topic = f'{node},topic="Orders",is_retry="false",is_system="false"'
    assert f"rmq_topic_messages{{{topic}}} 180" in lines(result, "rmq_topic_messages")
    assert f"rmq_topic_put_messages_total{{{topic}}} 200" in lines(result, "rmq_topic_put_messages_total")
    dead = f'{node},consumer_group="cg",is_system="false"'
    assert f"rmq_dead_letters{{{dead}}} 2" in lines(result, "rmq_dead_letters")
    assert f"rocketmq_topic_number{{{node}}} 2" in lines(result, "rocketmq_topic_number")
    assert f"rmq_commit_log_max_offset_bytes{{{node}}} 70000" in lines(result, "rmq_commit_log_max_offset_bytes")
    assert f"rmq_disk_usage_ratio{{{node}}} 0.25" in lines(result, "rmq_disk_usage_ratio")
    assert lines(result, "rmq_unreadable") == lines(result, "rmq_queue_max_offset") == []
    assert result.stdout.endswith("# EOF\n")


def test_queues_and_json(cluster: SimulatedCluster) -> None:
    found = lines(metrics(cluster, "--queues"), "rmq_consumer_queue_lag_messages")
    assert len(found) == 8
    assert any('node_id="broker-001",consumer_group="cg",topic="Orders",queue_id="1"} 7' in line for line in found)
    families = {family["name"]: family for family in json.loads(metrics(cluster, "--json").stdout)}
    (sample, _) = families["rocketmq_topic_number"]["samples"]
    assert sample == {
        "labels": {"cluster": "simulated", "node_type": "broker", "node_id": "broker-000"}, "value": 2,
    }  # fmt: skip


def test_queues_that_are_not_written_any_more_count(cluster: SimulatedCluster) -> None:
    """Brokers before 5.3 do not list them (202)."""
    for broker in cluster.brokers.values():
        broker.version = V4_9_7
    cluster.set_counts("Orders", read=2, write=1)
    result = metrics(cluster, "--queues")
    assert [line.split()[-1] for line in lines(result, "rmq_topic_messages") if 'topic="Orders"' in line] == ["180"] * 2
    assert len([line for line in lines(result, "rmq_queue_max_offset") if 'topic="Orders"' in line]) == 4


def test_the_number_of_requests_is_known_and_nothing_is_kept() -> None:
    """Per broker 3, and one for each of its topics and groups; to name servers one."""
    with SimulatedCluster(brokers=8) as cluster:
        for number in range(10):
            cluster.create_topic("Orders" if number == 0 else f"Topic{number}", queue_count=4, message_count=5)
        for broker in cluster.brokers.values():
            administer(broker, {f"cg{number}": number for number in range(5)})
        with Cluster(ClusterSettings.of_text(cluster.name_server, timeout_ms=60_000)) as known:
            cluster_metrics(known, queues=True)
            assert dict(cluster.total_calls) == {106: 1, 21: 8, 201: 8, 28: 8, 202: 80, 208: 40}
            assert cluster.connections == 9
            tracemalloc.start()
            sizes = []
            for _ in range(4):
                cluster_metrics(known, queues=True)
                for server in (cluster, *cluster.brokers.values()):  # the stubs keep what they were asked
                    server.server.requests.clear()
                    for connection in server.server.connections:
                        connection.requests.clear()
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
            tracemalloc.stop()
    assert sizes[-1] - sizes[0] < 50_000, sizes


def test_a_broker_that_is_away_and_what_is_refused_are_unreadable(cluster: SimulatedCluster) -> None:
    first, second = cluster.brokers.values()
    first.refuse(208, 16, 1)
    first.refuse(28, 16)
    second.stop()
    result = metrics(cluster)
    unreadable = lines(result, "rmq_unreadable")
    assert len(unreadable) == 2
    assert 'node_id="broker-001"} 1' in unreadable[0]
    assert 'node_id="broker-000",consumer_group="TOOLS_CONSUMER"} 1' in unreadable[1]
    assert lines(result, "rmq_disk_usage_ratio") == []
    assert len(lines(result, "rocketmq_consumer_lag_messages")) == 1


def test_without_any_broker_it_is_an_error(cluster: SimulatedCluster) -> None:
    for broker in cluster.brokers.values():
        broker.stop()
    result = metrics(cluster)
    assert result.exit_code == 1
    assert "broker-00" in result.stderr


def test_names_of_other_namespaces_are_left_out(cluster: SimulatedCluster) -> None:
    cluster.create_topic("ns%Bills", queue_count=1, message_count=5)
    result = metrics(cluster, "--namespace", "ns")
    assert [line.partition('topic="')[2].partition('"')[0] for line in lines(result, "rmq_topic_messages")] == [
        "Bills", "Bills",
    ]  # fmt: skip


def test_it_is_served_over_http_and_each_request_reads_again(cluster: SimulatedCluster) -> None:
    process = subprocess.Popen(
        [
            sys.executable, "-u", "-c", "from rmq_store.cli import main; main()", "-n", cluster.name_server, "metrics",
            "--listen", "127.0.0.1:0", "--timeout", "30",
        ],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        url = process.stdout.readline().split()[0]
        bodies = []
        for topic in ("Orders", "Bills"):
            cluster.create_topic(topic, queue_count=1, message_count=5)
            with urllib.request.urlopen(url, timeout=30) as answer:
                bodies.append(answer.read().decode())
        assert ['topic="Bills",is_retry="false",is_system="false"} 5' in body for body in bodies] == [False, True]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        process.stdout.close()
