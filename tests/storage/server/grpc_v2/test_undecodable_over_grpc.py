"""Bodies over gRPC that are called GZIP, which is zlib to clients, and are not (`test_undecodable_sends`)."""

from __future__ import annotations

import threading
import zlib
from typing import Any

import pytest

from helpers.grpc_stub import Stub
from helpers.undecodable import fill, undecodable
from rmq_store.format.frames import compression
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.grpc_definitions.enums import Code, Encoding, MessageType
from rmq_store.server.processors import served_store


def stored(server: BrokerServer, topic: str) -> list[tuple[bytes, int]]:
    """(body, sysFlag) of its messages as they lie."""
    first, end = server.store.queue_range(topic, 0)
    rows = server.store.read(topic, 0, first, end, columns=["body", "sysFlag"], raw_body=True)
    return [(row["body"], row["sysFlag"]) for part in rows for row in part.to_pylist()]


@pytest.mark.parametrize("kind", ["no zlib", "zlib cut", "zlib bomb", "gzip, not zlib", "zlib with a bad checksum"])
@pytest.mark.parametrize("group", [None, "g"])
def test_false_gzip_is_refused(server: BrokerServer, stub: Stub, kind: str, group: str | None) -> None:
    server.store.create_topic("Orders", 1)
    body, _ = undecodable()[kind]
    fields = {"message_id": "01AA"} if group is None else {"message_id": "01AA", "message_group": group}
    answer = stub.send("Orders", body, body_encoding=Encoding.GZIP, **fields)
    assert answer.status.code == Code.BAD_REQUEST
    assert "the body cannot be inflated" in answer.status.message
    assert stored(server, "Orders") == []


def test_a_false_half_message_is_refused(server: BrokerServer, stub: Stub) -> None:
    server.store.create_topic("Orders", 1)
    answer = stub.send("Orders", b"not zlib", body_encoding=Encoding.GZIP, message_type=MessageType.TRANSACTION)
    assert answer.status.code != Code.OK
    assert server.store.queue_range("RMQ_SYS_TRANS_HALF_TOPIC", 0).max_offset == 0


def test_true_gzip_is_what_clients_call_so_and_an_unknown_encoding_is_refused(server: BrokerServer, stub: Stub) -> None:
    server.store.create_topic("Orders", 1)
    assert stub.send("Orders", zlib.compress(b"tea"), body_encoding=Encoding.GZIP).status.code == Code.OK
    answer = stub.send("Orders", b"tea", body_encoding=7)
    assert answer.status.code == Code.BAD_REQUEST and "body encoding 7" in answer.status.message
    assert stored(server, "Orders") == [(zlib.compress(b"tea"), 1)]


def test_grpc_consumers_are_told_that_a_body_is_compressed(server: BrokerServer, stub: Stub) -> None:
    """Their clients find out that it is not, and let the message fail (isCorrupted of MessageViewImpl.java)."""
    server.store.create_topic("Orders", 1)
    stub.receive("cg", "Orders")
    rows = fill(server.store, "Orders", "no zlib", "zstd garbage")
    code, received = stub.receive("cg", "Orders", batch_size=16)
    assert code == Code.OK and [one.body for one in received] == [body for body, _ in rows]
    encodings = [one.system_properties.body_encoding for one in received]
    assert encodings == [Encoding.GZIP if flags else Encoding.IDENTITY for _, flags in rows]


def test_no_body_is_inflated_in_the_event_loop(
    server: BrokerServer, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def inflate(*arguments: Any) -> bytes:
        seen.append(threading.current_thread().name)
        return compression.inflate(*arguments)

    monkeypatch.setattr(served_store, "inflate", inflate)
    server.store.create_topic("Orders", 1)
    assert stub.send("Orders", zlib.compress(b"tea"), body_encoding=Encoding.GZIP).status.code == Code.OK
    assert len(seen) == 1 and seen[0].startswith("rmq-grpc-send"), seen
