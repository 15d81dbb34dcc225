"""The ceiling of pulls: a loop in C that sends the same requests over one connection, and drops the answers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from rmq_store import cluster as engine
from rmq_store.protocol.wire.frames import encode_command
from rmq_store.remoting.cluster.pulling import LANES, LANES_FACTOR


class Fetched(NamedTuple):
    """What a loop took, and how many answers and bytes it got."""

    duration_s: float
    processor_s: float
    answers: int
    received_bytes: int



def fetch(
    program: Path, cluster: engine.Cluster, queue: engine.MessageQueue, offsets: Iterable[int], per_pull: int
) -> Fetched:
    """Pull `per_pull` messages of the queue at each of the offsets. Raises CalledProcessError: an answer has none."""
    requests = program.with_suffix(".requests")
    pulls = engine.PullRequests(cluster, queue)
    with requests.open("wb") as file:
        for number, offset in enumerate(offsets):
            command = pulls.request(offset, per_pull)
            command.opaque = number
            file.write(encode_command(command))
    host, _, port = cluster.address(queue.broker_name).rpartition(":")
    told = subprocess.run(
        [str(program), host, port, str(requests), str(LANES * LANES_FACTOR)], check=True, capture_output=True, text=True
    ).stdout.split()  # fmt: skip
    return Fetched(float(told[0]), float(told[1]), int(told[2]), int(told[3]))
