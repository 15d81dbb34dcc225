"""Tasks whose broker is away, and tasks that begin while no name server answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import InputPartition

from pyspark_rmq.access import cluster_reader
from pyspark_rmq.cluster_read.range_reader import RangeReader
from pyspark_rmq.options.cluster_options import BROKER_AWAY_TIMEOUT_MS
from pyspark_rmq.read.task import SlicePartition
from rmq_store.errors import DataLossError
from rmq_store.protocol.errors import BrokerAwayError, MQBrokerError, RemotingCommandError

from ...storage.remoting.cluster.fake_cluster import FakeNet
from ..planned_batches import LIMIT, first_batch, through_spark
from .absences import KINDS, NAME_SERVER_KINDS, Absence, NameServerAbsence
from .conftest import Clock, batch, rows

Make = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("in_memory")


class Pauses:
    """The pauses of tasks, which move the clock; `at` a time from now on something happens, once."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.waited_ms = 0.0
        self._due: list[tuple[float, Callable[[], object]]] = []

    def at(self, after_ms: float, happens: Callable[[], object]) -> None:
        self._due.append((self.clock.now_ms + after_ms, happens))

    def sleep(self, duration_s: float) -> None:
        self.waited_ms += duration_s * 1000
        self.clock.sleep(duration_s)
        for one in [one for one in self._due if one[0] <= self.clock.now_ms]:
            self._due.remove(one)
            one[1]()


@pytest.fixture
def pauses(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Pauses:
    made = Pauses(clock)
    monkeypatch.setattr(cluster_reader, "RangeReader", partial(RangeReader, sleep=made.sleep))
    return made


def to_task(partitions: Any) -> list[InputPartition]:
    """The partitions as a worker gets them. Each open of the cluster is a new process here (`in_memory`)."""
    return [cloudpickle.loads(cloudpickle.dumps(one)) for one in partitions]


def of_broker(partitions: Any, name: str) -> list[SlicePartition]:
    return [one for one in partitions if one.part.queue_id.broker_name == name]


def planned(stream: Make, **options: str) -> tuple[Any, list[InputPartition]]:
    """A stream, and its first batch: planned, and not read yet."""
    reader = stream(startingOffsets="earliest", **options)
    start = through_spark(reader.initialOffset())
    end = through_spark(reader.latestOffset(start, LIMIT))
    return reader, to_task(reader.partitions(start, end))


# -- brokers that are away ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_reads_its_range_when_its_broker_is_back_within_the_bound(
    net: FakeNet, stream: Make, pauses: Pauses, kind: str
) -> None:
    reader, parts = planned(stream)
    absence = Absence(net, "broker-b", kind)
    assert len(rows(reader, of_broker(parts, "broker-a"))) == 20
    assert pauses.waited_ms == 0, "tasks of other brokers wait for nothing"
    pauses.at(BROKER_AWAY_TIMEOUT_MS - 10_000, absence.end)
    assert [row["queueOffset"] for row in rows(reader, of_broker(parts, "broker-b"))] == list(range(10))


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_whose_broker_stays_away_ends_by_name(net: FakeNet, stream: Make, pauses: Pauses, kind: str) -> None:
    reader, parts = planned(stream, brokerAwayTimeout="45s")
    Absence(net, "broker-b", kind)
    with pytest.raises(BrokerAwayError) as raised:
        rows(reader, of_broker(parts, "broker-b"))
    assert raised.value.broker_names == ("broker-b",)
    for named in ("broker broker-b", "[0, 10)", "queue 0 of topic T", "45 s", "brokerAwayTimeout"):
        assert named in str(raised.value)
    assert 45_000 <= pauses.waited_ms < 50_000


def test_a_broker_that_goes_half_way_is_waited_for_and_no_row_comes_twice(
    net: FakeNet, stream: Make, pauses: Pauses
) -> None:
    net.brokers["broker-b"].put("T", 0, 3_000)
    reader, parts = planned(stream)
    process = net.brokers["broker-b"].processes[0]
    del net.brokers["broker-b"].processes[1]
    absence: list[Absence] = []

    def go(_: Any) -> Any:
        absence.append(Absence(net, "broker-b", "refused"))
        pauses.at(100_000, absence[0].end)
        return net.call(process.address, _, 1)

    process.answers += [go]
    assert [row["queueOffset"] for row in rows(reader, of_broker(parts, "broker-b"))] == list(range(3_010))
    assert absence and pauses.waited_ms >= 100_000


def test_a_slave_that_answers_serves_the_task_at_once(net: FakeNet, stream: Make, pauses: Pauses) -> None:
    reader, parts = planned(stream)
    net.brokers["broker-b"].processes[0].down = True
    assert len(rows(reader, of_broker(parts, "broker-b"))) == 10
    assert pauses.waited_ms == 0


def test_a_task_is_told_the_masters_that_have_answered_the_plan(
    net: FakeNet, stream: Make, more: Make, pauses: Pauses
) -> None:
    reader = stream(startingOffsets="earliest")
    start, end = first_batch(reader)
    known = {name: of_broker(reader.partitions(start, end), name)[0].known for name in ("broker-a", "broker-b")}
    assert {name: one.masters for name, one in known.items() if one} == {name: {name} for name in known}
    net.brokers["broker-b"].processes[0].down = True
    net.brokers["broker-a"].put("T", 0, 1)
    later = more(reader, end)
    known = {name: of_broker(reader.partitions(start, later), name)[0].known for name in ("broker-a", "broker-b")}
    assert {name: one.masters for name, one in known.items() if one} == {"broker-a": {"broker-a"}, "broker-b": set()}


