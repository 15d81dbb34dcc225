"""A broker of two that never returns, under a query with a group and a sink whose records are in a topic: the query
ends by name, `rmq checkpoint forget-broker` says what is lost, and the query goes on with the other broker.

The test makes Spark's calls, so that the broker goes for certain while a batch with its messages is planned.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyspark
import pytest
from click.testing import CliRunner, Result

from helpers.cluster import requests
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.waiting import until
from helpers.cluster.weather import without_spark
from helpers.cluster.weather.without_spark import Copying
from pyspark_rmq.options.options import source_options
from pyspark_rmq.read.stream_reader import RmqStreamReader
from pyspark_rmq.schema.schema import SOURCE_SCHEMA
from rmq_store.cli import commands

from ..connector.planned_batches import LIMIT, first_batch, through_spark
from ..storage.cli.test_checkpoint_command import QUERY_ID, make, rewound

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STAYS, GONE = "broker-a", "broker-b"
"""The tasks of the one that stays keep their numbers without the other, so that a repetition finds their rows."""
FIRST, SECOND, THIRD = range(10), range(10, 17), range(17, 22)
TIMEOUT = {"brokerAwayTimeout": "10s"}


@pytest.fixture(autouse=True)
def one_try(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in local mode. The tasks of the sink write beside the test what they were refused."""
    monkeypatch.setattr(pyspark.TaskContext, "get", pyspark.TaskContext.get)
    monkeypatch.setattr(without_spark, "TRIES", 1)
    monkeypatch.chdir(tmp_path)


def send(cluster: RocketmqCluster, topic: str, name: str, numbers: range) -> None:
    with cluster.connect(name) as broker:
        for number in numbers:
            assert requests.send(broker, topic, 0, f"{name} {number}".encode()).code == 0
        requests.await_end(broker, topic, numbers.stop)


def stored(cluster: RocketmqCluster, topic: str) -> Counter[str]:
    """How often each body is in the topic, at the broker that stays."""
    found: list[bytes] = []
    with cluster.connect(STAYS) as broker:
        while len(found) < requests.max_offset(broker, topic):
            found += requests.frames(requests.pull(broker, topic, 0, len(found)))
    return Counter(requests.body_of(frame).decode() for frame in found)


def test_a_query_goes_on_without_a_broker_that_never_returns(
    two_masters: RocketmqCluster, new_name: Callable[[str], str], tmp_path: Path
) -> None:
    orders, copies = (two_masters.create_topic(new_name(name), 1) for name in ("Orders", "Copies"))
    group = new_name("cg")
    where = {"nameServer": two_masters.name_server, **TIMEOUT}

    def query() -> tuple[RmqStreamReader, Callable[[Any, Any, int], None]]:
        given = {**where, "subscribe": orders, "group": group, "startingOffsets": "earliest"}
        reader = RmqStreamReader(source_options(given, "stream read", 1_000_000), SOURCE_SCHEMA)
        sink = Copying({**where, "topic": copies})

        def batch(start: Any, end: Any, number: int) -> None:
            sink([partial(reader.read, part) for part in reader.partitions(start, end)], QUERY_ID, number)

        return reader, batch

    def until_at(reader: RmqStreamReader, start: Any, offsets: dict[str, int]) -> Any:
        found = start

        def is_there() -> bool:
            nonlocal found
            found = through_spark(reader.latestOffset(start, LIMIT))
            return bool(found["topics"][orders] == offsets)

        until(is_there, f"the plan does not come to {offsets}")
        return found

    def forget(*more: str) -> Result:
        words = ["-n", two_masters.name_server, "checkpoint", "forget-broker", str(path), GONE, "-g", group, *more]
        return CliRunner().invoke(commands, words, env={"RMQ_STORE": None, "NAMESRV_ADDR": None}, prog_name="rmq")

    for name in (STAYS, GONE):
        send(two_masters, orders, name, FIRST)
    reader, batch = query()
    start, end = first_batch(reader)
    batch(start, end, 0)
    for name in (STAYS, GONE):
        send(two_masters, orders, name, SECOND)
    planned = until_at(reader, end, {f"{STAYS}:0": SECOND.stop, f"{GONE}:0": SECOND.stop})
    reader.commit(end)
    two_masters.broker(GONE).kill()
    with pytest.raises(Exception, match=GONE):
        batch(end, planned, 1)
    reader.stop()

    path = make(tmp_path / "checkpoint", end, planned, committed=1)
    shown = forget("--dry-run")
    assert shown.exit_code == 0, shown.output
    until(lambda: "would be refused" not in forget("--dry-run").stderr, "the query is a member of its group still")
    done = forget("--yes", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["recordsLost"], report["recordBrokers"], report["groups"]) == (True, [STAYS], [group])
    assert report["inPlannedBatch"] == len(SECOND)
    assert [one for one in report["queues"] if one["topic"] == orders] == [
        {"source": 0, "topic": orders, "queueId": 0, "position": FIRST.stop, "planned": SECOND.stop,
         "end": SECOND.stop, "lost": len(SECOND)}
    ]  # fmt: skip
    assert f"lost: the committed offsets of {group} and of all other groups at {GONE}" in done.stderr

    reader, batch = query()
    planned = rewound(path, 1)
    batch(rewound(path, 0), planned, 1)
    send(two_masters, orders, STAYS, THIRD)
    last = until_at(reader, planned, {f"{STAYS}:0": THIRD.stop})
    batch(planned, last, 2)
    reader.commit(last)
    reader.stop()
    found = stored(two_masters, copies)
    assert {f"{STAYS} {number}" for number in (*SECOND, *THIRD)} <= found.keys(), "all that the living broker has"
    assert set(found.values()) == {1}, "nothing is stored twice"
    with two_masters.connect(STAYS) as broker:
        assert requests.committed(broker, group, orders).ext_fields["offset"] == str(THIRD.stop)
