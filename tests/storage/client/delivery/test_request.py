"""Every request that stores a message is the same, byte for byte, as when two modules made each kind of it.

`requests.json` has what these made: clients, the sink, its records, send-backs and redrives, in a namespace.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from helpers.cluster.simulated import SimulatedBroker, SimulatedCluster
from helpers.cluster.simulated.retries import SimulatedRetries
from rmq_store.broker.dlq.redrive_ledger import OffsetRanges
from rmq_store.client import Message
from rmq_store.client.backend.remote import RemoteBackend
from rmq_store.client.cluster_retry.dead_letters import CLUSTER_ROWS_SCHEMA
from rmq_store.client.cluster_retry.redrive import ClusterDeadLetters
from rmq_store.client.cluster_retry.redrive_ledger import LEDGER_TOPIC, LedgerRecord, RedriveLedger
from rmq_store.client.cluster_retry.send_back_task import SendBackSettings, SendBackTask
from rmq_store.client.cluster_sink.record_topic import RECORD_TOPIC, RecordTopic
from rmq_store.client.cluster_sink.records import Record, WritePart
from rmq_store.client.cluster_sink.row_encoder import EncoderSettings
from rmq_store.client.cluster_sink.task import SinkSettings, SinkTask
from rmq_store.client.delivery.queue_reading import QueueReading
from rmq_store.format.tables.schema import PROPERTIES_TYPE
from rmq_store.protocol.messages import MessageExt, MessageQueue
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings

STORED_BY: dict[str, Any] = json.loads(Path(__file__).with_name("requests.json").read_text(encoding="ascii"))
SENDS = (310, 320, 36)
ORDERS = MessageQueue("Orders", "broker-000", 1)


@contextmanager
def simulated(topic_queues: int = 2) -> Iterator[tuple[SimulatedBroker, Cluster]]:
    with SimulatedCluster(1) as brokers:
        for topic, count in (("ns%Orders", topic_queues), (f"ns%{RECORD_TOPIC}", 1), (f"ns%{LEDGER_TOPIC}", 1)):
            brokers.create_topic(topic, count)
        settings = ClusterSettings(name_servers=(brokers.name_server,), namespace="ns")
        (broker,) = brokers.brokers.values()
        with Cluster(settings) as cluster:
            yield broker, cluster


def by_a_producer() -> None:
    with simulated() as (_, cluster), RemoteBackend(cluster) as backend:
        broker = backend.brokers()["broker-000"]
        message = Message("Orders", b"tea", tags="TagA", keys="k", flag=7, properties={"a": "b"})
        broker.send(message, 1, 3_000, "pg")
        broker.send_batch([message, Message("Orders", b"\xff" * 3)], 0, 3_000, "pg")


def by_a_consumer() -> None:
    with simulated() as (broker, cluster), RemoteBackend(cluster) as backend:
        SimulatedRetries(broker)
        with_retries = backend.brokers()["broker-000"]
        message = Message("Orders", b"tea", flag=7, properties={"a": "b", "DELAY": "3"})
        with_retries.send_to_retry("g", message, 2, 16, sys_flag=1)
        found = SimulatedRetries(broker).store("ns%Orders", 0, b"tea", {"UNIQ_KEY": "A" * 32})
        back = MessageExt.__new__(MessageExt)
        for name, value in (
            ("topic", "Orders"), ("commit_log_offset", found.commit_log_offset), ("msg_id", found.msg_id),
        ):  # fmt: skip
            object.__setattr__(back, name, value)
        with_retries.send_message_back("g", back, 3, 16, 3_000)
        with_retries.send_message_back("g", back, -1, None, 3_000)


def by_the_sink() -> None:
    rows = pa.RecordBatch.from_pydict(
        {
            "body": pa.array([b"one", b"two", b"three"]),
            "queueId": pa.array([0, 0, 0], pa.int32()),
            "tags": pa.array(["t", None, None]),
            "delayLevel": pa.array([None, None, 3], pa.int32()),
        }
    )
    with simulated(1) as (_, cluster):
        settings = SinkSettings(EncoderSettings("Orders"), replay_check=False)
        with SinkTask(cluster, settings, WritePart("query", 7, 3)) as task:
            task.write(rows)
            task.finish()


def by_records() -> None:
    with simulated() as (_, cluster):
        records = RecordTopic(cluster, QueueReading(cluster, 20_000), group="pyspark_rmq")
        records.add(Record(WritePart("a query", 7, 3), {ORDERS: 5}, "attempt"))
        ledger = RedriveLedger(cluster, 20_000)
        letters = {0: OffsetRanges.of(np.array([3, 4, 9], np.int64))}
        ledger.add("broker-000", LedgerRecord("g", "attempt", "sending", letters, {ORDERS: 5}))


def by_a_redrive() -> None:
    with simulated() as (broker, cluster):
        own = {"UNIQ_KEY": "A" * 32, "RETRY_TOPIC": "Orders", "ORIGIN_MESSAGE_ID": "O"}
        retries = SimulatedRetries(broker)
        retries.store("%DLQ%ns%g", 0, b"bill", own, reconsume_times=17, flag=9, born_ms=1_234, sys_flag=1)
        place = {"brokerName": "broker-000", "queueId": 0, "queueOffset": 0, "msgId": None}
        letters = ClusterDeadLetters(cluster, settle_ms=0)
        letters.redrive("g", pa.RecordBatch.from_pylist([place], CLUSTER_ROWS_SCHEMA))


def by_send_backs(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("brokerName", pa.string()), ("commitLogOffset", pa.int64()), ("msgId", pa.string()),
            ("delayLevel", pa.int32()), ("properties", PROPERTIES_TYPE),
        ]
    )  # fmt: skip
    own = {"UNIQ_KEY": "A" * 32, "PYRMQ_ORIGIN_MSG_ID": "O", "ORIGIN_MESSAGE_ID": "O"}
    with simulated() as (broker, cluster):
        message = SimulatedRetries(broker).store("ns%Orders", 0, b"bill", own, flag=9, born_ms=1_234)
        settings = SendBackSettings("g", 16, settle_ms=0, record_path=str(tmp_path))
        for reasons in (None, [("PYRMQ_ERROR_CLASS", "ValueError")]):
            row = {
                "brokerName": "broker-000", "commitLogOffset": message.commit_log_offset, "msgId": message.msg_id,
                "delayLevel": 3, "properties": reasons,
            }  # fmt: skip
            with SendBackTask(cluster, settings, WritePart("back", 0, int(bool(reasons)))) as task:
                task.write(pa.RecordBatch.from_pylist([row], schema))


def shown(command: RemotingCommand) -> list[Any]:
    """All that the wire has of a request, without the time of a call and the id of an attempt."""
    body = re.sub(rb'"attempt":"[0-9a-f]{32}"', b'"attempt":""', bytes(command.body))
    fields = [[name, value] for name, value in command.ext_fields.items()]
    for field in fields:
        field[1] = re.sub(r"\b1[78]\d{11}\b", "now", field[1])
    return [command.code, fields, body.hex(), command.flag, command.remark, command.language, command.version]


def made(act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    for name in ("call_broker", "submit_broker"):
        real = getattr(Cluster, name)

        def noting(self: Cluster, broker: str, command: RemotingCommand, *given: Any, real: Any = real, **named: Any):  # type: ignore[no-untyped-def]
            if command.code in SENDS:
                found.append(shown(command))
            return real(self, broker, command, *given, **named)

        monkeypatch.setattr(Cluster, name, noting)
    act()
    return found


WHO: dict[str, Callable[..., None]] = {
    "producer": by_a_producer, "consumer": by_a_consumer, "sink": by_the_sink, "records": by_records,
    "redrive": by_a_redrive, "send-backs": by_send_backs,
}  # fmt: skip


@pytest.mark.parametrize("who", sorted(WHO))
def test_a_request_has_the_bytes_that_it_always_had(
    who: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    act = WHO[who]
    given = (tmp_path,) if act is by_send_backs else ()
    assert made(lambda: act(*given), monkeypatch) == STORED_BY[who]
