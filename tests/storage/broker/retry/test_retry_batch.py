"""Send-backs in bulk: the same as one by one, all or nothing, once for each key and value; and those of tasks."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmq_store import (
    ANSWER_SCHEMA,
    SEND_BACK_SCHEMA,
    CorruptRecordError,
    MarkerError,
    Message,
    NotAStoreError,
    ResponseError,
    SendBackArea,
    SendBackCounts,
    Store,
    StoreError,
    SubscriptionGroup,
    UsageError,
    failure,
)
from rmq_store.broker.read import records
from rmq_store.format.batches.frame_encoder import EncodeOptions, encode_batch
from rmq_store.format.text.host import Host
from rmq_store.log.append.append import append, append_lock
from rmq_store.verify import verify_store

GROUP = "CG1"
RETRY, DLQ, SCHEDULE = "%RETRY%CG1", "%DLQ%CG1", "SCHEDULE_TOPIC_XXXX"
FIELDS = (
    "topic", "queue_id", "reconsume_times", "flag", "sys_flag", "body", "body_crc", "born_timestamp_ms", "born_host",
    "store_host", "prepared_transaction_offset", "properties",
)  # fmt: skip
PROPERTIES = pa.map_(pa.string(), pa.string())


@pytest.fixture
def store(parking: Any) -> Any:
    with parking.open() as opened:
        opened.create_topic("TopicJ", 2)
        yield opened
    assert verify_store(parking.root).status == "clean"


def send(store: Store, count: int, **fields: Any) -> list[Any]:
    return [store.send(Message("TopicJ", b"body %d" % n, tags="TagA", **fields)) for n in range(count)]


def rows_of(
    sent: list[Any], levels: list[int | None] | None = None, reasons: list[dict[str, str] | None] | None = None
) -> pa.RecordBatch:
    columns = {
        "commitLogOffset": pa.array([one.commit_log_offset for one in sent], pa.int64()),
        "msgId": pa.array([one.msg_id for one in sent], pa.string()),
    }
    if levels is not None:
        columns["delayLevel"] = pa.array(levels, pa.int32())
    if reasons is not None:
        pairs = [None if given_ones is None else list(given_ones.items()) for given_ones in reasons]
        columns["properties"] = pa.array(pairs, PROPERTIES)
    return pa.record_batch(columns)


def bodies_of(store: Store, topic: str, queue_id: int = 0) -> list[bytes]:
    first, last = store.queue_range(topic, queue_id)
    batches = store.read(topic, queue_id, first, last, columns=["body"])
    return [body for batch in batches for body in batch.column(0).to_pylist()]


# -- the same as one by one -------------------------------------------------------------------------------------------

OWN_NAMES = [
    "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "DELAY", "REAL_TOPIC", "REAL_QID", "WAIT", "TIMER_DELIVER_MS",
    "TIMER_DELAY_SEC", "KEYS", "mine", "π", failure.ERROR_CLASS, failure.ERROR_MESSAGE, failure.FIRST_FAILURE_MS,
    failure.ORIGIN_TOPIC,
]  # fmt: skip
OWN_TEXTS = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20)
GIVEN_NAMES = [
    failure.ERROR_CLASS, failure.ERROR_MESSAGE, failure.FIRST_FAILURE_MS, failure.ORIGIN_TOPIC, "note", "mine",
]  # fmt: skip
GIVEN_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.integers(0, 17_000)  # so many é


@st.composite
def failed_messages(draw: st.DrawFn) -> dict[str, Any]:
    own = draw(st.dictionaries(st.sampled_from(OWN_NAMES), OWN_TEXTS, max_size=6))
    return {
        "own": own,
        "filler": draw(st.just(0) | st.integers(32_000, 32_600)),
        "unique": draw(st.booleans()),
        "body": draw(st.binary(max_size=20)),
        "flag": draw(st.integers(-(1 << 31), (1 << 31) - 1)),
        "times": draw(st.integers(0, 20) | st.sampled_from([-5, (1 << 31) - 1])),
        "born_host": draw(st.sampled_from(["10.1.2.3:5", "[fe80::1]:7"])),
        "level": draw(st.none() | st.integers(-2, 25)),
        "reasons": draw(st.none() | st.dictionaries(st.sampled_from(GIVEN_NAMES), GIVEN_TEXTS, max_size=4)),
    }


@pytest.fixture
def roomy(parking: Any, scratch: Path) -> Any:
    """A store with large files, for many large messages."""
    config = replace(parking.config, mapped_file_size_commit_log=8 << 20, mapped_file_size_consume_queue=200_000)
    with replace(parking, root=scratch / "roomy", config=config).open() as opened:
        yield opened
    problems = verify_store(scratch / "roomy").problems
    assert {problem.path for problem in problems} <= {"config/topics.json"}  # some are sent past the table of topics


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    messages=st.lists(failed_messages(), min_size=1, max_size=6),
    maximum=st.none() | st.integers(-1, 20),
    data=st.randoms(use_true_random=False),
)
def test_a_batch_is_sent_back_as_its_messages_would_be_one_by_one(
    roomy: Store, messages: list[dict[str, Any]], maximum: int | None, data: random.Random
) -> None:
    """One place owns the table; where both paths meet, they agree: fields, property sets, answers, refusals."""
    store = roomy
    sent = []
    for message in messages:
        if message["filler"]:
            message["own"]["large"] = "x" * message["filler"]
        if message["reasons"] is not None:
            reasons = message["reasons"].items()
            message["reasons"] = {name: "é" * text if isinstance(text, int) else text for name, text in reasons}
        row = pa.record_batch(
            {
                "topic": ["TopicJ"],
                "body": [message["body"]],
                "flag": pa.array([message["flag"]], pa.int32()),
                "reconsumeTimes": pa.array([message["times"]], pa.int32()),
                "properties": pa.array(
                    [[*message["own"].items(), *([("UNIQ_KEY", "u")] if message["unique"] else [])]], PROPERTIES
                ),
            }
        )
        options = EncodeOptions(
            store_host=Host.parse("127.0.0.1:10911"), born_host=Host.parse(message["born_host"]), now_ms=5,
            crc_property=True,
        )  # fmt: skip
        try:
            encoded = encode_batch(row, queue_ids=np.ones(1, np.int32), options=options)
        except UsageError:
            continue  # more than 32767 bytes already
        with append_lock(store._log):
            offset = int(append(store._log, [encoded]).offsets[0])
        sent.append((store.message_at(offset), message))
    data.shuffle(sent)
    rows = pa.record_batch(
        {
            "commitLogOffset": pa.array([stored.commit_log_offset for stored, _ in sent], pa.int64()),
            "msgId": pa.array([stored.msg_id for stored, _ in sent], pa.string()),
            "delayLevel": pa.array([message["level"] for _, message in sent], pa.int32()),
            "properties": pa.array(
                [None if message["reasons"] is None else list(message["reasons"].items()) for _, message in sent],
                PROPERTIES,
            ),
        }
    )
    singles, refusals = [], []
    for number, (stored, message) in enumerate(sent):
        try:
            singles.append(
                store.retry.send_back(
                    GROUP, stored.commit_log_offset, delay_level=message["level"] or 0, max_reconsume_times=maximum,
                    msg_id=stored.msg_id, properties=message["reasons"],
                )
            )  # fmt: skip
        except ResponseError as error:
            refusals.append((number, error))
    end = store.log_range()
    if refusals:
        with pytest.raises(ResponseError) as caught:
            store.retry.send_back_all(GROUP, rows, max_reconsume_times=maximum)
        assert caught.value.response_code == 1
        assert store.log_range() == end
        assert any(caught.value.remark.startswith(f"row {number}: {error.remark}") for number, error in refusals)
        return
    answers = store.retry.send_back_all(GROUP, rows, max_reconsume_times=maximum)
    assert answers.schema == ANSWER_SCHEMA
    for single, answer in zip(singles, answers.to_pylist(), strict=True):
        one, other = store.message_at(single.commit_log_offset), store.message_at(answer["commitLogOffset"])
        assert [getattr(one, name) for name in FIELDS] == [getattr(other, name) for name in FIELDS]
        assert (single.topic, single.delay_level, single.reconsume_times) == (
            answer["topic"], answer["delayLevel"], answer["reconsumeTimes"],
        )  # fmt: skip
        entries = [store._log.views.queue(m.topic, m.queue_id).entry(m.queue_offset) for m in (one, other)]
        assert entries[0][2] == entries[1][2]


def test_the_queue_entry_of_a_parked_copy_holds_its_time(parking: Any, store: Store) -> None:
    store.retry.send_back_all(GROUP, rows_of(send(store, 3), levels=[1, 2, 1]))
    due = [store._log.views.queue(SCHEDULE, level - 1).entry(0)[2] for level in (1, 2)]
    assert due == [parking.now_ms + 1000, parking.now_ms + 5000]


@pytest.mark.statement("B03", "D01")
def test_a_batch_goes_all_the_way_to_the_dead_letters(parking: Any, store: Store) -> None:
    """Maximum 2: three deliveries, then dead, for every message of the batch."""
    rows = rows_of(send(store, 50))
    bodies = sorted(b"body %d" % n for n in range(50))
    for times in (1, 2):
        answers = store.retry.send_back_all(GROUP, rows, max_reconsume_times=2)
        assert set(answers.column("reconsumeTimes").to_pylist()) == {times}
        parking.now_ms += 30_000
        assert store.schedule.deliver_due().delivered == 50
        batches = store.read(RETRY, 0, 50 * times - 50, 50 * times, columns=["commitLogOffset", "msgId", "body"])
        batch = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        assert sorted(batch.column("body").to_pylist()) == bodies
        rows = batch.select(["commitLogOffset", "msgId"])
    answers = store.retry.send_back_all(GROUP, rows, max_reconsume_times=2)
    assert set(answers.column("topic").to_pylist()) == {DLQ}
    assert sorted(bodies_of(store, DLQ)) == bodies


def test_answers_are_in_the_order_of_the_rows_over_segments(store: Store) -> None:
    """Rows in any order, from several segments: each answer is that of its row."""
    sent = send(store, 40, properties={"filler": "f" * 6000})
    assert store.log_range()[1] > 3 * 65_536
    random.Random(5).shuffle(sent)
    answers = store.retry.send_back_all(GROUP, rows_of(sent))
    copies = [store.message_at(offset) for offset in answers.column("commitLogOffset").to_pylist()]
    assert [copy.msg_id for copy in copies] == [one.msg_id for one in sent]


def test_large_batches_are_copied_run_by_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one run holds bounds the memory: rows, bytes."""
    sent = send(store, 30)
    for name, limit in (("_RUN_ROWS", 7), ("_RUN_BYTES", 700)):
        monkeypatch.setattr(records, name, limit)
        answers = store.retry.send_back_all(GROUP, rows_of(sent))
        copies = [store.message_at(offset) for offset in answers.column("commitLogOffset").to_pylist()]
        assert [copy.msg_id for copy in copies] == [one.msg_id for one in sent]


