"""Writing into topics of users that no mirror has prepared: dead letters and retries return to them."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa

from rmq_store.bridge.kafka.client import KafkaAdministration, KafkaWriter, Partition
from rmq_store.errors import RecordTooLargeError, UsageError


def require_user_topic(topic: str, known: Collection[str], why_not: str) -> None:
    """Raise UsageError if `topic` is internal (the message ends with `why_not`), or not among the `known` ones."""
    if topic.startswith("__"):
        raise UsageError(f"{topic!r} is an internal topic of Kafka or of a mirror: {why_not}")
    if topic not in known:
        raise UsageError(f"Kafka has no topic {topic!r}")


def is_compacted(administration: KafkaAdministration, topic: str) -> bool:
    """True if Kafka compacts the topic: then it takes no record without a key."""
    return "compact" in administration.topic_settings(topic).get("cleanup.policy", "")


def add_fitting(
    writer: KafkaWriter, partition: Partition, rows: pa.RecordBatch
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Add rows (RECORDS_SCHEMA) to the transaction, without records that are larger than the topic takes. Returns the
    added rows, and the others. Other errors are those of `KafkaWriter.add`.
    """
    fits = np.ones(rows.num_rows, np.bool_)
    while fits.any():
        try:
            writer.add(partition, rows.filter(pa.array(fits)))
            break
        except RecordTooLargeError as error:
            fits[np.flatnonzero(fits)[error.row]] = False
    return rows.filter(pa.array(fits)), rows.filter(pa.array(~fits))
