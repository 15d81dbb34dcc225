"""What a record of Kafka becomes in RocketMQ, what it can never set there, and what cannot be stored."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.mirrored import (
    BORN_MS,
    NOW_MS,
    RMQ_RULES,
    changed,
    new_store,
    produced_of,
    record,
    records,
    stored_of,
    through_store,
)
from rmq_store import Store
from rmq_store.bridge.records.exact_record import decode_exact
from rmq_store.bridge.records.property_names import is_rocketmq_name
from rmq_store.bridge.records.route import Route
from rmq_store.bridge.records.to_rmq import KEYS_BYTES_MAX, MESSAGES_SCHEMA, TIMESTAMP_MS_MAX, to_rmq
from rmq_store.bridge.records.unmappable_record import read_letters
from rmq_store.format.properties import property_string
from rmq_store.format.properties.mirror_properties import MIRROR_PROPERTIES, is_brought_back

ROUTE = Route("K1", "T", 3, "R1", "T", 3)
FROM_K0, FROM_R0 = Route("K0", "T", 3, "R0", "T", 3), Route("R0", "T", 3, "K1", "T", 3)

# MessageConst and what brokers, proxies and we ourselves read besides.
OWNED = [
    *(value for name, value in vars(property_string).items() if name.isupper() and isinstance(value, str)),
    "__RMQ.TRANSIENT.TOPIC_SYS_FLAG", "__LITE_TOPIC", "_SYS_MSG_PRIORITY_", "%LMQ%q", "TIMER_ROLL_LABEL", "POP_X",
    "PYRMQ_REPLAYS", "PYRMQ_DEAD_LETTER", "MIRROR_X", "KAFKA_RECORD", "KAFKA_TOMBSTONE", "rmq.TAGS", "rmq.properties",
]  # fmt: skip
SET_BY_US = {"UNIQ_KEY", "KEYS", "TAGS", "__SHARDINGKEY", "a"} | MIRROR_PROPERTIES


def mapped(*rows: dict[str, Any], **rules: Any) -> list[dict[str, Any]]:
    """The messages of records, none of which is left out; properties as a dict."""
    found = to_rmq(records(*rows), ROUTE, replace(RMQ_RULES, **rules))
    assert (found.dropped_loops, found.letters.num_rows) == (0, 0)
    found.rows.validate(full=True)
    return [{**row, "properties": dict(row["properties"])} for row in found.rows.to_pylist()]


def stored(store: Store, *rows: dict[str, Any]) -> list[dict[str, Any]]:
    """The same as a reader gets it."""
    found = stored_of(store, records(*rows), ROUTE).to_pylist()
    return [{**row, "properties": dict(row["properties"])} for row in found]


def test_what_is_plain_text_has_fields_of_its_own() -> None:
    (row,) = mapped(record(b"v", key="schlüssel".encode(), headers=[(b"z", b"1"), (b"a", "ü".encode())], offset=7))
    assert (row["topic"], row["queueId"], row["body"], row["tags"], row["flag"]) == ("T", 3, b"v", None, 0)
    assert row["keys"] == row["shardingKey"] == "schlüssel"
    assert row["bornTimestamp"].timestamp() * 1000 == BORN_MS
    assert list(row["properties"]) == ["UNIQ_KEY", "z", "a", "MIRROR_FROM", "MIRROR_PATH", "MIRROR_TO"]
    assert row["properties"]["MIRROR_FROM"] == "K1 T 3 7"


def test_a_tombstone_is_not_an_empty_body(store: Store) -> None:
    tombstone, empty = stored(store, record(None, key=b"k"), record(b"", key=b"k"))
    assert (tombstone["body"], empty["body"]) == (b"", b"")
    assert tombstone["properties"]["KAFKA_TOMBSTONE"] == "1"
    assert "KAFKA_TOMBSTONE" not in empty["properties"]


def test_no_header_sets_what_rocketmq_or_we_give_a_meaning_to(store: Store) -> None:
    rows = stored(store, *(record(key=b"k", headers=[(b"a", b"1"), (name.encode(), b"3")]) for name in OWNED))
    for name, row in zip(OWNED, rows, strict=True):
        assert row["properties"].keys() <= SET_BY_US - {"a", "TAGS"}, name
        assert (row["topic"], row["queueId"], row["flag"], row["reconsumeTimes"]) == ("T", 3, 0, 0)
        assert (row["keys"], row["properties"]["__SHARDINGKEY"]) == ("k", "k")
        assert decode_exact(row["properties"]["KAFKA_RECORD"]) == (b"k", [(b"a", b"1"), (name.encode(), b"3")])


def test_records_made_of_a_copy_do_not_get_the_id_of_its_message(store: Store) -> None:
    """Kafka Streams hands headers on. The mirror's own copy keeps OUTBOX_ID as a property; records that were made of it
    have it, with all their headers, in KAFKA_RECORD: so they still go back to Kafka as they are.
    """
    text_map = pa.map_(pa.string(), pa.string())
    given = [[("OUTBOX_ID", "X"), ("traceparent", "00-abc")]]
    order = {"topic": ["T"], "queueId": pa.array([3], pa.int32()), "body": [b"order"]}
    message = through_store(store, pa.record_batch(order | {"properties": pa.array(given, text_map)}))
    copy = produced_of(message, FROM_R0)
    (brought_back,) = to_rmq(copy, ROUTE, RMQ_RULES).rows.to_pylist()
    found = dict(brought_back["properties"])
    assert (found["OUTBOX_ID"], found["traceparent"], "KAFKA_RECORD" in found) == ("X", "00-abc", False)
    assert is_brought_back(found)
    for headers in (
        copy.column("headers")[0].as_py(),
        [pair for pair in copy.column("headers")[0].as_py() if not pair["name"].startswith((b"rmq.", b"MIRROR_"))],
    ):
        pairs = [(pair["name"], pair["value"]) for pair in headers]
        made = records(record(b"tea", headers=pairs, offset=8), record(b"milk", headers=pairs, offset=9))
        bills = [dict(row["properties"]) for row in to_rmq(made, ROUTE, RMQ_RULES).rows.to_pylist()]
        assert len({bill["UNIQ_KEY"] for bill in bills}) == 2
        for bill in bills:
            assert "OUTBOX_ID" not in bill
            assert not is_brought_back(bill)
            assert (b"OUTBOX_ID", b"X") in decode_exact(bill["KAFKA_RECORD"])[1]


def forge(store: Store, *headers: tuple[bytes, bytes | None], times: int = 1) -> list[dict[str, Any]]:
    """What becomes of records of Kafka with one of these headers each, so many `times`, and with marks that fit and say
    that they came from RocketMQ. Marks can be forged: what they bring along is held to the same rules.
    """
    (marks,) = produced_of(stored_of(store, records(record(b"v")), FROM_K0), FROM_R0).column("headers").to_pylist()
    path = {"name": b"MIRROR_PATH", "value": b'[["R0","T"]]'}
    marks = [path if pair["name"] == b"MIRROR_PATH" else pair for pair in marks]
    rows = records(*(record(b"v") for _ in headers))
    forged = changed(rows, headers=[[*[{"name": name, "value": value}] * times, *marks] for name, value in headers])
    assert to_rmq(forged, replace(ROUTE, target_cluster="R0"), RMQ_RULES).dropped_loops == len(headers)
    found = stored_of(store, forged, ROUTE).to_pylist()
    return [{**row, "properties": dict(row["properties"])} for row in found]


def test_no_header_of_a_mirror_sets_it_either_whoever_writes_it(store: Store) -> None:
    headers: list[tuple[bytes, bytes | None]] = []
    for name in OWNED:
        if is_rocketmq_name(name):
            special = json.dumps([[0, name, "3"]]).encode()
            headers += [(name.encode(), b"3"), (b"rmq.properties", special), (b"rmq." + name.encode(), b"x")]
    for header, row in zip(headers, forge(store, *headers), strict=True):
        assert row["properties"].keys() <= SET_BY_US, header
        assert (row["topic"], row["queueId"], row["reconsumeTimes"]) == ("T", 3, 0)


def test_headers_of_a_mirror_that_no_mirror_writes_go_through_exactly(store: Store) -> None:
    headers = [
        (b"rmq.TAGS", b"a\x02DELAY\x013"), (b"rmq.KEYS", b""), (b"rmq.KEYS", None), (b"rmq.TAGS", b"\xff"),
        (b"rmq.flag", b"x"), (b"rmq.flag", b"99999999999"), (b"rmq.flag", b"1" * 5000), (b"a", b"\x01"),
        (b"rmq.properties", b"["), (b"rmq.properties", b"[" * 20_000), (b"rmq.properties", b"{}x"),
        (b"rmq.properties", b'[[0,"n","\\u0001"]]'), (b"rmq.properties", b'[[0,"n","\\ud800"]]'),
        (b"rmq.properties", b'[[0,"n",1]]'), (b"rmq.properties", b'[[true,"n","v"]]'), (b"rmq.properties", b"[0]"),
        (b"rmq.properties", b'[[0,"n","v"],[1,"n","v"]]'), (b"rmq.properties", b'[[0,"MIRROR_TO","v"]]'),
        (b"rmq.properties", b'{"DELAY":"3"}'), (b"rmq.properties", b'[[0,"","v"]]'), (b"MIRROR_X", b"x"),
    ]  # fmt: skip
    for header, row in zip(headers, forge(store, *headers), strict=True):
        assert decode_exact(row["properties"]["KAFKA_RECORD"]) == (None, [header])
        assert (row["tags"], row["keys"], row["flag"]) == (None, None, 0)


def test_headers_of_a_mirror_that_are_there_twice_go_through_exactly(store: Store) -> None:
    header = (b"rmq.TAGS", b"t")
    (row,), (other,) = forge(store, header, times=2), forge(store, header)
    assert (row["tags"], decode_exact(row["properties"]["KAFKA_RECORD"])) == (None, (None, [header, header]))
    assert (other["tags"], other["properties"].get("KAFKA_RECORD")) == ("t", None)


@pytest.mark.parametrize(
    ("key", "shown"),
    [(b"k", "k"), (b"k 1", None), (b"x" * KEYS_BYTES_MAX, "x" * KEYS_BYTES_MAX), (b"x" * (KEYS_BYTES_MAX + 1), None)],
)
def test_keys_are_to_look_at_so_they_are_one_short_word(key: bytes, shown: str | None) -> None:
    (row,) = mapped(record(key=key))
    assert (row["shardingKey"], row["keys"]) == (key.decode(), shown)
    assert "KAFKA_RECORD" not in row["properties"]


@pytest.mark.parametrize("key", [b"", b"\xff", b"a\x01", b"a\x02", b"a\0", b"\xed\xa0\x80"])
def test_a_key_that_is_not_plain_is_in_no_field(key: bytes) -> None:
    (row,) = mapped(record(key=key, headers=[(b"a", b"1")]))
    assert (row["keys"], row["shardingKey"]) == (None, None)
    assert decode_exact(row["properties"]["KAFKA_RECORD"]) == (key, [(b"a", b"1")])
    assert "a" not in row["properties"]


@pytest.mark.parametrize("value", [None, b"", b"\xff", b"a\x01", b"a\x02", b"\0"])
def test_a_header_that_is_not_plain_takes_the_others_along(value: bytes | None) -> None:
    headers = [(b"a", b"1"), (b"b", value), (b"c", b"3")]
    (row, plain) = mapped(record(key=b"k", headers=headers), record(key=b"k", headers=[(b"c", b"3")]))
    assert decode_exact(row["properties"]["KAFKA_RECORD"]) == (b"k", headers)
    assert row["keys"] == row["shardingKey"] == "k"
    assert not {"a", "b", "c"} & row["properties"].keys()
    assert plain["properties"]["c"] == "3"


@pytest.mark.parametrize("count", [2, 40])
def test_a_header_that_is_there_twice_is_not_plain(count: int) -> None:
    headers = [(b"h%d" % number, b"x") for number in range(count - 2)]
    twice = [(b"a", b"1"), *headers, (b"a", b"1")]
    row, other = mapped(record(headers=twice), record(headers=[(b"a", b"1"), *headers]))
    assert decode_exact(row["properties"]["KAFKA_RECORD"]) == (None, twice)
    assert "KAFKA_RECORD" not in other["properties"]


@pytest.mark.parametrize(
    ("time_ms", "born_ms"),
    [(-1, NOW_MS), (-2, NOW_MS), (0, 0), (NOW_MS + 10**10, NOW_MS + 10**10), (TIMESTAMP_MS_MAX, TIMESTAMP_MS_MAX),
     (TIMESTAMP_MS_MAX + 1, NOW_MS), (2**63 - 1, NOW_MS), (-(2**63), NOW_MS)],
)  # fmt: skip
def test_a_time_that_is_no_born_time_is_kept_beside_it(store: Store, time_ms: int, born_ms: int) -> None:
    rows = stored_of(store, records(record(time_ms=time_ms)), ROUTE)
    assert rows.column("bornTimestamp").cast(pa.int64()).to_pylist() == [born_ms * 1000]
    own = dict(rows.column("properties")[0].as_py())
    assert own.get("MIRROR_TIMESTAMP") == (None if time_ms == born_ms else str(time_ms))


def test_born_times_can_be_those_of_the_mirror() -> None:
    (row,) = mapped(record(time_type=1), born_timestamp="mirror")
    assert row["bornTimestamp"].timestamp() * 1000 == NOW_MS
    assert row["properties"]["MIRROR_TIMESTAMP"] == str(BORN_MS)
    assert row["properties"]["KAFKA_TIMESTAMP_TYPE"] == "1"


def test_tags_come_from_a_header_if_it_is_plain() -> None:
    rows = mapped(
        record(headers=[(b"type", b"created")]), record(headers=[(b"type", b"\xff")]), record(headers=[(b"x", b"y")]),
        record(headers=[(b"type", b"one"), (b"bin", b"\0")]), tags_header="type",
    )  # fmt: skip
    assert [row["tags"] for row in rows] == ["created", None, None, "one"]
    assert rows[0]["properties"]["type"] == "created"


LONG = b"x" * 40_000


def test_what_does_not_fit_becomes_a_letter_with_the_whole_record_and_the_others_go_on(store: Store) -> None:
    rows = records(
        record(b"1"), record(b"2", headers=[(b"a", LONG)], time_type=1), record(b"3" * 1001), record(b"4"),
        record(LONG, key=LONG, headers=[(b"b", None)]), record(b"6", key=b"\xff" * 24_700),
    )  # fmt: skip
    found = to_rmq(rows, ROUTE, replace(RMQ_RULES, max_body_bytes=50_000, max_frame_bytes=2000))
    assert found.rows.column("body").to_pylist() == [b"1", b"3" * 1001, b"4"]
    assert found.letters.schema == MESSAGES_SCHEMA
    letters = through_store(store, found.letters)
    assert set(letters.column("topic").to_pylist()) == {"%DLQ%mirror_m"}
    first, second, third = read_letters(letters)
    assert (first.source, second.source, third.source) == ("K1 T 3 1", "K1 T 3 4", "K1 T 3 5")
    assert first.record is not None
    assert first.record.to_pylist() == rows.slice(1, 1).to_pylist()
    assert first.reason.startswith("key and headers take 40")
    assert second.record is None  # a body of at most 50,000 bytes does not hold it
    assert third.record is not None


@pytest.mark.parametrize(
    ("rules", "value", "reason"),
    [
        ({"max_body_bytes": 99}, b"x" * 100, "the value has 100 bytes, more than maxMessageSize=99"),
        ({"max_frame_bytes": 400}, b"x" * 300, "more than a segment takes, 400"),
    ],
)
def test_a_value_that_is_too_large_leaves_a_letter_with_the_position(rules: Any, value: bytes, reason: str) -> None:
    found = to_rmq(records(record(value)), ROUTE, replace(RMQ_RULES, **rules))
    (letter,) = read_letters(found.letters)
    assert found.rows.num_rows == 0
    assert reason in letter.reason
    assert (letter.record is None) == ("max_body_bytes" in rules)


def test_at_each_limit_the_real_store_takes_what_is_no_letter(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Row by row around the limits: what is mapped can be appended, by a store with all that takes room."""
    path = tmp_path_factory.mktemp("limits") / "store"
    with new_store(path, mapped_file_size_commit_log=40_000, enabled_append_prop_crc=True) as store:
        rules = replace(RMQ_RULES, max_body_bytes=store.config.max_message_size, max_frame_bytes=40_000)
        for size in (32_400, 32_500, 32_550, 32_600):
            for row in (record(b"", headers=[(b"a", b"x" * size)]), record(b"x" * (size + 7_200))):
                found = to_rmq(records(row), ROUTE, rules)
                through_store(store, found.rows)
                assert found.rows.num_rows + found.letters.num_rows == 1
        kept = [
            to_rmq(records(record(headers=[(b"h%04d" % n, b"x" * 20) for n in range(count)])), ROUTE, rules).rows
            for count in range(1196, 1212)
        ]
        assert [rows.num_rows for rows in kept] == sorted((rows.num_rows for rows in kept), reverse=True)
        assert {rows.num_rows for rows in kept} == {0, 1}
        for rows in kept:
            through_store(store, rows)
        assert to_rmq(records(record(headers=[(b"a", b"x" * 32_400)])), ROUTE, rules).rows.num_rows == 1
        assert to_rmq(records(record(b"x" * 39_400)), ROUTE, rules).rows.num_rows == 1


