"""Crowds of connections to a server, in processes of a crew: idle ones, and busy ones that send and pull."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.frames import FrameDecoder, encode_command
from rmq_store.protocol.wire.request_codes import RequestCode

BODY: Final = bytes(100)
_READ_BYTES: Final = 1 << 16
_TIMEOUT_S: Final = 120.0
_BUSY_S: Final = 0.01


def raise_file_limit() -> None:
    """Let this process open as many files as it may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# -- idle -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def idle(number: int, address: str, count: int) -> Iterator[Callable[[], int]]:
    """One process of a crew: `count` connections of clients that have asked for a route once. Each call asks once more
    on every one, and returns how many were answered.
    """
    with _connected(address, count) as clients:

        def ask() -> int:
            return sum(_asked(client) for client in clients)

        ask()
        yield ask


def _asked(client: socket.socket) -> bool:
    client.sendall(encode_command(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)))
    decoder = FrameDecoder()
    while data := client.recv(_READ_BYTES):
        for answer in decoder.feed(data):
            return answer.code == 0
    return False


@contextlib.contextmanager
def only_connected(number: int, address: str, count: int) -> Iterator[Callable[[], int]]:
    """As `idle`, without a word: for a server that does not answer."""
    with _connected(address, count) as clients:
        yield lambda: len(clients)


@contextlib.contextmanager
def _connected(address: str, count: int) -> Iterator[list[socket.socket]]:
    raise_file_limit()
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as ends:
        yield [ends.enter_context(socket.create_connection((host, int(port)), _TIMEOUT_S)) for _ in range(count)]


@contextlib.contextmanager
def bare_server(number: int) -> Iterator[Callable[[], int]]:
    """One process of a crew: an event loop that takes connections and does nothing with them. Returns its port."""
    raise_file_limit()
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(loop.create_server(asyncio.Protocol, "127.0.0.1", 0, backlog=1024))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield lambda: int(server.sockets[0].getsockname()[1])
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


# -- busy -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def busy(number: int, address: str, topic: str, count: int) -> Iterator[Callable[[float], list[int]]]:
    """One process of a crew: in each call `count` connections, each of which sends a message of 100 B and pulls, again
    and again for so many seconds. Returns the rounds of every one.
    """
    raise_file_limit()
    with asyncio.Runner() as runner:

        async def work(duration_s: float) -> list[int]:
            # New ones each time: between two calls a server closes those that are silent for too long.
            clients = [_Busy(topic, number % 4) for number in range(count)]
            for client in clients:
                await client.connect(address)
            end_s = time.monotonic() + duration_s
            rounds = await asyncio.gather(*(client.work(end_s) for client in clients))
            for client in clients:
                await client.close()
            return rounds

        yield lambda duration_s: runner.run(work(duration_s))


class _Busy:
    """One connection."""

    def __init__(self, topic: str, queue_id: int) -> None:
        self._sent = {
            "a": "pg", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": "1", "h": "0", "i": "",
            "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        self._pulled = {
            "consumerGroup": "cg", "topic": topic, "queueId": str(queue_id), "queueOffset": "0", "maxMsgNums": "1",
            "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
            "expressionType": "TAG",
        }  # fmt: skip
        self._decoder = FrameDecoder()
        self._opaque = 0

    async def connect(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port))

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def work(self, end_s: float) -> int:
        """Rounds until `end_s`, one at least."""
        rounds = 0
        while not rounds or time.monotonic() < end_s:
            sent = await self._ask(RequestCode.SEND_MESSAGE_V2, self._sent, BODY)
            self._pulled["queueOffset"] = sent.ext_fields["queueOffset"]
            pulled = await self._ask(RequestCode.PULL_MESSAGE, self._pulled)
            assert pulled.body.find(BODY) > 0
            rounds += 1
        return rounds

    async def _ask(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> RemotingCommand:
        """The answer to a request, which is repeated while the server is busy, as RocketMQ's clients do."""
        while (answer := await self._asked(code, fields, body)).code == ResponseCode.SYSTEM_BUSY:
            await asyncio.sleep(_BUSY_S)
        assert answer.code == 0, answer
        return answer

    async def _asked(self, code: int, fields: Mapping[str, str], body: bytes) -> RemotingCommand:
        self._opaque += 1
        self._writer.write(encode_command(RemotingCommand(code, dict(fields), body, self._opaque)))
        while True:
            data = await asyncio.wait_for(self._reader.read(_READ_BYTES), _TIMEOUT_S)
            assert data, "the server has closed a busy connection"
            for answer in self._decoder.feed(data):
                if answer.opaque == self._opaque:
                    return answer
