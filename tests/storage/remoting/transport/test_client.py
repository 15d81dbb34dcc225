"""Calls over one connection: pipelining, order, oneway, requests of the server, memory, threads, forks."""

from __future__ import annotations

import asyncio
import os
import pickle  # noqa: TID251 - our own
import threading
import time
import warnings
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from helpers.cluster.stub_server import StubConnection, echo
from rmq_store.client import (
    RemotingConnectError,
    RemotingError,
    RemotingTooMuchRequestError,
    UsageError,
)
from rmq_store.protocol.errors import MQBrokerError
from rmq_store.protocol.wire.command import RemotingCommand, SerializeType, response_to
from rmq_store.remoting.cluster.cluster import checked
from rmq_store.remoting.transport import connection as connection_module
from rmq_store.remoting.transport import server_requests
from rmq_store.remoting.transport.calls import Arrivals, Call
from rmq_store.remoting.transport.client import RemotingClient
from rmq_store.remoting.transport.settings import ClusterSettings

from .conftest import Connect, Serve


def request(number: int = 0, code: int = 11, body: bytes = b"") -> RemotingCommand:
    return RemotingCommand(code, {"n": str(number)}, body)


def eventually(true: object, within_s: float = 60) -> None:
    assert callable(true)
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "it did not become true"
        time.sleep(0.005)


def together(client: RemotingClient, address: str, requests: list[RemotingCommand]) -> list[RemotingCommand]:
    arrivals = Arrivals()
    calls = client.submit_all(address, requests, arrivals.notice, 30_000)
    for call in calls:
        arrivals.wait(call)
    return [call.answer() for call in calls]


@pytest.mark.parametrize("kind", SerializeType)
def test_an_answer_comes_back_with_fields_body_and_remark(serve: Serve, connect: Connect, kind: SerializeType) -> None:
    server = serve(lambda _, command: response_to(command, 17, "no route", command.ext_fields, command.body))
    asked = RemotingCommand(105, {"topic": "T"}, b"body", serialize_type=kind)
    answer = connect().call(server.address, asked, 30_000)
    assert (answer.code, answer.remark, answer.ext_fields, answer.body) == (17, "no route", {"topic": "T"}, b"body")
    with pytest.raises(MQBrokerError, match=rf"CODE: 17 .*no route BROKER: broker-a \({server.address}\)") as raised:
        checked(answer, "broker-a")
    assert raised.value.address == server.address
    assert asked.opaque == 0 and server.requests[0].serialize_type == kind


def test_a_thousand_calls_of_eight_threads_share_one_connection(serve: Serve, connect: Connect) -> None:
    server, client = serve(echo), connect()

    def calls(first: int) -> list[int]:
        futures = [client.submit(server.address, request(first + n, body=bytes(n)), 20_000) for n in range(125)]
        answers = [future.result(20) for future in futures]
        assert [len(answer.body) for answer in answers] == list(range(125))
        return [int(answer.ext_fields["n"]) for answer in answers]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(calls, range(0, 1000, 125)))
    assert found == [list(range(first, first + 125)) for first in range(0, 1000, 125)]
    assert server.accepted == 1
    assert len({command.opaque for command in server.requests}) == 1000
    assert client.counters()[:4] == (1, 1, 0, 0)


@pytest.mark.parametrize("per_write", [1, 3, 64])
def test_requests_that_leave_together_arrive_in_their_order(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch, per_write: int
) -> None:
    monkeypatch.setattr(connection_module, "PIECES_PER_WRITE", per_write)
    server, client = serve(echo), connect()
    for _ in range(2):  # while the connection is made, and when it is there
        answers = together(client, server.address, [request(n, body=bytes(n)) for n in range(20)])
        assert [answer.ext_fields["n"] for answer in answers] == [str(n) for n in range(20)]
    assert [int(command.ext_fields["n"]) for command in server.requests] == [*range(20), *range(20)]
    assert together(client, server.address, []) == []


def test_requests_that_leave_together_may_be_taken_in_pieces(serve: Serve, connect: Connect) -> None:
    """Each of them is larger than what a socket takes at once."""
    server, client = serve(echo), connect()
    client.call(server.address, request(), 30_000)
    bodies = [bytes([n]) * ((700 << 10) + n) for n in range(8)]
    answers = together(client, server.address, [request(n, body=body) for n, body in enumerate(bodies)])
    assert [answer.body for answer in answers] == bodies


