"""`rmq broker run` for suites, `rmq broker clock`, `rmq namesrv run`: they say where they listen, and leave nothing."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from helpers.patient import PATIENT
from rmq_store import Message, Store, StoreConfig
from rmq_store.cli import commands
from rmq_store.cli.maintenance import broker
from rmq_store.cli.shared.stop_signal import StopSignal
from rmq_store.cli.target.named_target import named
from rmq_store.client import Producer
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.server.broker_server import BrokerServer
from rmq_store.testing.broker import wait_until

EXPECTED = Path(__file__).parent / "expected"


@contextmanager
def running(port_file: Path, *arguments: object, **options: Any) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A command that listens, and its address; killed at the end if it still runs."""
    roots = os.pathsep.join(path for path in sys.path if path)
    code = "from rmq_store.cli import main; main()"
    words = [sys.executable, "-W", "error", "-c", code, *map(str, arguments), "--port-file", str(port_file)]
    process = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": roots}, **options)
    try:
        wait_until(lambda: port_file.exists() or process.poll() is not None, timeout_s=60)
        yield process, port_file.read_text().strip()
    finally:
        process.kill()
        process.communicate()


def rmq(*arguments: object) -> Result:
    return CliRunner().invoke(commands, [*map(str, arguments)])


def routes(address: str) -> list[str]:
    """The brokers' addresses that a name server knows."""
    cluster = Cluster(ClusterSettings.of_text(address))
    try:
        return sorted(cluster.address(name) for name in cluster.broker_names())
    finally:
        cluster.close()


def test_an_ephemeral_broker_ends_with_its_parent_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port_file, place = tmp_path / "port", tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    with running(
        port_file, "broker", "run", "--ephemeral", "--virtual-clock", "--until-stdin-closes",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as (process, address):  # fmt: skip
        (root,) = place.glob("rmq-broker-*/store")
        with Producer("pg", f"rmq://{address}", config=PATIENT) as producer:
            producer.send(Message("Orders", b"later", properties={"DELAY": "18"}))
        before, after = (rmq("broker", "clock", "advance", "--port-file", port_file, by) for by in ("0s", "2h"))
        assert (before.exit_code, after.exit_code) == (0, 0), before.output + after.output
        assert before.stdout < after.stdout
        assert re.sub("[0-9]", "0", after.stdout) == (EXPECTED / "broker-clock-advance.txt").read_text()
        with Store.open(root, read_only=True) as store:
            ranges = store.queue_ranges("Orders")
            wait_until(lambda: any(store.queue_range("Orders", queue_id).max_offset for queue_id in ranges))
        out, err = process.communicate(timeout=60)  # closes its standard input
        assert process.returncode == 0 and err == b""
        assert out.decode().endswith(f"broker rmq-embedded listens at {address}\n")
        assert not port_file.exists() and list(place.iterdir()) == []


def test_a_name_server_has_the_broker_until_it_is_stopped(tmp_path: Path, scratch: Path, small: StoreConfig) -> None:
    Store.open(scratch / "store", create=True, config=small).close()
    with (
        running(tmp_path / "ns", "namesrv", "run", "--listen", "127.0.0.1:0", stdout=subprocess.PIPE) as (
            name_server,
            name_server_address,
        ),
        running(
            tmp_path / "broker", "broker", "run", scratch / "store", "--listen", "127.0.0.1:0",
            "--name-server", name_server_address,
        ) as (served, address),
    ):  # fmt: skip
        assert routes(name_server_address) == [address]
        served.send_signal(signal.SIGTERM)
        assert served.wait(60) == 0
        assert routes(name_server_address) == []
        name_server.send_signal(signal.SIGTERM)
        out, _ = name_server.communicate(timeout=60)
        assert name_server.returncode == 0
        assert out.decode().replace(name_server_address, "ADDRESS") == (EXPECTED / "namesrv-run.txt").read_text()
        assert not (tmp_path / "ns").exists() and not (tmp_path / "broker").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["broker", "run", "--ephemeral", "STORE"], "leave out the path"),
        (["broker", "run", "--ephemeral", "--store", "STORE"], "leave out the path"),
        (["broker", "run", "STORE", "--virtual-clock"], "--virtual-clock needs --ephemeral"),
        (["broker", "run", "STORE", "--port-file", "x"], "say --listen"),
        (["broker", "run", "STORE", "--name-server", "127.0.0.1:9"], "say --listen"),
        (["broker", "run"], "Missing argument 'PATH'"),
        (["broker", "run", "--ephemeral", "--listen", "0.0.0.0:0"], "say --advertise"),
        (["broker", "run", "--ephemeral", "--listen", "0.0.0.0:0", "--advertise", "127.0.0.1:1"], "say --insecure"),
        (["broker", "run", "--ephemeral", "--port-file", "STORE/no/port"], "store/no does not exist; make it"),
        (["namesrv", "run", "--listen", "0.0.0.0:0"], "say --insecure"),
        (
            ["broker", "run", "STORE", "--listen", "127.0.0.1:0", "--access-key", "env:A", "--secret-key", "env:S"],
            "say --name-server",
        ),
        (["broker", "run", "STORE", "--access-key", "env:A", "--secret-key", "env:S"], "say --listen"),
        (["broker", "clock", "advance", "2h"], "one of the two"),
        (["broker", "clock", "advance", "--address", "127.0.0.1:1", "yesterday"], "is no duration, such as 500ms"),
        # A moment would move the clock by as long as it is after 1970, for good.
        (["broker", "clock", "advance", "--address", "127.0.0.1:1", "2026-12-01T00:00Z"], "is no duration"),
        (["broker", "clock", "advance", "--address", "127.0.0.1:1", "1795895912416"], "is no duration"),
        (["broker", "clock", "advance", "--address", "127.0.0.1:1", "now"], "is no duration"),
    ],
)
def test_what_makes_no_sense_is_refused(scratch: Path, arguments: list[str], text: str) -> None:
    Store.open(scratch / "store", create=True).close()
    result = rmq(*(word.replace("STORE", str(scratch / "store")) for word in arguments))
    assert result.exit_code == 2 and text in result.stderr, result.output


