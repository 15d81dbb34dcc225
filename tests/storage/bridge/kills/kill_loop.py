"""Kills a mirror, and its Kafka, again and again while it copies. What must hold afterwards is for the caller to judge.

    tally = kill_loop(start, progress, kafka, mirror_kills=5, broker_kills=5, chance=random.Random(1))

`start` starts the mirror as a process of its own, `progress` says how many records are at the target; both for either
direction. A broker is killed with SIGKILL and started again on its directory; the mirror must live through that.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kafka import KafkaConsumer, TopicPartition

from helpers.kafka_server import KafkaServer

PATIENCE_S = 120.0
POLL_S = 0.02
STEP_ROWS = 3_000
# A mirror may also be killed while it starts, but for the last time: few kills would else meet no copying by chance.
EARLY_SHARE = 0.15


@dataclass
class Tally:
    """What was done. `in_progress`: kills of a mirror that had copied something since it was started."""

    mirror_kills: int = 0
    broker_kills: int = 0
    in_progress: int = 0


def kill_loop(
    start: Callable[[], subprocess.Popen[bytes]],
    progress: Callable[[], int],
    kafka: KafkaServer,
    *,
    mirror_kills: int,
    broker_kills: int,
    chance: random.Random,
    explain: Callable[[], str] = str,
) -> Tally:
    """Kill so often, in any order, each time after some records more; nothing of the mirror runs on return. `explain`:
    what to say of a mirror that does not go on.
    """
    tally = Tally()
    todo = ["mirror"] * mirror_kills + ["broker"] * broker_kills
    chance.shuffle(todo)
    process = start()
    try:
        for what in todo:
            began = progress()
            is_last = tally.mirror_kills == mirror_kills - 1
            if what == "mirror" and chance.random() < EARLY_SHARE and not is_last:
                time.sleep(chance.random())
            else:
                _await(process, progress, began + chance.randrange(1, STEP_ROWS), explain)
            time.sleep(chance.random() * 0.05)
            _refuse_ended(process)
            if what == "mirror":
                tally.mirror_kills += 1
                tally.in_progress += progress() > began
                process.kill()
                process.wait()
                process = start()
            else:
                tally.broker_kills += 1
                kafka.kill()
                time.sleep(chance.random())
                kafka.start()
        # It has lived through the last one as well.
        _await(process, progress, progress() + 1, explain)
    finally:
        process.kill()
        process.wait()
    return tally


def mirror_process(arguments: list[str], log: Path, *, program: str | None = None) -> subprocess.Popen[bytes]:
    """`rmq mirror ARGUMENTS` of this checkout; `program`: Python instead of `rmq`, with the same arguments."""
    code = program or "from rmq_store.cli import main; main()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-c", code, "mirror", *arguments], env=environment, stdin=subprocess.DEVNULL,
            stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip


@contextlib.contextmanager
def writing(kafka: KafkaServer, topic: str, partition_count: int, seed: int) -> Iterator[None]:
    """Somebody writes to a Kafka topic during the block; on return all of it is settled."""
    command = [str(Path(__file__).with_name("writer.py")), kafka.address, topic, str(partition_count), str(seed)]
    process = subprocess.Popen(
        [sys.executable, *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    settle(kafka, topic, partition_count)


def settle(kafka: KafkaServer, topic: str, partition_count: int) -> None:
    """Wait until no transaction is open: Kafka ends those of a dead writer."""
    places = [TopicPartition(topic, partition) for partition in range(partition_count)]
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        stable, high = ends_of(kafka, places)
        if stable == high:
            return
        time.sleep(0.5)
    raise AssertionError(f"a transaction is still open: {stable} {high}")


def ends_of(kafka: KafkaServer, places: list[TopicPartition]) -> list[dict[TopicPartition, int]]:
    """The last stable offset of each, and its high watermark."""
    found = []
    for level in ("read_committed", "read_uncommitted"):
        consumer = KafkaConsumer(bootstrap_servers=kafka.address, isolation_level=level, enable_auto_commit=False)
        found.append(consumer.end_offsets(places))
        consumer.close()
    return found


def committed(kafka: KafkaServer, topic: str, partition: int) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) of all committed records, as kafka-python itself reads them."""
    place = TopicPartition(topic, partition)
    consumer = KafkaConsumer(
        bootstrap_servers=kafka.address, isolation_level="read_committed", auto_offset_reset="none",
        enable_auto_commit=False, max_poll_records=100_000,
    )  # fmt: skip
    consumer.assign([place])
    consumer.seek(place, consumer.beginning_offsets([place])[place])
    end = consumer.end_offsets([place])[place]
    found: list[tuple[int, bytes | None, bytes | None]] = []
    while consumer.position(place) < end:
        found += [(record.offset, record.key, record.value) for record in consumer.poll(1000).get(place, ())]
    consumer.close()
    return found


def _await(
    process: subprocess.Popen[bytes], progress: Callable[[], int], wanted: int, explain: Callable[[], str]
) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while progress() < wanted:
        _refuse_ended(process)
        if time.monotonic() > deadline_s:
            raise AssertionError(f"{progress()} records after {PATIENCE_S} s, {wanted} are expected. {explain()}")
        time.sleep(POLL_S)


def _refuse_ended(process: subprocess.Popen[bytes]) -> None:
    if (code := process.poll()) is not None:
        raise AssertionError(f"the mirror has ended by itself, with {code}; see its log")
