"""Names of the properties that a mirror between RocketMQ and Kafka adds to its copies (docs/kafka-design.md).

They belong to the copied record only. Code that sends a new message with the properties of a mirrored one must leave
them out. Otherwise a mirror would take the new message for its own copy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from rmq_store.format.properties.property_string import UNIQUE_KEY

MIRROR_FROM = "MIRROR_FROM"
MIRROR_PATH = "MIRROR_PATH"
MIRROR_TO = "MIRROR_TO"
MIRROR_TIMESTAMP = "MIRROR_TIMESTAMP"
MIRROR_REASON = "MIRROR_REASON"
MIRROR_LETTER = "MIRROR_LETTER"
KAFKA_RECORD = "KAFKA_RECORD"
KAFKA_TOMBSTONE = "KAFKA_TOMBSTONE"
KAFKA_TIMESTAMP_TYPE = "KAFKA_TIMESTAMP_TYPE"
KAFKA_LETTER = "KAFKA_LETTER"
KAFKA_GROUP = "KAFKA_GROUP"
KAFKA_STAGE = "KAFKA_STAGE"
KAFKA_STACK_TRACE = "KAFKA_STACK_TRACE"
KAFKA_RETRY = "KAFKA_RETRY"
KAFKA_RETRY_TOPIC = "KAFKA_RETRY_TOPIC"
KAFKA_RETRY_PARTITION = "KAFKA_RETRY_PARTITION"
KAFKA_ATTEMPTS = "KAFKA_ATTEMPTS"

MIRROR_PROPERTIES = frozenset(
    (
        MIRROR_FROM, MIRROR_PATH, MIRROR_TO, MIRROR_TIMESTAMP, MIRROR_REASON, MIRROR_LETTER,
        KAFKA_RECORD, KAFKA_TOMBSTONE, KAFKA_TIMESTAMP_TYPE, KAFKA_LETTER,
        KAFKA_GROUP, KAFKA_STAGE, KAFKA_STACK_TRACE, KAFKA_RETRY, KAFKA_RETRY_TOPIC, KAFKA_RETRY_PARTITION,
        KAFKA_ATTEMPTS,
    )
)  # fmt: skip


def is_brought_back(properties: Mapping[str, str]) -> bool:
    """True for the copy, in RocketMQ, of a message that began in RocketMQ and went through Kafka: MIRROR_TO names its
    UNIQ_KEY, and MIRROR_PATH, in which RocketMQ and Kafka alternate, begins in RocketMQ. False for a record that
    somebody has made in Kafka, of such a copy too: a mirror starts a new path for it.
    """
    goal = properties.get(MIRROR_TO, "").split(" ")
    if len(goal) != 4 or goal[1] != properties.get(UNIQUE_KEY):
        return False
    try:
        path = json.loads(properties.get(MIRROR_PATH, ""))
    except (ValueError, RecursionError):
        return False
    return isinstance(path, list) and len(path) > 0 and len(path) % 2 == 0
