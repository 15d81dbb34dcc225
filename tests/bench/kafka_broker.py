"""The released Kafka as a yardstick: one broker on loopback, and Spark's own connector for it.

bench/kafka names the jars; Maven fetches them once, into bench/kafka/target.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from bench.null_source import PARTITIONS
from bench.peer import PeerError, built, free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROJECT = Path(__file__).parent / "kafka"
TARGET = PROJECT / "target"
STAMP = TARGET / "built"

HEAP = ("-Xms1g", "-Xmx1g")
START_S = 60
STOP_S = 60

# Any will do: 22 characters of base 64.
_CLUSTER_ID = "pyspark-rmq-bench-0000"
# A process that ends with its input, and so with us whatever happens to us.
_ENDS_WITH_INPUT = 'end() { kill $java; wait $java; }; "$@" & java=$!; cat > /dev/null; end'


def add_connector(spark: SparkSession) -> None:
    """From now on this session has `format("kafka")`. Raises `PeerError`."""
    built(PROJECT, STAMP, "the released Kafka")
    for jar in sorted((TARGET / "connector").iterdir()):
        spark.sql(f"ADD JAR '{jar}'")


@contextlib.contextmanager
def broker(directory: Path) -> Iterator[str]:
    """A broker for a `with` block, its log below `directory`: the address for clients. Raises `PeerError`."""
    built(PROJECT, STAMP, "the released Kafka")
    port = free_port()
    address, settings = f"127.0.0.1:{port}", directory / "server.properties"
    settings.write_text(_settings(address, f"127.0.0.1:{port - 2}", directory / "kafka"))
    with (directory / "broker.log").open("w+") as log:
        format_storage = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(settings)]
        if subprocess.run(_java(format_storage), stdout=log, stderr=log).returncode:
            raise _failed(log, "its storage could not be formatted")
        command = ["sh", "-c", _ENDS_WITH_INPUT, "sh", *_java(["kafka.Kafka", str(settings)])]
        # A session of its own, as a service has: Linux shares the processors between sessions first.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)
        try:
            _await(port, log)
            yield address
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(STOP_S)


def _java(arguments: list[str]) -> list[str]:
    return ["java", *HEAP, "-cp", f"{TARGET / 'broker'}/*", *arguments]


def _settings(address: str, controller: str, logs: Path) -> str:
    """One node that is broker and controller; everything else as released."""
    return "\n".join((
        "process.roles=broker,controller",
        "node.id=1",
        f"controller.quorum.voters=1@{controller}",
        "controller.listener.names=CONTROLLER",
        f"listeners=PLAINTEXT://{address},CONTROLLER://{controller}",
        f"advertised.listeners=PLAINTEXT://{address}",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        f"log.dirs={logs}",
        f"num.partitions={PARTITIONS}",
        "offsets.topic.replication.factor=1",
    ))  # fmt: skip


def _await(port: int, log: TextIO) -> None:
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise _failed(log, f"it did not listen within {START_S} s")


def _failed(log: TextIO, what: str) -> PeerError:
    log.seek(0)
    return PeerError(f"Kafka: {what}. {' '.join(log.read().splitlines()[-3:])}")
