"""A refused request is in the server's log with its client, user and reason: one line in a while, and no secret."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from helpers.cluster.security import Tls
from helpers.grpc_stub import Stub, signed
from rmq_store.client import ResponseCode
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.signature import sign
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.server.access.refusals import INTERVAL_S, LINES_MAX, RefusalLog
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.grpc_definitions.definitions import new
from rmq_store.server.grpc_definitions.enums import Code
from rmq_store.server.name_server.name_server import NameServer
from security.conftest import TINY
from security.test_server import ACL, ROOT_SECRET, SECRETS, SEND

LOGGER = "rmq_store.server.access.refusals"
PULL = {
    "consumerGroup": "billing", "topic": "Bills", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "0",
    "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0",
}  # fmt: skip
TOPIC = {
    "topic": "Orders", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "order": "false",
}  # fmt: skip
TIMED_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING 127\.0\.0\.1:\d+: .+")


@pytest.fixture
def acl(tmp_path: Path) -> Path:
    path = tmp_path / "acl.toml"
    path.write_text(f'{ACL}[[user]]\naccess_key = "root"\nsecret_key = "{ROOT_SECRET}"\nadmin = true\n')
    path.chmod(0o600)
    return path


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The refusals in the log, with a star for the port of the client."""
    found = [one for one in caplog.records if one.name == LOGGER]
    assert {one.levelno for one in found} <= {logging.WARNING}
    return [re.sub(r"^(127\.0\.0\.1|\[::1\]):\d+: ", r"\1:*: ", one.getMessage()) for one in found]


# -- the log ----------------------------------------------------------------------------------------------------------


class Clock:
    now_s = 5000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_refusal_that_is_repeated_makes_one_line_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = RefusalLog(clock)
    for port in range(1000, 1500):
        log.tell(f"10.0.0.5:{port}", "orders", "PULL_MESSAGE (11)", "no right")
    assert lines(caplog) == ["10.0.0.5:1000: PULL_MESSAGE (11) of user orders is refused: no right"]
    for address, user, reason in (
        ("10.0.0.6:1", "orders", "no right"), ("10.0.0.5:1", "billing", "no right"), ("10.0.0.5:1", "orders", "other"),
        ("[fe80::5]:1", "", "no right"),
    ):  # fmt: skip
        log.tell(address, user, "PULL_MESSAGE (11)", reason)
        log.tell(address, user, "PULL_MESSAGE (11)", reason)
    assert len(lines(caplog)) == 5
    assert lines(caplog)[-1] == "[fe80::5]:1: PULL_MESSAGE (11) of no user is refused: no right"
    clock.now_s += INTERVAL_S - 1
    log.tell("10.0.0.5:1", "orders", "PULL_MESSAGE (11)", "no right")
    assert len(lines(caplog)) == 5
    clock.now_s += 2
    log.tell("10.0.0.5:1", "orders", "PULL_MESSAGE (11)", "no right")
    assert len(lines(caplog)) == 6


