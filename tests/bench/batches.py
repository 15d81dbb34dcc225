"""Batch sends over the network, as the sink sends them, to a server that keeps nothing: processor time of the sending
thread for 100 messages, three ways in the same minutes. The bare C loop copies as many bytes into requests and sends
them (batch_floor.c); the other two are the sink with its rows made in one pass, and by way of frames. Three rounds, of
bodies of 100 B and of 1 KiB:

    PYTHONPATH=tests python -m bench.batches
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pyarrow as pa

from bench.bare_loop import built
from bench.messages import BODY_BYTES, TOPIC, plain
from rmq_store import cluster as engine
from rmq_store.client.cluster_sink.task import SinkTask
from rmq_store.format.batches.row_entries import RowEntries

ROUNDS = 3
MESSAGES = 100_000
PER_BATCH = 100
BATCH_ROWS = 16_384
QUEUES = 4


class OneBroker(engine.Cluster):
    """A cluster of one broker, which needs no name server."""

    def __init__(self, address: str) -> None:
        super().__init__(engine.ClusterSettings.of_text("127.0.0.1:1"))
        self._address = address

    def address(self, broker_name: str, broker_id: int = 0) -> str:
        return self._address



@contextlib.contextmanager
def served(program: Path) -> Iterator[str]:
    """The port of a server that answers, and keeps nothing."""
    with subprocess.Popen([str(program), "serve"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.terminate()


def sink_us(port: str, batches: list[pa.RecordBatch]) -> tuple[float, int, int]:
    """Microseconds of this thread's processor time for all rows; the requests, and the bytes of their bodies."""
    queues = [engine.MessageQueue(TOPIC, "broker-a", number) for number in range(QUEUES)]
    settings = engine.SinkSettings(engine.EncoderSettings(default_topic=TOPIC), replay_check=False)
    with OneBroker(f"127.0.0.1:{port}") as cluster, mock.patch.object(SinkTask, "queues", lambda *_: queues):
        begin = time.thread_time()
        with SinkTask(cluster, settings, engine.WritePart("bench", 0, 0)) as task:
            for batch in batches:
                task.write(batch)
            task.finish()
            used = time.thread_time() - begin
            counts = task._pipeline.counts
    return used * 1e6, counts.requests, counts.bytes


def floor_us(program: Path, port: str, requests: int, sent_bytes: int) -> float:
    """As `sink_us`, of the bare loop: as many requests of as many bytes."""
    command = [str(program), "send", port, str(sent_bytes // requests), str(requests), str(QUEUES)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measured(directory: Path, body_bytes: int, count: int) -> dict[str, float]:
    """Microseconds for PER_BATCH messages, of each way."""
    rows = plain(count, body_bytes)
    batches = [rows.slice(first, BATCH_ROWS) for first in range(0, count, BATCH_ROWS)]
    program = built("batch_floor", directory)
    with served(program) as port:
        sink_us(port, batches[:1])
        extension, requests, sent_bytes = sink_us(port, batches)
        with mock.patch.object(RowEntries, "measured", return_value=None):
            by_frames, *_ = sink_us(port, batches)
        bare = floor_us(program, port, requests, sent_bytes)
    ways = {"bare C loop": bare, "one pass": extension, "by frames": by_frames}
    return {way: used_us * PER_BATCH / count for way, used_us in ways.items()}


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        for _ in range(ROUNDS):
            for body_bytes in BODY_BYTES:
                for way, used_us in measured(Path(scratch), body_bytes, MESSAGES).items():
                    print(f"{body_bytes:5} B  {way:12} {used_us:7.1f} us for {PER_BATCH} messages")


if __name__ == "__main__":
    main()
