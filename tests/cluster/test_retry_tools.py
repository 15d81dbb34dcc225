"""Failed messages of released brokers are sent back: by both requests, once, and as Java's client sees it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.waiting import until
from helpers.cluster.witness import Witness
from rmq_store.client.cluster_retry.send_back_task import SendBackReport, SendBackSettings, SendBackTask
from rmq_store.client.cluster_sink.records import WritePart
from rmq_store.client.delivery.request import single_request
from rmq_store.format.frames.frame_walk import frames_of_answer
from rmq_store.format.frames.stored_message import StoredMessage, decode_frame
from rmq_store.format.properties.property_string import encode_properties
from rmq_store.format.tables.schema import PROPERTIES_TYPE
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.offsets import queue_ranges
from rmq_store.remoting.cluster.pulling import read_range
from rmq_store.remoting.transport.settings import ClusterSettings

pytestmark = pytest.mark.timeout(600)
NewName = Callable[[str], str]
ROOT = Path(__file__).resolve().parents[2]
REASONS = {"PYRMQ_ERROR_CLASS": "ValueError", "PYRMQ_ERROR_MESSAGE": "no such bill"}
ROWS = pa.schema(
    [
        ("brokerName", pa.string()), ("commitLogOffset", pa.int64()), ("msgId", pa.string()),
        ("delayLevel", pa.int32()), ("properties", PROPERTIES_TYPE),
    ]
)  # fmt: skip


@pytest.fixture
def ours(cluster: RocketmqCluster) -> Iterator[Cluster]:
    with Cluster(ClusterSettings(name_servers=cluster.name_servers, timeout_ms=5_000)) as connected:
        yield connected


def produced(
    ours: Cluster, cluster: RocketmqCluster, topic: str, times: list[int], first: int = 0
) -> list[StoredMessage]:
    """Messages that were retried so many times, as they are stored. `first`: the number of the first one."""
    cluster.create_topic(topic, 1)
    for number, retried in enumerate(times, first):
        properties = {"UNIQ_KEY": f"{number:032X}", "KEYS": "k", "TAGS": "TagA", "a": "b"}
        command = single_request(
            ours, MessageQueue(topic, "broker-a", 0), b"bill %d" % number, encode_properties(properties).decode(),
            group="producers", flag=9, born_ms=1_700_000_000_000 + number, reconsume_times=retried,
        )  # fmt: skip
        ours.call_broker("broker-a", command)
    return stored(ours, topic, first + len(times))[first:]


def stored(ours: Cluster, topic: str, expected: int) -> list[StoredMessage]:
    """The messages in queue 0 of a topic, as soon as there are so many."""
    queue = MessageQueue(topic, "broker-a", 0)
    until(lambda: queue_ranges(ours, [queue])[queue].max_offset >= expected, f"{topic} has too few")
    limits = queue_ranges(ours, [queue])[queue]
    found = []
    for frames in read_range(ours, queue, limits.min_offset, limits.max_offset):
        positions, sizes = frames_of_answer(frames)
        for position, size in zip(positions.tolist(), sizes.tolist(), strict=True):
            found.append(decode_frame(memoryview(frames), position, position + size))
    return found


def rows(messages: list[StoredMessage], levels: list[int], reasons: list[bool]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {
                "brokerName": "broker-a", "commitLogOffset": message.commit_log_offset, "msgId": message.msg_id,
                "delayLevel": level, "properties": list(REASONS.items()) if has_reasons else None,
            }
            for message, level, has_reasons in zip(messages, levels, reasons, strict=True)
        ],
        ROWS,
    )  # fmt: skip


def send_back(ours: Cluster, group: str, batch: pa.RecordBatch) -> SendBackReport:
    settings = SendBackSettings(group, settle_ms=1_200, send_timeout_ms=20_000)
    with SendBackTask(ours, settings, WritePart(f"back/{group}/query", 0, 0)) as task:
        task.write(batch)
        return task.finish()


def test_both_requests_send_back_and_java_gets_the_message_again(
    cluster: RocketmqCluster, ours: Cluster, new_name: NewName
) -> None:
    topic, group = new_name("Orders"), new_name("retriers")
    messages = produced(ours, cluster, topic, [0, 0, 0, 0, 15, 16, 15, 16])
    batch = rows(messages, [1, 1, -1, -1, 1, 1, 1, 1], [False, True, True, False, True, True, False, False])
    began = time.monotonic()
    assert send_back(ours, group, batch) == SendBackReport(8, 0, 0, {})
    again = stored(ours, f"%RETRY%{group}", 4)
    assert time.monotonic() - began > 0.9, "delay level 1 is a second"
    dead = stored(ours, f"%DLQ%{group}", 4)
    assert {one.body: one.reconsume_times for one in again} == {
        b"bill 0": 1, b"bill 1": 1, b"bill 4": 16, b"bill 6": 16
    }  # fmt: skip
    assert {one.body: one.reconsume_times for one in dead} == {
        b"bill 2": 1, b"bill 3": 1, b"bill 5": 17, b"bill 7": 17
    }  # fmt: skip
    for copy in again + dead:
        original = messages[int(copy.body.split()[1])]
        assert (copy.flag, copy.born_timestamp_ms) == (9, original.born_timestamp_ms)
        assert {name: copy.properties[name] for name in ("UNIQ_KEY", "KEYS", "TAGS", "a")} == {
            name: original.properties[name] for name in ("UNIQ_KEY", "KEYS", "TAGS", "a")
        }
        assert copy.properties["RETRY_TOPIC"] == topic
        assert copy.properties["ORIGIN_MESSAGE_ID"] == original.offset_msg_id
        has_reasons = copy.body in (b"bill 1", b"bill 2", b"bill 4", b"bill 5")
        assert copy.properties.get("PYRMQ_ERROR_CLASS") == ("ValueError" if has_reasons else None)
    # A repetition finds all of them, whichever way they went.
    assert send_back(ours, group, batch) == SendBackReport(0, 8, 0, {})
    with Witness(cluster) as java:
        java.ask("push", group=group, topic=topic)
        got = java.ask("received", count=12, timeoutMs=60_000)
    retried = {one["body"]: one["reconsumeTimes"] for one in got if one["reconsumeTimes"] in (1, 16)}
    assert retried["bill 0"] == retried["bill 1"] == 1
    assert Counter(one["body"] for one in got) == Counter(
        [*(f"bill {number}" for number in range(8)), "bill 0", "bill 1", "bill 4", "bill 6"]
    )


PROGRAM = """
import os, sys
sys.path[:0] = sys.argv[4:]
from cluster import test_retry_tools as tools
from rmq_store.client.delivery import deliver

