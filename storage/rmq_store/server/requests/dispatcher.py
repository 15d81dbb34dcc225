"""Gives each request to its processor, and turns errors into answers (NettyRemotingAbstract#processRequestCommand)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from rmq_store.errors import ResponseError, StoreError, UsageError
from rmq_store.protocol.errors import MQBrokerError, RemotingCommandError, ResponseCode
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.server.requests.request import Later, Request
from rmq_store.server.requests.worker_pool import Work, WorkerPool

_log: Final = logging.getLogger(__name__)

Processor: TypeAlias = Callable[[Request], RemotingCommand | Later | None]
"""Answers a request; None: it answers later by `Request.reply`, or never if the client wants no answer. IN_WORK: it
answers later, and the request counts until then.
"""


class Service(NamedTuple):
    """A processor and its pool. Without a pool it runs in the thread of the connections, where it must not wait."""

    processor: Processor
    pool: WorkerPool | None


class Dispatcher:
    """`services` by request code; `check` raises for a request that its sender may not make."""

    def __init__(self, services: Mapping[int, Service], check: Callable[[Request], None] | None = None) -> None:
        self._services = dict(services)
        self._check = check

    def receive(self, request: Request) -> None:
        """Take a request. Its answer is sent by some thread, once; never raises."""
        service = self._services.get(request.command.code)
        if service is None:
            code = request.command.code
            remark = f"request type {code} is not supported"
            _reply(request, request.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))
            return
        if service.pool is None:
            self.run(service.processor, request)
            return
        name = service.pool.name
        work = Work(
            request.arrived_s,
            partial(self.run, service.processor, request),
            partial(_busy, request, f"[TIMEOUT_CLEAN_QUEUE]broker busy, it waited too long for a {name} thread"),
        )
        if not service.pool.submit(work):
            _busy(request, f"[OVERLOAD]system busy, too many requests wait for a {name} thread")

    def run(self, processor: Processor, request: Request) -> None:
        """Answer a request by a processor, in the calling thread; never raises."""
        try:
            if self._check is not None:
                self._check(request)
            answer = processor(request)
            if answer is Later.IN_WORK:
                return
        except (MQBrokerError, ResponseError) as error:
            answer = request.answer(error.response_code, error.remark)
        except (RemotingCommandError, UsageError) as error:
            answer = request.answer(ResponseCode.SYSTEM_ERROR, str(error))
        except StoreError as error:
            _log.warning("request %s of %s: %s", request.command.code, request.peer.address, error)
            answer = request.answer(ResponseCode.SYSTEM_ERROR, str(error))
        except Exception:
            _log.exception("request %s of %s", request.command.code, request.peer.address)
            answer = request.answer(ResponseCode.SYSTEM_ERROR, "an error inside the broker; its log has it")
        if answer is not None:
            _reply(request, answer)
        else:
            request.done()


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
