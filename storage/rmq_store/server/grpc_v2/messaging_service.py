"""The methods of MessagingService: each request goes to its processor, each error becomes a status.

A method that is not in the table is answered by gRPC itself, with UNIMPLEMENTED.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import grpc

from rmq_store.server.grpc_definitions.definitions import SERVICE, message_class, new
from rmq_store.server.grpc_definitions.enums import Code
from rmq_store.server.grpc_v2.caller import Caller
from rmq_store.server.grpc_v2.clients import Clients
from rmq_store.server.grpc_v2.receiving import Receiving
from rmq_store.server.grpc_v2.routes import Routes
from rmq_store.server.grpc_v2.sending import Sending
from rmq_store.server.grpc_v2.statuses import Refusal, status_of
from rmq_store.server.transport.working_bytes import WorkingBytes

Processor: TypeAlias = Callable[[Any, Caller], Awaitable[Any]]

WORKING_BYTES_MAX: Final = 256 << 20
"""Requests in work, of all clients."""


class MessagingService:
    """The handlers for a server of `grpc.aio`."""

    def __init__(self, routes: Routes, clients: Clients, sending: Sending, receiving: Receiving) -> None:
        self._clients = clients
        self._receiving = receiving
        self._working = WorkingBytes(WORKING_BYTES_MAX, lambda _: None)
        self._processors: dict[str, Processor] = {
            "QueryRoute": routes.query_route,
            "QueryAssignment": routes.query_assignment,
            "Heartbeat": clients.heartbeat,
            "NotifyClientTermination": clients.terminate,
            "SendMessage": sending.send,
            "AckMessage": receiving.ack,
            "ChangeInvisibleDuration": receiving.change_invisible_duration,
            "ForwardMessageToDeadLetterQueue": receiving.forward_to_dead_letters,
            "EndTransaction": _no_transactions,
            "RecallMessage": _no_recall,
        }

    def handler(self) -> Any:
        """The handler of all methods."""
        handlers = {name: self._unary(name, processor) for name, processor in self._processors.items()}
        handlers["ReceiveMessage"] = grpc.unary_stream_rpc_method_handler(
            self._receive,
            message_class("ReceiveMessageRequest").FromString,
            message_class("ReceiveMessageResponse").SerializeToString,
        )
        command = message_class("TelemetryCommand")
        handlers["Telemetry"] = grpc.stream_stream_rpc_method_handler(
            self._telemetry, command.FromString, command.SerializeToString
        )
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _unary(self, name: str, processor: Processor) -> Any:
        request, response = message_class(f"{name}Request"), message_class(f"{name}Response")

        async def answer(asked: Any, context: Any) -> Any:
            size = asked.ByteSize()
            self._working.add(size)
            try:
                if self._working.is_full:
                    raise Refusal(Code.TOO_MANY_REQUESTS, "the broker is busy: too many bytes of requests are in work")
                return await processor(asked, Caller.of(context))
            except Exception as error:
                return response(status=status_of(error, name, context.peer()))
            finally:
                self._working.add(-size)

        return grpc.unary_unary_rpc_method_handler(answer, request.FromString, response.SerializeToString)

    async def _receive(self, request: Any, context: Any) -> None:
        try:
            await self._receiving.receive(request, Caller.of(context), context.write)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the consumer does not read its messages")
        except Exception as error:
            answer = status_of(error, "ReceiveMessage", context.peer())
            await context.write(new("ReceiveMessageResponse", status=answer))

    async def _telemetry(self, _: Any, context: Any) -> None:
        async def read() -> Any:
            command = await context.read()
            return None if command is grpc.aio.EOF else command

        try:
            await self._clients.telemetry(read, Caller.of(context), context.write)
        except Exception as error:
            await context.write(new("TelemetryCommand", status=status_of(error, "Telemetry", context.peer())))


async def _no_transactions(request: Any, caller: Caller) -> Any:
    raise Refusal(Code.NOT_IMPLEMENTED, "this broker has no transactions over gRPC")


async def _no_recall(request: Any, caller: Caller) -> Any:
    raise Refusal(Code.NOT_IMPLEMENTED, "this broker recalls no messages")
