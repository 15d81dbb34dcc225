"""The rules for a message that a consumer itself sends to its retry topic (pure functions).

Clients do so when a send-back failed, or when an ordered message was tried too often. Without a limit a client would
send the same message for ever. Sources: SendMessageProcessor#handleRetryAndDLQ,
DefaultMQPushConsumerImpl#sendMessageBack, ConsumeMessageOrderlyService#sendMessageBack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rmq_store.broker.rules.send_back import TIMER_WISHES, Hop, delay_of
from rmq_store.format.properties import property_string as keys
from rmq_store.format.text import names
from rmq_store.format.text.delay_levels import retry_level


def resent_hop(
    group: str, reconsume_times: int, maximum: int, delay_levels_ms: Sequence[int], *, n_plus_one: bool,
    delay_level: int | None = None,
) -> Hop:  # fmt: skip
    """The topic and queue that store the message. A client from 5.1.1 on counts the failure that it reports
    (`n_plus_one`): dead above the maximum. An older one gives the number of retries so far: dead at the maximum.
    `delay_level` is the client's, 0 for no delay; None: that of the retry.

    A dead letter gets DELAY -1 and is stored at once (5.x): 4.x would delay it once more.
    """
    retried = reconsume_times - n_plus_one
    if retried >= maximum:
        return Hop(names.dlq_topic(group), 0, -1, 0, reconsume_times, is_dead=True)
    asked = max(retry_level(retried), 1) if delay_level is None else delay_level
    level, delay_ms = delay_of(asked, delay_levels_ms)
    if level <= 0:
        return Hop(names.retry_topic(group), None, 0, 0, reconsume_times, is_dead=False)
    return Hop(names.SCHEDULE_TOPIC, level - 1, level, delay_ms, reconsume_times, is_dead=False)


def resent_properties(
    own: Mapping[str, str], topic: str, hop: Hop, group: str, retry_queue: int, asked_maximum: int | None
) -> dict[str, str]:
    """Properties of the new message; `topic` is the one that the listener got, `asked_maximum` the consumer's own
    maximum.
    """
    properties = {**own, keys.RECONSUME_TIME: str(hop.reconsume_times)}
    if hop.delay_level:
        properties[keys.DELAY_TIME_LEVEL] = str(hop.delay_level)
    properties.pop(keys.TRANSACTION_PREPARED, None)
    properties.setdefault(keys.RETRY_TOPIC, topic)
    if keys.UNIQUE_KEY in own:
        properties.setdefault(keys.ORIGIN_MESSAGE_ID, own[keys.UNIQUE_KEY])
    if asked_maximum is not None:
        properties[keys.MAX_RECONSUME_TIMES] = str(asked_maximum)
    if not hop.is_dead:
        for name in TIMER_WISHES:
            properties.pop(name, None)
    if hop.delay_level > 0:
        properties[keys.REAL_TOPIC] = names.retry_topic(group)
        properties[keys.REAL_QUEUE_ID] = str(retry_queue)
    return properties
