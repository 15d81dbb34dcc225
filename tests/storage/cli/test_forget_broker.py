"""`rmq checkpoint forget-broker`: what it reports, what it writes, what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from helpers.cluster.simulated import SimulatedCluster
from pyspark_rmq.checkpoint.log_file import read_text, write_text
from pyspark_rmq.checkpoint.reading import open_checkpoint
from rmq_store.cli import commands
from rmq_store.client.cluster_sink.record_topic import RECORD_TOPIC
from rmq_store.client.cluster_sink.records import Record
from rmq_store.client.delivery.queue_reading import QueueReading
from rmq_store.cluster import Cluster, ClusterSettings, RecordTopic, WritePart
from rmq_store.files import durable
from rmq_store.protocol.bodies.groups import Connection, ConsumerConnection
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.request_codes import RequestCode

from .test_checkpoint_command import QUERY_ID, make

A, B = "broker-000", "broker-001"
EXPECTED = Path(__file__).parent / "expected"
STORE = "cluster:simulated"


@pytest.fixture
def brokers() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(2) as brokers:
        for topic in ("Orders", RECORD_TOPIC):
            brokers.create_topic(topic, 1)
        yield brokers


def position(offsets: dict[str, int], **more: Any) -> dict[str, Any]:
    return {"version": 1, "store": STORE, "topics": {"Orders": offsets}} | more


BEFORE = position({f"{A}:0": 5, f"{B}:0": 7}, after={"Orders": {f"{A}:0": 50, f"{B}:0": 70}})
PLANNED = position({f"{A}:0": 9, f"{B}:0": 12}, after={"Orders": {f"{A}:0": 90, f"{B}:0": 120}})


def forget(brokers: SimulatedCluster, path: Path, *arguments: str, broker: str = B) -> Result:
    words = ["-n", brokers.name_server, "checkpoint", "forget-broker", str(path), broker, *arguments]
    return CliRunner().invoke(commands, words, prog_name="rmq", catch_exceptions=False)


def record(brokers: SimulatedCluster) -> None:
    """A sink's record, so that there is a list of brokers."""
    with Cluster(ClusterSettings.of_text(brokers.name_server)) as cluster:
        records = RecordTopic(cluster, QueueReading(cluster, 300), group="pg")
        part = WritePart("query/q", 0, 0)
        records.find(part)
        records.add(Record(part, {MessageQueue("Orders", A, 0): 0}, "attempt"))


def listed(brokers: SimulatedCluster) -> tuple[str, ...]:
    with Cluster(ClusterSettings.of_text(brokers.name_server)) as cluster:
        found = RecordTopic.of_command(cluster).holders()
    return () if found is None else found.brokers


