"""A client over gRPC as processors see it: what they send to its connection goes into its stream of telemetry.

Of the requests of a broker to clients only the question about a transaction (39) has a command here. The others are
about queues that are shared out, which clients over gRPC do not have.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from rmq_store import real_time
from rmq_store.errors import StoreError
from rmq_store.protocol.stored_messages import messages_in
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.headers import CheckTransactionStateRequestHeader
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.server.grpc_definitions.definitions import new
from rmq_store.server.grpc_v2.messages import shown_message
from rmq_store.server.grpc_v2.transactions import transaction_id

READ_S: Final = 60.0
"""A client that does not read for so long loses its call."""

UNREAD_BYTES_MAX: Final = 16 << 20
"""Questions that wait for a stream. One that waits alone may be larger."""


class CommandStream:
    """The commands of the server in one stream of telemetry. All methods belong to the event loop."""

    def __init__(self, write: Callable[[Any], Any]) -> None:
        self._write = write
        self._lock = asyncio.Lock()
        self._waiting: asyncio.Queue[Any] = asyncio.Queue()
        self._unread_bytes = 0
        self._failure: StoreError | TimeoutError | None = None
        self.failed = asyncio.Event()

    async def write(self, command: Any) -> None:
        """Send a command behind those that are being sent. TimeoutError: the client does not read."""
        async with asyncio.timeout(READ_S), self._lock:
            await self._write(command)

    def put(self, command: Any) -> None:
        """Let a command wait until the client reads. If too many bytes wait, the stream ends."""
        if self._unread_bytes > UNREAD_BYTES_MAX:
            self.fail(TimeoutError("the client does not read the questions about transactions"))
            return
        self._unread_bytes += command.ByteSize()
        self._waiting.put_nowait(command)

    async def send_waiting(self) -> None:
        """Send what waits, for ever. TimeoutError: the client does not read."""
        while True:
            command = await self._waiting.get()
            await self.write(command)
            self._unread_bytes -= command.ByteSize()

    def fail(self, error: StoreError | TimeoutError) -> None:
        """End the stream with this error: TimeoutError, the client does not read."""
        self._failure = self._failure or error
        self.failed.set()

    def raise_failure(self) -> None:
        """Raise the error with which the stream ends, if it does."""
        if self._failure is not None:
            raise self._failure


class GrpcPeer:
    """One client id of one user. `streams`: those that are open, the newest last. `groups` in which it consumes, and
    `topics` whose half messages it may be asked about. `seen_s`: the monotonic time of its last sign of life.

    `send` is safe for threads, all else belongs to the event loop.
    """

    def __init__(self, client_id: str, user: str, address: str, broker_name: str) -> None:
        self.client_id = client_id
        self.user = user
        self.address = address
        self.streams: list[CommandStream] = []
        self.groups: set[str] = set()
        self.topics: set[str] = set()
        self.seen_s = real_time.monotonic()
        self._broker_name = broker_name
        self._loop = asyncio.get_running_loop()

    def send(self, *commands: RemotingCommand) -> None:
        """See `Peer.send`. StoreError: the half message in a question cannot be read."""
        for command in commands:
            if command.code == RequestCode.CHECK_TRANSACTION_STATE:
                self._ask(command)

    def _ask(self, command: RemotingCommand) -> None:
        header = CheckTransactionStateRequestHeader.from_ext(command.ext_fields)
        (half,) = messages_in(command.body, self._broker_name)
        question = new(
            "RecoverOrphanedTransactionCommand",
            message=shown_message(half),
            transaction_id=transaction_id(header.tran_state_table_offset, header.commit_log_offset),
        )
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it all streams
            self._loop.call_soon_threadsafe(
                self._put, new("TelemetryCommand", recover_orphaned_transaction_command=question)
            )

    def _put(self, command: Any) -> None:
        if self.streams:
            self.streams[-1].put(command)