def test_a_count_that_the_caller_knows_better_counts(store: Store) -> None:
    """A message that was given out and hidden again several times (`pop`) has a record that says 0."""
    answers = store.retry.send_back_all(GROUP, rows_of(send(store, 2)), max_reconsume_times=5, reconsume_times=[4, 5])
    assert answers.column("topic").to_pylist() == [RETRY, DLQ]
    assert answers.column("reconsumeTimes").to_pylist() == [5, 6]


def test_no_rows_are_sent_back_without_a_trace(store: Store) -> None:
    end = store.log_range()
    answers = store.retry.send_back_all(GROUP, empty())
    assert (answers.num_rows, answers.schema) == (0, ANSWER_SCHEMA)
    assert store.log_range() == end


def empty() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], SEND_BACK_SCHEMA)


def test_a_group_without_retry_queues_drops_the_batch(store: Store) -> None:
    store.create_group(SubscriptionGroup(GROUP, retry_queue_nums=0))
    sent = send(store, 2)
    end = store.log_range()
    assert store.retry.send_back_all(GROUP, rows_of(sent)).to_pylist() == [
        {"topic": "", "delayLevel": 0, "reconsumeTimes": 0, "commitLogOffset": None}
    ] * 2
    assert store.log_range() == end


# -- refusals ---------------------------------------------------------------------------------------------------------