def test_the_query_goes_on_without_the_broker(
    brokers: SimulatedCluster, tmp_path: Path, tree_hash: Callable[[Path], str]
) -> None:
    path = make(tmp_path / "checkpoint", BEFORE, PLANNED, committed=1)
    record(brokers)
    brokers.leave(B)
    untouched = tree_hash(path)
    shown = forget(brokers, path, "--dry-run")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout == (EXPECTED / "checkpoint-forget-broker.txt").read_text()
    assert "lost: 5 messages that are known, in 1 queues of broker-001" in shown.stderr
    assert "lost: the committed offsets of all groups at broker-001" in shown.stderr
    assert "batch 1 is planned and not committed, with 5 messages of broker-001" in shown.stderr
    assert "the list of brokers that may hold records is broker-000, broker-001 now" in shown.stderr
    assert tree_hash(path) == untouched
    assert listed(brokers) == (A, B)

    done = forget(brokers, path, "--yes", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {
        "written": True, "broker": B, "batches": [0, 1], "inPlannedBatch": 5, "groups": [], "recordsLost": True,
        "recordBrokers": [A],
        "queues": [{"source": 0, "topic": "Orders", "queueId": 0, "position": 7, "planned": 12, "end": 12, "lost": 5}],
    }  # fmt: skip
    assert listed(brokers) == (A,)
    found = open_checkpoint(str(path))
    assert (found.query_id, found.planned, found.committed) == (QUERY_ID, (0, 1), (0,))
    (standing,) = found.standings()
    assert {str(queue) for queue in standing.begin.next} == {f"Orders-{A}:0"}
    assert standing.end is not None
    assert {str(queue): offset for queue, offset in standing.end.next.items()} == {f"Orders-{A}:0": 9}
    assert {str(queue) for queue in standing.end.after} == {f"Orders-{A}:0"}
    assert found.batch(1).about["batchWatermarkMs"] == 77
    kept = sorted((path / "offsets").glob("*.before-forget-broker"))
    assert [json.loads(one.read_text().split("\n")[2]) for one in kept] == [BEFORE, PLANNED]

    again = forget(brokers, path, "--yes")
    assert again.exit_code != 0
    assert "no position names a broker 'broker-001'" in str(again.output)


def test_a_sink_alone_is_forgotten_in_the_list(brokers: SimulatedCluster, tmp_path: Path) -> None:
    """The query reads Kafka, say: its checkpoint stays as it is."""
    path = make(tmp_path / "checkpoint", '{"orders":{"0":5}}')
    record(brokers)
    brokers.leave(B)
    before = (path / "offsets" / "0").read_bytes()
    assert forget(brokers, path, "--yes").exit_code == 0
    assert (path / "offsets" / "0").read_bytes() == before
    assert [one.name for one in (path / "offsets").iterdir()] == ["0"]
    assert listed(brokers) == (A,)


def test_a_source_alone_is_forgotten_in_the_checkpoint(brokers: SimulatedCluster, tmp_path: Path) -> None:
    path = make(tmp_path / "checkpoint", BEFORE, PLANNED)
    brokers.leave(B)
    done = forget(brokers, path, "--yes", "--json")
    assert json.loads(done.stdout)["queues"] == [
        {"source": 0, "topic": "Orders", "queueId": 0, "position": 12, "planned": None, "end": None, "lost": None}
    ]
    assert "of 1 queues nobody knows the end" in done.stderr
    assert listed(brokers) == ()


def test_the_first_batch_has_its_queues_in_began(brokers: SimulatedCluster, tmp_path: Path) -> None:
    began = {"Orders": {f"{A}:0": 1, f"{B}:0": 2}}
    path = make(tmp_path / "checkpoint", PLANNED | {"began": began}, committed=0)
    brokers.leave(B)
    done = forget(brokers, path, "--yes", "--json")
    assert json.loads(done.stdout)["queues"][0] | {"source": 0} == {
        "source": 0, "topic": "Orders", "queueId": 0, "position": 2, "planned": 12, "end": 12, "lost": 10,
    }  # fmt: skip
    text = (path / "offsets" / "0").read_text()
    assert B not in text
    assert A in text


def test_queues_that_are_closed_leave_too(brokers: SimulatedCluster, tmp_path: Path) -> None:
    closed = position({f"{A}:0": 5}, version=2, closed={"Orders": {f"{B}:0": 7}})
    path = make(tmp_path / "checkpoint", closed)
    brokers.leave(B)
    assert forget(brokers, path, "--yes").exit_code == 0
    assert B not in (path / "offsets" / "0").read_text()


def test_a_broker_that_answers_is_forgotten_only_as_another_one(brokers: SimulatedCluster, tmp_path: Path) -> None:
    path = make(tmp_path / "checkpoint", BEFORE)
    refused = forget(brokers, path, "--yes")
    assert refused.exit_code != 0
    assert "answers at" in refused.output
    assert "--replaced" in refused.output
    assert B in (path / "offsets" / "0").read_text()
    assert forget(brokers, path, "--yes", "--replaced").exit_code == 0
    assert B not in (path / "offsets" / "0").read_text()


def test_a_source_of_another_cluster_keeps_its_queues(brokers: SimulatedCluster, tmp_path: Path) -> None:
    elsewhere = {"version": 1, "store": "cluster:elsewhere", "topics": {"Bills": {f"{B}:0": 3}}}
    path = make(tmp_path / "checkpoint", [BEFORE, elsewhere])
    brokers.leave(B)
    assert forget(brokers, path, "--yes").exit_code == 0
    lines = (path / "offsets" / "0").read_text().split("\n")
    assert B not in lines[2]
    assert json.loads(lines[3]) == elsewhere


def test_a_broker_that_a_name_server_still_shows_is_not_waited_for(brokers: SimulatedCluster, tmp_path: Path) -> None:
    """Its machine stands still, or its slave keeps it in the routes."""
    path = make(tmp_path / "checkpoint", BEFORE)
    record(brokers)
    brokers.brokers[B].stop()
    done = forget(brokers, path, "--yes")
    assert done.exit_code == 0, done.output
    assert B not in (path / "offsets" / "0").read_text()


def test_a_strange_name_is_refused(brokers: SimulatedCluster, tmp_path: Path) -> None:
    path = make(tmp_path / "checkpoint", BEFORE)
    refused = forget(brokers, path, "--yes", broker="broker-x")
    assert refused.exit_code != 0
    assert "no position names a broker 'broker-x'" in refused.output


def test_members_of_the_group_are_named(brokers: SimulatedCluster, tmp_path: Path) -> None:
    retry = position({f"{A}:0": 5, f"{B}:0": 7}) | {
        "topics": {"Orders": {f"{A}:0": 5, f"{B}:0": 7}, "%RETRY%cg": {f"{A}:0": 0}}
    }
    path = make(tmp_path / "checkpoint", retry)
    connected = ConsumerConnection(connection_set=(Connection(client_id="somebody"),)).encode()
    brokers.brokers[A].answer(RequestCode.GET_CONSUMER_CONNECTION_LIST, lambda _: (0, {}, connected))
    brokers.leave(B)
    refused = forget(brokers, path, "--yes")
    assert refused.exit_code != 0
    assert "stop the query first: group 'cg' has members: somebody" in refused.output
    assert B in (path / "offsets" / "0").read_text()


@pytest.mark.parametrize("dies_at", ["0", ".0.crc", "1", ".1.crc"])
def test_half_of_it_is_finished_by_the_same_command(
    brokers: SimulatedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: str
) -> None:
    path = make(tmp_path / "checkpoint", BEFORE, PLANNED, committed=1)
    for number in (0, 1):  # with checksums, as Spark writes them
        write_text(path / "offsets" / str(number), (path / "offsets" / str(number)).read_text())
    record(brokers)
    brokers.leave(B)
    writes: list[Path] = []
    real = durable.write_atomically

    def dies_later(target: Path, data: bytes) -> None:
        writes.append(target)
        if target.name == dies_at:
            raise OSError("the power is cut")
        real(target, data)

    monkeypatch.setattr(durable, "write_atomically", dies_later)
    assert forget(brokers, path, "--yes").exit_code != 0
    assert writes
    monkeypatch.setattr(durable, "write_atomically", real)
    assert listed(brokers) == (A, B)
    assert forget(brokers, path, "--yes").exit_code == 0
    assert B not in read_text(path / "offsets" / "0") + read_text(path / "offsets" / "1")
    assert listed(brokers) == (A,)


def test_without_a_cluster_the_command_says_what_it_needs(tmp_path: Path) -> None:
    path = make(tmp_path / "checkpoint", BEFORE)
    words = ["checkpoint", "forget-broker", str(path), B]
    result = CliRunner().invoke(commands, words, prog_name="rmq", env={"NAMESRV_ADDR": None, "RMQ_STORE": None})
    assert result.exit_code != 0
    assert "-n" in result.output or "name server" in result.output
