"""Pulls over sockets: usual answers become no commands, all others do, and every call ends as the calls of others."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from helpers.cluster.stub_server import StubConnection
from rmq_store.format.bytes import native
from rmq_store.protocol.errors import RemotingConnectError, RemotingError, RemotingTimeoutError, ResponseCode
from rmq_store.protocol.wire.command import RemotingCommand, response_to
from rmq_store.protocol.wire.frames import encode_command
from rmq_store.protocol.wire.pull_answers import FrameArea, PullAnswer
from rmq_store.remoting.cluster.pull_request import answer_of
from rmq_store.remoting.transport.calls import Arrivals, Call
from rmq_store.remoting.transport.client import RemotingClient
from rmq_store.remoting.transport.connection import OPAQUE_MAX, Connection
from rmq_store.remoting.transport.pull_reading import End, PullReading
from rmq_store.remoting.transport.pull_round import PullRound
from rmq_store.remoting.transport.template import RequestTemplate

from .conftest import Connect, Serve
from .test_client import eventually

needs_native = pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")
TEMPLATE = RequestTemplate(RemotingCommand(11, {"topic": "Orders"}), ("queueOffset", "maxMsgNums"))
LARGEST = 900_000
AREA_BYTES = 600_000


@pytest.fixture(params=["python", pytest.param("extension", marks=needs_native)], autouse=True)
def is_native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether usual answers are placed."""
    monkeypatch.setattr(native, "LOADED", request.param == "extension")
    return bool(request.param == "extension")


def found(command: RemotingCommand, body: bytes | None = None) -> RemotingCommand:
    offset = int(command.ext_fields["queueOffset"])
    fields = {"nextBeginOffset": f"{offset + 32}", "minOffset": "0", "maxOffset": "77", "suggestWhichBrokerId": "1"}
    return response_to(command, 0, "FOUND", fields, b"%d" % offset if body is None else body)


def echo(_: StubConnection, command: RemotingCommand) -> RemotingCommand:
    return found(command)


def pulled(client: RemotingClient, address: str, offsets: list[int], timeout_ms: int = 30_000) -> PullRound:
    arrivals = Arrivals()
    pulls = [(offset, 32) for offset in offsets]
    now = time.monotonic()
    waiting = client.submit_round(
        PullRound(address, TEMPLATE, pulls, FrameArea(AREA_BYTES), timeout_ms, now, arrivals.notice)
    )
    arrivals.wait(waiting)
    return waiting


def answers(waiting: PullRound) -> list[PullAnswer]:
    """All answers, with what was placed put together again."""
    found = []
    for number, (start, end) in enumerate(waiting.answers.places().tolist()):
        if start >= 0:
            suggested, frames = waiting.answers.suggested(number), waiting.answers.area.data[start:end].tobytes()
            found.append(expected(waiting.pulls[number][0], frames)._replace(suggest_broker_id=suggested))
        else:
            outcome = waiting.outcome_of(number)
            assert isinstance(outcome, RemotingCommand | PullAnswer)
            found.append(answer_of(outcome, "broker-a"))
    return found


def expected(offset: int, body: bytes | None = None) -> PullAnswer:
    return PullAnswer(0, offset + 32, 0, 77, 1, b"%d" % offset if body is None else body, "FOUND")


def nobody_is_awaited(client: RemotingClient) -> bool:
    """Whether the connections of the client have forgotten the rounds."""
    return not any(made._pulls.rounds or made._rounds for made in client._loops[os.getpid()]._all)


@pytest.mark.parametrize("bytewise", [False, True])
def test_a_round_of_pulls_gets_its_answers(serve: Serve, connect: Connect, is_native: bool, bytewise: bool) -> None:
    server, client = serve(echo, bytewise=bytewise), connect()
    offsets = list(range(12 if bytewise else 300))
    waiting = pulled(client, server.address, offsets)
    assert answers(waiting) == [expected(offset) for offset in offsets]
    assert waiting.answers.placed == (len(offsets) if is_native else 0)
    assert [command.ext_fields["queueOffset"] for command in server.requests] == list(map(str, offsets))
    assert client.counters().unknown_answers == 0
    eventually(lambda: nobody_is_awaited(client))