def refused(store: Store, rows: pa.RecordBatch, error: type[StoreError], match: str) -> None:
    """By the store and by a task; nothing is written."""
    store.retry.prepare(GROUP)
    end = store.log_range()
    with pytest.raises(error, match=match):
        store.retry.send_back_all(GROUP, rows, key="q", value=1)
    with (
        pytest.raises(error, match=match),
        SendBackArea.for_task(store.path, "w", 0, 0, group=GROUP, max_reconsume_times=None) as area,
    ):
        area.write(rows)
    assert store.log_range() == end
    assert store.last_unit("sendback", "q") is None
    assert DLQ not in store.topics()
    assert not list((store.path / "pyrmq").glob("staging/*/*"))


def test_one_wrong_offset_refuses_the_batch_and_is_named_with_its_row(store: Store) -> None:
    sent = send(store, 4)
    end = store.log_range()[1]
    for wrong in (-1, end, end + 1, sent[2].commit_log_offset + 4, 1 << 62, -(1 << 62)):
        rows = rows_of(sent, levels=[-1] * 4).to_pydict()
        rows["commitLogOffset"][2] = wrong
        rows["delayLevel"] = pa.array(rows["delayLevel"], pa.int32())
        said = f"row 2: look message by offset failed, {wrong}: .*read from$"
        refused(store, pa.record_batch(rows), ResponseError, said)


