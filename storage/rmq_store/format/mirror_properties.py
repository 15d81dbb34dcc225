"""Names of the properties that a mirror between RocketMQ and Kafka gives to what it copies (docs/kafka-design.md).

They belong to the record that a mirror made, and to no other: whoever sends a new message with the properties of a
mirrored one leaves them out, or a mirror would take it for its own copy.
"""

from __future__ import annotations

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

MIRROR_PROPERTIES = frozenset(
    (
        MIRROR_FROM, MIRROR_PATH, MIRROR_TO, MIRROR_TIMESTAMP, MIRROR_REASON, MIRROR_LETTER,
        KAFKA_RECORD, KAFKA_TOMBSTONE, KAFKA_TIMESTAMP_TYPE, KAFKA_LETTER,
    )
)  # fmt: skip
