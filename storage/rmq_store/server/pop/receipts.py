"""200051, 200151 and 200053: messages that are done with, or hidden anew (AckMessageProcessor.java,
ChangeInvisibleTimeProcessor.java).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator
from typing import Final

from rmq_store.broker.pop.receipt_handle import ReceiptHandle
from rmq_store.errors import InvalidReceiptHandleError
from rmq_store.protocol.bodies.clients import BatchAck, BatchAckMessageRequestBody
from rmq_store.protocol.errors import MQBrokerError, ResponseCode
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.pop_headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
)
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.requests.request import Request, refusal

ACKS_MAX: Final = 10_000
"""Messages of one 200151."""


class ReceiptProcessor:
    """Takes receipts of messages of one store. `on_freed(group, topic)` is told that the group may have more."""

    def __init__(self, served: ServedStore, on_freed: Callable[[str, str], None]) -> None:
        self._served = served
        self._on_freed = on_freed

    def ack(self, request: Request) -> RemotingCommand:
        """200051. MQBrokerError 208: the handle is void."""
        header = request.header(AckMessageRequestHeader)
        try:
            self._served.broker.ack_message(header.consumer_group, header.topic, header.extra_info)
        except InvalidReceiptHandleError as error:
            raise _void(error) from error
        self._on_freed(header.consumer_group, header.topic)
        return request.answer()

    def ack_all(self, request: Request) -> RemotingCommand:
        """200151. Void handles are passed over, as at a broker: their messages come again.

        Raises:
            MQBrokerError: 29, more than ACKS_MAX messages, a set of more bits, or none. Nothing is acknowledged then.
        """
        asked = BatchAckMessageRequestBody.decode(request.command.body)
        handles: dict[tuple[str, str], list[str]] = {}
        left = ACKS_MAX
        for ack in asked.acks:
            bits = _bits(ack)
            left -= bits.bit_count()
            if left < 0:
                raise refusal(ResponseCode.INVALID_PARAMETER, f"more than {ACKS_MAX} messages are acknowledged at once")
            handles.setdefault((ack.consumer_group, ack.topic), []).extend(_handles(ack, bits, self._served.name))
        for share, texts in handles.items():
            self._served.topic(share[1])
            self._served.store.pop.ack_all(*share, texts)
            self._on_freed(*share)
        return request.answer()

    def change_invisible_time(self, request: Request) -> RemotingCommand:
        """200053. MQBrokerError 208: the handle is void."""
        header = request.header(ChangeInvisibleTimeRequestHeader)
        try:
            text = self._served.broker.change_invisible_duration(
                header.consumer_group, header.topic, header.extra_info, header.invisible_time
            )
        except InvalidReceiptHandleError as error:
            raise _void(error) from error
        handle = ReceiptHandle.parse(text)
        changed = ChangeInvisibleTimeResponseHeader(
            pop_time=handle.pop_time_ms, invisible_time=handle.invisible_ms, revive_qid=handle.version
        )
        return request.answer(header=changed)


def _bits(ack: BatchAck) -> int:
    try:
        bits = int.from_bytes(base64.b64decode(ack.bit_set, validate=True), "little")
    except (binascii.Error, ValueError) as error:
        raise refusal(ResponseCode.INVALID_PARAMETER, f"an ack of {ack.topic} has no set of bits: {error}") from error
    if bits.bit_length() > ACKS_MAX:  # few bits in a large number are slow to find
        raise refusal(ResponseCode.INVALID_PARAMETER, f"an ack of {ack.topic} has more than {ACKS_MAX} bits")
    return bits


def _handles(ack: BatchAck, bits: int, broker_name: str) -> Iterator[str]:
    at = 0
    while bits:
        skipped = (bits & -bits).bit_length() - 1
        at += skipped
        yield str(ReceiptHandle(
            broker_name, ack.queue_id, ack.start_offset + at, None, ack.pop_time, ack.invisible_time,
            ack.revive_queue_id,
        ))  # fmt: skip
        bits >>= skipped + 1
        at += 1


def _void(error: InvalidReceiptHandleError) -> MQBrokerError:
    return refusal(ResponseCode.NO_MESSAGE, str(error))
