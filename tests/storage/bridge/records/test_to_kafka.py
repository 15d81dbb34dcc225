"""What a message of RocketMQ becomes in Kafka, what time it gets there, and what a topic does not take."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from helpers.mirrored import (
    BORN_MS,
    KAFKA_RULES,
    NOW_MS,
    changed,
    produced_of,
    record,
    records,
    stored_of,
    through_store,
)
from rmq_store import MESSAGE_SCHEMA, Message, Store, UsageError
from rmq_store.bridge.record_batches.schema import RECORDS_SCHEMA
from rmq_store.bridge.records.route import Route
from rmq_store.bridge.records.to_kafka import MAX_AHEAD_MS, KafkaRules, to_kafka
from rmq_store.bridge.records.unmappable_record import letters_to_kafka, read_letters, too_large_letter

ROUTE = Route("R1", "T", 3, "K1", "T", 5)
K0_TO_R1 = Route("K0", "T", 3, "R1", "T", 3)
DAY_MS = 86_400_000

SENT = pa.schema(
    [
        ("topic", pa.string()), ("queueId", pa.int32()), ("body", pa.binary()), ("tags", pa.string()),
        ("keys", pa.string()), ("shardingKey", pa.string()), ("bornTimestamp", pa.timestamp("us", "UTC")),
        ("properties", MESSAGE_SCHEMA.field("properties").type),
    ]
)  # fmt: skip


def sent(store: Store, *rows: dict[str, Any]) -> pa.RecordBatch:
    """Messages of users, as a reader of the queue gets them."""
    usual = {"topic": "T", "queueId": 3, "body": b"body", "bornTimestamp": BORN_MS * 1000, "properties": []}
    return through_store(store, pa.RecordBatch.from_pylist([{**usual, **row} for row in rows], SENT))


def headers_of(rows: pa.RecordBatch) -> list[dict[bytes, bytes | None]]:
    return [{pair["name"]: pair["value"] for pair in headers} for headers in rows.column("headers").to_pylist()]


def test_a_message_becomes_a_record_with_its_key_and_marks(store: Store) -> None:
    rows = sent(store, {"keys": "k1 k2"}, {"keys": "k1", "shardingKey": "s"}, {})
    made = produced_of(rows, ROUTE)
    made.validate(full=True)
    assert made.schema == RECORDS_SCHEMA
    assert made.column("key").to_pylist() == [b"k1 k2", b"s", None]
    assert made.column("timestampMs").to_pylist() == [BORN_MS] * 3
    offsets = rows.column("queueOffset").to_pylist()
    assert made.column("offset").to_pylist() == offsets
    for headers, offset, key in zip(headers_of(made), offsets, (b"k1 k2", b"s", b""), strict=True):
        assert headers[b"MIRROR_FROM"] == b"R1 T 3 %d" % offset
        assert headers[b"MIRROR_PATH"] == b'[["R1","T"]]'
        assert headers[b"MIRROR_TO"] == b"T 5 %d %08x" % (BORN_MS, zlib.crc32(key + b"body"))


def test_what_only_steers_a_broker_is_left_out_and_marks_that_do_not_fit_too(store: Store) -> None:
    steering = dict.fromkeys(["WAIT", "PGROUP", "CLUSTER", "MIN_OFFSET", "__X", "PYRMQ_REPLAYS", "POP_CK"], "1")
    stale = {"MIRROR_TO": "T x", "MIRROR_FROM": "K9 T 0 0", "KAFKA_RECORD": "AQA=", "MIRROR_TIMESTAMP": "5"}
    own = {"CORRELATION_ID": "c", "a": "1"}
    (headers,) = headers_of(produced_of(sent(store, {"properties": list({**steering, **stale, **own}.items())}), ROUTE))
    assert headers.keys() == {
        b"a", b"rmq.UNIQ_KEY", b"rmq.CORRELATION_ID", b"MIRROR_FROM", b"MIRROR_PATH", b"MIRROR_TO"
    }  # fmt: skip
    assert headers[b"MIRROR_FROM"].startswith(b"R1 T 3 ")


@pytest.mark.parametrize(
    ("born_ms", "rules", "time_ms"),
    [
        (NOW_MS + MAX_AHEAD_MS, {}, None),
        (NOW_MS + MAX_AHEAD_MS + 1, {}, NOW_MS),
        (NOW_MS + 11, {"max_ahead_ms": 10}, NOW_MS),
        (-5, {}, NOW_MS),
        (0, {}, None),
        (NOW_MS - 11, {"max_behind_ms": 10}, NOW_MS),
        (NOW_MS - 10, {"max_behind_ms": 10}, None),
        (BORN_MS, {"born_timestamp": "mirror"}, NOW_MS),
    ],
)
def test_a_time_that_kafka_refuses_is_the_mirrors_and_the_true_one_is_kept(
    store: Store, born_ms: int, rules: dict[str, Any], time_ms: int | None
) -> None:
    made = produced_of(sent(store, {"bornTimestamp": born_ms * 1000}), ROUTE, replace(KAFKA_RULES, **rules))
    assert made.column("timestampMs").to_pylist() == [born_ms if time_ms is None else time_ms]
    kept = headers_of(made)[0].get(b"MIRROR_TIMESTAMP")
    assert kept == (None if time_ms is None else str(born_ms).encode())


def test_where_the_broker_sets_the_time_the_true_one_is_always_kept(store: Store) -> None:
    made = produced_of(sent(store, {}), ROUTE, replace(KAFKA_RULES, log_append_time=True))
    assert headers_of(made)[0][b"MIRROR_TIMESTAMP"] == str(BORN_MS).encode()
    assert made.column("timestampType").to_pylist() == [1]


def test_records_that_retention_takes_at_once_are_counted(store: Store) -> None:
    days = [0, 6, 8, 400]
    rows = sent(store, *({"bornTimestamp": (NOW_MS - day * DAY_MS) * 1000} for day in days))
    week = replace(KAFKA_RULES, retention_ms=7 * DAY_MS)
    assert to_kafka(rows, ROUTE, week).older_than_retention == 2
    assert to_kafka(rows, ROUTE, replace(week, retention_ms=-1)).older_than_retention == 0
    assert to_kafka(rows, ROUTE, KAFKA_RULES).older_than_retention == 0
    assert to_kafka(rows, ROUTE, replace(week, born_timestamp="mirror")).older_than_retention == 0
    without_time = stored_of(store, records(record(time_ms=-1)), K0_TO_R1)
    made = to_kafka(without_time, ROUTE, week)
    assert (made.rows.column("timestampMs").to_pylist(), made.older_than_retention) == ([-1], 0)


def test_a_compacted_topic_takes_no_record_without_a_key(store: Store) -> None:
    rows = sent(store, {"keys": "k"}, {"body": b"keyless"}, {"shardingKey": "s"})
    made = to_kafka(rows, ROUTE, replace(KAFKA_RULES, compacted=True))
    assert made.rows.column("key").to_pylist() == [b"k", b"s"]
    assert made.letters.column("value").to_pylist() == [b"keyless"]
    (headers,) = headers_of(made.letters)
    assert (headers[b"MIRROR_LETTER"], headers[b"MIRROR_REASON"][:14]) == (b"record", b"it has no key,")


def test_a_damaged_record_of_kafka_becomes_a_letter(store: Store) -> None:
    good = stored_of(store, records(record(b"v", key=b"\xff"), record(b"w", key=b"\xfe")), K0_TO_R1)
    damaged = [
        [(name, "AAAA" if name == "KAFKA_RECORD" and row == 0 else text) for name, text in properties]
        for row, properties in enumerate(good.column("properties").to_pylist())
    ]
    made = to_kafka(changed(good, properties=damaged), ROUTE, KAFKA_RULES)
    assert made.rows.column("key").to_pylist() == [b"\xfe"]
    assert headers_of(made.letters)[0][b"MIRROR_REASON"].startswith(b"KAFKA_RECORD ends at byte 2 of 3")


def test_only_an_empty_body_of_a_record_of_kafka_is_a_tombstone(store: Store) -> None:
    """Of somebody's own message the property says nothing; with a body it would destroy that."""
    own = sent(store, {"body": b"", "properties": [("KAFKA_TOMBSTONE", "1")]})
    assert produced_of(own, ROUTE).column("value").to_pylist() == [b""]
    mirrored = stored_of(store, records(record(None), record(b"v")), K0_TO_R1)
    with_both = [[*pairs, ("KAFKA_TOMBSTONE", "1")] for pairs in mirrored.column("properties").to_pylist()]
    assert produced_of(changed(mirrored, properties=with_both), ROUTE).column("value").to_pylist() == [None, b"v"]


