"""What a served store refuses at the send: bodies that are called compressed, and that no reader could inflate."""

from __future__ import annotations

import struct
import threading
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.cluster.asking import Connection
from helpers.undecodable import KINDS, honest, undecodable
from rmq_store import StoreConfig
from rmq_store.client import ResponseCode
from rmq_store.format.frames import compression
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.processors import served_store

LONG_NAMES = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId",
    "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties",
}  # fmt: skip
CODES = {"10": RequestCode.SEND_MESSAGE, "310": RequestCode.SEND_MESSAGE_V2, "320": RequestCode.SEND_BATCH_MESSAGE}


def batch(*bodies: bytes) -> bytes:
    """The body of 320."""
    return b"".join(
        struct.pack(">5i", 22 + len(body), 0, 0, 0, len(body)) + body + struct.pack(">h", 0) for body in bodies
    )


def request(code: str, topic: str, body: bytes, flags: int, **fields: str) -> RemotingCommand:
    """One message; as a batch between two good ones."""
    known = {"a": "pg", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": str(flags), "g": "1", "h": "0"} | fields
    if code == "10":
        known = {LONG_NAMES[name]: value for name, value in known.items()}
    if code == "320":
        good = zlib.compress(b"good")
        body = batch(good, body, good)
        known["m"] = "true"
    return RemotingCommand(CODES[code], known, body)


def ask(cluster: Cluster, server: BrokerServer, command: RemotingCommand) -> RemotingCommand:
    """The answer; a server whose machine is busy is asked again."""
    while True:
        answer = cluster.client.call(server.address, command, 20_000)
        if answer.code != ResponseCode.SYSTEM_BUSY:
            return answer


def stored(server: BrokerServer, topic: str) -> list[tuple[bytes, int]]:
    """(body, sysFlag) of its messages as they lie."""
    first, end = server.store.queue_range(topic, 0)
    rows = server.store.read(topic, 0, first, end, columns=["body", "sysFlag"], raw_body=True)
    return [(row["body"], row["sysFlag"]) for part in rows for row in part.to_pylist()]


@pytest.mark.parametrize("code", CODES)
def test_what_cannot_be_inflated_is_refused(server: BrokerServer, cluster: Cluster, code: str) -> None:
    server.store.create_topic("Orders", 1)
    for kind in KINDS:
        body, flags = undecodable()[kind]
        if code == "320" and flags & 0x700 not in (0, 0x300):
            continue  # the good ones beside it are zlib
        answer = ask(cluster, server, request(code, "Orders", body, flags))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL, (kind, answer.code, answer.remark)
        assert f"cannot be inflated, but sysFlag {flags:#x} says that it is compressed" in (answer.remark or "")
    assert stored(server, "Orders") == []


@pytest.mark.parametrize("code", CODES)
def test_honest_bodies_are_stored_as_they_came(server: BrokerServer, cluster: Cluster, code: str) -> None:
    server.store.create_topic("Orders", 1)
    expected = []
    for body, flags, _ in honest().values():
        if code == "320" and flags & 0x701 not in (0x001, 0x301):
            continue
        answer = ask(cluster, server, request(code, "Orders", body, flags))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        good = (zlib.compress(b"good"), flags)
        expected += [good, (body, flags), good] if code == "320" else [(body, flags)]
    assert stored(server, "Orders") == expected


def test_half_messages_are_refused_too(server: BrokerServer, cluster: Cluster) -> None:
    server.store.create_topic("Orders", 1)
    command = request("310", "Orders", b"not zlib", 0x005, i="TRAN_MSG\x01true\x02PGROUP\x01pg\x02")
    assert ask(cluster, server, command).code == ResponseCode.MESSAGE_ILLEGAL
    assert server.store.queue_range("RMQ_SYS_TRANS_HALF_TOPIC", 0).max_offset == 0


def test_what_lies_in_a_store_already_goes_on_as_it_lies(server: BrokerServer, cluster: Cluster) -> None:
    """Retries of consumers, and dead letters that are sent on."""
    server.store.create_topic("Orders", 1)
    retry = request("310", "%RETRY%cg", b"not zlib", 0x001, j="0", l="16")
    letter = request("310", "Orders", b"not zlib", 0x001, i="PYRMQ_DEAD_LETTER\x01%DLQ%cg broker 0 7\x02")
    for command in (retry, letter):
        assert ask(cluster, server, command).code == ResponseCode.SUCCESS
    assert stored(server, "Orders") == [(b"not zlib", 1)]


def test_one_that_is_refused_keeps_those_beside_it(server: BrokerServer) -> None:
    """Sends that came together are stored together; a refused one is answered by itself."""
    server.store.create_topic("Orders", 1)
    commands = [
        request("310", "Orders", body, flags)
        for body, flags in ((b"one", 0), (b"not zlib", 1), (zlib.compress(b"two"), 1), (b"no", 0x401), (b"three", 0))
    ]
    with Connection(server.address) as sender:
        codes = [sender.ask(one.code, one.ext_fields, one.body).code for one in commands]
    assert codes == [0, 13, 0, 13, 0]
    assert [body for body, _ in stored(server, "Orders")] == [b"one", zlib.compress(b"two"), b"three"]


def test_a_bound_that_grows_with_max_message_size(scratch: Path, small: StoreConfig) -> None:
    plain = bytes(17 << 20)
    packed, flags = compression.compress(plain, "zstd")
    for size, code in ((4 << 20, ResponseCode.MESSAGE_ILLEGAL), (5 << 20, ResponseCode.SUCCESS)):
        config = replace(small, max_message_size=size, mapped_file_size_commit_log=8 << 20)
        with BrokerServer(scratch / str(size), config=config, create=True) as server:
            with Connection(server.address) as sender:
                one = request("310", "Orders", packed, flags)
                assert sender.ask(one.code, one.ext_fields, one.body).code == code
            if code == ResponseCode.SUCCESS:
                first, end = max(server.store.queue_ranges("Orders").values())
                ((row,),) = (part.to_pylist() for part in server.store.read("Orders", 0, first, end, columns=["body"]))
                assert row["body"] == plain


@pytest.mark.parametrize("code", CODES)
def test_no_body_is_inflated_in_the_thread_of_the_connections(
    server: BrokerServer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    seen: list[str] = []

    def inflate(*arguments: Any) -> bytes:
        seen.append(threading.current_thread().name)
        return compression.inflate(*arguments)

    monkeypatch.setattr(served_store, "inflate", inflate)
    server.store.create_topic("Orders", 1)
    for _ in range(3):
        answer = ask(cluster, server, request(code, "Orders", zlib.compress(b"tea"), 1))
        assert answer.code == ResponseCode.SUCCESS
        if code != "320":
            ask(cluster, server, request(code, "Orders", b"plain", 0))
    assert len(seen) == (9 if code == "320" else 3)
    assert all(name.startswith("send-") for name in seen), seen
