"""`redrive` over simulated brokers, and the column `redriven` of what it has moved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import pyspark_rmq
from helpers.cluster.simulated import SimulatedCluster
from helpers.cluster.simulated.retries import SimulatedRetries
from pyspark_rmq.access import cluster_pool
from pyspark_rmq.options.options import source_options
from pyspark_rmq.read.reader import RmqReader
from pyspark_rmq.schema.schema import source_schema
from rmq_store.errors import UsageError
from rmq_store.protocol.wire.request_codes import RequestCode

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]


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


def redriven(brokers: SimulatedCluster) -> dict[tuple[str, int], bool | None]:
    """The column of each letter, without Spark."""
    given = {"nameServer": brokers.name_server, "dlq": "g"}
    reader = RmqReader(source_options(given, "batch read", 0), source_schema(given))
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    return {(row["brokerName"], row["queueOffset"]): row["redriven"] for row in rows}


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