def test_one_wrong_id_refuses_the_batch_and_is_named_with_its_row(store: Store) -> None:
    sent = send(store, 4)
    rows = rows_of(sent).to_pydict()
    rows["msgId"][3] = "other"
    offset, right = sent[3].commit_log_offset, sent[3].msg_id
    refused(store, pa.record_batch(rows), UsageError, f"row 3: the message at {offset} is '{right}', not 'other'")


@pytest.mark.parametrize("column", ["commitLogOffset", "msgId"])
def test_offset_and_id_are_needed_in_every_row(store: Store, column: str) -> None:
    rows = rows_of(send(store, 3))
    without = rows.select([name for name in rows.schema.names if name != column])
    refused(store, without, UsageError, f"no column '{column}'")
    values = [None if number == 1 else value for number, value in enumerate(rows.column(column).to_pylist())]
    with_null = {**rows.to_pydict(), column: pa.array(values, rows.schema.field(column).type)}
    refused(store, pa.record_batch(with_null), UsageError, f"row 1: column '{column}' is null")


def test_other_columns_and_types_are_refused(store: Store) -> None:
    rows = rows_of(send(store, 1))
    refused(store, rows.append_column("delaylevel", pa.array([1])), UsageError, "unknown column 'delaylevel'")
    refused(store, rows.append_column("delayLevel", pa.array(["x"])), UsageError, "column 'delayLevel' is string")
    refused(store, rows.append_column("delayLevel", pa.array([1 << 40])), UsageError, "column 'delayLevel'")
    with pytest.raises(UsageError, match="RecordBatch"):
        store.retry.send_back_all(GROUP, [])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a key and a value"):
        store.retry.send_back_all(GROUP, rows, key="q")


@pytest.mark.parametrize("name", ["DELAY", "UNIQ_KEY", failure.REPLAYS, "a\x01"])
def test_properties_that_cannot_be_given_refuse_the_batch(store: Store, name: str) -> None:
    refused(store, rows_of(send(store, 1), reasons=[{name: "x"}]), UsageError, "property|the name")


def test_a_damaged_message_refuses_the_batch(store: Store) -> None:
    """Its copy would get a checksum of its own, and vouch for the damage."""
    sent = send(store, 3)
    store.flush()
    path = store._log.segments.path(0)
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(data.index(b"body 1"))
        file.write(b"B")
    try:
        refused(store, rows_of(sent), CorruptRecordError, str(sent[1].commit_log_offset))
    finally:
        path.write_bytes(data)


def test_a_message_without_room_for_a_retry_refuses_the_batch_naming_its_row(store: Store) -> None:
    """Nothing is lost: the batch is the caller's still."""
    sent = [*send(store, 2), *send(store, 1, properties={"large": "x" * 32_600})]
    refused(store, rows_of(sent), ResponseError, "row 2: PROPERTIES_SIZE_EXCEEDED")


