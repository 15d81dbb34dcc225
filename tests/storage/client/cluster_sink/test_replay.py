"""The replay check against simulated brokers: an own record is no earlier attempt, an earlier one is never missed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pytest

from helpers.cluster.simulated import SimulatedCluster
from rmq_store.client.cluster_sink.chunks import Chunk, Shared, TargetQueue
from rmq_store.client.cluster_sink.records import Offsets, Record, WritePart, earliest
from rmq_store.client.cluster_sink.replay import ReplayCheck
from rmq_store.client.delivery.queue_reading import QueueReading
from rmq_store.format.batches.content_keys import FoundKeys
from rmq_store.protocol.errors import SendInDoubtError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings

Keys = npt.NDArray[np.uint8]

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

    def __init__(self, cluster: Cluster, records: Memory, patience_ms: int = 10_000) -> None:
        self.waits_s: list[float] = []
        self.read: dict[MessageQueue, tuple[int, int]] = {}
        self.reading_waits_s: list[float] = []
        reading = QueueReading(cluster, patience_ms, sleep=self._wait)
        reading.keys = self._read  # type: ignore[method-assign]
        # Keys by the queue in which they are.
        self.keys: dict[MessageQueue, list[bytes]] = {}
        self.check = ReplayCheck(cluster, reading, records, PART, b"ab", 3000, sleep=self.waits_s.append)

    def _wait(self, seconds: float) -> None:
        self.reading_waits_s.append(seconds)
        time.sleep(0.02)

    def _read(self, parts: Mapping[MessageQueue, tuple[int, int]], tag: bytes, into: FoundKeys) -> None:
        self.read.update(parts)
        for queue in parts:
            keys = b"".join(self.keys.get(queue, []))
            into.add(np.frombuffer(keys, np.uint8), np.zeros(len(keys) // 16, np.uint64))


@pytest.fixture
def brokers() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(brokers=2) as brokers:
        brokers.create_topic("Orders", queue_count=1, message_count=9)
        brokers.create_topic("SCHEDULE_TOPIC_XXXX", queue_count=24, message_count=4)
        brokers.create_topic("rmq_sys_wheel_timer", queue_count=1)
        yield brokers


@pytest.fixture
def cluster(brokers: SimulatedCluster) -> Iterator[Cluster]:
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


RETRIES = [MessageQueue("%RETRY%cg", "broker-000", 0)]
DEAD = MessageQueue("%DLQ%cg", "broker-000", 0)


def test_rows_for_a_retry_topic_are_looked_for_among_dead_letters(
    brokers: SimulatedCluster, cluster: Cluster
) -> None:
    records = Memory()
    brokers.create_topic("%RETRY%cg", queue_count=1, message_count=2)
    first = Task(cluster, records)
    first.check.prepare("%RETRY%cg", RETRIES, delayed=False)
    assert records.records[0].offsets == {RETRIES[0]: 2, DEAD: 0}, "no group has dead letters before the first one"
    assert not first.check.is_repetition
    brokers.create_topic("%DLQ%cg", queue_count=1, message_count=3)
    second = Task(cluster, records)
    second.check.prepare("%RETRY%cg", RETRIES, delayed=False)
    assert second.read == {RETRIES[0]: (2, 2), DEAD: (0, 3)}


def test_a_row_in_doubt_for_a_retry_topic_is_looked_for_among_dead_letters(
    brokers: SimulatedCluster, cluster: Cluster
) -> None:
    brokers.create_topic("%RETRY%cg", queue_count=1, message_count=2)
    task = Task(cluster, Memory())
    task.check.prepare("%RETRY%cg", RETRIES, delayed=False)
    brokers.create_topic("%DLQ%cg", queue_count=1, message_count=1)
    task.keys = {DEAD: [key(1)]}
    assert task.check.stored(chunk(key(1), topic="%RETRY%cg", single=True), RETRIES[0], None, "late").all()


def key(number: int) -> bytes:
    """A key of the task's tag."""
    return b"ab" + number.to_bytes(14, "big")


def chunk(*keys: bytes, topic: str = "Orders", single: bool = False) -> Chunk:
    count = len(keys)
    return Chunk(
        TargetQueue(topic, None), Shared(0, 0, single), b"x" * count, np.arange(1, count + 1),
        np.frombuffer(b"".join(keys), np.uint8), np.zeros(count, np.uint64), 0,
    )  # fmt: skip


def made_below(limit: int) -> Callable[[Keys], npt.NDArray[np.bool_]]:
    """The keys of the task's rows are those of numbers below `limit`."""
    return lambda keys: np.array(
        [int.from_bytes(one[2:].tobytes(), "big") < limit for one in keys.reshape(-1, 16)], np.bool_
    )