point, name_server, group = sys.argv[1:4]
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings

topic = group.replace("retriers", "Orders")
ours = Cluster(ClusterSettings.of_text(name_server))
messages = tools.stored(ours, topic, 100)
outcome, seen = deliver.Delivery._outcome, [0]

def counting(self, *arguments):
    found = outcome(self, *arguments)
    seen[0] += 1
    if seen[0] == int(point):
        os._exit(9)
    return found

deliver.Delivery._outcome = counting
tools.send_back(ours, group, tools.mixed(messages))
os._exit(9)
"""


def mixed(messages: list[StoredMessage]) -> pa.RecordBatch:
    """Every kind of send-back: by number and with reasons, to the retry topic and to the dead letters."""
    count = len(messages)
    return rows(messages, [(1, -1)[at // 2 % 2] for at in range(count)], [bool(at % 2) for at in range(count)])


@pytest.mark.slow
@pytest.mark.parametrize("point", [1, 40, 100])
def test_a_process_that_dies_in_a_batch_of_send_backs_loses_none_and_sends_none_twice(
    cluster: RocketmqCluster, ours: Cluster, new_name: NewName, point: int
) -> None:
    group = new_name("retriers")
    messages = produced(ours, cluster, group.replace("retriers", "Orders"), [0] * 100)
    died = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(point), cluster.name_server, group, str(ROOT / "tests")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "storage")}, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip
    assert died.returncode == 9, died.stderr
    report = send_back(ours, group, mixed(messages))
    assert report.found >= point
    assert report.found + report.rows == 100
    again, dead = stored(ours, f"%RETRY%{group}", 50), stored(ours, f"%DLQ%{group}", 50)
    assert Counter(one.body for one in again + dead) == Counter(one.body for one in messages)
