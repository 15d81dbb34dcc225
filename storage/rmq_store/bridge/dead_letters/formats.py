"""Dead letters of Kafka as their writers mark them: by headers of Kafka Connect and of Spring for Apache Kafka.

    format   headers                                 values
    connect  `__connect.errors.*`                    text; a number is decimal digits
    spring   `kafka_dlt-*`, and of retry topics      text; partition is 4 bytes, offset and timestamp are 8, big endian;
             `kafka_original-*`, `kafka_exception-*`, attempts are 4 bytes, or 1 byte before 3.0
             `kafka_key-exception-*`, `retry_topic-*`
    rmq      `rmq.letter.*`, of `retry_topic`        text

A record may have been a dead letter more than once, and then has headers of a name several times. Its origin is the
first one of them, its newest failure the last one. Connect writes none that is there already. Sources: Connect's
DeadLetterQueueReporter#populateContextHeaders; Spring's DeadLetterPublishingRecoverer (maybeAddOriginalHeaders,
addExceptionInfoHeaders), DeadLetterPublishingRecovererFactory#addHeaders, KafkaHeaders, RetryTopicHeaders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.bridge.dead_letters.header_rows import parents, without_headers
from rmq_store.format.bytes.utf8 import decode_utf8
from rmq_store.lazy.arrow_compute import pc

LETTERS_SCHEMA: Final = pa.schema(
    [
        ("format", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestampMs", pa.int64()),
        ("group", pa.string()),
        ("attempts", pa.int32()),
        ("errorClass", pa.string()),
        ("errorMessage", pa.string()),
        ("stackTrace", pa.string()),
        ("stage", pa.string()),
    ]
)
"""What the headers of a dead letter say, null where they say nothing (that can be read). `topic`, `partition`, `offset`
and `timestampMs` are those of the record that failed. `attempts`: how often it failed. `stage`: in which step of
Connect. `format` is null for a record without any such header.
"""

_PREFIXES = (
    b"__connect.errors.", b"kafka_dlt-", b"kafka_original-", b"kafka_exception-", b"kafka_key-exception-",
    b"retry_topic-", b"springDeserializerException", b"rmq.letter.",
)  # fmt: skip

# Connect's consumers are of group connect-<name of the connector> (SinkUtils#consumerGroupId).
_CONNECT_GROUP = "connect-"
# Spring wraps what the listener raised: the cause is what people look for.
_WRAPPERS = pa.array([
    "org.springframework.kafka.listener.ListenerExecutionFailedException",
    "org.springframework.kafka.listener.TimestampedException",
])  # fmt: skip

_ORIGIN = ("topic", "partition", "offset", "timestamp", "group")
_PARTITION_MAX = (1 << 31) - 1
_DIGITS = "^[0-9]{1,18}$"
_TOPIC = r"^[a-zA-Z0-9._-]{1,249}$"  # Topic#validate

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


def _names(prefix: str, **fields: str) -> dict[bytes, str]:
    return {f"{prefix}{name}".encode(): field for field, name in fields.items()}


_CONNECT: Mapping[bytes, str] = _names(
    "__connect.errors.", topic="topic", partition="partition", offset="offset", connector="connector.name",
    stage="stage", errorClass="exception.class.name", message="exception.message", stackTrace="exception.stacktrace",
)  # fmt: skip
_SPRING_ORIGIN = {
    "topic": "original-topic", "partition": "original-partition", "offset": "original-offset",
    "timestamp": "original-timestamp", "group": "original-consumer-group",
}  # fmt: skip
_SPRING_ERROR = {
    "errorClass": "exception-fqcn", "cause": "exception-cause-fqcn", "message": "exception-message",
    "stackTrace": "exception-stacktrace",
}  # fmt: skip
_SPRING_KEY_ERROR = {
    "keyErrorClass": "key-exception-fqcn", "keyMessage": "key-exception-message",
    "keyStackTrace": "key-exception-stacktrace",
}  # fmt: skip
_SPRING: Mapping[bytes, str] = {
    **{
        header: field
        for prefix in ("kafka_dlt-", "kafka_")
        for header, field in _names(prefix, **_SPRING_ORIGIN, **_SPRING_ERROR, **_SPRING_KEY_ERROR).items()
    },
    b"retry_topic-attempts": "attempts",
}
_OURS: Mapping[bytes, str] = _names(
    "rmq.letter.", topic="topic", partition="partition", offset="offset", timestamp="timestamp", group="group",
    attempts="attempts", errorClass="error-class", message="error-message",
)  # fmt: skip


def parse_letters(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The reasons in the headers of dead Kafka records (RECORDS_SCHEMA): LETTERS_SCHEMA, one row for each.

    Never raises: a header that cannot be read counts as missing.
    """
    headers = _Headers(rows.column("headers"))
    spring, connect, ours = (headers.of(names) for names in (_SPRING, _CONNECT, _OURS))
    is_spring, is_connect, is_ours = (headers.has(names) for names in (_SPRING, _CONNECT, _OURS))
    connector = _text(connect["connector"])
    # The two classes of the key's failure and of the value's: the value's is written last, and is the newest.
    spring_class = _text(spring["errorClass"])
    unwrapped = pc.if_else(
        pc.fill_null(pc.is_in(spring_class, _WRAPPERS), True), pc.coalesce(_text(spring["cause"]), spring_class),
        spring_class,
    )  # fmt: skip

    def of(by_spring: pa.Array, by_connect: pa.Array, by_us: pa.Array) -> pa.Array:
        nothing = pa.scalar(None, by_us.type)
        rest = pc.if_else(is_connect, by_connect, nothing)
        return pc.if_else(is_ours, by_us, pc.if_else(is_spring, by_spring, rest))

    none = pa.nulls(rows.num_rows, pa.string())
    columns = [
        of(*(pa.array([name] * rows.num_rows, pa.string()) for name in ("spring", "connect", "rmq"))),
        of(*(_topic(found["topic"]) for found in (spring, connect, ours))),
        of(_big_endian(spring["partition"], 4), *(_decimal(found["partition"]) for found in (connect, ours))),
        of(_big_endian(spring["offset"], 8), *(_decimal(found["offset"]) for found in (connect, ours))),
        of(_big_endian(spring["timestamp"], 8), pa.nulls(rows.num_rows, pa.int64()), _decimal(ours["timestamp"])),
        of(
            _text(spring["group"]),
            pc.binary_join_element_wise(pa.scalar(_CONNECT_GROUP), connector, ""),
            _text(ours["group"]),
        ),
        of(_spring_attempts(spring["attempts"]), pa.nulls(rows.num_rows, pa.int64()), _decimal(ours["attempts"])),
        of(
            pc.coalesce(unwrapped, _text(spring["keyErrorClass"])),
            _text(connect["errorClass"]),
            _text(ours["errorClass"]),
        ),
        of(
            pc.coalesce(_text(spring["message"]), _text(spring["keyMessage"])),
            _text(connect["message"]),
            _text(ours["message"]),
        ),
        of(
            pc.coalesce(*map(_text, (spring["stackTrace"], spring["keyStackTrace"]))),
            _text(connect["stackTrace"]),
            none,
        ),
        of(none, _text(connect["stage"]), none),
    ]
    columns[2], columns[6] = _int32(columns[2]), _int32(columns[6])
    return pa.RecordBatch.from_arrays(columns, schema=LETTERS_SCHEMA)


