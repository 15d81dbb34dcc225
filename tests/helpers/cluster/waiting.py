"""Ports of loopback for brokers, and waiting for what other processes do."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from helpers.server_process import ServerError

PATIENCE_S = 150.0
# Below the ports that Linux gives to outgoing connections, so that nobody takes the port of a broker that is down.
PORTS = range(12_000, 32_000, 10)
# A broker listens on p-2 and p, and for its slaves on p+1.
USED_BESIDE = (-2, 0, 1)
# As /proc/net/tcp writes it.
ESTABLISHED = "01"


def until(fulfilled: Callable[[], bool], complaint: str, patience_s: float = PATIENCE_S) -> None:
    """Wait until something holds. Raises `ServerError`."""
    deadline_s = time.monotonic() + patience_s
    while not fulfilled():
        if time.monotonic() > deadline_s:
            raise ServerError(f"after {patience_s:.0f} s: {complaint}")
        time.sleep(0.05)


def connected(port: int) -> int:
    """How many established connections a port of this machine has, seen from its server."""
    count = 0
    for table in ("tcp", "tcp6"):
        for line in (Path("/proc/net") / table).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            count += int(local.rpartition(":")[2], 16) == port and state == ESTABLISHED
    return count


def free_ports(count: int) -> Iterator[int]:
    """Ports of loopback whose neighbours are free, too, 10 apart or more."""
    candidates = random.SystemRandom().sample(PORTS, len(PORTS))
    for port in candidates:
        if count and all(_free(port + beside) for beside in USED_BESIDE):
            count -= 1
            yield port


def _free(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
