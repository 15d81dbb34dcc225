"""The tables of a broker as its slaves get them (SlaveSynchronize.java, AdminBrokerProcessor.java).

    43    consumerOffset.json, of a broker with enableLmq lmqConsumerOffset.json      all versions
    45    delayOffset.json                                                            all versions
    402   messageRequestMode.json                                                     5.x
    60    timercheck, in bytes                                                        5.x
    61    timermetrics                                                                5.x

21 and 201 are in `topics` and `groups`. `read_table` raises MQBrokerError if the answer is a refusal, and the error
itself if one stands in its place.
"""

from __future__ import annotations

from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.wire.admin_headers import (
    GetAllConsumerOffsetRequestHeader,
    GetAllDelayOffsetRequestHeader,
    GetAllMessageRequestModeRequestHeader,
    GetTimerCheckPointRequestHeader,
    GetTimerMetricsRequestHeader,
)
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.header_fields import request
from rmq_store.remoting.questions.answer import Given, checked, is_nothing


def ask_consumer_offsets() -> RemotingCommand:
    """The committed offsets of all groups (43)."""
    return request(GetAllConsumerOffsetRequestHeader())


def ask_delay_offsets() -> RemotingCommand:
    """How far each delay level was delivered (45)."""
    return request(GetAllDelayOffsetRequestHeader())


def ask_request_modes() -> RemotingCommand:
    """The groups that read by POP (402). Brokers of 4.x do not know the question."""
    return request(GetAllMessageRequestModeRequestHeader())


def ask_timer_check_point() -> RemotingCommand:
    """How far timers were delivered (60). Brokers of 4.x do not know the question."""
    return request(GetTimerCheckPointRequestHeader())


def ask_timer_metrics() -> RemotingCommand:
    """How many timers of each topic wait (61). Brokers of 4.x do not know the question."""
    return request(GetTimerMetricsRequestHeader())


def read_table(answer: Given, broker_name: str) -> bytes | None:
    """The text or the bytes of the table. None: the broker has no such table (1), or does not know the question (3)."""
    if is_nothing(answer):
        return None
    found = checked(answer, broker_name, (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
    return bytes(found.body) if found.code == ResponseCode.SUCCESS else None
