"""Columns about connections: requests that the server does not know or does not answer, and TLS."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.cluster.security import Tls
from helpers.interop.matrix import JAVA, Cell
from helpers.interop.program import Program, RefusedError
from helpers.interop.refusals import refused
from helpers.interop.served import serving
from interop.conftest import start_client
from rmq_store import Store
from rmq_store.protocol.errors import ResponseCode
from rmq_store.server.scratch_store import make_scratch_store
from rmq_store.testing import RmqTestBroker

UNKNOWN_CODE = 29_999
TIMEOUT_MS = 3000
LATE_S = 3.0
TRIES = {"C++": 3, "Go gRPC": 3, "Python gRPC": 2}
"""How many requests that time out make a failed send. Python's two ask for the route."""
TOLD = r"(?i)time ?out|deadline ?exceeded"
LOGGED = r"waitResponse of code:10 with opaque:\d+ timeout|StatusCode.DEADLINE_EXCEEDED"
"""Of clients that tell their user only that there is no route: C++ and Python."""


@pytest.mark.column("unknown code")
def test_a_request_with_an_unknown_code_is_refused_and_the_next_one_is_answered(
    client: Program, broker: RmqTestBroker, topic: str, tell: Callable[[Cell], None]
) -> None:
    answer = client.ask("raw", code=UNKNOWN_CODE, fields={"topic": topic})
    assert answer["code"] == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and str(UNKNOWN_CODE) in answer["remark"]
    client.ask("send", topic=topic, messages=[{"body": "after"}])
    assert broker.bodies(topic) == [b"after"]
    tell(refused(answer["code"]))


@pytest.mark.column("timeout")
def test_a_client_tells_a_timeout_in_time_and_sends_again(row: str, own_store: Path, tmp_path: Path) -> None:
    """The server stores what it finds when it goes on: at most one copy for each request."""
    make(own_store)
    tries = TRIES.get(row, 1)
    with serving(own_store, "--grpc", "127.0.0.1:0") as server:
        place = server.place._replace(settings={"CLIENT_TIMEOUT_MS": str(TIMEOUT_MS)})
        with start_client(row, place, tmp_path) as client:
            send(client, "before")
            with server.suspended():
                began_s = time.monotonic()
                with pytest.raises(RefusedError) as error:
                    send(client, "late")
                assert time.monotonic() - began_s < tries * TIMEOUT_MS / 1000 + LATE_S
            assert re.search(TOLD, str(error.value)) or re.search(LOGGED, client.logged()), error.value
            send(client, "late")
    first, *late = bodies(own_store)
    assert first == b"before" and set(late) == {b"late"} and len(late) <= 1 + tries


@pytest.mark.column("TLS")
def test_a_client_sends_and_receives_over_tls(row: str, own_store: Path, tmp_path: Path) -> None:
    make(own_store)
    authority = Tls(made(tmp_path / "tls"))
    with serving(own_store, *options(row, authority)) as server:
        settings = {"CLIENT_TLS": "yes"}
        if row in VERIFIES:
            settings["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"] = str(authority.ca_file)
        with start_client(row, server.place._replace(settings=settings), tmp_path) as client:
            client.ask("consume", topic="Orders", group="cg", mode="concurrent")
            [sent] = send(client, "paid")
            [found] = client.ask("received", count=1, timeoutMs=60_000)
            client.ask("leave")
        place = server.place._replace(settings={"CLIENT_TIMEOUT_MS": str(TIMEOUT_MS)})
        with start_client(row, place, made(tmp_path / "plain")) as plain, pytest.raises(RefusedError):
            send(plain, "in plain text")
    assert (found["body"], found["msgId"]) == ("paid", sent["msgId"])
    assert bodies(own_store) == [b"paid"]


VERIFIES = ("Node gRPC", "Python gRPC")
"""Clients that check certificates. The others trust any, as Java's do by default."""


def options(row: str, authority: Tls) -> list[str]:
    """Of a server that this client can trust."""
    certificate, key = (str(authority.path / name) for name in ("server.pem", "server.key"))
    if row in JAVA:
        return ["--tls-cert", certificate, "--tls-key", key]
    pair = f"{certificate},{key}" if row in VERIFIES else "self-signed"
    return ["--grpc", "127.0.0.1:0", "--grpc-tls", pair]


def make(path: Path) -> None:
    """A store with a topic, and a group that begins at its first message."""
    make_scratch_store(path)
    with Store.open(path) as store:
        store.create_topic("Orders", queue_count=1)
        store.commit_offsets("cg", {("Orders", 0): 0})


def made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def send(client: Program, body: str) -> list[dict[str, object]]:
    return list(client.ask("send", topic="Orders", messages=[{"body": body}]))


def bodies(path: Path) -> list[bytes]:
    """What the topic has, from a store that is not served now."""
    with Store.open(path, read_only=True) as store:
        [(start, end)] = store.queue_ranges("Orders").values()
        return [body for batch in store.read("Orders", 0, start, end) for body in batch.column("body").to_pylist()]
