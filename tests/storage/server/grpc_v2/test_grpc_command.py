"""`rmq broker run --grpc`: its first line, and options that do not fit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner

from helpers.grpc_stub import Stub
from rmq_store import Store, StoreConfig
from rmq_store.cli import commands
from rmq_store.errors import UsageError
from rmq_store.server.grpc_definitions.enums import Code
from rmq_store.server.grpc_v2.tls import Certificate


@contextmanager
def first_line(root: Path, *options: str) -> Iterator[str]:
    """The first line of the command, which runs inside the block."""
    roots = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-c", "from rmq_store.cli import main; main()", "broker", "run", str(root)]
    command += ["--listen", "127.0.0.1:0", *options]
    environment = {**os.environ, "PYTHONPATH": roots}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline()
        finally:
            process.send_signal(signal.SIGTERM)


def test_the_command_serves_grpc_and_says_where(root: Path, small: StoreConfig) -> None:
    Store.open(root, create=True, config=small).close()
    with first_line(root, "--grpc", "127.0.0.1:0") as line:
        found = re.fullmatch(r".*, gRPC at (\S+) \(plain; clients in Java .*: switch enableSsl off\)\n", line)
        assert found is not None, line
        stub = Stub(found[1])
        assert stub.send("Orders", b"x").status.code == Code.OK
        stub.close()
    with Store.open(root, read_only=True) as store:
        assert store.log_range()[1] > 0


def test_the_command_serves_both_ports_and_says_where(root: Path, small: StoreConfig, scratch: Path) -> None:
    Store.open(root, create=True, config=small).close()
    certificate = Certificate.self_signed("127.0.0.1")
    chain, key = scratch / "chain.pem", scratch / "key.pem"
    chain.write_bytes(certificate.chain)
    key.write_bytes(certificate.key)
    options = ["--grpc", "127.0.0.1:0", "--grpc-tls", f"{chain},{key}", "--grpc-tls-listen", "127.0.0.1:0"]
    with first_line(root, *options) as line:
        found = re.fullmatch(
            r".*, gRPC at (\S+) \(plain; .*, or take the port with TLS\), gRPC at (\S+) \(TLS\)\n", line
        )
        assert found is not None, line
        for address, credentials in ((found[1], None), (found[2], grpc.ssl_channel_credentials(certificate.chain))):
            stub = Stub(address, credentials=credentials)
            assert stub.send("Orders", b"x").status.code == Code.OK
            stub.close()


@pytest.mark.parametrize("option", ["--grpc", "--grpc-tls-listen"])
def test_one_port_with_a_certificate_has_tls(root: Path, option: str) -> None:
    Store.open(root, create=True).close()
    with first_line(root, option, "127.0.0.1:0", "--grpc-tls", "self-signed") as line:
        assert re.fullmatch(r"[^,]*, gRPC at \S+ \(TLS\)\n", line), line


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
        (["--listen", "127.0.0.1:0", "--grpc-tls", "self-signed"], "--grpc-tls needs --grpc HOST:PORT or --grpc-tls-l"),
        (
            ["--listen", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--grpc-tls-listen", "127.0.0.1:0"],
            "--grpc-tls-listen needs a certificate: say --grpc-tls CERT,KEY",
        ),
        (
            ["--listen", "127.0.0.1:0", "--grpc-tls", "self-signed", "--grpc-tls-listen", "127.0.0.2:0"],
            "--grpc-tls-listen needs --listen with the same host: --listen 127.0.0.2:10911",
        ),
        (
            ["--grpc-tls", "self-signed", "--grpc-tls-listen", "127.0.0.1:0"],
            "--grpc-tls-listen needs --listen with the same host",
        ),
        (["--listen", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--grpc-tls", "cert"], "--grpc-tls takes CERT,KEY"),
    ],
)
def test_options_that_do_not_fit_are_refused(root: Path, options: list[str], reason: str) -> None:
    Store.open(root, create=True).close()
    result = CliRunner().invoke(commands, ["broker", "run", str(root), *options])
    assert result.exit_code != 0 and reason in f"{result.output}{result.exception}"
