"""A cluster of which only RocketMQ 5's proxy can be reached: the source, the sink, clients and commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from helpers.cluster.simulated import SimulatedCluster
from helpers.cluster.simulated.proxy import SimulatedProxy
from helpers.cluster.simulated.retries import SimulatedRetries
from pyspark_rmq.access import cluster_pool
from pyspark_rmq.options.options import source_options
from pyspark_rmq.read.reader import RmqReader
from pyspark_rmq.read.stream_reader import RmqStreamReader
from pyspark_rmq.schema.schema import SOURCE_SCHEMA
from rmq_store.cli import commands
from rmq_store.client import (
    ConsumeFromWhere,
    LitePullConsumer,
    LitePullConsumerConfig,
    LocalTransactionState,
    Message,
    Producer,
    SimpleConsumer,
    TransactionListener,
    TransactionProducer,
)
from rmq_store.client.cluster_sink.records import WritePart
from rmq_store.client.cluster_sink.row_encoder import EncoderSettings
from rmq_store.client.cluster_sink.task import SinkSettings, SinkTask
from rmq_store.cluster import Cluster, ClusterSettings, MQBrokerError
from rmq_store.errors import UsageError
from rmq_store.protocol.errors import RemotingError
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster.offsets import queue_ranges

from ..planned_batches import first_batch

RECORDS = "PYRMQ_SINK_RECORDS"


@pytest.fixture
def proxy() -> Iterator[SimulatedProxy]:
    with SimulatedCluster(brokers=2) as brokers:
        brokers.create_topic("Orders", queue_count=2, message_count=10)
        proxy = SimulatedProxy(brokers)
        yield proxy
        cluster_pool.close_unused()
        proxy.server.stop()


@pytest.fixture
def cluster(proxy: SimulatedProxy) -> Iterator[Cluster]:
    with Cluster(ClusterSettings.of_text(proxy.address)) as cluster:
        yield cluster


def rows(reader: Any, partitions: Any) -> list[dict[str, Any]]:
    return [row for part in partitions for rows in reader.read(part) for row in rows.to_pylist()]


def test_brokers_are_those_of_routes(proxy: SimulatedProxy, cluster: Cluster) -> None:
    assert cluster.broker_names() == []
    cluster.route("Orders")
    assert (cluster.broker_names(), cluster.name) == (["broker-000", "broker-001"], "simulated")
    assert cluster.address("broker-001") == proxy.address
    with pytest.raises(MQBrokerError, match=r"does not serve GET_BROKER_CLUSTER_INFO \(106\).*proxy"):
        cluster.cluster_info()
    asked = proxy.calls.copy()
    assert len(cluster.broker_names()) == 2
    assert proxy.calls == asked, "106 is not asked again and again"


def test_the_route_of_a_topic_that_all_have_names_brokers_without_others(
    proxy: SimulatedProxy, cluster: Cluster
) -> None:
    proxy.cluster.create_topic("SELF_TEST_TOPIC", queue_count=1)
    assert cluster.broker_names() == ["broker-000", "broker-001"]


def test_a_broker_that_came_is_seen_when_the_route_is_heard_again(proxy: SimulatedProxy) -> None:
    now_ms = 0.0
    with Cluster(ClusterSettings.of_text(proxy.address), timer=lambda: now_ms) as cluster:
        proxy.cluster.brokers["broker-001"].queues.topics.pop("Orders")
        cluster.route("Orders")
        assert cluster.broker_names() == ["broker-000"]
        proxy.cluster.brokers["broker-001"].queues.create("Orders", 1, 0)
        now_ms = 30_000.0
        cluster.route("Orders")
        assert cluster.broker_names() == ["broker-000", "broker-001"]


def test_a_batch_and_a_stream_read_all_queues(proxy: SimulatedProxy) -> None:
    given = {"nameServer": f"http://{proxy.address}", "subscribe": "Orders"}
    reader = RmqReader(source_options(given, "batch read", 1_000_000), SOURCE_SCHEMA)
    found = rows(reader, reader.partitions())
    assert len(found) == 40
    assert {(row["brokerName"], row["queueId"]) for row in found} == {
        (name, queue) for name in ("broker-000", "broker-001") for queue in (0, 1)
    }
    for broker in proxy.cluster.brokers.values():
        broker.groups.add("cg")
    options = source_options(given | {"group": "cg", "startingOffsets": "earliest"}, "stream read", 1_000_000)
    stream = RmqStreamReader(options, SOURCE_SCHEMA)
    try:
        start, end = first_batch(stream)
        assert len(rows(stream, stream.partitions(start, end))) == 40
        stream.commit(end)
        assert {len(broker.offsets) for broker in proxy.cluster.brokers.values()} == {2}
    finally:
        stream.stop()


def test_a_pattern_needs_the_list_that_a_proxy_does_not_give(proxy: SimulatedProxy) -> None:
    for use, make in (("batch read", RmqReader), ("stream read", RmqStreamReader)):
        given = {"nameServer": proxy.address, "subscribePattern": "Ord.*"}
        reader: Any = make(source_options(given, use, 1_000_000), SOURCE_SCHEMA)
        with pytest.raises(MQBrokerError, match=r"GET_ALL_TOPIC_LIST_FROM_NAMESERVER \(206\).*proxy"):
            first_batch(reader) if use == "stream read" else reader.partitions()


def test_offsets_of_a_group_are_read_without_a_list_of_groups(proxy: SimulatedProxy) -> None:
    given = {"nameServer": proxy.address, "subscribe": "Orders", "group": "cg", "startingOffsets": "group"}
    reader = RmqReader(source_options(given, "batch read", 1_000_000), SOURCE_SCHEMA)
    reader.partitions()
    assert RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER in proxy.refused


def write(cluster: Cluster, **columns: Any) -> int:
    settings = SinkSettings(EncoderSettings("Orders"), patience_ms=2_000, settle_ms=0)
    with SinkTask(cluster, settings, WritePart("w", 0, 0)) as task:
        task.write(pa.RecordBatch.from_pydict({"body": [b"a", b"b"], **columns}))
        return task.finish().rows


def test_the_sink_writes_where_an_administrator_has_made_its_topic(
    proxy: SimulatedProxy, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.route("Orders")
    with pytest.raises(MQBrokerError, match=rf"topic '{RECORDS}' cannot be made here.*proxy.*with 1 queues"):
        write(cluster)
    assert "made the topic" not in caplog.text
    proxy.cluster.create_topic(RECORDS, queue_count=1)
    assert write(cluster) == 2
    with pytest.raises(MQBrokerError, match=r"is NORMAL, but .* DELAY: .*\+message\.type=DELAY"):
        write(cluster, delayLevel=pa.array([1, 1], pa.int32()))


def test_clients_send_and_consume(proxy: SimulatedProxy) -> None:
    address = f"rmq://http://{proxy.address}"
    for broker in proxy.cluster.brokers.values():
        SimulatedRetries(broker)
    with Producer("pg", address) as producer:
        sent = producer.send(Message("Orders", b"paid"))
    assert sent.broker_name in proxy.cluster.brokers
    seen: set[bytes] = set()
    config = LitePullConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    with LitePullConsumer("cg_pull", address, config=config) as pulling:
        pulling.subscribe("Orders")
        pulling.start()
        for _ in range(50):
            seen |= {message.body for message in pulling.poll(200)}
            if b"paid" in seen:
                break
    assert b"paid" in seen


def ask(proxy: SimulatedProxy, *words: str) -> Result:
    line = ["-n", proxy.address, *words]
    return CliRunner().invoke(commands, line, env={"RMQ_STORE": None, "NAMESRV_ADDR": None}, prog_name="rmq")


def test_commands_of_clients_work_and_those_of_administrators_say_why_not(proxy: SimulatedProxy) -> None:
    result = ask(proxy, "read", "Orders", "--json", "--max", "100")
    assert result.exit_code == 0, result.output
    assert len([json.loads(line) for line in result.stdout.splitlines()]) == 40
    for words in (["clusterList"], ["brokerStatus", "-b", proxy.address], ["updateTopic", "-t", "T", "-c", "C"]):
        result = ask(proxy, *words)
        assert result.exit_code in (1, 2), words
        assert "GET_BROKER_CLUSTER_INFO (106)" in result.stderr and "proxy" in result.stderr, (words, result.stderr)
    result = ask(proxy, "topics")
    assert result.exit_code in (1, 2)
    assert "GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206)" in result.stderr and "proxy" in result.stderr
    assert RequestCode.UPDATE_AND_CREATE_TOPIC not in proxy.refused


def test_a_message_of_another_type_than_its_topic_is_refused_with_what_to_do(proxy: SimulatedProxy) -> None:
    proxy.cluster.create_topic("TBW102", queue_count=1)
    with Producer("pg", f"rmq://{proxy.address}") as producer:
        for message, said in (
            (Message("Orders", b"late", delay_level=1), r"is NORMAL, but .* DELAY: .*\+message\.type=DELAY"),
            (Message("Orders", b"a", properties={"__SHARDINGKEY": "k"}), r"is NORMAL, but .* FIFO: .*rmq-proxy\.json"),
            (Message("Nothing", b"a"), r"is UNSPECIFIED, but .* NORMAL: no broker has the topic"),
        ):
            with pytest.raises(MQBrokerError, match=said):
                producer.send(message)
        proxy.types["Orders"] = "DELAY"
        assert producer.send(Message("Orders", b"late", delay_level=1)).queue_offset == 10


def test_pop_is_refused_in_one_sentence(proxy: SimulatedProxy) -> None:
    with SimpleConsumer("cg", f"rmq://{proxy.address}", {"Orders": "*"}, await_duration=timedelta(0)) as consumer:
        with pytest.raises(UsageError, match=r"proxy serves no POP.*PushConsumer.*name server"):
            consumer.receive(1, timedelta(seconds=10))


def test_an_error_of_a_broker_is_not_taken_for_one_of_a_proxy(proxy: SimulatedProxy) -> None:
    brokers = proxy.cluster
    for broker in brokers.brokers.values():
        broker.refuse(RequestCode.POP_MESSAGE, 1)
    place = f"rmq://{brokers.name_server}"
    with SimpleConsumer("cg", place, {"Orders": "*"}, await_duration=timedelta(0)) as consumer:
        with pytest.raises(MQBrokerError, match="CODE: 1 "):
            consumer.receive(1, timedelta(seconds=10))


def committed(*_: object) -> LocalTransactionState:
    return LocalTransactionState.COMMIT_MESSAGE


def test_the_end_of_a_transaction_is_left_to_the_check_and_without_one_nothing_is_sent(
    proxy: SimulatedProxy, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.types["Orders"] = "TRANSACTION"
    place = f"rmq://{proxy.address}"
    with TransactionProducer("pg", place, listener=TransactionListener(committed)) as producer:
        with pytest.raises(UsageError, match=r"passes the end of a transaction on only if.*has no check"):
            producer.send_message_in_transaction(Message("Orders", b"half"))
    assert not proxy.calls[RequestCode.SEND_MESSAGE_V2]
    with TransactionProducer("pg", place, listener=TransactionListener(committed, committed)) as producer:
        results = [producer.send_message_in_transaction(Message("Orders", b"half")) for _ in range(2)]
    assert [one.end_was_sent for one in results] == [False, False]
    assert [one.local_transaction_state for one in results] == [LocalTransactionState.COMMIT_MESSAGE] * 2
    assert sum("is seen when the check has answered" in record.message for record in caplog.records) == 1


def test_a_broker_that_is_not_there_is_told_by_a_time_out(proxy: SimulatedProxy) -> None:
    """The proxy does not answer for a broker that it does not know."""
    with Cluster(ClusterSettings.of_text(proxy.address, timeout_ms=300)) as cluster:
        route = cluster.route("Orders")
        assert route is not None
        gone = proxy.cluster.brokers.pop("broker-001")
        with pytest.raises(RemotingError, match="broker-001"):
            queue_ranges(cluster, route.read_queues())
        proxy.cluster.brokers["broker-001"] = gone
