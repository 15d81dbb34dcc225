"""The messages of apache.rocketmq.v2 as a table: fields by number, as definition.proto and service.proto number them.

A line is a message, its field numbers, names and types. A type is a scalar, a message or an enumeration. `*` before a
type: repeated; `?`: an optional field with presence; `map`: text by text. `@name` behind a type: a member of this
oneof. A message that the served methods do not use is left out; unknown fields are skipped by protobuf.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

_TABLE: Final = """
Resource: 1 resource_namespace string, 2 name string
Address: 1 host string, 2 port int32
Endpoints: 1 scheme AddressScheme, 2 addresses *Address
Broker: 1 name string, 2 id int32, 3 endpoints Endpoints
MessageQueue: 1 topic Resource, 2 id int32, 3 permission Permission, 4 broker Broker,
    5 accept_message_types *MessageType
Assignment: 1 message_queue MessageQueue
Status: 1 code Code, 2 message string
FilterExpression: 1 type FilterType, 2 expression string
SubscriptionEntry: 1 topic Resource, 2 expression FilterExpression

Digest: 1 type DigestType, 2 checksum string
DeadLetterQueue: 1 topic string, 2 message_id string
SystemProperties: 1 tag ?string, 2 keys *string, 3 message_id string, 4 body_digest Digest, 5 body_encoding Encoding,
    6 message_type MessageType, 7 born_timestamp Timestamp, 8 born_host string, 9 store_timestamp ?Timestamp,
    10 store_host string, 11 delivery_timestamp ?Timestamp, 12 receipt_handle ?string, 13 queue_id int32,
    14 queue_offset ?int64, 15 invisible_duration ?Duration, 16 delivery_attempt ?int32, 17 message_group ?string,
    18 trace_context ?string, 19 orphaned_transaction_recovery_duration ?Duration,
    20 dead_letter_queue ?DeadLetterQueue, 21 lite_topic ?string, 22 priority ?int32
Message: 1 topic Resource, 2 user_properties map, 3 system_properties SystemProperties, 4 body bytes

ExponentialBackoff: 1 initial Duration, 2 max Duration, 3 multiplier float
CustomizedBackoff: 1 next *Duration
RetryPolicy: 1 max_attempts int32, 2 exponential_backoff ExponentialBackoff@strategy,
    3 customized_backoff CustomizedBackoff@strategy
UA: 1 language Language, 2 version string, 3 platform string, 4 hostname string
Publishing: 1 topics *Resource, 2 max_body_size int32, 3 validate_message_type bool
Subscription: 1 group ?Resource, 2 subscriptions *SubscriptionEntry, 3 fifo ?bool, 4 receive_batch_size ?int32,
    5 long_polling_timeout ?Duration, 6 lite_subscription_quota ?int32, 7 max_lite_topic_size ?int32
Metric: 1 on bool, 2 endpoints ?Endpoints
Settings: 1 client_type ?ClientType, 2 access_point ?Endpoints, 3 backoff_policy ?RetryPolicy,
    4 request_timeout ?Duration, 5 publishing Publishing@pub_sub, 6 subscription Subscription@pub_sub, 7 user_agent UA,
    8 metric Metric, 9 client_properties map

QueryRouteRequest: 1 topic Resource, 2 endpoints Endpoints
QueryRouteResponse: 1 status Status, 2 message_queues *MessageQueue
QueryAssignmentRequest: 1 topic Resource, 2 group Resource, 3 endpoints Endpoints
QueryAssignmentResponse: 1 status Status, 2 assignments *Assignment
HeartbeatRequest: 1 group ?Resource, 2 client_type ClientType
HeartbeatResponse: 1 status Status
NotifyClientTerminationRequest: 1 group ?Resource
NotifyClientTerminationResponse: 1 status Status

SendMessageRequest: 1 messages *Message
SendResultEntry: 1 status Status, 2 message_id string, 3 transaction_id string, 4 offset int64, 5 recall_handle string
SendMessageResponse: 1 status Status, 2 entries *SendResultEntry
EndTransactionRequest: 1 topic Resource, 2 message_id string, 3 transaction_id string,
    4 resolution TransactionResolution, 5 source TransactionSource, 6 trace_context string
EndTransactionResponse: 1 status Status
RecallMessageRequest: 1 topic Resource, 2 recall_handle string
RecallMessageResponse: 1 status Status, 2 message_id string

ReceiveMessageRequest: 1 group Resource, 2 message_queue MessageQueue, 3 filter_expression FilterExpression,
    4 batch_size int32, 5 invisible_duration ?Duration, 6 auto_renew bool, 7 long_polling_timeout ?Duration,
    8 attempt_id ?string
ReceiveMessageResponse: 1 status Status@content, 2 message Message@content, 3 delivery_timestamp Timestamp@content
AckMessageEntry: 1 message_id string, 2 receipt_handle string, 3 lite_topic ?string
AckMessageRequest: 1 group Resource, 2 topic Resource, 3 entries *AckMessageEntry
AckMessageResultEntry: 1 message_id string, 2 receipt_handle string, 3 status Status
AckMessageResponse: 1 status Status, 2 entries *AckMessageResultEntry
ChangeInvisibleDurationRequest: 1 group Resource, 2 topic Resource, 3 receipt_handle string,
    4 invisible_duration Duration, 5 message_id string, 6 lite_topic ?string, 7 suspend ?bool
ChangeInvisibleDurationResponse: 1 status Status, 2 receipt_handle string
ForwardMessageToDeadLetterQueueRequest: 1 group Resource, 2 topic Resource, 3 receipt_handle string,
    4 message_id string, 5 delivery_attempt int32, 6 max_delivery_attempts int32, 7 lite_topic ?string
ForwardMessageToDeadLetterQueueResponse: 1 status Status

ThreadStackTrace: 1 nonce string, 2 thread_stack_trace ?string
VerifyMessageResult: 1 nonce string
RecoverOrphanedTransactionCommand: 1 message Message, 2 transaction_id string
PrintThreadStackTraceCommand: 1 nonce string
VerifyMessageCommand: 1 nonce string, 2 message Message
ReconnectEndpointsCommand: 1 nonce string
TelemetryCommand: 1 status ?Status, 2 settings Settings@command, 3 thread_stack_trace ThreadStackTrace@command,
    4 verify_message_result VerifyMessageResult@command,
    5 recover_orphaned_transaction_command RecoverOrphanedTransactionCommand@command,
    6 print_thread_stack_trace_command PrintThreadStackTraceCommand@command,
    7 verify_message_command VerifyMessageCommand@command,
    8 reconnect_endpoints_command ReconnectEndpointsCommand@command
"""


class Field(NamedTuple):
    """A field of a message. `oneof` None: it is no member of one."""

    number: int
    name: str
    type_name: str
    is_repeated: bool
    has_presence: bool
    oneof: str | None


def messages() -> Iterator[tuple[str, list[Field]]]:
    """Each message with its fields."""
    for line in _TABLE.replace(",\n    ", ", ").splitlines():
        if line:
            name, _, fields = line.partition(": ")
            yield name, [_field(text) for text in fields.split(", ")]


def _field(text: str) -> Field:
    number, name, kind = text.split(" ")
    type_name, _, oneof = kind.partition("@")
    return Field(int(number), name, type_name.lstrip("*?"), kind[0] == "*", kind[0] == "?", oneof or None)
