"""A process that dies at a named point of a write, and the repetition of its part by another one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.cluster.brokers import RocketmqCluster
from rmq_store.client.cluster_sink.records import WritePart

from .test_sink import bodies, connected, send, shuffled, stored

ROOT = Path(__file__).resolve().parents[2]

ROWS = [f"row {number % 50}" for number in range(120)]

# Each ends the process at one point: what is stored then.
POINTS = {
    "recorded, nothing sent": 0,
    "sent, answer not seen": 120,
    "in the middle of the rows": 70,
    "all stored, not reported": 120,
}

PROGRAM = """
import os, sys
import pyarrow as pa
from rmq_store.client.cluster_sink import pipeline
from rmq_store.client.cluster_sink.records import WritePart
from rmq_store.client.cluster_sink.row_encoder import EncoderSettings
from rmq_store.client.cluster_sink.task import SinkSettings, SinkTask
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings

point, name_server, topic = sys.argv[1:]
rows = [f"row {number % 50}" for number in range(120)]
if point == "recorded, nothing sent":
    pipeline.Pipeline._submit = lambda *ignored: os._exit(9)
elif point == "sent, answer not seen":
    pipeline.Pipeline._take = lambda *ignored: os._exit(9)
cluster = Cluster(ClusterSettings.of_text(name_server))
task = SinkTask(cluster, SinkSettings(EncoderSettings(topic)), WritePart(topic, 0, 0))
def batch(texts):
    return pa.RecordBatch.from_pydict({"body": pa.array([text.encode() for text in texts])})
task.write(batch(rows[:70] if point == "in the middle of the rows" else rows))
task.finish()
os._exit(9)
"""


@pytest.mark.parametrize(
    "point", [name if stored == 70 else pytest.param(name, marks=pytest.mark.slow) for name, stored in POINTS.items()]
)
@pytest.mark.parametrize("attempt", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_repetition_stores_each_row_once_wherever_the_first_one_died(
    cluster: RocketmqCluster, new_name: Callable[[str], str], point: str, attempt: int
) -> None:
    topic = new_name("Kill")
    died = subprocess.run(
        [sys.executable, "-c", PROGRAM, point, cluster.name_server, topic],
        env={**os.environ, "PYTHONPATH": str(ROOT / "storage")},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert died.returncode == 9, died.stderr
    with connected(cluster) as ours:
        send(ours, topic, bodies("of another one"), WritePart("foreign", 0, 0))
        report = send(ours, topic, bodies(*shuffled()), WritePart(topic, 0, 0))
        assert report.skipped == POINTS[point]
        assert report.repeated
        found = Counter(row["body"].decode() for row in stored(ours, topic, 121))
    assert found == Counter([*ROWS, "of another one"])
