"""Requests of servers to this client (39, 40, 220, 307 ...): handled in a thread of their own, not in the I/O loop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, Full, Queue
from typing import Final

from rmq_store.errors import StoreError
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.wire.command import RESPONSE_FLAG, RemotingCommand, response_to
from rmq_store.protocol.wire.frames import encode_command
from rmq_store.protocol.wire.request_codes import request_name
from rmq_store.remoting.transport.connection import Connection

Handler = Callable[[str, RemotingCommand], RemotingCommand | None]

WAITING_MAX: Final = 1024
_LOG = logging.getLogger(__name__)


class ServerRequests:
    """A bounded queue and the thread that works on it, which starts with the first request.

    A request beyond the bound, and a oneway request without a handler, is dropped and counted.
    """

    def __init__(self, handlers: dict[int, Handler]) -> None:
        self.dropped = 0
        self._handlers = handlers
        self._waiting: Queue[tuple[Connection, RemotingCommand] | None] = Queue(WAITING_MAX)
        self._thread: threading.Thread | None = None

    def put(self, connection: Connection, request: RemotingCommand) -> None:
        """Take a request; never waits. Only the thread of the I/O loop calls it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rmq-server-requests", daemon=True)
            self._thread.start()
        try:
            self._waiting.put_nowait((connection, request))
        except Full:
            self.dropped += 1

    def close(self) -> None:
        """Drop what waits, and end the thread after the request that it works on."""
        try:
            while True:
                self._waiting.get_nowait()
        except Empty:
            self._waiting.put(None)

    def _run(self) -> None:
        while (entry := self._waiting.get()) is not None:
            connection, request = entry
            answer = self._answer(connection, request)
            if answer is not None and not request.is_oneway:
                answer.opaque, answer.serialize_type = request.opaque, request.serialize_type
                answer.flag |= RESPONSE_FLAG
                try:
                    connection.send_answer(encode_command(answer))
                except StoreError:
                    _LOG.exception("%s: the answer to %s cannot be sent", connection.name, request_name(request.code))

    def _answer(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        handler = self._handlers.get(request.code)
        if handler is None:
            self.dropped += request.is_oneway
            remark = f"this client has no handler for {request_name(request.code)}"
            return response_to(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        try:
            return handler(connection.address, request)
        except Exception as error:
            # Only errors of ours have texts that may leave this process.
            _LOG.exception("%s: %s of the server failed", connection.name, request_name(request.code))
            remark = str(error) if isinstance(error, StoreError) else type(error).__name__
            return response_to(request, ResponseCode.SYSTEM_ERROR, remark)
