"""A server that stops loses no connection which asyncio has accepted in the same moment."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

from helpers.cluster.fault_proxy import FaultProxy
from helpers.cluster.stub_server import StubLoop, StubServer, echo
from rmq_store.server.transport.listener import Listener

# asyncio accepts in one iteration, makes the transport in the next, and tells the protocol in the third.
ITERATIONS = range(5)


@pytest.fixture(scope="module", autouse=True)
def exempt_what_earlier_tests_left() -> None:
    """Each test ends with a full collection, which would walk all of that, for seconds."""
    gc.collect()
    gc.freeze()


@contextmanager
def accepted_while_it_stops(
    loop: asyncio.AbstractEventLoop, port: int, stop: Callable[[], Awaitable[None]], iterations: int
) -> Iterator[socket.socket]:
    """A client whose connection asyncio finds `iterations` of its loop before `stop` begins."""
    is_held, is_there = threading.Event(), threading.Event()
    begun: list[asyncio.Future[None]] = []

    async def stopping() -> None:
        for _ in range(iterations):
            await asyncio.sleep(0)
        await stop()

    def hold() -> None:
        is_held.set()
        assert is_there.wait(20)
        begun.append(asyncio.ensure_future(stopping()))

    loop.call_soon_threadsafe(hold)
    assert is_held.wait(20)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        is_there.set()
        yield client


def is_ended(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_free_port_belongs_to_one_listener_before_it_listens() -> None:
    """The kernel gives the port of a socket that shares it to others that would share it, too."""
    listener = Listener("127.0.0.1", 0, lambda _: None)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", listener.port))
    listener.start()
    listener.close()


def test_a_listener_comes_back_to_its_port_at_once() -> None:
    """The connections of the one before are still known to the kernel."""
    listener = Listener("127.0.0.1", 0, lambda _: None)
    listener.start()
    with socket.create_connection(("127.0.0.1", listener.port), timeout=20):
        listener.close()
        again = Listener("127.0.0.1", listener.port, lambda _: None)
        again.start()
        again.close()


@pytest.mark.parametrize("iterations", ITERATIONS)
def test_a_listener_ends_a_connection_that_comes_while_it_closes(iterations: int) -> None:
    listener = Listener("127.0.0.1", 0, lambda _: None)
    listener.start()
    with accepted_while_it_stops(listener._loop, listener.port, listener._close, iterations) as client:
        assert is_ended(client)
    listener.close()
    gc.collect()


@pytest.mark.parametrize("iterations", ITERATIONS)
@pytest.mark.parametrize("make", [lambda loop: StubServer(echo, loop=loop), lambda loop: FaultProxy("x:1", loop=loop)])
def test_servers_of_the_tests_do_so_too(make: Callable[[StubLoop], StubServer | FaultProxy], iterations: int) -> None:
    loop = StubLoop()
    server = make(loop)
    stop = server._stop if isinstance(server, StubServer) else server._cut_off
    with accepted_while_it_stops(loop.loop, server.port, stop, iterations) as client:
        assert is_ended(client)
    server.close()
    loop.close()
    gc.collect()
