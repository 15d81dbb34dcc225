r"""The property string of a frame, one at a time (control plane), and the names RocketMQ gives a meaning to.

    properties = *( name %x01 value %x02 )      UTF-8, nothing escaped, at most 32767 bytes

The last %x02 is absent in what 4.9.1 .. 5.1.4 wrote: it is always written here and never required. `__CRC32#` is not a
property of the message but a checksum of its frame that lies behind the properties: parsing drops it.
Source: MessageDecoder.java (messageProperties2String, string2messageProperties), MessageConst.java.
"""

from __future__ import annotations

from collections.abc import Mapping

from rmq_store.errors import UsageError
from rmq_store.format.bytes.utf8 import decode_utf8

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
PROPERTIES_BYTES_MAX = 32767  # propertiesLength is an int16

KEYS = "KEYS"
TAGS = "TAGS"
WAIT_STORE_MSG_OK = "WAIT"
DELAY_TIME_LEVEL = "DELAY"
RETRY_TOPIC = "RETRY_TOPIC"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
TRANSACTION_PREPARED = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
BUYER_ID = "BUYER_ID"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
TRANSFER_FLAG = "TRANSFER_FLAG"
CORRECTION_FLAG = "CORRECTION_FLAG"
MQ2_FLAG = "MQ2_FLAG"
RECONSUME_TIME = "RECONSUME_TIME"
MSG_REGION = "MSG_REGION"
UNIQUE_KEY = "UNIQ_KEY"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
CONSUME_START_TIME = "CONSUME_START_TIME"
INNER_NUM = "INNER_NUM"
INNER_BASE = "INNER_BASE"
DUP_INFO = "DUP_INFO"
CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRANSACTION_ID = "__transactionId__"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
INSTANCE_ID = "INSTANCE_ID"
CORRELATION_ID = "CORRELATION_ID"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
CLUSTER = "CLUSTER"
POP_CK = "POP_CK"
POP_CK_OFFSET = "POP_CK_OFFSET"
FIRST_POP_TIME = "1ST_POP_TIME"
ORIGIN_GROUP = "ORIGIN_GROUP"
SHARDING_KEY = "__SHARDINGKEY"
REDIRECT = "REDIRECT"
TRACE_CONTEXT = "TRACE_CONTEXT"
INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
TIMER_DEL_UNIQUE_KEY = "TIMER_DEL_UNIQKEY"
TIMER_DELAY_LEVEL = "TIMER_DELAY_LEVEL"
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
CRC32 = "__CRC32#"
# `__CRC32#`, x01, ten decimal digits with the least significant first, x02: the frame's last 20 bytes where present.
CRC_PROPERTY_PREFIX = b"__CRC32#\x01"
CRC_PROPERTY_BYTES = 20


def encode_properties(properties: Mapping[str, str]) -> bytes:
    r"""Write `properties` in their order, each entry ended by %x02.

    Raises:
        UsageError: an empty name or value (RocketMQ cannot store it), a separator (%x01, %x02) in one of them, text
            that is no valid Unicode, or more than 32767 bytes.
    """
    parts: list[str] = []
    for name, value in properties.items():
        _check_part("name", name, name)
        _check_part("value", name, value)
        parts += (name, NAME_VALUE_SEPARATOR, value, PROPERTY_SEPARATOR)
    try:
        encoded = "".join(parts).encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"a property holds a lone surrogate: {error.reason}") from error
    if len(encoded) > PROPERTIES_BYTES_MAX:
        raise UsageError(f"properties take {len(encoded)} bytes, more than {PROPERTIES_BYTES_MAX}")
    return encoded


def _check_part(what: str, name: str, part: str) -> None:
    if not isinstance(part, str):
        raise UsageError(f"property {name!r}: the {what} is no text but {type(part).__name__}")
    if not part:
        raise UsageError(f"property {name!r}: an empty {what} cannot be stored")
    if NAME_VALUE_SEPARATOR in part or PROPERTY_SEPARATOR in part:
        raise UsageError(f"property {name!r}: the {what} holds a separator, \\x01 or \\x02")


def last_unique_key(raw: bytes) -> str | None:
    """The UNIQ_KEY of a property string; of several the last one, as in Java. None without one."""
    pieces = (piece.partition(NAME_VALUE_SEPARATOR) for piece in decode_utf8(raw).split(PROPERTY_SEPARATOR))
    return next(iter([value for name, _, value in pieces if name == UNIQUE_KEY and value][-1:]), None)


def parse_properties(raw: bytes) -> dict[str, str]:
    r"""Read a property string as RocketMQ 4.9.1 and later do; never raises.

    A piece without %x01, or with an empty name or value, is dropped; the value may hold further %x01. Of duplicates
    the last one wins, but of UNIQ_KEY the first: a 5.x batch send appends the batch's own UNIQ_KEY to each member's.
    """
    properties: dict[str, str] = {}
    for piece in decode_utf8(raw).split(PROPERTY_SEPARATOR):
        name, _, value = piece.partition(NAME_VALUE_SEPARATOR)
        if name and value and not (name == UNIQUE_KEY and name in properties):
            properties[name] = value
    properties.pop(CRC32, None)
    return properties
