"""The life of a stream and of a batch over a cluster in memory, call by call as Spark makes them."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.types import StructType

from pyspark_rmq.access.spark_api import ReadAllAvailable
from pyspark_rmq.options.options import source_options
from pyspark_rmq.position.queue_ids import BrokerQueueId
from pyspark_rmq.read.reader import RmqReader
from pyspark_rmq.schema.schema import READABLE, SOURCE_SCHEMA
from rmq_store.errors import DataLossError, LeaseHeldError, UnknownTopicError, UsageError

from ...storage.remoting.cluster.fake_cluster import FakeNet
from ..planned_batches import LIMIT, first_batch, planned, through_spark
from .conftest import Clock, batch, rows

Make = Callable[..., Any]
A0, A1, B0 = BrokerQueueId("broker-a", 0), BrokerQueueId("broker-a", 1), BrokerQueueId("broker-b", 0)
pytestmark = pytest.mark.usefixtures("in_memory")


def test_a_batch_reads_all_queues_of_all_brokers(net: FakeNet) -> None:
    reader = batch()
    parts = reader.partitions()
    assert [tuple(part.part) for part in parts] == [("T", A0, 0, 10), ("T", A1, 0, 10), ("T", B0, 0, 10)]
    found = rows(reader, parts)
    assert {(row["brokerName"], row["queueId"]) for row in found} == {("broker-a", 0), ("broker-a", 1), ("broker-b", 0)}
    assert len(found) == 30 and {row["topic"] for row in found} == {"T"}


@pytest.mark.parametrize("version", [407, 513])
def test_a_batch_reads_the_queues_of_a_topic_that_is_made_smaller(net: FakeNet, version: int) -> None:
    """writeQueueNums is lowered first: brokers before 5.3 list only the queues that may still be written (202)."""
    net.brokers["broker-a"].topics["T"] |= {"read": 2, "write": 1}
    net.brokers["broker-a"].processes[0].version = version
    reader = batch()
    parts = reader.partitions()
    assert [tuple(part.part) for part in parts] == [("T", A0, 0, 10), ("T", A1, 0, 10), ("T", B0, 0, 10)]
    assert len(rows(reader, parts)) == 30


@pytest.mark.parametrize("version", [407, 513])
def test_a_stream_goes_on_in_queues_that_are_not_written_any_more(
    stream: Make, more: Make, net: FakeNet, version: int
) -> None:
    broker = net.brokers["broker-a"]
    broker.processes[0].version = version
    reader = stream(startingOffsets="earliest", maxOffsetsPerTrigger="15")
    _, end = first_batch(reader)
    broker.topics["T"] |= {"read": 2, "write": 1}
    last = more(reader, end, 31_000)
    assert planned(reader, end, last) == [("T", A0, 5, 10), ("T", A1, 5, 10), ("T", B0, 5, 10)]
    assert more(reader, last) == last
    assert more(stream(), last) == last, "a restarted query neither"
    start, end = first_batch(reader := stream(startingOffsets="latest"))
    assert planned(reader, start, end) == [] and more(reader, end, 31_000) == end


@pytest.mark.parametrize("version", [407, 513])
def test_messages_of_queues_that_are_closed_too_early_are_reported(
    stream: Make, more: Make, net: FakeNet, version: int
) -> None:
    """readQueueNums was lowered with the rest unread: no broker lists such a queue any more."""
    broker = net.brokers["broker-a"]
    broker.processes[0].version = version
    reader = stream(startingOffsets="earliest", maxOffsetsPerTrigger="15")
    _, end = first_batch(reader)
    broker.topics["T"] |= {"read": 1, "write": 1}
    with pytest.raises(DataLossError, match=r"readQueueNums was lowered.*T-broker-a:1 \[5, 10\)"):
        more(reader, end, 31_000)


@pytest.mark.parametrize("brokers", [("broker-a",), ("broker-a", "broker-b")], ids=["at one broker", "at all"])
@pytest.mark.parametrize("is_read", [True, False], ids=["read", "with unread messages"])
def test_a_topic_that_a_broker_says_it_does_not_have_is_deleted_there(
    stream: Make, more: Make, net: FakeNet, caplog: pytest.LogCaptureFixture, brokers: tuple[str, ...], is_read: bool
) -> None:
    """The queues of the one broker counted as closed, without a word: also those of one that was back with nothing."""
    given = {"startingOffsets": "earliest"} | ({} if is_read else {"maxOffsetsPerTrigger": "15"})
    _, end = first_batch(reader := stream(**given))
    _, other = first_batch(tolerant := stream(failOnDataLoss="false", **given))
    for name in brokers:
        del net.brokers[name].topics["T"]
    with pytest.raises(DataLossError, match=r"topics were deleted .* T-broker-a:0 at offset") as error:
        more(reader, end, 31_000)
    assert {queue.broker_name for _, queue, *_ in error.value.ranges} == set(brokers)
    with pytest.raises(DataLossError if len(brokers) == 1 else UnknownTopicError):
        more(stream(**given), end, 31_000)
    caplog.clear()
    last = more(tolerant, other, 31_000)
    told = [record.getMessage() for record in caplog.records if record.name == "pyspark_rmq.dataloss"]
    assert len(told) == (3 if len(brokers) == 2 else 2) and all("deleted topic" in one for one in told)
    assert set(last["topics"].get("T", {})) == (set() if len(brokers) == 2 else {"broker-b:0"})
    assert "closed" not in last
    if len(brokers) == 2:
        with pytest.raises(UnknownTopicError):
            more(tolerant, last, 31_000)
        return
    net.brokers["broker-a"].create_topic("T", 1)
    again = more(tolerant, more(tolerant, last, 31_000), 31_000)
    assert set(again["topics"]["T"]) == {"broker-a:0", "broker-b:0"}, "a topic that is made again is a new one"


@pytest.mark.parametrize("read", [1, 0])
def test_queues_that_are_closed_when_they_are_read_are_not_pulled_any_more(
    stream: Make, more: Make, net: FakeNet, read: int
) -> None:
    """A broker refuses pulls of queues that it has closed, and the query ended with that."""
    _, end = first_batch(reader := stream(startingOffsets="earliest"))
    net.brokers["broker-a"].topics["T"] |= {"read": read, "write": read}
    end = more(reader, end, 31_000)
    assert set(end["closed"]["T"]) == {"broker-a:0", "broker-a:1"} - ({"broker-a:0"} if read else set())
    net.brokers["broker-b"].put("T", 0, 1)
    last = more(stream(), end, 31_000)
    assert planned(stream(), end, last) == [("T", B0, 10, 11)]


def test_queues_that_were_closed_before_their_topic_was_deleted_at_the_broker_are_no_loss(
    stream: Make, more: Make, net: FakeNet, caplog: pytest.LogCaptureFixture
) -> None:
    """So a broker is taken out of a cluster."""
    _, end = first_batch(reader := stream(startingOffsets="earliest"))
    net.brokers["broker-a"].topics["T"] |= {"read": 0, "write": 0}
    end = more(reader, end, 31_000)
    assert set(end["topics"]["T"]) == {"broker-b:0"} and set(end["closed"]["T"]) == {"broker-a:0", "broker-a:1"}
    del net.brokers["broker-a"].topics["T"]
    for _ in range(2):
        end = more(reader, end, 31_000)
    assert set(more(stream(), end, 31_000)["topics"]["T"]) == {"broker-b:0"}
    assert not [record for record in caplog.records if record.name == "pyspark_rmq.dataloss"]


def test_a_batch_has_a_range_by_offsets_or_times(net: FakeNet) -> None:
    starts = '{"T":{"broker-a:0":3,"broker-a:1":-2,"broker-b:0":0}}'
    ends = '{"T":{"broker-a:0":5,"1":-1,"broker-b:0":0}}'
    parts = batch(startingOffsets=starts, endingOffsets=ends).partitions()
    assert [tuple(part.part) for part in parts] == [("T", A0, 3, 5), ("T", A1, 0, 10)]
    parts = batch(startingTimestamp="1700000000004", endingTimestamp="1700000000006").partitions()
    assert [tuple(part.part) for part in parts] == [("T", A0, 4, 6), ("T", A1, 4, 6), ("T", B0, 4, 6)]


def test_a_stream_goes_on_from_its_checkpoint_after_a_restart(net: FakeNet, stream: Make, more: Make) -> None:
    reader = stream(startingOffsets="earliest")
    start, end = first_batch(reader)
    assert planned(reader, start, end) == [("T", A0, 0, 10), ("T", A1, 0, 10), ("T", B0, 0, 10)]
    assert end["store"] == "cluster:DefaultCluster"
    assert end["topics"] == {"T": {"broker-a:0": 10, "broker-a:1": 10, "broker-b:0": 10}}
    assert end["after"] == {"T": {"broker-a:0": 70_000, "broker-b:0": 70_000}}, "one message of each broker"
    net.brokers["broker-b"].put("T", 0, 2)
    again = stream(startingOffsets="earliest")
    later = more(again, end)
    assert planned(again, end, later) == [("T", B0, 10, 12)]


def test_a_trigger_asks_each_broker_little(net: FakeNet, stream: Make, more: Make) -> None:
    reader = stream(startingOffsets="earliest")
    _, end = first_batch(reader)
    for broker in net.brokers.values():
        for queue_id in range(len(broker.queues)):
            broker.put("T", queue_id, 5)
    net.calls.clear()
    later = more(reader, end)
    planned(reader, end, later)
    # Of each broker: the ends, the message before the position (continuity), the one before the next position.
    assert sorted(net.codes()) == [11] * 4 + [202] * 2
    assert more(reader, later) == later
    assert json.dumps(more(reader, later)) == json.dumps(later)


def test_limits_share_rows_over_brokers(net: FakeNet, stream: Make) -> None:
    reader = stream(startingOffsets="earliest", maxOffsetsPerTrigger="6")
    start, end = first_batch(reader)
    assert planned(reader, start, end) == [("T", A0, 0, 2), ("T", A1, 0, 2), ("T", B0, 0, 2)]


def test_a_group_commits_at_each_broker_and_is_right_when_available_now_ends(
    net: FakeNet, stream: Make, more: Make
) -> None:
    reader = stream(group="g", consumeFromWhere="CONSUME_FROM_FIRST_OFFSET")
    reader.prepareForTriggerAvailableNow()
    start, end = first_batch(reader)
    net.brokers["broker-a"].put("T", 0, 5)
    assert planned(reader, start, end) == [("T", A0, 0, 10), ("T", A1, 0, 10), ("T", B0, 0, 10)]
    assert more(reader, end) == end, "no more than what was there"
    assert net.brokers["broker-a"].offsets == {("g", "T", 0): 10, ("g", "T", 1): 10}
    assert net.brokers["broker-b"].offsets == {("g", "T", 0): 10}
    reader.stop()
    assert not net.brokers["broker-a"].members["g"] and not net.brokers["broker-a"].locks
    # The group goes on elsewhere, and comes back without the checkpoint.
    net.brokers["broker-a"].offsets["g", "T", 0] = 12
    again = stream(group="g")
    start, end = first_batch(again)
    assert planned(again, start, end) == [("T", A0, 12, 15)]


def test_a_new_group_begins_as_the_broker_says(net: FakeNet, stream: Make) -> None:
    net.brokers["broker-a"].queues["T", 1].min_offset = 4
    start, end = first_batch(reader := stream(group="g"))
    assert planned(reader, start, end) == [("T", A0, 0, 10), ("T", B0, 0, 10)], "A1 is old: from its end"
    start, end = first_batch(reader := stream(group="h", startingOffsets="latest"))
    assert planned(reader, start, end) == []


def test_a_second_query_of_the_group_is_refused_by_name(
    net: FakeNet, stream: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark_rmq.read import group as group_module

    monkeypatch.setattr(group_module, "CLAIM_TIMEOUT_S", 0.2)
    first_batch(stream(group="g", consumerName="reports"))
    with pytest.raises(LeaseHeldError, match=r"topic 'T' is consumed by reports_on_.*two groups"):
        stream(group="g").initialOffset()
    net.brokers["broker-b"].members["java"]["10.1.1.1@7"] = {}
    with pytest.raises(LeaseHeldError, match=r"10\.1\.1\.1@7"):
        stream(group="java").initialOffset()
    beside = stream(group="java", commitOffsets="false")
    first_batch(beside)
    assert list(net.brokers["broker-b"].members["java"]) == ["10.1.1.1@7"]


def test_the_retry_topic_of_every_broker_is_read_also_when_it_appears_later(
    net: FakeNet, stream: Make, more: Make
) -> None:
    reader = stream(group="g", startingOffsets="latest")
    _, end = first_batch(reader)
    net.brokers["broker-b"].put("%RETRY%g", 0, 2)
    later = more(reader, end)
    assert planned(reader, end, later) == [("%RETRY%g", B0, 0, 2)]
    net.brokers["broker-a"].put("%RETRY%g", 0, 3)
    last = more(reader, later, 31_000)
    assert planned(reader, later, last) == [("%RETRY%g", A0, 0, 3)]


def test_retention_between_the_plan_and_the_read_is_loss_by_range(
    net: FakeNet, stream: Make, caplog: pytest.LogCaptureFixture
) -> None:
    reader = stream(startingOffsets="earliest")
    start, end = first_batch(reader)
    parts = reader.partitions(start, end)
    net.brokers["broker-a"].queues["T", 0].min_offset = 4
    with pytest.raises(DataLossError, match=r"T-broker-a:0 \[0, 4\).*failOnDataLoss=false"):
        rows(reader, parts)
    caplog.set_level(logging.WARNING)
    tolerant = stream(startingOffsets="earliest", failOnDataLoss="false")
    assert len(rows(tolerant, parts)) == 26
    logged = [json.loads(record.message) for record in caplog.records if record.name == "pyspark_rmq.dataloss"]
    assert logged == [
        {"nameServer": "ns:9876", "brokerName": "broker-a", "time": 0, "group": None, "topic": "T", "queueId": 0,
         "startOffset": 0, "endOffset": 4, "messages": 4, "reason": "retention", "queryId": None, "batchId": None}
    ]  # fmt: skip


def test_a_stream_stays_where_it_is_while_a_slave_lags(net: FakeNet, stream: Make, more: Make) -> None:
    reader = stream(startingOffsets="earliest")
    start, end = first_batch(reader)
    broker = net.brokers["broker-a"]
    broker.processes[0].down = True
    broker.processes[1].end = 6
    assert more(reader, end) == end
    # Also in a new process, which has not seen the ends of the master.
    again = stream(startingOffsets="earliest")
    assert more(again, end) == end
    assert planned(again, start, end) == [("T", A0, 0, 10), ("T", A1, 0, 10), ("T", B0, 0, 10)]
    net.brokers["broker-b"].put("T", 0, 1)
    later = more(again, end)
    assert planned(again, end, later) == [("T", B0, 10, 11)]


def test_a_master_that_has_lost_its_tail_is_loss(net: FakeNet, stream: Make, more: Make) -> None:
    """An asynchronous slave became master: messages that were read from the old one are not there."""
    reader = stream(startingOffsets="earliest")
    _, end = first_batch(reader)
    for offset in range(7, 10):
        del net.brokers["broker-a"].queues["T", 1].frames[offset]
    with pytest.raises(DataLossError, match=r"has read T-broker-a:1 \["):
        more(reader, end)


def replaced(net: FakeNet, queue_id: int, first: int, end: int) -> None:
    """Messages [first, end) of a queue of broker-a are those that it got after it had lost the end of its log."""
    from rmq_store.format.frames.stored_message import encode_frame

    from ...storage.remoting.cluster.fake_cluster import HOST

    for offset in range(first, end):
        net.brokers["broker-a"].queues["T", queue_id].frames[offset] = encode_frame(
            topic="T", body=b"replaced", properties=b"", queue_id=queue_id, queue_offset=offset,
            commit_log_offset=7_000 * (offset + 1) + 100, born_timestamp_ms=1, born_host=HOST,
            store_timestamp_ms=1_700_000_100_000 + offset, store_host=HOST,
        )  # fmt: skip


@pytest.mark.parametrize("restarts", [True, False])
def test_all_queues_of_a_broker_go_back_to_what_has_replaced_its_lost_end(
    net: FakeNet, stream: Make, more: Make, restarts: bool
) -> None:
    """Only of one of them the position has a message that tells."""
    options = {"startingOffsets": "earliest"}
    start, end = first_batch(reader := stream(**options))
    assert end["after"]["T"].keys() == {"broker-a:0", "broker-b:0"}, "one of each broker"
    assert planned(reader, start, end)
    replaced(net, 0, 6, 14)
    replaced(net, 1, 8, 11)
    with pytest.raises(DataLossError, match=r"has read T-broker-a:0 \[6, 10\), T-broker-a:1 \[8, 10\)"):
        more(stream(**options) if restarts else reader, end)
    tolerant = stream(**options, failOnDataLoss="false")
    later = more(tolerant, end)
    assert planned(tolerant, end, later) == [("T", A0, 6, 14), ("T", A1, 8, 11)]


def test_the_newest_message_that_was_read_of_a_broker_tells_of_its_lost_end(
    net: FakeNet, stream: Make, more: Make
) -> None:
    net.brokers["broker-a"].put("T", 1, 3)
    _, end = first_batch(reader := stream(startingOffsets="earliest"))
    assert end["after"]["T"].keys() == {"broker-a:1", "broker-b:0"}
    replaced(net, 1, 11, 14)  # what queue 0 has is older
    with pytest.raises(DataLossError, match=r"has read T-broker-a:1 \[11, 13\)"):
        more(reader, end)


def test_another_message_at_the_position_is_found_at_each_broker(net: FakeNet, stream: Make, more: Make) -> None:
    from rmq_store.format.frames.stored_message import encode_frame

    from ...storage.remoting.cluster.fake_cluster import HOST

    reader = stream(startingOffsets="earliest")
    _, end = first_batch(reader)
    net.brokers["broker-b"].queues["T", 0].frames[9] = encode_frame(
        topic="T", body=b"other", properties=b"", queue_id=0, queue_offset=9, commit_log_offset=70_123,
        born_timestamp_ms=1, born_host=HOST, store_timestamp_ms=1_700_000_000_009, store_host=HOST,
    )  # fmt: skip
    with pytest.raises(DataLossError, match=r"T-broker-b:0.*commit-log offset 70000.*70123"):
        more(reader, end)


def test_a_checkpoint_of_another_cluster_or_of_a_store_is_refused(net: FakeNet, stream: Make) -> None:
    reader = stream(startingOffsets="earliest")
    _, end = first_batch(reader)
    with pytest.raises(UsageError, match="belongs to store cluster:Other, but the store that is there is cluster:Def"):
        stream().latestOffset({**end, "store": "cluster:Other"}, LIMIT)


def test_a_checkpoint_is_of_the_clusters_that_have_its_topics(net: FakeNet, stream: Make, more: Make) -> None:
    """Other clusters come to the same name servers and go; a topic moves from one cluster to another."""
    net.add_broker("other-a").put("Others", 0, 3)
    net.brokers["other-a"].cluster = "Other"
    reader = stream(startingOffsets="earliest")
    start, end = first_batch(reader)
    assert start["store"] == end["store"] == "cluster:DefaultCluster"
    assert more(stream(), end) == end
    assert more(stream(), {**end, "store": "cluster:Away,DefaultCluster"})["store"] == "cluster:Away,DefaultCluster"
    net.brokers["other-a"].put("T", 0, 3)
    both = more(again := stream(), end, 31_000)
    assert both["store"] == "cluster:DefaultCluster,Other"
    assert planned(again, end, both) == [("T", BrokerQueueId("other-a", 0), 0, 3)]
    with pytest.raises(UsageError, match="belongs to store cluster:Other, but the store that is there is cluster:Def"):
        net.brokers["other-a"].topics.clear()
        stream().latestOffset({**end, "store": "cluster:Other"}, LIMIT)


@pytest.mark.parametrize("filters", ["none", "broker-a", "both"])
def test_a_condition_on_properties_is_evaluated_where_brokers_do_so_and_always_here(
    net: FakeNet, filters: str, caplog: pytest.LogCaptureFixture
) -> None:
    for number, broker in enumerate(net.brokers.values()):
        broker.property_filter = filters == "both" or broker.name == filters
        broker.create_topic("S", 1)
        for _ in range(50):
            broker.put("S", 0, 1, tags=f"Tag{number}")
            broker.put("S", 0, 1, tags="Other")
    net.brokers["broker-a"].put("S", 0, 1)
    sent: list[int] = []
    inner = net.call

    def call(address: str, command: Any, timeout_ms: int) -> Any:
        answer = inner(address, command, timeout_ms)
        if command.code == 11 and answer.code == 0:
            sent.append(len(answer.body))
        return answer

    net.call = call  # type: ignore[method-assign]
    schema = StructType([READABLE[name] for name in ("queueOffset", "brokerName", "tags", "body")])
    given = {"nameServer": "ns:9876", "subscribe": "S", "sqlFilter": "TAGS IN ('Tag0', 'Tag1') AND UNIQ_KEY <> ''"}
    reader = RmqReader(source_options(given, "batch read", 0), schema)
    found = rows(reader, reader.partitions())
    assert [(row["brokerName"], row["queueOffset"], row["tags"]) for row in found] == [
        (name, offset, f"Tag{number}")
        for number, name in enumerate(net.brokers) for offset in range(0, 100, 2)
    ]  # fmt: skip
    size = len(net.brokers["broker-a"].queues["S", 0].frames[0])
    halves = {"none": 0, "broker-a": 1, "both": 2}[filters]
    assert abs(sum(sent) - (201 - 50 * halves - (halves > 0)) * size) < 1000, "each message is sent once at most"
    said = [record.message for record in caplog.records if "does not evaluate SQL92" in record.message]
    assert len(said) == 2 - halves


def test_a_condition_is_looked_at_here_before_any_broker_sees_it(net: FakeNet) -> None:
    """A broker takes a condition that it cannot parse for one that all messages fulfil."""
    for wrong, said in {"a >": "sqlFilter", "": "sqlFilter is empty", "a > 1 a": "sqlFilter"}.items():
        with pytest.raises(UsageError, match=said):
            batch(sqlFilter=wrong)
    with pytest.raises(UsageError, match="tags and sqlFilter exclude each other"):
        batch(sqlFilter="a > 1", tags="TagA")


def test_what_comes_back_to_a_group_has_passed_its_condition_before(net: FakeNet, stream: Make, more: Make) -> None:
    for broker in net.brokers.values():
        broker.property_filter = True
    reader = stream(group="g", startingOffsets="latest", sqlFilter="TAGS = 'TagA'")
    _, end = first_batch(reader)
    net.brokers["broker-b"].put("%RETRY%g", 0, 2)
    net.brokers["broker-a"].put("T", 0, 2, tags="TagA")
    net.brokers["broker-a"].put("T", 0, 2, tags="TagB")
    later = more(reader, end)
    found = rows(reader, reader.partitions(end, later))
    assert sorted((row["topic"], row["queueOffset"]) for row in found) == [
        ("%RETRY%g", 0), ("%RETRY%g", 1), ("T", 10), ("T", 11),
    ]  # fmt: skip


def test_a_look_up_compares_the_keys_that_brokers_found_by_hash(net: FakeNet) -> None:
    # The broker in memory finds by a part of the bytes: more than what was asked for.
    reader = RmqReader(
        source_options({"nameServer": "ns:9876", "subscribe": "T", "uniqKey": f"{3:032X}"}, "batch read", 0),
        StructType([READABLE["queueOffset"], READABLE["brokerName"]]),
    )
    found = rows(reader, reader.partitions())
    assert sorted((row["brokerName"], row["queueOffset"]) for row in found) == [
        ("broker-a", 3), ("broker-a", 3), ("broker-b", 3),
    ]  # fmt: skip
    nothing = RmqReader(
        source_options({"nameServer": "ns:9876", "subscribe": "T", "key": f"{3:032X}"}, "batch read", 0), SOURCE_SCHEMA
    )
    parts = nothing.partitions()
    assert parts and rows(nothing, parts) == []


def test_the_progress_names_the_cluster_and_the_ends(net: FakeNet, stream: Make) -> None:
    reader = stream(group="g", startingOffsets="earliest")
    first_batch(reader)
    reported = reader.reportLatestOffset()
    assert reported is not None
    assert (reported["nameServer"], reported["group"]) == ("ns:9876", "g") and "path" not in reported
    assert reported["topics"]["T"] == {"broker-a:0": 10, "broker-a:1": 10, "broker-b:0": 10}


def test_trigger_once_reads_everything(net: FakeNet, stream: Make) -> None:
    reader = stream(startingOffsets="earliest", maxOffsetsPerTrigger="1")
    start = through_spark(reader.initialOffset())
    end = through_spark(reader.latestOffset(start, ReadAllAvailable()))
    assert sum(last - first for _, _, first, last in planned(reader, start, end)) == 30


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_hundred_brokers_with_a_hundred_queues_are_asked_a_few_hundred_times(
    net: FakeNet, clock: Clock, stream: Make, more: Make
) -> None:
    """Not once for each of 10,000 queues, neither with messages in all of them nor without any."""
    net.brokers.clear()
    for number in range(100):
        broker = net.add_broker(f"broker-{number:03}")
        broker.create_topic("T", 100)
        for queue_id in range(100):
            broker.put("T", queue_id, 1)
    reader = stream(startingOffsets="earliest")
    net.calls.clear()
    start = through_spark(reader.initialOffset())
    assert Counter(net.codes()) == {351: 100, 202: 100}, "kinds of topics are asked once"
    end = more(reader, start)
    assert len(planned(reader, start, end)) == 10_000
    for broker in net.brokers.values():
        for queue_id in range(100):
            broker.put("T", queue_id, 1)
    net.calls.clear()
    later = more(reader, end)
    assert len(planned(reader, end, later)) == 10_000
    assert Counter(net.codes()) == {202: 100, 11: 200}
    net.calls.clear()
    assert more(reader, later) == later
    assert Counter(net.codes()) == {202: 100, 11: 100}
    net.calls.clear()
    clock.now_ms += 5_000
    assert through_spark(reader.latestOffset(later, LIMIT)) == later
    assert Counter(net.codes()) == {202: 100}, "nothing has changed since"
