"""The recipe of docs/kafka.md: Spark's own source for Kafka, and our sink."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench import kafka_broker
from helpers.kafka_server import KafkaServer
from rmq_store import Store

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_sparks_source_for_kafka_feeds_our_sink_once_each(kafka: KafkaServer, scratch: Path) -> None:
    from kafka import KafkaProducer

    topic = kafka.new_topic("from-kafka", partition_count=2)
    jars = ",".join(str(jar) for jar in sorted((kafka_broker.TARGET / "connector").iterdir()))
    settings = f"--jars {jars} --master local[2] --driver-memory 1g --conf spark.ui.enabled=false pyspark-shell"
    environment = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("storage", "connector")),
        "PYSPARK_SUBMIT_ARGS": settings,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TMPDIR": str(scratch),
    }
    Store.open(scratch / "store", create=True).close()
    with Store.open(scratch / "store") as store:
        store.create_topic(topic, queue_count=2)

    def produce(transactional_id: str, *values: bytes, commit: bool = True) -> None:
        producer = KafkaProducer(bootstrap_servers=kafka.address, transactional_id=transactional_id)
        producer.init_transactions()
        producer.begin_transaction()
        for number, value in enumerate(values):
            headers = [("trace", b"1"), ("empty", b""), ("trace", value)]
            producer.send(topic, value, b"ORD-%d" % number, headers, partition=number % 2)
        producer.flush()
        producer.commit_transaction() if commit else producer.abort_transaction()
        producer.close()

    def mirrored() -> list[str]:
        arguments = [kafka.address, topic, str(scratch / "store"), str(scratch / "checkpoint")]
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples" / "from_kafka.py"), *arguments],
            cwd=scratch, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return [re.sub("'UNIQ_KEY': '[0-9A-F]+', ", "", line) for line in done.stdout.splitlines() if "ORD-" in line]

    produce("first", b"two teas", b"one milk")
    produce("first", b"never", commit=False)
    once = [
        "0 ORD-0: two teas {'KEYS': 'ORD-0', '__SHARDINGKEY': 'ORD-0', 'trace': 'two teas'}",
        "1 ORD-1: one milk {'KEYS': 'ORD-1', '__SHARDINGKEY': 'ORD-1', 'trace': 'one milk'}",
    ]
    assert mirrored() == once
    produce("first", b"a cake")
    assert mirrored() == [once[0], once[0].replace("two teas", "a cake"), once[1]]
