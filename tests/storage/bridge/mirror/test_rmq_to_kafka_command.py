"""`rmq mirror rmq-to-kafka` with a real store and a real Kafka."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.kafka_mirrors import fill, values
from helpers.kafka_server import KafkaServer
from rmq_store import Store

TOPIC = "Orders"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "store", create=True) as store:
        store.create_topic(TOPIC, queue_count=2)
        fill(store, TOPIC, [b"a", b"b"], 0)
        fill(store, TOPIC, [b"c"], 1)
    return tmp_path / "store"


def rmq(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from rmq_store.cli import main; main()", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=90)


def words(kafka: KafkaServer, root: Path, name: str, *more: str) -> list[str]:
    return [
        "mirror", "rmq-to-kafka", str(root), "--name", name, "--cluster-id", "rmq-eu", "--bootstrap-servers",
        kafka.address, "--topics", TOPIC, "--rename", f"{TOPIC}={name}", *more,
    ]  # fmt: skip


@pytest.mark.slow
def test_the_command_copies_what_is_there_and_ends(kafka: KafkaServer, root: Path) -> None:
    ended = rmq(*words(kafka, root, "command", "--create-topics", "--once", "--json"))
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["copied"] == 3 and told["caughtUp"] and told["lag"] == 0
    assert values(kafka, "command", 0) == [b"a", b"b"] and values(kafka, "command", 1) == [b"c"]
    again = rmq(*words(kafka, root, "command", "--once"))
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("command: 0 copied, lag 0")


@pytest.mark.slow
def test_a_topic_that_kafka_does_not_have_is_asked_for(kafka: KafkaServer, root: Path) -> None:
    ended = rmq(*words(kafka, root, "missing", "--once"))
    assert ended.returncode == 1
    assert "--create-topics" in ended.stderr


def test_a_cluster_of_brokers_is_refused_by_name(root: Path) -> None:
    ended = rmq(
        "mirror", "rmq-to-kafka", str(root), "--name", "m", "--cluster-id", "r", "--bootstrap-servers", "127.0.0.1:9",
        "--topics", TOPIC, "--namesrv", "127.0.0.1:9876",
    )  # fmt: skip
    assert ended.returncode == 2
    assert "--namesrv" in ended.stderr and "rmq -n ADDRESSES mirror rmq-to-kafka" in ended.stderr
