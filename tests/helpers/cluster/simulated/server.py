"""A stub that answers by request code, counts requests and bytes, and refuses as told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from helpers.cluster.stub_server import StubConnection, StubLoop, StubServer
from rmq_store.protocol.wire.command import RemotingCommand, response_to
from rmq_store.protocol.wire.frames import encode_command

SUCCESS: Final = 0
NOT_SUPPORTED: Final = 3
TOPIC_NOT_EXIST: Final = 17
V4_9_7: Final = 407
"""MQVersion of a broker that lists in 202 only queues that may be written, and resets (222) only those."""

Reply = tuple[int, dict[str, str], bytes]
Answerer = Callable[[RemotingCommand], Reply]


class CountingServer:
    """A server that counts requests and bytes, and refuses as told. `remarks`: of the answers, by request code.
    `version` of its answers: V4_9_7, or None for 5.5.0.
    """

    def __init__(self, loop: StubLoop) -> None:
        self.calls: Counter[int] = Counter()
        self.received_bytes = 0
        self.sent_bytes = 0
        self.remarks: dict[int, str] = {}
        self.version: int | None = None
        self._refusals: dict[int, tuple[int, int | None]] = {}
        self._answerers: dict[int, Answerer] = {}
        self.server = StubServer(self._answer, loop=loop)

    @property
    def address(self) -> str:
        return self.server.address

    def refuse(self, code: int, answer: int, count: int | None = None) -> None:
        """Answer the next `count` requests of a code (all without it) with an error, without doing them."""
        self._refusals[code] = (answer, count)

    def forgive(self, code: int) -> None:
        """Do the requests of a code again."""
        self._refusals.pop(code, None)

    def answer(self, code: int, answerer: Answerer) -> None:
        """Answer requests of a code by a function, from now on."""
        self._answerers[code] = answerer

    def _answer(self, _: StubConnection, request: RemotingCommand) -> bytes:
        self.calls[request.code] += 1
        self.received_bytes += len(encode_command(request))
        code, fields, body = self._reply(request)
        response = response_to(request, code, self.remarks.get(request.code), fields, body)
        if self.version is not None:
            response.version = self.version
        answer = b"" if request.is_oneway else encode_command(response)
        self.sent_bytes += len(answer)
        return answer

    def _reply(self, request: RemotingCommand) -> Reply:
        if request.code in self._refusals:
            answer, left = self._refusals.pop(request.code)
            if left != 1:
                self._refusals[request.code] = (answer, None if left is None else left - 1)
            return answer, {}, b""
        answerer = self._answerers.get(request.code)
        return (NOT_SUPPORTED, {}, b"") if answerer is None else answerer(request)
