"""Queues that a stream sees first when it runs: their brokers were away when it began, or they are new."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from pyspark_rmq.access.cluster_location import ClusterLocation
from pyspark_rmq.options.options import source_options
from pyspark_rmq.position.position import StreamPosition
from pyspark_rmq.position.queue_ids import BrokerQueueId
from pyspark_rmq.read.away_brokers import since_start

from ...storage.remoting.cluster.fake_cluster import FakeBroker, FakeNet
from ..planned_batches import first_batch, planned, through_spark

Make = Callable[..., Any]
A0, A1, B0, C0 = (BrokerQueueId(*one) for one in (("broker-a", 0), ("broker-a", 1), ("broker-b", 0), ("broker-c", 0)))
pytestmark = pytest.mark.usefixtures("in_memory")

# Message n of a queue of the net is stored n ms after this time.
EPOCH_MS = 1_700_000_000_000


@pytest.fixture
def away(net: FakeNet) -> FakeBroker:
    """broker-b with ten messages of T, which is away."""
    return net.brokers.pop("broker-b")


@pytest.fixture
def begins_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Set the time of this host, in ms after EPOCH_MS."""

    def begins_at(ms: int) -> None:
        monkeypatch.setattr(ClusterLocation, "clock", lambda location: lambda: EPOCH_MS + ms)

    return begins_at


def back(net: FakeNet, broker: FakeBroker) -> None:
    net.brokers[broker.name] = broker


@pytest.mark.parametrize("version", [413, 399])
def test_a_latest_stream_leaves_out_what_is_older_than_its_start(
    net: FakeNet, away: FakeBroker, stream: Make, more: Make, begins_at: Make, caplog: pytest.LogCaptureFixture,
    version: int,
) -> None:  # fmt: skip
    begins_at(7)
    away.processes[0].version = version
    away.queues["T", 0].min_offset = 2  # retention was here
    reader = stream()
    start, end = first_batch(reader)
    assert planned(reader, start, end) == []
    assert (end["version"], end["since"]) == (3, {"T": EPOCH_MS + 7})
    back(net, away)
    with caplog.at_level(logging.WARNING):
        later = more(reader, end, 31_000)
    assert planned(reader, end, later) == [("T", B0, 7, 10)]
    assert later["began"] == {"T": {"broker-b:0": 7}} and later["since"] == end["since"]
    assert "T-broker-b:0 [2, 7), in queues that turned up after the query began" in caplog.text
    assert "onLateQueue=read" in caplog.text
    lines = [json.loads(record.message) for record in caplog.records if record.name == "pyspark_rmq.dataloss"]
    assert [(one["brokerName"], one["startOffset"], one["endOffset"], one["reason"]) for one in lines] == [
        ("broker-b", 2, 7, "before the start")
    ]


def test_a_queue_with_older_messages_only_is_read_from_its_end(
    net: FakeNet, away: FakeBroker, stream: Make, more: Make, begins_at: Make
) -> None:
    begins_at(3_600_000)
    reader = stream()
    _, end = first_batch(reader)
    back(net, away)
    later = more(reader, end, 31_000)
    assert planned(reader, end, later) == [] and later["topics"]["T"]["broker-b:0"] == 10


def test_the_start_survives_restarts_and_the_first_batch_is_repeated_with_it(
    net: FakeNet, away: FakeBroker, stream: Make, more: Make, begins_at: Make
) -> None:
    begins_at(4)
    _, end = first_batch(stream())
    net.brokers["broker-a"].put("T", 0, 1)
    begins_at(9)
    again = stream()
    start = through_spark(again.initialOffset())  # as Spark asks, if the first batch was not completed
    assert planned(again, start, end) == []
    later = more(again, end)
    assert planned(again, end, later) == [("T", A0, 10, 11)] and later["since"] == end["since"]
    back(net, away)
    third = stream()
    last = more(third, later, 31_000)
    assert planned(third, later, last) == [("T", B0, 4, 10)], "not from the time of the restart"


