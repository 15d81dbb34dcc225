"""Batches and redrives that the first modules began are finished: their records are read, whoever reads them now.

`requests.json` has the requests of these modules as they were sent (`test_request`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from helpers.cluster.simulated import SimulatedBroker, SimulatedCluster
from helpers.cluster.simulated.retries import SimulatedRetries
from rmq_store.client.cluster_retry.dead_letters import CLUSTER_ROWS_SCHEMA
from rmq_store.client.cluster_retry.redrive import ClusterDeadLetters
from rmq_store.client.cluster_sink.record_topic import RecordTopic
from rmq_store.client.cluster_sink.records import WritePart
from rmq_store.client.cluster_sink.row_encoder import EncoderSettings
from rmq_store.client.cluster_sink.task import SinkSettings, SinkTask
from rmq_store.client.delivery.queue_reading import QueueReading
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings

SENT: dict[str, Any] = json.loads(Path(__file__).with_name("requests.json").read_text(encoding="ascii"))
BROKER: Final = "broker-000"
BORN_MS: Final = "1700000000000"
# Of a task of the sink that died behind its first request.
SINK_RECORD = (
    b'{"version":1,"write":"query","batch":7,"partition":3,"attempt":"5f","offsets":{"Orders":{"broker-000:0":0}}}'
)
SINK_PROPERTIES = "TAGS\x01e1eb4dc25be18edb\x02KEYS\x01query/7/3\x02WAIT\x01true\x02"


@pytest.fixture
def broker() -> Iterator[tuple[SimulatedBroker, Cluster]]:
    with SimulatedCluster(1) as brokers:
        for topic in ("ns%Orders", "ns%PYRMQ_SINK_RECORDS", "ns%PYRMQ_REDRIVEN"):
            brokers.create_topic(topic, 1)
        (broker,) = brokers.brokers.values()
        with Cluster(ClusterSettings(name_servers=(brokers.name_server,), namespace="ns")) as cluster:
            yield broker, cluster


def sent_before(cluster: Cluster, who: str, number: int) -> None:
    """The request reaches its broker, and the process that has sent it dies."""
    code, fields, body, *_ = SENT[who][number]
    values = {name: BORN_MS if value == "now" else value for name, value in fields}
    cluster.call_broker(BROKER, RemotingCommand(code, values, bytes.fromhex(body)))


def test_a_record_of_a_batch_is_found(broker: tuple[SimulatedBroker, Cluster]) -> None:
    _, cluster = broker
    sent_before(cluster, "records", 0)
    records = RecordTopic(cluster, QueueReading(cluster, 20_000), group="pyspark_rmq")
    assert records.find(WritePart("a query", 7, 3)) == {MessageQueue("Orders", BROKER, 1): 5}
    assert records.find(WritePart("a query", 8, 3)) == {}


def test_a_batch_that_was_begun_is_finished(broker: tuple[SimulatedBroker, Cluster]) -> None:
    simulated, cluster = broker
    fields = {name: BORN_MS if value == "now" else value for name, value in SENT["records"][0][1]}
    record = RemotingCommand(310, fields | {"i": SINK_PROPERTIES}, SINK_RECORD)
    cluster.call_broker(BROKER, record)
    sent_before(cluster, "sink", 0)
    rows = pa.RecordBatch.from_pydict(
        {"body": pa.array([b"one", b"two", b"four"]), "tags": pa.array(["t", None, None])}
    )
    settings = SinkSettings(EncoderSettings("Orders"), settle_ms=0)
    with SinkTask(cluster, settings, WritePart("query", 7, 3)) as task:
        task.write(rows)
        report = task.finish()
    assert (report.repeated, report.skipped, report.rows) == (True, 2, 1)
    assert simulated.queues.topics["ns%Orders"][0].end == 3


def test_a_redrive_that_was_begun_is_finished(broker: tuple[SimulatedBroker, Cluster]) -> None:
    simulated, cluster = broker
    retries = SimulatedRetries(simulated)
    own = {"UNIQ_KEY": "A" * 32, "RETRY_TOPIC": "Orders", "ORIGIN_MESSAGE_ID": "O"}
    for body in (b"bill", b"another bill"):
        retries.store("%DLQ%ns%g", 0, body, own, reconsume_times=17)
    sent_before(cluster, "redrive", 0)
    sent_before(cluster, "redrive", 1)
    places = [{"brokerName": BROKER, "queueId": 0, "queueOffset": at, "msgId": None} for at in range(2)]
    letters = ClusterDeadLetters(cluster, settle_ms=0)
    answer = letters.redrive("g", pa.RecordBatch.from_pylist(places, CLUSTER_ROWS_SCHEMA))
    assert answer.column("outcome").to_pylist() == ["ALREADY_REDRIVEN", "REDRIVEN"]
    assert [one.body for one in retries.messages("%RETRY%ns%g")] == [b"bill", b"another bill"]


def test_a_redrive_that_was_done_stays_done(broker: tuple[SimulatedBroker, Cluster]) -> None:
    _, cluster = broker
    sent_before(cluster, "redrive", 0)
    sent_before(cluster, "redrive", 2)
    assert ClusterDeadLetters(cluster).redriven("g", BROKER)[0].pairs() == [(0, 1)]
