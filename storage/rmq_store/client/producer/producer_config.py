"""The settings of a producer, under RocketMQ's names (DefaultMQProducer.java)."""

from __future__ import annotations

from dataclasses import field
from typing import Final

from rmq_store.arguments import check_fields
from rmq_store.client.producer.fault_strategy import LATENCY_TABLES, LatencyPreset
from rmq_store.client.producer.flow_control import FLOW_CONTROL_POLICY, BackoffPolicy
from rmq_store.errors import UsageError
from rmq_store.format.frames.compression import CompressionKind
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.errors import ResponseCode
from rmq_store.threads import processor_count

# Answers of a broker that wants fewer requests: the next try waits.
FLOW_CONTROL_CODES: Final = frozenset((ResponseCode.SYSTEM_BUSY, ResponseCode.TOO_MANY_REQUESTS))

# The codes that 4.x retries.
RETRY_RESPONSE_CODES_4X: Final = frozenset(
    (
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    )
)


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """Times in ms, sizes in bytes.

    send_msg_timeout: the budget of one send, all of its tries and waits included.
    send_msg_max_timeout_per_request: caps a try that is not the last; -1: no cap.
    retry_times_when_send_failed, retry_times_when_send_async_failed: tries after the first one.
    retry_another_broker_when_not_store_ok: retry a status other than SEND_OK; None: the broker's setting.
    retry_response_codes: response codes that are retried (for asynchronous sends only flow control).
    async_retry_other_broker: asynchronous retries go to another broker, as in RocketMQ since 4.2.
    backoff: the waits after flow-control answers (FLOW_CONTROL_CODES).
    compress_msg_body_over_howmuch: bodies from this size on are compressed, if that makes them smaller.
    send_latency_fault_enable, latency_preset: fault isolation, see MQFaultStrategy.
    back_pressure_for_async_send_num, back_pressure_for_async_send_size: maximum of messages and body bytes in
        progress, if enable_backpressure_for_async_mode is on.
    """

    send_msg_timeout: int = 3_000
    send_msg_max_timeout_per_request: int = -1
    retry_times_when_send_failed: int = 2
    retry_times_when_send_async_failed: int = 2
    retry_another_broker_when_not_store_ok: bool | None = None
    retry_response_codes: frozenset[int] = RETRY_RESPONSE_CODES_4X | FLOW_CONTROL_CODES
    async_retry_other_broker: bool = False
    backoff: BackoffPolicy = FLOW_CONTROL_POLICY
    compress_msg_body_over_howmuch: int = 4_096
    compress_type: CompressionKind = "zlib"
    compress_level: int = 5
    max_message_size: int = 4 << 20
    default_topic_queue_nums: int = 4
    send_latency_fault_enable: bool = False
    latency_preset: LatencyPreset = "5.x"
    enable_backpressure_for_async_mode: bool = False
    back_pressure_for_async_send_num: int = 1_024
    back_pressure_for_async_send_size: int = 100 << 20
    async_sender_threads: int = field(default_factory=processor_count)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.send_msg_timeout < 1:
            raise UsageError(f"send_msg_timeout={self.send_msg_timeout}: at least 1 ms")
        if self.send_msg_max_timeout_per_request < -1:
            raise UsageError("send_msg_max_timeout_per_request is -1, for no cap, or a time in ms")
        if self.retry_times_when_send_failed < 0 or self.retry_times_when_send_async_failed < 0:
            raise UsageError("retry times cannot be negative")
        if self.latency_preset not in LATENCY_TABLES:
            raise UsageError(f"latency_preset={self.latency_preset!r}: one of {', '.join(LATENCY_TABLES)}")
        for name in ("max_message_size", "default_topic_queue_nums", "async_sender_threads"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)} must be positive")
