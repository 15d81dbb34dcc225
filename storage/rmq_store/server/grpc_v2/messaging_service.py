"""The methods of MessagingService: each request goes to its processor, each error becomes a status.

A request is read when its signature is right, and reaches its processor when its sender has the rights for it. So all
handlers are those of streams of requests: for the others gRPC reads the request before it calls them. A method that is
not in the table is answered by gRPC itself, with UNIMPLEMENTED.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from rmq_store.server.access.method_check import MethodCheck
from rmq_store.server.grpc_definitions.definitions import SERVICE, message_class, new
from rmq_store.server.grpc_definitions.enums import Code
from rmq_store.server.grpc_v2.caller import Caller
from rmq_store.server.grpc_v2.clients import Clients
from rmq_store.server.grpc_v2.receiving import Receiving
from rmq_store.server.grpc_v2.routes import Routes
from rmq_store.server.grpc_v2.sending import Sending
from rmq_store.server.grpc_v2.statuses import Refusal, status_of
from rmq_store.server.grpc_v2.transactions import EndTransactions
from rmq_store.server.transport.working_bytes import WorkingBytes

Processor: TypeAlias = Callable[[Any, Caller], Awaitable[Any]]

WORKING_BYTES_MAX: Final = 256 << 20
"""Requests in work, of all clients."""


class MessagingService:
    """The handlers for a server of `grpc.aio`."""

    def __init__(
        self,
        check: MethodCheck,
        routes: Routes,
        clients: Clients,
        sending: Sending,
        receiving: Receiving,
        transactions: EndTransactions,
    ) -> None:
        self._check = check
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
            "EndTransaction": transactions.end,
            "RecallMessage": sending.recall,
        }

    def handler(self) -> Any:
        """The handler of all methods."""
        handlers = {name: self._unary(name, processor) for name, processor in self._processors.items()}
        handlers["ReceiveMessage"] = grpc.stream_stream_rpc_method_handler(
            self._receive, response_serializer=message_class("ReceiveMessageResponse").SerializeToString
        )
        handlers["Telemetry"] = grpc.stream_stream_rpc_method_handler(
            self._telemetry, response_serializer=message_class("TelemetryCommand").SerializeToString
        )
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _unary(self, name: str, processor: Processor) -> Any:
        response = message_class(f"{name}Response")

        async def answer(_: Any, context: Any) -> Any:
            size = 0
            try:
                caller = Caller.of(context, self._check.signer)
                content = await _content(context)
                size = len(content)
                self._working.add(size)
                if self._working.is_full:
                    raise Refusal(Code.TOO_MANY_REQUESTS, "the broker is busy: too many bytes of requests are in work")
                asked = _parsed(f"{name}Request", content)
                self._check(caller.user, name, asked)
                return await processor(asked, caller)
            except Exception as error:
                return response(status=self._status(error, name, context))
            finally:
                self._working.add(-size)

        return grpc.stream_unary_rpc_method_handler(answer, response_serializer=response.SerializeToString)

    def _status(self, error: Exception, method: str, context: Any) -> Any:
        self._check.tell(error, method, context.peer())
        return status_of(error, method, context.peer())

    async def _receive(self, _: Any, context: Any) -> None:
        try:
            caller = Caller.of(context, self._check.signer)
            request = _parsed("ReceiveMessageRequest", await _content(context))
            check = partial(self._check, caller.user, "ReceiveMessage", request)
            check()
            await self._receiving.receive(request, caller, context.write, check)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the consumer does not read its messages")
        except Exception as error:
            answer = self._status(error, "ReceiveMessage", context)
            await context.write(new("ReceiveMessageResponse", status=answer))

    async def _telemetry(self, _: Any, context: Any) -> None:
        try:
            caller = Caller.of(context, self._check.signer)

            async def read() -> Any:
                content = await context.read()
                if content is grpc.aio.EOF:
                    return None
                command = _parsed("TelemetryCommand", content)
                self._check(caller.user, "Telemetry", command)
                return command

            await self._clients.telemetry(read, caller, context.write)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the client does not read its commands")
        except Exception as error:
            answer = self._status(error, "Telemetry", context)
            await context.write(new("TelemetryCommand", status=answer))
            # Node's client reads the status. Those in Java and Go report how the stream ends, and pass over a command
            # without settings: after a good end they wait for some (ClientActivity#processTelemetryException).
            is_refused = Code.BAD_REQUEST <= answer.code < Code.INTERNAL_ERROR
            code = grpc.StatusCode.INVALID_ARGUMENT if is_refused else grpc.StatusCode.INTERNAL
            await context.abort(code, f"process client telemetryCommand failed. {answer.message}")


async def _content(context: Any) -> bytes:
    """The bytes of a call's one request. Refusal: it has none."""
    content = await context.read()
    if content is grpc.aio.EOF:
        raise Refusal(Code.BAD_REQUEST, "the call has no request")
    assert isinstance(content, bytes)
    return content


def _parsed(name: str, content: bytes) -> Any:
    """A message of a client. Refusal: the bytes are none."""
    try:
        return message_class(name).FromString(content)
    except DecodeError as error:
        raise Refusal(Code.BAD_REQUEST, f"the bytes are no {name}") from error
