"""223: the offsets in the memory of a group's members, each of which is asked by 221 (Broker2Client#getConsumeStatus).

No thread waits for the answers. A member that does not answer in time is left out, as at a broker.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from typing import Final

from rmq_store.protocol.bodies.groups import ConsumerStatusBody
from rmq_store.protocol.errors import RemotingCommandError, ResponseCode
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.group_headers import (
    GetConsumerStatusRequestHeader,
    InvokeBrokerToGetConsumerStatusRequestHeader,
)
from rmq_store.protocol.wire.header_fields import request as request_of
from rmq_store.server.processors.client_requests import CALL_TIMEOUT_MS, call_peer
from rmq_store.server.processors.members import Members
from rmq_store.server.requests.request import Later, Request, refusal, refuse_body

ANSWERS_BYTES_MAX: Final = 8 << 20
"""Of all members together: half a frame. The answer to a larger one is refused."""


class MemberOffsets:
    """Asks the connected members of groups for their offsets."""

    def __init__(self, members: Members) -> None:
        self._members = members

    def ask(self, request: Request) -> Later:
        """223. MQBrokerError 1: no member, or not the one that is wanted, is connected to this server."""
        refuse_body(request)
        header = request.header(InvokeBrokerToGetConsumerStatusRequestHeader)
        wanted = header.client_addr or None
        asked = [one for one in self._members.members(header.group) if wanted in (None, one.client_id)]
        if not asked:
            remark = f"No Any Consumer online in the consumer group: [{header.group}]"
            raise refusal(ResponseCode.SYSTEM_ERROR, remark if wanted is None else f"{remark}, client [{wanted}]")
        gathered = _Gathered(request, len(asked))
        # The fields of its header only: the asker's signature stays here.
        question = GetConsumerStatusRequestHeader(topic=header.topic, group=header.group)
        for member in asked:
            call_peer(member.peer, request_of(question), partial(gathered.add, member.client_id))
        return Later.IN_WORK


class _Gathered:
    """The answers of `count` members; the last one answers the request. Safe for threads."""

    def __init__(self, request: Request, count: int) -> None:
        self._request = request
        self._missing = count
        self._bytes = 0
        self._tables: dict[str, Mapping[MessageQueue, int]] = {}
        self._lock = threading.Lock()

    def add(self, client_id: str, answer: RemotingCommand | None) -> None:
        """Take an answer; None: there is none."""
        with self._lock:
            self._missing -= 1
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                self._bytes += len(answer.body)
                if self._bytes <= ANSWERS_BYTES_MAX:
                    self._read(client_id, answer.body)
            if self._missing:
                return
        try:
            self._request.reply(self._answer())
        finally:
            self._request.done()

    def _read(self, client_id: str, body: bytes) -> None:
        try:
            self._tables[client_id] = ConsumerStatusBody.decode(body).message_queue_table
        except RemotingCommandError:  # as if it had not answered: one member does not hide the others
            return

    def _answer(self) -> RemotingCommand:
        if self._bytes > ANSWERS_BYTES_MAX:
            remark = f"the answers of the members have {self._bytes} bytes, more than {ANSWERS_BYTES_MAX}: ask one"
            return self._request.answer(ResponseCode.SYSTEM_ERROR, remark)
        if not self._tables:
            remark = f"no member has answered within {CALL_TIMEOUT_MS} ms"
            return self._request.answer(ResponseCode.CONSUME_MSG_TIMEOUT, remark)
        return self._request.answer(body=ConsumerStatusBody(consumer_table=self._tables).encode())
