"""The replay check against simulated brokers: an own record is no earlier attempt, an earlier one is never missed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from helpers.cluster.simulated import SimulatedCluster
from rmq_store.client.cluster_sink.queue_reading import QueueReading
from rmq_store.client.cluster_sink.records import Offsets, Record, WritePart, earliest
from rmq_store.client.cluster_sink.replay import ReplayCheck
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings

PART = WritePart("query", 7, 3)
ORDERS = [MessageQueue("Orders", f"broker-00{number}", 0) for number in range(2)]
LEVEL_1 = MessageQueue("SCHEDULE_TOPIC_XXXX", "broker-001", 1)


class Memory:
    """Records that all checks share; `unseen` ones are shown to whoever has added one, but not to `find`."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.unseen: list[Record] = []

    def find(self, part: WritePart) -> Offsets:
        return earliest(self.records, part)

    def add(self, record: Record) -> Offsets:
        self.records.append(record)
        missed, self.unseen = self.unseen, []
        return earliest(missed, record.part)


class Task:
    """A check, the waits that it made, and what it read."""

    def __init__(self, cluster: Cluster, records: Memory) -> None:
        self.waits_s: list[float] = []
        self.read: dict[MessageQueue, tuple[int, int]] = {}
        reading = QueueReading(cluster, 300)
        reading.keys = lambda parts, tag, into: self.read.update(parts)  # type: ignore[method-assign]
        self.check = ReplayCheck(cluster, reading, records, PART, b"ab", 3000, sleep=self.waits_s.append)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with SimulatedCluster(brokers=2) as brokers:
        brokers.create_topic("Orders", queue_count=1, message_count=9)
        brokers.create_topic("SCHEDULE_TOPIC_XXXX", queue_count=24, message_count=4)
        brokers.create_topic("rmq_sys_wheel_timer", queue_count=1)
        with Cluster(ClusterSettings.of_text(brokers.name_server)) as cluster:
            yield cluster


def test_delayed_rows_for_a_second_broker_are_no_repetition(cluster: Cluster) -> None:
    task = Task(cluster, Memory())
    task.check.prepare("Orders", ORDERS, delayed=False)
    task.check.prepare_delays(["broker-000"])
    task.check.prepare_delays(["broker-000", "broker-001"])
    assert (task.check.is_repetition, task.waits_s, task.read) == (False, [], {})


def test_delayed_rows_of_an_earlier_attempt_are_looked_for_at_its_brokers_and_no_others(cluster: Cluster) -> None:
    records = Memory()
    Task(cluster, records).check.prepare("Orders", ORDERS[1:], delayed=True)
    second = Task(cluster, records)
    second.check.prepare("Orders", ORDERS[:1], delayed=True)
    assert second.waits_s == [3.0]
    assert second.read[LEVEL_1] == (4, 4)
    assert {queue.broker_name for queue in second.read if queue.topic != "Orders"} == {"broker-001"}
    assert second.read[ORDERS[0]] == (0, 9), "a queue that the record of its topic lacks is read from its start"


def test_a_record_that_comes_to_light_behind_the_own_one_makes_a_repetition(cluster: Cluster) -> None:
    records = Memory()
    records.unseen = [Record(PART, {ORDERS[0]: 2, ORDERS[1]: 7}, "dead")]
    task = Task(cluster, records)
    task.check.prepare("Orders", ORDERS, delayed=False)
    assert task.check.is_repetition
    assert task.read == {ORDERS[0]: (2, 9), ORDERS[1]: (7, 9)}
    assert records.records[-1].offsets == {ORDERS[0]: 9, ORDERS[1]: 9}