def test_a_message_whose_copy_no_segment_can_hold_refuses_the_batch_naming_its_row(store: Store) -> None:
    sent = [*send(store, 1), store.send(Message("TopicJ", bytes(65_536 - 8 - 200)))]
    match = f"row 1: a copy of the message at {sent[1].commit_log_offset} does not fit"
    refused(store, rows_of(sent), ResponseError, match)
    with pytest.raises(UsageError, match="does not fit a segment"):
        store.retry.send_back(GROUP, sent[1].commit_log_offset)


# -- once for each key and value --------------------------------------------------------------------------------------


def test_a_repeated_batch_adds_nothing_and_says_so(store: Store) -> None:
    rows = rows_of(send(store, 3))
    first = store.retry.send_back_all(GROUP, rows, key="q", value=7)
    end = store.log_range()
    again = store.retry.send_back_all(GROUP, rows, key="q", value=7)
    assert store.log_range() == end
    assert again.column("commitLogOffset").null_count == 3
    assert again.drop_columns(["commitLogOffset"]) == first.drop_columns(["commitLogOffset"])
    with pytest.raises(MarkerError, match="other rows"):
        store.retry.send_back_all(GROUP, rows.slice(0, 2), key="q", value=7)
    with pytest.raises(MarkerError, match="has committed 7 already"):
        store.retry.send_back_all(GROUP, rows, key="q", value=6)
    assert store.retry.send_back_all(GROUP, rows, key="q", value=8).column("commitLogOffset").null_count == 0
    assert store.last_unit("sendback", "q") == 8
    assert len(bodies_of(store, SCHEDULE, 2)) == 6


# -- tasks ------------------------------------------------------------------------------------------------------------


def stage(store: Store, rows: pa.RecordBatch, partition: int = 0, maximum: int | None = None) -> Any:
    with SendBackArea.for_task(store.path, "w", partition, 0, group=GROUP, max_reconsume_times=maximum) as area:
        for first in range(0, rows.num_rows, 3):
            area.write(rows.slice(first, 3))
        return area.finish(), area.counts


def test_what_tasks_staged_is_what_the_store_itself_would_send_back(parking: Any, store: Store) -> None:
    sent = send(store, 8)
    reasons = [None, *([{failure.ERROR_CLASS: "E"}] * 7)]
    rows = rows_of(sent, levels=[None, -1, 5, 0] * 2, reasons=reasons)
    store.retry.prepare(GROUP, 4)
    answers = store.retry.send_back_all(GROUP, rows).to_pylist()
    expected = [store.message_at(answer["commitLogOffset"]) for answer in answers]
    end = store.log_range()[1]
    files, counts = zip(*(stage(store, rows.slice(first, 4), first) for first in (0, 4)), strict=True)
    assert sum(counts, SendBackCounts()) == SendBackCounts(retried=6, dead=2)
    assert store.log_range()[1] == end
    assert store.commit_staged(files, purpose="sendback", key="q", value=1).row_count == 8
    assert not store.commit_staged(files, purpose="sendback", key="q", value=1).committed
    found = []
    for topic, queue_id in ((SCHEDULE, 2), (SCHEDULE, 4), (DLQ, 0)):
        first, last = store.queue_range(topic, queue_id)
        for batch in store.read(topic, queue_id, first, last, columns=["commitLogOffset"]):
            found += [store.message_at(offset) for offset in batch.column(0).to_pylist() if offset >= end]
    found.sort(key=lambda message: message.msg_id)
    expected.sort(key=lambda message: message.msg_id)
    assert [[getattr(m, name) for name in FIELDS] for m in found] == [
        [getattr(m, name) for name in FIELDS] for m in expected
    ]


@pytest.mark.statement("D05")
def test_the_commit_makes_the_dead_letter_topic_with_one_queue_if_it_needs_one(store: Store) -> None:
    store.retry.prepare(GROUP)
    sent = send(store, 2)
    alive, _ = stage(store, rows_of(sent))
    store.commit_staged([alive], purpose="sendback", key="q", value=1)
    assert DLQ not in store.topics()
    dead, counts = stage(store, rows_of(sent, levels=[-1, -1]))
    assert counts == SendBackCounts(dead=2)
    store.commit_staged([dead], purpose="sendback", key="q", value=2)
    assert (store.topic(DLQ).read_queue_nums, store.topic(DLQ).perm) == (1, 6)
    assert len(bodies_of(store, DLQ)) == 2


