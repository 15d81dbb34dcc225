"""200050 and 200055: messages that are hidden from their group until they are acknowledged, and POPs that wait.

Each message of an answer brings its own receipt handle, in the property POP_CK, as a retried one does in RocketMQ. A
POP in the order of the queues (`order`) gets nothing from a queue while one of its messages is hidden; there is no
handle of another kind. Sources: PopMessageProcessor.java, PollingInfoProcessor.java.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rmq_store.broker.filter.subscription import MessageSelector, Subscription
from rmq_store.broker.pop.receipt_handle import ReceiptHandle
from rmq_store.errors import UsageError
from rmq_store.format.frames.stored_message import StoredMessage
from rmq_store.format.properties.property_string import (
    FIRST_POP_TIME,
    NAME_VALUE_SEPARATOR,
    POP_CK,
    PROPERTIES_BYTES_MAX,
    PROPERTY_SEPARATOR,
)
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.messages import PoppedMessage
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.pop_headers import (
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from rmq_store.server.pop.held_pops import HeldPop, HeldPops, Share
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.requests.request import Request, refusal, refuse_body

MESSAGES_MAX: Final = 32
ANSWER_BYTES_MAX: Final = 8 << 20
"""Of bodies: half a frame. A larger message goes alone."""
_FROM_FIRST: Final = 0
_ORIGINAL: Final = 0


class PopProcessor:
    """Gives out messages of one store, and hides them."""

    def __init__(self, served: ServedStore, holds: HeldPops) -> None:
        self._served = served
        self._holds = holds

    def pop(self, request: Request) -> RemotingCommand | None:
        """200050; None: the request is held."""
        refuse_body(request)
        header = request.header(PopMessageRequestHeader)
        held = HeldPop(request, header, self._checked(header))
        answer = self._take(held)
        if answer is not None:
            return answer
        if self._holds.hold(held):
            return None
        is_full = self._holds.is_full and header.poll_time > 0
        return self._nothing(held, ResponseCode.POLLING_FULL if is_full else ResponseCode.POLLING_TIMEOUT)

    def pop_again(self, held: HeldPop, *, is_last: bool) -> RemotingCommand | None:
        """The answer to a held request that has woken up. None: it found nothing, and is held again."""
        if is_last:
            return self._nothing(held, ResponseCode.POLLING_TIMEOUT)
        answer = self._take(held)
        if answer is not None:
            return answer
        return None if self._holds.hold(held, again=True) else self._nothing(held, ResponseCode.POLLING_TIMEOUT)

    def polling_info(self, request: Request) -> RemotingCommand:
        """200055."""
        header = request.header(PollingInfoRequestHeader)
        place = header.consumer_group, header.topic, header.queue_id
        count = sum(self._holds.count(Share(*place, in_order)) for in_order in (False, True))
        return request.answer(header=PollingInfoResponseHeader(polling_num=count))

    def _checked(self, header: PopMessageRequestHeader) -> Subscription:
        share = Share(header.consumer_group, header.topic, header.queue_id)
        self._served.group(share.group)
        self._served.topic_with_queue(share.topic, share.one_queue)
        check_count(header.max_msg_nums)
        try:
            if header.exp_type == "SQL92":
                return Subscription.of(header.topic, MessageSelector.by_sql(header.exp or ""))
            return Subscription.of(header.topic, header.exp or "*")
        except UsageError as error:
            raise refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error

    def _take(self, held: HeldPop) -> RemotingCommand | None:
        """The answer with messages; None if there are none."""
        header, share = held.header, held.key
        popped = self._served.broker.receive_message(
            header.consumer_group,
            held.subscription,
            header.max_msg_nums,
            header.invisible_time,
            from_first=header.init_mode == _FROM_FIRST,
            bytes_max=ANSWER_BYTES_MAX,
            queue_id=share.one_queue,
            in_order=share.in_order,
            attempt_id=header.attempt_id,
        )
        if not popped:
            return None
        self._holds.freed(share.group, share.topic)
        return self._answer(held, popped)

    def _answer(self, held: HeldPop, popped: Sequence[PoppedMessage]) -> RemotingCommand:
        share, frames = held.key, list[bytes]()
        bare: ReceiptHandle | None = None
        offsets: dict[int, list[int]] = {}
        handles = [ReceiptHandle.parse(one.receipt_handle).for_remoting for one in popped]
        for one, handle in zip(popped, handles, strict=True):
            stored = self._served.store.message_at(one.message.commit_log_offset)
            properties = _with_handle(stored, handle)
            if len(properties) > PROPERTIES_BYTES_MAX:
                properties, bare = stored.properties_raw, bare or handle
            given = replace(stored, properties_raw=properties, reconsume_times=one.delivery_attempt - 1)
            frames.append(given.encode())
            offsets.setdefault(handle.queue_id, []).append(handle.queue_offset)
        # Clients build the handle of a message without POP_CK from these fields: right for one such message.
        starts = {queue_id: min(known) for queue_id, known in offsets.items()}
        if bare is not None:
            starts[bare.queue_id] = bare.queue_offset
        header = PopMessageResponseHeader(
            pop_time=handles[0].pop_time_ms,
            invisible_time=handles[0].invisible_ms,
            revive_qid=(bare or handles[0]).version,
            rest_num=self._served.store.pop.rest(
                share.group, share.topic, queue_id=share.one_queue, in_order=share.in_order
            ),
            start_offset_info=";".join(f"{_ORIGINAL} {queue_id} {start}" for queue_id, start in starts.items()),
            msg_offset_info=";".join(
                f"{_ORIGINAL} {queue_id} {','.join(map(str, known))}" for queue_id, known in offsets.items()
            ),
        )
        return held.request.answer(remark="FOUND", header=header, body=b"".join(frames))

    def _nothing(self, held: HeldPop, code: int) -> RemotingCommand:
        header = PopMessageResponseHeader(
            pop_time=time.time_ns() // 1_000_000, invisible_time=held.header.invisible_time, revive_qid=0, rest_num=0
        )
        return held.request.answer(code, "no message to receive", header=header)


def _with_handle(stored: StoredMessage, handle: ReceiptHandle) -> bytes:
    """The properties with the handle; the last of several properties with a name counts."""
    own = {POP_CK: str(handle)}
    if FIRST_POP_TIME not in stored.properties:
        own[FIRST_POP_TIME] = str(handle.pop_time_ms)
    added = "".join(f"{name}{NAME_VALUE_SEPARATOR}{value}{PROPERTY_SEPARATOR}" for name, value in own.items())
    raw = stored.properties_raw
    separator = PROPERTY_SEPARATOR if raw and not raw.endswith(PROPERTY_SEPARATOR.encode()) else ""
    return raw + f"{separator}{added}".encode()


def check_count(max_msg_nums: int) -> None:
    """MQBrokerError 29: so many messages are not given out at once."""
    if not 1 <= max_msg_nums <= MESSAGES_MAX:
        raise refusal(ResponseCode.INVALID_PARAMETER, f"maxMsgNums[{max_msg_nums}] is not in 1..{MESSAGES_MAX}")
