"""A group's retry topic and its dead letters as a source: what is read, from where, and what its rows say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from pyspark_rmq.access.spark_api import ReadMaxRows
from pyspark_rmq.options.options import SinkOptions, Subscription, sink_options, source_options
from pyspark_rmq.position.position import Queue
from pyspark_rmq.read import group as group_module
from pyspark_rmq.read import starting_offsets
from pyspark_rmq.read.reader import RmqReader
from pyspark_rmq.read.stream_reader import RmqStreamReader
from pyspark_rmq.schema import origin_columns
from pyspark_rmq.schema.schema import (
    READABLE,
    SOURCE_SCHEMA,
    send_back_columns,
    sink_columns,
    source_columns,
    source_schema,
)
from rmq_store import ClockFile, CorruptRecordError, LeaseHeldError, Store, StoreConfig, UsageError, failure
from rmq_store.format.text.host import Host
from rmq_store.format.text.ids import offset_message_id

Make = Callable[..., Any]
T0, RETRY = Queue("T", 0), Queue("%RETRY%g", 0)
LIMIT = ReadMaxRows(1)  # only says that it is not Trigger.Once
NOW_MS = 1_700_000_000_000
SMALL = StoreConfig(
    mapped_file_size_commit_log=1 << 20,
    mapped_file_size_consume_queue=20_000,
    max_hash_slot_num=500,
    max_index_num=2000,
)


def stream_options(**given: str) -> Any:
    chosen = {"path": "/s"} | ({} if {"assign", "subscribePattern"} & given.keys() else {"subscribe": "T"})
    return source_options(chosen | given, "stream read", 0)


# -- options


def test_a_stream_that_commits_for_a_group_reads_its_retry_topic_unless_switched_off() -> None:
    assert stream_options(group="g").subscription == Subscription(("T",), of_group="%RETRY%g")
    assert stream_options(group="g", retryTopic="false").subscription.of_group is None
    assert stream_options(group="g", commitOffsets="false").subscription.of_group is None
    assert stream_options().subscription.of_group is None
    batch = source_options({"path": "/s", "subscribe": "T", "group": "g"}, "batch read", 0)
    assert batch.subscription.of_group is None
    with pytest.raises(UsageError, match="retryTopic needs the option group"):
        stream_options(retryTopic="true")
    with pytest.raises(UsageError, match="retryTopic needs commitOffsets"):
        stream_options(group="g", retryTopic="true", commitOffsets="false")


def test_dead_letters_are_a_subscription_of_a_batch() -> None:
    options = source_options({"path": "/s", "dlq": "g"}, "batch read", 0)
    assert options.subscription == Subscription(of_group="%DLQ%g")
    with pytest.raises(UsageError, match=r"exactly one of .*assign, dlq is needed; given: subscribe and dlq"):
        source_options({"path": "/s", "dlq": "g", "subscribe": "T"}, "batch read", 0)
    with pytest.raises(UsageError, match="option dlq is not possible for a stream read"):
        source_options({"path": "/s", "dlq": "g"}, "stream read", 0)
    with pytest.raises(UsageError, match="exactly one of the options subscribe, subscribePattern, assign is needed"):
        source_options({"path": "/s"}, "stream read", 0)


def test_send_back_is_a_write_without_new_messages() -> None:
    options = sink_options({"path": "/s", "sendBack": "g", "maxReconsumeTimes": "0"}, "stream write")
    assert options == SinkOptions("/s", send_back="g", max_reconsume_times=0)
    with pytest.raises(UsageError, match="option topic is not possible with sendBack"):
        sink_options({"path": "/s", "sendBack": "g", "topic": "T"}, "batch write")
    with pytest.raises(UsageError, match="maxReconsumeTimes needs sendBack"):
        sink_options({"path": "/s", "topic": "T", "maxReconsumeTimes": "3"}, "batch write")
    with pytest.raises(UsageError, match="'-1' is not an integer of at least 0"):
        sink_options({"path": "/s", "sendBack": "g", "maxReconsumeTimes": "-1"}, "batch write")


# -- columns


def test_origin_columns_come_with_a_group_and_reasons_with_dead_letters() -> None:
    assert source_schema({"subscribe": "T"}) == SOURCE_SCHEMA
    with_origin = source_schema({"GROUP": "g"}).fieldNames()
    assert with_origin[17:] == ["originTopic", "originQueueId", "originQueueOffset", "originMsgId", "storeTopic"]
    of_dead_letters = source_schema({"DLQ": "g"}).fieldNames()
    assert of_dead_letters[22:] == [
        "errorClass", "errorMessage", "stackHash", "firstFailureTime", "lastFailureTime", "redriven", "replays",
    ]  # fmt: skip
    assert [*of_dead_letters, "javaMsgId"] == READABLE.fieldNames()  # which a schema has to name
    # a user's schema may name them at any time; some may be NULL
    assert source_columns(StructType([READABLE["errorClass"], READABLE["storeTopic"]])) == ["errorClass", "storeTopic"]
    with pytest.raises(UsageError, match="'originQueueId' of the source may be NULL"):
        source_columns(StructType([StructField("originQueueId", IntegerType(), nullable=False)]))
    # and rows that were read can be written on
    columns = sink_columns(READABLE, topic_given=False, use_queue_id=False)
    assert columns.used == ("topic", "tags", "keys", "properties", "flag", "bornTimestamp")


def test_rows_are_sent_back_by_place_and_id_and_other_columns_of_the_source_are_ignored() -> None:
    assert send_back_columns(READABLE) == (
        "commitLogOffset", "msgId", "errorClass", "errorMessage", "stackHash", "lastFailureTime",
    )  # fmt: skip
    place = [READABLE["msgId"], READABLE["commitLogOffset"]]
    level = StructField("delayLevel", IntegerType())
    assert send_back_columns(StructType([level, *place])) == ("commitLogOffset", "msgId", "delayLevel")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([READABLE["msgId"]], "sendBack needs the column commitLogOffset .* given: msgId"),
        ([READABLE["commitLogOffset"]], "sendBack needs the column msgId"),
        ([*READABLE, StructField("delayLevel", LongType())], "'delayLevel' of the sink must be int with sendBack, not"),
        ([*READABLE, StructField("customer", StringType())], "no column 'customer'; with sendBack it takes commitLogO"),
        ([*READABLE, READABLE["msgId"]], "named twice: msgId"),
    ],
)
def test_rows_that_cannot_be_sent_back_are_refused_by_name(fields: list[StructField], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        send_back_columns(StructType(fields))


def properties(*rows: dict[str, str]) -> pa.Array:
    return pa.array([list(row.items()) for row in rows], pa.map_(pa.string(), pa.string()))


FAILED = {"RETRY_TOPIC": "Orders", "ORIGIN_MESSAGE_ID": "7F00000100002A9F00000000000000C8"}
REASONS = {
    failure.ORIGIN_TOPIC: "Payments",
    failure.ORIGIN_QUEUE_ID: "3",
    failure.ORIGIN_QUEUE_OFFSET: "41",
    failure.ERROR_CLASS: "ValueError",
    failure.FIRST_FAILURE_MS: str(NOW_MS),
}


def completed(names: list[str], *rows: dict[str, str], restore_topic: bool = True) -> list[tuple[Any, ...]]:
    count = len(rows)
    batch = pa.record_batch(
        {
            "topic": pa.array(["%RETRY%g"] * count),
            "queueId": pa.array([0] * count, pa.int32()),
            "queueOffset": pa.array(range(70, 70 + count), pa.int64()),
            "properties": properties(*rows),
            "storeHost": pa.array((["127.0.0.1:10911", "[fe80::1]:10911"] * count)[:count]),
            "commitLogOffset": pa.array(range(500, 500 + count), pa.int64()),
        }
    )
    read = batch.select(origin_columns.stored_columns(names, restore_topic=restore_topic))
    made = origin_columns.complete(read, names, store_topic="%RETRY%g", restore_topic=restore_topic)
    assert made.schema.names == names
    return [tuple(row.values()) for row in made.to_pylist()]


@pytest.mark.statement("C03", "C09")
def test_a_row_of_a_groups_own_topic_shows_the_topic_that_it_was_sent_to() -> None:
    # DefaultMQPushConsumerImpl.resetRetryTopic: RETRY_TOPIC if it is there
    names = ["topic", "storeTopic", "queueOffset"]
    assert completed(names, FAILED, {}) == [("Orders", "%RETRY%g", 70), ("%RETRY%g", "%RETRY%g", 71)]
    assert completed(names, FAILED, restore_topic=False) == [("%RETRY%g", "%RETRY%g", 70)]


def test_the_origin_is_what_was_kept_else_what_rocketmq_keeps_else_the_record_itself() -> None:
    names = ["originTopic", "originQueueId", "originQueueOffset", "originMsgId"]
    assert completed(names, FAILED | REASONS, FAILED, {}, {}) == [
        ("Payments", 3, 41, FAILED["ORIGIN_MESSAGE_ID"]),
        ("Orders", None, None, FAILED["ORIGIN_MESSAGE_ID"]),  # nobody kept the queue
        ("%RETRY%g", 0, 72, "7F00000100002A9F00000000000001F6"),  # never failed
        ("%RETRY%g", 0, 73, "FE80000000000000000000000000000100002A9F00000000000001F7"),
    ]


def test_reasons_that_are_no_numbers_are_null_and_not_an_error() -> None:
    names = ["errorClass", "firstFailureTime", "originQueueId", "originQueueOffset"]
    odd = {failure.ORIGIN_QUEUE_ID: "-1", failure.ORIGIN_QUEUE_OFFSET: "9" * 19, failure.FIRST_FAILURE_MS: "9" * 15}
    assert completed(names, FAILED | REASONS, FAILED | odd, FAILED | {failure.FIRST_FAILURE_MS: "now"}) == [
        ("ValueError", datetime.fromtimestamp(NOW_MS / 1000, UTC), 3, 41),
        (None, None, None, None),
        (None, None, None, None),
    ]


@pytest.mark.parametrize(
    ("names", "stored"),
    [
        (["body", "queueId"], ["body", "queueId"]),
        (["topic", "body"], ["topic", "properties", "body"]),
        (["storeTopic"], ["queueOffset"]),
        (["errorClass", "originMsgId"], ["properties", "storeHost", "commitLogOffset"]),
    ],
)
def test_what_is_not_selected_is_not_read(names: list[str], stored: list[str]) -> None:
    assert origin_columns.stored_columns(names, restore_topic=True) == stored
    if "topic" not in names:
        assert origin_columns.stored_columns(names, restore_topic=False) == stored


def test_the_offset_id_of_a_record_is_the_one_that_its_producer_got(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", create=True, config=SMALL) as store:
        store.create_topic("T", 1)
        from rmq_store import Message

        sent = [store.send(Message("T", b"x")).offset_msg_id for _ in range(3)]
    options = source_options({"path": str(tmp_path / "s"), "subscribe": "T"}, "batch read", 0)
    (batch,) = rows_of(RmqReader(options, StructType([READABLE["originMsgId"]])))
    assert batch.column(0).to_pylist() == sent


@pytest.mark.parametrize("option", [{"group": "g", "subscribe": "T"}, {"dlq": "g"}])
def test_a_damaged_port_does_not_keep_the_rows_from_being_read(
    make_store: Make, option: dict[str, str]
) -> None:
    """No checksum covers the host; one flipped sign bit ended every query that shows where a row comes from."""
    topic = "%DLQ%g" if "dlq" in option else "T"
    path = make_store(**{topic: 12})
    with Store.open(path, read_only=True) as store:
        place = store.commit_log_offset_before(topic, 1, 2)
    with (path / "commitlog" / f"{0:020}").open("r+b") as log:
        log.seek(place + 64)  # storeHost: address, port int32
        host = bytearray(log.read(8))
        host[4] |= 0x80
        log.seek(place + 64)
        log.write(host)
    read = RmqReader(source_options({"path": str(path)} | option, "batch read", 0), source_schema(option))
    rows = [row for batch in rows_of(read) for row in batch.to_pylist()]
    assert len(rows) == 12
    (damaged,) = (row for row in rows if row["commitLogOffset"] == place)
    assert damaged["originMsgId"] == offset_message_id(Host.unpack(bytes(host)), place)
    assert ":-" in str(Host.unpack(bytes(host)))


def rows_of(batch_reader: RmqReader) -> list[pa.RecordBatch]:
    return [batch for partition in batch_reader.partitions() for batch in batch_reader.read(partition)]


# -- which queues, and from where


def start(home: Any, options: Any) -> dict[Queue, int]:
    return starting_offsets.stream_start(home, options, starting_offsets.subscribed(home, options.subscription))


@pytest.mark.statement("C08", "C12")
def test_the_retry_topic_is_read_as_soon_as_it_exists_and_once(fake_store: Make) -> None:
    home = fake_store({T0: (0, 5)})
    assert set(starting_offsets.subscribed(home, stream_options(group="g").subscription)) == {T0}
    home.queues[RETRY] = (0, 3)
    both = {T0, RETRY}
    assert set(starting_offsets.subscribed(home, stream_options(group="g").subscription)) == both
    assert set(starting_offsets.subscribed(home, stream_options(group="other").subscription)) == {T0}
    named = stream_options(group="g", subscribe="T,%RETRY%g").subscription
    assert starting_offsets.subscribed_topics(home.topics(), named) == ["T", "%RETRY%g"]
    assert set(starting_offsets.subscribed(home, stream_options(group="g", assign='{"T":[0]}').subscription)) == both
    assert set(starting_offsets.subscribed(home, stream_options(group="g", subscribePattern="T").subscription)) == both
    pattern = stream_options(group="g", subscribePattern="%RETRY%.*").subscription
    assert set(starting_offsets.subscribed(home, pattern)) == {RETRY}


@pytest.mark.statement("C08")
def test_a_new_group_reads_its_retry_topic_from_the_beginning_whatever_the_option_says(fake_store: Make) -> None:
    # RebalancePushImpl#computePullFromWhereWithException: %RETRY% topics begin at 0
    home = fake_store({T0: (0, 5), RETRY: (0, 3)})
    assert start(home, stream_options(group="g", startingOffsets="latest")) == {T0: 5, RETRY: 0}
    assert start(home, stream_options(group="g", startingOffsets='{"T":{"0":2}}')) == {T0: 2, RETRY: 0}
    named = '{"T":{"0":2},"%RETRY%g":{"0":1}}'
    assert start(home, stream_options(group="g", startingOffsets=named)) == {T0: 2, RETRY: 1}
    asked_for = stream_options(group="g", subscribe="T,%RETRY%g", startingOffsets="latest")
    assert start(home, asked_for) == {T0: 5, RETRY: 3}
    with pytest.raises(UsageError, match="names queues that are not read: U-0"):
        start(home, stream_options(group="g", startingOffsets='{"T":{"0":2},"U":{"0":1}}'))
    home.committed[RETRY] = 2
    assert start(home, stream_options(group="g", startingOffsets="latest")) == {T0: 5, RETRY: 2}


def test_due_messages_are_delivered_before_the_queues_are_looked_at(fake_store: Make, stream_reader: Make) -> None:
    home = fake_store({T0: (0, 5)})
    stream = stream_reader(home, group="g")
    begin = stream.initialOffset()
    home.due.append(RETRY)
    end = json.loads(json.dumps(stream.latestOffset(begin, LIMIT)))
    assert end["topics"] == {"T": {"0": 5}, "%RETRY%g": {"0": 1}}
    assert [tuple(partition.part) for partition in stream.partitions(begin, end)] == [
        ("%RETRY%g", 0, 0, 1),
        ("T", 0, 0, 5),
    ]
    assert len(home.deliveries) == 1 and home.deliveries[0] is not None  # one look, with a limit
    home.due.append(RETRY)
    later = json.loads(json.dumps(stream.latestOffset(end, LIMIT)))
    assert later["topics"]["%RETRY%g"] == {"0": 2}
    assert home.committed == {T0: 5, RETRY: 1}  # committed like any other


def test_available_now_reads_what_was_due_when_it_began(fake_store: Make, stream_reader: Make) -> None:
    home = fake_store({T0: (0, 5)})
    stream = stream_reader(home, group="g")
    home.due.append(RETRY)
    stream.prepareForTriggerAvailableNow()
    assert home.deliveries == [None]
    begin = stream.initialOffset()
    home.due.append(RETRY)
    end = stream.latestOffset(begin, LIMIT)
    assert end["topics"]["%RETRY%g"] == {"0": 1}


def test_a_stream_that_does_not_commit_delivers_nothing(fake_store: Make, stream_reader: Make) -> None:
    for given in ({}, {"group": "g", "commitOffsets": "false"}):
        home = fake_store({T0: (0, 5)})
        stream = stream_reader(home, **given)
        stream.prepareForTriggerAvailableNow()
        stream.latestOffset(stream.initialOffset(), LIMIT)
        assert home.deliveries == []


def test_limits_hold_over_all_queues(fake_store: Make, stream_reader: Make) -> None:
    home = fake_store({T0: (0, 50), RETRY: (0, 50)})
    stream = stream_reader(home, group="g", maxOffsetsPerTrigger="10")
    end = stream.latestOffset(stream.initialOffset(), LIMIT)
    assert end["topics"] == {"T": {"0": 5}, "%RETRY%g": {"0": 5}}


def test_one_query_of_a_group_takes_what_comes_back_and_a_second_one_hears_of_it_at_its_start(
    fake_store: Make, stream_reader: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "CLAIM_TIMEOUT_S", 0.0)
    home = fake_store({T0: (0, 5), Queue("U", 0): (0, 5), Queue("V", 0): (0, 5)})  # nothing has failed yet
    stream_reader(home, group="g").initialOffset()
    with pytest.raises(LeaseHeldError, match=re.escape("'%RETRY%g' is held") + ".*set retryTopic=false in this one"):
        stream_reader(home, group="g", subscribe="U").initialOffset()
    stream_reader(home, group="g", subscribe="V", retryTopic="false").initialOffset()


# -- real stores, without Spark


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tuple[Path, ClockFile]]:
    """A store with a clock of its own: three orders, of which group g has failed on the second."""
    path = tmp_path / "store"
    with Store.open(path, create=True, config=SMALL) as opened:
        opened.create_topic("Orders", 1)
    clock = ClockFile.create(path / "pyrmq" / "clock", NOW_MS)
    with Store.open(path) as opened:
        bodies = pa.record_batch({"body": [b"a", b"b", b"c"], "tags": ["TagA", "TagB", "TagA"]})
        opened.append(bodies, "Orders")
    yield path, clock


def send_back(path: Path, topic: str, **given: Any) -> None:
    with Store.open(path) as opened:
        (batch,) = opened.read(topic, 0, *opened.queue_range(topic, 0), columns=["commitLogOffset", "body"])
        for row in batch.to_pylist():
            if row["body"] == b"b":
                opened.retry.send_back("g", row["commitLogOffset"], **given)


@pytest.mark.statement("B03", "C08", "C09", "D04")
def test_what_failed_comes_back_to_the_stream_with_its_topic_and_past_the_tag_filter(
    store: tuple[Path, ClockFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, clock = store
    names = ["topic", "storeTopic", "body", "reconsumeTimes", "queueId", "queueOffset", "originQueueOffset"]
    schema = StructType([READABLE[name] for name in names])
    options = source_options(
        {"path": str(path), "subscribe": "Orders", "group": "g", "tags": "TagA"}, "stream read", NOW_MS
    )
    stream = RmqStreamReader(options, schema)

    def batch(begin: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
        end = json.loads(json.dumps(stream.latestOffset(begin, LIMIT)))
        if end == begin:
            return end, []
        found = [
            tuple(row.values())
            for partition in stream.partitions(begin, end)
            for part in stream.read(partition)
            for row in part.to_pylist()
        ]
        return end, found

    try:
        end, rows = batch(stream.initialOffset())
        assert rows == [("Orders", "Orders", b"a", 0, 0, 0, 0), ("Orders", "Orders", b"c", 0, 0, 2, 2)]
        send_back(path, "Orders", properties={})
        clock.advance(9_999)
        assert batch(end)[1] == []
        clock.advance(1)
        # its tag is TagB: it was consumed once, and DefaultMQPushConsumerImpl.copySubscription takes all of the topic
        end, rows = batch(end)
        assert rows == [("Orders", "%RETRY%g", b"b", 1, 0, 0, 1)]
        assert batch(end) == (end, [])
        with Store.open(path, read_only=True) as opened:
            assert opened.committed_offsets("g") == {("Orders", 0): 3, ("%RETRY%g", 0): 1}
    finally:
        stream.stop()
    # explicitly, and without the group: as it is stored
    asked = source_options({"path": str(path), "subscribe": "%RETRY%g"}, "batch read", 0)
    (found,) = rows_of(RmqReader(asked, StructType([READABLE["topic"]])))
    assert found.column("topic").to_pylist() == ["%RETRY%g"]


@pytest.mark.statement("D01", "D02", "D05", "D06")
def test_dead_letters_are_read_with_their_reasons_and_a_group_without_any_has_none(
    store: tuple[Path, ClockFile],
) -> None:
    path, _ = store
    options = source_options({"path": str(path), "dlq": "g"}, "batch read", 0)
    assert RmqReader(options, READABLE).partitions() == []
    reasons = {failure.ERROR_CLASS: "ValueError", failure.ERROR_MESSAGE: "no", failure.LAST_FAILURE_MS: str(NOW_MS)}
    send_back(path, "Orders", delay_level=-1, properties=reasons)
    (batch,) = rows_of(RmqReader(options, READABLE))
    (row,) = batch.to_pylist()
    assert (row["topic"], row["storeTopic"], row["body"], row["reconsumeTimes"]) == ("Orders", "%DLQ%g", b"b", 1)
    assert (row["originTopic"], row["originQueueId"], row["originQueueOffset"]) == ("Orders", 0, 1)
    assert (row["errorClass"], row["errorMessage"], row["stackHash"]) == ("ValueError", "no", None)
    assert row["lastFailureTime"] == datetime.fromtimestamp(NOW_MS / 1000, UTC)
    assert row["originMsgId"] == dict(row["properties"])["ORIGIN_MESSAGE_ID"]


def test_dead_letters_say_whether_and_how_often_they_were_moved(
    store: tuple[Path, ClockFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = store
    options = source_options({"path": str(path), "dlq": "g"}, "batch read", 0)
    schema = StructType([READABLE[name] for name in ("replays", "queueOffset", "redriven")])

    def rows() -> list[list[Any]]:
        return [list(row.values()) for batch in rows_of(RmqReader(options, schema)) for row in batch.to_pylist()]

    for _ in range(2):
        send_back(path, "Orders", delay_level=-1)
    assert rows() == [[0, 0, False], [0, 1, False]]
    with Store.open(path) as opened:
        place = pa.record_batch({"queueId": pa.array([0], pa.int32()), "queueOffset": pa.array([1], pa.int64())})
        (moved,) = opened.dead_letters.redrive("g", place).to_pylist()
        opened.retry.send_back("g", moved["newCommitLogOffset"], delay_level=-1)
    assert rows() == [[0, 0, False], [0, 1, True], [1, 2, False]]
    # other topics have no such thing, and whoever does not ask for it does not look for it
    asked = source_options({"path": str(path), "subscribe": "Orders"}, "batch read", 0)
    (found,) = rows_of(RmqReader(asked, schema))
    assert set(found.column("redriven").to_pylist()) == {None}
    assert set(found.column("replays").to_pylist()) == {0}
    monkeypatch.setattr(Store, "redriven", lambda store, group: pytest.fail("nobody has asked"))
    (batch,) = rows_of(RmqReader(options, StructType([READABLE["queueOffset"], READABLE["replays"]])))
    assert batch.column("replays").to_pylist() == [0, 0, 1]


def test_what_was_moved_is_null_where_the_store_cannot_tell(
    store: tuple[Path, ClockFile], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, _ = store
    send_back(path, "Orders", delay_level=-1)

    def damaged(store: Store, group: str) -> Any:
        raise CorruptRecordError("00000000000000000000", 7, "no record of moved dead letters")

    monkeypatch.setattr(Store, "redriven", damaged)
    options = source_options({"path": str(path), "dlq": "g"}, "batch read", 0)
    (batch,) = rows_of(RmqReader(options, StructType([READABLE["body"], READABLE["redriven"]])))
    assert batch.to_pylist() == [{"body": b"b", "redriven": None}]
    assert "the column redriven of %DLQ%g is NULL: " in caplog.text


def test_columns_that_nobody_selects_cost_no_look_at_properties(
    store: tuple[Path, ClockFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = store
    asked: list[list[str]] = []
    read = Store.read

    def spy(*given: Any, **named: Any) -> Any:
        asked.append(list(named["columns"]))
        return read(*given, **named)

    monkeypatch.setattr(Store, "read", spy)
    options = source_options({"path": str(path), "subscribe": "Orders"}, "batch read", 0)
    rows_of(RmqReader(options, StructType([READABLE["body"], READABLE["topic"]])))
    assert asked == [["body", "topic"]]
