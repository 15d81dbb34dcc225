"""Requests that are answered in the thread that has read them, and those that are answered together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest

from rmq_store.errors import StoreFailedError
from rmq_store.protocol.errors import MQBrokerError, ResponseCode
from rmq_store.protocol.wire.command import ONEWAY_FLAG, RemotingCommand
from rmq_store.server.requests.at_once import AtOnce
from rmq_store.server.requests.dispatcher import Dispatcher, GroupProcessor, Service
from rmq_store.server.requests.request import Request
from rmq_store.server.requests.worker_pool import TOGETHER_MAX, Work, WorkerPool

PATIENCE_S = 60.0


def eventually(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.005)


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool("test", 1, 1000, 60_000)
    eventually(lambda: pool.is_idle)
    yield pool
    pool.close()


class Blocked:
    """The thread of a pool, which has work until `end`."""

    def __init__(self, pool: WorkerPool) -> None:
        self._go_on, begun = threading.Event(), threading.Event()

        def work() -> None:
            begun.set()
            self._go_on.wait(PATIENCE_S)

        pool.submit(Work(time.monotonic(), work, work))
        assert begun.wait(PATIENCE_S)

    def end(self) -> None:
        self._go_on.set()


# -- when -------------------------------------------------------------------------------------------------------------


def test_a_request_is_answered_at_once_only_while_its_pool_has_nothing_to_do(pool: WorkerPool) -> None:
    at_once = AtOnce()
    assert at_once.answer(pool, at_once.begin(), lambda: True)
    assert not at_once.answer(pool, at_once.begin(), lambda: False)
    blocked = Blocked(pool)
    assert not at_once.answer(pool, at_once.begin(), lambda: pytest.fail("it overtakes another request"))
    blocked.end()


def test_a_turn_has_an_end_and_a_slow_answer_is_followed_by_a_pause(pool: WorkerPool) -> None:
    now_s = [100.0]

    def takes(seconds: float) -> Callable[[], bool]:
        def answer() -> bool:
            now_s[0] += seconds
            return True

        return answer

    at_once = AtOnce(lambda: now_s[0])
    begin_s = at_once.begin()
    assert at_once.answer(pool, begin_s, takes(0.004))
    assert at_once.answer(pool, begin_s, takes(0.004))
    assert not at_once.answer(pool, begin_s, takes(0))
    assert at_once.answer(pool, at_once.begin(), takes(0.03))
    assert not at_once.answer(pool, at_once.begin(), takes(0))
    now_s[0] += 1
    assert at_once.answer(pool, at_once.begin(), takes(0))


# -- how --------------------------------------------------------------------------------------------------------------


class Peer:
    """Keeps what it is sent, piece by piece."""

    address = "127.0.0.1:4711"

    def __init__(self) -> None:
        self.pieces: list[list[int]] = []
        self.codes: dict[int, int] = {}

    def send(self, *commands: RemotingCommand) -> None:
        self.pieces.append([one.opaque for one in commands])
        self.codes |= {one.opaque: one.code for one in commands}


class Together:
    """A processor of several requests that keeps their opaques."""

    def __init__(self, *, does: bool = True, error: Exception | None = None) -> None:
        self.calls: list[list[int]] = []
        self._does = does
        self._error = error

    def __call__(self, requests: Sequence[Request]) -> list[RemotingCommand] | None:
        self.calls.append([request.command.opaque for request in requests])
        if self._error is not None:
            raise self._error
        return [request.answer() for request in requests] if self._does else None


def asked(peer: Peer, *opaques: int, oneway: int = -1) -> list[Request]:
    return [
        Request(RemotingCommand(7, opaque=one, flag=ONEWAY_FLAG if one == oneway else 0), peer) for one in opaques
    ]  # fmt: skip


def dispatcher(
    pool: WorkerPool,
    *,
    at_once: GroupProcessor | None = None,
    together: GroupProcessor | None = None,
    check: Callable[[Request], None] | None = None,
) -> tuple[Dispatcher, list[int]]:
    """And the opaques of the requests that came to their processor one by one."""
    alone: list[int] = []

    def processor(request: Request) -> RemotingCommand:
        alone.append(request.command.opaque)
        return request.answer()

    return Dispatcher({7: Service(processor, pool, together, at_once)}, check), alone


def test_requests_that_come_together_have_one_call_and_one_piece_of_answers(pool: WorkerPool) -> None:
    peer, at_once = Peer(), Together()
    found, alone = dispatcher(pool, at_once=at_once, together=Together())
    found.receive(asked(peer, 1, 2, 3, oneway=2))
    assert (at_once.calls, peer.pieces, alone) == ([[1, 2, 3]], [[1, 3]], [])


def test_requests_that_wait_are_done_by_one_call_for_all_clients(pool: WorkerPool) -> None:
    first, second, together = Peer(), Peer(), Together()
    found, alone = dispatcher(pool, at_once=Together(), together=together)
    blocked = Blocked(pool)
    found.receive(asked(first, 1, 2))
    found.receive(asked(second, 3))
    blocked.end()
    eventually(lambda: second.pieces)
    assert (together.calls, first.pieces, second.pieces, alone) == ([[1, 2, 3]], [[1, 2]], [[3]], [])


def test_what_cannot_be_done_at_once_goes_to_the_pool_and_there_one_by_one(pool: WorkerPool) -> None:
    peer, at_once, together = Peer(), Together(does=False), Together(does=False)
    found, alone = dispatcher(pool, at_once=at_once, together=together)
    found.receive(asked(peer, 1, 2, 3))
    eventually(lambda: len(peer.codes) == 3)
    assert at_once.calls == [[1, 2, 3]] and alone == [1, 2, 3] and peer.pieces == [[1], [2], [3]]


def test_a_group_has_a_limit(pool: WorkerPool) -> None:
    peer, together = Peer(), Together()
    found, _ = dispatcher(pool, together=together)
    blocked = Blocked(pool)
    found.receive(asked(peer, *range(TOGETHER_MAX + 1)))
    blocked.end()
    eventually(lambda: len(peer.codes) == TOGETHER_MAX + 1)
    assert together.calls == [list(range(TOGETHER_MAX))]


def test_an_error_is_the_answer_to_all_and_nothing_is_done_twice(pool: WorkerPool) -> None:
    peer = Peer()
    found, alone = dispatcher(pool, at_once=Together(error=StoreFailedError("perhaps stored")), together=Together())
    found.receive(asked(peer, 1, 2))
    assert peer.codes == {1: ResponseCode.SYSTEM_ERROR, 2: ResponseCode.SYSTEM_ERROR} and alone == []


def test_a_request_that_is_refused_takes_no_other_with_it(pool: WorkerPool) -> None:
    def check(request: Request) -> None:
        if request.command.opaque == 2:
            raise MQBrokerError(ResponseCode.NO_PERMISSION, "not for you", "")

    peer, at_once = Peer(), Together()
    found, alone = dispatcher(pool, at_once=at_once, together=Together(), check=check)
    found.receive(asked(peer, 1, 2, 3))
    eventually(lambda: len(peer.codes) == 3)
    assert peer.codes == {1: 0, 2: ResponseCode.NO_PERMISSION, 3: 0} and (at_once.calls, alone) == ([], [1, 3])


def test_what_becomes_too_old_while_it_is_tried_together_is_given_up() -> None:
    pool, given_up, done = WorkerPool("test", 1, 10, 200), list[int](), list[int]()
    blocked = Blocked(pool)

    def together(subjects: Sequence[int]) -> bool:
        time.sleep(0.3)
        return False

    for number in range(2):
        pool.submit(Work(
            time.monotonic(), lambda number=number: done.append(number),  # type: ignore[misc]
            lambda number=number: given_up.append(number), together, number,  # type: ignore[misc]
        ))  # fmt: skip
    blocked.end()
    pool.close()
    assert (given_up, done) == ([0, 1], [])


def test_a_group_of_large_requests_ends_at_a_megabyte(pool: WorkerPool) -> None:
    blocked, done = Blocked(pool), list[list[int]]()

    def together(subjects: Sequence[int]) -> bool:
        done.append(list(subjects))
        return True

    for number in range(5):
        work = partial(done.append, [number])
        pool.submit(Work(time.monotonic(), work, work, together, number, 400_000))
    blocked.end()
    eventually(lambda: len(done) == 3)
    assert done == [[0, 1], [2, 3], [4]]


def test_what_waited_for_too_long_is_given_up_and_the_rest_is_done() -> None:
    pool, given_up, done = WorkerPool("test", 1, 10, 1000), list[int](), list[list[int]]()
    blocked = Blocked(pool)

    def together(subjects: Sequence[int]) -> bool:
        done.append(list(subjects))
        return True

    now_s = time.monotonic()
    for number, arrived_s in enumerate((now_s - 10, now_s, now_s)):
        pool.submit(Work(arrived_s, pool.close, lambda number=number: given_up.append(number), together, number))  # type: ignore[misc]
    blocked.end()
    pool.close()
    assert (given_up, done) == ([0], [[1, 2]])