def test_answers_larger_than_a_read_come_whole(serve: Serve, connect: Connect, is_native: bool) -> None:
    bodies = [bytes([number]) * size for number, size in enumerate((1, LARGEST, 300, 262_000, 300_000, 5))]
    server, client = serve(lambda _, command: found(command, bodies[int(command.ext_fields["queueOffset"])])), connect()
    waiting = pulled(client, server.address, list(range(len(bodies))))
    assert answers(waiting) == [expected(number, body) for number, body in enumerate(bodies)]
    assert waiting.answers.placed == (5 if is_native else 0), "one has no room in the area"


def test_other_codes_and_other_calls_get_commands_between_them(
    serve: Serve, connect: Connect, is_native: bool
) -> None:
    def every_third(_: StubConnection, command: RemotingCommand) -> RemotingCommand:
        is_end = int(command.ext_fields["queueOffset"]) % 3 == 0
        return response_to(command, 19, "no", {"n": "1"}) if is_end else found(command)

    server, client = serve(every_third), connect()
    waiting = pulled(client, server.address, list(range(30)))
    codes = [getattr(waiting.outcome_of(number), "code", 0) for number in range(30)]
    assert codes == [19, 0, 0] * 10 and waiting.answers.placed == (20 if is_native else 0)
    eventually(lambda: nobody_is_awaited(client))
    # A pull of who wants a command gets one, though its answer is usual.
    answer = client.call(server.address, TEMPLATE.request(4, 32).command(), 30_000)
    assert answer.body == b"4" and answer.came_from == server.address


def test_answers_that_have_less_than_was_asked_for_come_with_their_own_offsets(serve: Serve, connect: Connect) -> None:
    def less(_: StubConnection, command: RemotingCommand) -> RemotingCommand:
        made = found(command)
        made.ext_fields["nextBeginOffset"] = str(int(made.ext_fields["nextBeginOffset"]) - 1)
        return made

    waiting = pulled(connect(), serve(less).address, list(range(30)))
    assert answers(waiting) == [expected(offset)._replace(next_offset=offset + 31) for offset in range(30)]
    assert waiting.answers.placed == 0


def test_pulls_that_the_server_wants_on_another_connection_are_sent_again(
    serve: Serve, connect: Connect, is_native: bool
) -> None:
    def leaving(_: StubConnection, command: RemotingCommand) -> RemotingCommand:
        is_away = server.accepted == 1 and command.ext_fields["queueOffset"] != "7"
        return response_to(command, ResponseCode.GO_AWAY) if is_away else found(command)

    server, client = serve(leaving), connect()
    waiting = pulled(client, server.address, [5, 6, 7])
    assert answers(waiting) == [expected(5), expected(6), expected(7)]
    assert waiting.answers.placed == is_native and server.accepted == 2


def test_answers_before_bytes_that_are_no_frame_are_taken(serve: Serve, connect: Connect, is_native: bool) -> None:
    def then_bad(connection: StubConnection, command: RemotingCommand) -> RemotingCommand | bytes:
        return found(command) if command.ext_fields["queueOffset"] == "0" else b"\xff" * 30

    server, client = serve(then_bad), connect()
    waiting = pulled(client, server.address, [0, 1])
    assert waiting.answers.placed == is_native
    assert is_native or isinstance(waiting.outcome_of(0), RemotingCommand)
    lost = waiting.outcome_of(1)
    assert isinstance(lost, RemotingError) and "bad lengths" in str(lost)
    eventually(lambda: nobody_is_awaited(client))


def test_an_answer_after_its_time_is_nobodys_and_so_is_a_second_one(serve: Serve, connect: Connect) -> None:
    held: list[RemotingCommand] = []

    def late(connection: StubConnection, command: RemotingCommand) -> RemotingCommand | None:
        if command.ext_fields["queueOffset"] == "0":
            held.append(command)
            return None
        connection.send(found(command))
        return found(command)

    server, client = serve(late), connect()
    pulled(client, server.address, [1])
    arrivals = Arrivals()
    now = time.monotonic()
    lost = client.submit_round(
        PullRound(server.address, TEMPLATE, [(0, 32), (4, 32)], FrameArea(AREA_BYTES), 500, now, arrivals.notice)
    )
    pulled(client, server.address, [2])  # the connection is not dead
    arrivals.wait(lost)
    assert isinstance(lost.outcome_of(0), RemotingTimeoutError) and not isinstance(lost.outcome_of(1), Exception)
    server.connections[0].send(found(held[0]))
    server.connections[0].send(found(held[0]))
    assert answers(pulled(client, server.address, [3])) == [expected(3)]
    eventually(lambda: client.counters().unknown_answers == 6)
    assert server.accepted == 1
    eventually(lambda: nobody_is_awaited(client))


