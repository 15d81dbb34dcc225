"""Dead letters of Kafka as dead letters of RocketMQ: rows of `%DLQ%group`, with their reasons (data plane).

A letter is mapped like any record of a mirror, without its error headers, so that it can go back to Kafka unchanged.
The user names the group: a header must not choose a topic of the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.bridge.dead_letters.added_properties import properties_bytes, with_properties
from rmq_store.bridge.dead_letters.formats import parse_letters, without_error_headers
from rmq_store.bridge.dead_letters.reasons import ALWAYS_BYTES, reason_properties
from rmq_store.bridge.records.origin import sources_of_messages
from rmq_store.bridge.records.route import Route
from rmq_store.bridge.records.to_rmq import RmqRules, to_rmq
from rmq_store.errors import UsageError
from rmq_store.format.text import names
from rmq_store.lazy.dataclasses import dataclass

DLQ_QUEUE = 0
"""A dead-letter topic has one queue (AbstractSendMessageProcessor, DLQ_NUMS_PER_GROUP)."""

ATTEMPTS_COLUMN = "reconsumeTimes"


@dataclass(frozen=True, slots=True)
class LetterGroups:
    """The groups that get the letters: `default`, except for letters of the Kafka groups in `by_kafka_group`.

    Raises (when constructed):
        UsageError: a name that RocketMQ does not accept.
    """

    default: str
    by_kafka_group: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for group in (self.default, *self.by_kafka_group.values()):
            names.validate_group(group)

    @classmethod
    def parse(cls, texts: Sequence[str]) -> LetterGroups:
        """Parse `billing` (the default) and `billing=shop.billing` (a Kafka group's). UsageError: not one default."""
        pairs = [text.partition("=") for text in texts]
        defaults = [group for group, equals, _ in pairs if not equals]
        if len(defaults) != 1:
            raise UsageError("--group: one name without = is needed, for letters of all other Kafka groups")
        named = {kafka_group: group for group, equals, kafka_group in pairs if equals}
        if "" in named or len(named) < len(texts) - 1:
            raise UsageError("--group GROUP=KAFKA_GROUP: each Kafka group once")
        return cls(defaults[0], named)

    def of(self, kafka_groups: pa.StringArray) -> npt.NDArray[np.object_]:
        """The group of each letter (n,)."""
        encoded = kafka_groups.fill_null("").dictionary_encode()
        groups = [self.by_kafka_group.get(name, self.default) for name in encoded.dictionary.to_pylist()]
        found: npt.NDArray[np.object_] = np.array(groups, object)[encoded.indices.to_numpy()]
        return found


@dataclass(frozen=True, slots=True)
class MappedLetters:
    """`batches`: rows for `Store.append_unit`. `counts`: letters by group. `unknown_count`: letters without headers
    that name a reason. `refused_count`: letters that cannot be stored, and became dead letters of the mirror.
    """

    batches: list[pa.RecordBatch]
    counts: Mapping[str, int]
    unknown_count: int
    refused_count: int


def letter_rows(rows: pa.RecordBatch, route: Route, rules: RmqRules, groups: LetterGroups) -> MappedLetters:
    """Map records (RECORDS_SCHEMA) of one partition of a topic of dead letters. The target of `route` is ignored."""
    letters = parse_letters(rows)
    rows = without_error_headers(rows)
    group_of = groups.of(letters.column("group"))
    bytes_max = rules.max_properties_bytes
    rules = replace(rules, max_properties_bytes=bytes_max - ALWAYS_BYTES)
    batches: list[pa.RecordBatch] = []
    counts: dict[str, int] = {}
    refused_count = 0
    for group in sorted(set(group_of)):
        chosen = pa.array(np.flatnonzero(group_of == group))
        given = rows.take(chosen)
        target = replace(route, target_topic=names.dlq_topic(group), target_partition=DLQ_QUEUE)
        mapped = to_rmq(given, target, rules)
        found = chosen.take(_places(mapped.rows, given))
        own = letters.take(found)
        timestamps_ms = rows.column("timestampMs").take(found)
        added = reason_properties(own, timestamps_ms, properties_bytes(mapped.rows), bytes_max)
        message_rows = with_properties(mapped.rows, added)
        batches.append(message_rows.append_column(ATTEMPTS_COLUMN, own.column("attempts")))
        counts[group] = mapped.rows.num_rows
        if mapped.letters.num_rows:
            batches.append(mapped.letters)
            refused_count += mapped.letters.num_rows
    return MappedLetters(batches, counts, letters.column("format").null_count, refused_count)


def _places(messages: pa.RecordBatch, given: pa.RecordBatch) -> pa.Array:
    """The numbers of the given records that became messages; refused ones are not among them."""
    offsets = sources_of_messages(messages).offsets
    return pa.array(np.searchsorted(given.column("offset").to_numpy(), offsets))
