"""The loop in C gets every answer to the pulls that are given to it, and ends at one that has no messages."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import pull_loop
from bench.bare_loop import built, is_possible
from helpers.cluster.stub_server import StubConnection, StubLoop, StubServer
from rmq_store import cluster as engine
from rmq_store.protocol.wire.command import RemotingCommand, response_to

pytestmark = pytest.mark.skipif(not is_possible(), reason="needs a C compiler")
QUEUE = engine.MessageQueue("Orders", "broker-a", 3)


def answer(_: StubConnection, command: RemotingCommand) -> RemotingCommand:
    offset = int(command.ext_fields["queueOffset"])
    assert (command.code, command.ext_fields["maxMsgNums"], command.ext_fields["queueId"]) == (11, "32", "3")
    return response_to(command, 0 if offset < 32_000 else 19, "FOUND", {}, bytes(offset % 5_000))


class OneBroker(engine.Cluster):
    """A cluster whose only broker is known without name servers."""

    def __init__(self, address: str) -> None:
        super().__init__(engine.ClusterSettings.of_text("127.0.0.1:1"))
        self._address = address

    def address(self, broker_name: str, broker_id: int = 0) -> str:
        return self._address


@pytest.fixture
def cluster() -> Iterator[OneBroker]:
    loop = StubLoop()
    server = StubServer(answer, loop=loop)
    with OneBroker(server.address) as made:
        yield made
    server.stop()
    loop.close()


def test_all_answers_come(cluster: OneBroker, tmp_path: Path) -> None:
    program = built("pull_loop", tmp_path)
    offsets = range(0, 32_000, 32)
    fetched = pull_loop.fetch(program, cluster, QUEUE, offsets, 32)
    assert fetched.answers == len(offsets)
    assert fetched.received_bytes > sum(offset % 5_000 for offset in offsets)
    assert built("pull_loop", tmp_path) == program


def test_an_answer_without_messages_ends_the_loop(cluster: OneBroker, tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        pull_loop.fetch(built("pull_loop", tmp_path), cluster, QUEUE, range(31_968, 32_100, 32), 32)
