"""How calls end, and how a thread waits for many of them."""

from __future__ import annotations

import threading
import time

import pytest

from rmq_store.protocol.errors import RemotingCommandError, RemotingTimeoutError
from rmq_store.protocol.wire.command import RemotingCommand, response_to
from rmq_store.remoting.transport import calls as calls_module
from rmq_store.remoting.transport import client as client_module
from rmq_store.remoting.transport.calls import Arrivals, Call

from .conftest import Connect, Serve

REQUEST = RemotingCommand(11)


def made(arrivals: Arrivals, timeout_ms: int = 60_000) -> Call:
    return Call("ns:1", REQUEST, timeout_ms, time.monotonic(), arrivals.notice)


def test_a_call_ends_once() -> None:
    ended: list[Call] = []
    call = Call("ns:1", REQUEST, 1000, time.monotonic(), ended.append)
    first = response_to(REQUEST, 0)
    call.end(first)
    call.expire(connected=True)
    call.lost("reset")
    assert ended == [call] and call.answer() is first


def test_a_waiting_thread_gets_each_call_in_whatever_order_they_end() -> None:
    arrivals = Arrivals()
    calls = [made(arrivals) for _ in range(2000)]
    thread = threading.Thread(target=lambda: [call.end(response_to(REQUEST, 0)) for call in reversed(calls)])
    thread.start()
    for call in calls[::3]:
        arrivals.wait(call)
        assert call.answer().code == 0
    thread.join()


def test_a_call_that_ends_just_before_its_thread_sleeps_wakes_it() -> None:
    arrivals = Arrivals()
    call = made(arrivals, timeout_ms=1)

    class Late(threading.Event):
        def clear(self) -> None:
            call.end(response_to(REQUEST, 0))
            super().clear()

        def wait(self, timeout: float | None = None) -> bool:
            raise AssertionError("it sleeps, and nobody wakes it")

    arrivals._arrived = Late()
    arrivals.wait(call)
    assert call.answer().code == 0


def test_a_wait_ends_although_the_loop_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that stands still nobody ends the call at its deadline."""
    monkeypatch.setattr(calls_module, "SLACK_S", 0.0)
    arrivals = Arrivals()
    call = made(arrivals, timeout_ms=1)
    arrivals.wait(call)
    with pytest.raises(RemotingTimeoutError, match=r"ns:1: no answer to PULL_MESSAGE \(11\) within 1 ms, nor an end"):
        call.answer()


def test_a_request_that_is_no_frame_fails_alone(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = client_module.encode_command

    def encode(command: RemotingCommand) -> bytes:
        if command.body == b"bad":
            raise RemotingCommandError("too large")
        return original(command)

    monkeypatch.setattr(client_module, "encode_command", encode)
    server = serve(lambda _, command: response_to(command, 0, body=command.body))
    client, arrivals = connect(), Arrivals()
    requests = [RemotingCommand(11, body=body) for body in (b"1", b"bad", b"2")]
    calls = client.submit_all(server.address, requests, arrivals.notice, 10_000)
    for call in calls:
        arrivals.wait(call)
    assert isinstance(calls[1].outcome, RemotingCommandError)
    assert [calls[0].answer().body, calls[2].answer().body] == [b"1", b"2"]
    assert [command.body for command in server.requests] == [b"1", b"2"]