def test_a_slave_that_lacks_the_messages_is_waited_for_and_named(net: FakeNet, stream: Make, pauses: Pauses) -> None:
    reader, parts = planned(stream)
    net.brokers["broker-b"].processes[0].down = True
    net.brokers["broker-b"].processes[1].end = 5
    with pytest.raises(BrokerAwayError, match=r"brokerAwayTimeout.*are not at slave 1"):
        rows(reader, of_broker(parts, "broker-b"))
    pauses.at(100_000, lambda: setattr(net.brokers["broker-b"].processes[1], "end", None))
    assert len(rows(reader, of_broker(parts, "broker-b"))) == 10


def test_what_is_no_absence_ends_a_task_as_before(net: FakeNet, stream: Make, pauses: Pauses) -> None:
    reader, parts = planned(stream)
    broker = net.brokers["broker-b"]
    broker.refused[11] = 16, "no right"
    with pytest.raises(MQBrokerError, match="no right"):
        rows(reader, of_broker(parts, "broker-b"))
    broker.refused.clear()
    broker.processes[0].answers.append(RemotingCommandError("bytes that do not decode"))
    with pytest.raises(RemotingCommandError):
        rows(reader, of_broker(parts, "broker-b"))
    broker.queues["T", 0].min_offset = 4
    with pytest.raises(DataLossError):
        rows(reader, of_broker(parts, "broker-b"))
    assert pauses.waited_ms == 0


@pytest.mark.parametrize("kind", ["refused", "silent", "forgotten", "busy"])
def test_a_replayed_batch_and_one_of_available_now_wait_too(
    net: FakeNet, stream: Make, pauses: Pauses, kind: str
) -> None:
    """A query that is started anew while the broker is away: Spark has its ranges in the offset log."""
    reader = stream(startingOffsets="earliest")
    start = through_spark(reader.initialOffset())
    end = through_spark(reader.latestOffset(start, LIMIT))
    absence = Absence(net, "broker-b", kind)
    again = stream(startingOffsets="earliest")
    again.prepareForTriggerAvailableNow()
    parts = to_task(again.partitions(start, end))
    pauses.at(100_000, absence.end)
    assert len(rows(again, parts)) == 30


def test_a_batch_read_waits_as_well(net: FakeNet, pauses: Pauses) -> None:
    reader = batch()
    parts = to_task(reader.partitions())
    absence = Absence(net, "broker-b", "refused")
    pauses.at(100_000, absence.end)
    assert len(rows(reader, parts)) == 30


# -- name servers that are away ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NAME_SERVER_KINDS)
@pytest.mark.parametrize("use", ["stream", "batch", "look-up"])
def test_a_new_worker_reads_without_any_name_server(
    net: FakeNet, stream: Make, pauses: Pauses, kind: str, use: str
) -> None:
    if use == "stream":
        reader, parts = planned(stream)
    else:
        reader = batch(**({"uniqKey": f"{3:032X}"} if use == "look-up" else {}))
        if use == "look-up":
            for broker in net.brokers.values():
                broker.put("T", 0, 1, tags="A")
        parts = to_task(reader.partitions())
    absence = NameServerAbsence(net, kind)
    before = len(net.calls)
    found = rows(reader, parts)
    assert pauses.waited_ms == 0
    if use != "look-up":
        assert len(found) == 30
    assert not [address for address, _ in net.calls[before:] if address in net.name_servers], "nobody asks them"
    absence.end()


@pytest.mark.parametrize("kind", ["refused", "silent"])
def test_the_address_of_a_broker_that_has_moved_is_asked_for(
    net: FakeNet, stream: Make, pauses: Pauses, kind: str
) -> None:
    reader, parts = planned(stream)
    for process in net.brokers["broker-b"].processes.values():
        process.port = 10921
    absence = NameServerAbsence(net, kind)
    pauses.at(60_000, absence.end)
    assert len(rows(reader, of_broker(parts, "broker-b"))) == 10
    assert 60_000 <= pauses.waited_ms < 120_000


def test_a_stream_knows_the_address_of_a_broker_that_the_name_servers_have_forgotten(
    net: FakeNet, stream: Make, pauses: Pauses
) -> None:
    """It is there, and has not registered yet."""
    reader = stream(startingOffsets="earliest")
    start = through_spark(reader.initialOffset())
    end = through_spark(reader.latestOffset(start, LIMIT))
    net.unregistered["ns:9876"] = {"broker-b"}
    assert len(rows(reader, to_task(reader.partitions(start, end)))) == 30
    assert pauses.waited_ms == 0


def test_a_partition_has_the_addresses_of_its_broker_only(net: FakeNet) -> None:
    for number in range(98):
        net.add_broker(f"broker-{number:03}", slaves=1).create_topic("T", 100)
        net.brokers[f"broker-{number:03}"].put("T", 7, 3)
    parts = batch().partitions()
    sizes = [len(cloudpickle.dumps(one)) for one in parts]
    assert len(parts) == 101 and max(sizes) < 1_200
    assert b"10911" in cloudpickle.dumps(parts[0])


def test_a_partition_has_no_secrets(net: FakeNet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "the-access-key")
    monkeypatch.setenv("SECRET", "the-secret-key")
    for one in batch(accessKey="env:KEY", secretKey="env:SECRET").partitions():
        assert b"the-" not in cloudpickle.dumps(one)
