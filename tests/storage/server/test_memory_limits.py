"""What clients can make a server hold: requests in work, and answers that nobody reads."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from rmq_store import Message
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.frames import encode_command
from rmq_store.protocol.wire.header_fields import request as request_of
from rmq_store.protocol.wire.reply_headers import SendReplyMessageRequestHeaderV2
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.server.admin import member_questions
from rmq_store.server.admin.member_questions import MemberQuestions
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.processors import replies
from rmq_store.server.processors.members import Members
from rmq_store.server.processors.replies import ReplyProcessor
from rmq_store.server.requests.dispatcher import Dispatcher, Service
from rmq_store.server.requests.request import Request
from rmq_store.server.transport.incomplete_frames import IncompleteFrames
from rmq_store.server.transport.limits import ListenerLimits
from rmq_store.server.transport.listener import Listener
from rmq_store.server.transport.working_bytes import Charge, WorkingBytes

PATIENCE_S = 60.0
SILENCE_S = 0.2


def eventually(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.005)


class Taking:
    """A listener that takes requests, and answers none by itself."""

    def __init__(self, limits: ListenerLimits) -> None:
        self.requests: list[Request] = []
        self.listener = Listener("127.0.0.1", 0, self.requests.extend, limits=limits)
        self.listener.start()
        self.sockets: list[socket.socket] = []

    def client(self) -> socket.socket:
        """A connection that the listener knows."""
        known = len(self.listener.connections)
        found = socket.create_connection(("127.0.0.1", self.listener.port), 10)
        self.sockets.append(found)
        eventually(lambda: len(self.listener.connections) == known + 1)
        return found

    def close(self) -> None:
        for one in self.sockets:
            one.close()
        self.listener.close()


@pytest.fixture
def taking() -> Iterator[Callable[..., Taking]]:
    made: list[Taking] = []

    def make(**limits: int) -> Taking:
        made.append(Taking(ListenerLimits(**limits)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def frame(size: int = 0) -> bytes:
    return encode_command(RemotingCommand(7, body=bytes(size)))


def test_no_client_is_read_while_requests_of_all_are_too_large(taking: Callable[..., Taking]) -> None:
    server = taking(working_bytes_max=100_000)
    first, second = server.client(), server.client()
    first.sendall(frame(60_000))
    eventually(lambda: len(server.requests) == 1)
    first.sendall(frame(60_000))
    eventually(lambda: len(server.requests) == 2)
    eventually(lambda: server.listener.working.is_full)
    third = server.client()
    for client in (second, third):
        client.sendall(frame())
    time.sleep(SILENCE_S)
    assert len(server.requests) == 2
    server.requests[0].done()
    server.requests[0].done()  # counts once
    eventually(lambda: len(server.requests) == 4)
    for request in server.requests:
        request.done()
    assert server.listener.working.count == 0


def test_a_client_has_a_number_of_requests_in_work(taking: Callable[..., Taking]) -> None:
    server = taking(requests_max=4)
    busy, other = server.client(), server.client()
    for number in range(4):
        busy.sendall(frame())
        eventually(lambda number=number: len(server.requests) == number + 1)  # type: ignore[misc]
    busy.sendall(frame(10))
    time.sleep(SILENCE_S)
    assert len(server.requests) == 4
    other.sendall(frame())
    eventually(lambda: len(server.requests) == 5)
    for request in server.requests[:2]:
        request.done()
    eventually(lambda: len(server.requests) == 6)


def test_a_client_that_reads_no_answers_is_closed(taking: Callable[..., Taking]) -> None:
    """Not being read does not help against the requests that it has sent before."""
    server = taking(unread_bytes_max=32 << 20, unsent_bytes_max=1 << 20)
    client = server.client()
    client.sendall(frame() * 50)
    eventually(lambda: len(server.requests) == 50)
    for request in server.requests[:8]:
        request.reply(request.answer(body=bytes(1 << 20)))
    time.sleep(SILENCE_S)
    assert len(server.listener.connections) == 1
    for request in server.requests[8:]:
        request.reply(request.answer(body=bytes(1 << 20)))
    eventually(lambda: len(server.listener.connections) == 0)


@pytest.mark.parametrize("code", [7, 8, 9, 10])
def test_a_request_is_done_whatever_becomes_of_it(code: int) -> None:
    """Answered, unknown, failed, or held."""

    class Peer:
        address = "127.0.0.1:4711"

        def send(self, *commands: RemotingCommand) -> None:
            raise OSError(32, "Broken pipe")

    def fail(request: Request) -> RemotingCommand:
        raise ZeroDivisionError

    services = {
        7: Service(lambda request: request.answer(), None),
        9: Service(fail, None),
        10: Service(lambda request: None, None),
    }
    counted: list[int] = []
    charge = Charge(5, counted.append)
    Dispatcher(services).receive([Request(RemotingCommand(code), Peer(), done=charge.release)])
    assert counted == [5]


def test_incomplete_frames_of_all_clients_have_a_limit(
    taking: Callable[..., Taking], caplog: pytest.LogCaptureFixture
) -> None:
    """The oldest frame goes: whoever stops within one must not keep the others from sending theirs."""
    server = taking(incomplete_bytes_max=3 << 20)
    incomplete = server.listener.incomplete
    stopped, going = server.client(), server.client()
    stopped.sendall(frame(2 << 20)[: 3 << 19])
    eventually(lambda: incomplete.count >= 3 << 19)
    whole = frame(2 << 20)
    going.sendall(whole[:-1])
    eventually(lambda: len(server.listener.connections) == 1)
    assert stopped.recv(1) == b""
    assert "the oldest; the connection is closed" in caplog.text
    going.sendall(whole[-1:])
    eventually(lambda: len(server.requests) == 1)
    assert incomplete.count == 0


def test_no_memory_of_a_frame_is_kept_behind_it(taking: Callable[..., Taking]) -> None:
    server = taking()
    client, whole = server.client(), frame(100_000)
    client.sendall(whole[:50_000])
    eventually(lambda: server.listener.incomplete.count == len(whole))
    client.sendall(whole[50_000:] + whole[:1])
    eventually(lambda: len(server.requests) == 1)
    eventually(lambda: server.listener.incomplete.count == 8)
    client.close()
    eventually(lambda: server.listener.incomplete.count == 0)


def test_a_frame_that_begins_anew_is_no_old_one() -> None:
    class Kept:
        def __init__(self) -> None:
            self.is_given_up = False

        def give_up(self, reason: str) -> None:
            self.is_given_up = True

    frames, first, second = IncompleteFrames(100), Kept(), Kept()
    frames.keep(first, 10)
    frames.keep(second, 10)
    frames.keep(first, 20, is_new=True)
    frames.keep(second, 85)
    assert (first.is_given_up, second.is_given_up, frames.count) == (False, True, 20)


class Silent:
    """A client that is told what it is told."""

    address = "127.0.0.1:4711"

    def __init__(self) -> None:
        self.told: list[RemotingCommand] = []

    def send(self, *commands: RemotingCommand) -> None:
        self.told += commands


REPLY = SendReplyMessageRequestHeaderV2(
    producer_group="pg", topic="DefaultCluster_REPLY_TOPIC", default_topic="TBW102", default_topic_queue_nums=4,
    queue_id=0, sys_flag=0, born_timestamp=7, flag=0, properties="REPLY_TO_CLIENT\x01asker\x02",
)  # fmt: skip


@pytest.mark.parametrize("code", [325, 307, 309])
def test_a_request_that_waits_for_another_client_counts_until_it_is_answered(
    server: BrokerServer, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    waiting: list[Callable[[RemotingCommand | None], None]] = []
    for module in (replies, member_questions):
        monkeypatch.setattr(module, "call_peer", lambda peer, command, on_answer: waiting.append(on_answer))
    monkeypatch.setattr(Members, "producer_peer", lambda self, client_id: Silent())
    monkeypatch.setattr(Members, "member", lambda self, group, client_id: SimpleNamespace(peer=Silent()))
    stored = server.store.message_at(server.store.send(Message("Orders", b"x")).commit_log_offset)
    member = {"consumerGroup": "cg", "clientId": "one", "msgId": stored.offset_msg_id}
    command = request_of(REPLY, b"yes") if code == 325 else RemotingCommand(code, member)
    questions = MemberQuestions(server._served, server._members)
    services = {
        307: Service(questions.running_info, None),
        309: Service(questions.consume_directly, None),
        325: Service(ReplyProcessor(server._served, server._members).reply, None),
    }
    counted: list[int] = []
    charge, asker = Charge(5, counted.append), Silent()
    Dispatcher(services).receive([Request(command, asker, done=charge.release)])
    assert (counted, asker.told) == ([], [])
    (answered,) = waiting
    answered(None)
    assert (counted, len(asker.told)) == ([5], 1)


@pytest.mark.parametrize("code", [11, 361, 200050, 307, 309])
def test_a_request_that_may_be_held_has_no_body(cluster: Cluster, server: BrokerServer, code: int) -> None:
    """A held request is not counted, and would keep its body for a minute."""
    answer = cluster.client.call(server.address, RemotingCommand(code, {}, b"x" * 1000), 20_000)
    assert (answer.code, answer.remark) == (29, f"request {code} has no body; this one has 1000 bytes")


def test_reading_begins_again_with_some_room() -> None:
    told: list[bool] = []
    working = WorkingBytes(100, told.append)
    for size, count in ((99, 0), (1, 1), (50, 1), (-60, 1), (-14, 1), (-2, 2), (20, 2), (6, 3)):
        working.add(size)
        assert len(told) == count, size
    assert told == [True, False, True]