def test_headers_of_a_record_never_bring_marks_of_their_own(store: Store) -> None:
    """Whoever writes to the store can put any headers into KAFKA_RECORD."""
    from rmq_store.bridge.records.exact_record import encode_exact

    good = stored_of(store, records(record(b"v", key=b"\xff")), K0_TO_R1)
    text = encode_exact(b"\xff", [(b"a", None), (b"MIRROR_TO", b"T 5 0 0"), (b"MIRROR_PATH", b'[["x","y"]]')])
    (pairs,) = good.column("properties").to_pylist()
    forged = changed(good, properties=[[(name, text if name == "KAFKA_RECORD" else own) for name, own in pairs]])
    (found,) = produced_of(forged, ROUTE).column("headers").to_pylist()
    assert [pair["name"] for pair in found] == [b"a", b"MIRROR_FROM", b"MIRROR_PATH", b"MIRROR_TO"]


def test_the_letter_of_a_record_that_is_too_large_holds_it_or_only_its_position(store: Store) -> None:
    made = produced_of(sent(store, {"body": b"x" * 1000, "keys": "k", "properties": [("a", "1")]}), ROUTE)
    whole = too_large_letter(made, "larger than 900 bytes", ROUTE, 2000)
    assert (whole.column("key").to_pylist(), whole.column("value").to_pylist()) == ([b"k"], [b"x" * 1000])
    before = [(pair["name"], pair["value"]) for pair in made.column("headers")[0].as_py()]
    after = [(pair["name"], pair["value"]) for pair in whole.column("headers")[0].as_py()]
    assert after == [*before, (b"MIRROR_REASON", b"larger than 900 bytes"), (b"MIRROR_LETTER", b"record")]
    position = too_large_letter(made, "larger than 900 bytes", ROUTE, 1200)
    assert (position.column("key").to_pylist(), position.column("value").to_pylist()) == ([None], [None])
    (headers,) = headers_of(position)
    assert headers.keys() == {b"MIRROR_FROM", b"MIRROR_PATH", b"MIRROR_TO", b"MIRROR_REASON", b"MIRROR_LETTER"}
    assert headers[b"MIRROR_LETTER"] == b"position"


