"""Sinks of a cluster whose tasks begin while no name server answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.sql.types import StringType, StructField, StructType

from pyspark_rmq.access import cluster_pool
from pyspark_rmq.source import DefaultSource
from pyspark_rmq.write import cluster_sink
from rmq_store.protocol.errors import RemotingError

from ...storage.remoting.cluster.fake_cluster import FakeNet
from ..read.absences import NAME_SERVER_KINDS, NameServerAbsence

VALUE = StructType([StructField("value", StringType())])
OPTIONS = {"nameServer": "ns:9876", "topic": "T", "settleTime": "0"}


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> FakeNet:
    """Two brokers. Each use of the cluster is one of a new process."""
    made = FakeNet()
    for name in ("broker-a", "broker-b"):
        made.add_broker(name).create_topic("T", 2)
    for module in (cluster_pool, cluster_sink):
        monkeypatch.setattr(module, "take", lambda options: made.cluster(options.namespace))
        monkeypatch.setattr(module, "give_back", lambda options: None)
    return made


@pytest.fixture
def task() -> Iterator[Callable[[int], None]]:
    def become(batch: int) -> None:
        context = TaskContext._getOrCreate()
        context._partitionId = context._taskAttemptId = 0
        context._localProperties = {
            "sql.streaming.queryId": "q1", "streaming.sql.batchId": str(batch), "spark.jobGroup.id": "run-1",
        }  # fmt: skip

    yield become
    TaskContext._setTaskContext(None)


def write(writer: Any, *values: str) -> None:
    in_task = cloudpickle.loads(cloudpickle.dumps(writer))
    in_task.write(iter([pa.record_batch({"value": pa.array(values, pa.string())})]))


def stored(net: FakeNet) -> int:
    queues = [one for broker in net.brokers.values() for (topic, _), one in broker.queues.items() if topic == "T"]
    return sum(len(queue.frames) for queue in queues)


@pytest.mark.parametrize("kind", NAME_SERVER_KINDS)
@pytest.mark.parametrize("replay_check", ["true", "false"])
def test_a_new_worker_writes_without_any_name_server(
    net: FakeNet, task: Callable[[int], None], kind: str, replay_check: str
) -> None:
    options = {**OPTIONS, "replayCheck": replay_check}
    if replay_check == "false":
        del options["settleTime"]
    task(1)
    write(DefaultSource(options).streamWriter(VALUE, overwrite=False), "a")
    writer = DefaultSource(options).streamWriter(VALUE, overwrite=False)
    absence = NameServerAbsence(net, kind)
    before = len(net.calls)
    task(2)
    write(writer, "b", "c")
    assert stored(net) == 3
    assert not [address for address, _ in net.calls[before:] if address in net.name_servers], "nobody asks them"
    absence.end()


def test_a_new_worker_cannot_find_a_topic_that_only_a_column_names(net: FakeNet, task: Callable[[int], None]) -> None:
    """Nobody knows it before the rows are there."""
    named = StructType([*VALUE.fields, StructField("topic", StringType())])
    options = {key: value for key, value in OPTIONS.items() if key != "topic"}
    writer = DefaultSource(options).streamWriter(named, overwrite=False)
    NameServerAbsence(net, "refused")
    task(1)
    rows = pa.record_batch({"value": pa.array(["a"]), "topic": pa.array(["T"])})
    with pytest.raises(RemotingError, match="no name server answers: ns:9876"):
        cloudpickle.loads(cloudpickle.dumps(writer)).write(iter([rows]))
    assert stored(net) == 0


def test_a_writer_is_made_without_any_name_server_or_the_secrets_of_its_tasks() -> None:
    options = {**OPTIONS, "nameServer": "127.0.0.1:1"}
    for more in ({}, {"accessKey": "env:NO_KEY", "secretKey": "env:NO_KEY"}):
        DefaultSource(options | more).streamWriter(VALUE, overwrite=False)
    cluster_pool.close_unused()


def test_a_writer_has_no_secrets_and_is_small(net: FakeNet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "the-access-key")
    for number in range(98):
        net.add_broker(f"broker-{number:03}", slaves=1).create_topic("T", 100)
    options = {**OPTIONS, "accessKey": "env:KEY", "secretKey": "env:KEY"}
    pickled = cloudpickle.dumps(DefaultSource(options).streamWriter(VALUE, overwrite=False))
    assert b"broker-042" in pickled and b"the-access-key" not in pickled
    assert len(pickled) < 40_000
