"""Bodies that clients send, or answer to a broker (HeartbeatData.java, LockBatchRequestBody.java and others)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.bodies.groups import CONSUME_FROM_WHERE, CONSUME_TYPES, MESSAGE_MODELS, SubscriptionData
from rmq_store.protocol.bodies.json_body import JsonBody
from rmq_store.protocol.messages import MessageQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerData(JsonBody):
    """A group that a client produces in."""

    group_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerData(JsonBody):
    """A group that a client consumes in."""

    group_name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: tuple[SubscriptionData, ...] = ()
    unit_mode: bool = False

    ordinals: ClassVar = {
        "consume_type": CONSUME_TYPES, "message_model": MESSAGE_MODELS, "consume_from_where": CONSUME_FROM_WHERE,
    }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatData(JsonBody):
    """A client and its groups (34); the last two members are of 5.x."""

    client_id: str
    producer_data_set: tuple[ProducerData, ...] = ()
    consumer_data_set: tuple[ConsumerData, ...] = ()
    heartbeat_fingerprint: int | None = None
    without_sub: bool | None = None

    wire_names: ClassVar = {"client_id": "clientID"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LockBatchRequestBody(JsonBody):
    """Queues that a client wants to lock (41), or gives back (42)."""

    consumer_group: str
    client_id: str
    mq_set: tuple[MessageQueue, ...] = ()
    only_this_broker: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LockBatchResponseBody(JsonBody):
    """The queues that the client has locked now (41)."""

    lock_ok_mq_set: tuple[MessageQueue, ...] = ()

    wire_names: ClassVar = {"lock_ok_mq_set": "lockOKMQSet"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckClientRequestBody(JsonBody):
    """An expression for a broker to compile (46)."""

    client_id: str
    group: str
    subscription_data: SubscriptionData
    namespace: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryAssignmentRequestBody(JsonBody):
    """A member's question for its queues (400)."""

    topic: str
    consumer_group: str
    client_id: str
    message_model: str = "CLUSTERING"
    strategy_name: str = "AVG"

    ordinals: ClassVar = {"message_model": MESSAGE_MODELS}


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageQueueAssignment(JsonBody):
    """A queue, and whether it is read by PULL or by POP; queue id -1 stands for all queues of the broker."""

    message_queue: MessageQueue
    mode: str = "PULL"
    attachments: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryAssignmentResponseBody(JsonBody):
    """A member's queues (400)."""

    message_queue_assignments: tuple[MessageQueueAssignment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SetMessageRequestModeRequestBody(JsonBody):
    """PULL or POP for a group in a topic (401)."""

    topic: str
    consumer_group: str
    mode: str = "PULL"
    pop_share_queue_num: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAck(JsonBody):
    """Messages of one receive from one queue. `bit_set`: base64 of little-endian bits; bit n is `start_offset` + n."""

    wire_names: ClassVar = {
        "consumer_group": "c", "topic": "t", "retry": "r", "start_offset": "so", "queue_id": "q",
        "revive_queue_id": "rq", "pop_time": "pt", "invisible_time": "it", "bit_set": "b",
    }  # fmt: skip
    other_names: ClassVar = {
        "consumer_group": "consumerGroup", "topic": "topic", "retry": "retry", "start_offset": "startOffset",
        "queue_id": "queueId", "revive_queue_id": "reviveQueueId", "pop_time": "popTime",
        "invisible_time": "invisibleTime", "bit_set": "bitSet",
    }  # fmt: skip

    consumer_group: str
    topic: str
    start_offset: int
    queue_id: int
    revive_queue_id: int
    pop_time: int
    invisible_time: int
    retry: str = "0"
    bit_set: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAckMessageRequestBody(JsonBody):
    """Receipts of several messages (200151)."""

    broker_name: str
    acks: tuple[BatchAck, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRunningInfo(JsonBody):
    """The state of a consumer (307)."""

    properties: Mapping[str, str] = field(default_factory=dict)
    subscription_set: tuple[SubscriptionData, ...] = ()
    mq_table: Mapping[MessageQueue, Any] = field(default_factory=dict)
    status_table: Mapping[str, Any] = field(default_factory=dict)
    jstack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeMessageDirectlyResult(JsonBody):
    """The result of one message that a broker gave to a consumer (309)."""

    order: bool = False
    auto_commit: bool = True
    consume_result: str | None = None
    remark: str | None = None
    spent_time_mills: int = 0
