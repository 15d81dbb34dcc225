"""The message that a send-back with reasons sends to `%RETRY%group`. Pure.

A broker that is told to send a message back (36) copies its own record and adds no properties. So a message with
reasons is sent as a new one (310). Its properties are those that the broker would write, and the reasons. The broker
sets REAL_TOPIC and REAL_QID. The dead-letter hop has no DELAY: 4.9 would park the message once more.

Sources: DefaultMQPushConsumerImpl#sendMessageBack, SendMessageProcessor#handleRetryAndDLQ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from rmq_store.broker.rules.failure import with_reasons
from rmq_store.broker.rules.send_back import TIMER_WISHES, Source, given_properties, origin
from rmq_store.client.cluster_retry.stored_copies import key_of_next_copy
from rmq_store.format.frames.stored_message import StoredMessage
from rmq_store.format.properties import property_string as keys
from rmq_store.format.properties.property_string import encode_properties
from rmq_store.format.text.delay_levels import retry_level

BROKER_PROPERTIES_BYTES_MAX: Final = 767
"""What a broker adds to the properties of a message on its way: MSG_REGION, CLUSTER, REAL_TOPIC and others."""

# Properties of an earlier delivery, or that a broker or a client sets again.
LEFT_BEHIND: Final = (
    keys.DELAY_TIME_LEVEL, keys.REAL_TOPIC, keys.REAL_QUEUE_ID, keys.RECONSUME_TIME, keys.MAX_RECONSUME_TIMES,
    keys.CONSUME_START_TIME, keys.MIN_OFFSET, keys.MAX_OFFSET, keys.POP_CK, keys.FIRST_POP_TIME,
    keys.TRANSACTION_PREPARED, keys.CRC32, keys.TIMER_OUT_MS, *TIMER_WISHES,
)  # fmt: skip


class RetryCopy(NamedTuple):
    """A message for `%RETRY%group`. `reconsume_times` and `max_reconsume_times` are the header's `j` and `l`: brokers
    of 4.9 make a dead letter where j >= l, those of 5.x where j > l, so the two never differ by 0.
    """

    properties: str
    reconsume_times: int
    max_reconsume_times: int


def retry_copy(
    message: StoredMessage, reasons: Mapping[str, str], delay_level: int, max_reconsume_times: int
) -> RetryCopy | None:
    """The copy of a failed message; None if its own properties leave no room for those of a retry.

    `delay_level`: 0: the level that the broker would choose; below 0: a dead letter at once. A message that was retried
    `max_reconsume_times` times becomes a dead letter, as by 36.

    Raises:
        UsageError: a reason that cannot be a property.
    """
    is_dead = delay_level < 0 or message.reconsume_times >= max_reconsume_times
    times = message.reconsume_times + 1
    properties = {name: value for name, value in message.properties.items() if name not in LEFT_BEHIND}
    properties.setdefault(keys.RETRY_TOPIC, message.topic)
    properties[keys.ORIGIN_MESSAGE_ID] = key_of_next_copy(message).origin_id
    properties[keys.WAIT_STORE_MSG_OK] = "true"
    if not is_dead:
        properties[keys.DELAY_TIME_LEVEL] = str(delay_level or retry_level(message.reconsume_times))
    source = Source(message.topic, message.queue_id, message.queue_offset, message.offset_msg_id)
    given = {**origin(message.properties, source), **given_properties(reasons)}
    fitted = with_reasons(properties, given, keys.PROPERTIES_BYTES_MAX - BROKER_PROPERTIES_BYTES_MAX)
    if fitted is None:
        return None
    return RetryCopy(encode_properties(fitted).decode(), times, 0 if is_dead else times + 1)
