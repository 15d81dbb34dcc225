"""Failed records of Kafka as messages that wait for their retry in a store (data plane).

A record that failed n times before waits as RocketMQ's consumer of it would: level 3 + n, then it is due in
`%RETRY%group`, queue 0. Source: AbstractSendMessageProcessor#consumerSendMsgBack. n is the number in its header
`rmq.attempts`, which the return sets and the consumer copies. A record that failed too often is not delayed: it goes to
its dead-letter topic in Kafka on the same way back.

    KAFKA_RETRY              `retry` or `dead`
    KAFKA_RETRY_TOPIC        the topic to which it returns
    KAFKA_RETRY_PARTITION    the partition in which it failed, else that of the topic of failed records
    KAFKA_ATTEMPTS           the number of its failures, this one included
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.bridge.dead_letters.added_properties import properties_bytes, with_properties
from rmq_store.bridge.dead_letters.formats import parse_letters, without_error_headers
from rmq_store.bridge.dead_letters.header_rows import last_values, without_headers
from rmq_store.bridge.dead_letters.reasons import reason_properties
from rmq_store.bridge.records.origin import sources_of_messages
from rmq_store.bridge.records.route import Route
from rmq_store.bridge.records.to_rmq import RmqRules, to_rmq
from rmq_store.broker.rules.failure import KAFKA_LETTER
from rmq_store.format.properties.mirror_properties import (
    KAFKA_ATTEMPTS,
    KAFKA_RETRY,
    KAFKA_RETRY_PARTITION,
    KAFKA_RETRY_TOPIC,
)
from rmq_store.format.text.delay_levels import FIRST_RETRY_LEVEL
from rmq_store.lazy.arrow_compute import pc
from rmq_store.lazy.dataclasses import dataclass

WAITS: Final = "retry"
DEAD: Final = "dead"

ATTEMPTS_HEADER: Final = b"rmq.attempts"
GROUP_HEADER: Final = b"rmq.retry-group"
RETRY_QUEUE: Final = 0

# Bytes for the schedule and the properties above; reasons must leave them free.
_PLACE_BYTES: Final = 600
_REASONS_BYTES: Final = 512

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RetryRules:
    """`topics`: topics to which records may return. If there is only one, records of unknown origin return to it.
    `max_attempts`: the group's retryMaxTimes; a record that failed more often is dead. `level_count`: delay levels of
    the store.
    """

    topics: Collection[str]
    max_attempts: int
    level_count: int


@dataclass(frozen=True, slots=True)
class MappedRetries:
    """`batches`: rows for `Store.append_unit`. `refused_count`: records that no message can hold."""

    batches: list[pa.RecordBatch]
    waiting_count: int
    dead_count: int
    refused_count: int


def retry_rows(rows: pa.RecordBatch, route: Route, rmq_rules: RmqRules, rules: RetryRules) -> MappedRetries:
    """Map records (RECORDS_SCHEMA) of one partition of failed records; `route` leads to the group's retry topic."""
    letters = parse_letters(rows)
    failed_before = _failed_before(rows, rules.max_attempts)
    plain = without_headers(without_error_headers(rows), lambda name: name in (ATTEMPTS_HEADER, GROUP_HEADER))
    bytes_max = rmq_rules.max_properties_bytes - _PLACE_BYTES
    mapped = to_rmq(plain, route, replace(rmq_rules, max_properties_bytes=bytes_max - _REASONS_BYTES))
    places = np.searchsorted(rows.column("offset").to_numpy(), sources_of_messages(mapped.rows).offsets)
    taken = pa.array(places)
    own = letters.take(taken)
    attempts = failed_before[places] + 1

    goals = _goals(own.column("topic"), rules.topics)
    is_known = goals.is_valid().to_numpy(zero_copy_only=False)
    is_dead = (attempts > rules.max_attempts) | ~is_known
    partitions = pc.coalesce(own.column("partition"), pa.scalar(route.source_partition, pa.int32()))
    reasons = reason_properties(own, rows.column("timestampMs").take(taken), properties_bytes(mapped.rows), bytes_max)
    named = [
        (KAFKA_RETRY, pa.array(np.where(is_dead, DEAD, WAITS).astype(object), pa.string())),
        (KAFKA_RETRY_TOPIC, goals.fill_null(next(iter(rules.topics)))),
        (KAFKA_RETRY_PARTITION, partitions.cast(pa.string())),
        (KAFKA_ATTEMPTS, pa.array(attempts).cast(pa.string())),
        *((name, values) for name, values in reasons if name != KAFKA_LETTER),
    ]
    levels = np.minimum(FIRST_RETRY_LEVEL + attempts - 1, rules.level_count)
    messages = with_properties(mapped.rows, named)
    messages = messages.append_column("delayLevel", pa.array(np.where(is_dead, 0, levels).astype(np.int32)))
    messages = messages.append_column("reconsumeTimes", pa.array(attempts.astype(np.int32)))
    dead_count = int(is_dead.sum())
    batches = [batch for batch in (messages, mapped.letters) if batch.num_rows]
    return MappedRetries(batches, messages.num_rows - dead_count, dead_count, mapped.letters.num_rows)


def _failed_before(rows: pa.RecordBatch, attempts_max: int) -> Int64:
    """The value of `rmq.attempts`, at most the number of all attempts; 0 if it cannot be read."""
    raw = last_values(rows, ATTEMPTS_HEADER)
    known = pc.and_(pc.is_valid(raw), pc.less_equal(pc.binary_length(raw), 9)).fill_null(False)
    text = pc.if_else(known, raw, pa.scalar(b"x", pa.binary()))
    numbers = [int(value) if value.isdigit() else 0 for value in text.to_pylist()]
    return np.minimum(np.array(numbers, np.int64), max(attempts_max, 0))


def _goals(origins: pa.StringArray, topics: Collection[str]) -> pa.StringArray:
    """The topic that each record returns to; null for one that names another topic, or none while there are several."""
    chosen = list(topics)
    goals = origins.fill_null(chosen[0]) if len(chosen) == 1 else origins
    return pc.if_else(pc.is_in(goals, pa.array(chosen, pa.string())), goals, pa.scalar(None, pa.string()))
