"""307 and 309: requests that a member of a group answers itself (AdminBrokerProcessor#callConsumer).

The request goes to the member over its own connection, and its answer comes back as that of the broker. No thread
waits in between. It has the fields of its header only: the asker's signature stays here, as the member could use it for
requests of its own.
"""

from __future__ import annotations

from dataclasses import replace

from rmq_store.errors import UsageError
from rmq_store.format.text.ids import parse_offset_message_id
from rmq_store.protocol.errors import MQBrokerError, ResponseCode
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.group_headers import (
    ConsumeMessageDirectlyRequestHeader,
    GetConsumerRunningInfoRequestHeader,
)
from rmq_store.protocol.wire.header_fields import RequestHeader
from rmq_store.protocol.wire.header_fields import request as request_of
from rmq_store.server.processors.client_requests import CALL_TIMEOUT_MS, call_peer
from rmq_store.server.processors.members import Members
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.requests.request import Later, Request, refusal, refuse_body


class MemberQuestions:
    """Passes questions on to the members of groups."""

    def __init__(self, served: ServedStore, members: Members) -> None:
        self._served = served
        self._members = members

    def running_info(self, request: Request) -> Later:
        """307: the member's description of itself."""
        refuse_body(request)
        header = request.header(GetConsumerRunningInfoRequestHeader)
        return self._pass_on(request, header.consumer_group, header.client_id, header, b"")

    def consume_directly(self, request: Request) -> Later:
        """309: one message for the member's listener, and what came of it. MQBrokerError 1: no such message."""
        refuse_body(request)
        header = request.header(ConsumeMessageDirectlyRequestHeader)
        try:
            _, offset = parse_offset_message_id(header.msg_id or "")
            frame = self._served.store.frame_at(offset)
        except UsageError as error:
            raise _failed(f"can not find message by the id, {header.msg_id}: {error}") from error
        named = replace(header, broker_name=self._served.name)
        return self._pass_on(request, header.consumer_group, header.client_id or "", named, frame)

    def _pass_on(self, request: Request, group: str, client_id: str, header: RequestHeader, body: bytes) -> Later:
        member = self._members.member(group, client_id)
        if member is None:
            raise _failed(f"The Consumer <{group}> <{client_id}> not online")

        def answered(answer: RemotingCommand | None) -> None:
            try:
                pass_back(answer)
            finally:
                request.done()

        def pass_back(answer: RemotingCommand | None) -> None:
            if answer is None:
                remark = f"consumer <{group}> <{client_id}> Timeout: no answer within {CALL_TIMEOUT_MS} ms"
                request.reply(request.answer(ResponseCode.CONSUME_MSG_TIMEOUT, remark))
                return
            passed = request.answer(answer.code, answer.remark, body=answer.body)
            passed.ext_fields = dict(answer.ext_fields)
            request.reply(passed)

        call_peer(member.peer, request_of(header, body), answered)
        return Later.IN_WORK


def _failed(remark: str) -> MQBrokerError:
    return refusal(ResponseCode.SYSTEM_ERROR, remark)