@needs_native
@pytest.mark.parametrize("is_native", ["extension"], indirect=True)
def test_a_client_that_closes_ends_rounds_after_the_extension_has_left_the_socket(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number may be that of another file as soon as it is closed."""
    inside: list[PullReading] = []
    closed_inside: list[bool] = []
    receive, close = PullReading.receive, Connection.close

    def watched_receive(reading: PullReading, *given: Any) -> tuple[End, int, int]:
        inside.append(reading)
        try:
            return receive(reading, *given)
        finally:
            inside.clear()

    def watched_close(connection: Connection) -> list[Call]:
        closed_inside.append(bool(inside))
        return close(connection)

    monkeypatch.setattr(PullReading, "receive", watched_receive)
    monkeypatch.setattr(Connection, "close", watched_close)

    def first_only(_: StubConnection, command: RemotingCommand) -> RemotingCommand | None:
        return found(command) if command.ext_fields["queueOffset"] == "0" else None

    server, client = serve(first_only), connect()
    arrivals = Arrivals()
    waiting = PullRound(
        server.address, TEMPLATE, [(0, 32), (1, 32)], FrameArea(AREA_BYTES), 600_000, time.monotonic(), arrivals.notice
    )
    client.submit_round(waiting)
    eventually(lambda: bool(waiting.answers.placed and inside))
    client.close()
    arrivals.wait(waiting)
    assert closed_inside == [False]
    assert waiting.outcome_of(0) is None and isinstance(waiting.outcome_of(1), RemotingError)


def test_answers_of_two_rounds_in_one_piece_end_both(serve: Serve, connect: Connect, is_native: bool) -> None:
    """What is read with the last answer of a round is looked at without another byte from the server."""
    held: list[RemotingCommand] = []

    def together(connection: StubConnection, command: RemotingCommand) -> bytes | None:
        held.append(command)
        return b"".join([encode_command(found(each)) for each in held]) if len(held) == 4 else None

    server, client = serve(together), connect()
    arrivals, now = Arrivals(), time.monotonic()
    rounds = [
        client.submit_round(
            PullRound(server.address, TEMPLATE, pulls, FrameArea(AREA_BYTES), 30_000, now, arrivals.notice)
        )
        for pulls in ([(0, 32), (1, 32)], [(2, 32), (3, 32)])
    ]
    for waiting in rounds:
        arrivals.wait(waiting)
        assert answers(waiting) == [expected(offset) for offset, _ in waiting.pulls]
        assert waiting.answers.placed == (2 if is_native else 0)
    eventually(lambda: nobody_is_awaited(client))


def test_a_round_that_cannot_be_written_fails_as_a_whole_without_a_byte_sent(connect: Connect) -> None:
    waiting = pulled(connect(), "127.0.0.1:1", [1, 2, 3])
    assert not waiting.started and waiting.answers.placed == 0
    assert all(isinstance(waiting.outcome_of(number), RemotingConnectError) for number in range(3))


def test_opaques_of_rounds_do_not_overlap_where_they_begin_anew(serve: Serve, connect: Connect) -> None:
    server, client = serve(echo), connect()
    pulled(client, server.address, [0])
    (connection,) = client._loops[os.getpid()]._all
    connection._last_opaque = OPAQUE_MAX - 5
    assert answers(pulled(client, server.address, list(range(8)))) == [expected(offset) for offset in range(8)]
    assert [command.opaque for command in server.requests[1:]] == list(range(1, 9))
    client.call(server.address, TEMPLATE.request(4, 32).command(), 30_000)
    assert server.requests[-1].opaque == 9
