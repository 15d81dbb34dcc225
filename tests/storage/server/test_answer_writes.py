"""Answers are written by the threads that make them: whole, once, and never to the connection of somebody else."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.frames import FrameDecoder, encode_command
from rmq_store.server.requests.request import Request
from rmq_store.server.transport import connection as connection_module
from rmq_store.server.transport.connection import Connection
from rmq_store.server.transport.listener import Listener

PATIENCE_S = 60.0
THREADS = 4
ANSWERS = 60
BODY_BYTES = 200_000


def eventually(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.005)


class Asked:
    """A client that has sent one request, and the request as a listener got it."""

    def __init__(self) -> None:
        requests: list[Request] = []
        self.listener = Listener("127.0.0.1", 0, requests.extend)
        self.listener.start()
        self.client = socket.create_connection(("127.0.0.1", self.listener.port), PATIENCE_S)
        self.client.sendall(encode_command(RemotingCommand(1)))
        eventually(lambda: requests)
        self.request = requests[0]
        assert isinstance(self.request.peer, Connection)
        self.connection = self.request.peer

    def answer(self, opaque: int, body: bytes) -> None:
        command = self.request.answer(body=body)
        command.opaque = opaque
        self.request.reply(command)

    def close(self) -> None:
        self.client.close()
        self.listener.close()


@pytest.fixture
def asked() -> Iterator[Asked]:
    asked = Asked()
    yield asked
    asked.close()


def test_a_client_that_reads_late_gets_the_answers_of_all_threads_whole_and_once(asked: Asked) -> None:
    def answer(thread: int) -> None:
        for number in range(thread, THREADS * ANSWERS, THREADS):
            asked.answer(number, bytes([number % 256]) * BODY_BYTES)

    threads = [threading.Thread(target=answer, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    eventually(lambda: asked.connection._transport_has_bytes)  # the socket is full; only now somebody reads
    decoder, found = FrameDecoder(), []
    while len(found) < THREADS * ANSWERS:
        found += decoder.feed(asked.client.recv(1 << 16))
    for thread in threads:
        thread.join()

    assert sorted(one.opaque for one in found) == list(range(THREADS * ANSWERS))
    assert all(one.body == bytes([one.opaque % 256]) * BODY_BYTES for one in found)
    each = [[one.opaque for one in found if one.opaque % THREADS == thread] for thread in range(THREADS)]
    assert all(sorted(numbers) == numbers for numbers in each)


def test_an_answer_that_the_socket_takes_does_not_wake_up_the_loop(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[Any] = []
    monkeypatch.setattr(asyncio.BaseEventLoop, "call_soon_threadsafe", lambda _, *given: woken.append(given))
    asked.answer(7, b"soon")
    monkeypatch.undo()

    found: list[RemotingCommand] = []
    decoder = FrameDecoder()
    while not found:
        found += decoder.feed(asked.client.recv(1 << 16))
    assert [(one.opaque, one.body) for one in found] == [(7, b"soon")]
    assert woken == []


def test_nothing_is_written_to_a_descriptor_after_its_connection_has_ended(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be that of another client by then."""
    written: list[Any] = []
    asked.client.close()
    eventually(lambda: not asked.listener.connections)
    monkeypatch.setattr(connection_module.os, "write", lambda *given: written.append(given) or len(given[1]))
    asked.answer(7, b"late")
    assert written == []


def test_the_end_of_a_connection_waits_for_an_answer_that_is_being_written(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise asyncio would close the descriptor between the look at it and the call."""
    is_writing, goes_on = threading.Event(), threading.Event()

    def write(descriptor: int, data: bytes) -> int:
        is_writing.set()
        assert goes_on.wait(PATIENCE_S)
        still_open.append(os.fstat(descriptor).st_mode)
        return len(data)

    still_open: list[int] = []
    monkeypatch.setattr(connection_module.os, "write", write)
    thread = threading.Thread(target=asked.answer, args=(7, b"now"))
    thread.start()
    assert is_writing.wait(PATIENCE_S)
    asked.client.close()
    eventually(lambda: asked.connection._transport is None)
    goes_on.set()
    thread.join()
    assert stat.S_ISSOCK(still_open[0])