def test_requests_that_leave_together_cost_one_system_call(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = serve(echo), connect()
    client.call(server.address, request(), 30_000)
    flushes: list[int] = []
    original = connection_module.Connection._count

    def count(self: connection_module.Connection, sent: int) -> None:
        flushes.append(sent)
        original(self, sent)

    monkeypatch.setattr(connection_module.Connection, "_count", count)
    assert [answer.code for answer in together(client, server.address, [request(n) for n in range(16)])] == [0] * 16
    assert len(flushes) == 1


def test_requests_to_a_server_that_is_not_there_fail_each(serve: Serve, connect: Connect) -> None:
    server, client = serve(echo), connect()
    server.stop()
    ended: list[Call] = []
    calls = client.submit_all(server.address, [request(n) for n in range(3)], ended.append, 30_000)
    eventually(lambda: len(ended) == len(calls))
    assert [type(call.outcome).__name__ for call in calls] == ["RemotingConnectError"] * 3


def test_answers_come_in_any_order(serve: Serve, connect: Connect) -> None:
    waiting: list[RemotingCommand] = []

    def backwards(connection: StubConnection, command: RemotingCommand) -> None:
        waiting.append(command)
        if len(waiting) == 50:
            for one in reversed(waiting):
                connection.send(echo(connection, one))

    server, client = serve(backwards), connect()
    futures = [client.submit(server.address, request(n), 10_000) for n in range(50)]
    assert [future.result(10).ext_fields["n"] for future in futures] == [str(n) for n in range(50)]


def test_answers_of_unknown_opaques_are_ignored_and_counted(serve: Serve, connect: Connect) -> None:
    def wrong_first(connection: StubConnection, command: RemotingCommand) -> RemotingCommand:
        for opaque in (-1, 0, command.opaque + 1, 1 << 30):
            answer = response_to(command, 99)
            answer.opaque = opaque
            connection.send(answer)
        right = echo(connection, command)
        connection.server.loop.loop.call_later(0.05, connection.send, right)
        return None  # type: ignore[return-value]

    server, client = serve(wrong_first), connect()
    assert client.call(server.address, request(5), 30_000).ext_fields == {"n": "5"}
    assert client.counters().unknown_answers == 4


def test_a_long_poll_does_not_hold_up_other_calls(serve: Serve, connect: Connect) -> None:
    go_on = threading.Event()

    async def slow(command: RemotingCommand) -> RemotingCommand:
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        return response_to(command, 19)

    server = serve(lambda connection, command: slow(command) if command.code == 11 else echo(connection, command))
    client = connect()
    poll = client.submit(server.address, request(code=11), 30_000)
    assert client.call(server.address, request(code=34), 30_000).code == 0
    assert not poll.done()
    go_on.set()
    assert poll.result(30).code == 19


def test_an_answer_arrives_byte_by_byte(serve: Serve, connect: Connect) -> None:
    server, client = serve(echo, bytewise=True), connect()
    futures = [client.submit(server.address, request(n, body=b"x" * n), 10_000) for n in range(20)]
    assert [len(future.result(10).body) for future in futures] == list(range(20))


def test_a_oneway_call_is_complete_when_its_bytes_are_sent(serve: Serve, connect: Connect) -> None:
    server, client = serve(echo), connect()
    for number in range(3):
        client.call_oneway(server.address, request(number))
    eventually(lambda: len(server.requests) == 3)
    assert all(command.is_oneway for command in server.requests)
    assert client.counters().unknown_answers == 0
    server.stop()
    eventually(lambda: client.counters().open_connections == 0)
    with pytest.raises(RemotingConnectError):
        client.call_oneway(server.address, request())


def test_a_large_frame_goes_both_ways(serve: Serve, connect: Connect) -> None:
    server, client = serve(echo), connect()
    body = os.urandom(9 << 20)  # more than the buffer may hold beside other frames
    assert client.call(server.address, request(body=body), 20_000).body == body


def test_requests_of_the_server_are_answered_by_handlers(serve: Serve, connect: Connect) -> None:
    server, client = serve(echo), connect()
    seen: list[tuple[str, int]] = []

    def running_info(address: str, command: RemotingCommand) -> RemotingCommand:
        seen.append((address, command.code))
        return RemotingCommand(0, {"done": "true"}, b"{}")

    def notified(address: str, command: RemotingCommand) -> None:
        seen.append((address, command.code))
        # A handler may call: it does not run in the thread that reads.
        assert client.call(address, request(7), 30_000).ext_fields == {"n": "7"}

    def broken(address: str, command: RemotingCommand) -> None:
        raise ValueError("a secret")

    client.on_request(307, running_info)
    client.on_request(40, notified)
    client.on_request(39, broken)
    client.call(server.address, request(), 30_000)
    (connection,) = server.connections
    for opaque, (code, flag) in enumerate([(40, 2), (307, 0), (221, 0), (39, 0), (220, 2)], 1000):
        connection.send(RemotingCommand(code, opaque=opaque, flag=flag))
    eventually(lambda: sum(command.is_response for command in server.requests) == 3)
    answers = {command.opaque: command for command in server.requests if command.is_response}
    assert (answers[1001].code, answers[1001].ext_fields, answers[1001].body) == (0, {"done": "true"}, b"{}")
    assert (answers[1002].code, answers[1002].remark) == (
        3, "this client has no handler for GET_CONSUMER_STATUS_FROM_CLIENT (221)",
    )  # fmt: skip
    assert (answers[1003].code, answers[1003].remark) == (1, "ValueError")
    assert seen == [(server.address, 40), (server.address, 307)]
    eventually(lambda: client.counters().dropped_requests == 1)  # 220


def test_a_connection_without_calls_ends_and_a_new_one_is_made(serve: Serve, connect: Connect) -> None:
    server, client = serve(echo), connect(idle_close_ms=200)
    client.call(server.address, request(), 30_000)
    eventually(lambda: client.counters().open_connections == 0)
    assert client.call(server.address, request(4), 30_000).ext_fields == {"n": "4"}
    assert server.accepted == 2


def test_a_server_that_reads_nothing_does_not_fill_the_memory(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "WRITE_BUFFER_BYTES_MAX", 1 << 20)
    server, client = serve(echo), connect()
    client.call(server.address, request(), 30_000)
    (connection,) = server.connections
    server.loop.loop.call_soon_threadsafe(connection.writer.transport.pause_reading)  # type: ignore[attr-defined]
    time.sleep(0.1)
    body, futures = bytes(600 << 10), []

    def submit_all() -> None:
        futures.extend(client.submit(server.address, request(n, body=body), 60_000) for n in range(60))

    thread = threading.Thread(target=submit_all)
    thread.start()
    (waiting,) = client._loops[os.getpid()]._all
    eventually(lambda: futures and waiting._waiting_bytes)
    time.sleep(1)
    assert 0 < waiting._waiting_bytes <= 1 << 20
    assert 0 < len(futures) < 60 and thread.is_alive()
    client.close()
    thread.join(10)
    assert not thread.is_alive() and len(futures) == 60
    assert all(isinstance(future.exception(0), RemotingError | UsageError) for future in futures)


def test_a_frame_that_was_not_begun_is_taken_back_when_its_time_is_over(serve: Serve, connect: Connect) -> None:
    server, client = serve(echo), connect()
    client.call(server.address, request(), 30_000)
    (connection,) = server.connections
    reading = connection.writer.transport
    server.loop.loop.call_soon_threadsafe(reading.pause_reading)  # type: ignore[attr-defined]
    large = client.submit(server.address, request(1, body=bytes(7 << 20)), 60_000)  # more than the kernel takes
    text = r"PULL_MESSAGE \(11\) was not sent within 300 ms: the server takes no bytes$"
    with pytest.raises(RemotingTooMuchRequestError, match=text):
        client.call(server.address, request(2), 300)
    with pytest.raises(RemotingTooMuchRequestError, match=r"was not sent within 300 ms: \d+ bytes wait for the server"):
        client.call(server.address, request(3, body=bytes(7 << 20)), 300)
    last = client.submit(server.address, request(4), 60_000)
    server.loop.loop.call_soon_threadsafe(reading.resume_reading)  # type: ignore[attr-defined]
    assert (len(large.result(20).body), last.result(20).ext_fields) == (7 << 20, {"n": "4"})
    assert [command.ext_fields["n"] for command in server.requests] == ["0", "1", "4"]


def test_a_callback_may_submit_but_never_waits(serve: Serve, connect: Connect) -> None:
    server, client = serve(echo), connect()
    done: Future[RemotingCommand] = Future()

    def again(future: Future[RemotingCommand]) -> None:
        number = int(future.result().ext_fields["n"])
        if number == 100:
            done.set_result(future.result())
        else:
            client.submit(server.address, request(number + 1), 30_000).add_done_callback(again)

    client.submit(server.address, request(0), 30_000).add_done_callback(again)
    assert done.result(10).ext_fields == {"n": "100"}


def test_a_closed_client_refuses_and_ends_what_waits(serve: Serve, connect: Connect) -> None:
    server, client = serve(lambda *_: None), connect()
    waiting = client.submit(server.address, request(), 60_000)
    eventually(lambda: server.requests)
    client.close()
    with pytest.raises(
        Exception, match=r"connection was lost before the answer to PULL_MESSAGE \(11\): the client was closed"
    ):
        waiting.result(30)
    with pytest.raises(UsageError, match="the client is closed"):
        client.call(server.address, request(), 1000)
    client.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "rmq-remoting" and thread is client]