def repetition(cluster: Cluster, *, delayed: bool = False, **found: list[bytes]) -> Task:
    """A task whose queues were read, and had these keys: `orders`, `level`."""
    records = Memory()
    Task(cluster, records).check.prepare("Orders", ORDERS, delayed=delayed)
    task = Task(cluster, records)
    task.keys = {ORDERS[0]: found.get("orders", []), LEVEL_1: found.get("level", [])}
    task.check.prepare("Orders", ORDERS, delayed=delayed)
    task.keys = {}
    return task


def test_rows_of_a_zombie_that_this_task_sends_too_are_late(cluster: Cluster) -> None:
    task = repetition(cluster, orders=[key(3)])
    task.keys = {ORDERS[0]: [key(1), key(2), key(3)]}
    assert task.check.late_keys({ORDERS[0]: 12}, made_below(5)) == 3


def test_keys_of_other_tasks_with_the_same_tag_are_not_late(cluster: Cluster) -> None:
    task = repetition(cluster)
    task.keys = {ORDERS[0]: [key(1), key(7), key(8)]}
    assert task.check.late_keys({ORDERS[0]: 12}, made_below(5)) == 1


def test_own_rows_that_were_found_after_a_doubt_are_not_late(cluster: Cluster) -> None:
    task = repetition(cluster)
    task.keys = {ORDERS[0]: [key(1)]}
    assert task.check.stored(chunk(key(1), key(2)), ORDERS[0], None, "late").tolist() == [True, False]
    assert task.check.late_keys({ORDERS[0]: 12}, made_below(5)) == 0
    task.keys = {ORDERS[0]: [key(1), key(1)]}
    assert task.check.late_keys({ORDERS[0]: 12}, made_below(5)) == 1, "a zombie has stored it as well"


def test_delayed_rows_that_were_delivered_meanwhile_are_not_late(cluster: Cluster) -> None:
    task = repetition(cluster, delayed=True, level=[key(1)])
    task.keys = {ORDERS[0]: [key(1)]}
    assert task.check.late_keys({ORDERS[0]: 12}, made_below(5)) == 0
    # A level keeps what was delivered: this row was in both.
    task = repetition(cluster, delayed=True, level=[key(1)], orders=[key(1)])
    task.keys = {ORDERS[0]: [key(1)]}
    assert task.check.late_keys({ORDERS[0]: 12}, made_below(5)) == 1


def test_a_report_that_cannot_be_made_fails_no_task(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    task = repetition(cluster)

    def fails(*ignored: object) -> None:
        raise SendInDoubtError("away")

    task.check._reading.keys = fails  # type: ignore[assignment]
    assert task.check.late_keys({ORDERS[0]: 12}, made_below(5)) == 0
    assert "is unknown: away" in caplog.text


def test_a_queue_that_became_shorter_behind_the_last_row_fails_no_task(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    task = repetition(cluster)
    del task.check._reading.keys  # reads the queue of the broker, which ends at 9
    assert task.check.late_keys({ORDERS[0]: 12}, made_below(5)) == 0
    assert "whether another attempt sent rows after the check is unknown: queue 0 of topic 'Orders'" in caplog.text


@pytest.mark.parametrize("code", [RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET])
def test_a_broker_that_refuses_to_tell_an_end_leaves_the_batch_in_doubt(
    brokers: SimulatedCluster, cluster: Cluster, code: int
) -> None:
    brokers.brokers["broker-000"].refuse(code, 16)
    task = Task(cluster, Memory())
    with pytest.raises(SendInDoubtError, match=r"queues of broker-000.* refuses: CODE: 16"):
        task.check.prepare("Orders", ORDERS[:1], delayed=False)
    assert task.reading_waits_s == []


@pytest.mark.parametrize("answer", [1, 2, 14, 215])
def test_a_broker_that_cannot_tell_an_end_now_is_asked_again(
    brokers: SimulatedCluster, cluster: Cluster, answer: int
) -> None:
    brokers.brokers["broker-000"].refuse(RequestCode.GET_MAX_OFFSET, answer, count=2)
    task = Task(cluster, Memory())
    task.check.prepare("Orders", ORDERS, delayed=False)
    assert task.check._recorded.starts() == {ORDERS[0]: 9, ORDERS[1]: 9}
    brokers.brokers["broker-000"].refuse(RequestCode.GET_MAX_OFFSET, answer, count=2)
    assert not task.check.stored(chunk(key(1)), ORDERS[0], None, "late").any()


@pytest.mark.long
def test_a_broker_that_never_tells_an_end_leaves_the_batch_in_doubt(
    brokers: SimulatedCluster, cluster: Cluster
) -> None:
    task = Task(cluster, Memory(), patience_ms=300)
    task.check.prepare("Orders", ORDERS, delayed=False)
    brokers.brokers["broker-000"].refuse(RequestCode.GET_MAX_OFFSET, 2)
    with pytest.raises(SendInDoubtError, match=r"queues of broker-000.*does not answer: CODE: 2"):
        task.check.stored(chunk(key(1)), ORDERS[0], None, "late")
