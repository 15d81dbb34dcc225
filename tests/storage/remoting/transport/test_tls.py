"""TLS: certificates and names are verified, by which name, and what a refusal says. OpenSSL makes the certificates."""

from __future__ import annotations

import logging
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from helpers.certificates import make_authority, make_certificate, openssl
from helpers.cluster.stub_server import Handler, StubConnection, StubServer, echo
from rmq_store.client import RemotingConnectError, RemotingError, UsageError
from rmq_store.format.bytes import native
from rmq_store.protocol.wire.command import RemotingCommand, response_to
from rmq_store.protocol.wire.pull_answers import FrameArea
from rmq_store.remoting.transport.calls import Arrivals
from rmq_store.remoting.transport.pull_reading import PullReading
from rmq_store.remoting.transport.pull_round import PullRound
from rmq_store.remoting.transport.settings import TlsSettings
from rmq_store.remoting.transport.template import RequestTemplate

from .conftest import Connect, Serve
from .test_client import eventually, request


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem and other-ca.pem; server.pem for 127.0.0.1 and broker.example; client.pem; locked.key has a password."""
    folder = tmp_path_factory.mktemp("certificates")
    make_authority(folder, "ca")
    make_authority(folder, "other-ca")
    make_certificate(folder, "server", "ca", "IP:127.0.0.1,DNS:broker.example")
    make_certificate(folder, "client", "ca", "DNS:client")
    openssl("ec", "-in", folder / "client.key", "-aes256", "-passout", "pass:x", "-out", folder / "locked.key")
    return folder


def serve_tls(
    serve: Serve, certificates: Path, *, client_certificates: bool = False, handler: Handler = echo
) -> StubServer:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    if client_certificates:
        context.load_verify_locations(certificates / "ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
    return serve(handler, tls=context)


def trusting(certificates: Path, **options: object) -> TlsSettings:
    return TlsSettings(ca_file=str(certificates / "ca.pem"), **options)  # type: ignore[arg-type]


def test_calls_of_many_threads_share_one_tls_connection(serve: Serve, connect: Connect, certificates: Path) -> None:
    server, client = serve_tls(serve, certificates), connect(tls=trusting(certificates))

    def calls(first: int) -> bool:
        futures = [
            client.submit(server.address, request(n, body=bytes(n * 997)), 20_000) for n in range(first, first + 50)
        ]
        return [len(future.result(20).body) for future in futures] == [n * 997 for n in range(first, first + 50)]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(calls, range(0, 400, 50)))
    large = bytes(5 << 20)
    assert client.call(server.address, request(body=large), 20_000).body == large
    assert server.accepted == 1


def test_the_name_of_the_registered_address_is_verified_under_an_address_map(
    serve: Serve, connect: Connect, certificates: Path
) -> None:
    server = serve_tls(serve, certificates)
    addresses = {"broker.example:10911": server.address, "other.example:10911": server.address}
    client = connect(tls=trusting(certificates), address_map=addresses)
    assert client.call("broker.example:10911", request(4), 30_000).ext_fields == {"n": "4"}
    text = (
        rf"^other.example:10911 \(as {server.address}\): TLS: its certificate is not accepted for the name "
        # The second end, if the connection has failed before the call came to it.
        r"'other.example': Hostname mismatch.*(; PULL_MESSAGE \(11\) was not sent|The next attempt .* in \d+ ms)$"
    )
    with pytest.raises(RemotingConnectError, match=text):
        client.call("other.example:10911", request(), 30_000)
    named = connect(tls=trusting(certificates, server_name="broker.example"), address_map=addresses)
    assert named.call("other.example:10911", request(5), 30_000).ext_fields == {"n": "5"}
    misnamed = connect(tls=trusting(certificates, server_name="wrong.example"))
    with pytest.raises(RemotingConnectError, match=r"not accepted for the name 'wrong\.example'"):
        misnamed.call(server.address, request(), 30_000)


def test_a_certificate_of_an_unknown_authority_is_refused(serve: Serve, connect: Connect, certificates: Path) -> None:
    server = serve_tls(serve, certificates)
    for tls in (TlsSettings(ca_file=str(certificates / "other-ca.pem")), TlsSettings()):
        with pytest.raises(
            RemotingConnectError, match=r"is not accepted for the name '127.0.0.1': unable to get local"
        ):
            connect(tls=tls).call(server.address, request(), 30_000)
    assert not server.requests


def test_without_verification_every_start_warns(
    serve: Serve, connect: Connect, certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve_tls(serve, certificates)
    for number in (1, 2):
        client = connect(tls=TlsSettings(verify=False))
        assert client.call(server.address, request(number), 30_000).ext_fields == {"n": str(number)}
        assert caplog.text.count("TLS without verification") == number
    caplog.clear()
    connect(tls=trusting(certificates))
    assert caplog.text == ""


def test_a_client_certificate_opens_a_server_that_wants_one(serve: Serve, connect: Connect, certificates: Path) -> None:
    server = serve_tls(serve, certificates, client_certificates=True)
    own = trusting(certificates, cert_file=str(certificates / "client.pem"), key_file=str(certificates / "client.key"))
    assert connect(tls=own).call(server.address, request(4), 30_000).ext_fields == {"n": "4"}
    with pytest.raises(RemotingError, match="the connection was lost before the answer"):
        connect(tls=trusting(certificates)).call(server.address, request(), 30_000)
    assert len(server.requests) == 1


def test_plain_text_and_tls_do_not_meet(serve: Serve, connect: Connect, certificates: Path) -> None:
    plain, secured = serve(echo), serve_tls(serve, certificates)
    with pytest.raises(RemotingConnectError, match="TLS was not agreed on"):
        connect(tls=trusting(certificates)).call(plain.address, request(), 30_000)
    with pytest.raises(RemotingError):
        connect().call(secured.address, request(), 30_000)


def test_a_server_that_never_agrees_on_tls_costs_the_connect_time_out(connect: Connect, certificates: Path) -> None:
    client = connect(tls=trusting(certificates), connect_timeout_ms=300)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        begin = time.monotonic()
        with pytest.raises(RemotingConnectError, match=f"^{address}: TLS was not agreed on: no answer in time"):
            client.call(address, request(), 20_000)
        assert time.monotonic() - begin < 15, "the call itself has 20 s"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ca_file": "missing.pem"}, "cannot use .*missing.pem as certificates to trust: .*No such file"),
        ({"ca_file": "ca.key"}, "cannot use .*ca.key as certificates to trust"),
        ({"cert_file": "client.pem"}, "cannot use .*client.pem with the key in it"),
        ({"cert_file": "client.pem", "key_file": "server.key"}, "cannot use .*client.pem with .*server.key"),
        ({"cert_file": "client.pem", "key_file": "locked.key"}, "A key with a password cannot be used"),
    ],
)
def test_files_that_cannot_be_used_are_named_at_the_start(
    connect: Connect, certificates: Path, options: dict[str, str], text: str
) -> None:
    with pytest.raises(UsageError, match=text):
        connect(tls=TlsSettings(**{name: str(certificates / file) for name, file in options.items()}))  # type: ignore[arg-type]


@pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")
def test_rounds_of_pulls_are_read_through_tls_in_python(
    serve: Serve, connect: Connect, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of the socket are records of TLS, which the extension cannot read."""
    read_raw: list[object] = []
    monkeypatch.setattr(PullReading, "receive", lambda *given: read_raw.append(given))

    def found(_: StubConnection, command: RemotingCommand) -> RemotingCommand:
        offset = int(command.ext_fields["queueOffset"])
        fields = {"nextBeginOffset": f"{offset + 32}", "minOffset": "0", "maxOffset": "77", "suggestWhichBrokerId": "0"}
        return response_to(command, 0, "FOUND", fields, b"%d" % offset)

    server, client = serve_tls(serve, certificates, handler=found), connect(tls=trusting(certificates))
    template = RequestTemplate(RemotingCommand(11, {"topic": "Orders"}), ("queueOffset", "maxMsgNums"))
    arrivals, pulls = Arrivals(), [(offset, 32) for offset in range(20)]
    waiting = PullRound(
        server.address, template, pulls, FrameArea(1_000), 30_000, time.monotonic(), arrivals.notice
    )
    client.submit_round(waiting)
    arrivals.wait(waiting)
    frames = [waiting.answers.area.data[start:end].tobytes() for start, end in waiting.answers.places().tolist()]
    assert frames == [b"%d" % offset for offset in range(20)] and not read_raw


def test_a_tls_connection_that_is_lost_is_made_again(serve: Serve, connect: Connect, certificates: Path) -> None:
    server, client = serve_tls(serve, certificates), connect(tls=trusting(certificates))
    client.call(server.address, request(), 30_000)
    server.stop()
    eventually(lambda: client.counters().open_connections == 0)
    server.start()
    assert client.call(server.address, request(6), 30_000).ext_fields == {"n": "6"}


def test_nothing_is_logged_about_a_good_connection(
    serve: Serve, connect: Connect, certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rmq_store")
    server, client = serve_tls(serve, certificates), connect(tls=trusting(certificates))
    client.call(server.address, request(), 30_000)
    assert caplog.text == ""
