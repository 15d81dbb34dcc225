"""What the commands of `rmq mirror` print, with a real Kafka on the other side."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from helpers.kafka_server import KafkaServer
from helpers.kafka_upstream import produce
from rmq_store import Message, Store
from rmq_store.bridge.kafka.client import Partition
from rmq_store.bridge.kafka.connect import open_administration
from rmq_store.bridge.kafka.connection import KafkaConnection

Run = Callable[..., Result]

EXPECTED = Path(__file__).parent / "expected"
LETTER = [
    ("__connect.errors.topic", b"kept-orders"), ("__connect.errors.partition", b"1"),
    ("__connect.errors.exception.class.name", b"org.apache.kafka.connect.errors.DataException"),
    ("__connect.errors.exception.message", b"not JSON"),
]  # fmt: skip


@pytest.mark.slow
def test_the_texts_of_the_mirrors_are_as_kept(run: Run, kafka: KafkaServer, scratch: Path) -> None:
    for topic, partition_count in {"kept-orders": 2, "kept-letters": 1, "kept-failed": 1}.items():
        kafka.create_topic(topic, partition_count=partition_count)
    produce(kafka, "kept-orders", [(b"k", b"tea", []), (b"k", b"milk", [])], partition=1)
    produce(kafka, "kept-letters", [(b"k", b"not json", LETTER), (None, b"of nobody", [])])
    produce(kafka, "kept-failed", [(b"k", b"later", [])])
    with contextlib.closing(open_administration(KafkaConnection([kafka.address], {}))) as administration:
        administration.commit_group_offsets("kept", {Partition("kept-orders", 1): 1})
    root = scratch / "store"
    with Store.open(root, create=True) as store:
        store.create_topic("Bills", queue_count=1)
        store.send(Message("Bills", b"12.50"))
    at = ("--bootstrap-servers", kafka.address)
    cluster = ("--cluster-id", "rmq-tests")

    def check(name: str, *arguments: str, status: int = 0) -> None:
        result = run("mirror", *arguments, *at, store=root)
        assert result.exit_code == status, result.output
        text = re.sub(r"\d+/s", "N/s", result.stdout.replace(kafka.address, "KAFKA").replace(str(root), "STORE"))
        assert text == (EXPECTED / f"mirror-{name}.txt").read_text(encoding="utf-8")

    into = ("kafka-to-rmq", "--name", "in", *cluster, "--topics", "kept-orders", "--create-topics", "--once")
    check("kafka-to-rmq", *into)
    out = ("rmq-to-kafka", "--name", "out", *cluster, "--topics", "Bills", "--create-topics", "--once")
    check("rmq-to-kafka", *out, "--replication-factor", "1")
    moving = ("offsets", "--to", "rmq", "--name", "in", *cluster, "-g", "kept", "--uncommitted", "start", "--dry-run")
    check("offsets", *moving)
    letters = ("dead-letters", *cluster, "--topics", "kept-letters", "--group", "kept", "--once")
    check("dead-letters", *letters)
    check("redrive", "redrive", "kept", "--to-topic", "kept-orders", "--dry-run")
    check("retry", "retry", "ladder", *cluster, "--failed", "kept-failed", "--topic", "kept-orders", "--once")
