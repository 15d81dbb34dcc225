"""Kafka's dead letters as rows of a group's dead-letter topic, in a real store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import Store, UsageError
from rmq_store.bridge.dead_letters.added_properties import properties_bytes
from rmq_store.bridge.dead_letters.letter_rows import LetterGroups, letter_rows
from rmq_store.bridge.record_batches.schema import RECORDS_SCHEMA
from rmq_store.bridge.records.route import Route
from rmq_store.bridge.records.to_rmq import RmqRules
from rmq_store.broker.monitoring.dead_letter_rows import DeadLetterRows, Wanted

ROUTE = Route("kafka-1", "orders.DLT", 2, "rocketmq-1", "", 0, "some-id")
TRACE = b"java.lang.IllegalStateException: no stock\n\tat com.shop.Orders.on(Orders.java:7)\n"
SPRING = [
    (b"kafka_dlt-exception-fqcn", b"java.lang.IllegalStateException"),
    (b"kafka_dlt-exception-message", b"no stock"),
    (b"kafka_dlt-exception-stacktrace", TRACE),
    (b"kafka_dlt-original-topic", b"orders"),
    (b"kafka_dlt-original-partition", b"\x00\x00\x00\x05"),
    (b"kafka_dlt-original-offset", b"\x00\x00\x00\x00\x00\x00\x12\x67"),
    (b"kafka_dlt-original-consumer-group", b"shop.billing"),
    (b"retry_topic-attempts", b"\x00\x00\x00\x04"),
]


def record(offset: int, headers: Any = (), **fields: Any) -> dict[str, Any]:
    named = [{"name": name, "value": value} for name, value in headers]
    return {"offset": offset, "timestampMs": 1_700_000_000_000, "timestampType": 0, "key": b"ORD-1",
            "value": b"two teas", "headers": named, **fields}  # fmt: skip


def imported(scratch: Path, *records: dict[str, Any], groups: Any = "billing", **rules: Any) -> tuple[Store, Any]:
    rows = pa.RecordBatch.from_pylist(list(records), RECORDS_SCHEMA)
    mapped = letter_rows(rows, ROUTE, RmqRules("letters", 1_700_000_000_001, **rules), LetterGroups.parse([groups]))
    store = Store.open(scratch / "store", create=True)
    store.append_unit(mapped.batches, purpose="mirror", key="k", value=1, expect=None, keep_unique_key=True)
    return store, mapped


def rows_of(store: Store, group: str, wanted: Wanted | None = None) -> list[dict[str, Any]]:
    return [row for batch in DeadLetterRows(store, group, wanted).batches() for row in batch.to_pylist()]


def test_triage_shows_origin_attempts_and_reason(scratch: Path) -> None:
    store, mapped = imported(scratch, record(7, [(b"trace-id", b"4"), *SPRING]))
    with store:
        [row] = rows_of(store, "billing")
        assert (row["originTopic"], row["originQueueId"], row["originQueueOffset"]) == ("orders", 5, 0x1267)
        assert (row["errorClass"], row["errorMessage"]) == ("java.lang.IllegalStateException", "no stock")
        assert (row["reconsumeTimes"], row["body"], row["keys"]) == (3, b"two teas", "ORD-1")
        assert len(row["stackHash"]) == 16
        assert row["lastFailureTime"].timestamp() == 1_700_000_000
        properties = dict(row["properties"])
        assert (properties["trace-id"], properties["KAFKA_GROUP"]) == ("4", "shop.billing")
        assert properties["KAFKA_STACK_TRACE"] == TRACE.decode()
        assert not [name for name in properties if name.startswith("kafka_dlt")]
        assert [len(rows_of(store, "billing", Wanted(reason=kind))) for kind in ("IllegalStateException", "Other")] == [
            1, 0,
        ]  # fmt: skip
    assert (mapped.counts, mapped.unknown_count, mapped.refused_count) == ({"billing": 1}, 0, 0)


def test_redrive_of_the_store_leaves_them_alone(scratch: Path) -> None:
    store, _ = imported(scratch, record(7, SPRING), record(8))
    with store:
        places = pa.record_batch({"queueId": pa.array([0, 0], pa.int32()), "queueOffset": [0, 1]})
        result = store.dead_letters.redrive("billing", places, to_topic=None)
        assert result.column("outcome").to_pylist() == ["REFUSED", "REFUSED"]


def test_a_letter_whose_writer_kept_no_reason_is_imported_too(scratch: Path) -> None:
    store, mapped = imported(scratch, record(7), record(8, SPRING), record(9, key=None, value=None))
    with store:
        assert [(row["originTopic"], row["body"]) for row in rows_of(store, "billing")] == [
            (None, b"two teas"), ("orders", b"two teas"), (None, b""),
        ]  # fmt: skip
    assert mapped.unknown_count == 2


def test_only_kafka_groups_that_the_user_named_choose_a_topic_of_ours(scratch: Path) -> None:
    forged = [(b"kafka_dlt-original-consumer-group", b"somebody-else")]
    rows = pa.RecordBatch.from_pylist([record(1, SPRING), record(2, forged), record(3)], RECORDS_SCHEMA)
    groups = LetterGroups.parse(["others", "billing=shop.billing"])
    mapped = letter_rows(rows, ROUTE, RmqRules("letters", 1), groups)
    assert mapped.counts == {"billing": 1, "others": 2}
    topics = [batch.column("topic").unique().to_pylist() for batch in mapped.batches]
    assert topics == [["%DLQ%billing"], ["%DLQ%others"]]


@pytest.mark.parametrize(
    "texts", [[], ["a", "b"], ["a=x"], ["a", "b=x", "c=x"], ["a", "b="], ["a.b"], ["a", "b.c=x"], [""]]
)
def test_groups_are_named_without_a_doubt(texts: list[str]) -> None:
    with pytest.raises(UsageError):
        LetterGroups.parse(texts)


def test_a_letter_that_no_message_can_hold_keeps_its_whole_record_among_those_of_the_mirror(scratch: Path) -> None:
    store, mapped = imported(
        scratch, record(5, SPRING), record(6, SPRING, value=b"x" * 5000), record(7, SPRING), max_body_bytes=4096
    )
    with store:
        assert len(rows_of(store, "billing")) == 2
        [refused] = rows_of(store, "mirror_letters")
        assert dict(refused["properties"])["MIRROR_LETTER"] in ("record", "position")
    assert (mapped.counts, mapped.refused_count) == ({"billing": 2}, 1)


def test_reasons_never_cost_a_letter_its_own_headers(scratch: Path) -> None:
    """The message's own properties leave hardly any room."""
    own = [(b"large", b"v" * 31_000)]
    store, mapped = imported(scratch, record(1, [*own, *SPRING]))
    with store:
        [row] = rows_of(store, "billing")
    properties = dict(row["properties"])
    assert len(properties["large"]) == 31_000
    assert row["originTopic"] == "orders"
    assert "KAFKA_STACK_TRACE" in properties and mapped.refused_count == 0
    sizes = properties_bytes(mapped.batches[0])
    assert sizes.tolist() == [len("".join(name + value for name, value in row["properties"])) + 2 * len(properties)]


def test_a_letter_without_room_for_its_origin_holds_up_no_other(scratch: Path) -> None:
    full = [(b"large", b"v" * 32_200), (b"kafka_dlt-original-topic", b"o" * 249)]
    store, mapped = imported(scratch, record(1, SPRING), record(2, full), record(3, SPRING))
    with store:
        assert [row["originQueueOffset"] for row in rows_of(store, "billing")] == [0x1267] * 2
        assert len(rows_of(store, "mirror_letters")) == mapped.refused_count == 1


def test_a_letter_imported_again_has_the_same_id(scratch: Path) -> None:
    rows = pa.RecordBatch.from_pylist([record(7, SPRING)], RECORDS_SCHEMA)
    ids = [
        dict(letter_rows(rows, ROUTE, RmqRules("letters", now), LetterGroups("g")).batches[0]["properties"][0].as_py())[
            "UNIQ_KEY"
        ]
        for now in (1, 2)
    ]
    assert ids[0] == ids[1]
