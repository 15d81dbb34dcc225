"""Pulls over sockets: usual answers become no commands, all others do, and every call ends as the calls of others."""

from __future__ import annotations

import os

import pytest

from helpers.cluster.stub_server import StubConnection
from rmq_store.format.bytes import native
from rmq_store.protocol.errors import RemotingConnectError, RemotingError, RemotingTimeoutError, ResponseCode
from rmq_store.protocol.wire.command import RemotingCommand, response_to
from rmq_store.protocol.wire.pull_answers import PullAnswer
from rmq_store.remoting.cluster.pull_request import answer_of
from rmq_store.remoting.transport.calls import Arrivals, Call
from rmq_store.remoting.transport.client import RemotingClient
from rmq_store.remoting.transport.template import RequestTemplate

from .conftest import Connect, Serve

needs_native = pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")
TEMPLATE = RequestTemplate(RemotingCommand(11, {"topic": "Orders"}), ("queueOffset", "maxMsgNums"), takes_pulls=True)
LARGEST = 900_000


@pytest.fixture(params=["python", pytest.param("extension", marks=needs_native)], autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type:
    """What the outcome of a usual answer is."""
    monkeypatch.setattr(native, "LOADED", request.param == "extension")
    return RemotingCommand if request.param == "python" else PullAnswer


def found(command: RemotingCommand, body: bytes | None = None) -> RemotingCommand:
    offset = int(command.ext_fields["queueOffset"])
    fields = {"nextBeginOffset": f"{offset + 32}", "minOffset": "0", "maxOffset": "77", "suggestWhichBrokerId": "1"}
    return response_to(command, 0, "FOUND", fields, b"%d" % offset if body is None else body)


def echo(_: StubConnection, command: RemotingCommand) -> RemotingCommand:
    return found(command)


def pulled(client: RemotingClient, address: str, offsets: list[int]) -> list[Call]:
    arrivals = Arrivals()
    requests = [TEMPLATE.request(offset, 32) for offset in offsets]
    calls = client.submit_all(address, requests, arrivals.notice, 30_000)
    for call in calls:
        arrivals.wait(call)
    return calls


def answers(calls: list[Call]) -> list[PullAnswer]:
    return [answer_of(call.pulled(), "broker-a") for call in calls]


def expected(offset: int, body: bytes | None = None) -> PullAnswer:
    return PullAnswer(0, offset + 32, 0, 77, 1, b"%d" % offset if body is None else body, "FOUND")


def nobody_is_awaited(client: RemotingClient) -> bool:
    """Whether the connections of the client have forgotten the opaques of its pulls."""
    return not any(made._pulls.wanted for made in client._loops[os.getpid()]._all)


@pytest.mark.parametrize("bytewise", [False, True])
def test_a_round_of_pulls_gets_its_answers(serve: Serve, connect: Connect, kind: type, bytewise: bool) -> None:
    server, client = serve(echo, bytewise=bytewise), connect()
    offsets = list(range(12 if bytewise else 300))
    calls = pulled(client, server.address, offsets)
    assert answers(calls) == [expected(offset) for offset in offsets]
    assert {type(call.outcome) for call in calls} == {kind}
    assert [command.ext_fields["queueOffset"] for command in server.requests] == list(map(str, offsets))
    assert client.counters().unknown_answers == 0


def test_answers_larger_than_a_read_come_whole(serve: Serve, connect: Connect, kind: type) -> None:
    bodies = [bytes([number]) * size for number, size in enumerate((1, LARGEST, 300, 262_000, 300_000, 5))]
    server, client = serve(lambda _, command: found(command, bodies[int(command.ext_fields["queueOffset"])])), connect()
    calls = pulled(client, server.address, list(range(len(bodies))))
    assert answers(calls) == [expected(number, body) for number, body in enumerate(bodies)]
    assert {type(call.outcome) for call in calls} == {kind}


def test_other_codes_and_other_calls_get_commands_between_them(serve: Serve, connect: Connect, kind: type) -> None:
    def every_third(_: StubConnection, command: RemotingCommand) -> RemotingCommand:
        is_end = int(command.ext_fields["queueOffset"]) % 3 == 0
        return response_to(command, 19, "no", {"n": "1"}) if is_end else found(command)

    server, client = serve(every_third), connect()
    calls = pulled(client, server.address, list(range(30)))
    assert [type(call.outcome) for call in calls] == [RemotingCommand, kind, kind] * 10
    assert [call.pulled().code for call in calls] == [19, 0, 0] * 10
    assert nobody_is_awaited(client)
    # A pull of who wants a command gets one, though its answer is usual.
    answer = client.call(server.address, TEMPLATE.request(4, 32).command(), 30_000)
    assert answer.body == b"4" and answer.came_from == server.address


def test_a_pull_that_the_server_wants_on_another_connection_is_sent_again(
    serve: Serve, connect: Connect, kind: type
) -> None:
    def leaving(_: StubConnection, command: RemotingCommand) -> RemotingCommand:
        return response_to(command, ResponseCode.GO_AWAY) if len(server.requests) <= 2 else found(command)

    server, client = serve(leaving), connect()
    calls = pulled(client, server.address, [5, 6])
    assert answers(calls) == [expected(5), expected(6)] and {type(call.outcome) for call in calls} == {kind}


def test_answers_before_bytes_that_are_no_frame_are_taken(serve: Serve, connect: Connect) -> None:
    def then_bad(connection: StubConnection, command: RemotingCommand) -> RemotingCommand | bytes:
        return found(command) if command.ext_fields["queueOffset"] == "0" else b"\xff" * 30

    server, client = serve(then_bad), connect()
    first, second = pulled(client, server.address, [0, 1])
    assert answers([first]) == [expected(0)]
    with pytest.raises(RemotingError, match="bad lengths"):
        second.pulled()
    assert nobody_is_awaited(client)


def test_an_answer_after_its_time_is_nobodys(serve: Serve, connect: Connect) -> None:
    held: list[RemotingCommand] = []

    def late(_: StubConnection, command: RemotingCommand) -> RemotingCommand | None:
        if command.ext_fields["queueOffset"] == "0":
            held.append(command)
            return None
        return found(command)

    server, client = serve(late), connect()
    pulled(client, server.address, [1])
    arrivals = Arrivals()
    (lost,) = client.submit_all(server.address, [TEMPLATE.request(0, 32)], arrivals.notice, 500)
    pulled(client, server.address, [2])  # the connection is not dead
    arrivals.wait(lost)
    assert isinstance(lost.outcome, RemotingTimeoutError)
    server.connections[0].send(found(held[0]))
    server.connections[0].send(found(held[0]))
    assert answers(pulled(client, server.address, [3])) == [expected(3)]
    assert (client.counters().unknown_answers, server.accepted) == (2, 1)
    assert nobody_is_awaited(client)


def test_a_round_that_cannot_be_written_fails_as_a_whole_without_a_byte_sent(connect: Connect) -> None:
    calls = pulled(connect(), "127.0.0.1:1", [1, 2, 3])
    for call in calls:
        assert not call.started
        with pytest.raises(RemotingConnectError):
            call.pulled()