def test_a_client_pickles_as_its_settings(serve: Serve) -> None:
    server = serve(echo)
    with RemotingClient(
        ClusterSettings(name_servers=("a:1",), address_map={"10.0.0.3:10911": server.address})
    ) as client:
        client.call("10.0.0.3:10911", request(), 30_000)
        with pickle.loads(pickle.dumps(client)) as copy:  # noqa: S301
            assert copy.settings == client.settings
            assert copy.call("10.0.0.3:10911", request(3), 30_000).ext_fields == {"n": "3"}
    assert server.accepted == 2


def test_a_forked_child_opens_a_connection_of_its_own(serve: Serve, connect: Connect, tmp_path: Path) -> None:
    server, client = serve(echo), connect()
    client.call(server.address, request(), 30_000)
    inherited = client._loops[os.getpid()]._connections[server.address].socket
    assert inherited is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads is what is tested
        child = os.fork()
    if not child:
        status = 1
        try:
            answers = [client.call(server.address, request(n), 30_000).ext_fields["n"] for n in range(20)]
            closed = inherited.fileno() == -1
            (tmp_path / "answers").write_text(f"{answers == [str(n) for n in range(20)]} {closed}")
            client.close()
            status = 0
        finally:
            os._exit(status)
    for number in range(20):
        assert client.call(server.address, request(number), 30_000).ext_fields == {"n": str(number)}
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "answers").read_text() == "True True"
    assert server.accepted == 2
    assert client.call(server.address, request(9), 30_000).ext_fields == {"n": "9"}
    assert Counter(len(connection.requests) for connection in server.connections) == {22: 1}


