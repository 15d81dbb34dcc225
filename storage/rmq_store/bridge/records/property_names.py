"""Names that a header or a property may have, and their names on the other side.

Sources: MessageConst.java (RocketMQ 4.9 to 5.5); Producer API of Kafka (headers have any name).
"""

from __future__ import annotations

from typing import Final

from rmq_store.format.properties import property_string as names
from rmq_store.format.properties.new_message import OUTBOX_ID

HEADER_PREFIX: Final = "rmq."
"""Headers of a record that came from RocketMQ: what the message had beside body and user's properties."""

FLAG_HEADER: Final = "rmq.flag"
RECONSUME_TIMES_HEADER: Final = "rmq.reconsumeTimes"
PROPERTIES_HEADER: Final = "rmq.properties"

ROCKETMQ_NAMES: Final = frozenset(
    value for name, value in vars(names).items() if name.isupper() and isinstance(value, str) and len(value) > 1
) | {"PRIORITY", "LITE_TOPIC", "SHARDING_KEY", "CONSUME_CONCURRENTLY_DELAY"}
"""All of MessageConst, as far as `format.properties` has them, and what newer brokers and proxies read."""

_ROCKETMQ_PREFIXES = (
    "__",
    "%",
    "_SYS_",
    "TIMER_",
    "POP_",
    "TRAN_",
    "TRANSACTION_",
    "INNER_",
    "DLQ_",
    "PROPERTY_",
    "PYRMQ_",
)
_OUTBOX_ID = OUTBOX_ID.encode()
_OWN_PREFIXES = (HEADER_PREFIX, "MIRROR_", "KAFKA_")

SHOWN_NAMES: Final = (
    names.TAGS, names.KEYS, names.SHARDING_KEY, names.UNIQUE_KEY, names.RECONSUME_TIME, names.ORIGIN_MESSAGE_ID,
    names.DLQ_ORIGIN_TOPIC, names.DLQ_ORIGIN_MESSAGE_ID, names.BUYER_ID, names.CORRELATION_ID, names.TRACE_CONTEXT,
    names.TRANSACTION_ID,
)  # fmt: skip
"""RocketMQ's properties that say something to a reader, who gets them as headers. The others only steer a broker."""


def is_rocketmq_name(name: str) -> bool:
    """True if RocketMQ, or this engine, uses or reserves this property name."""
    return name in ROCKETMQ_NAMES or name.startswith(_ROCKETMQ_PREFIXES)


def is_own_name(name: str) -> bool:
    """True if the bridge uses or reserves this name of a header or property."""
    return name.startswith(_OWN_PREFIXES)


def is_storable(text: str) -> bool:
    """True if RocketMQ can store this text as the name or value of a property."""
    return bool(text) and names.NAME_VALUE_SEPARATOR not in text and names.PROPERTY_SEPARATOR not in text


def is_plain_name(raw: bytes) -> bool:
    """True if a header of this name can be a property of the user, whoever wrote it.

    OUTBOX_ID is none: Kafka Streams copies the headers of a mirrored record to each record that it makes of it, and an
    inbox would take all of them for one message. A copy of a message of RocketMQ gets it back (`is_restored_name`).
    """
    return is_restored_name(raw) and raw != _OUTBOX_ID


def is_restored_name(raw: bytes) -> bool:
    """True if a header of this name, of a record that a mirror has made, was a property of the user under this name."""
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        return False
    return is_storable(name) and "\0" not in name and not is_rocketmq_name(name) and not is_own_name(name)