def test_clients_that_invent_users_and_reasons_fill_neither_log_nor_memory(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = RefusalLog(clock)
    for number in range(50 * LINES_MAX):
        log.tell("10.0.0.5:1", f"{number}" + "u" * 100_000, "SEND_MESSAGE (10)", "r" * 100_000)
    assert len(lines(caplog)) == LINES_MAX + 1
    assert lines(caplog)[-1] == f"more than {LINES_MAX} refusals in {INTERVAL_S:.0f} s: the others are not logged"
    assert max(map(len, lines(caplog))) < 600
    assert len(log._written_s) == LINES_MAX + 1
    assert max(len(text) for key in log._written_s for text in key) < 400
    clock.now_s += INTERVAL_S
    log.tell("10.0.0.5:1", "orders", "SEND_MESSAGE (10)", "no right")
    assert len(lines(caplog)) == LINES_MAX + 2 and len(log._written_s) == 1


def test_texts_of_a_client_stay_in_their_line(caplog: pytest.LogCaptureFixture) -> None:
    RefusalLog().tell("10.0.0.5:1", "u\nforged\x1b[2J", "SEND_MESSAGE (10)", "r\r\u2028\ud800\u202e")
    (line,) = lines(caplog)
    assert line.isprintable() and line.isascii() and "forged" in line


# -- the servers ------------------------------------------------------------------------------------------------------


def ask(address: str, code: int, ext: dict[str, str]) -> RemotingCommand:
    with Cluster(ClusterSettings.of_text(address)) as cluster:
        return cluster.client.call(address, RemotingCommand(code, ext), 30_000)


REFUSED = [
    ("not signed", 310, SEND, "", "", "SEND_MESSAGE_V2 (310) of no user is refused: the request is not signed, and"),
    ("wrong secret", 310, SEND, "orders", "no secret", "SEND_MESSAGE_V2 (310) of user orders is refused: check sign"),
    ("no such user", 310, SEND, "nobody", "no secret", "SEND_MESSAGE_V2 (310) of user nobody is refused: check sign"),
    ("no right", 11, PULL, "billing", SECRETS["billing"],
     "PULL_MESSAGE (11) of user billing is refused: no permission: the right SUB for the topic Bills is missing"),
    ("no --admin", 17, TOPIC, "root", ROOT_SECRET,
     "UPDATE_AND_CREATE_TOPIC (17) of user root is refused: UPDATE_AND_CREATE_TOPIC (17) changes what is there"),
    ("never", 25, {}, "root", ROOT_SECRET,
     "UPDATE_BROKER_CONFIG (25) of user root is refused: it is never carried out"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "ext", "user", "secret", "line"), [one[1:] for one in REFUSED],
                         ids=[one[0] for one in REFUSED])  # fmt: skip
def test_the_log_of_a_broker_says_why(
    tmp_path: Path, acl: Path, caplog: pytest.LogCaptureFixture, code: int, ext: dict[str, str], user: str,
    secret: str, line: str,
) -> None:  # fmt: skip
    with BrokerServer(tmp_path / "store", config=TINY, create=True, acl_file=acl) as server:
        server.store.create_topic("Orders", 1)
        for _ in range(3):
            command = sign(ext, b"", user, secret) if user else ext
            assert ask(server.address, code, command).code == ResponseCode.NO_PERMISSION
    (written,) = lines(caplog)
    assert written.startswith(f"127.0.0.1:*: {line}")
    assert not [one for one in (*SECRETS.values(), ROOT_SECRET, "no secret") if one in caplog.text]


def test_the_log_of_a_broker_without_users_says_who_wants_to_change_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with BrokerServer(tmp_path / "store", config=TINY, create=True) as server:
        for code in (25, 318, 1009, 215):
            assert ask(server.address, code, {"topic": "Orders"}).code == ResponseCode.NO_PERMISSION
    # 318 and 1009 have the same reason as 25.
    assert [line.partition(" is refused")[0] for line in lines(caplog)] == [
        "127.0.0.1:*: UPDATE_BROKER_CONFIG (25) of no user", "127.0.0.1:*: DELETE_TOPIC_IN_BROKER (215) of no user",
    ]  # fmt: skip


def test_the_log_of_a_name_server_says_why(acl: Path, caplog: pytest.LogCaptureFixture) -> None:
    with NameServer(acl_file=acl) as server:
        for ext in ({}, sign({}, b"", "orders", SECRETS["orders"])):
            assert ask(server.address, 103, ext).code == ResponseCode.NO_PERMISSION
    unsigned, unfit = lines(caplog)
    assert unsigned.startswith("127.0.0.1:*: REGISTER_BROKER (103) of no user is refused: the request is not signed")
    assert unfit.startswith(
        "127.0.0.1:*: REGISTER_BROKER (103) of user orders is refused: no permission: the right ADM"
    )


ORDERS, BILLS, BILLING = ({"name": name} for name in ("Orders", "Bills", "billing"))


def test_the_log_has_refused_calls_over_grpc(tmp_path: Path, acl: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        BrokerServer(tmp_path / "store", config=TINY, create=True, acl_file=acl, grpc_port=0) as server,
        ExitStack() as ends,
    ):
        server.store.create_topic("Bills", 1)

        def stub(*known: str, date_time: str = "") -> Stub:
            made = Stub(str(server.grpc_address), sign=signed(*known, date_time) if known else ())
            ends.callback(made.close)
            return made

        orders = stub("orders", SECRETS["orders"])
        for _ in range(3):
            assert stub().call("QueryRoute", topic=ORDERS).status.code == Code.UNAUTHORIZED
            assert stub("orders", "no secret").call("QueryRoute", topic=ORDERS).status.code == Code.UNAUTHORIZED
            late = stub("orders", SECRETS["orders"], date_time="20200101T000000Z")
            assert late.call("QueryRoute", topic=ORDERS).status.code == Code.UNAUTHORIZED
            assert orders.send("Bills", b"x").status.code == Code.FORBIDDEN
            assert orders.receive("billing", "Bills")[0] == Code.FORBIDDEN
            settings = {"settings": {"subscription": {"group": BILLING, "subscriptions": [{"topic": BILLS}]}}}
            (answer,) = _until_the_end(orders, settings)
            assert answer.status.code == Code.FORBIDDEN
    found = [line.partition(" is refused: ") for line in lines(caplog)]
    assert [(who, reason[:40]) for who, _, reason in found] == [
        ("127.0.0.1:*: QueryRoute of no user", "the call is not signed, and this broker "),
        ("127.0.0.1:*: QueryRoute of user orders", "check signature failed: no such access k"),
        ("127.0.0.1:*: QueryRoute of user orders", "x-mq-date-time '20200101T000000Z' is mor"),
        ("127.0.0.1:*: SendMessage of user orders", "no permission: the right PUB for the top"),
        ("127.0.0.1:*: ReceiveMessage of user orders", "no permission: the right SUB for the gro"),
        # Telemetry lacks the same right as the receive before it.
    ]
    assert not [one for one in (*SECRETS.values(), "no secret") if one in caplog.text]


def _until_the_end(stub: Stub, command: dict[str, Any]) -> list[Any]:
    """What a stream of telemetry answers to a command before it ends."""
    answers = []
    try:
        for answer in stub.telemetry(iter([new("TelemetryCommand", **command)])):
            answers.append(answer)  # noqa: PERF402 - the end is an error
    except grpc.RpcError:
        pass
    return answers


# -- the commands -----------------------------------------------------------------------------------------------------


@contextmanager
def running(port_file: Path, *arguments: object) -> Iterator[tuple[str, Path]]:
    """A command that listens: its address, and the file of its stderr."""
    code = "from rmq_store.cli import main; main()"
    words = [sys.executable, "-c", code, *map(str, arguments), "--listen", "127.0.0.1:0", "--port-file", str(port_file)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    errors = port_file.with_suffix(".stderr")
    with errors.open("wb") as stderr:
        process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=stderr)
    try:
        _eventually(lambda: port_file.exists() or process.poll() is not None)
        yield port_file.read_text().strip(), errors
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def _eventually(is_so: Any) -> None:
    end_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.02)


