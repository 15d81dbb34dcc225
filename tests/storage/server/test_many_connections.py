"""A crowd of connections leaves the store the files that it needs."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.cluster import requests
from helpers.cluster.asking import Connection
from rmq_store.server.transport.limits import ListenerLimits

FILES = 512
CROWD = 600


@pytest.mark.parametrize(
    ("files", "expected"),
    [(resource.RLIM_INFINITY, 20_000), (1 << 20, 20_000), (4096, 3072), (1024, 512), (256, 128)],
)
def test_connections_leave_descriptors_to_the_store(files: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert ListenerLimits().connections_that_fit() == expected
    assert ListenerLimits(connections_max=7).connections_that_fit() == 7


def test_a_topic_can_be_made_whatever_number_of_clients_connects(scratch: Path) -> None:
    port_file = scratch / "port"
    command = "from rmq_store.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", command, "broker", "run", "--ephemeral", "--port-file", str(port_file)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES)),
    ) as server:  # fmt: skip
        try:
            end_s = time.monotonic() + 60
            while not (port_file.exists() and port_file.read_text()):
                assert server.poll() is None and time.monotonic() < end_s
                time.sleep(0.01)
            address = port_file.read_text().strip()
            host, _, port = address.rpartition(":")
            with Connection(address) as client, contextlib.ExitStack() as crowd:
                requests.send(client, "First")
                for _ in range(CROWD):
                    crowd.enter_context(socket.create_connection((host, int(port)), 20))
                # Whoever is answered comes behind the crowd: the server has seen all of it.
                for number in range(8):
                    assert requests.send(client, f"Topic{number}").code == 0
        finally:
            server.terminate()
