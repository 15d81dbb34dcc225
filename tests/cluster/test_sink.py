"""Rows to real brokers: what is stored, field by field; lost answers; repetitions."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.fault_proxy import FaultProxy, Loss
from rmq_store.client.cluster_sink import row_encoder
from rmq_store.client.cluster_sink.pipeline import PipelineSettings
from rmq_store.client.cluster_sink.records import WritePart
from rmq_store.client.cluster_sink.row_encoder import EncoderSettings
from rmq_store.client.cluster_sink.task import SinkReport, SinkSettings, SinkTask
from rmq_store.client.delivery.queue_reading import QueueReading
from rmq_store.errors import UnknownTopicError
from rmq_store.format.batches.answer_batches import AnswerRequest, answer_batches
from rmq_store.protocol.errors import ReplayConflictError, SendInDoubtError, TimerNotSupportedError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.groups import create_group
from rmq_store.remoting.cluster.locks import lock
from rmq_store.remoting.cluster.offsets import queue_ranges
from rmq_store.remoting.cluster.pulling import read_range
from rmq_store.remoting.transport.settings import ClusterSettings

SETTLE_MS = 1_200
COLUMNS = ("topic", "queueId", "queueOffset", "msgId", "body", "tags", "keys", "properties", "flag", "bornTimestamp")


@pytest.fixture
def proxy(cluster: RocketmqCluster) -> Iterator[FaultProxy]:
    with FaultProxy(cluster.address()) as found:
        yield found


def connected(cluster: RocketmqCluster, proxy: FaultProxy | None = None) -> Cluster:
    address_map = {} if proxy is None else {cluster.address(): proxy.address}
    return Cluster(ClusterSettings(name_servers=cluster.name_servers, address_map=address_map, timeout_ms=2_000))


def settings(topic: str | None, **changes: Any) -> SinkSettings:
    pipeline = PipelineSettings(send_timeout_ms=20_000, request_timeout_ms=1_000)
    fields: dict[str, Any] = {"settle_ms": SETTLE_MS, "patience_ms": 15_000, "pipeline": pipeline} | changes
    return SinkSettings(EncoderSettings(topic, drop_properties=frozenset({"DELAY"})), **fields)


def send(
    cluster: Cluster, topic: str, rows: pa.RecordBatch, part: WritePart, **changes: Any
) -> SinkReport:
    with SinkTask(cluster, settings(topic, **changes), part) as task:
        task.write(rows)
        return task.finish()


def bodies(*texts: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"body": pa.array([text.encode() for text in texts])})


def stored(cluster: Cluster, topic: str, expected: int, queues: int = 4) -> list[dict[str, Any]]:
    """The messages of a topic, queue by queue, when there are so many of them."""
    all_queues = [MessageQueue(topic, "broker-a", number) for number in range(queues)]
    until = time.monotonic() + 15
    while True:
        ranges = queue_ranges(cluster, all_queues)
        if sum(found.max_offset for found in ranges.values()) >= expected or time.monotonic() > until:
            break
        time.sleep(0.1)
    rows: list[dict[str, Any]] = []
    for queue, found in sorted(ranges.items()):
        frames = read_range(cluster, queue, found.min_offset, found.max_offset)
        for batch in answer_batches(frames, AnswerRequest("broker-a", topic, queue.queue_id, COLUMNS)):
            rows += batch.to_pylist(maps_as_pydicts="strict")
    return rows


def test_each_field_arrives(cluster: RocketmqCluster, new_name: Callable[[str], str]) -> None:
    topic = new_name("Fields")
    rows = pa.RecordBatch.from_pydict(
        {
            "body": pa.array([b"tea", b"milk", "Grüße".encode()]),
            "tags": pa.array(["A", None, "B"]),
            "keys": pa.array(["k1 k2", None, ""]),
            "properties": pa.array(
                [[("colour", "green")], None, [("DELAY", "3"), ("größe", "süß")]], pa.map_(pa.string(), pa.string())
            ),
            "flag": pa.array([7, None, -1], pa.int32()),
            "shardingKey": pa.array(["s", "s", "s"]),
            "bornTimestamp": pa.array([1_700_000_000_123_000, None, None], pa.timestamp("us", "UTC")),
        }
    )
    with connected(cluster) as ours:
        report = send(ours, topic, rows, WritePart(topic, 0, 0))
        found = stored(ours, topic, 3)
    assert (report.rows, report.skipped, report.requests) == (3, 0, 2)  # a born time of its own
    assert [row["body"] for row in found] == [b"tea", b"milk", "Grüße".encode()]
    assert [row["tags"] for row in found] == ["A", None, "B"]
    assert [row["keys"] for row in found] == ["k1 k2", None, None]
    assert [row["flag"] for row in found] == [7, 0, -1]
    assert len({row["queueId"] for row in found}) == 1
    assert found[0]["bornTimestamp"].timestamp() == 1_700_000_000.123
    assert found[0]["properties"]["colour"] == "green"
    assert found[2]["properties"]["größe"] == "süß"
    assert "DELAY" not in found[2]["properties"]
    assert {row["properties"]["__SHARDINGKEY"] for row in found} == {"s"}
    assert all(len(row["msgId"]) == 32 and row["properties"]["UNIQ_KEY"] == row["msgId"] for row in found)


def test_many_rows_keep_their_order_in_each_queue(cluster: RocketmqCluster, new_name: Callable[[str], str]) -> None:
    topic = new_name("Order")
    count = 30_000
    numbers = [f"{number:06}" + "x" * 100 for number in range(count)]
    with connected(cluster) as ours, SinkTask(ours, settings(topic), WritePart(topic, 0, 0)) as task:
        for first in range(0, count, 7_000):
            task.write(bodies(*numbers[first : first + 7_000]))
        report = task.finish()
        found = stored(ours, topic, count)
    assert report.rows + report.found == count  # a busy machine may answer too late
    assert Counter(row["body"] for row in found) == Counter(text.encode() for text in numbers)
    by_queue: dict[int, list[bytes]] = {}
    for row in found:
        by_queue.setdefault(row["queueId"], []).append(row["body"])
    assert len(by_queue) == 4
    assert all(texts == sorted(texts) for texts in by_queue.values())


ROWS = [f"row {number % 50}" for number in range(120)]


def shuffled() -> list[str]:
    return [ROWS[number * 7 % len(ROWS)] for number in range(len(ROWS))]


def test_a_repetition_in_another_order_leaves_out_what_is_stored(
    cluster: RocketmqCluster, new_name: Callable[[str], str]
) -> None:
    topic = new_name("Again")
    part = WritePart(topic, 3, 1)
    with connected(cluster) as ours:
        send(ours, topic, bodies(*ROWS[:70]), part)  # the attempt died here
        report = send(ours, topic, bodies(*shuffled()), part)
        assert (report.skipped, report.rows, report.repeated, report.late) == (70, 50, True, 0)
        assert send(ours, topic, bodies(*reversed(ROWS)), part).rows == 0
        other = send(ours, topic, bodies(*ROWS), WritePart(topic, 4, 1))
        assert (other.rows, other.repeated) == (120, False)
        found = Counter(row["body"].decode() for row in stored(ours, topic, 240))
    assert found == Counter(ROWS * 2)


@pytest.mark.slow
def test_keys_of_row_numbers_would_take_rows_for_others(
    cluster: RocketmqCluster, new_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_name("Numbers")

    def by_number(frames: pa.LargeBinaryArray, seed: bytes, places: np.ndarray) -> np.ndarray:
        numbers = np.zeros((len(frames), 16), np.uint8)
        numbers[:, 0] = np.arange(len(frames))
        return numbers.ravel()

    monkeypatch.setattr(row_encoder, "content_digests", by_number)
    with connected(cluster) as ours:
        send(ours, topic, bodies(*ROWS[:70]), WritePart(topic, 3, 1))
        with pytest.raises(ReplayConflictError, match=r"row 1: its unique key [0-9A-F]{32} is in a queue already"):
            send(ours, topic, bodies(*shuffled()), WritePart(topic, 3, 1))


@pytest.mark.slow
def test_without_the_check_a_repetition_stores_rows_twice(
    cluster: RocketmqCluster, new_name: Callable[[str], str]
) -> None:
    topic = new_name("Twice")
    with connected(cluster) as ours:
        for _ in range(2):
            send(ours, topic, bodies(*ROWS), WritePart(topic, 3, 1), replay_check=False)
        assert len(stored(ours, topic, 240)) == 240


@pytest.mark.parametrize(
    "loss", [Loss.SILENCE, *(pytest.param(loss, marks=pytest.mark.slow) for loss in (Loss.RESET, Loss.TORN))]
)
def test_an_answer_that_is_lost_after_the_store_doubles_nothing(
    cluster: RocketmqCluster, proxy: FaultProxy, new_name: Callable[[str], str], loss: Loss
) -> None:
    topic = new_name("Lost")
    proxy.lose_answers(RequestCode.SEND_BATCH_MESSAGE, count=1, as_=loss)
    with connected(cluster, proxy) as ours:
        report = send(ours, topic, bodies(*ROWS), WritePart(topic, 0, 0))
        assert (report.rows, report.found) == (0, 120)
        assert len(stored(ours, topic, 120)) == 120
    assert proxy.requests[RequestCode.SEND_BATCH_MESSAGE] == 1


@pytest.mark.slow
def test_an_answer_that_is_lost_doubles_rows_where_they_are_sent_again(
    cluster: RocketmqCluster, proxy: FaultProxy, new_name: Callable[[str], str]
) -> None:
    topic = new_name("LostTwice")
    proxy.lose_answers(RequestCode.SEND_BATCH_MESSAGE, count=1, as_=Loss.SILENCE)
    with connected(cluster, proxy) as ours:
        send(ours, topic, bodies(*ROWS), WritePart(topic, 0, 0), resend_unknown=True)
        assert len(stored(ours, topic, 240)) == 240


def test_a_broker_that_stays_away_fails_the_batch_and_the_repetition_waits_for_it(
    cluster: RocketmqCluster, proxy: FaultProxy, new_name: Callable[[str], str]
) -> None:
    topic, part = new_name("Away"), WritePart("away", 0, 0)
    with connected(cluster, proxy) as ours:
        with SinkTask(ours, settings(topic, patience_ms=3_000), part) as task:
            task.write(bodies(*ROWS))
            proxy.lose_answers(RequestCode.SEND_BATCH_MESSAGE, count=1, as_=Loss.SILENCE)
            proxy.lose_answers(RequestCode.GET_MAX_OFFSET, count=1_000, as_=Loss.SILENCE)
            with pytest.raises(SendInDoubtError, match="broker-a"):
                task.finish()
        proxy.flow()
        proxy.reset()
    with connected(cluster) as ours:
        report = send(ours, topic, bodies(*shuffled()), part)
        assert (report.skipped, report.rows) == (120, 0)
        assert len(stored(ours, topic, 120)) == 120


@pytest.mark.parametrize("has_timers", [False, True])
def test_delayed_rows_are_found_where_they_wait(
    cluster: RocketmqCluster, new_name: Callable[[str], str], has_timers: bool
) -> None:
    topic, part = new_name("Late"), WritePart(new_name("late"), 0, 0)
    columns = {"body": pa.array([b"now", b"soon", b"later"])}
    if has_timers:
        due = str(int(time.time() * 1000) + 6_000)
        columns["TIMER_DELIVER_MS"] = pa.array([None, due, due])
    else:
        columns["delayLevel"] = pa.array([None, 2, 3], pa.int32())
    rows = pa.RecordBatch.from_pydict(columns)
    with connected(cluster) as ours:
        if has_timers and cluster.version.startswith("4."):
            with pytest.raises(TimerNotSupportedError):
                send(ours, topic, rows, part)
            return
        assert send(ours, topic, rows, part).rows == 3
        report = send(ours, topic, rows, part)
        assert (report.skipped, report.rows) == (3, 0)
        found = stored(ours, topic, 3)
    assert sorted(row["body"] for row in found) == [b"later", b"now", b"soon"]


def test_rows_that_a_broker_makes_dead_letters_are_found_there(
    cluster: RocketmqCluster, new_name: Callable[[str], str]
) -> None:
    # A broker of 5.x does so while a member of the group has a lock.
    group = new_name("locked")
    topic, dead = cluster.create_topic(f"%RETRY%{group}", 1), f"%DLQ%{group}"
    part, rows = WritePart(group, 0, 0), bodies("a", "b")
    with connected(cluster) as ours:
        create_group(ours, group, "broker-a")
        assert lock(ours, group, "a member", [MessageQueue(topic, "broker-a", 0)])
        assert send(ours, topic, rows, part).rows == 2
        report = send(ours, topic, rows, part)
        assert (report.skipped, report.rows, report.late) == (2, 0, 0)
        queues = [MessageQueue(one, "broker-a", 0) for one in (topic, dead)]
        places = {queue.topic: end for queue, end in QueueReading(ours, 10_000).ends(queues).items()}
    is_old = cluster.version.startswith("4.")
    assert places == ({topic: 2, dead: 0} if is_old else {topic: 0, dead: 2})


@pytest.mark.slow
def test_rows_of_a_zombie_that_come_after_the_check_are_reported(
    cluster: RocketmqCluster, new_name: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    topic = cluster.create_topic(new_name("Zombie"), 1)
    part = WritePart(topic, 0, 0)
    with connected(cluster) as ours:
        send(ours, topic, bodies("a"), part)
        with SinkTask(ours, settings(topic), part) as task:
            task.write(bodies("a", "b", "c"))  # the queue was read, and nothing is sent yet
            assert send(ours, topic, bodies("a", "b"), part, replay_check=False).rows == 2
            report = task.finish()
    assert (report.skipped, report.rows, report.late) == (1, 2, 2)
    assert "2 rows of an attempt that was thought dead" in caplog.text


def test_topics_by_column_and_one_that_must_not_be_made(
    cluster: RocketmqCluster, new_name: Callable[[str], str]
) -> None:
    first, second = cluster.create_topic(new_name("First"), 1), cluster.create_topic(new_name("Second"), 1)
    part = WritePart(first, 0, 0)
    rows = pa.RecordBatch.from_pydict({"topic": [first, second, first], "body": pa.array([b"1", b"2", b"3"])})
    with connected(cluster) as ours:
        with SinkTask(ours, settings(None), part) as task:
            task.write(rows.slice(0, 1))  # the attempt has not come to the second topic
            task.finish()
        with SinkTask(ours, settings(None), part) as task:
            task.write(rows)
            report = task.finish()
        assert (report.skipped, report.rows) == (1, 2)
        assert [row["body"] for row in stored(ours, first, 2, 1)] == [b"1", b"3"]
        assert [row["body"] for row in stored(ours, second, 1, 1)] == [b"2"]
        with pytest.raises(UnknownTopicError, match="createTopic=false"):
            send(ours, new_name("Nowhere"), bodies("x"), part, new_topic_queues=0)


@pytest.mark.slow
def test_records_in_a_directory_need_no_topic(
    cluster: RocketmqCluster, new_name: Callable[[str], str], tmp_path: Any
) -> None:
    topic, part = new_name("Directory"), WritePart(new_name("directory"), 0, 0)
    with connected(cluster) as ours:
        send(ours, topic, bodies(*ROWS[:70]), part, record_path=str(tmp_path))
        report = send(ours, topic, bodies(*shuffled()), part, record_path=str(tmp_path))
    assert (report.skipped, report.rows) == (70, 50)
