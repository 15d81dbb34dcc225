"""Options: types, defaults, contradictions, and typing errors by the user."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from pyspark_rmq import option_docs
from pyspark_rmq.options.option_table import OPTIONS, READ, WRITE
from pyspark_rmq.options.options import (
    SinkOptions,
    Subscription,
    check_names,
    check_options,
    sink_options,
    source_options,
)
from pyspark_rmq.position.planning import Limits
from pyspark_rmq.position.position import Position, Queue
from rmq_store.errors import UsageError

NOW_MS = 1_700_000_000_000
BASE = {"path": "/s", "subscribe": "T"}


def test_names_are_compared_without_case_and_values_are_typed() -> None:
    options = source_options(
        {
            "PATH": "/s",
            "subscribe": " OrderTopic , Other,OrderTopic",
            "startingoffsets": "earliest",
            "GROUP": "cg",
            "tags": "TagA || TagB",
            "rawBody": "TRUE",
            "failOnDataLoss": "false",
            "commitOffsets": "false",
            "consumerName": "reports",
            "maxOffsetsPerTrigger": "1000",
            "minOffsetsPerTrigger": "10",
            "maxBytesPerTrigger": "5",
            "maxTriggerDelay": "30s",
            "minPartitions": "8",
        },
        "stream read",
        NOW_MS,
    )
    assert options.subscription == Subscription(("OrderTopic", "Other"))
    assert options.starting == Position("earliest")
    assert (options.group, options.tags, options.raw_body) == ("cg", "TagA || TagB", True)
    assert (options.fail_on_data_loss, options.commit_offsets, options.min_partitions) == (False, False, 8)
    assert options.limits == Limits(1000, 10, 5, 30_000)
    assert options.consumer_name == "reports"


def test_defaults_are_those_of_the_table() -> None:
    options = source_options(BASE, "stream read", NOW_MS)
    assert options.starting is None
    assert options.group is None
    assert options.fail_on_data_loss and options.commit_offsets
    assert options.limits == Limits(None, None, None, 15 * 60 * 1000)
    assert options.consume_timestamp_ms == NOW_MS - 30 * 60 * 1000
    assert sink_options({"path": "/s"}, "stream write") == SinkOptions("/s")


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("subscibe", "subscribe"),
        ("startingOffset", "startingOffsets"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("storePath", "path"),
        ("failOnDataloss2", "failOnDataLoss"),
        ("consumerGroup", "group"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_name(typo: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"unknown option '{typo}'.*{meant}"):
        check_names([typo])


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/data/a b", "/data/a b"),
        ("file:///data/s", "/data/s"),
        ("file:/data/s", "/data/s"),
        ("FILE:///data/s%20x", "/data/s%20x"),
        ("~/s", "/home/me/s"),
        ("below/s", "/jobs/below/s"),
        ("a:b", "/jobs/a:b"),
    ],
)
def test_a_path_is_a_local_directory_and_absolute(
    text: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.chdir(tmp_path)
    expected = path.replace("/jobs", str(tmp_path), 1) if path.startswith("/jobs") else path
    assert source_options(BASE | {"path": text}, "batch read", NOW_MS).path == expected
    assert sink_options({"path": text}, "stream write").path == expected


def test_options_of_spark_itself_pass() -> None:
    check_names(["checkpointLocation", "queryName", "asyncProgressTrackingEnabled"])
    assert sink_options({"path": "/s", "checkpointlocation": "/c"}, "stream write") == SinkOptions("/s")


@pytest.mark.parametrize(
    ("options", "use", "message"),
    [
        ({"subscribe": "T"}, "batch read", "path is missing"),
        ({"path": " ", "subscribe": "T"}, "batch read", "path is empty"),
        ({"path": "/s"}, "batch read", "exactly one of"),
        (BASE | {"assign": '{"T":[0]}'}, "batch read", "subscribe and assign"),
        ({"path": "/s", "subscribe": " , "}, "batch read", "names no topic"),
        ({"path": "/s", "subscribePattern": "("}, "batch read", "regular expression"),
        (BASE | {"endingOffsets": "latest"}, "stream read", "endingOffsets is not possible for a stream read"),
        (BASE | {"maxOffsetsPerTrigger": "5"}, "batch read", "only for a stream read"),
        (BASE | {"topic": "T"}, "batch read", "only for a batch write or a stream write"),
        ({"path": "/s", "subscribe": "T"}, "batch write", "subscribe is not possible for a batch write"),
        ({"path": "/s", "txnAppId": "a", "txnVersion": "1"}, "stream write", "only for a batch write"),
        ({"path": "/s", "txnAppId": "a"}, "batch write", "only possible together"),
        ({"path": "/s", "txnVersion": "1"}, "batch write", "only possible together"),
        ({"path": "/s", "repeatable": "false"}, "batch write", "repeatable needs txnAppId"),
        ({"path": "hdfs://host/s"}, "batch write", "option path: 'hdfs://host/s' is not a local directory.*hdfs"),
        ({"path": "s3a:/bucket"}, "stream write", "option path: .*s3a"),
        ({"path": "file://host/s"}, "batch write", "option path: 'file://host/s' is not a local"),
        ({"path": "~nobody-of-this-name/s"}, "batch write", "option path: '~nobody"),
        (BASE | {"startingOffsets": "latest"}, "batch read", "not possible for a batch"),
        (BASE | {"startingOffsets": '{"T":{"0":-1}}'}, "batch read", "not possible for a batch"),
        (BASE | {"startingOffsets": "group"}, "batch read", "needs the option group"),
        (BASE | {"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"}, "stream read", "needs the option group"),
        (BASE | {"commitOffsets": "false"}, "stream read", "needs the option group"),
        (BASE | {"consumerName": "reports"}, "stream read", "needs the option group"),
        (BASE | {"enableLmq": "true"}, "stream read", "needs the option group"),
        (BASE | {"group": "g", "enableLmq": "perhaps"}, "batch read", "enableLmq"),
        (BASE | {"group": "g", "consumeFromWhere": "FIRST"}, "stream read", "CONSUME_FROM_FIRST_OFFSET"),
        (BASE | {"group": "g", "consumeTimestamp": "20260101000000"}, "stream read", "CONSUME_FROM_TIMESTAMP"),
        (
            BASE | {"group": "g", "consumeFromWhere": "CONSUME_FROM_TIMESTAMP", "consumeTimestamp": "2026"},
            "stream read",
            "yyyyMMddHHmmss",
        ),
        (BASE | {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "stream read", "larger than"),
        (BASE | {"maxTriggerDelay": "1m"}, "stream read", "needs minOffsetsPerTrigger"),
        (BASE | {"maxOffsetsPerTrigger": "0"}, "stream read", "at least 1"),
        (BASE | {"maxOffsetsPerTrigger": "1e6"}, "stream read", "not an integer"),
        (BASE | {"maxOffsetsPerTrigger": "٣"}, "stream read", "not an integer"),
        (BASE | {"failOnDataLoss": "no"}, "stream read", "neither true nor false"),
        (BASE | {"minOffsetsPerTrigger": "9", "maxTriggerDelay": "soon"}, "stream read", "not a duration"),
        (BASE | {"group": "%RETRY%cg"}, "stream read", "'%RETRY%cg' is a topic; its group is 'cg'"),
        ({"path": "/s", "dlq": "%DLQ%cg"}, "batch read", "option dlq: '%DLQ%cg' is a topic; its group is 'cg'"),
        (BASE | {"tags": "TagA || "}, "stream read", "empty tag"),
        (BASE | {"startingTimestamp": "-5"}, "batch read", "startingTimestamp"),
    ],
)
def test_contradictions_and_malformed_values_are_refused(options, use, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match=message):
        (sink_options if "write" in use else lambda given, wanted: source_options(given, wanted, NOW_MS))(options, use)


def test_a_time_wins_over_times_per_queue_and_those_win_over_offsets() -> None:
    options = BASE | {"startingOffsets": "earliest", "endingOffsets": "latest"}
    options |= {"startingOffsetsByTimestamp": '{"T":{"0":5}}', "endingOffsetsByTimestamp": '{"T":{"0":6}}'}
    read = source_options(options, "batch read", NOW_MS)
    assert read.starting == Position("timestamps", {Queue("T", 0): 5})
    assert read.ending == Position("timestamps", {Queue("T", 0): 6})
    read = source_options(options | {"startingTimestamp": "7", "endingTimestamp": "8"}, "batch read", NOW_MS)
    assert read.starting == Position("timestamp", timestamp_ms=7)
    assert read.ending == Position("timestamp", timestamp_ms=8)


@pytest.mark.parametrize("everything", ["*", "", " * "])
def test_a_star_subscribes_to_all_tags(everything: str) -> None:
    assert source_options(BASE | {"tags": everything}, "batch read", NOW_MS).tags is None


def test_the_consume_timestamp_is_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        options = BASE | {
            "group": "g",
            "consumeFromWhere": "consume_from_timestamp",
            "consumeTimestamp": "20260102030405",
        }
        assert source_options(options, "stream read", NOW_MS).consume_timestamp_ms == 1767294245000
    finally:
        monkeypatch.undo()
        time.tzset()


def test_every_option_is_described_in_the_same_form() -> None:
    for option in OPTIONS:
        assert re.fullmatch(r"[a-z][A-Za-z]+", option.name)
        assert option.doc.endswith(".")
        assert option.default and option.kind and option.uses


def test_the_options_page_is_what_the_table_gives(tmp_path: Path) -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "options.md"
    assert option_docs.main([str(page), "--check"]) == 0
    stale = tmp_path / "options.md"
    stale.write_text(page.read_text(encoding="utf-8").replace("`group`", "`crowd`"), encoding="utf-8")
    assert option_docs.main([str(stale), "--check"]) == 1
    assert option_docs.main([str(stale)]) == 0
    assert stale.read_text(encoding="utf-8") == page.read_text(encoding="utf-8")
    for option in OPTIONS:
        assert f"| `{option.name}` |" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("use", ["batch read", "stream read"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (BASE | {"group": "cg bills"}, "option group: the group name 'cg bills' holds characters other than"),
        (BASE | {"group": "g" * 300}, "option group: .*300 characters|option group: .*305 characters"),
        (BASE | {"subscribe": "T,a.b"}, "option subscribe: the topic name 'a.b' holds characters other than"),
        (BASE | {"startingTimestamp": "1700000000000000"}, "is a time in microseconds.*milliseconds: 1700000000000$"),
        (BASE | {"startingTimestamp": "1700000000000000000"}, "is a time in nanoseconds.*milliseconds: 1700000000000$"),
        (
            BASE | {"startingOffsetsByTimestamp": '{"T":{"0":1700000000000000}}'},
            "option startingOffsetsByTimestamp: queue T-0: 1700000000000000 is a time in microseconds",
        ),
        (BASE | {"minPartitions": "9223372036854775808"}, "is more than 9223372036854775807"),
        (BASE | {"minPartitions": "9" * 5000}, "is more than 9223372036854775807"),
        (BASE | {"startingOffsets": '{"T":{"0":9223372036854775808}}'}, "is more than 9223372036854775807"),
    ],
)
def test_names_times_and_numbers_that_no_store_can_have_are_refused(
    options: dict[str, str], message: str, use: str
) -> None:
    with pytest.raises(UsageError, match=message):
        source_options(options, use, NOW_MS)  # type: ignore[arg-type]


def test_a_number_may_have_all_of_64_bits() -> None:
    """A transaction's version may be a time in nanoseconds; the largest time means that there is no end."""
    options = {"path": "/s", "txnAppId": "a", "txnVersion": "9223372036854775807"}
    assert sink_options(options, "batch write").transaction == ("a", 2**63 - 1)
    sink_options(options | {"txnVersion": str(time.time_ns())}, "batch write")
    for last in (2**63 - 1, 253_402_300_799_999):
        ending = source_options(BASE | {"endingTimestamp": str(last)}, "batch read", NOW_MS).ending
        assert ending == Position("timestamp", timestamp_ms=last)
    with pytest.raises(UsageError, match="maxReconsumeTimes: '2147483648' is more than 2147483647"):
        sink_options({"path": "/s", "sendBack": "g", "maxReconsumeTimes": "2147483648"}, "stream write")


