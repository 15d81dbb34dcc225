"""Messages of gRPC from and to messages of the engine (SendMessageActivity.java, GrpcConverter.java)."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

from rmq_store.format.frames.message import Message
from rmq_store.format.properties import property_string as names
from rmq_store.protocol.messages import MessageExt, PoppedMessage
from rmq_store.server.grpc_definitions.definitions import ms_of, new, timestamp_fields
from rmq_store.server.grpc_definitions.enums import Code, DigestType, Encoding, MessageType
from rmq_store.server.grpc_v2.statuses import Refusal

# ProxyConfig.java: userPropertyMaxNum, maxUserPropertySize, maxMessageGroupSize.
_PROPERTIES_MAX: Final = 128
_PROPERTIES_BYTES_MAX: Final = 16 << 10
_GROUP_BYTES_MAX: Final = 64
# All texts of a message end up in its properties.
_TEXTS_MAX: Final = names.PROPERTIES_BYTES_MAX
# maxTransactionRecoverySecond.
_RECOVERY_S_MAX: Final = 3600
# The separators of stored properties are among them.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")

# MessageConst.STRING_HASH_SET: properties that clients do not set themselves, and do not see. The engine has no use
# for these.
_OF_CLIENTS: Final = frozenset(
    ("TRACE_ON", "MSG_TYPE", "TTL", "ARRIVE_TIME", "EXTEND_UNIQ_INFO", "TRAN_PREPARED_QUEUE_OFFSET")
)
_SYSTEM_PROPERTIES: Final = frozenset(
    value
    for name, value in vars(names).items()
    if name.isupper() and isinstance(value, str) and not name.endswith("SEPARATOR")
) | {"__BORNHOST", "BORN_HOST"} | _OF_CLIENTS
# GrpcConverter.java, buildSystemProperties: another encoding is no compression there.
_ENCODINGS: Final = frozenset(int(one) for one in Encoding)
_DELAYS: Final = (names.DELAY_TIME_LEVEL, names.TIMER_DELIVER_MS, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS)
_NOT_STORED: Final = {
    MessageType.LITE: "lite topics",
    MessageType.PRIORITY: "priorities",
}


def message_to_store(message: Any, topic: str, body_bytes_max: int) -> Message:
    """A Message of a client as the engine stores it; its message id becomes the unique key. One of type TRANSACTION
    becomes a half message by its property TRAN_MSG.

    Raises:
        Refusal: it breaks a rule, or is of a type that is not stored here.
    """
    system = message.system_properties
    body = bytes(message.body)
    if not body:
        raise Refusal(Code.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    if len(body) > body_bytes_max:
        text = f"message body cannot exceed the max {body_bytes_max}: it has {len(body)} bytes"
        raise Refusal(Code.MESSAGE_BODY_TOO_LARGE, text)
    _check_lengths(message)
    _check_type(system)
    if system.body_encoding not in _ENCODINGS:
        raise Refusal(Code.BAD_REQUEST, f"body encoding {system.body_encoding} is not known here: IDENTITY or GZIP")
    if not system.message_id.strip() or _has_control(system.message_id):
        raise Refusal(Code.ILLEGAL_MESSAGE_ID, "message id cannot be empty, and holds no control character")
    properties = _checked_properties(message)
    properties[names.UNIQUE_KEY] = system.message_id
    if system.HasField("trace_context"):
        properties[names.TRACE_CONTEXT] = _without_control(system.trace_context, Code.BAD_REQUEST, "trace context")
    if type_of(system) is MessageType.TRANSACTION:
        properties |= _transaction_properties(system)
    born_ms = ms_of(system.born_timestamp)
    return Message(
        topic,
        body,
        tags=system.tag or None,
        keys=list(system.keys) or None,
        properties=properties,
        sharding_key=system.message_group or None,
        born_timestamp_ms=born_ms if born_ms > 0 else None,
        deliver_timestamp_ms=ms_of(system.delivery_timestamp) if system.HasField("delivery_timestamp") else None,
    )


def type_of(system: Any) -> MessageType:
    """The type of a message that is sent: what it says, otherwise what its properties say."""
    if system.message_type:
        known = {int(kind): kind for kind in MessageType}
        return known.get(system.message_type, MessageType.MESSAGE_TYPE_UNSPECIFIED)
    if system.HasField("delivery_timestamp"):
        return MessageType.DELAY
    return MessageType.FIFO if system.message_group else MessageType.NORMAL


def received_message(popped: PoppedMessage, invisible_ms: int) -> Any:
    """A message that was given out, for its consumer."""
    received = shown_message(popped.message)
    system = received.system_properties
    system.receipt_handle = popped.receipt_handle
    _set_time(system.invisible_duration, invisible_ms)
    system.delivery_attempt = popped.delivery_attempt
    return received


def shown_message(message: MessageExt) -> Any:
    """A stored message as clients see it."""
    user = {name: value for name, value in message.properties.items() if name not in _SYSTEM_PROPERTIES}
    shown = new("Message", topic={"name": message.topic}, user_properties=user, body=message.body)
    system = shown.system_properties
    if message.tags is not None:
        system.tag = message.tags
    system.keys.extend((message.keys or "").split())
    system.message_id = message.msg_id
    system.body_digest.type = DigestType.MD5
    system.body_digest.checksum = hashlib.md5(message.body, usedforsecurity=False).hexdigest().upper()
    # A body that could not be inflated is shown as it lies: its consumer cannot inflate it either, and says so.
    system.body_encoding = Encoding.GZIP if message.is_compressed else Encoding.IDENTITY
    system.message_type = _stored_type(message)
    _set_time(system.born_timestamp, message.born_timestamp_ms)
    system.born_host, system.store_host = message.born_host, message.store_host
    _set_time(system.store_timestamp, message.store_timestamp_ms)
    deliver = message.properties.get(names.TIMER_DELIVER_MS, "")
    if deliver.isascii() and deliver.isdigit() and len(deliver) < 16:
        _set_time(system.delivery_timestamp, int(deliver))
    if group := message.properties.get(names.SHARDING_KEY):
        system.message_group = group
    if trace := message.properties.get(names.TRACE_CONTEXT):
        system.trace_context = trace
    system.queue_id, system.queue_offset = message.queue_id, message.queue_offset
    _set_dead_letter(system, message)
    return shown


def _set_dead_letter(system: Any, message: MessageExt) -> None:
    topic = message.properties.get(names.DLQ_ORIGIN_TOPIC)
    message_id = message.properties.get(names.DLQ_ORIGIN_MESSAGE_ID)
    if topic is not None and message_id is not None:
        system.dead_letter_queue.topic, system.dead_letter_queue.message_id = topic, message_id


def _set_time(field: Any, ms: int) -> None:
    fields = timestamp_fields(ms)
    field.seconds, field.nanos = fields["seconds"], fields["nanos"]


def _stored_type(message: MessageExt) -> MessageType:
    if message.properties.get(names.TRANSACTION_PREPARED) == "true":
        return MessageType.TRANSACTION
    if any(name in message.properties for name in _DELAYS):
        return MessageType.DELAY
    return MessageType.FIFO if names.SHARDING_KEY in message.properties else MessageType.NORMAL


def _check_lengths(message: Any) -> None:
    """Refuse a message whose texts can fit no message, before any of them is looked at: this is the event loop."""
    system, user = message.system_properties, message.user_properties
    if len(user) > _PROPERTIES_MAX:
        raise Refusal(Code.MESSAGE_PROPERTIES_TOO_LARGE, f"too many user properties, max is {_PROPERTIES_MAX}")
    if len(system.keys) <= _TEXTS_MAX:
        own = (system.message_id, system.message_group, system.trace_context, system.tag)
        if sum(map(len, (*own, *system.keys, *user, *user.values()))) <= _TEXTS_MAX:
            return
    text = f"the texts of a message are too large, max is {_TEXTS_MAX}"
    raise Refusal(Code.MESSAGE_PROPERTIES_TOO_LARGE, text)


def _check_type(system: Any) -> None:
    kind = type_of(system)
    if kind in _NOT_STORED:
        raise Refusal(Code.NOT_IMPLEMENTED, f"this broker has no {_NOT_STORED[kind]} over gRPC")
    is_delayed, has_group = system.HasField("delivery_timestamp"), bool(system.message_group)
    if (kind is MessageType.FIFO, kind is MessageType.DELAY) != (has_group, is_delayed):
        text = f"a message of type {kind.name} with message group: {has_group}, delivery timestamp: {is_delayed}"
        raise Refusal(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)
    group = system.message_group
    if has_group and (not group.strip() or _has_control(group) or len(group.encode()) >= _GROUP_BYTES_MAX):
        text = f"a message group has less than {_GROUP_BYTES_MAX} bytes, is not blank, and holds no control character"
        raise Refusal(Code.ILLEGAL_MESSAGE_GROUP, text)


def _transaction_properties(system: Any) -> dict[str, str]:
    """The properties that make a half message."""
    properties = {names.TRANSACTION_PREPARED: "true"}
    if system.HasField("orphaned_transaction_recovery_duration"):
        recovery_s = system.orphaned_transaction_recovery_duration.seconds
        if not 0 <= recovery_s <= _RECOVERY_S_MAX:
            text = f"the recovery time of a transaction is {recovery_s} s, not in 0..{_RECOVERY_S_MAX} s"
            raise Refusal(Code.BAD_REQUEST, text)
        properties[names.CHECK_IMMUNITY_TIME_IN_SECONDS] = str(recovery_s)
    return properties


def _checked_properties(message: Any) -> dict[str, str]:
    """The user's properties; tag and keys are checked with them, because they share one limit."""
    system, properties = message.system_properties, dict(message.user_properties)
    for name, value in properties.items():
        if name in _SYSTEM_PROPERTIES:
            raise Refusal(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {name}")
        _without_control(name, Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "key of a property")
        _without_control(value, Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "value of a property")
    tag = _without_control(system.tag, Code.ILLEGAL_MESSAGE_TAG, "tag")
    if "|" in tag or (tag and not tag.strip()):
        raise Refusal(Code.ILLEGAL_MESSAGE_TAG, "a tag is not blank, and holds no '|'")
    for key in system.keys:
        _without_control(key, Code.ILLEGAL_MESSAGE_KEY, "key")
        if not key or " " in key:
            raise Refusal(Code.ILLEGAL_MESSAGE_KEY, "a key is not empty, and holds no space")
    texts = (tag, *system.keys, *properties, *properties.values())
    if sum(len(text.encode()) for text in texts) > _PROPERTIES_BYTES_MAX:
        text = f"the total size of user property is too large, max is {_PROPERTIES_BYTES_MAX}"
        raise Refusal(Code.MESSAGE_PROPERTIES_TOO_LARGE, text)
    return properties


def _without_control(text: str, code: Code, what: str) -> str:
    if _has_control(text):
        raise Refusal(code, f"the {what} cannot contain a control character")
    return text


def _has_control(text: str) -> bool:
    return _CONTROL.search(text) is not None