def test_a_task_of_a_group_without_retry_queues_counts_what_is_dropped(store: Store) -> None:
    store.create_group(SubscriptionGroup(GROUP, retry_queue_nums=0))
    store.retry.prepare(GROUP)
    assert stage(store, rows_of(send(store, 2))) == (None, SendBackCounts(dropped=2))


def test_a_task_without_rows_has_no_file(store: Store) -> None:
    store.retry.prepare(GROUP)
    assert stage(store, empty()) == (None, SendBackCounts())


def test_a_task_needs_a_store_and_a_prepared_group(store: Store, tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError):
        SendBackArea.for_task(tmp_path, "w", 0, 0, group=GROUP, max_reconsume_times=None)
    store.create_group(SubscriptionGroup(GROUP))
    with pytest.raises(UsageError, match="not prepared"):
        SendBackArea.for_task(store.path, "w", 0, 0, group=GROUP, max_reconsume_times=None)


def test_a_task_sees_messages_that_came_after_it_began(store: Store) -> None:
    store.retry.prepare(GROUP)
    with SendBackArea.for_task(store.path, "w", 0, 0, group=GROUP, max_reconsume_times=None) as area:
        area.write(rows_of(send(store, 1)))
        area.write(rows_of(send(store, 1)))
        assert area.finish().row_count == 2


def test_a_task_that_began_while_nobody_wrote_sees_what_came_since(parking: Any) -> None:
    with parking.open() as store:
        first = send(store, 2)
        store.retry.prepare(GROUP)
    with SendBackArea.for_task(parking.root, "w", 0, 0, group=GROUP, max_reconsume_times=None) as area:
        area.write(rows_of(first))
        with parking.open() as store:
            second = send(store, 2)
        area.write(rows_of(second))
        assert area.finish().row_count == 4


def test_a_task_that_is_abandoned_leaves_nothing(store: Store) -> None:
    store.retry.prepare(GROUP)
    with SendBackArea.for_task(store.path, "w", 0, 0, group=GROUP, max_reconsume_times=None) as area:
        area.write(rows_of(send(store, 1)))
    assert not list((store.path / "pyrmq").glob("staging/*/*"))


def test_a_task_reads_a_store_that_nobody_has_open(parking: Any) -> None:
    with parking.open() as store:
        sent = send(store, 3)
        store.retry.prepare(GROUP)
    with SendBackArea.for_task(parking.root, "w", 0, 0, group=GROUP, max_reconsume_times=0) as area:
        area.write(rows_of(sent))
        staged = area.finish()
    assert area.counts == SendBackCounts(dead=3)
    with parking.open() as store:
        store.commit_staged([staged], purpose="sendback", key="q", value=1)
        assert bodies_of(store, DLQ) == [b"body 0", b"body 1", b"body 2"]


def test_a_message_that_two_rows_name_is_not_sent_back_for_each_of_them(store: Store) -> None:
    store.retry.prepare(GROUP)
    rows = rows_of(send(store, 6))
    place = rows.column("commitLogOffset")[4].as_py()
    fanned = pa.Table.from_batches([rows.slice(0, 5), rows.slice(4, 1)]).combine_chunks().to_batches()[0]
    whole, apart = [stage(store, fanned)[0]], [stage(store, rows.slice(*part), part[0])[0] for part in ((0, 5), (4, 2))]
    end = store.log_range()[1]
    for files, second in ((whole, "partition 0, row 5"), (apart, "partition 4, row 0")):
        named = f"partition 0, row 4 and {second} both name the message at commitLogOffset {place}: .* its 2 rows"
        with pytest.raises(UsageError, match=named):
            store.commit_staged(files, purpose="sendback", key="q", value=1)
    assert store.log_range()[1] == end
    assert store.last_unit("sendback", "q") is None
    once = [stage(store, rows.slice(*part), part[0])[0] for part in ((0, 3), (3, 3))]
    assert store.commit_staged(once, purpose="sendback", key="q", value=1).row_count == 6
