"""What goes to the other side and back is what it was: through the encoder and the reader of a real store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.mirrored import (
    BORN_MS,
    KAFKA_RULES,
    NOW_MS,
    RMQ_RULES,
    into_kafka,
    new_store,
    record,
    records,
    through_store,
    true_times,
    users_headers,
)
from rmq_store import Store
from rmq_store.bridge.record_batches.batches import decode, encode
from rmq_store.bridge.record_batches.schema import RECORDS_SCHEMA
from rmq_store.bridge.records.origin import MARKS
from rmq_store.bridge.records.property_names import HEADER_PREFIX, ROCKETMQ_NAMES, is_own_name, is_rocketmq_name
from rmq_store.bridge.records.route import Route
from rmq_store.bridge.records.to_kafka import to_kafka
from rmq_store.bridge.records.to_rmq import to_rmq
from rmq_store.format.properties.mirror_properties import MIRROR_PROPERTIES
from rmq_store.format.tables.schema import MESSAGE_SCHEMA

K_TO_R = Route("K1", "Topic", 3, "R", "Topic", 3)
R_TO_K = Route("R", "Topic", 3, "K1", "Topic", 3)

few = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

raw_texts = st.text(max_size=8).map(str.encode)
odd_bytes = st.sampled_from([b"", b"\x01", b"a\x02b", b"\0", b"\xff\xfe", b"\xed\xa0\x80", b" ", "ä".encode()])
some_bytes = st.one_of(raw_texts, st.binary(max_size=8), odd_bytes)
owned_names = st.sampled_from(
    [*sorted(ROCKETMQ_NAMES), "OUTBOX_ID", "rmq.TAGS", "rmq.properties", "rmq.x", "KAFKA_RECORD", "KAFKA_X"]
)
names = st.one_of(st.sampled_from([b"a", b"b", b"trace-id"]), some_bytes, owned_names.map(str.encode))
names = names.filter(lambda name: name not in {mark.encode() for mark in MARKS})
times = st.one_of(
    st.integers(0, NOW_MS), st.sampled_from([-1, -2, 0, NOW_MS + 10**9, 2**63 - 1, -(2**63), 253_402_300_800_000])
)
kafka_records = st.builds(
    record,
    st.none() | some_bytes,
    key=st.none() | some_bytes,
    headers=st.lists(st.tuples(names, st.none() | some_bytes), max_size=5),
    time_ms=times,
    time_type=st.sampled_from([0, 0, 1]),
)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, Store]]:
    root: Path = tmp_path_factory.mktemp("stores")
    with new_store(root / "one") as one, new_store(root / "two") as two:
        yield one, two


def of_kafka(rows: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return list(zip(rows.column("key").to_pylist(), rows.column("value").to_pylist(), users_headers(rows), strict=True))


@few
@given(st.lists(kafka_records, min_size=1, max_size=12))
def test_kafka_to_rocketmq_to_kafka_keeps_key_value_headers_and_time(
    stores: tuple[Store, Store], rows: list[dict[str, Any]]
) -> None:
    given_rows = records(*rows)
    mapped = to_rmq(given_rows, K_TO_R, RMQ_RULES)
    assert (mapped.dropped_loops, mapped.letters.num_rows) == (0, 0)
    back_route = into_kafka(K_TO_R)
    back = to_kafka(through_store(stores[0], mapped.rows), back_route, KAFKA_RULES)
    back.rows.validate(full=True)
    assert (back.dropped_loops, back.letters.num_rows) == (0, 0)
    assert of_kafka(back.rows) == of_kafka(given_rows)
    assert true_times(back.rows, back_route) == given_rows.column("timestampMs").to_pylist()
    assert all(-1 <= time <= NOW_MS + 3_600_000 for time in back.rows.column("timestampMs").to_pylist())


storable = st.text(min_size=1, max_size=8).filter(lambda text: "\x01" not in text and "\x02" not in text)
users_names = st.one_of(
    st.sampled_from(["a", "b", "OUTBOX_ID", "rmq.a", "rmq.properties", "rmq.TAGS", "KAFKA_X", "MIRROR_X"]), storable
).filter(lambda name: not is_rocketmq_name(name) and name not in MIRROR_PROPERTIES)
messages = st.fixed_dictionaries(
    {
        "body": st.binary(max_size=8),
        "tags": st.none() | storable,
        "keys": st.none() | storable,
        "shardingKey": st.none() | storable,
        "flag": st.sampled_from([0, 0, 1, -1, 2**31 - 1]),
        "bornTimestamp": st.sampled_from([BORN_MS, 0, NOW_MS + 10**9, 253_402_300_799_999]).map(lambda ms: ms * 1000),
        "properties": st.dictionaries(users_names, storable, max_size=5).map(lambda own: list(own.items())),
    }
)
SENT = pa.schema(
    [
        ("topic", pa.string()), ("queueId", pa.int32()), ("body", pa.binary()), ("tags", pa.string()),
        ("keys", pa.string()), ("shardingKey", pa.string()), ("flag", pa.int32()),
        ("bornTimestamp", pa.timestamp("us", "UTC")), ("properties", MESSAGE_SCHEMA.field("properties").type),
    ]
)  # fmt: skip


def of_rocketmq(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    found = []
    for row in rows.select(["body", "tags", "keys", "flag", "bornTimestamp", "properties"]).to_pylist():
        own = dict(row.pop("properties"))
        row["sharding key"] = own.get("__SHARDINGKEY")
        row["users"] = [
            pair for pair in own.items() if not is_rocketmq_name(pair[0]) and pair[0] not in MIRROR_PROPERTIES
        ]
        found.append(row)
    return found


@few
@given(st.lists(messages, min_size=1, max_size=12))
def test_rocketmq_to_kafka_to_rocketmq_keeps_body_tags_keys_flag_time_and_the_users_properties(
    stores: tuple[Store, Store], rows: list[dict[str, Any]]
) -> None:
    sent = pa.RecordBatch.from_pylist([{"topic": "Topic", "queueId": 3, **row} for row in rows], SENT)
    stored = through_store(stores[0], sent)
    mapped = to_kafka(stored, R_TO_K, KAFKA_RULES)
    assert (mapped.dropped_loops, mapped.letters.num_rows) == (0, 0)
    assert mapped.rows.column("value").null_count == 0
    assert mapped.rows.schema.equals(RECORDS_SCHEMA)
    (batch,) = encode(mapped.rows, "none", 1 << 20)
    fetched = decode(bytes(batch.data), 0, None).rows
    back = to_rmq(fetched, Route("K1", "Topic", 3, "R2", "Topic", 3), RMQ_RULES)
    assert (back.dropped_loops, back.letters.num_rows) == (0, 0)
    assert of_rocketmq(through_store(stores[1], back.rows)) == of_rocketmq(stored)


def test_three_hops_further_it_is_still_the_same(stores: tuple[Store, Store]) -> None:
    """Kafka's record through a store, another Kafka and another store; its `rmq.` header was never one of ours."""
    rows = records(
        record(None, key=b"\xff", headers=[(b"rmq.TAGS", b"t"), (b"DELAY", b"3"), (b"a", None), (b"a", b"")]),
        record(b"", key=b"plain", headers=[(b"a", b"1"), (b"b", b"2")], time_ms=-1),
    )
    first = through_store(stores[0], to_rmq(rows, K_TO_R, RMQ_RULES).rows)
    second = to_kafka(first, Route("R", "Topic", 3, "K2", "Topic", 3), KAFKA_RULES).rows
    third = through_store(stores[1], to_rmq(second, Route("K2", "Topic", 3, "R2", "Topic", 3), RMQ_RULES).rows)
    fourth = to_kafka(third, Route("R2", "Topic", 3, "K3", "Topic", 3), KAFKA_RULES).rows
    assert of_kafka(fourth) == of_kafka(rows)
    assert third.column("tags").null_count == 2
    assert true_times(fourth, Route("R2", "Topic", 3, "K3", "Topic", 3)) == [BORN_MS, -1]


def test_what_a_message_had_is_read_by_people_in_kafka_too(stores: tuple[Store, Store]) -> None:
    row = {"topic": "Topic", "queueId": 3, "body": b"b", "tags": "T", "keys": "k1 k2", "flag": 7, "bornTimestamp": 0}
    sent = pa.RecordBatch.from_pylist([{**row, "properties": [("a", "1"), ("KAFKA_X", "2"), ("z", "3")]}], SENT)
    stored = through_store(stores[0], sent)
    ((key, value, headers),) = of_kafka(to_kafka(stored, R_TO_K, KAFKA_RULES).rows)
    assert (key, value) == (b"k1 k2", b"b")
    unique_key = stored.column("msgId")[0].as_py().encode()
    assert headers == [
        (b"a", b"1"), (b"z", b"3"), (b"rmq.UNIQ_KEY", unique_key), (b"rmq.KEYS", b"k1 k2"), (b"rmq.TAGS", b"T"),
        (b"rmq.flag", b"7"), (b"rmq.properties", b'[[1,"KAFKA_X","2"]]'),
    ]  # fmt: skip
    assert all(is_own_name(name.decode()) == name.startswith(HEADER_PREFIX.encode()) for name, _ in headers)
