"""Servers that fail: each error says whether the request can have been seen, and nothing waits for ever."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from helpers.cluster.stub_server import StubConnection, echo
from rmq_store.client import RemotingCommandError, RemotingConnectError, RemotingError, RemotingTimeoutError
from rmq_store.protocol.wire.command import RemotingCommand, response_to
from rmq_store.protocol.wire.frames import encode_command
from rmq_store.remoting.transport import connector, io_loop
from rmq_store.remoting.transport.connector import ReconnectPause

from .conftest import Connect, Serve
from .test_client import eventually, request


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_refused_connection_is_no_request_and_the_next_attempt_waits(serve: Serve, connect: Connect) -> None:
    port, client = free_port(), connect()
    address = f"127.0.0.1:{port}"
    # On a busy machine the connection fails before the call is in its queue: then the call hears of the next attempt.
    later = r"\. The next attempt to connect is due in \d+ ms"
    text = rf"^{address}: no connection: Connection refused(; PULL_MESSAGE \(11\) was not sent|{later})$"
    with pytest.raises(RemotingConnectError, match=text):
        client.call(address, request(), 30_000)
    text = rf"^{address}: no connection: Connection refused{later}$"
    with pytest.raises(RemotingConnectError, match=text) as caught:
        client.call(address, request(), 30_000)
    assert caught.value.retryable
    serve(echo, port=port)
    eventually(lambda: _answered(lambda: client.call(address, request(3), 30_000)))
    assert client.counters().failed_connections == 1


def _answered(call: object) -> bool:
    assert callable(call)
    try:
        return bool(call().code == 0)
    except RemotingConnectError:
        return False


def test_attempts_become_rarer(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connector, "RECONNECTS", replace(connector.RECONNECTS, jitter=0.0))
    address, client = f"127.0.0.1:{free_port()}", connect()
    end = time.monotonic() + 1.2
    while time.monotonic() < end or client.counters().failed_connections < 2:
        with pytest.raises(RemotingConnectError):
            client.call(address, request(), 30_000)
        time.sleep(0.01)
    # at 0, 0.1, 0.26, 0.516 and 0.93 s, or later on a busy machine
    assert 2 <= client.counters().failed_connections <= 5


def test_the_pause_grows_to_its_bound_with_jitter_and_ends_with_an_answer() -> None:
    pauses = ReconnectPause()
    seen = []
    for _ in range(300):
        pauses.failed(1000.0, "refused")
        seen.append(pauses.until - 1000.0)
    expected = [min(0.1 * 1.6**n, 5.0) for n in range(300)]
    assert all(0.8 * e <= s <= 1.2 * e for s, e in zip(seen, expected, strict=True))
    assert len(set(seen[20:])) > 200
    pauses.worked()
    assert (pauses.until, pauses.reason) == (0.0, "")
    pauses.failed(0.0, "")
    assert pauses.until <= 0.12


def test_a_server_that_ends_every_connection_is_not_asked_without_a_pause(serve: Serve, connect: Connect) -> None:
    server, client = serve(lambda connection, _: connection.reset()), connect()
    end = time.monotonic() + 1
    kinds = set[type]()
    while time.monotonic() < end or len(kinds) < 2:
        with pytest.raises(RemotingError) as caught:
            client.call(server.address, request(), 30_000)
        kinds.add(type(caught.value))
    assert kinds == {RemotingError, RemotingConnectError}
    assert server.accepted <= 6


@pytest.mark.parametrize("how", ["reset", "close", "half an answer"])
def test_a_connection_that_is_lost_after_the_request_leaves_its_outcome_unknown(
    serve: Serve, connect: Connect, how: str
) -> None:
    def fail(connection: StubConnection, command: RemotingCommand) -> bytes | None:
        if command.code == 34:
            return encode_command(echo(connection, command))
        if how == "reset":
            connection.reset()
        else:
            if how == "half an answer":
                connection.write(encode_command(echo(connection, command))[:-3])
            connection.writer.close()
        return None

    server, client = serve(fail), connect()
    assert client.call(server.address, request(code=34), 30_000).code == 0
    reason = {"reset": "Connection reset by peer"}.get(how, "the server closed it")
    with pytest.raises(RemotingError) as caught:
        client.call(server.address, request(code=310), 30_000)
    assert type(caught.value) is RemotingError
    assert str(caught.value) == (
        f"{server.address}: the connection was lost before the answer to SEND_MESSAGE_V2 (310): {reason}"
    )
    # It had answered before, so that there is no pause.
    assert client.call(server.address, request(code=34), 30_000).code == 0


def test_all_calls_of_a_lost_connection_end(serve: Serve, connect: Connect) -> None:
    def after_ten(connection: StubConnection, _: RemotingCommand) -> None:
        if len(connection.requests) == 10:
            connection.reset()

    server, client = serve(after_ten), connect()
    futures = [client.submit(server.address, request(n), 60_000) for n in range(10)]
    assert [type(future.exception(30)) for future in futures] == [RemotingError] * 10


def test_a_call_whose_first_byte_was_not_written_was_not_seen(serve: Serve, connect: Connect) -> None:
    server, client = serve(echo), connect()
    client.call(server.address, request(), 30_000)
    (connection,) = server.connections
    server.loop.loop.call_soon_threadsafe(connection.writer.transport.pause_reading)  # type: ignore[attr-defined]
    large = client.submit(server.address, request(1, body=bytes(8 << 20)), 60_000)  # more than the kernel takes
    small = client.submit(server.address, request(2), 60_000)
    time.sleep(0.2)
    server.loop.loop.call_soon_threadsafe(connection.reset)
    assert type(large.exception(30)) is RemotingError
    assert type(small.exception(30)) is RemotingConnectError
    assert str(small.exception()).startswith(f"{server.address}: PULL_MESSAGE (11) was not sent: ")


def test_a_server_that_stands_still_costs_one_time_out_and_its_connection(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io_loop, "_TICK_S", 30.0)  # the deadline wakes the loop, not its tick
    server, client = (
        serve(lambda connection, command: echo(connection, command) if command.code == 34 else None),
        connect(),
    )
    assert client.call(server.address, request(code=34), 30_000).code == 0
    others = client.submit(server.address, request(code=105), 60_000)
    begin = time.monotonic()
    text = rf"^{server.address}: no answer to PULL_MESSAGE \(11\) within 300 ms$"
    with pytest.raises(RemotingTimeoutError, match=text):
        client.call(server.address, request(), 300)
    assert 0.25 < time.monotonic() - begin < 20, "its tick is 30 s"
    with pytest.raises(RemotingError, match="a call waited in vain, and nothing else came from the server"):
        others.result(30)
    assert client.call(server.address, request(code=34), 30_000).code == 0
    assert server.accepted == 2


def test_a_time_out_of_one_call_spares_a_connection_that_works(serve: Serve, connect: Connect) -> None:
    late: list[RemotingCommand] = []

    def most(connection: StubConnection, command: RemotingCommand) -> RemotingCommand | None:
        if command.code != 11:
            return echo(connection, command)
        late.append(command)
        return None

    server, client = serve(most), connect()
    waiting = client.submit(server.address, request(), 400)
    end = time.monotonic() + 0.6
    while time.monotonic() < end:
        client.call(server.address, request(code=34), 30_000)
    assert type(waiting.exception(30)) is RemotingTimeoutError
    server.connections[0].send(response_to(late[0], 0))
    eventually(lambda: client.counters().unknown_answers == 1)
    assert client.call(server.address, request(code=34), 30_000).code == 0
    assert server.accepted == 1


@contextlib.contextmanager
def full_backlog() -> Iterator[str]:
    """An address whose connections are never made, nor refused."""
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = opened.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        time.sleep(0.1)
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    ("connect_ms", "timeout_ms", "text"),
    [
        (300, 20_000, r"no connection: no answer in time; PULL_MESSAGE \(11\) was not sent$"),
        (20_000, 300, r"PULL_MESSAGE \(11\) was not sent: no connection within 300 ms$"),
    ],
)
def test_a_connection_that_is_not_made_in_time(connect: Connect, connect_ms: int, timeout_ms: int, text: str) -> None:
    client = connect(connect_timeout_ms=connect_ms)
    with full_backlog() as address:
        begin = time.monotonic()
        with pytest.raises(RemotingConnectError, match=f"^{address}: {text}"):
            client.call(address, request(), timeout_ms)
        assert 0.2 < time.monotonic() - begin < 15, "the other limit is 20 s"
        client.close()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (struct.pack(">iI", (16 << 20) + 1, 10), "oversized frame: 16777217 bytes"),
        (b"HTTP/1.1 400 Bad Request\r\n", "oversized frame"),
        (struct.pack(">iI", 100, 5 << 24), "unknown serialize type 5"),
        (struct.pack(">iI", 6, 2) + b"{]", "JSON header"),
    ],
)
def test_bytes_that_are_no_frame_end_the_connection(serve: Serve, connect: Connect, data: bytes, text: str) -> None:
    server, client = serve(lambda *_: data), connect()
    with pytest.raises(RemotingCommandError, match=rf"^{server.address}: .* answer to PULL_MESSAGE \(11\): .*{text}"):
        client.call(server.address, request(), 30_000)
    eventually(lambda: not server.connections)


def test_answers_before_bad_bytes_still_count(serve: Serve, connect: Connect) -> None:
    def second_is_bad(connection: StubConnection, command: RemotingCommand) -> bytes:
        good = encode_command(echo(connection, connection.requests[0]))
        return good + struct.pack(">iI", -5, 0) if len(connection.requests) == 2 else b""

    server, client = serve(second_is_bad), connect()
    first, second = (client.submit(server.address, request(n), 30_000) for n in (1, 2))
    assert first.result(30).ext_fields == {"n": "1"}
    assert type(second.exception(30)) is RemotingCommandError


def test_go_away_moves_calls_to_a_new_connection_and_lets_others_end(serve: Serve, connect: Connect) -> None:
    go_on = threading.Event()

    async def later(command: RemotingCommand) -> RemotingCommand:
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        return response_to(command, 19)

    def leaving(connection: StubConnection, command: RemotingCommand) -> object:
        if command.code == 11:
            return later(command)
        first = connection.server.accepted == 1
        return response_to(command, 1500, "go away") if first else echo(connection, command)

    server, client = serve(leaving), connect()
    poll = client.submit(server.address, request(code=11), 30_000)
    assert client.call(server.address, request(5, code=310), 30_000).ext_fields == {"n": "5"}
    assert server.accepted == 2 and len(server.connections) == 2
    go_on.set()
    assert poll.result(30).code == 19
    eventually(lambda: len(server.connections) == 1)


def test_a_second_go_away_is_the_answer(serve: Serve, connect: Connect) -> None:
    server, client = serve(lambda _, command: response_to(command, 1500, "go away")), connect()
    answer = client.call(server.address, request(), 30_000)
    assert (answer.code, answer.remark, len(server.requests)) == (1500, "go away", 2)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("nowhere.invalid:10911", "nowhere.invalid:10911: no connection: the name cannot be resolved"),
        ("10.0.0.3", "no connection: '10.0.0.3' is no address"),
        ("user@host:1", "is no address"),
    ],
)
def test_addresses_that_cannot_be_used(connect: Connect, address: str, text: str) -> None:
    with pytest.raises(RemotingConnectError, match=text):
        connect().call(address, request(), 20_000)


def test_a_reachable_address_is_named_beside_the_registered_one(connect: Connect) -> None:
    port = free_port()
    client = connect(address_map={"10.0.0.3:10911": f"127.0.0.1:{port}"})
    with pytest.raises(RemotingConnectError, match=rf"^10.0.0.3:10911 \(as 127.0.0.1:{port}\): no connection"):
        client.call("10.0.0.3:10911", request(), 30_000)


def test_a_frame_that_is_too_large_is_refused_before_anything_is_sent(serve: Serve, connect: Connect) -> None:
    server, client = serve(echo), connect()
    with pytest.raises(RemotingCommandError, match="at most 16777216 are allowed"):
        client.call(server.address, request(body=bytes(16 << 20)), 30_000)
    assert client.call(server.address, request(4), 30_000).ext_fields == {"n": "4"}
    assert server.accepted == 1


def test_a_server_that_comes_back_is_used_again(serve: Serve, connect: Connect) -> None:
    server, client = serve(echo), connect()
    for _ in range(3):
        eventually(lambda: _answered(lambda: client.call(server.address, request(), 30_000)))
        server.stop()
        eventually(lambda: client.counters().open_connections == 0)
        server.start()
    assert _answered(lambda: client.call(server.address, request(), 30_000))
