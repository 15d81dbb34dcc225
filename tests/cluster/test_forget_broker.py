"""A broker of two that never returns, under a query with a group and a sink whose records are in a topic: the query
ends by name, `rmq checkpoint forget-broker` says what is lost, and the query goes on with the other broker.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from helpers.cluster import requests
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.fixtures import require_released
from helpers.cluster.java_process import VERSIONS
from helpers.cluster.waiting import until
from pyspark_rmq.access import cluster_pool
from rmq_store.cli import commands

from ..connector.conftest import spark

__all__ = ["spark"]

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

STAYS, GONE = "broker-a", "broker-b"
"""The tasks of the one that stays keep their numbers without the other, so that a repetition finds their rows."""
PATIENCE_S = 240
FIRST, SECOND, THIRD = range(10), range(10, 17), range(17, 22)


@pytest.fixture(params=VERSIONS)
def brokers(request: pytest.FixtureRequest) -> Iterator[RocketmqCluster]:
    require_released(request.param)
    with RocketmqCluster(request.param, groups=2) as cluster:
        yield cluster
    cluster_pool.close_unused()


def send(cluster: RocketmqCluster, topic: str, name: str, numbers: range) -> None:
    with cluster.connect(name) as broker:
        for number in numbers:
            assert requests.send(broker, topic, 0, f"{name} {number}".encode()).code == 0
        requests.await_end(broker, topic, numbers.stop)


def entries(checkpoint: Path, log: str) -> set[int]:
    return {int(file.name) for file in (checkpoint / log).glob("*") if file.name.isdigit()}


def await_it(query: Any, fulfilled: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not fulfilled():
        assert query is None or query.exception() is None, query.exception()
        assert time.monotonic() < until_s, what
        time.sleep(0.002)


def test_a_query_goes_on_without_a_broker_that_never_returns(
    spark: Any, brokers: RocketmqCluster, new_name: Callable[[str], str], tmp_path: Path
) -> None:
    orders, copies = (brokers.create_topic(new_name(name), 1) for name in ("Orders", "Copies"))
    group, checkpoint = new_name("cg"), tmp_path / "checkpoint"
    where = {"nameServer": brokers.name_server, "brokerAwayTimeout": "15s"}

    def start() -> Any:
        rows = spark.readStream.format("rmq").options(
            **where, subscribe=orders, group=group, startingOffsets="earliest"
        )
        writer = rows.load().select("body").writeStream.format("rmq").options(**where, topic=copies)
        return writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime="1 second").start()

    def stored() -> Counter[str]:
        with brokers.connect(STAYS) as broker:
            end = requests.max_offset(broker, copies)
            found: list[bytes] = []
            while len(found) < end:
                found += requests.frames(requests.pull(broker, copies, 0, len(found)))
        return Counter(requests.body_of(frame).decode() for frame in found)

    def forget(*more: str) -> Result:
        words = ["-n", brokers.name_server, "checkpoint", "forget-broker", str(checkpoint), GONE, "-g", group, *more]
        clean = {"RMQ_STORE": None, "NAMESRV_ADDR": None}
        return CliRunner().invoke(commands, words, env=clean, prog_name="rmq")

    for name in (STAYS, GONE):
        send(brokers, orders, name, FIRST)
    query = start()
    try:
        await_it(query, lambda: bool(entries(checkpoint, "commits")), "the first batch")
        planned = entries(checkpoint, "offsets")
        for name in (STAYS, GONE):
            send(brokers, orders, name, SECOND)

        def holds_the_second() -> bool:
            new = entries(checkpoint, "offsets") - planned
            texts = ((checkpoint / "offsets" / str(number)).read_text() for number in new)
            return any(f'"{GONE}:0":{SECOND.stop}' in text.replace(" ", "") for text in texts)

        await_it(query, holds_the_second, "a batch with messages of both brokers")
        brokers.broker(GONE).kill()
        last = max(entries(checkpoint, "offsets"))
        assert last not in entries(checkpoint, "commits"), "the batch was done before the broker was killed"
        await_it(None, lambda: query.exception() is not None, "the end of the query")
        assert GONE in str(query.exception()), query.exception()
    finally:
        query.stop()
    assert last not in entries(checkpoint, "commits")

    until(lambda: forget("--dry-run").exit_code == 0, "the dry run is refused")
    until(lambda: "would be refused" not in forget("--dry-run").stderr, "the query is still a member of its group")
    done = forget("--yes", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["recordsLost"], report["recordBrokers"], report["groups"]) == (True, [STAYS], [group])
    assert report["inPlannedBatch"] <= len(SECOND)
    (lost,) = (one for one in report["queues"] if one["topic"] == orders)
    assert (lost["planned"], lost["lost"]) == (SECOND.stop, SECOND.stop - lost["position"])
    assert "lost: the committed offsets" in done.stderr

    query = start()
    try:
        await_it(query, lambda: last in entries(checkpoint, "commits"), "the planned batch")
        send(brokers, orders, STAYS, THIRD)
        wanted = {f"{STAYS} {number}" for number in (*SECOND, *THIRD)}
        await_it(query, lambda: wanted <= stored().keys(), "the messages of the broker that stays")
    finally:
        query.stop()
    assert max(stored().values()) == 1, "nothing is stored twice"
