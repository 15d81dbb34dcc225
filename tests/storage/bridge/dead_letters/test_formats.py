"""Headers of dead letters, with the bytes that Kafka Connect and Spring write."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from rmq_store.bridge.dead_letters.formats import LETTERS_SCHEMA, parse_letters, without_error_headers
from rmq_store.bridge.record_batches.schema import RECORDS_SCHEMA

Headers = Sequence[tuple[bytes, bytes | None]]

TRACE = (
    "org.apache.kafka.connect.errors.DataException: Converting byte[] to Kafka Connect data failed\n"
    "\tat org.apache.kafka.connect.json.JsonConverter.toConnectData(JsonConverter.java:333)\n"
)
# DeadLetterQueueReporter#populateContextHeaders of Kafka 2.0 to 4.3: texts, numbers by String.valueOf.
CONNECT: Headers = [
    (b"__connect.errors.topic", b"orders"),
    (b"__connect.errors.partition", b"3"),
    (b"__connect.errors.offset", b"4711"),
    (b"__connect.errors.connector.name", b"orders-sink"),
    (b"__connect.errors.task.id", b"0"),
    (b"__connect.errors.stage", b"VALUE_CONVERTER"),
    (b"__connect.errors.class.name", b"org.apache.kafka.connect.json.JsonConverter"),
    (b"__connect.errors.exception.class.name", b"org.apache.kafka.connect.errors.DataException"),
    (b"__connect.errors.exception.message", b"Converting byte[] to Kafka Connect data failed"),
    (b"__connect.errors.exception.stacktrace", TRACE.encode()),
]
# DeadLetterPublishingRecoverer#maybeAddOriginalHeaders: ByteBuffer.putInt and putLong, so big endian.
SPRING: Headers = [
    (b"kafka_dlt-exception-fqcn", b"org.springframework.kafka.listener.ListenerExecutionFailedException"),
    (b"kafka_dlt-exception-cause-fqcn", b"java.lang.IllegalStateException"),
    (b"kafka_dlt-exception-message", b"Listener method threw exception; no stock"),
    (b"kafka_dlt-exception-stacktrace", b"org.springframework...\n\tat com.shop.Orders.on(Orders.java:7)\n"),
    (b"kafka_dlt-original-topic", b"orders"),
    (b"kafka_dlt-original-partition", b"\x00\x00\x00\x05"),
    (b"kafka_dlt-original-offset", b"\x00\x00\x00\x00\x00\x00\x12\x67"),
    (b"kafka_dlt-original-timestamp", b"\x00\x00\x01\x8b\xcf\xe5\x68\x00"),
    (b"kafka_dlt-original-timestamp-type", b"CreateTime"),
    (b"kafka_dlt-original-consumer-group", b"shop.billing"),
]
# DeadLetterPublishingRecovererFactory, after three failures; its group header has the other family's name.
SPRING_RETRY_TOPIC: Headers = [
    (b"kafka_original-topic", b"orders"),
    (b"kafka_original-partition", b"\x00\x00\x00\x01"),
    (b"kafka_original-offset", b"\x00\x00\x00\x00\x00\x00\x00\x63"),
    (b"kafka_dlt-original-consumer-group", b"billing"),
    (b"kafka_exception-fqcn", b"java.lang.NullPointerException"),
    (b"retry_topic-original-timestamp", b"\x01\x8b\xcf\xe5\x68\x00"),
    (b"retry_topic-attempts", b"\x00\x00\x00\x04"),
    (b"retry_topic-backoff-timestamp", b"\x01\x8b\xcf\xe5\x70\x00"),
]


def rows_with(*headers: Headers) -> pa.RecordBatch:
    """A record of a topic of dead letters for each list of headers."""
    return pa.RecordBatch.from_pylist(
        [
            {"offset": offset, "timestampMs": 7, "timestampType": 0, "key": b"k", "value": b"v",
             "headers": [{"name": name, "value": value} for name, value in named]}
            for offset, named in enumerate(headers)
        ],
        RECORDS_SCHEMA,
    )  # fmt: skip


def parsed(*headers: Headers) -> list[dict[str, Any]]:
    found = parse_letters(rows_with(*headers))
    assert found.schema.equals(LETTERS_SCHEMA)
    return found.to_pylist()


def header_names(rows: pa.RecordBatch) -> list[list[bytes]]:
    return [[header["name"] for header in headers] for headers in rows.column("headers").to_pylist()]


def test_what_connect_writes_is_read() -> None:
    [letter] = parsed(CONNECT)
    assert letter == {
        "format": "connect", "topic": "orders", "partition": 3, "offset": 4711, "timestampMs": None,
        "group": "connect-orders-sink", "attempts": None,
        "errorClass": "org.apache.kafka.connect.errors.DataException",
        "errorMessage": "Converting byte[] to Kafka Connect data failed", "stackTrace": TRACE,
        "stage": "VALUE_CONVERTER",
    }  # fmt: skip


def test_what_spring_writes_is_read_with_the_cause_of_its_wrapper() -> None:
    [letter] = parsed(SPRING)
    assert letter == {
        "format": "spring", "topic": "orders", "partition": 5, "offset": 0x1267, "timestampMs": 0x18BCFE56800,
        "group": "shop.billing", "attempts": None, "errorClass": "java.lang.IllegalStateException",
        "errorMessage": "Listener method threw exception; no stock",
        "stackTrace": "org.springframework...\n\tat com.shop.Orders.on(Orders.java:7)\n", "stage": None,
    }  # fmt: skip


def test_a_cause_does_not_hide_the_class_that_the_listener_itself_raised() -> None:
    own = [
        (b"kafka_dlt-exception-fqcn", b"com.shop.NoStock"),
        (b"kafka_dlt-exception-cause-fqcn", b"java.io.IOException"),
    ]
    assert parsed(own)[0]["errorClass"] == "com.shop.NoStock"


def test_springs_retry_topics_count_the_failures() -> None:
    one_byte = [(b"kafka_original-topic", b"orders"), (b"retry_topic-attempts", b"\x03")]  # before Spring Kafka 3
    letter, older = parsed(SPRING_RETRY_TOPIC, one_byte)
    assert (letter["topic"], letter["partition"], letter["offset"]) == ("orders", 1, 99)
    assert (letter["group"], letter["errorClass"]) == ("billing", "java.lang.NullPointerException")
    assert (letter["attempts"], older["attempts"]) == (3, 2)


def test_a_key_that_could_not_be_read_is_a_reason_too() -> None:
    [letter] = parsed([
        (b"kafka_dlt-key-exception-fqcn", b"org.springframework.kafka.support.serializer.DeserializationException"),
        (b"kafka_dlt-key-exception-message", b"failed to deserialize"),
        (b"kafka_dlt-key-exception-stacktrace", b"trace"),
    ])  # fmt: skip
    assert letter["errorClass"] == "org.springframework.kafka.support.serializer.DeserializationException"
    assert (letter["errorMessage"], letter["stackTrace"]) == ("failed to deserialize", "trace")


def test_of_several_deaths_the_first_origin_and_the_last_reason_count() -> None:
    [letter] = parsed([
        (b"kafka_dlt-original-topic", b"orders"), (b"kafka_dlt-exception-fqcn", b"First"),
        (b"kafka_dlt-original-topic", b"orders.DLT"), (b"kafka_dlt-exception-fqcn", b"Second"),
    ])  # fmt: skip
    assert (letter["topic"], letter["errorClass"]) == ("orders", "Second")


def test_rows_do_not_mix_and_one_without_such_headers_is_no_letter() -> None:
    plain, spring, empty, connect = parsed([(b"kafka_dlt", b"orders")], SPRING, [], CONNECT)
    assert set(plain.values()) == set(empty.values()) == {None}
    assert (spring["format"], connect["format"]) == ("spring", "connect")
    assert (spring["stage"], connect["attempts"]) == (None, None)


@pytest.mark.parametrize("value", [b"", b"\x00\x00\x05", b"seven", b"\xff\xff\xff\xff", None])
def test_a_number_that_cannot_be_read_counts_as_missing(value: bytes | None) -> None:
    spring = [(b"kafka_dlt-original-topic", b"t"), (b"kafka_dlt-original-partition", value)]
    connect = [(b"__connect.errors.topic", b"t"), (b"__connect.errors.partition", value)]
    assert [letter["partition"] for letter in parsed(spring, connect)] == [None, None]


@pytest.mark.parametrize("name", [b"", b"t\x02", b"caf\xc3\xa9", b"t" * 250, b"%RETRY%g"])
def test_what_cannot_be_a_topic_of_kafka_counts_as_missing(name: bytes) -> None:
    connect, spring = parsed([(b"__connect.errors.topic", name)], [(b"kafka_original-topic", name)])
    assert connect["topic"] is spring["topic"] is None


def test_connects_minus_one_is_no_position() -> None:
    unknown = [(b"__connect.errors.partition", b"-1"), (b"__connect.errors.offset", b"9223372036854775808")]
    assert [parsed(unknown)[0][name] for name in ("partition", "offset")] == [None, None]
    assert parsed([(b"__connect.errors.partition", b"2147483648")])[0]["partition"] is None


def test_text_that_is_not_utf_8_is_shown_as_java_shows_it() -> None:
    bad, good = parsed([(b"__connect.errors.exception.message", b"caf\xe9")], CONNECT)
    assert (bad["errorMessage"], good["topic"]) == ("caf\N{REPLACEMENT CHARACTER}", "orders")


def test_a_header_name_that_is_not_utf_8_is_none_of_these() -> None:
    assert parsed([(b"\xff\xfe", b"v"), *CONNECT])[0]["topic"] == "orders"


def test_without_its_error_a_record_has_the_headers_that_it_had_before_in_their_order() -> None:
    own: Headers = [(b"trace", b"1"), (b"trace", None), (b"", b"\xff"), (b"kafka_dlt", b"mine")]
    mixed = [own[0], *SPRING, *own[1:3], (b"springDeserializerExceptionValue", b"\xac\xed"), own[3], *CONNECT]
    left = without_error_headers(rows_with(mixed, [], SPRING_RETRY_TOPIC, own))
    assert left.schema.equals(RECORDS_SCHEMA)
    assert [[(header["name"], header["value"]) for header in headers] for headers in left["headers"].to_pylist()] == [
        own, [], [], own,
    ]  # fmt: skip
    assert left["key"].to_pylist() == [b"k"] * 4


def test_slices_of_a_batch_are_read_as_whole_batches_are() -> None:
    rows = rows_with(CONNECT, SPRING, [(b"own", b"v"), *CONNECT])
    assert [letter["format"] for letter in parse_letters(rows.slice(1, 2)).to_pylist()] == ["spring", "connect"]
    assert header_names(without_error_headers(rows.slice(1, 2))) == [[], [b"own"]]
    assert parse_letters(rows.slice(0, 0)).num_rows == without_error_headers(rows.slice(0, 0)).num_rows == 0


def test_a_record_has_as_many_headers_as_kafka_allows() -> None:
    many = [(struct.pack(">i", number), b"") for number in range(70_000)]
    [letter] = parsed([*many, *SPRING])
    assert letter["partition"] == 5
    assert len(without_error_headers(rows_with([*many, *SPRING])).column("headers")[0]) == 70_000