def without_error_headers(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The records as they were before they failed, without the headers about the failure."""
    return without_headers(rows, lambda name: name.startswith(_PREFIXES))


class _Headers:
    """The headers of all rows at once, looked up by their names."""

    def __init__(self, column: pa.ListArray) -> None:
        self._count = len(column)
        names, self._values = column.flatten().flatten()
        self._parents = parents(column)
        self._codes, self._distinct = _encoded(names)

    def of(self, names: Mapping[bytes, str]) -> dict[str, pa.Array]:
        """The values (n,) of each field: of the first header for fields of the origin, else of the last one."""
        found = {}
        for field in set(names.values()):
            places = self._places([name for name, meaning in names.items() if meaning == field])
            if field in _ORIGIN:
                places = places[::-1]
            chosen = np.full(self._count, -1, np.int64)
            chosen[self._parents[places]] = places  # of equal rows the last one stays
            found[field] = self._values.take(pa.array(chosen, mask=chosen < 0))
        return found

    def has(self, names: Mapping[bytes, str]) -> pa.Array:
        """Rows that have any of these headers; bool (n,)."""
        mask = np.zeros(self._count, np.bool_)
        mask[self._parents[self._places(list(names))]] = True
        return pa.array(mask)

    def _places(self, names: list[bytes]) -> Int64:
        wanted = np.array([name in names for name in self._distinct], np.bool_)
        return np.flatnonzero(wanted[self._codes]) if len(self._codes) else np.zeros(0, np.int64)


def _encoded(names: pa.Array) -> tuple[Int32, list[bytes]]:
    encoded = names.dictionary_encode()
    return encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary.to_pylist()


def _text(values: pa.Array) -> pa.Array:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:  # some are not UTF-8: they are shown as Java shows them
        return pa.array([None if value is None else decode_utf8(value) for value in values.to_pylist()], pa.string())


def _topic(values: pa.Array) -> pa.Array:
    text = _text(values)
    return pc.if_else(pc.match_substring_regex(text, _TOPIC), text, pa.scalar(None, pa.string()))


def _decimal(values: pa.Array) -> pa.Array:
    text = _text(values)
    return pc.if_else(pc.match_substring_regex(text, _DIGITS), text, pa.scalar(None, pa.string())).cast(pa.int64())


def _big_endian(values: pa.Array, width: int) -> pa.Array:
    """int64 (n,): numbers of `width` bytes; null for values of another length, and below 0."""
    fits = pc.fill_null(pc.equal(pc.binary_length(values), width), False).to_numpy(zero_copy_only=False)
    numbers = np.full(len(values), -1, np.int64)
    numbers[fits] = np.frombuffer(b"".join(values.filter(pa.array(fits)).to_pylist()), f">i{width}")
    return pa.array(numbers, mask=numbers < 0)


def _spring_attempts(values: pa.Array) -> pa.Array:
    """How often it failed: the header counts the delivery that would have come next."""
    counts = pc.coalesce(_big_endian(values, 4), _big_endian(values, 1))
    return pc.if_else(pc.greater(counts, 0), pc.subtract(counts, 1), pa.scalar(None, pa.int64()))


def _int32(numbers: pa.Array) -> pa.Array:
    return pc.if_else(pc.less_equal(numbers, _PARTITION_MAX), numbers, pa.scalar(None, pa.int64())).cast(pa.int32())
