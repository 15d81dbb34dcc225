"""A client of our gRPC port that says exactly what a test wants: calls over our own message classes."""

from __future__ import annotations

import hashlib
import hmac
import queue
from datetime import UTC, datetime
from typing import Any

import grpc

from rmq_store.server.grpc_definitions.definitions import SERVICE, message_class, new

DEADLINE_S = 60.0
DATE_TIME = "%Y%m%dT%H%M%SZ"

Metadata = tuple[tuple[str, str], ...]


def signed(access_key: str, secret_key: str, date_time: str = "") -> Metadata:
    """The metadata of a signed call; `date_time` "": now."""
    date_time = date_time or datetime.now(UTC).strftime(DATE_TIME)
    digest = hmac.new(secret_key.encode(), date_time.encode(), hashlib.sha1).hexdigest()
    text = f"MQv2-HMAC-SHA1 Credential={access_key}, SignedHeaders=x-mq-date-time, Signature={digest}"
    return (("x-mq-date-time", date_time), ("authorization", text))


class Stub:
    """Calls by method name and fields, with the metadata `sign`. `close` it."""

    def __init__(
        self,
        address: str,
        client_id: str = "c1",
        credentials: grpc.ChannelCredentials | None = None,
        sign: Metadata = (),
    ) -> None:
        secure = credentials is not None
        self.channel = grpc.secure_channel(address, credentials) if secure else grpc.insecure_channel(address)
        self.metadata = (*((("x-mq-client-id", client_id),) if client_id else ()), *sign)

    def call(self, method: str, **fields: Any) -> Any:
        """The response of a unary method."""
        request, response = message_class(f"{method}Request"), message_class(f"{method}Response")
        caller = self.channel.unary_unary(f"/{SERVICE}/{method}", request.SerializeToString, response.FromString)
        return caller(request(**fields), metadata=self.metadata, timeout=DEADLINE_S)

    def receiving(self, group: str, topic: str, timeout_s: float = DEADLINE_S, **fields: Any) -> Any:
        """The running call of a receive; iterate it, or cancel it."""
        request, response = message_class("ReceiveMessageRequest"), message_class("ReceiveMessageResponse")
        caller = self.channel.unary_stream(f"/{SERVICE}/ReceiveMessage", request.SerializeToString, response.FromString)
        fields = {"batch_size": 32, "invisible_duration": {"seconds": 60}, "long_polling_timeout": {}} | fields
        asked = request(group={"name": group}, message_queue={"topic": {"name": topic}}, **fields)
        return caller(asked, metadata=self.metadata, timeout=timeout_s)

    def receive(self, group: str, topic: str, **fields: Any) -> tuple[int, list[Any]]:
        """The code and the messages of a receive."""
        responses = list(self.receiving(group, topic, **fields))
        return responses[0].status.code, [one.message for one in responses if one.WhichOneof("content") == "message"]

    def send(self, topic: str, *bodies: bytes, **system: Any) -> Any:
        """Send one request of messages with these system properties; their ids are their bodies."""
        messages = [
            {"topic": {"name": topic}, "body": body, "system_properties": {"message_id": f"01{body.hex()}"} | system}
            for body in bodies
        ]
        return self.call("SendMessage", messages=messages)

    def telemetry(self, commands: Any) -> Any:
        """The running stream of telemetry."""
        command = message_class("TelemetryCommand")
        caller = self.channel.stream_stream(f"/{SERVICE}/Telemetry", command.SerializeToString, command.FromString)
        return caller(commands, metadata=self.metadata, timeout=DEADLINE_S)

    def close(self) -> None:
        """End the connection."""
        self.channel.close()


class Talk:
    """A stream of telemetry: `say` settings, `hear` a command of the server."""

    def __init__(self, stub: Stub) -> None:
        self._said: queue.Queue[object] = queue.Queue()
        self._stream = stub.telemetry(iter(self._said.get, None))

    def say(self, **settings: object) -> None:
        """Send settings."""
        self._said.put(new("TelemetryCommand", settings=settings))

    def hear(self) -> Any:
        """The next command, which must come."""
        return next(self._stream)

    def ends(self) -> bool:
        """Wait for the next command; whether it is the end instead, a good one or an error."""
        try:
            return next(self._stream, None) is None
        except grpc.RpcError:
            return True

    def end(self) -> tuple[grpc.StatusCode, str]:
        """Wait for the end: its code and its text."""
        return self._stream.code(), self._stream.details()

    def close(self) -> None:
        """End the client's side."""
        self._said.put(None)
