"""Reasons of Kafka's dead letters as properties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from rmq_store.bridge.dead_letters.formats import LETTERS_SCHEMA
from rmq_store.bridge.dead_letters.reasons import ADDED, ALWAYS_BYTES, reason_properties, stack_hashes
from rmq_store.format.properties.property_string import PROPERTIES_BYTES_MAX, encode_properties

TRACE = (
    "java.lang.IllegalStateException: no stock for 7\n"
    "\tat com.shop.Orders.on(Orders.java:7)\n"
    "\tat com.shop.Orders$$Lambda/0x00007f3c.run(Unknown Source)\n"
    "\tat jdk.internal.reflect.GeneratedMethodAccessor12.invoke(Unknown Source)\n"
    "Caused by: java.io.IOException: broken pipe\n"
    "\t... 3 more\n"
)


def properties_of(own_bytes: int = 0, bytes_max: int = PROPERTIES_BYTES_MAX, **letter: Any) -> dict[str, str]:
    letters = pa.RecordBatch.from_pylist([letter], LETTERS_SCHEMA)
    found = reason_properties(letters, pa.array([5_000]), np.array([own_bytes]), bytes_max)
    assert [name for name, _ in found] == list(ADDED)
    return {name: value[0].as_py() for name, value in found if value[0].is_valid}


def hash_of(trace: str, error_class: str = "java.lang.IllegalStateException") -> str:
    found: str = stack_hashes(pa.array([error_class]), pa.array([trace]))[0].as_py()
    return found


def test_what_is_known_becomes_the_properties_that_triage_reads() -> None:
    assert properties_of(
        format="spring", topic="orders", partition=3, offset=4711, group="shop.billing", attempts=2,
        errorClass="java.lang.IllegalStateException", errorMessage="no stock", stackTrace=TRACE, stage=None,
    ) == {
        "KAFKA_LETTER": "spring", "PYRMQ_ORIGIN_TOPIC": "orders", "PYRMQ_ORIGIN_QUEUE_ID": "3",
        "PYRMQ_ORIGIN_QUEUE_OFFSET": "4711", "PYRMQ_ERROR_CLASS": "java.lang.IllegalStateException",
        "PYRMQ_LAST_FAILURE_MS": "5000", "KAFKA_GROUP": "shop.billing", "PYRMQ_STACK_HASH": hash_of(TRACE),
        "PYRMQ_ERROR_MESSAGE": "no stock", "KAFKA_STACK_TRACE": TRACE,
    }  # fmt: skip


def test_a_record_without_such_headers_is_a_letter_of_unknown_format() -> None:
    assert properties_of() == {"KAFKA_LETTER": "unknown", "PYRMQ_LAST_FAILURE_MS": "5000"}


def test_connects_letters_have_the_time_of_the_record_and_so_no_time_of_the_failure() -> None:
    assert "PYRMQ_LAST_FAILURE_MS" not in properties_of(format="connect")


def test_one_way_through_the_code_has_one_hash() -> None:
    later = TRACE.replace("for 7", "for 8").replace(":7)", ":9)").replace("0x00007f3c", "0x1").replace("or12", "or3")
    assert hash_of(later) == hash_of(TRACE)
    assert hash_of(TRACE.replace("Orders.on", "Orders.off")) != hash_of(TRACE)
    assert hash_of(TRACE.replace("io.IOException", "io.EOFException")) != hash_of(TRACE)
    assert hash_of(TRACE, "com.shop.NoStock") != hash_of(TRACE)


def test_a_letter_without_a_trace_has_no_hash() -> None:
    assert stack_hashes(pa.array(["A", None]), pa.array([None, TRACE])).is_valid().to_pylist() == [False, True]


def test_separators_are_replaced_and_what_is_empty_is_left_out() -> None:
    found = properties_of(errorMessage="a\x01b\x02c", errorClass="", group="g\x02")
    assert (found["PYRMQ_ERROR_MESSAGE"], found["KAFKA_GROUP"]) == ("a\ufffdb\ufffdc", "g\ufffd")
    assert "PYRMQ_ERROR_CLASS" not in found
    encode_properties(found)


def test_long_texts_are_cut_to_characters() -> None:
    found = properties_of(errorMessage="\N{EURO SIGN}" * 5000, errorClass="c" * 9000, stackTrace="t" * 99_999)
    assert [len(found[name]) for name in ("PYRMQ_ERROR_MESSAGE", "PYRMQ_ERROR_CLASS", "KAFKA_STACK_TRACE")] == [
        2048, 512, 4096,
    ]  # fmt: skip


def test_reasons_give_way_to_the_properties_of_the_message_the_trace_first() -> None:
    letter = {"format": "spring", "topic": "o" * 249, "partition": 2**31 - 1, "offset": 10**18 - 1,
              "errorClass": "E", "errorMessage": "m" * 100, "stackTrace": TRACE}  # fmt: skip
    everything = properties_of(**letter)
    size = len(encode_properties(everything))
    for missing, free in ((set(), size), ({"KAFKA_STACK_TRACE"}, size - 1)):
        assert set(everything) - set(properties_of(1000, 1000 + free, **letter)) == missing
    least = properties_of(1000, 1000 + ALWAYS_BYTES, **letter)
    assert {"KAFKA_LETTER", "PYRMQ_ORIGIN_TOPIC", "PYRMQ_ORIGIN_QUEUE_ID", "PYRMQ_ORIGIN_QUEUE_OFFSET"} <= set(least)
    assert len(encode_properties(least)) <= ALWAYS_BYTES
