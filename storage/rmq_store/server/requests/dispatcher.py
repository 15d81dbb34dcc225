"""Gives each request to its processor, and turns errors into answers (NettyRemotingAbstract#processRequestCommand)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias

from rmq_store.errors import ResponseError, StoreError, StoreLockedError, UsageError
from rmq_store.protocol.errors import MQBrokerError, RemotingCommandError, ResponseCode
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.server.requests.at_once import AtOnce
from rmq_store.server.requests.request import Later, Peer, Request
from rmq_store.server.requests.worker_pool import TOGETHER_MAX, Work, WorkerPool

_log: Final = logging.getLogger(__name__)

# Where the header of a frame begins, and as many of its bytes as `{"code":310,` has: all clients write it like that.
_HEADER: Final = 8
_START_BYTES: Final = 12
_NOTHING: Final = (0, b"")

Processor: TypeAlias = Callable[[Request], RemotingCommand | Later | None]
"""Answers a request; None: it answers later by `Request.reply`, or never if the client wants no answer. IN_WORK: it
answers later, and the request counts until then.
"""

GroupProcessor: TypeAlias = Callable[[Sequence[Request]], Sequence[RemotingCommand | None] | None]
"""Answers requests by one call. None: it has done nothing, and each of them is for its own processor. An error that it
raises is the answer to all of them.
"""


BytesProcessor: TypeAlias = Callable[[memoryview, str], tuple[int, bytes]]
"""Answers the requests at the beginning of what a client has sent: where the first one begins that it leaves, and the
answers to the others. It gets the client's address, too, and must not wait.
"""


class Service(NamedTuple):
    """A processor and its pool. Without a pool it runs in the thread of the connections, where it must not wait.

    `together` gets the requests that wait one behind the other, by whatever clients. `at_once` gets them in the thread
    of the connections, and returns None where it would wait; only one at a time if there is no `together`. `of_bytes`
    is asked before, in that thread, too.
    """

    processor: Processor
    pool: WorkerPool | None
    together: GroupProcessor | None = None
    at_once: GroupProcessor | None = None
    of_bytes: BytesProcessor | None = None


class Dispatcher:
    """`services` by request code; `check` raises for a request that its sender may not make."""

    def __init__(self, services: Mapping[int, Service], check: Callable[[Request], None] | None = None) -> None:
        self._services = dict(services)
        self._check = check
        self._at_once = AtOnce()
        self._of_bytes = {
            b'{"code":%d,' % code: service for code, service in services.items() if service.of_bytes is not None
        }
        self._together = {
            service: partial(self._is_answered, service.together)
            for service in services.values()
            if service.together is not None
        }

    def receive(self, requests: Sequence[Request]) -> None:
        """Take requests that came together. The answer to each is sent by some thread, once; never raises."""
        begin_s = self._at_once.begin()
        for service, group in self._groups(requests):
            if service is None:
                for request in group:
                    remark = f"request type {request.command.code} is not supported"
                    _reply(request, request.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))
            elif service.pool is None:
                for request in group:
                    self.run(service.processor, request)
            elif service.at_once is None or not self._at_once.answer(
                service.pool, begin_s, partial(self._is_answered, service.at_once, group)
            ):
                for request in group:
                    self._submit(service, service.pool, request)

    def serve(self, data: memoryview, address: str) -> tuple[int, bytes]:
        """Answer the requests at the beginning of what a client has sent, in the thread of the connections, if their
        service can do it from their bytes; a `BytesProcessor`. Nobody is asked whether the client may make them.
        """
        service = self._of_bytes.get(bytes(data[_HEADER : _HEADER + _START_BYTES]))
        if service is None or service.of_bytes is None or service.pool is None:
            return _NOTHING
        served = self._at_once.first(service.pool, partial(service.of_bytes, data, address))
        return _NOTHING if served is None else served

    def run(self, processor: Processor, request: Request) -> None:
        """Answer a request by a processor, in the calling thread; never raises."""
        try:
            if self._check is not None:
                self._check(request)
            answer = processor(request)
            if answer is Later.IN_WORK:
                return
        except Exception as error:
            answer = _error_answer(request, error)
        if answer is not None:
            _reply(request, answer)
        else:
            request.done()

    def go_on(self, pool: WorkerPool, processor: Processor, request: Request, *, at_once: bool) -> None:
        """Answer a request that was held by a processor: in the calling thread if `at_once` and the pool has nothing
        to do; never raises.
        """

        run = partial(self.run, processor, request)

        def is_answered() -> bool:
            run()
            return True

        if not at_once or not self._at_once.answer(pool, self._at_once.begin(), is_answered):
            pool.submit(Work(float("inf"), run, run), force=True)

    def _groups(self, requests: Sequence[Request]) -> Iterator[tuple[Service | None, Sequence[Request]]]:
        """The requests in their order, with the service of each; those that one service takes together in one piece."""
        at = 0
        while at < len(requests):
            service = self._services.get(requests[at].command.code)
            behind = at + 1
            if service is not None and service.together is not None:
                last = min(len(requests), at + TOGETHER_MAX)
                while behind < last and self._services.get(requests[behind].command.code) is service:
                    behind += 1
            yield service, requests[at:behind]
            at = behind

    def _submit(self, service: Service, pool: WorkerPool, request: Request) -> None:
        work = Work(
            request.arrived_s,
            partial(self.run, service.processor, request),
            partial(_busy, request, f"[TIMEOUT_CLEAN_QUEUE]broker busy, it waited too long for a {pool.name} thread"),
            self._together.get(service),
            request,
            len(request.command.body),
        )
        if not pool.submit(work):
            _busy(request, f"[OVERLOAD]system busy, too many requests wait for a {pool.name} thread")

    def _is_answered(self, processor: GroupProcessor, requests: Sequence[Request]) -> bool:
        """Answer requests by one call; False: nothing was done."""
        if self._check is not None:
            try:
                for request in requests:
                    self._check(request)
            except Exception:  # that request gets its answer when it is alone
                return False
        try:
            answers = processor(requests)
        except Exception as error:
            answers = [_error_answer(request, error) for request in requests]
        if answers is None:
            return False
        _reply_all(requests, answers)
        return True


def _error_answer(request: Request, error: Exception) -> RemotingCommand:
    """The remark for the client; faults that are not the client's are logged."""
    if isinstance(error, MQBrokerError | ResponseError):
        return request.answer(error.response_code, error.remark)
    if isinstance(error, RemotingCommandError | UsageError):
        return request.answer(ResponseCode.SYSTEM_ERROR, str(error))
    if isinstance(error, StoreLockedError):
        return request.answer(ResponseCode.SYSTEM_BUSY, f"[PC_SYNCHRONIZED]broker busy, {error}")
    if isinstance(error, StoreError):
        _log.warning("request %s of %s: %s", request.command.code, request.peer.address, error)
        return request.answer(ResponseCode.SYSTEM_ERROR, str(error))
    _log.error("request %s of %s", request.command.code, request.peer.address, exc_info=error)
    return request.answer(ResponseCode.SYSTEM_ERROR, "an error inside the broker; its log has it")


