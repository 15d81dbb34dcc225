"""What other processes do in the directory of a served store is seen by the next pull, though the server remembers what
it has listed and looked for.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.metadata import json_table
from rmq_store.broker.metadata.groups import SubscriptionGroup
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.header_fields import request
from rmq_store.protocol.wire.headers import (
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    SendMessageRequestHeaderV2,
)
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.processors.pulling import SUBSCRIPTION
from rmq_store.server.requests.request import Request

_OPEN = """import os, sys
from rmq_store import Message, Store
root = sys.argv[1]
with Store.open(root) as store:
    """
APPEND = f"{_OPEN}for number in range(int(sys.argv[2])): store.send(Message('Orders', b'other', queue_id=0))"
DELETE_OLD = f"""{_OPEN}for name in os.listdir(f"{{root}}/commitlog"): os.utime(f"{{root}}/commitlog/{{name}}", (1, 1))
    store.retention._sleep = lambda seconds: None
    assert store.retention.run(manual=True, file_reserved_time=0).removed"""


class Answer(NamedTuple):
    code: int
    bodies: int
    next_offset: int
    first: int
    last: int


def frame_count(body: bytes) -> int:
    count = at = 0
    while at < len(body):
        at += int.from_bytes(body[at : at + 4], "big")
        count += 1
    return count


class Asking:
    """A client of one server, without a connection."""

    address = "127.0.0.1:4711"

    def __init__(self, server: BrokerServer) -> None:
        self._server = server
        self._root = server.store.path

    def send(self, *commands: RemotingCommand) -> None:
        raise AssertionError(commands)

    def pull(self, offset: int) -> Answer:
        header = PullMessageRequestHeader(
            consumer_group="readers", topic="Orders", queue_id=0, queue_offset=offset, max_msg_nums=32,
            sys_flag=SUBSCRIPTION, commit_offset=0, suspend_timeout_millis=0, subscription="*", sub_version=0,
        )  # fmt: skip
        answer = self.ask(request(header))
        ends = PullMessageResponseHeader.from_ext(answer.ext_fields)
        return Answer(answer.code, frame_count(answer.body), ends.next_begin_offset, ends.min_offset, ends.max_offset)

    def ask(self, command: RemotingCommand) -> RemotingCommand:
        """The answer of the processor of a request, in this thread."""
        assert self._server._dispatcher is not None
        answer = self._server._dispatcher._services[command.code].processor(Request(command, self))
        assert isinstance(answer, RemotingCommand)
        return answer

    def settle(self) -> None:
        """Let the directories look as if nothing had changed for long: what was listed is remembered from now on."""
        for directory in (self._root / "commitlog", self._root / "consumequeue/Orders/0"):
            os.utime(directory, (1, 1))
        for _ in range(2):
            self.pull(0)


@contextlib.contextmanager
def served(root: Path, config: StoreConfig) -> Iterator[Asking]:
    with BrokerServer(root, config=config, create=True) as server:
        server.store.create_group(SubscriptionGroup("readers"))
        server.store.create_topic("Orders", 1)
        for _ in range(10):
            server.store.send(Message("Orders", b"own", queue_id=0))
        yield Asking(server)


@pytest.fixture
def asking(root: Path, tiny: StoreConfig) -> Iterator[Asking]:
    with served(root, tiny) as asking:
        yield asking


@pytest.fixture
def other(root: Path) -> Callable[..., None]:
    def run(script: str, *arguments: str) -> None:
        subprocess.run([sys.executable, "-c", script, str(root), *arguments], check=True, timeout=120)

    return run


def segments(root: Path) -> int:
    return len(list((root / "commitlog").iterdir()))


def test_messages_of_another_process_are_pulled(asking: Asking, other: Callable[..., None]) -> None:
    asking.settle()
    assert asking.pull(0) == (ResponseCode.SUCCESS, 10, 10, 0, 10)
    assert asking.pull(10).code == ResponseCode.PULL_NOT_FOUND
    other(APPEND, "5")
    assert asking.pull(10) == (ResponseCode.SUCCESS, 5, 15, 0, 15)
    assert asking.pull(0) == (ResponseCode.SUCCESS, 15, 15, 0, 15)


def test_segments_and_queue_files_that_another_process_begins_are_pulled(
    asking: Asking, other: Callable[..., None], root: Path
) -> None:
    asking.settle()
    before = segments(root)
    other(APPEND, "300")
    assert segments(root) > before + 1
    pulled, offset = 0, 0
    while (found := asking.pull(offset)).code == ResponseCode.SUCCESS:
        pulled, offset = pulled + found.bodies, found.next_offset
    assert (pulled, offset) == (310, 310)


def test_messages_that_retention_of_another_process_deletes_are_gone_at_once(
    asking: Asking, other: Callable[..., None], root: Path
) -> None:
    other(APPEND, "300")
    asking.settle()
    assert asking.pull(0)[2:] == (32, 0, 310)
    other(DELETE_OLD)
    moved = asking.pull(0)
    assert moved.code == ResponseCode.PULL_OFFSET_MOVED
    assert 0 < moved.first == moved.next_offset < moved.last == 310
    assert asking.pull(moved.first).code == ResponseCode.SUCCESS
    assert asking.pull(moved.first - 1).code == ResponseCode.PULL_OFFSET_MOVED


def test_the_beginning_of_a_queue_is_looked_for_once_while_nothing_changes(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmq_store.log.views.consume_queue import ConsumeQueue

    asking.settle()
    monkeypatch.setattr(ConsumeQueue, "_searched_first", None)
    assert asking.pull(0) == (ResponseCode.SUCCESS, 10, 10, 0, 10)


def test_the_end_of_a_queue_is_looked_for_once_while_nothing_is_appended(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmq_store.log.views.consume_queue import ConsumeQueue

    asking.settle()
    monkeypatch.setattr(ConsumeQueue, "max_offset", None)
    assert asking.pull(0) == (ResponseCode.SUCCESS, 10, 10, 0, 10)


def test_a_pull_asks_for_each_directory_once(root: Path, small: StoreConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    stat = os.stat

    def counted(path: str, **how: object) -> os.stat_result:
        if threading.current_thread() is threading.main_thread():  # the server's other work looks, too
            asked.append(str(path).rpartition("store/")[2].rpartition("/./")[2])
        return stat(path, **how)  # type: ignore[arg-type]

    with served(root, small) as asking:
        asking.settle()
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", counted)
            asking.pull(0)
    # The first one: whether the store is still in its place.
    assert asked == ["commitlog", "commitlog", "consumequeue/Orders/0"]


def test_a_pull_looks_its_topic_up_once_and_a_send_twice(
    root: Path, small: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    stamp = json_table._stamp

    def counted(path: str) -> tuple[int, int, int] | None:
        if threading.current_thread() is threading.main_thread():
            looks.append(Path(path).name)
        return stamp(path)

    header = SendMessageRequestHeaderV2(
        producer_group="pg", topic="Orders", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp=0, flag=0,
    )  # fmt: skip
    with served(root, small) as asking:
        asking.settle()
        with monkeypatch.context() as patch:
            patch.setattr(json_table, "_stamp", counted)
            asking.pull(0)
            of_pull, looks = looks, []
            assert asking.ask(request(header, b"body")).code == ResponseCode.SUCCESS
    assert of_pull == ["subscriptionGroup.json", "topics.json"]
    # The second one is that of the append, which other processes may have kept waiting.
    assert looks == ["topics.json", "topics.json"]


def test_readers_of_a_store_that_another_process_writes_see_the_same(root: Path, asking: Asking) -> None:
    with Store.open(root, read_only=True) as reader:
        found = reader.read_frames("Orders", 0, 0, entries_max=100, count_max=4, bytes_max=1 << 20)
        assert (found.queue, found.frame_count, found.next_offset) == ((0, 10), 4, 4)
        assert reader.read_frames("Orders", 0, 10, entries_max=100, count_max=4, bytes_max=1)[1:] == (b"", 0, 10)
