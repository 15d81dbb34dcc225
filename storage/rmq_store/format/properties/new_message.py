"""The properties that a new message does not take over from the message that it was made of (docs/columns.md).

A handler, a Spark job or a Kafka Streams application makes messages from a message, and hands its properties on. Some
of them belong to that one message: ids by which others know it, what clients and brokers have noted on its way, and
requests that a broker has carried out. With them a consumer would take the new message for a copy of the old one.

    IDENTITIES         which message it is          kept by copies of one message only: retry, redrive, resend, mirror,
                                                    `keep_unique_key`, `keepUniqKey`
    ADDED_ON_THE_WAY   what happened to it          never handed on
    REQUESTS           what a sender asks for       the sender's own, unless CARRIED_OUT_BY shows that a broker has done
                                                    it for the other message, or has set it (for a retry: DELAY, WAIT)

Everything else is the user's. Sources: MessageConst.java; SendMessageProcessor, AbstractSendMessageProcessor
(consumerSendMsgBack), HookUtils, EndTransactionProcessor, PopMessageProcessor, ConsumeMessageConcurrentlyService.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rmq_store.format.properties import property_string as names
from rmq_store.format.properties.mirror_properties import MIRROR_PROPERTIES

OUTBOX_ID: Final = "OUTBOX_ID"
"""The id that the kit gives to a message (`rmq_store.reliable`); its UNIQ_KEY is the same."""

IDENTITIES: Final = frozenset((names.UNIQUE_KEY, OUTBOX_ID, "PYRMQ_REPLAYS", "PYRMQ_DEAD_LETTER"))
"""The last two count the redrives of the message, and name its dead letter."""

_IDS_OF_BROKERS = (
    names.TRANSACTION_ID,
    names.ORIGIN_MESSAGE_ID,
    names.DLQ_ORIGIN_TOPIC,
    names.DLQ_ORIGIN_MESSAGE_ID,
    names.DUP_INFO,
    "EXTEND_UNIQ_INFO",
)
_PLACE_AND_SENDER = (
    names.CLUSTER,
    names.MSG_REGION,
    "TRACE_ON",
    names.INSTANCE_ID,
    "__BORNHOST",
    names.BORN_TIMESTAMP,
    names.PRODUCER_GROUP,
    names.CRC32,
)
_WAITS_AND_RETRIES = (
    names.REAL_TOPIC,
    names.REAL_QUEUE_ID,
    names.RETRY_TOPIC,
    names.RECONSUME_TIME,
    names.MAX_RECONSUME_TIMES,
    names.TIMER_OUT_MS,
    names.TIMER_ENQUEUE_MS,
    names.TIMER_DEQUEUE_MS,
    names.TIMER_ROLL_TIMES,
    names.TIMER_DELAY_LEVEL,
)
_TRANSACTIONS = (names.TRANSACTION_CHECK_TIMES, "TRAN_PREPARED_QUEUE_OFFSET", "PYRMQ_HALF_OF")
_DELIVERY = (
    names.MIN_OFFSET,
    names.MAX_OFFSET,
    names.CONSUME_START_TIME,
    names.POP_CK,
    names.POP_CK_OFFSET,
    names.FIRST_POP_TIME,
    names.ORIGIN_GROUP,
    "ARRIVE_TIME",
    names.PUSH_REPLY_TIME,
)
_INSIDE_BROKERS = (
    names.INNER_NUM,
    names.INNER_BASE,
    names.INNER_MULTI_QUEUE_OFFSET,
    names.REDIRECT,
    "PROPERTY_FORWARD_QUEUE_ID",
    names.TRANSFER_FLAG,
    names.CORRECTION_FLAG,
    names.MQ2_FLAG,
)
_FAILURES = (
    "PYRMQ_ERROR_CLASS",
    "PYRMQ_ERROR_MESSAGE",
    "PYRMQ_STACK_HASH",
    "PYRMQ_QUERY_ID",
    "PYRMQ_BATCH_ID",
    "PYRMQ_FIRST_FAILURE_MS",
    "PYRMQ_LAST_FAILURE_MS",
    "PYRMQ_ORIGIN_TOPIC",
    "PYRMQ_ORIGIN_QUEUE_ID",
    "PYRMQ_ORIGIN_QUEUE_OFFSET",
)

ADDED_ON_THE_WAY: Final = MIRROR_PROPERTIES.union(
    _IDS_OF_BROKERS, _PLACE_AND_SENDER, _WAITS_AND_RETRIES, _TRANSACTIONS, _DELIVERY, _INSIDE_BROKERS, _FAILURES
)

REQUESTS: Final = frozenset(
    (
        names.DELAY_TIME_LEVEL,
        names.TIMER_DELAY_SEC,
        names.TIMER_DELAY_MS,
        names.TIMER_DELIVER_MS,
        names.TIMER_DEL_UNIQUE_KEY,
        names.TRANSACTION_PREPARED,
        names.CHECK_IMMUNITY_TIME_IN_SECONDS,
        names.WAIT_STORE_MSG_OK,
        names.INNER_MULTI_DISPATCH,
    )
)

CARRIED_OUT_BY: Final = frozenset(
    (names.REAL_TOPIC, names.RETRY_TOPIC, names.ORIGIN_MESSAGE_ID, names.TIMER_OUT_MS, names.TRANSACTION_ID)
)
"""Properties of a message that has waited at a broker, been retried, or been half of a transaction."""

_SUSPECT = IDENTITIES | ADDED_ON_THE_WAY


def of_new_message(properties: Mapping[str, str], *, keep_identities: bool = False) -> Mapping[str, str]:
    """The properties without those that belong to another message; the same object if there are none.
    `keep_identities`: it is a copy of one message, and is to be known as that one.
    """
    if _SUSPECT.isdisjoint(properties):
        return properties
    dropped = ADDED_ON_THE_WAY if keep_identities else _SUSPECT
    if not CARRIED_OUT_BY.isdisjoint(properties):
        dropped |= REQUESTS
    if dropped.isdisjoint(properties):
        return properties
    return {name: value for name, value in properties.items() if name not in dropped}
