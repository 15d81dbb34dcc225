"""Reasons of Kafka's dead letters as the properties that triage reads (`rmq_store.broker.rules.failure`; data plane).

    KAFKA_LETTER                        the letter's format, or `unknown`: `rmq dlq redrive` leaves it alone
    PYRMQ_ORIGIN_TOPIC, _QUEUE_ID,      topic, partition and offset of the record that failed
    _QUEUE_OFFSET
    PYRMQ_ERROR_CLASS, _MESSAGE         of the newest failure
    PYRMQ_STACK_HASH                    16 hex digits; the same for failures that took the same way through the code
    PYRMQ_LAST_FAILURE_MS               the letter's time, if its writer did not keep that of the record
    KAFKA_GROUP, KAFKA_STAGE            the Kafka group that failed; the step of Connect in which it failed
    KAFKA_STACK_TRACE                   its beginning

A Java stack trace names a line in each frame: `at shop.Orders.on(Orders.java:7)`. The hash leaves out lines, messages
and numbers of lambdas and proxies, which change from run to run.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.broker.rules import failure
from rmq_store.format.properties.mirror_properties import KAFKA_GROUP, KAFKA_STACK_TRACE, KAFKA_STAGE
from rmq_store.lazy.arrow_compute import pc

UNKNOWN_FORMAT: Final = "unknown"

ADDED: Final = (
    failure.KAFKA_LETTER, failure.ORIGIN_TOPIC, failure.ORIGIN_QUEUE_ID, failure.ORIGIN_QUEUE_OFFSET,
    failure.ERROR_CLASS, failure.LAST_FAILURE_MS, KAFKA_GROUP, KAFKA_STAGE, failure.STACK_HASH, failure.ERROR_MESSAGE,
    KAFKA_STACK_TRACE,
)  # fmt: skip
"""All of them; the last ones give way first."""

ALWAYS_BYTES: Final = 512
"""Room that the first four take at most: a name of a topic has 249 characters."""

# A name may be as long as a class loader likes, and a trace has a line for each frame of a recursion.
_NAME_CHARACTERS_MAX = 512
_TRACE_CHARACTERS_MAX = 4096
_ALWAYS = 4

_FRAME = re.compile(r"^\s*at ([^\s(]+)\(", re.MULTILINE)
_CAUSE = re.compile(r"^Caused by: ([^\s:]+)", re.MULTILINE)
# Made anew by each start of a JVM: Orders$$Lambda/0x00007f1, lambda$on$5, $Proxy12, GeneratedMethodAccessor7.
_PASSING = re.compile(r"0x[0-9a-f]+|\d+")
_HASH_DIGITS = 16

Int64 = npt.NDArray[np.int64]


def reason_properties(
    letters: pa.RecordBatch, timestamps_ms: pa.Array, own_bytes: Int64, bytes_max: int
) -> list[tuple[str, pa.StringArray]]:
    """The properties of n letters (LETTERS_SCHEMA), as pairs of name and values (n,); null if a letter does not have
    one.

    `timestamps_ms` (n,): of the records in the topic of dead letters. `own_bytes` (n,): size of the message's own
    properties. Reasons beyond `bytes_max` are left out, the least important first; ALWAYS_BYTES must be free.
    """
    count = letters.num_rows
    columns = dict(zip(letters.schema.names, letters.columns, strict=True))
    nothing = pa.scalar(None, pa.string())
    # Connect gives its letter the time of the record that failed; others leave the time to the producer.
    is_of_failure = pc.not_equal(pc.fill_null(columns["format"], UNKNOWN_FORMAT), "connect")
    values = {
        failure.KAFKA_LETTER: pc.fill_null(columns["format"], UNKNOWN_FORMAT),
        failure.ORIGIN_TOPIC: columns["topic"],
        failure.ORIGIN_QUEUE_ID: columns["partition"].cast(pa.string()),
        failure.ORIGIN_QUEUE_OFFSET: columns["offset"].cast(pa.string()),
        failure.ERROR_CLASS: _short(columns["errorClass"], _NAME_CHARACTERS_MAX),
        failure.LAST_FAILURE_MS: pc.if_else(
            pc.and_(is_of_failure, pc.greater(timestamps_ms, 0)), timestamps_ms.cast(pa.string()), nothing
        ),
        KAFKA_GROUP: _short(columns["group"], _NAME_CHARACTERS_MAX),
        KAFKA_STAGE: _short(columns["stage"], _NAME_CHARACTERS_MAX),
        failure.STACK_HASH: stack_hashes(columns["errorClass"], columns["stackTrace"]),
        failure.ERROR_MESSAGE: _short(columns["errorMessage"], failure.ERROR_MESSAGE_CHARACTERS_MAX),
        KAFKA_STACK_TRACE: _short(columns["stackTrace"], _TRACE_CHARACTERS_MAX),
    }
    used = own_bytes.astype(np.int64, copy=True)
    found = []
    for place, name in enumerate(ADDED):
        value = values[name]
        lengths = pc.fill_null(pc.binary_length(value), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        lengths[lengths > 0] += len(name) + 2
        fits = used + lengths <= bytes_max
        if place >= _ALWAYS and not fits.all():
            value = pc.if_else(pa.array(fits), value, nothing)
            lengths[~fits] = 0
        used += lengths
        found.append((name, value))
    assert all(len(value) == count for _, value in found)
    return found


def stack_hashes(classes: pa.StringArray, traces: pa.StringArray) -> pa.StringArray:
    """16 hex digits for each trace (n,); null without one. The work is proportional to the number of different traces.
    """
    both = pc.if_else(
        pc.is_valid(traces), pc.binary_join_element_wise(pc.fill_null(classes, ""), traces, "\n"),
        pa.scalar(None, pa.string()),
    )  # fmt: skip
    encoded = both.dictionary_encode()
    hashes = pa.array([_stack_hash(text) for text in encoded.dictionary.to_pylist()], pa.string())
    return hashes.take(encoded.indices)


def _stack_hash(text: str) -> str:
    error_class, _, trace = text.partition("\n")
    way: Sequence[str] = [*_CAUSE.findall(trace), *_FRAME.findall(trace)]
    content = "\n".join([error_class, *(_PASSING.sub("#", step) for step in way)])
    return hashlib.sha256(content.encode(errors="replace")).hexdigest()[:_HASH_DIGITS]


def _short(texts: pa.StringArray, characters_max: int) -> pa.StringArray:
    """The beginning of each text, without what a property cannot hold; null for an empty one."""
    short = pc.utf8_slice_codeunits(texts, 0, characters_max)
    clean = pc.replace_substring_regex(short, "[\x01\x02]", "\N{REPLACEMENT CHARACTER}")
    return pc.if_else(pc.equal(clean, ""), pa.scalar(None, pa.string()), clean)
