"""`redrive` over simulated brokers, and the column `redriven` of what it has moved."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

import pyspark_rmq
from helpers.cluster.simulated import SimulatedCluster
from helpers.cluster.simulated.retries import SimulatedRetries
from pyspark_rmq.access import cluster_pool, cluster_reader
from pyspark_rmq.cluster_read.range_reader import RangeReader
from pyspark_rmq.options.options import source_options
from pyspark_rmq.read.reader import RmqReader
from pyspark_rmq.schema.schema import source_schema
from rmq_store.client.cluster_retry.dead_letters import CLUSTER_ROWS_SCHEMA
from rmq_store.client.cluster_retry.redrive import ClusterDeadLetters
from rmq_store.errors import UsageError
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def brokers() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(brokers=2) as brokers:
        yield brokers
        cluster_pool.close_unused()


@pytest.fixture
def retries(brokers: SimulatedCluster) -> list[SimulatedRetries]:
    """Three dead letters at each broker, with the same queue offsets and ids."""
    found = [SimulatedRetries(broker) for broker in brokers.brokers.values()]
    for one in found:
        for number in range(3):
            properties = {"UNIQ_KEY": f"{number:032X}", "RETRY_TOPIC": "Orders"}
            one.store("%DLQ%g", 0, b"bill %d" % number, properties, reconsume_times=17)
    return found


@pytest.fixture
def moved(brokers: SimulatedCluster, retries: list[SimulatedRetries]) -> dict[tuple[str, int], bool]:
    """Of each broker's three letters number 1 was moved: the column, as it should be."""
    places = [{"brokerName": name, "queueId": 0, "queueOffset": 1, "msgId": None} for name in brokers.brokers]
    with Cluster(ClusterSettings.of_text(brokers.name_server)) as cluster:
        rows = pa.RecordBatch.from_pylist(places, CLUSTER_ROWS_SCHEMA)
        ClusterDeadLetters(cluster, settle_ms=0).redrive("g", rows)
    return {(name, offset): offset == 1 for name in brokers.brokers for offset in range(3)}


class Letters:
    """A batch read of the dead letters, without Spark: planned first, and read by tasks of other processes."""

    def __init__(self, brokers: SimulatedCluster) -> None:
        given = {"nameServer": brokers.name_server, "dlq": "g", "brokerAwayTimeout": "30s"}
        self._reader = RmqReader(source_options(given, "batch read", 0), source_schema(given))
        self._partitions = cloudpickle.dumps(list(self._reader.partitions()))
        cluster_pool.close_unused()

    def redriven(self, *names: str) -> dict[tuple[str, int], bool | None]:
        """The column of each letter of these brokers, by default of all."""
        parts = cloudpickle.loads(self._partitions)
        asked = [part for part in parts if not names or part.part.queue_id.broker_name in names]
        rows = [row for part in asked for batch in self._reader.read(part) for row in batch.to_pylist()]
        return {(row["brokerName"], row["queueOffset"]): row["redriven"] for row in rows}


def redriven(brokers: SimulatedCluster) -> dict[tuple[str, int], bool | None]:
    """The column of each letter, without Spark."""
    return Letters(brokers).redriven()


@pytest.mark.long
def test_letters_that_a_query_chooses_are_moved_once_and_shown_as_moved(
    spark: Any, brokers: SimulatedCluster, retries: list[SimulatedRetries]
) -> None:
    assert set(redriven(brokers).values()) == {False}
    options = {"nameServer": brokers.name_server, "settleTime": "0"}
    dead = spark.read.format("rmq").option("nameServer", brokers.name_server).option("dlq", "g").load()
    chosen = dead.where("queueOffset < 2 and brokerName = 'broker-000' or queueOffset = 1").cache()
    dry = pyspark_rmq.redrive(chosen, options=options, group="g", dry_run=True).collect()
    assert [(row.brokerName, row.queueOffset, row.outcome) for row in dry] == [
        ("broker-000", 0, "WOULD_REDRIVE"), ("broker-000", 1, "WOULD_REDRIVE"), ("broker-001", 1, "WOULD_REDRIVE")
    ]  # fmt: skip
    assert [one.broker.calls[RequestCode.SEND_MESSAGE_V2] for one in retries] == [0, 0]
    for expected in ("REDRIVEN", "ALREADY_REDRIVEN"):
        rows = pyspark_rmq.redrive(chosen, options=options, group="g").collect()
        assert [row.outcome for row in rows] == [expected] * 3
    assert [one.body for one in retries[0].messages("%RETRY%g")] == [b"bill 0", b"bill 1"]
    assert [one.body for one in retries[1].messages("%RETRY%g")] == [b"bill 1"]
    assert redriven(brokers) == {
        ("broker-000", 0): True, ("broker-000", 1): True, ("broker-000", 2): False,
        ("broker-001", 0): False, ("broker-001", 1): True, ("broker-001", 2): False,
    }  # fmt: skip
    with pytest.raises(UsageError, match="keep the columns brokerName, queueId, queueOffset and storeTopic"):
        pyspark_rmq.redrive(chosen.drop("brokerName"), options=options, group="g")


def test_a_ledger_that_cannot_be_read_leaves_the_column_null(
    brokers: SimulatedCluster, retries: list[SimulatedRetries], caplog: pytest.LogCaptureFixture
) -> None:
    brokers.create_topic("PYRMQ_REDRIVEN", 1, message_count=1)
    for one in retries:
        pull = one.broker._answerers[RequestCode.PULL_MESSAGE]
        one.broker._answerers[RequestCode.PULL_MESSAGE] = lambda request, pull=pull: (
            (16, {}, b"") if request.ext_fields["topic"] == "PYRMQ_REDRIVEN" else pull(request)
        )
    assert set(redriven(brokers).values()) == {None}
    assert "the column redriven of %DLQ%g is NULL" in caplog.text


@pytest.mark.parametrize("leaves", [True, False], ids=["forgotten", "registered"])
def test_the_column_is_known_while_another_broker_is_away(
    brokers: SimulatedCluster, moved: dict[tuple[str, int], bool], leaves: bool
) -> None:
    letters = Letters(brokers)
    brokers.brokers["broker-001"].stop()
    if leaves:
        brokers.forget("broker-001")
    assert letters.redriven("broker-000") == {at: value for at, value in moved.items() if at[0] == "broker-000"}


def test_the_column_is_asked_for_when_the_broker_of_the_rows_is_back(
    brokers: SimulatedCluster, moved: dict[tuple[str, int], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task waits for its broker; it was asked before, and then the column was NULL in all rows."""
    letters = Letters(brokers)
    brokers.brokers["broker-000"].stop()

    pauses: list[float] = []

    def sleep(duration_s: float) -> None:
        pauses.append(duration_s)
        if len(pauses) == 1:
            brokers.brokers["broker-000"].start()

    monkeypatch.setattr(cluster_reader, "RangeReader", partial(RangeReader, sleep=sleep))
    assert letters.redriven() == moved
    assert pauses


def test_the_column_is_null_and_not_false_beside_a_name_server_that_does_not_know_the_broker(
    brokers: SimulatedCluster, moved: dict[tuple[str, int], bool], caplog: pytest.LogCaptureFixture
) -> None:
    letters = Letters(brokers)
    for name in brokers.brokers:
        brokers.forget(name)
    assert letters.redriven() == dict.fromkeys(moved)
    assert "the name servers do not know broker 'broker-000' (yet)" in caplog.text