def test_groups_of_older_brokers_with_long_names_can_be_read() -> None:
    assert source_options(BASE | {"group": "g" * 200}, "batch read", NOW_MS).group == "g" * 200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"txnAppId": "x"}, "option txnAppId is not possible for a read, only for a batch write"),
        ({"topic": "T"}, "option topic is not possible for a read"),
        ({"maxOffsetsPerTrigger": "10k"}, "option maxOffsetsPerTrigger: '10k' is not an integer"),
        ({"endingOffsets": "soon"}, "option endingOffsets: 'soon' is neither"),
        ({"group": "cg bills"}, "option group: "),
        ({"subscribePattern": "x"}, "exactly one of"),
        ({"key": "x", "maxOffsetsPerTrigger": "5"}, "key and maxOffsetsPerTrigger are not possible together"),
        ({"startingOffsets": '{"T":[]}'}, "option startingOffsets"),
        ({"commitOffsets": "false"}, "needs the option group"),
        ({"maxOffsetPerTrigger": "5"}, "did you mean 'maxOffsetsPerTrigger'"),
    ],
)
def test_what_neither_a_batch_nor_a_stream_can_have_is_refused_at_load(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_options(BASE | options, sorted(READ), NOW_MS)


@pytest.mark.parametrize(
    "options",
    [
        {"key": "x"},
        {"endingOffsets": "latest"},
        {"startingOffsets": "latest"},
        {"maxOffsetsPerTrigger": "5"},
        {"group": "g", "commitOffsets": "false"},
    ],
)
def test_what_one_of_batch_and_stream_can_have_is_not_refused_at_load(options: dict[str, str]) -> None:
    check_options(BASE | options, sorted(READ), NOW_MS)
    check_options({"path": "/s", "dlq": "g"}, sorted(READ), NOW_MS)
    check_options({"path": "/s", "dataLoss": "true"}, sorted(READ), NOW_MS)


def test_options_of_a_read_and_of_a_write_are_not_possible_together() -> None:
    every = sorted(READ | WRITE)
    with pytest.raises(UsageError, match="subscribe and topic are not possible together"):
        check_options(BASE | {"topic": "T"}, every, NOW_MS)
    with pytest.raises(UsageError, match="txnVersion: 'x'"):
        check_options({"path": "/s", "topic": "T", "txnAppId": "a", "txnVersion": "x"}, every, NOW_MS)
    check_options({"path": "/s", "topic": "T", "checkpointLocation": "/c"}, every, NOW_MS)


@pytest.mark.parametrize(
    "options",
    [
        # As Spark's catalog hands them over: CREATE TABLE, catalog.createTable, and tables that were made unseen.
        {"location": "file:/s", "subscribe": "T", "option.subscribe": "T", "path": "/s", "provider": "rmq"},
        {"path": "/s", "provider": "rmq"},
        {},
    ],
)
def test_a_table_of_the_catalog_is_refused_with_what_works(options: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"cannot be a table of Spark's catalog.*CREATE TEMPORARY VIEW name USING rmq"):
        check_options(options, sorted(READ | WRITE), NOW_MS)


def test_the_option_location_is_called_path() -> None:
    with pytest.raises(UsageError, match=r"unknown option 'location'.*did you mean 'path'"):
        check_names(["location", "subscribe"])


def test_a_send_back_makes_no_store() -> None:
    assert not sink_options({"path": "/s", "createStore": "false"}, "stream write").create_store
    sink_options({"path": "/s", "sendBack": "g", "createStore": "false"}, "stream write")
    with pytest.raises(UsageError, match="createStore is not possible with sendBack"):
        sink_options({"path": "/s", "sendBack": "g", "createStore": "true"}, "stream write")
