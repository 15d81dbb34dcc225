"""One stream reads, one copies into a topic, and the master dies: both go on at the slave that was made a master.
Nothing that was acknowledged is lost, and nothing is delivered or stored twice.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.cluster import requests
from helpers.cluster.asking import Connection
from helpers.cluster.fixtures import require_released
from helpers.cluster.java_process import VERSIONS
from helpers.cluster.kills.done import DoneKills
from helpers.cluster.replicated.pairs import pair_of
from helpers.cluster.replicated.plan import PAIRS
from helpers.cluster.replicated.senders import QUEUES, Senders
from helpers.cluster.waiting import until
from pyspark_rmq.access import cluster_pool

from ..connector.conftest import spark

__all__ = ["spark"]

ORDERS, BILLS = "Orders", "Bills"
ROWS = 60
PATIENCE_S = 600.0
TESTED = ("storage/rmq_store/replica", "storage/rmq_store/server", "storage/rmq_store/client/cluster_sink")


class Delivered:
    """What a stream has delivered, batch by batch. A batch that comes again, because its query ended, is the same."""

    def __init__(self) -> None:
        self._batches: dict[int, list[str]] = {}

    def take(self, rows: Any, batch: int) -> None:
        bodies = sorted(row.body for row in rows.selectExpr("split_part(string(body), ';', 1) AS body").collect())
        assert self._batches.setdefault(batch, bodies) == bodies

    def times(self) -> Counter[str]:
        return Counter(body for bodies in list(self._batches.values()) for body in bodies)


class Query:
    """A query that is started again when it has failed, as a supervisor does."""

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start
        self.query = start()
        self.failures: list[str] = []

    def goes_on(self) -> None:
        if (error := self.query.exception()) is not None:
            self.failures.append(str(error)[:300])
            assert len(self.failures) < 10, self.failures
            self.query = self._start()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.statement("G22")
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("version", VERSIONS)
def test_streams_go_on_exactly_once_at_the_slave_that_became_the_master(
    spark: Any, version: str, pair: str, tmp_path: Path
) -> None:
    require_released(version)
    delivered = Delivered()
    queries: list[Query] = []
    try:
        with pair_of(pair, version, tmp_path / "pair", ORDERS) as brokers:
            name_server = brokers.cluster.name_server
            with Connection(brokers.master.address) as master:
                assert requests.create_topic(master, BILLS, QUEUES).code == 0

            def source(**options: object) -> Any:
                given = {"nameServer": name_server, "subscribe": ORDERS, "startingOffsets": "earliest", **options}
                return spark.readStream.format("rmq").options(**given).load()

            def start(stream: Any, checkpoint: str) -> Any:
                stream = stream.option("checkpointLocation", str(tmp_path / checkpoint))
                return stream.trigger(processingTime="1 second").start()

            def start_reading() -> Any:
                return start(source(group="readers").writeStream.foreachBatch(delivered.take), "r")

            def start_copying() -> Any:
                given = {
                    "nameServer": name_server, "topic": BILLS, "settleTime": "1200ms", "sendTimeout": "20s",
                    "brokerAwayTimeout": "40s",
                }  # fmt: skip
                return start(source().select("body").writeStream.format("rmq").options(**given), "w")

            def stored(topic: str) -> Counter[str]:
                rows = spark.read.format("rmq").option("nameServer", name_server).option("subscribe", topic).load()
                return Counter(row.b for row in rows.selectExpr("split_part(string(body), ';', 1) AS b").collect())

            def wait_for(fulfilled: Callable[[], bool], what: str) -> None:
                deadline_s = time.monotonic() + PATIENCE_S
                while not fulfilled():
                    for query in queries:
                        query.goes_on()
                    assert time.monotonic() < deadline_s, f"{what} did not come: {[q.failures for q in queries]}"
                    time.sleep(0.5)

            with Senders(brokers.master.address, ORDERS, "before") as before:
                before.await_acknowledged(ROWS, "no send is answered with 0")
                queries.append(Query(start_reading))
                wait_for(lambda: len(delivered.times()) >= ROWS, "the first orders")
                queries.append(Query(start_copying))
                wait_for(lambda: len(stored(BILLS)) >= ROWS, "the first bills")
                topics = brokers.slave_store / "config" / "topics.json"
                until(lambda: topics.exists() and BILLS in topics.read_text(), "the slave has not the topics", 180)
                before.await_acknowledged(ROWS, "no send is answered with 0")
                brokers.master.kill()
            new = brokers.take_over()
            with Senders(new.address, ORDERS, "after") as after:
                after.await_acknowledged(ROWS, "the new master takes no sends")
            acknowledged = {body.decode() for body in before.acknowledged | after.acknowledged}
            orders = stored(ORDERS)
            assert acknowledged <= orders.keys()
            wait_for(lambda: orders <= delivered.times(), "the orders")
            wait_for(lambda: orders <= stored(BILLS), "the bills")
            bills = stored(BILLS)
            DoneKills("promoted-spark", f"{pair} {version}", TESTED).note(
                "figures", acknowledged=len(acknowledged), stored=orders.total(), bills=bills.total(),
                delivered=delivered.times().total(), failures=[query.failures for query in queries],
            )  # fmt: skip
            assert delivered.times() == orders
            assert bills == orders
            for query in queries:
                query.query.stop()
    finally:
        for query in queries:
            query.query.stop()
        cluster_pool.close_unused()