def _reply_all(requests: Sequence[Request], answers: Sequence[RemotingCommand | None]) -> None:
    """Send the answers, those of a client in one piece. Never raises."""
    for peer, pairs in groupby(zip(requests, answers, strict=True), lambda pair: pair[0].peer):
        answered = [(request, answer) for request, answer in pairs if answer is not None]
        wanted = [(request, answer) for request, answer in answered if not request.command.is_oneway]
        if len(wanted) > 1 and _is_sent(peer, [answer for _, answer in wanted]):
            answered = []
        for request, answer in answered:
            _reply(request, answer)
    for request in requests:
        request.done()


def _is_sent(peer: Peer, answers: Sequence[RemotingCommand]) -> bool:
    try:
        peer.send(*answers)
        return True
    except Exception:  # nothing was sent: one of them fits no frame, which it says when it is alone
        return False


def _reply(request: Request, answer: RemotingCommand) -> None:
    """Send an answer; in place of one that fits no frame, an error. Never raises."""
    try:
        _send(request, answer)
    finally:
        request.done()


def _send(request: Request, answer: RemotingCommand) -> None:
    try:
        request.reply(answer)
        return
    except Exception as error:
        _log.warning("the answer to request %s of %s: %s", request.command.code, request.peer.address, error)
    try:
        request.reply(request.answer(ResponseCode.SYSTEM_ERROR, "the answer fits no frame; the broker's log has it"))
    except Exception:
        _log.exception("request %s of %s has no answer", request.command.code, request.peer.address)


def _busy(request: Request, remark: str) -> None:
    _reply(request, request.answer(ResponseCode.SYSTEM_BUSY, remark))
