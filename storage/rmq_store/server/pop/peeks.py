"""200052: the messages that a group would receive next, while nothing is hidden (PeekMessageProcessor.java)."""

from __future__ import annotations

import time
from dataclasses import replace

from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.pop_headers import PeekMessageRequestHeader, PopMessageResponseHeader
from rmq_store.server.pop.held_pops import Share
from rmq_store.server.pop.pop_processor import ANSWER_BYTES_MAX, check_count
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.requests.request import Request


class PeekProcessor:
    """Shows messages of one store to its groups."""

    def __init__(self, served: ServedStore) -> None:
        self._served = served

    def peek(self, request: Request) -> RemotingCommand:
        """200052: code 19 if there are none.

        Raises:
            MQBrokerError: 17 or 26, no such topic or group; 29, no such queue, or a number of messages out of bounds.
        """
        header = request.header(PeekMessageRequestHeader)
        share = Share(header.consumer_group, header.topic, header.queue_id)
        self._served.group(share.group)
        self._served.topic_with_queue(share.topic, share.one_queue)
        check_count(header.max_msg_nums)
        store = self._served.store
        peeked = store.pop.peek(
            share.group, share.topic, header.max_msg_nums, queue_id=share.one_queue, bytes_max=ANSWER_BYTES_MAX
        )
        frames = []
        for one in peeked:
            stored = store.message_at(one.row.column("commitLogOffset")[0].as_py())
            frames.append(replace(stored, reconsume_times=one.delivery_attempt - 1).encode())
        answer = PopMessageResponseHeader(
            pop_time=time.time_ns() // 1_000_000,
            invisible_time=0,
            revive_qid=0,
            rest_num=store.pop.rest(share.group, share.topic, queue_id=share.one_queue),
        )
        code, remark = (0, "FOUND") if frames else (ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE")
        return request.answer(code, remark, header=answer, body=b"".join(frames))
