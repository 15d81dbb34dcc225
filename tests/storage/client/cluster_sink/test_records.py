"""Which record counts, and what is read before a send."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmq_store.client.cluster_sink.record_directory import RecordDirectory
from rmq_store.client.cluster_sink.records import LEFT_OUT, Plan, Record, WritePart, earliest, plan
from rmq_store.errors import UsageError
from rmq_store.protocol.messages import MessageQueue

PART = WritePart("query", 7, 3)
A, B, C = (MessageQueue("Orders", broker, 0) for broker in ("broker-a", "b:c", "new"))
BILLS = MessageQueue("Bills", "broker-a", 1)


def test_a_record_is_read_as_it_was_written() -> None:
    record = Record(PART, {A: 5, B: 0, BILLS: 1 << 40})
    assert Record.from_json(record.to_json()) == record


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"\xff", b'{"version":2}', b'{"version":1,"write":"q"}'])
def test_foreign_texts_are_no_records(text: bytes) -> None:
    assert Record.from_json(text) is None


def test_the_earliest_offset_of_each_queue_counts_and_other_parts_do_not() -> None:
    records = [
        Record(PART, {A: 9, B: 4}),
        Record(PART, {A: 5}),
        Record(PART, {A: 7, BILLS: 1}),
        Record(WritePart("query", 7, 4), {A: 1}),
        Record(WritePart("query", 6, 3), {A: 1}),
    ]
    assert earliest(records, PART) == {A: 5, B: 4, BILLS: 1}


REACHABLE = {A: (2, 20), B: (0, 30)}


def test_a_first_try_records_and_reads_nothing() -> None:
    assert plan({}, "Orders", REACHABLE) == Plan({}, {A: 20, B: 30})


def test_a_topic_that_no_record_names_got_no_rows() -> None:
    assert plan({BILLS: 3}, "Orders", REACHABLE) == Plan({}, {A: 20, B: 30})


def test_a_repetition_reads_from_the_record_and_an_added_queue_from_its_start() -> None:
    known = {A: 15, B: 25, BILLS: 3}
    assert plan(known, "Orders", REACHABLE | {C: (1, 4)}) == Plan({A: 15, B: 25, C: 1}, {C: 1})


def test_a_recorded_queue_is_read_where_it_cannot_be_reached_any_more() -> None:
    assert plan({A: 15, C: 8}, "Orders", {A: (0, 20)}) == Plan({A: 15, C: 8}, {})


def test_records_in_a_directory(tmp_path: Path) -> None:
    records = RecordDirectory(str(tmp_path / "shared"))
    assert records.find(PART) == {}
    records.add(Record(PART, {A: 9}))
    records.add(Record(PART, {A: 5, B: 1}))
    records.add(Record(WritePart("query", 7, 33), {A: 1}))
    records.add(Record(WritePart("query", 6, 3), {A: 1}))
    assert records.find(PART) == {A: 5, B: 1}
    assert records.find(WritePart("query", 6, 3)) == {A: 1}
    records.add(Record(WritePart("query", 107, 3), {A: 1}))
    assert records.find(WritePart("query", 6, 3)) == {}
    assert records.find(PART) == {A: 5, B: 1}
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="markerPath"):
        RecordDirectory(str(tmp_path / "file")).add(Record(PART, {}))


def test_a_record_names_the_queues_that_its_task_left_out() -> None:
    record = Record(PART, {A: 5, B: LEFT_OUT})
    text = record.to_json()
    assert json.loads(text)["offsets"] == {"Orders": {"broker-a:0": 5}}, "an earlier version reads b from its start"
    assert json.loads(text)["left"] == {"Orders": ["b:c:0"]} and Record.from_json(text) == record


def test_a_queue_that_was_left_out_is_recorded_and_not_read() -> None:
    known = {A: 15, B: LEFT_OUT}
    assert plan(known, "Orders", REACHABLE) == Plan({A: 15}, {B: 30})
    assert plan(known, "Orders", {A: (2, 20)}) == Plan({A: 15}, {})


def test_a_queue_that_one_attempt_left_out_is_read_from_the_record_of_another_one() -> None:
    records = [Record(PART, {A: 15, B: LEFT_OUT}), Record(PART, {B: 22})]
    for order in (records, records[::-1]):
        assert earliest(order, PART) == {A: 15, B: 22}
    assert plan(earliest(records, PART), "Orders", REACHABLE) == Plan({A: 15, B: 22}, {})
