"""From a request to its answer: pools whose queues are bounded, and errors that become codes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from helpers.cluster.waiting import until
from rmq_store.client import MQBrokerError
from rmq_store.errors import StoreFailedError, UsageError
from rmq_store.protocol.errors import RemotingCommandError, ResponseCode
from rmq_store.protocol.wire.command import ONEWAY_FLAG, RemotingCommand
from rmq_store.server.requests.dispatcher import Dispatcher, Processor, Service
from rmq_store.server.requests.request import Request
from rmq_store.server.requests.worker_pool import Work, WorkerPool


class Peer:
    """Keeps what it is sent."""

    address = "127.0.0.1:4711"

    def __init__(self) -> None:
        self.sent: list[RemotingCommand] = []

    def send(self, *commands: RemotingCommand) -> None:
        self.sent += commands


def answers(processor: Processor, request: RemotingCommand) -> list[RemotingCommand]:
    peer = Peer()
    Dispatcher({7: Service(processor, None)}).receive([Request(request, peer)])
    return peer.sent


def test_an_answer_has_the_opaque_of_its_request() -> None:
    found = answers(lambda request: request.answer(body=b"here"), RemotingCommand(7, opaque=42))
    assert [(one.opaque, one.code, one.body, one.is_response) for one in found] == [(42, 0, b"here", True)]


def test_an_unknown_code_is_answered_with_three() -> None:
    found = answers(lambda request: request.answer(), RemotingCommand(8))
    assert [one.code for one in found] == [ResponseCode.REQUEST_CODE_NOT_SUPPORTED]
    assert "8" in (found[0].remark or "")


@pytest.mark.parametrize("code", [7, 8])
def test_a_one_way_request_has_no_answer(code: int) -> None:
    assert answers(lambda request: request.answer(), RemotingCommand(code, flag=ONEWAY_FLAG)) == []


@pytest.mark.parametrize(
    ("error", "code", "remark"),
    [
        (MQBrokerError(17, "no such topic", "broker-a"), 17, "no such topic"),
        (RemotingCommandError("the field 'topic' is missing"), ResponseCode.SYSTEM_ERROR, "'topic' is missing"),
        (UsageError("no name of a group"), ResponseCode.SYSTEM_ERROR, "no name of a group"),
        (StoreFailedError("the disk is broken"), ResponseCode.SYSTEM_ERROR, "the disk is broken"),
        (ZeroDivisionError("secret"), ResponseCode.SYSTEM_ERROR, "an error inside the broker"),
    ],
)
def test_an_error_becomes_a_code_and_a_remark(error: Exception, code: int, remark: str) -> None:
    def fail(_: Request) -> RemotingCommand:
        raise error

    found = answers(fail, RemotingCommand(7))
    assert [one.code for one in found] == [code]
    assert remark in (found[0].remark or "") and "secret" not in (found[0].remark or "")


def test_a_check_that_refuses_comes_before_the_processor() -> None:
    def refuse(_: Request) -> None:
        raise MQBrokerError(ResponseCode.NO_PERMISSION, "not for you", "")

    called: list[Request] = []
    peer = Peer()
    service = Service(lambda request: called.append(request), None)  # type: ignore[func-returns-value]
    Dispatcher({7: service}, refuse).receive([Request(RemotingCommand(7), peer)])
    assert [one.code for one in peer.sent] == [ResponseCode.NO_PERMISSION] and not called


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool("test", 1, 2, 60_000)
    yield pool
    pool.close()


def test_a_full_queue_is_answered_with_busy(pool: WorkerPool) -> None:
    started, go_on = threading.Event(), threading.Event()

    def work(request: Request) -> RemotingCommand:
        started.set()
        go_on.wait(60)
        return request.answer()

    peer = Peer()
    dispatcher = Dispatcher({7: Service(work, pool)})
    dispatcher.receive([Request(RemotingCommand(7, opaque=0), peer)])
    assert started.wait(60)
    for opaque in (1, 2, 3):
        dispatcher.receive([Request(RemotingCommand(7, opaque=opaque), peer)])
    assert [(one.opaque, one.code) for one in peer.sent] == [(3, ResponseCode.SYSTEM_BUSY)]
    assert (peer.sent[0].remark or "").startswith("[OVERLOAD]")
    go_on.set()
    pool.close()
    assert [(one.opaque, one.code) for one in peer.sent[1:]] == [(0, 0), (1, 0), (2, 0)]


def test_what_waited_too_long_is_given_up() -> None:
    pool, done = WorkerPool("test", 1, 10, 100), []
    late = Work(time.monotonic() - 1, lambda: done.append("run"), lambda: done.append("given up"))
    assert pool.submit(late)
    pool.close()
    assert done == ["given up"]


def test_work_wakes_one_thread_and_that_which_was_busy_last() -> None:
    pool = WorkerPool("test", 3, 10, 60_000)
    threads: list[int] = []
    for _ in range(12):
        until(lambda: len(pool._idle) == 3, "all threads wait")  # as between two requests of one client
        done = threading.Event()

        def work(done: threading.Event = done) -> None:
            threads.append(threading.get_ident())
            done.set()

        assert pool.submit(Work(time.monotonic(), work, work))
        assert done.wait(60)
    pool.close()
    assert len(set(threads)) == 1


def test_no_work_is_left_lying_however_many_submit() -> None:
    pool = WorkerPool("test", 2, 1_000_000, 60_000)
    done: list[int] = []

    def submit() -> None:
        for number in range(500):
            pool.submit(Work(time.monotonic(), lambda number=number: done.append(number), lambda: None))

    submitters = [threading.Thread(target=submit) for _ in range(4)]
    for one in submitters:
        one.start()
    for one in submitters:
        one.join()
    until(lambda: len(done) == 2000, "all work is done")  # before `close`, which wakes all
    pool.close()
    assert sorted(done) == sorted(4 * list(range(500)))
