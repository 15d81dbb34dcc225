"""`rmq mirror kafka-to-rmq`: what it says on a terminal and in a pipe, its exit statuses, and how it is stopped."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from helpers.kafka_server import KafkaServer
from helpers.kafka_upstream import numbered, produce
from rmq_store import Store
from rmq_store.bridge.positions.store_positions import StorePositions
from rmq_store.cli import commands

PATIENCE_S = 60.0


class Mirror:
    """The command on a store of its own."""

    def __init__(self, kafka: KafkaServer, root: Path) -> None:
        self.kafka = kafka
        self.root = root
        Store.open(root, create=True).close()

    def words(self, *words: str) -> list[str]:
        return [
            "mirror", "kafka-to-rmq", str(self.root), "--name", "in", "--cluster-id", "rmq-eu", "--create-topics",
            "--bootstrap-servers", self.kafka.address, *words,
        ]  # fmt: skip

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(commands, self.words(*words), prog_name="rmq", catch_exceptions=False)

    def start(self, *words: str, **streams: int) -> subprocess.Popen[bytes]:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "TERM": "xterm"}
        command = [sys.executable, "-c", "from rmq_store.cli import main; main()", *self.words(*words)]
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, **streams)

    def count(self, topic: str, queue_id: int = 0) -> int:
        with Store.open(self.root, read_only=True) as store:
            return store.queue_range(topic, queue_id).max_offset


@pytest.fixture
def mirror(kafka: KafkaServer, scratch: Path) -> Iterator[Mirror]:
    yield Mirror(kafka, scratch / "store")


def wait_for(is_done: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_done():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_a_run_that_ends_says_in_one_line_what_it_did(mirror: Mirror) -> None:
    topic = mirror.kafka.new_topic()
    produce(mirror.kafka, topic, numbered(10))
    result = mirror.run("--topics", topic, "--once")
    assert (result.exit_code, result.stderr) == (0, "")
    assert re.fullmatch(r"in: 10 copied, lag 0, \d+/s; caught up\n", result.stdout)


def test_json_has_counts_and_each_partition(mirror: Mirror, tmp_path: Path) -> None:
    topic = mirror.kafka.new_topic(partition_count=2)
    produce(mirror.kafka, topic, numbered(10), partition=1)
    result = mirror.run("--topics", topic, "--once", "--json", "--metrics", str(tmp_path / "m.prom"))
    assert result.exit_code == 0
    told = json.loads(result.stdout.splitlines()[-1])
    assert (told["copied"], told["lag"], told["caughtUp"], told["letters"]) == (10, 0, True, 0)
    assert told["partitions"] == [
        {"topic": topic, "partition": n, "position": end, "stableEnd": end, "lag": 0, "failure": None}
        for n, end in enumerate((0, 10))
    ]
    assert (
        'rmq_mirror_copied_records_total{mirror="in",direction="kafka-to-rmq"} 10.0'
        in (tmp_path / "m.prom").read_text()
    )


@pytest.mark.slow
def test_a_partition_that_has_stopped_is_told_and_ends_with_status_1(mirror: Mirror) -> None:
    topic = mirror.kafka.new_topic(partition_count=2)
    mirror.run("--topics", topic, "--once")
    with Store.open(mirror.root) as store:
        positions = StorePositions(store, "in", mirror.kafka.cluster_id)
        known = positions.read(topic)
        assert known is not None
        positions.advance(known, 0, known.partitions[0], next_offset=40, leader_epoch=-1)
    produce(mirror.kafka, topic, numbered(5), partition=1)
    result = mirror.run("--topics", topic, "--once")
    assert result.exit_code == 1
    assert "shorter than it was" in result.stderr
    assert "5 copied" in result.stdout and "1 partitions stopped" in result.stdout


def test_options_that_contradict_each_other_are_the_callers_mistake(mirror: Mirror) -> None:
    for words, told in (
        ([], "a mirror needs topics"),
        (["--topics", "no-such"], "the source has no topic 'no-such'"),
        (["--topics", "x", "--kafka", "sasl_plain_password=secret-word"], "env:NAME or file:/path"),
        (["--topics", "x", "--kafka", "acks=1"], "unknown option of Kafka's client 'acks'"),
        (["--topics", "x", "--kafka", "secret-word"], "NAME=VALUE is expected"),
    ):
        result = mirror.run(*words)
        assert result.exit_code == 2 and told in result.stderr
        assert "secret-word" not in result.output


def test_settings_come_from_a_file_and_the_command_line_wins(mirror: Mirror, tmp_path: Path) -> None:
    topic = mirror.kafka.new_topic()
    file = tmp_path / "client.properties"
    file.write_text("# of the tests\nsecurity_protocol = SSL\nclient_id=tests\n")
    assert mirror.run("--topics", topic, "--once", "--kafka-file", str(file), "--kafka",
                      "security_protocol=PLAINTEXT").exit_code == 0  # fmt: skip


@pytest.mark.slow
def test_a_mirror_runs_until_sigterm_and_ends_well(mirror: Mirror) -> None:
    topic = mirror.kafka.new_topic()
    with mirror.start("--topics", topic, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            produce(mirror.kafka, topic, numbered(10))
            wait_for(lambda: mirror.count(topic) == 10)
            produce(mirror.kafka, topic, numbered(5))
            wait_for(lambda: mirror.count(topic) == 15)
        finally:
            process.send_signal(signal.SIGTERM)
        out, err = process.communicate()
    # In a pipe nothing but the last line.
    assert (process.returncode, err) == (0, b"")
    assert re.fullmatch(r"in: 15 copied, lag \d+, \d+/s; [a-z ]+\n", out.decode())


@pytest.mark.slow
def test_a_terminal_has_a_line_with_lag_and_rate(mirror: Mirror) -> None:
    topic = mirror.kafka.new_topic()
    produce(mirror.kafka, topic, numbered(10))
    controller, terminal = pty.openpty()
    process = mirror.start("--topics", topic, stdout=terminal, stderr=terminal)
    os.close(terminal)
    shown = b""
    try:
        while b"10 copied, lag 0" not in shown:
            shown += os.read(controller, 4096)
    finally:
        process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 0
    os.close(controller)
    assert re.search(rb"\rin: 10 copied, lag 0, \d+/s; caught up", shown)


@pytest.mark.slow
def test_another_mirror_of_the_name_ends_it_with_status_4(mirror: Mirror) -> None:
    topic = mirror.kafka.new_topic()
    with mirror.start("--topics", topic, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            produce(mirror.kafka, topic, numbered(3))
            wait_for(lambda: mirror.count(topic) == 3)
            with Store.open(mirror.root) as store:
                positions = StorePositions(store, "in", mirror.kafka.cluster_id)
                known = positions.read(topic)
                assert known is not None
                positions.advance(known, 0, known.partitions[0], next_offset=4, leader_epoch=-1)
            produce(mirror.kafka, topic, numbered(3))
            assert process.wait(PATIENCE_S) == 4
        finally:
            process.kill()
        _, err = process.communicate()
    assert b"another mirror named 'in' has written" in err
    assert mirror.count(topic) == 3
