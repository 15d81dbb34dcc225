"""The one thread of a process that reads from all connections of a client, writes what waits, and watches the time."""

from __future__ import annotations

import logging
import selectors
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from rmq_store import real_time
from rmq_store.errors import StoreError, UsageError
from rmq_store.files.locks.background import Background
from rmq_store.files.locks.guard import Guard
from rmq_store.protocol.errors import (
    RemotingCommandError,
    RemotingConnectError,
    RemotingError,
    ResponseCode,
)
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.remoting.transport.calls import Call
from rmq_store.remoting.transport.connection import Connection, Received, State
from rmq_store.remoting.transport.connector import Connector, ReconnectPause, described
from rmq_store.remoting.transport.secrets import Credentials
from rmq_store.remoting.transport.server_requests import ServerRequests
from rmq_store.remoting.transport.settings import ClusterSettings

READ_BYTES: Final = 256 << 10
_TICK_S: Final = 1.0
_REST_S: Final = 60.0
_JOIN_S: Final = 5.0
_LOG = logging.getLogger(__name__)


class Counters(NamedTuple):
    """Figures of one client in one process, since it was made there."""

    open_connections: int
    made_connections: int
    failed_connections: int
    unknown_answers: int
    dropped_requests: int


class IoLoop:
    """All connections of one client in one process.

    `resubmit` sends a call again whose connection was to end (GO_AWAY); it runs in the thread of the loop.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        context: ssl.SSLContext | None,
        server_requests: ServerRequests,
        resubmit: Callable[[Call], None],
    ) -> None:
        self._settings = settings
        self._context = context
        self._server_requests = server_requests
        self._resubmit = resubmit
        self._lock = Guard()
        self._connections: dict[str, Connection] = {}
        self._pauses: dict[str, ReconnectPause] = {}
        self._connectors: dict[Connection, Connector] = {}
        self._all: set[Connection] = set()
        self._actions: deque[Callable[[], None]] = deque()
        self._woken = False
        self._wakes_at = 0.0
        self._closed = False
        self._made = self._failed = self._unknown = 0
        self._selector = selectors.DefaultSelector()
        # Ready when anything is, where the system has such a descriptor.
        self._others = self._selector.fileno() if isinstance(self._selector, selectors.EpollSelector) else None
        self._may_wait = False
        self._waker, self._wakened = socket.socketpair()
        for end in (self._waker, self._wakened):
            end.setblocking(False)
        self._selector.register(self._wakened, selectors.EVENT_READ)
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._thread = Background(self._run, "rmq-remoting")
        self._thread.start()

    # -- any thread

    def connection(self, address: str) -> Connection:
        """Return the connection to an address; a new one connects in the background.

        Raises:
            RemotingConnectError: the address is malformed, or the pause after a failure has not passed.
            UsageError: the client is closed, or a secret cannot be resolved.
        """
        with self._lock.entered():
            if self._closed:
                raise UsageError("the client is closed")
            found = self._connections.get(address)
            if found is not None and found.state in (State.CONNECTING, State.OPEN) and not found.failure:
                return found
            try:
                name = described(address, self._settings.target_of(address))
            except UsageError as error:
                raise RemotingConnectError(f"no connection: {error}") from error
            pause = self._pauses.setdefault(address, ReconnectPause())
            pause_s = pause.until - real_time.monotonic()
            if pause_s > 0:
                raise RemotingConnectError(
                    f"{pause.reason}. The next attempt to connect is due in {round(pause_s * 1000)} ms"
                )
            made = Connection(address, name, Credentials.of(self._settings), self._attention)
            self._connections[address] = made
            self._all.add(made)
            connector = self._connectors[made] = Connector(address, self._settings, self._context)
        Background(lambda: self._connect(made, connector), "rmq-connect").start()
        return made

    def counters(self) -> Counters:
        """Return the figures."""
        is_open = sum(connection.state is State.OPEN for connection in list(self._all))
        return Counters(is_open, self._made, self._failed, self._unknown, self._server_requests.dropped)

    def in_loop(self) -> bool:
        """Whether the caller is the thread of the loop, which must never wait."""
        return self._thread.is_current()

    def close(self) -> None:
        """End all connections; calls without an answer fail. Returns when the thread has ended, or after 5 s."""
        with self._lock.entered():
            self._closed = True
        self._wake()
        if not self.in_loop():
            self._thread.join(_JOIN_S)
        self._server_requests.close()

    def abandon(self) -> None:
        """In a forked child: close the copies of the parent's descriptors. There is no thread here."""
        self._closed = True
        for connection in self._all:
            connection.abandon()
        for connector in self._connectors.values():
            for made in connector.opened:
                if made.fileno() >= 0:
                    socket.close(made.detach())
        self._selector.close()
        for end in (self._waker, self._wakened):
            socket.close(end.detach())

    def _attention(self, connection: Connection) -> None:
        if connection.failure or connection.wants_to_write():
            self._post(lambda: self._look_after(connection))
        elif connection.next_deadline < self._wakes_at:
            self._wake()

    def _post(self, action: Callable[[], None]) -> None:
        self._actions.append(action)
        self._wake()

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            with suppress(OSError):  # full: it wakes up anyway
                self._waker.send(b"\0")

    def _connect(self, connection: Connection, connector: Connector) -> None:
        try:
            connected = connector.connect()
        except (StoreError, OSError, ValueError) as error:
            failure = error if isinstance(error, RemotingConnectError) else RemotingConnectError(
                f"{connection.name}: no connection: {error}"
            )  # fmt: skip
            self._post(lambda: self._not_connected(connection, failure))
        else:
            with self._lock:
                if not self._closed:
                    self._post(lambda: self._connected(connection, connected))
                    return
            connected.close()

    # -- the thread of the loop

    def _run(self) -> None:
        try:
            while not self._closed:
                self._turn()
        except BaseException:
            _LOG.exception("the thread of the remoting client ends")
            raise
        finally:
            with self._lock:
                self._closed = True
            for connection in list(self._all):
                self._end(connection, "the client was closed", is_failure=False)
            for action in list(self._actions):
                action()  # sockets of connections that were just made
            self._selector.close()
            self._waker.close()
            self._wakened.close()

    def _turn(self) -> None:
        now = real_time.monotonic()
        unread = [connection for connection in list(self._all) if connection.has_unread()]
        # A caller that comes while this is computed wakes the loop.
        self._wakes_at = float("inf")
        deadlines = [connection.next_deadline for connection in list(self._all)]
        self._wakes_at = min([now + (_TICK_S if deadlines else _REST_S), *deadlines])
        events = self._selector.select(0 if unread or self._actions else max(self._wakes_at - now, 0))
        # A connection may wait by itself while nothing else has anything to do.
        self._may_wait = len(events) + len(unread) <= 1 and not self._actions
        for key, mask in events:
            if key.data is None:
                with suppress(OSError):
                    self._wakened.recv(1024)
                self._woken = False
                continue
            self._serve(key.data, mask)
        for connection in unread:
            self._serve(connection, selectors.EVENT_READ)
        while self._actions:
            self._actions.popleft()()
        self._watch_time()

    def _serve(self, connection: Connection, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                connection.write()
            if mask & selectors.EVENT_READ:
                self._read(connection)
            self._look_after(connection)
        except Exception as error:
            # A defect of ours must not end the connections of others, nor let calls wait.
            _LOG.exception("%s: the connection ends because of a defect", connection.name)
            if connection in self._all:
                self._end(connection, f"a defect of the client: {type(error).__name__}")

    def _read(self, connection: Connection) -> None:
        received = Received([], "")
        if connection in self._all:
            wait_s = max(self._wakes_at - real_time.monotonic(), 0) if self._may_wait else 0
            received = connection.read(self._buffer, self._others, int(wait_s * 1000))
        if not connection.answered and received.has_answers:
            connection.answered = True
            with self._lock:
                self._pauses.setdefault(connection.address, ReconnectPause()).worked()
        for opaque, answer in received.pulled:
            call = connection.take(opaque, is_taken=True)
            if call is None:
                self._unknown += 1
            else:
                call.end(answer)
        for command in received.commands:
            if command.is_response:
                self._answered(connection, command)
            else:
                self._server_requests.put(connection, command)
        if received.has_answers:
            connection.settle_rounds()
        if received.failure:
            kind = RemotingCommandError if received.broke_protocol else RemotingError
            self._end(connection, received.failure, kind)

    def _answered(self, connection: Connection, response: RemotingCommand) -> None:
        call = connection.take(response.opaque)
        if call is None:
            self._unknown += 1
        elif response.code == ResponseCode.GO_AWAY and not call.repeated:
            # The server has not carried the request out.
            connection.leave()
            call.repeated, call.started = True, False
            self._resubmit(call)
        else:
            response.came_from = connection.address
            call.end(response)

    def _connected(self, connection: Connection, connected: socket.socket) -> None:
        self._connectors.pop(connection, None)
        if not connection.opened(connected):
            connected.close()
            return
        self._made += 1
        self._selector.register(connected, selectors.EVENT_READ, connection)
        self._look_after(connection)

    def _not_connected(self, connection: Connection, error: RemotingConnectError) -> None:
        self._connectors.pop(connection, None)
        self._failed += 1
        self._forget(connection, str(error))
        for call in connection.close():
            call.end(RemotingConnectError(f"{error}; {call.name} was not sent"))

    def _look_after(self, connection: Connection) -> None:
        """End a connection that failed or has to leave; otherwise wait for the right events."""
        if connection not in self._all:
            return  # it has ended
        if connection.failure:
            self._end(connection, connection.failure)
        elif connection.state is State.LEAVING and connection.is_empty():
            self._end(connection, "the server asked for a new one", is_failure=False)
        elif connection.socket is not None:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.wants_to_write() else 0)
            if self._selector.get_key(connection.socket).events != events:
                self._selector.modify(connection.socket, events, connection)

    def _end(
        self, connection: Connection, reason: str, kind: type[RemotingError] = RemotingError, is_failure: bool = True
    ) -> None:
        if connection.socket is not None:
            self._selector.unregister(connection.socket)
        early = is_failure and not connection.answered
        self._forget(connection, f"{connection.name}: the connection was lost: {reason}" if early else "")
        for call in connection.close():
            call.lost(reason, kind)

    def _forget(self, connection: Connection, failure: str) -> None:
        """`failure`: why there is a pause before the next attempt; "" for none."""
        with self._lock:
            self._all.discard(connection)
            if self._connections.get(connection.address) is connection:
                del self._connections[connection.address]
            if failure:
                self._pauses.setdefault(connection.address, ReconnectPause()).failed(real_time.monotonic(), failure)

    def _watch_time(self) -> None:
        now = real_time.monotonic()
        for connection in list(self._all):
            late, silent = connection.expire(now)
            for call in late:
                call.expire(connected=connection.state is not State.CONNECTING)
            if silent:
                self._end(connection, "a call waited in vain, and nothing else came from the server")
            elif late:
                self._look_after(connection)
            elif connection.state is State.OPEN and connection.is_empty():
                if now - connection.used_at >= self._settings.idle_close_ms / 1000:
                    self._end(connection, "it was idle", is_failure=False)
