"""Answers that would be too large, and threads that outlive every error."""

from __future__ import annotations

import pytest

from rmq_store import Message
from rmq_store.client import ResponseCode
from rmq_store.format.frames.frame_walk import frames_of_answer
from rmq_store.protocol.errors import RemotingCommandError
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.requests.dispatcher import Dispatcher, Service
from rmq_store.server.requests.request import Request
from rmq_store.server.requests.worker_pool import Work, WorkerPool


class Strict:
    """A peer that, as a connection, has room for small frames only; `broken`: for none."""

    address = "127.0.0.1:4711"

    def __init__(self, *, broken: bool = False) -> None:
        self.sent: list[RemotingCommand] = []
        self.broken = broken

    def send(self, *commands: RemotingCommand) -> None:
        if self.broken or any(len(one.body) + len(one.remark or "") > 5000 for one in commands):
            raise RemotingCommandError("a frame of too many bytes")
        self.sent += commands


def test_an_answer_that_fits_no_frame_becomes_an_error() -> None:
    peer = Strict()
    Dispatcher({7: Service(lambda request: request.answer(body=bytes(6000)), None)}).receive(
        [Request(RemotingCommand(7, opaque=5), peer)]
    )
    assert [(one.opaque, one.code) for one in peer.sent] == [(5, ResponseCode.SYSTEM_ERROR)]
    assert "frame" in (peer.sent[0].remark or "")


def test_a_peer_that_takes_nothing_ends_no_thread() -> None:
    peer = Strict(broken=True)
    Dispatcher({7: Service(lambda request: request.answer(), None)}).receive([Request(RemotingCommand(7), peer)])
    assert peer.sent == []


def test_a_long_remark_is_cut() -> None:
    answer = Request(RemotingCommand(7), Strict()).answer(ResponseCode.SYSTEM_ERROR, "x" * 5000)
    assert answer.remark is not None and answer.remark == "x" * 1024 + "..."


@pytest.mark.parametrize("waited_s", [0, 1_000_000])
def test_a_worker_outlives_an_error(waited_s: int) -> None:
    pool, done = WorkerPool("test", 1, 10, 60_000), []

    def fail() -> None:
        raise ZeroDivisionError

    assert pool.submit(Work(float(-waited_s), fail, fail))
    assert pool.submit(Work(float("inf"), lambda: done.append("next"), fail))
    pool.close()
    assert done == ["next"]


def test_a_request_that_an_error_repeats_does_not_stop_the_server(server: BrokerServer, cluster: Cluster) -> None:
    route = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "x" * (200_000)})
    answer = cluster.client.call(server.address, route, 20_000)
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST and len(answer.remark or "") < 2000
    server.store.create_topic("Orders", 1)
    route = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Orders"})
    assert cluster.client.call(server.address, route, 20_000).code == ResponseCode.SUCCESS


def test_messages_of_a_key_that_fill_more_than_a_frame_are_answered_in_part(
    server: BrokerServer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmq_store.server.processors import queries

    monkeypatch.setattr(queries, "ANSWER_BYTES_MAX", 2500)
    for number in range(5):
        server.store.send(Message("Orders", b"%d" % number * 1000, keys="k"))
    fields = {"topic": "Orders", "key": "k", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(1 << 60)}
    for limit, bodies in ((2500, [b"3", b"4"]), (10, [b"4"]), (1 << 20, [b"0", b"1", b"2", b"3", b"4"])):
        monkeypatch.setattr(queries, "ANSWER_BYTES_MAX", limit)
        command = RemotingCommand(RequestCode.QUERY_MESSAGE, dict(fields))
        answer = cluster.client.call(server.address, command, 20_000)
        assert answer.code == ResponseCode.SUCCESS
        places = frames_of_answer(answer.body)[0]
        assert len(places) == len(bodies)
        assert all(body * 1000 in answer.body for body in bodies)