def test_a_path_of_the_environment_does_not_count_for_an_ephemeral_broker(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store.open(scratch / "store", create=True).close()
    seen = []
    monkeypatch.setenv("RMQ_STORE", str(scratch / "store"))
    monkeypatch.setattr(broker, "_run", lambda store, stop, cleans: seen.append(store.path))
    assert rmq("broker", "run", "--ephemeral").exit_code == 0
    assert len(seen) == 1 and seen[0] != scratch / "store" and not seen[0].exists()


def test_the_clock_of_a_broker_without_a_virtual_one_stays(scratch: Path, small: StoreConfig) -> None:
    with BrokerServer(scratch / "store", config=small, create=True) as server:
        refused = rmq("broker", "clock", "advance", "--address", server.address, "2h")
    assert refused.exit_code == 1 and "no virtual clock" in refused.stderr


def test_the_name_servers_of_a_broker_are_no_target() -> None:
    command = commands.get_command(click.Context(commands), "broker")
    assert command is not None
    words = ["run", "/data/store", "--name-server", "ns1:9876", "--listen", "127.0.0.1:0"]
    found = named(command, words)
    assert (found.clusters, found.arguments) == ([], words)
    assert named(command, ["run", "-n", "ns1:9876"]).clusters == ["ns1:9876"]


def test_a_stop_signal_ends_with_its_input() -> None:
    stop, (reader, writer) = StopSignal(), os.pipe()
    try:
        stop.ends_with(reader)
        assert not stop.wait(0)
        os.write(writer, b"typed by somebody")
        assert not stop.wait(60)
        os.close(writer)
        assert stop.wait(60) and stop.wait(60)
    finally:
        stop.close()
        os.close(reader)


def test_a_port_of_the_vip_channel_that_is_taken_is_said_at_the_start(tmp_path: Path) -> None:
    Store.open(tmp_path / "store", create=True).close()
    with BrokerServer(tmp_path / "other", create=True) as other:
        assert other.vip_port is not None
        port = other.port
    with (
        socket.create_server(("127.0.0.1", port - 2)),
        running(
            tmp_path / "port", "broker", "run", tmp_path / "store", "--listen", f"127.0.0.1:{port}",
            "--until-stdin-closes", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as (process, _),
    ):  # fmt: skip
        _, said = process.communicate(timeout=60)
    assert said.decode().startswith(f"rmq: port {port - 2} is not free: clients before 4.5.1")
    assert len(said.splitlines()) == 1