owned = st.sampled_from(OWNED).map(str.encode)
texts = st.one_of(st.binary(max_size=6), owned, st.text(max_size=3).map(str.encode))
odd_records = st.builds(
    record, st.none() | texts, key=st.none() | texts, headers=st.lists(st.tuples(texts, st.none() | texts), max_size=6),
    time_ms=st.integers(-(2**63), 2**63 - 1), time_type=st.sampled_from([0, 1]),
)  # fmt: skip


@settings(max_examples=40)
@given(st.lists(odd_records, max_size=8))
def test_no_record_whatever_sets_a_property_of_rocketmqs(rows: list[dict[str, Any]]) -> None:
    found = to_rmq(records(*rows), ROUTE, RMQ_RULES)
    assert found.rows.num_rows == len(rows)
    for own in found.rows.column("properties").to_pylist():
        names = [name for name, _ in own]
        assert len(set(names)) == len(names)
        assert all(name == "UNIQ_KEY" or not is_rocketmq_name(name) for name in names)


def test_no_rows_are_mapped_to_no_rows() -> None:
    found = to_rmq(records(), ROUTE, RMQ_RULES)
    assert (found.rows.num_rows, found.letters.num_rows, found.dropped_loops) == (0, 0, 0)


def test_rows_that_are_part_of_a_larger_batch_are_mapped_as_they_are() -> None:
    rows = records(*(record(b"%d" % n, key=b"k%d" % n, headers=[(b"a", b"%d" % n)] * (n % 3)) for n in range(9)))
    whole = to_rmq(rows, ROUTE, RMQ_RULES).rows
    assert to_rmq(rows.slice(2, 5), ROUTE, RMQ_RULES).rows.to_pylist() == whole.slice(2, 5).to_pylist()
