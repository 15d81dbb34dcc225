"""324 and 325: a reply is passed on to the client that waits for it, by 326 (ReplyMessageProcessor.java).

The one who asks has put its client id into the property REPLY_TO_CLIENT. A reply is not stored.
"""

from __future__ import annotations

import time
from dataclasses import replace

from rmq_store.format.properties.property_string import (
    PUSH_REPLY_TIME,
    REPLY_TO_CLIENT,
    encode_properties,
    parse_properties,
)
from rmq_store.protocol.errors import MQBrokerError, ResponseCode
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.header_fields import request as request_of
from rmq_store.protocol.wire.headers import SendMessageRequestHeader
from rmq_store.protocol.wire.reply_headers import (
    ReplyMessageRequestHeader,
    SendReplyMessageRequestHeader,
    SendReplyMessageRequestHeaderV2,
)
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.server.processors.client_requests import call_peer
from rmq_store.server.processors.members import Members
from rmq_store.server.processors.sending import place_of
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.requests.request import Later, Request, refusal


class ReplyProcessor:
    """Passes replies on to connected producers."""

    def __init__(self, served: ServedStore, members: Members) -> None:
        self._served = served
        self._members = members

    def reply(self, request: Request) -> Later:
        """324 and 325; it is answered when the client has taken the reply, and counts until then. MQBrokerError 1: no
        client waits for it.
        """
        is_v1 = request.command.code == RequestCode.SEND_REPLY_MESSAGE
        header = request.header(SendReplyMessageRequestHeader if is_v1 else SendReplyMessageRequestHeaderV2)
        properties = parse_properties((header.properties or "").encode())
        client_id = properties.get(REPLY_TO_CLIENT)
        if client_id is None:
            raise _failed(f"reply message properties[{REPLY_TO_CLIENT}] is null")
        peer = self._members.producer_peer(client_id)
        if peer is None:
            raise _failed(f"push reply message fail, channel of <{client_id}> not found.")

        asked, done = _without_content(request), request.done
        place = place_of("0", max(header.queue_id, 0), 0, None)

        def answered(answer: RemotingCommand | None) -> None:
            try:
                tell(answer)
            finally:
                done()

        def tell(answer: RemotingCommand | None) -> None:
            if answer is None or answer.code != ResponseCode.SUCCESS:
                reason = "no answer" if answer is None else answer.remark
                remark = f"push reply message to {client_id} fail: {reason}"
                asked.reply(asked.answer(ResponseCode.SYSTEM_ERROR, remark))
            else:
                asked.reply(asked.answer(header=place))

        call_peer(peer, request_of(self._notice(request, header, properties), request.command.body), answered)
        return Later.IN_WORK

    def _notice(
        self, request: Request, header: SendMessageRequestHeader, properties: dict[str, str]
    ) -> ReplyMessageRequestHeader:
        now_ms = time.time_ns() // 1_000_000
        return ReplyMessageRequestHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            born_host=request.peer.address,
            store_host=self._served.address,
            store_timestamp=now_ms,
            properties=encode_properties(properties | {PUSH_REPLY_TIME: str(now_ms)}).decode(),
            reconsume_times=header.reconsume_times or 0,
            unit_mode=bool(header.unit_mode),
        )


def _without_content(request: Request) -> Request:
    """The part that an answer needs, so that the content of a reply does not wait for its client."""
    return replace(request, command=replace(request.command, ext_fields={}, body=b""))


def _failed(remark: str) -> MQBrokerError:
    return refusal(ResponseCode.SYSTEM_ERROR, remark)
