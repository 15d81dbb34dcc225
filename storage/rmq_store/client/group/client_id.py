"""The id of a client in its group: ip@instance. Source: ClientConfig.java (buildMQClientId)."""

from __future__ import annotations

import os
import socket

from rmq_store import real_time

# TEST-NET-1: connecting a datagram socket sends nothing, but chooses the address we would send from.
_ANYWHERE = ("192.0.2.1", 9)


def make_client_id(instance_name: str | None, *, is_broadcasting: bool = False, suffix: str = "") -> str:
    """The id. `instance_name` None: generated from the process and the time, or DEFAULT for a broadcasting consumer,
    which must find its offsets again.
    """
    made_up = "DEFAULT" if is_broadcasting else f"{os.getpid()}#{real_time.monotonic_ns()}"
    return f"{_local_ip()}@{instance_name or made_up}{suffix}"


def _local_ip() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ANYWHERE)
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
