"""The outcome of one dead letter of a cluster, and the message that is sent in its place. Pure.

The rules are those of a store (`broker.dlq.redrive_batch`). PYRMQ_DEAD_LETTER says which letter a message is a copy of,
with group and broker, because one topic may get letters of several of them.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from rmq_store.broker.dlq.redrive_batch import OF_KAFKA, PARKED, REDRIVEN, REFUSED, Policy
from rmq_store.broker.rules.failure import DEAD_LETTER, KAFKA_LETTER, MIRROR_LETTER, ORIGIN_TOPIC, REPLAYS, with_reasons
from rmq_store.client.cluster_retry.retry_copies import BROKER_PROPERTIES_BYTES_MAX, LEFT_BEHIND
from rmq_store.format.frames.stored_message import StoredMessage
from rmq_store.format.properties import property_string as keys
from rmq_store.format.properties.property_string import encode_properties
from rmq_store.format.text.names import RETRY_PREFIX

_COUNT: Final = re.compile("[0-9]{1,9}", re.ASCII)


class Judgement(NamedTuple):
    """The outcome of a letter; `target` and `properties` (a property string) only if it moves."""

    outcome: str
    reason: str | None
    target: str | None = None
    properties: str = ""


def letter_name(dlq_topic: str, broker_name: str, queue_id: int, queue_offset: int) -> str:
    """The value of PYRMQ_DEAD_LETTER."""
    return f"{dlq_topic}:{broker_name}:{queue_id}:{queue_offset}"


def judged(message: StoredMessage, name: str, msg_id: str | None, policy: Policy) -> Judgement:
    """The outcome of a dead letter; `msg_id` is the id that the caller expects, None: any."""
    own = message.properties
    if msg_id is not None and message.msg_id != msg_id:
        return Judgement(REFUSED, "another message is there")
    if KAFKA_LETTER in own or MIRROR_LETTER in own:
        return Judgement(REFUSED, OF_KAFKA)
    replays = int(own[REPLAYS]) if _COUNT.fullmatch(own.get(REPLAYS, "")) else 0
    is_beyond = policy.max_replays is not None and replays >= policy.max_replays
    reason = f"replayed {policy.max_replays} times" if is_beyond else None
    if is_beyond and policy.parking_topic is None:
        return Judgement(REFUSED, reason)
    target = policy.parking_topic if is_beyond else policy.target
    assert target is not None  # a letter beyond the maximum without one is refused above
    properties = {key: value for key, value in own.items() if key not in LEFT_BEHIND}
    properties[keys.WAIT_STORE_MSG_OK] = "true"
    if not target.startswith(RETRY_PREFIX):
        retried = properties.pop(keys.RETRY_TOPIC, None)
        if ORIGIN_TOPIC not in properties and retried is not None:
            properties[ORIGIN_TOPIC] = retried
    count = replays + (not is_beyond)
    if count:
        properties[REPLAYS] = str(count)
    properties[DEAD_LETTER] = name
    fitted = with_reasons(properties, {}, keys.PROPERTIES_BYTES_MAX - BROKER_PROPERTIES_BYTES_MAX)
    if fitted is None:
        return Judgement(REFUSED, "its properties leave no room for those of a redrive")
    return Judgement(PARKED if is_beyond else REDRIVEN, reason, target, encode_properties(fitted).decode())
