"""Secrets: resolved where they are needed, signed with, and found in nothing that can be read."""

from __future__ import annotations

import logging
import pickle  # noqa: TID251 - our own
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.cluster.stub_server import StubConnection
from rmq_store.client import RemotingError, UsageError
from rmq_store.protocol.wire.command import RemotingCommand, response_to
from rmq_store.protocol.wire.signature import is_signed_with
from rmq_store.remoting.transport.secrets import Credentials, resolve
from rmq_store.remoting.transport.settings import ClusterSettings

from .conftest import Connect, Serve
from .test_client import eventually, request

SECRETS = ("an-access-key-7", "a-secret-key-7", "a-token-7")
REFERENCES = {"access_key": "env:T_AK", "secret_key": "file:{}/sk", "security_token": "env:T_ST"}


@pytest.fixture
def references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("T_AK", SECRETS[0])
    (tmp_path / "sk").write_text(SECRETS[1] + "\n")
    monkeypatch.setenv("T_ST", SECRETS[2])
    return {name: text.format(tmp_path) for name, text in REFERENCES.items()}


def checked(_: StubConnection, command: RemotingCommand) -> RemotingCommand:
    fields = command.ext_fields
    good = is_signed_with(fields, command.body, SECRETS[1], command.version)
    names = (fields.get("AccessKey"), fields.get("SecurityToken")) == (SECRETS[0], SECRETS[2])
    return response_to(command, 0 if good and names else 1)


def test_every_request_is_signed(serve: Serve, connect: Connect, references: dict[str, str]) -> None:
    server, client = serve(checked), connect(**references)
    asked = request(5, body=b"body")
    assert client.call(server.address, asked, 30_000).code == 0
    client.call_oneway(server.address, RemotingCommand(37, {"msgId": "x"}))
    eventually(lambda: len(server.requests) == 2)
    assert checked(server.connections[0], server.requests[1]).code == 0
    assert asked.ext_fields == {"n": "5"}, "the caller's request is left as it was"


def test_a_query_by_key_goes_out_as_4_9_3_which_every_broker_checks_alike(
    serve: Serve, connect: Connect, references: dict[str, str]
) -> None:
    server, client = serve(checked), connect(**references)
    query = RemotingCommand(12, {"key": "k", "_UNIQUE_KEY_QUERY": "true"})
    assert client.call(server.address, query, 30_000).code == 0
    assert (server.requests[0].version, query.version) == (399, 409)


def test_a_new_secret_is_used_by_the_next_connection(
    serve: Serve, connect: Connect, references: dict[str, str], tmp_path: Path
) -> None:
    server, client = serve(checked), connect(**references)
    assert client.call(server.address, request(), 30_000).code == 0
    (tmp_path / "sk").write_text("another")
    assert client.call(server.address, request(), 30_000).code == 0
    server.stop()
    server.start()
    eventually(lambda: client.counters().open_connections == 0)
    assert client.call(server.address, request(), 30_000).code == 1


def test_a_reference_that_leads_nowhere_is_named(
    serve: Serve, connect: Connect, references: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = serve(checked), connect(**references)
    monkeypatch.delenv("T_AK")
    with pytest.raises(UsageError, match="access key: nothing at env:T_AK: this process has no such variable"):
        client.call(server.address, request(), 30_000)
    assert server.accepted == 0
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "large").write_bytes(b"x" * 70_000)
    (tmp_path / "bytes").write_bytes(b"hunter2\xff")
    for name, text in [
        ("missing", "secret key: cannot read file:.*missing: No such file or directory"),
        ("empty", "secret key: nothing at file:.*empty: empty, or larger than 64 KiB"),
        ("large", "empty, or larger than 64 KiB"),
        ("bytes", "is not UTF-8$"),
    ]:
        with pytest.raises(UsageError, match=text) as caught:
            resolve(f"file:{tmp_path / name}", "secret key")
        assert caught.value.__cause__ is None and "hunter2" not in repr(caught.value)
    assert resolve("", "x") == ""


def test_secrets_are_in_no_text_no_pickle_no_error_and_no_log(
    serve: Serve, connect: Connect, references: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server, client = serve(lambda connection, _: connection.reset()), connect(**references)
    with pytest.raises(RemotingError) as lost:
        client.call(server.address, request(), 30_000)
    with pytest.raises(RemotingError) as refused:
        client.call(server.address, request(), 30_000)
    credentials = Credentials.of(client.settings)
    assert credentials is not None and credentials.secret_key == SECRETS[1]
    texts = [repr(client), str(client), repr(client.settings), repr(credentials), str(credentials), caplog.text]
    texts += [text for error in (lost.value, refused.value) for text in (str(error), repr(error))]
    texts += [repr(command) for command in server.requests]
    texts += [ascii(pickle.dumps(thing)) for thing in (client, client.settings, lost.value, refused.value)]
    for secret in (*SECRETS, server.requests[0].ext_fields["Signature"]):
        assert not any(secret in text for text in texts)
    with pytest.raises(UsageError, match="never pickled"):
        pickle.dumps(credentials)


def test_another_process_resolves_for_itself(references: dict[str, str], tmp_path: Path) -> None:
    settings = ClusterSettings(name_servers=("a:1",), **references)  # type: ignore[arg-type]
    (tmp_path / "settings").write_bytes(pickle.dumps(settings))
    code = (
        "import pickle, sys; from rmq_store.remoting.transport.secrets import Credentials; "
        "print(Credentials.of(pickle.load(open(sys.argv[1], 'rb'))).access_key)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "settings"], capture_output=True, text=True, check=True,
        env={"T_AK": "its own", "T_ST": "x", "PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert done.stdout.strip() == "its own"
