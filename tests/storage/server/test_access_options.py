"""`rmq broker run`: who may be let in from where, and what the server is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rmq_store import StoreConfig, UsageError
from rmq_store.cli.maintenance import broker, namesrv
from rmq_store.remoting.transport.settings import TlsSettings
from rmq_store.server import broker_server
from rmq_store.server.name_server import name_server
from rmq_store.server.transport.tls import TlsFiles

USER = '[[user]]\naccess_key = "operator"\nsecret_key = "not-shown"\nadmin = true\n'


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command tells a server that it would start."""
    told: dict[str, Any] = {}

    @contextmanager
    def server(root: Path, **rest: Any) -> Iterator[SimpleNamespace]:
        told.update(rest)
        yield SimpleNamespace(
            store=SimpleNamespace(broker_name="broker-a"), address="here", port=10911, grpc_address="there",
            vip_port=10909, ha_address="",
        )  # fmt: skip

    monkeypatch.setattr(broker_server, "BrokerServer", server)
    monkeypatch.setattr(broker, "_run", lambda store, stop, *, cleans: None)
    return told


def run(root: Path, *options: str) -> Result:
    return CliRunner().invoke(broker.broker, ["run", str(root), *options])


@pytest.fixture
def acl(scratch: Path) -> str:
    (scratch / "acl.toml").write_text(USER)
    (scratch / "acl.toml").chmod(0o600)
    return str(scratch / "acl.toml")


@pytest.mark.parametrize("address", ["10.0.0.5:10911", "[2001:db8::1]:10911"])
def test_an_address_that_others_reach_needs_users_or_consent(
    scratch: Path, told: dict[str, Any], acl: str, address: str
) -> None:
    refused = run(scratch, "--listen", address)
    assert isinstance(refused.exception, UsageError)
    assert "--acl" in str(refused.exception) and "--insecure" in str(refused.exception)
    # Neither TLS nor --admin says who may ask.
    assert isinstance(run(scratch, "--listen", address, "--admin").exception, UsageError)
    assert not told
    assert run(scratch, "--listen", address, "--acl", acl).exit_code == 0
    assert told["acl_file"] == Path(acl) and told["admin"] is False and told["tls"] is None
    assert run(scratch, "--listen", address, "--insecure").exit_code == 0
    assert told["acl_file"] is None


def test_a_name_server_needs_users_or_consent_too(acl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, Path | None]] = []

    def server(host: str, port: int, *, acl_file: Path | None, tls: TlsFiles | None) -> None:
        told.append((host, acl_file))
        raise UsageError("not in this test")

    monkeypatch.setattr(name_server, "NameServer", server)
    for options in ([], ["--acl", acl], ["--insecure"]):
        CliRunner().invoke(namesrv.namesrv, ["run", "--listen", "0.0.0.0:0", *options])
    assert told == [("0.0.0.0", Path(acl)), ("0.0.0.0", None)]


def test_a_server_signs_what_it_tells_name_servers(scratch: Path, told: dict[str, Any]) -> None:
    named = ["--listen", "127.0.0.1:0", "--name-server", "127.0.0.1:9876"]
    assert run(scratch, *named).exit_code == 0
    assert told["name_servers"] == "127.0.0.1:9876"
    assert run(scratch, *named, "--access-key", "env:KEY", "--secret-key", "file:/run/secret").exit_code == 0
    settings = told["name_servers"]
    assert (settings.access_key, settings.secret_key) == ("env:KEY", "file:/run/secret")
    for keys in (["--access-key", "env:KEY"], ["--access-key", "env:KEY", "--secret-key", "the-secret"]):
        refused = run(scratch, *named, *keys)
        assert isinstance(refused.exception, UsageError) and "the-secret" not in str(refused.exception)


def test_a_server_registers_over_tls(scratch: Path, told: dict[str, Any]) -> None:
    named = ["--listen", "127.0.0.1:0", "--name-server", "127.0.0.1:9876"]
    assert run(scratch, *named, "--name-server-tls", "--name-server-tls-name", "ns").exit_code == 0
    assert told["name_servers"].tls == TlsSettings(server_name="ns")
    told.clear()
    missing = str(scratch / "missing.pem")
    for options, text in (
        (["--name-server-ca-file", missing], "say --name-server-tls"),
        (["--name-server-tls", "--name-server-key-file", missing], "a key without a certificate"),
    ):
        refused = run(scratch, *named, *options)
        assert isinstance(refused.exception, UsageError) and text in str(refused.exception)
    refused = run(scratch, *named[:2], "--name-server-tls")
    assert isinstance(refused.exception, UsageError) and "say --name-server" in str(refused.exception)
    assert not told


def test_a_name_server_is_told_of_tls(acl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[TlsFiles | None] = []

    def server(host: str, port: int, *, acl_file: Path | None, tls: TlsFiles | None) -> None:
        told.append(tls)
        raise UsageError("not in this test")

    monkeypatch.setattr(name_server, "NameServer", server)
    for files in (["--tls-cert", acl, "--tls-key", acl], ["--tls-cert", acl]):
        CliRunner().invoke(namesrv.namesrv, ["run", *files])
    assert told == [TlsFiles(Path(acl), Path(acl), None)]


def test_the_users_are_those_of_both_ports(scratch: Path, told: dict[str, Any], acl: str) -> None:
    address = "10.0.0.5:0"
    assert run(scratch, "--listen", address, "--grpc", address, "--acl", acl).exit_code == 0
    assert told["acl_file"] == Path(acl) and told["grpc_port"] == 0


def test_loopback_needs_neither(scratch: Path, told: dict[str, Any]) -> None:
    assert run(scratch, "--listen", "127.0.0.1:0").exit_code == 0
    assert told["acl_file"] is None and told["admin"] is False


def test_the_server_is_told_of_administrators_and_tls(scratch: Path, told: dict[str, Any], acl: str) -> None:
    files = ["--tls-cert", acl, "--tls-key", acl, "--tls-client-ca", acl]
    assert run(scratch, "--listen", "127.0.0.1:0", "--admin", *files).exit_code == 0
    assert told["admin"] is True and told["tls"] == TlsFiles(Path(acl), Path(acl), Path(acl))


@pytest.mark.parametrize("option", ["--tls-cert", "--tls-key", "--tls-client-ca"])
def test_tls_needs_a_certificate_and_a_key(scratch: Path, told: dict[str, Any], acl: str, option: str) -> None:
    result = run(scratch, "--listen", "127.0.0.1:0", option, acl)
    assert isinstance(result.exception, UsageError) and "both --tls-cert and --tls-key" in str(result.exception)
    assert not told


@pytest.mark.parametrize("options", [["--admin"], ["--acl"], ["--tls-cert"]])
def test_options_about_clients_need_an_address(scratch: Path, acl: str, options: list[str]) -> None:
    result = run(scratch, *options, *([acl] if options != ["--admin"] else []))
    assert isinstance(result.exception, UsageError) and "--listen" in str(result.exception)


def test_a_wrong_file_of_users_stops_the_command_before_the_store_is_touched(
    root: Path, small: StoreConfig, acl: str
) -> None:
    root.mkdir()
    Path(acl).chmod(0o666)
    result = run(root, "--listen", "127.0.0.1:0", "--acl", acl)
    assert isinstance(result.exception, UsageError) and "chmod go-w" in str(result.exception)
    assert "not-shown" not in str(result.exception) + result.output
    assert list(root.iterdir()) == []