@pytest.mark.parametrize("command", ["broker", "namesrv"])
def test_a_command_that_serves_writes_refusals_with_time_and_level(tmp_path: Path, acl: Path, command: str) -> None:
    place = [tmp_path / "store"] if command == "broker" else []
    if place:
        with BrokerServer(place[0], config=TINY, create=True):
            pass
    with running(tmp_path / "port", command, "run", *place, "--acl", acl) as (address, errors):
        for user, secret in (("", ""), ("orders", SECRETS["billing"]), ("orders", SECRETS["orders"])):
            for _ in range(2):
                ext = sign({}, b"", user, secret) if user else {}
                assert ask(address, 103, ext).code == ResponseCode.NO_PERMISSION
    text = errors.read_text()
    found = text.splitlines()
    assert len(found) == 3 and all(map(TIMED_LINE.fullmatch, found)), text
    assert [re.search(r"of (.+) is refused", line)[1] for line in found] == ["no user", "user orders", "user orders"]  # type: ignore[index]
    assert not [one for one in SECRETS.values() if one in text]


def test_a_failed_handshake_is_a_line_with_the_address_of_the_client(tmp_path: Path) -> None:
    tls = Tls(tmp_path)
    files = ("--tls-cert", tls.path / "server.pem", "--tls-key", tls.path / "server.key")
    with running(tmp_path / "port", "namesrv", "run", *files) as (address, errors):
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as plain:
            own = plain.getsockname()
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        _eventually(lambda: b"handshake" in errors.read_bytes())
    (line,) = errors.read_text().splitlines()
    assert TIMED_LINE.fullmatch(line), line
    assert f" 127.0.0.1:{own[1]}: no TLS handshake (" in line