def test_a_letter_is_not_larger_than_it_says(store: Store) -> None:
    from rmq_store.bridge.record_batches.batches import encode

    made = produced_of(sent(store, *({"body": b"x" * size, "keys": "k"} for size in range(500, 900, 7))), ROUTE)
    for row in range(made.num_rows):
        letter = letters_to_kafka(made, {row: "a reason"}, ROUTE, 1000)
        assert len(encode(letter, "none", 1000)) == 1


def test_a_message_that_is_no_letter_is_not_read_as_one(store: Store) -> None:
    with pytest.raises(UsageError, match="no dead letter of a mirror"):
        read_letters(sent(store, {}))


def test_no_rows_are_mapped_to_no_rows(store: Store) -> None:
    made = to_kafka(sent(store, {}).slice(0, 0), ROUTE, KafkaRules(NOW_MS, retention_ms=1, compacted=True))
    assert (made.rows.num_rows, made.letters.num_rows, made.dropped_loops, made.older_than_retention) == (0, 0, 0, 0)


def test_rows_that_are_part_of_a_larger_batch_are_mapped_as_they_are(store: Store) -> None:
    rows = records(*(record(key=b"\xff" * (n % 3), headers=[(b"a", b"1")] * (n % 2)) for n in range(9)))
    own = stored_of(store, rows, K0_TO_R1)
    both = pa.Table.from_batches([sent(store, {"keys": "k"}), own]).combine_chunks().to_batches()[0]
    whole = produced_of(both, ROUTE)
    assert produced_of(both.slice(2, 5), ROUTE).to_pylist() == whole.slice(2, 5).to_pylist()


def test_a_body_that_cannot_be_inflated_is_a_dead_letter_with_its_reason(store: Store) -> None:
    """A reader of Kafka would take its bytes for the message."""
    for body, flags in ((b"one", 0), (b"not zlib", 0x301), (zlib.compress(b"two"), 1)):
        store.send(Message("T", body, queue_id=3), sys_flag=flags)
    end = store.queue_range("T", 3).max_offset
    (rows,) = store.read("T", 3, end - 3, end)
    made = to_kafka(rows, ROUTE, KAFKA_RULES)
    assert made.rows.column("value").to_pylist() == [b"one", b"two"]
    reason = b"its body cannot be inflated, but its sysFlag 0x301 says that it is compressed"
    assert [headers[b"MIRROR_REASON"] for headers in headers_of(made.letters)] == [reason]
    assert made.letters.column("value").to_pylist() == [b"not zlib"]
