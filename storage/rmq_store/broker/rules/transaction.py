"""The properties of half messages and of what becomes of them. Pure functions.

    half                    the sender's properties, REAL_TOPIC, REAL_QID, __transactionId__; no bits of its sysFlag
    copy after a question   the same, TRANSACTION_CHECK_TIMES one higher; HALF_OF names the first copy
    committed message       the half's, REAL_* and TRAN_MSG too: brokers store them so. Only HALF_OF is ours, and goes
    op record               tag "d", body "12", of a 5.x broker "12,13,": these half messages are done

A store of ours writes "12" without a comma: brokers of 4.9 and 5.x read it. Sources: TransactionalMessageUtil,
TransactionalMessageBridge (parseHalfMessageInner), EndTransactionProcessor (endMessageTransaction).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from rmq_store.broker.metadata.topics import QUEUE_COUNT_MAX
from rmq_store.format.properties import property_string as names

TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""MixAll.CID_SYS_RMQ_TRANS: its offsets say how far half messages and op records are done."""
REMOVED_TAG: Final = "d"
HALF_OF: Final = "PYRMQ_HALF_OF"
"""On half messages that this engine stores: the queue offset of the first copy, FIRST on the first one itself. A half
message without it was left by a broker.
"""
FIRST: Final = "first"
PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
"""On copies that a broker stores of half messages with CHECK_IMMUNITY_TIME_IN_SECONDS: the queue offset of the first
copy, which the producer's end and its op record name (TransactionalMessageServiceImpl#checkPrepareQueueOffset).
"""

TRANSACTION_TIMEOUT_MS: Final = 6_000
"""BrokerConfig.java: transactionTimeOut, until the first question."""
CHECK_INTERVAL_MS: Final = 30_000
"""BrokerConfig.java: transactionCheckInterval, between two questions."""
CHECK_MAX: Final = 15
"""BrokerConfig.java: transactionCheckMax."""

_NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)


def half_properties(properties: Mapping[str, str], topic: str, queue_id: int, group: str) -> dict[str, str]:
    """The properties of a half message for queue `queue_id` of `topic`; `properties` are those of a stored message."""
    ours = HALF_OF, PREPARED_QUEUE_OFFSET, names.TRANSACTION_CHECK_TIMES
    half = {name: value for name, value in properties.items() if name not in ours}
    half[names.TRANSACTION_PREPARED] = "true"
    half.setdefault(names.PRODUCER_GROUP, group)
    half[names.TRANSACTION_ID] = half[names.UNIQUE_KEY]
    return {**half, names.REAL_TOPIC: topic, names.REAL_QUEUE_ID: str(queue_id), HALF_OF: FIRST}


def copy_properties(properties: Mapping[str, str], first: int | None, check_times: int) -> dict[str, str]:
    """The properties of a copy of a half message that was asked for `check_times` times; `first` None: the copy counts
    as a first one.
    """
    gone = (names.TRANSACTION_CHECK_TIMES, *([PREPARED_QUEUE_OFFSET] if first is None else []))
    copy = {name: value for name, value in properties.items() if name not in gone}
    if check_times:
        copy[names.TRANSACTION_CHECK_TIMES] = str(check_times)
    return {**copy, HALF_OF: FIRST if first is None else str(first)}


def final_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties of a message that is committed, or given up."""
    return {name: value for name, value in properties.items() if name != HALF_OF}


def real_queue(properties: Mapping[str, str]) -> tuple[str, int] | None:
    """The topic and queue that a half message is for; None: it does not say."""
    topic, queue_id = properties.get(names.REAL_TOPIC), number(properties.get(names.REAL_QUEUE_ID))
    return (topic, queue_id) if topic and 0 <= queue_id < QUEUE_COUNT_MAX else None


def check_times(properties: Mapping[str, str]) -> int:
    """How often producers were asked for a half message."""
    return max(number(properties.get(names.TRANSACTION_CHECK_TIMES)), 0)


def immunity_ms(properties: Mapping[str, str]) -> int:
    """How long no producer is asked for a half message (getImmunityTime)."""
    return max(number(properties.get(names.CHECK_IMMUNITY_TIME_IN_SECONDS)) * 1000, TRANSACTION_TIMEOUT_MS)


def is_too_late(properties: Mapping[str, str], age_ms: int) -> bool:
    """True if only an answer to a question may end a half message of this age (rejectCommitOrRollback)."""
    return names.CHECK_IMMUNITY_TIME_IN_SECONDS in properties and age_ms > immunity_ms(properties)


def removed_offsets(body: bytes) -> list[int]:
    """The queue offsets of half messages in the body of an op record; what is no number is left out."""
    pieces = body.decode(errors="replace").split(",")
    return [int(piece) for piece in pieces if _NUMBER.fullmatch(piece)]


def number(text: str | None) -> int:
    """A number that is not negative; -1 for any other text."""
    return int(text) if text is not None and _NUMBER.fullmatch(text) else -1