def test_several_threads_that_call_first_make_one_loop_and_one_connection(serve: Serve, connect: Connect) -> None:
    server, client = serve(echo), connect()
    start = threading.Barrier(8)

    def first(number: int) -> str:
        start.wait()
        return client.call(server.address, request(number), 30_000).ext_fields["n"]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(first, range(8))) == [str(n) for n in range(8)]
    assert server.accepted == 1
    assert len(client._loops) == 1


def test_opaques_start_again_at_their_end_and_none_is_used_twice(serve: Serve, connect: Connect) -> None:
    held: list[RemotingCommand] = []

    def hold_11(connection: StubConnection, command: RemotingCommand) -> RemotingCommand | None:
        if command.code != 11:
            return echo(connection, command)
        held.append(command)
        return None

    server, client = serve(hold_11), connect()
    client.call(server.address, request(code=34), 30_000)
    (made,) = client._loops[os.getpid()]._all
    waiting = client.submit(server.address, request(1), 20_000)
    eventually(lambda: held)
    made._last_opaque = connection_module.OPAQUE_MAX - 1
    for number in range(4):
        assert client.call(server.address, request(number, code=34), 30_000).ext_fields == {"n": str(number)}
    assert [command.opaque for command in server.requests] == [1, 2, connection_module.OPAQUE_MAX, 1, 3, 4]
    server.connections[0].send(echo(server.connections[0], held[0]))
    assert waiting.result(30).ext_fields == {"n": "1"}


def test_calls_that_wait_for_an_answer_are_bounded(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "PENDING_MAX", 3)
    server, client = serve(lambda *_: None), connect()
    waiting = [client.submit(server.address, request(n), 20_000) for n in range(3)]
    with pytest.raises(RemotingTooMuchRequestError, match=f"^{server.address}: 3 calls wait for an answer$"):
        client.call(server.address, request(), 30_000)
    assert not any(future.done() for future in waiting)


def test_requests_of_a_server_beyond_the_bound_are_dropped_and_answers_go_on(serve: Serve, connect: Connect) -> None:
    server, client = serve(echo), connect()
    release = threading.Event()
    client.on_request(40, lambda *_: release.wait(20) and None)
    client.call(server.address, request(), 30_000)
    for _ in range(server_requests.WAITING_MAX + 500):
        server.connections[0].send(RemotingCommand(40, flag=2))
    assert client.call(server.address, request(5), 20_000).ext_fields == {"n": "5"}
    assert 490 <= client.counters().dropped_requests <= 500
    release.set()


def test_a_defect_ends_one_connection_and_no_more(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad, client = serve(echo), serve(echo), connect()
    for server in (good, bad):
        client.call(server.address, request(), 30_000)
    read = connection_module.Connection.read

    def broken(self: connection_module.Connection, *given: Any) -> object:
        if self.address == bad.address:
            raise ZeroDivisionError
        return read(self, *given)

    monkeypatch.setattr(connection_module.Connection, "read", broken)
    with pytest.raises(RemotingError, match="a defect of the client: ZeroDivisionError"):
        client.call(bad.address, request(), 30_000)
    assert "the connection ends because of a defect" in caplog.text
    assert client.call(good.address, request(6), 30_000).ext_fields == {"n": "6"}
    monkeypatch.undo()
    assert client.call(bad.address, request(7), 30_000).ext_fields == {"n": "7"}
    assert (good.accepted, bad.accepted) == (1, 2)
