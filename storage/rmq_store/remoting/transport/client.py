"""A client of the remoting protocol that many threads share (RemotingClient.java, NettyRemotingClient.java)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Final, Self

from rmq_store import real_time
from rmq_store.errors import StoreError, UsageError
from rmq_store.protocol.errors import RemotingCommandError, RemotingConnectError
from rmq_store.protocol.versions import V4_9_3
from rmq_store.protocol.wire.command import ONEWAY_FLAG, RemotingCommand
from rmq_store.protocol.wire.frames import encode_command, frame_pieces
from rmq_store.protocol.wire.signature import UNIQUE_KEY_QUERY, sign
from rmq_store.remoting.transport.calls import Arrivals, Call, Request
from rmq_store.remoting.transport.io_loop import Counters, IoLoop
from rmq_store.remoting.transport.pull_round import PullRound
from rmq_store.remoting.transport.secrets import Credentials
from rmq_store.remoting.transport.server_requests import Handler, ServerRequests
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.remoting.transport.template import TemplateRequest
from rmq_store.remoting.transport.tls import make_context

_ATTEMPTS: Final = 3

_OWN_PIECE_BYTES: Final = 32 << 10
"""To copy a shorter body costs less than to name two places to the operating system."""


class RemotingClient:
    """Connections to brokers and name servers: one for each address and process, made when it is first used.

    Thread-safe. A forked child opens its own connections. Calls of all threads are pipelined. A connection without
    calls ends after `idle_close_ms`; one that failed is made again after a pause that grows from 0.1 s to 5 s.

    Errors say what is known about the request:
        RemotingConnectError, RemotingTooMuchRequestError: no byte of it has left this process.
        RemotingError, RemotingTimeoutError, RemotingCommandError: its outcome is unknown.

    Callbacks of futures run in the thread that reads from all connections: they must not wait, and a `submit` of theirs
    fails where another one would wait for space.
    """

    def __init__(self, settings: ClusterSettings) -> None:
        """Nothing is connected yet. With `tls.verify` False a warning is logged.

        Raises:
            UsageError: a file of the TLS settings cannot be used.
        """
        self.settings = settings
        self._context = make_context(settings.tls) if settings.tls else None
        self._handlers: dict[int, Handler] = {}
        self._loops: dict[int, IoLoop] = {}
        self._is_closed = False

    def call(self, address: str, request: RemotingCommand, timeout_ms: int | None = None) -> RemotingCommand:
        """Send a request and wait for its answer, whatever code it has; at most `timeout_ms` (see the settings).

        Raises:
            RemotingError: see the class.
            UsageError: the client is closed, or a secret cannot be resolved.
        """
        return self._answer(address, request, timeout_ms)

    def submit(self, address: str, request: RemotingCommand, timeout_ms: int | None = None) -> Future[RemotingCommand]:
        """Send a request; the future has the answer, or the error that `call` would raise.

        Waits only while more than 8 MiB wait for the server. The request may be used again, and must not be changed.
        """
        future: Future[RemotingCommand] = Future()
        self.submit_all(address, [request], partial(_settle, future), timeout_ms)
        return future

    def submit_all(
        self,
        address: str,
        requests: Sequence[Request],
        done: Callable[[Call], object],
        timeout_ms: int | None = None,
    ) -> list[Call]:
        """Send requests to one address together, in their order: a system call for many. As `submit` for each.

        `done` gets each call when it has ended, where callbacks of futures run, or here.
        """
        timeout_ms = self.settings.timeout_ms if timeout_ms is None else timeout_ms
        now = real_time.monotonic()
        calls = [Call(address, request, timeout_ms, now, done) for request in requests]
        try:
            loop = self._loop()
            self._send(loop, calls, wait=not loop.in_loop())
        except StoreError as error:
            for call in calls:
                call.end(error)
        return calls

    def submit_round(self, waiting: PullRound) -> PullRound:
        """Send pulls that leave and are waited for together; as `submit_all`."""
        try:
            loop = self._loop()
            self._send(loop, [waiting], wait=not loop.in_loop())
        except StoreError as error:
            waiting.end(error)
        return waiting

    def call_oneway(self, address: str, request: RemotingCommand, timeout_ms: int | None = None) -> None:
        """Send a request without an answer. On return the operating system has taken all bytes.

        Raises:
            RemotingError: see the class.
            UsageError: as `call`.
        """
        oneway = replace(request, flag=request.flag | ONEWAY_FLAG)
        self._answer(address, oneway, timeout_ms)

    def on_request(self, code: int, handler: Handler) -> None:
        """Answer a server's requests of one code. A handler gets the address and the request.

        Handlers run one after the other, in a thread of their own. They may return None if no answer is wanted. An
        exception of theirs is logged and answered with SYSTEM_ERROR.
        """
        self._handlers[code] = handler

    def counters(self) -> Counters:
        """Return the figures of this process."""
        loop = self._loops.get(os.getpid())
        return loop.counters() if loop is not None else Counters(0, 0, 0, 0, 0)

    def close(self) -> None:
        """End all connections of this process. Calls that wait fail; later ones are refused."""
        self._is_closed = True
        loop = self._loops.pop(os.getpid(), None)
        if loop is not None:
            loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RemotingClient({self.settings!r})"

    def __reduce__(self) -> tuple[type[Self], tuple[ClusterSettings]]:
        return type(self), (self.settings,)

    def _answer(self, address: str, request: RemotingCommand, timeout_ms: int | None) -> RemotingCommand:
        """Not by a future: its lock, left taken where a signal handler came, would keep the I/O loop from the answer to
        what the handler sends.
        """
        arrivals = Arrivals()
        (call,) = self.submit_all(address, [request], arrivals.notice, timeout_ms)
        arrivals.wait(call)
        return call.answer()

    def _loop(self) -> IoLoop:
        """The loop of this process. One inherited by a fork is left alone but for the descriptors."""
        pid = os.getpid()
        loop = self._loops.get(pid)
        if loop is None:
            if self._is_closed:
                raise UsageError("the client is closed")
            made = IoLoop(self.settings, self._context, ServerRequests(self._handlers), self._repeat)
            loop = self._loops.setdefault(pid, made)
            if loop is not made:
                made.close()
            for other in [other for other in list(self._loops) if other != pid]:
                inherited = self._loops.pop(other, None)
                if inherited is not None:
                    inherited.abandon()
        return loop

    def _send(self, loop: IoLoop, calls: list[Call], wait: bool) -> None:
        """Give calls to the connection of their one address."""
        for _ in range(_ATTEMPTS):
            if not calls:
                return
            connection = loop.connection(calls[0].address)
            calls = connection.submit(calls, partial(_frames, connection.credentials), wait)
        for call in calls:
            call.end(RemotingConnectError(f"{call.address}: {call.name} was not sent: its connections end at once"))

    def _repeat(self, call: Call) -> None:
        """Send a call again that the server refused with GO_AWAY; in the thread of the loop."""
        try:
            self._send(self._loop(), [call], wait=False)
        except StoreError as error:
            call.end(error)


def _settle(future: Future[RemotingCommand], call: Call) -> None:
    """Hand the outcome on; the caller may have cancelled the future."""
    with suppress(InvalidStateError):
        if isinstance(call.outcome, BaseException):
            future.set_exception(call.outcome)
        else:
            future.set_result(call.answer())


def _frames(
    credentials: Credentials | None, calls: Sequence[Call]
) -> Iterator[tuple[Sequence[Call], tuple[bytes, ...] | RemotingCommandError]]:
    """The calls whose requests leave as one piece, and its bytes one behind another, or why there are none: pieces in
    the order of the calls.
    """
    for call in calls:
        frames = partial(_round_frames, credentials, call) if isinstance(call, PullRound) else partial(
            _frame, credentials, call
        )  # fmt: skip
        yield [call], _made(frames)


def _made(frames: Callable[[], tuple[bytes, ...]]) -> tuple[bytes, ...] | RemotingCommandError:
    try:
        return frames()
    except RemotingCommandError as error:
        return error


def _round_frames(credentials: Credentials | None, waiting: PullRound) -> tuple[bytes, ...]:
    if credentials is None:
        return (waiting.frames(),)
    requests = [waiting.template.request(*pull).command() for pull in waiting.pulls]
    signed = [_pieces(credentials, one, opaque) for one, opaque in zip(requests, waiting.opaques, strict=True)]
    return (b"".join([piece for pieces in signed for piece in pieces]),)


def _frame(credentials: Credentials | None, call: Call) -> tuple[bytes, ...]:
    request = call.request
    if isinstance(request, TemplateRequest):
        if credentials is None:
            return (request.frame(call.opaque),)
        request = request.command()
    return _pieces(credentials, request, call.opaque)


def _pieces(credentials: Credentials | None, request: RemotingCommand, opaque: int) -> tuple[bytes, ...]:
    command = RemotingCommand(
        request.code, request.ext_fields, request.body, opaque, request.flag, request.remark, request.language,
        request.version, request.serialize_type,
    )  # fmt: skip
    if credentials is not None:
        if UNIQUE_KEY_QUERY in request.ext_fields:
            # Brokers of 4.9 leave this field out of the signature, and those of 5.x do so for this version.
            command.version = V4_9_3
        command.ext_fields = sign(
            request.ext_fields,
            request.body,
            credentials.access_key,
            credentials.secret_key,
            credentials.security_token,
            command.version,
        )
    if len(request.body) < _OWN_PIECE_BYTES:
        return (encode_command(command),)
    return frame_pieces(command)
