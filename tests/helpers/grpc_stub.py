"""A client of our gRPC port that says exactly what a test wants: calls over our own message classes."""

from __future__ import annotations

from typing import Any

import grpc

from rmq_store.server.grpc_definitions.definitions import SERVICE, message_class

DEADLINE_S = 60.0


class Stub:
    """Calls by method name and fields. `close` it."""

    def __init__(self, address: str, client_id: str = "c1", credentials: grpc.ChannelCredentials | None = None) -> None:
        secure = credentials is not None
        self.channel = grpc.secure_channel(address, credentials) if secure else grpc.insecure_channel(address)
        self.metadata = (("x-mq-client-id", client_id),) if client_id else ()

    def call(self, method: str, **fields: Any) -> Any:
        """The response of a unary method."""
        request, response = message_class(f"{method}Request"), message_class(f"{method}Response")
        caller = self.channel.unary_unary(f"/{SERVICE}/{method}", request.SerializeToString, response.FromString)
        return caller(request(**fields), metadata=self.metadata, timeout=DEADLINE_S)

    def receiving(self, group: str, topic: str, timeout_s: float = DEADLINE_S, **fields: Any) -> Any:
        """The running call of a receive; iterate it, or cancel it."""
        request, response = message_class("ReceiveMessageRequest"), message_class("ReceiveMessageResponse")
        caller = self.channel.unary_stream(
            f"/{SERVICE}/ReceiveMessage", request.SerializeToString, response.FromString
        )
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
        caller = self.channel.stream_stream(
            f"/{SERVICE}/Telemetry", command.SerializeToString, command.FromString
        )
        return caller(commands, metadata=self.metadata, timeout=DEADLINE_S)

    def close(self) -> None:
        """End the connection."""
        self.channel.close()
