"""Messages that are not to be delivered yet: HookUtils#handleScheduleMessage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmq_store import Message, StagingArea, Store, StoreConfig, UsageError
from rmq_store.broker.metadata.topics import TopicConfig
from rmq_store.broker.rules.delay import DelayRules, destination_of
from rmq_store.broker.rules.delay_batch import delay_rows
from rmq_store.broker.write.encoder import INPUT_SCHEMA
from rmq_store.format.batches.frame_encoder import EncodeOptions, encode_batch
from rmq_store.format.frames.stored_message import StoredMessage, decode_frame
from rmq_store.format.text.host import Host
from rmq_store.format.text.names import PYRMQ_TIMER_TOPIC, SCHEDULE_TOPIC
from rmq_store.verify import verify_store

NOW = 1_700_000_000_000
RULES = DelayRules((1000, 5000, 10_000))
HOUR, DAY = 3_600_000, 86_400_000


@pytest.fixture
def store(scratch: Path, small: StoreConfig) -> Iterator[Store]:
    with Store.open(scratch / "store", create=True, config=small, clock=lambda: NOW) as opened:
        opened.create_topic("T", queue_count=3)
        yield opened


def records(store: Store, topic: str, queue_id: int) -> list[tuple[StoredMessage, int]]:
    """The records of any queue, with the tags code of their entries."""
    last = store._log.queue_max(topic, queue_id, store.log_range()[1])
    found = []
    for entry in store._log.views.queue(topic, queue_id).entries(0, last) if last else ():
        offset, size = int(entry["commit_log_offset"]), int(entry["frame_size"])
        base = store._log.segments.base_of(offset)
        view = memoryview(store._log.segments.open(base).map)
        found.append((decode_frame(view, offset - base, offset - base + size), int(entry["tags_code"])))
    return found


@pytest.mark.parametrize(
    ("given_properties", "expected"),
    [
        ({}, ("T", 2, {}, 0, None)),
        ({"DELAY": "0"}, ("T", 2, {"DELAY": "0"}, 0, None)),
        ({"DELAY": "-1"}, ("T", 2, {"DELAY": "-1"}, 0, None)),  # as a dead letter has it
        ({"DELAY": "3"}, (SCHEDULE_TOPIC, 2, {"DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "2"}, 10_000, None)),
        ({"DELAY": "4"}, (SCHEDULE_TOPIC, 2, {"DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "2"}, 10_000, None)),
        (  # Java's parseInt
            {"DELAY": "+1"}, (SCHEDULE_TOPIC, 0, {"DELAY": "+1", "REAL_TOPIC": "T", "REAL_QID": "2"}, 1000, None),
        ),
        (  # a level takes the place of the timer, and of what an earlier hop left
            {"TIMER_DELAY_SEC": "9", "DELAY": "1", "TIMER_DELIVER_MS": "x", "TIMER_DELAY_MS": "1", "REAL_TOPIC": "Old"},
            (SCHEDULE_TOPIC, 0, {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "2"}, 1000, None),
        ),
        (
            {"TIMER_DELAY_SEC": "60"},
            (
                PYRMQ_TIMER_TOPIC, 0,
                {"TIMER_DELAY_SEC": "60", "REAL_TOPIC": "T", "REAL_QID": "2", "TIMER_OUT_MS": str(NOW + 60_000)},
                0, NOW + 60_000,
            ),
        ),
        (
            {"TIMER_DELIVER_MS": str(NOW + HOUR + 1), "DELAY": "0"},
            (
                PYRMQ_TIMER_TOPIC, 2,
                {"TIMER_DELIVER_MS": str(NOW + HOUR + 1), "DELAY": "0", "REAL_TOPIC": "T", "REAL_QID": "2",
                 "TIMER_OUT_MS": str(NOW + HOUR + 1)},
                0, NOW + HOUR + 1,
            ),
        ),
        ({"TIMER_DELIVER_MS": str(NOW)}, ("T", 2, {"TIMER_DELIVER_MS": str(NOW)}, 0, None)),
    ],
)  # fmt: skip
def test_where_a_message_waits_and_what_it_says(given_properties: dict[str, str], expected: tuple[Any, ...]) -> None:
    parked = destination_of(given_properties, "T", 2, NOW, RULES)
    assert (parked.topic, parked.queue_id, parked.properties, parked.delay_ms, parked.tags_code) == expected


@pytest.mark.parametrize("level", ["", "x", "1.5", "2147483648", "99999999999", "٣", " 1", "1_0"])
def test_a_level_that_is_no_number_is_refused(level: str) -> None:
    """Integer.parseInt; int() takes more."""
    with pytest.raises(UsageError, match="no delay level"):
        destination_of({"DELAY": level}, "T", 0, NOW, RULES)


# -- many at once: as each alone --------------------------------------------------------------------------------------

levels = st.sampled_from(["0", "-1", "1", "3", "4", "+2", "x", "2147483648"])
times = st.sampled_from([str(NOW + ms) for ms in (-1, 0, 1, 60_000, 60_001, HOUR + 1, DAY + 1, 3 * DAY, 3 * DAY + 1)])
durations = st.sampled_from(
    ["-1", "0", "1", "60", "86401", "259200", "259201", "x", "9" * 18, "-" + "9" * 18, "9" * 19]
)
maps = st.fixed_dictionaries(
    {},
    optional={
        "DELAY": levels, "TIMER_DELAY_SEC": durations, "TIMER_DELAY_MS": durations, "TIMER_DELIVER_MS": times,
        "TIMER_OUT_MS": st.just("7"), "TIMER_DEL_UNIQKEY": st.just("k"), "REAL_TOPIC": st.just("Old"),
        "own": st.just("v"), "TAGS": st.just("m"),
    },
)  # fmt: skip
rows = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["T", "U", "%RETRY%g"]),
        "tags": st.none() | st.just("x"),
        "properties": st.none() | maps,
        "delayLevel": st.none() | st.sampled_from([0, 0, 0, 1, 3, 99, -1]),
        "deliverTimestamp": st.none() | st.sampled_from([NOW - 1, NOW, NOW + 1, NOW + 3 * DAY, NOW + 3 * DAY + 1]),
    }
)
optional_columns = st.sets(st.sampled_from(["tags", "properties", "delayLevel", "deliverTimestamp"]))
HOST = Host.parse("127.0.0.1:10911")
OPTIONS = EncodeOptions(store_host=HOST, born_host=HOST, now_ms=NOW, crc_property=False)


def alone(row: dict[str, Any], queue_id: int) -> tuple[str, int, dict[str, str], int, int | None]:
    """One row by the rules for one message; a refused one raises."""
    if (row["delayLevel"] or 0) < 0:
        raise UsageError("negative")
    message = Message(
        row["topic"], b"", tags=row["tags"], properties=row["properties"] or {}, delay_level=row["delayLevel"] or 0,
        deliver_timestamp_ms=row["deliverTimestamp"],
    )  # fmt: skip
    found = destination_of(message.stored_properties(), row["topic"], queue_id, NOW, RULES)
    return found.topic, found.queue_id, found.properties, found.delay_ms, found.tags_code


@given(st.lists(rows, min_size=1, max_size=5), optional_columns, st.integers(0, 2))
def test_rows_wait_where_each_would_alone(batch_rows: list[dict[str, Any]], given_columns: set[str], skip: int) -> None:
    names = ["topic", "body", *sorted(given_columns)]
    batch_rows = [{**dict.fromkeys(rows_of_none), **row} for row in batch_rows]
    for row in batch_rows:
        row.update({name: None for name in rows_of_none if name not in given_columns})
    arrow = [
        {
            **row,
            "body": b"",
            "properties": None if row["properties"] is None else list(row["properties"].items()),
            "deliverTimestamp": None if row["deliverTimestamp"] is None else row["deliverTimestamp"] * 1000 + 999,
        }
        for row in batch_rows
    ]
    schema = pa.schema([INPUT_SCHEMA.field(name) for name in names])
    batch = pa.RecordBatch.from_pylist([{name: row[name] for name in names} for row in arrow], schema)[skip:]
    batch_rows = batch_rows[skip:]
    queue_ids = np.arange(len(batch_rows), dtype=np.int32)
    try:
        expected = [alone(row, number) for number, row in enumerate(batch_rows)]
    except UsageError:
        with pytest.raises(UsageError, match=r"^row \d+, column '(properties|delayLevel|deliverTimestamp)': "):
            delay_rows(batch, queue_ids, NOW, RULES, frozenset())
        return
    parked = delay_rows(batch, queue_ids, NOW, RULES, frozenset())
    if parked is None:
        encoded = encode_batch(batch, queue_ids=queue_ids, options=OPTIONS)
    else:
        encoded = parked.complete(encode_batch(parked.batch, queue_ids=parked.queue_ids, options=OPTIONS))
    assert [row[0] for row in expected] == encoded.column("topic").to_pylist()
    for number, (topic, queue_id, properties, delay_ms, tags_code) in enumerate(expected):
        frame = encoded.column("frame")[number].as_py()
        message = decode_frame(memoryview(frame), 0, len(frame))
        assert (message.topic, message.queue_id, message.properties) == (topic, queue_id, properties)
        assert encoded.column("queue_id")[number].as_py() == queue_id
        assert encoded.column("delay_ms")[number].as_py() == delay_ms
        assert tags_code is None or encoded.column("tags_code")[number].as_py() == tags_code


rows_of_none = ("tags", "properties", "delayLevel", "deliverTimestamp")


@given(
    st.lists(st.lists(st.sampled_from(["a", "DE", "LAY", "DELA", "TIMER_DELAY_MS", "xx"]), max_size=3), max_size=3),
    st.integers(1, 40),
    st.lists(st.sampled_from(["a", "DELAY", "TIMER_DELIVER_MS", "AYxDEL"]), max_size=3),
    st.integers(0, 4),
)
@example([["LAYDE"]], 1, ["LAY", "DELAY", "DE"], 0)
def test_a_row_that_waits_is_found_behind_any_number_of_others(
    first: list[list[str]], times: int, last: list[str], skip: int
) -> None:
    """Where all rows have the same names only the first ones are looked at."""
    named = [[(name, "3600000") for name in dict.fromkeys(row)] for row in [*first * times, last]]
    rows = [{"topic": "Orders", "body": b"x", "properties": entries} for entries in named]
    batch = pa.RecordBatch.from_pylist(rows, INPUT_SCHEMA)[skip:]
    wishes = [bool({"DELAY", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"} & {name for name, _ in row}) for row in named]
    found = delay_rows(batch, np.zeros(batch.num_rows, np.int32), NOW, RULES, frozenset())
    assert found is not None if any(wishes[skip:]) else found is None or any(wishes)


def test_properties_that_are_dropped_ask_for_nothing() -> None:
    properties = pa.array([[("DELAY", "3")], [("TIMER_DELAY_SEC", "9")]], pa.map_(pa.string(), pa.string()))
    batch = pa.RecordBatch.from_arrays([pa.array(["T", "T"]), properties], ["topic", "properties"])
    queue_ids = np.zeros(2, np.int32)
    assert delay_rows(batch, queue_ids, NOW, RULES, frozenset({"DELAY", "TIMER_DELAY_SEC"})) is None
    parked = delay_rows(batch, queue_ids, NOW, RULES, frozenset({"DELAY"}))
    assert parked is not None
    assert parked.batch.column("topic").to_pylist() == ["T", PYRMQ_TIMER_TOPIC]


def test_a_task_drops_the_wishes_of_messages_that_rows_were_copied_from(store: Store) -> None:
    """A new message does not wait because the one did that its row was read from."""
    dropped = frozenset({"DELAY", "TIMER_DELAY_SEC"})
    with StagingArea.for_task(store.path, "write", 0, 0, drop_properties=dropped, clock=lambda: NOW) as area:
        area.write(one_row(properties={"DELAY": "3", "TIMER_DELAY_SEC": "9"}))
        staged = area.finish()
    assert staged is not None
    store.commit_staged([staged])
    assert sum(last for _, last in store.queue_ranges("T").values()) == 1


# -- stored -----------------------------------------------------------------------------------------------------------


def send_one(store: Store, **fields: Any) -> None:
    properties = fields.pop("properties", {})
    store.send(Message("T", b"b", "TagA", "K1 K2", {"own": "v", **properties}, queue_id=1, **fields))


def append_one_row(store: Store, **fields: Any) -> None:
    store.append(one_row(**fields))


def stage_one_row(store: Store, **fields: Any) -> None:
    with StagingArea.for_task(store.path, "write", 0, 0, use_queue_id=True, clock=lambda: NOW) as area:
        area.write(one_row(**fields))
        staged = area.finish()
    assert staged is not None
    assert staged.topics == (("T", 2),)
    store.commit_staged([staged])


def one_row(**fields: Any) -> pa.RecordBatch:
    due_ms = fields.get("deliver_timestamp_ms")
    row = {
        "topic": "T", "body": b"b", "tags": "TagA", "keys": "K1 K2", "queueId": 1,
        "properties": list({"own": "v", **fields.get("properties", {})}.items()),
        "delayLevel": fields.get("delay_level"), "deliverTimestamp": None if due_ms is None else due_ms * 1000,
    }  # fmt: skip
    return pa.RecordBatch.from_pylist([row], pa.schema([INPUT_SCHEMA.field(name) for name in row]))


WAYS = [send_one, append_one_row, stage_one_row]


@pytest.mark.statement("C04", "C05", "C10")
@pytest.mark.parametrize("store_it", WAYS)
@pytest.mark.parametrize("fields", [{"delay_level": 3}, {"properties": {"DELAY": "3"}}], ids=["level", "property"])
def test_a_message_with_a_level_waits_in_the_schedule_topic(
    store: Store, store_it: Any, fields: dict[str, Any]
) -> None:
    store_it(store, **fields)
    ((message, tags_code),) = records(store, SCHEDULE_TOPIC, 2)
    assert (message.topic, message.queue_id, message.queue_offset, message.body) == (SCHEDULE_TOPIC, 2, 0, b"b")
    del message.properties["UNIQ_KEY"]
    assert message.properties == {
        "TAGS": "TagA", "KEYS": "K1 K2", "own": "v", "DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "1",
    }  # fmt: skip
    assert tags_code == message.store_timestamp_ms + 10_000
    assert set(store.queue_ranges("T").values()) == {(0, 0)}
    store.close()
    # The index sees the topic where it waits (IndexService#buildIndex), which is what the check looks for.
    report = verify_store(store.path)
    assert (report.status, report.unindexed_keys) == ("clean", 0)


@pytest.mark.parametrize("store_it", WAYS)
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"deliver_timestamp_ms": NOW + DAY}, {"TIMER_DELIVER_MS": str(NOW + DAY)}),
        ({"properties": {"TIMER_DELAY_SEC": "86400"}}, {"TIMER_DELAY_SEC": "86400"}),
    ],
    ids=["field", "property"],
)
def test_a_message_with_a_time_waits_in_the_timer_topic(
    store: Store, store_it: Any, fields: dict[str, Any], said: dict[str, str]
) -> None:
    store_it(store, **fields)
    ((message, tags_code),) = records(store, PYRMQ_TIMER_TOPIC, 2)
    del message.properties["UNIQ_KEY"]
    assert message.properties == {
        "TAGS": "TagA", "KEYS": "K1 K2", "own": "v", "REAL_TOPIC": "T", "REAL_QID": "1",
        "TIMER_OUT_MS": str(NOW + DAY), **said,
    }  # fmt: skip
    assert tags_code == NOW + DAY
    store.close()
    assert verify_store(store.path).status == "clean"


@pytest.mark.parametrize("store_it", WAYS)
def test_a_level_holds_before_a_time_and_a_time_that_has_passed_is_none(store: Store, store_it: Any) -> None:
    store_it(store, delay_level=99, deliver_timestamp_ms=NOW + DAY)
    ((message, tags_code),) = records(store, SCHEDULE_TOPIC, 17)
    assert message.properties["DELAY"] == "18"
    assert "TIMER_DELIVER_MS" not in message.properties
    assert tags_code == message.store_timestamp_ms + 7_200_000
    store_it(store, deliver_timestamp_ms=NOW)
    ((message, _),) = records(store, "T", 1)
    assert message.properties["TIMER_DELIVER_MS"] == str(NOW)
    assert "REAL_TOPIC" not in message.properties


@pytest.mark.parametrize("store_it", WAYS)
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"delay_level": -1}, r"delay_?[lL]evel.*-1"),
        ({"properties": {"DELAY": "soon"}}, "DELAY='soon'"),
        ({"properties": {"TIMER_DELAY_MS": "soon"}}, "TIMER_DELAY_MS='soon' is no number"),
        ({"deliver_timestamp_ms": NOW + 3 * DAY + 1}, "more than 259200 s"),
        ({"properties": {"TIMER_DELAY_SEC": "9", "TIMER_DEL_UNIQKEY": "T+k"}}, "cannot be cancelled"),
    ],
)
def test_what_cannot_be_waited_for_is_refused_and_nothing_stored(
    store: Store, store_it: Any, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        store_it(store, **fields)
    assert store.log_range() == (0, 0)


def test_fields_of_a_wrong_type_are_refused(store: Store) -> None:
    for fields in ({"delay_level": "3"}, {"deliver_timestamp_ms": 1.5}):
        with pytest.raises(UsageError, match=r"is (str|float), not int"):
            send_one(store, **fields)


def test_how_far_ahead_a_time_may_be_is_a_setting(scratch: Path, small: StoreConfig) -> None:
    config = replace(small, timer_max_delay_sec=60)
    with Store.open(scratch / "store", create=True, config=config, clock=lambda: NOW) as store:
        store.create_topic("T", queue_count=2)
        for store_it in WAYS:
            store_it(store, deliver_timestamp_ms=NOW + 60_000)
            with pytest.raises(UsageError, match="more than 60 s"):
                store_it(store, deliver_timestamp_ms=NOW + 60_001)
    with pytest.raises(UsageError, match="timerMaxDelaySec"):
        replace(small, timer_max_delay_sec=-1)


def test_the_answer_names_the_users_topic_and_queue_and_the_place_in_the_schedule_queue(
    store: Store, golden: Path
) -> None:
    """As a 5.5.0 broker answered: `sends.jsonl` of the golden store, kind delay."""
    sends = [json.loads(line) for line in (golden / "sends.jsonl").read_text().splitlines()]
    levels = [(sent["topic"], sent["queueId"], int(sent["tags"][3:]), sent["queueOffset"]) for sent in sends
              if sent["kind"] == "delay"]  # fmt: skip
    assert len(levels) > 4
    store._topics.create(TopicConfig("DelayTopic", 2, 2))
    for topic, queue_id, level, queue_offset in levels:
        sent = store.send(Message(topic, b"", queue_id=queue_id, delay_level=level))
        assert (sent.topic, sent.queue_id, sent.queue_offset) == (topic, queue_id, queue_offset)
        parked = records(store, SCHEDULE_TOPIC, min(level, 18) - 1)[-1][0]
        assert (sent.commit_log_offset, sent.offset_msg_id) == (parked.commit_log_offset, parked.offset_msg_id)
        assert sent.msg_id == parked.properties["UNIQ_KEY"]


def test_send_all_answers_with_the_users_queues_too(store: Store) -> None:
    sent = store.send_all([Message("T", b"", queue_id=2, delay_level=1), Message("T", b"", queue_id=1)])
    assert [(one.topic, one.queue_id, one.queue_offset) for one in sent] == [("T", 2, 0), ("T", 1, 0)]
    assert len(records(store, SCHEDULE_TOPIC, 0)) == 1


@pytest.mark.parametrize("flag", [0x4, 0x8, 0xC, 0x10, 0x20, 0x80, -1])
def test_a_caller_says_how_a_body_is_compressed_and_no_more(store: Store, flag: int) -> None:
    """A half message in a queue, or an address of another width than the record has, would look damaged."""
    with pytest.raises(UsageError, match="only the bits 0x701 of compression"):
        store.send(Message("T", b""), sys_flag=flag)
    assert store.log_range() == (0, 0)


@pytest.mark.parametrize("store_it", WAYS)
def test_the_real_topic_is_made_and_no_other(scratch: Path, small: StoreConfig, store_it: Any) -> None:
    with Store.open(scratch / "store", create=True, config=small, clock=lambda: NOW) as store:
        before = set(store._topics.all())
        store_it(store, delay_level=1)
        store_it(store, deliver_timestamp_ms=NOW + 1)
        assert set(store._topics.all()) - before == {"T"}
        assert store.topics()["T"].write_queue_nums == 4


# -- as a real broker -------------------------------------------------------------------------------------------------


SAME_FIELDS = (
    "topic", "queue_id", "flag", "sys_flag", "born_timestamp_ms", "store_timestamp_ms", "store_host", "body",
    "body_crc", "reconsume_times", "prepared_transaction_offset", "properties",
)  # fmt: skip


@pytest.mark.statement("C04", "C10")
def test_parked_records_are_those_of_a_real_broker(golden: Path, scratch: Path) -> None:
    """Every record of the golden store's SCHEDULE_TOPIC_XXXX that a producer's message became, sent here again: the
    same fields and the same set of properties, one by one and as a batch.
    """
    settings = StoreConfig(
        message_delay_level="1s 1s 2s 2s 3s 3s 4s 4s 5s 5s 6s 6s 7s 7s 8s 8s 9s 2h",
        broker_host="127.0.0.1:20911", enabled_append_prop_crc=False,
        mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=12000,
    )  # fmt: skip
    with Store.open(golden / "store", read_only=True) as source:
        theirs = [
            (message, tags_code)
            for queue_id in range(18)
            for message, tags_code in records(source, SCHEDULE_TOPIC, queue_id)
            if message.properties["REAL_TOPIC"] == "DelayTopic"
        ]
    assert {message.queue_id for message, _ in theirs} >= {0, 1, 2, 3, 17}
    # Levels beyond the table were clamped by the broker too: what it was asked for is not kept anywhere.
    for way in ("send", "append"):
        now = NOW
        with Store.open(scratch / way, create=True, config=settings, clock=lambda: now) as store:  # noqa: B023
            store._topics.create(TopicConfig("DelayTopic", 2, 2))
            for message, tags_code in theirs:
                now = message.store_timestamp_ms
                ours, code = again(store, message, way)
                assert code == tags_code
                for field in SAME_FIELDS:
                    assert getattr(ours, field) == getattr(message, field), field


def again(store: Store, message: StoredMessage, way: str) -> tuple[StoredMessage, int]:
    """Send what the producer sent; the record that it became."""
    own = {name: text for name, text in message.properties.items() if name not in ("REAL_TOPIC", "REAL_QID")}
    sent = Message(
        message.properties["REAL_TOPIC"], message.body, properties=own, flag=message.flag,
        queue_id=int(message.properties["REAL_QID"]), born_timestamp_ms=message.born_timestamp_ms,
    )  # fmt: skip
    if way == "send":
        store.send(sent, as_given=True)
    else:
        store.send_all([sent], as_given=True)
    return records(store, SCHEDULE_TOPIC, message.queue_id)[-1]