def test_older_messages_are_read_by_option(
    net: FakeNet, away: FakeBroker, stream: Make, more: Make, begins_at: Make, caplog: pytest.LogCaptureFixture
) -> None:
    begins_at(7)
    _, end = first_batch(stream())
    back(net, away)
    reader = stream(onLateQueue="read")
    later = more(reader, end, 31_000)
    assert planned(reader, end, later) == [("T", B0, 0, 10)]
    assert "T-broker-b:0 [0, 7)" in caplog.text and "they are read, because onLateQueue=read" in caplog.text


def test_a_queue_that_is_new_is_read_from_its_first_message(
    net: FakeNet, stream: Make, more: Make, begins_at: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one of a broker whose first messages retention has taken."""
    begins_at(0)
    reader = stream()
    _, end = first_batch(reader)
    net.brokers["broker-a"].create_topic("T", 3)
    net.brokers["broker-a"].put("T", 2, 2)
    net.add_broker("broker-c").put("T", 0, 5)
    net.brokers["broker-c"].queues["T", 0].min_offset = 3
    later = more(reader, end, 31_000)
    assert planned(reader, end, later) == [("T", BrokerQueueId("broker-a", 2), 0, 2), ("T", C0, 3, 5)]
    assert "older" not in caplog.text


def test_a_topic_of_a_pattern_that_turns_up_at_a_broker_that_was_away(
    net: FakeNet, away: FakeBroker, stream: Make, more: Make, begins_at: Make
) -> None:
    begins_at(6)
    reader = stream(subscribePattern="T.*")
    _, end = first_batch(reader)
    assert end["since"] == {"*": EPOCH_MS + 6}
    away.put("T2", 0, 8)
    back(net, away)
    later = more(reader, end, 31_000)
    assert planned(reader, end, later) == [("T", B0, 6, 10), ("T2", B0, 6, 8)]


def test_a_topic_that_the_user_adds_is_read_from_its_first_message(
    net: FakeNet, stream: Make, more: Make, begins_at: Make, caplog: pytest.LogCaptureFixture
) -> None:
    begins_at(7)
    net.brokers["broker-b"].put("U", 0, 9)
    _, end = first_batch(stream())
    reader = stream(subscribe="T,U")
    later = more(reader, end, 31_000)
    assert planned(reader, end, later) == [("U", B0, 0, 9)]
    assert "start of the query" not in caplog.text


def test_with_assign_no_queue_turns_up(net: FakeNet, stream: Make, more: Make, begins_at: Make) -> None:
    """A queue that is not there is an error. One that the user adds is read from its first message."""
    begins_at(7)
    _, end = first_batch(stream(assign='{"T":["broker-a:0"]}'))
    assert "since" not in end and end["version"] == 1
    reader = stream(assign='{"T":["broker-a:0","broker-b:0"]}')
    later = more(reader, end)
    assert planned(reader, end, later) == [("T", B0, 0, 10)]


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"startingOffsets": "latest"}, 7),
        ({"startingOffsets": "earliest"}, 0),
        ({"startingOffsets": '{"T":{"broker-a:0":-1,"broker-a:1":-1}}'}, 7),
        ({"startingOffsets": '{"T":{"broker-a:0":-1,"broker-a:1":-2}}'}, 0),
        ({"startingOffsets": '{"T":{"broker-a:0":-1,"broker-a:1":4}}'}, 0),
        ({"startingTimestamp": str(EPOCH_MS + 3)}, 3),
        ({"startingOffsetsByTimestamp": f'{{"T":{{"0":{EPOCH_MS + 5},"1":{EPOCH_MS + 2}}}}}'}, 2),
        ({"group": "g", "startingOffsets": "latest"}, 7),
        ({"group": "g", "startingOffsets": "earliest"}, 0),
        ({"group": "g", "commitOffsets": "false", "startingTimestamp": str(EPOCH_MS + 3)}, 3),
        ({"group": "old"}, 9),
        ({"group": "old", "startingOffsets": "latest"}, 9),
    ],
)
def test_a_late_queue_begins_where_the_query_would_have_begun_in_it(
    net: FakeNet, away: FakeBroker, stream: Make, more: Make, begins_at: Make, options: dict[str, str], first: int
) -> None:
    begins_at(7)
    away.groups.add("old")
    away.offsets["old", "T", 0] = 9
    reader = stream(**options)
    _, end = first_batch(reader)
    back(net, away)
    later = more(reader, end, 31_000)
    assert planned(reader, end, later)[-1] == ("T", B0, first, 10)


@pytest.mark.parametrize(
    ("where", "is_young", "first"),
    [("CONSUME_FROM_LAST_OFFSET", True, 0), ("CONSUME_FROM_LAST_OFFSET", False, 7),
     ("CONSUME_FROM_FIRST_OFFSET", False, 1)],
)  # fmt: skip
def test_a_group_without_an_offset_begins_in_a_late_queue_as_it_says(
    net: FakeNet, away: FakeBroker, stream: Make, more: Make, begins_at: Make, where: str, is_young: bool, first: int
) -> None:
    """A broker lets a group begin at 0 in a queue that has its first message."""
    begins_at(7)
    away.queues["T", 0].min_offset = 0 if is_young else 1
    reader = stream(group="g", consumeFromWhere=where)
    _, end = first_batch(reader)
    back(net, away)
    later = more(reader, end, 31_000)
    assert planned(reader, end, later)[-1] == ("T", B0, first, 10)


@pytest.mark.parametrize("topics", [{}, {"subscribePattern": "T.*"}])
def test_what_failed_in_a_group_is_not_skipped(
    net: FakeNet, away: FakeBroker, stream: Make, more: Make, begins_at: Make, topics: dict[str, str]
) -> None:
    begins_at(7)
    away.put("%RETRY%g", 0, 2)
    reader = stream(group="g", startingOffsets="latest", **topics)
    _, end = first_batch(reader)
    back(net, away)
    later = more(reader, end, 31_000)
    assert planned(reader, end, later) == [("%RETRY%g", B0, 0, 2), ("T", B0, 7, 10)]


def test_only_late_queues_are_looked_up_by_time(
    net: FakeNet, away: FakeBroker, stream: Make, more: Make, begins_at: Make
) -> None:
    """All at once, and no other queue: a look-up is several requests at brokers of 4.x, and others may be away."""
    begins_at(7)
    away.put("T", 1, 9)
    reader = stream()
    _, end = first_batch(reader)
    back(net, away)
    net.calls.clear()
    later = more(reader, end, 31_000)
    asked = [(address, command.ext_fields["queueId"]) for address, command in net.calls if command.code == 29]
    assert sorted(asked) == [("broker-b-0:10911", "0"), ("broker-b-0:10911", "1")]
    assert later["began"] == {"T": {"broker-b:0": 7, "broker-b:1": 7}}


def test_available_now_reads_the_late_queue_up_to_its_end(
    net: FakeNet, away: FakeBroker, stream: Make, more: Make, begins_at: Make
) -> None:
    begins_at(7)
    _, end = first_batch(stream())
    back(net, away)
    reader = stream()
    reader.prepareForTriggerAvailableNow()
    away.put("T", 0, 1)
    later = more(reader, end)
    assert planned(reader, end, later) == [("T", B0, 7, 10)]


def test_a_checkpoint_of_an_earlier_version_keeps_its_rule_with_a_warning(
    net: FakeNet, away: FakeBroker, stream: Make, more: Make, begins_at: Make, caplog: pytest.LogCaptureFixture
) -> None:
    begins_at(7)
    _, end = first_batch(stream())
    old = {name: value for name, value in end.items() if name != "since"} | {"version": 1}
    back(net, away)
    reader = stream()
    later = more(reader, old, 31_000)
    assert planned(reader, old, later) == [("T", B0, 0, 10)] and later["version"] == 1
    assert "does not have the start of the query" in caplog.text and "T-broker-b:0 [0, 10)" in caplog.text
    caplog.clear()
    more(stream(startingOffsets="earliest"), old, 31_000)
    assert "start of the query" not in caplog.text, "all is read in any case"


def test_a_store_keeps_no_start() -> None:
    options = source_options({"path": "/s", "subscribe": "T"}, "stream read", 1)
    assert since_start(options) == {}
    assert StreamPosition("s", {}).since_ms("T") is None
    assert StreamPosition("s", {}, since={"*": 5, "U": 6}).since_ms("U") == 6
