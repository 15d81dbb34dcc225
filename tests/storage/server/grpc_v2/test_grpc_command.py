"""`rmq broker run --grpc`: its first line, and options that do not fit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from helpers.grpc_stub import Stub
from rmq_store import Store, StoreConfig
from rmq_store.cli import commands
from rmq_store.errors import UsageError
from rmq_store.server.grpc_definitions.enums import Code
from rmq_store.server.grpc_v2.tls import Certificate


def test_the_command_serves_grpc_and_says_where(root: Path, small: StoreConfig) -> None:
    Store.open(root, create=True, config=small).close()
    roots = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-c", "from rmq_store.cli import main; main()", "broker", "run", str(root)]
    command += ["--listen", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    environment = {**os.environ, "PYTHONPATH": roots}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.endswith(" (plain)\n")
        stub = Stub(line.split("gRPC at ")[1].split(" ")[0])
        assert stub.send("Orders", b"x").status.code == Code.OK
        stub.close()
        process.send_signal(signal.SIGTERM)
    with Store.open(root, read_only=True) as store:
        assert store.log_range()[1] > 0


def test_a_throw_away_certificate_is_for_the_advertised_host(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts: list[str] = []

    def remember(host: str) -> Certificate:
        hosts.append(host)
        raise UsageError("that is enough")

    monkeypatch.setattr(Certificate, "self_signed", remember)
    Store.open(root, create=True).close()
    serve = ["broker", "run", str(root), "--listen", "0.0.0.0:0", "--insecure", "--grpc", "0.0.0.0:0"]
    for address in ("127.0.0.2:10911", "[::1]:10911"):
        CliRunner().invoke(commands, [*serve, "--grpc-tls", "self-signed", "--advertise", address])
    assert hosts == ["127.0.0.2", "::1"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--grpc", "127.0.0.1:0"], "--grpc needs --listen with the same host"),
        (["--listen", "127.0.0.1:0", "--grpc", "127.0.0.2:0"], "--grpc needs --listen with the same host"),
        (["--listen", "127.0.0.1:0", "--grpc-tls", "self-signed"], "--grpc-tls needs --grpc"),
        (["--listen", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--grpc-tls", "cert"], "--grpc-tls takes CERT,KEY"),
    ],
)
def test_options_that_do_not_fit_are_refused(root: Path, options: list[str], reason: str) -> None:
    Store.open(root, create=True).close()
    result = CliRunner().invoke(commands, ["broker", "run", str(root), *options])
    assert result.exit_code != 0 and reason in f"{result.output}{result.exception}"
