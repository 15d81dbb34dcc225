"""The released Kafka as a yardstick: one broker on loopback, and Spark's own connector for it.

bench/kafka names the jars; Maven fetches them once, into bench/kafka/target.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
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
CLUSTER_ID = "pyspark-rmq-bench-0000"
# A process that ends with its input, and so with us whatever happens to us.
_ENDS_WITH_INPUT = 'end() { kill $java; wait $java; }; "$@" & java=$!; cat > /dev/null; end'


def add_connector(spark: SparkSession) -> None:
    """From now on this session has `format("kafka")`. Raises `PeerError`."""
    build()
    for jar in sorted((TARGET / "connector").iterdir()):
        spark.sql(f"ADD JAR '{jar}'")


@contextlib.contextmanager
def broker(directory: Path, *others: str) -> Iterator[str]:
    """A broker for a `with` block, its log below `directory`: the address for clients. `others`: lines of its settings.
    Raises `PeerError`.
    """
    build()
    port = free_port()
    address, settings = f"127.0.0.1:{port}", directory / "server.properties"
    settings.write_text(settings_text(address, f"127.0.0.1:{port - 2}", directory / "kafka", *others))
    with (directory / "broker.log").open("w+") as log:
        if subprocess.run(format_command(settings, CLUSTER_ID, HEAP), stdout=log, stderr=log).returncode:
            raise _failed(log, "its storage could not be formatted")
        command = ["sh", "-c", _ENDS_WITH_INPUT, "sh", *broker_command(settings, HEAP)]
        # A session of its own, as a service has: Linux shares the processors between sessions first.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)
        try:
            _await(port, log)
            yield address
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(STOP_S)


def build(version: str = "") -> None:
    """Fetch the jars, unless that was done: of the project's version of Kafka, or of another. Raises `PeerError`."""
    if not version:
        built(PROJECT, STAMP, "the released Kafka")
        return
    properties = (f"kafka.version={version}", f"broker.directory=broker-{version}")
    built(PROJECT, TARGET / f"built-{version}", f"Kafka {version}", properties)


def format_command(settings: Path, cluster_id: str, options: Sequence[str], version: str = "") -> list[str]:
    """The program that makes the storage of a broker; `options` are Java's."""
    return _java(options, ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(settings)], version)


def broker_command(settings: Path, options: Sequence[str], version: str = "") -> list[str]:
    """The broker itself, in the foreground."""
    return _java(options, ["kafka.Kafka", str(settings)], version)


def zookeeper_command(settings: Path, options: Sequence[str], version: str) -> list[str]:
    """The ZooKeeper of old brokers, in the foreground."""
    return _java(options, ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(settings)], version)


def settings_text(address: str, controller: str, logs: Path, *others: str) -> str:
    """One node that is broker and controller; everything as released that `others` do not set."""
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
        *others,
    ))  # fmt: skip


def _java(options: Sequence[str], arguments: Sequence[str], version: str = "") -> list[str]:
    directory = TARGET / (f"broker-{version}" if version else "broker")
    return ["java", *options, "-cp", f"{directory}/*", *arguments]


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


if __name__ == "__main__":
    for asked in sys.argv[1:] or [""]:
        build(asked)
