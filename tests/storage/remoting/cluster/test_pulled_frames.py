"""Frames of a range that come over sockets, and lie in an area: they are checked as all others."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rmq_store import Message, StoreConfig
from rmq_store.format.bytes import native
from rmq_store.protocol.errors import QueueHoleError, RemotingCommandError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster import pulling
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.processors.pulling import PullProcessor

MESSAGES = 200
QUEUE_ID, QUEUE_OFFSET = 12, 20
"""Their places in a frame."""

Change = Callable[[bytes], bytes]


@pytest.fixture
def pulled(fast_scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Change], int]]:
    """Reads a queue whose broker changes each answer; returns the number of messages."""
    config = StoreConfig(mapped_file_size_commit_log=1 << 20, enabled_append_prop_crc=False)
    with BrokerServer(fast_scratch / "store", config=config, create=True) as server:
        server.store.create_topic("Orders", 1)
        for _ in range(MESSAGES):
            server.store.send(Message("Orders", b"x" * 100, queue_id=0))
        cluster = Cluster(ClusterSettings.of_text(server.address))
        queue = MessageQueue("Orders", server.store.broker_name, 0)
        in_areas: list[int] = []
        check = pulling.check_dense_pieces

        def counted(*given: Any) -> Any:
            in_areas.append(1)
            return check(*given)

        monkeypatch.setattr(pulling, "check_dense_pieces", counted)

        def read(change: Change) -> int:
            answer = PullProcessor._answer

            def changed(self: Any, *given: Any, **options: Any) -> Any:
                made = answer(self, *given, **options)
                made.body = change(bytes(made.body))
                return made

            monkeypatch.setattr(PullProcessor, "_answer", changed)
            walked = pulling.walk_range(cluster, queue, 0, MESSAGES)
            found = sum(len(frames.positions) for frames in walked)
            assert bool(in_areas) is native.LOADED, "the extension places usual answers in areas"
            return found

        yield read
        cluster.close()


def frames_of(body: bytes) -> Iterator[int]:
    at = 0
    while at < len(body):
        yield at
        at += int.from_bytes(body[at : at + 4], "big")


def with_field(body: bytes, offset: int, place: int, form: str, value: int) -> bytes:
    """The answer, with another value in the frame of message `offset`."""
    made = bytearray(body)
    for at in frames_of(body):
        if struct.unpack_from(">q", body, at + QUEUE_OFFSET) == (offset,):
            struct.pack_into(form, made, at + place, value)
    return bytes(made)


def without(body: bytes, offset: int) -> bytes:
    """The answer without the frame of message `offset`."""
    places = [*frames_of(body), len(body)]
    kept = [
        body[at:end]
        for at, end in pairwise(places)
        if struct.unpack_from(">q", body, at + QUEUE_OFFSET) != (offset,)
    ]
    return b"".join(kept)


def test_all_messages_come(pulled: Callable[[Change], int]) -> None:
    assert pulled(lambda body: body) == MESSAGES


def test_a_message_of_another_queue_is_refused(pulled: Callable[[Change], int]) -> None:
    with pytest.raises(RemotingCommandError, match="with messages of queue 7"):
        pulled(lambda body: with_field(body, 40, QUEUE_ID, ">i", 7))


def test_a_message_that_comes_twice_is_refused(pulled: Callable[[Change], int]) -> None:
    with pytest.raises(RemotingCommandError, match=r"with others: .* messages at"):
        pulled(lambda body: with_field(body, 40, QUEUE_OFFSET, ">q", 39))


def test_a_hole_is_one(pulled: Callable[[Change], int]) -> None:
    with pytest.raises(QueueHoleError, match=r"lacks the messages \[40, 41\)"):
        pulled(lambda body: without(body, 40))
