"""A cluster in memory, read by the questions that the connector asks of a store."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from helpers.undecodable import KINDS, undecodable
from pyspark_rmq.access.cluster_reader import ClusterReader
from pyspark_rmq.access.queue_source import SliceRead
from pyspark_rmq.position.planning import QueueSlice, Range, UnsureRange
from pyspark_rmq.position.position import Queue
from pyspark_rmq.position.queue_ids import BrokerQueueId
from rmq_store.errors import OffsetOutOfRangeError, TopicKindError, UnknownTopicError
from rmq_store.format.frames import frame_walk
from rmq_store.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupTable
from rmq_store.protocol.errors import MQBrokerError, RemotingConnectError
from rmq_store.protocol.results import QueueRange
from rmq_store.protocol.wire.command import RemotingCommand, response_to
from rmq_store.remoting.cluster.pulls import checks

from ...storage.remoting.cluster.fake_cluster import FakeNet

A0, A1, B0 = BrokerQueueId("broker-a", 0), BrokerQueueId("broker-a", 1), BrokerQueueId("broker-b", 0)
ALL = ["topic", "queueId", "queueOffset", "brokerName", "body", "tags"]


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000.0

    def __call__(self) -> float:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def net() -> FakeNet:
    made = FakeNet()
    for name in ("broker-a", "broker-b"):
        broker = made.add_broker(name, slaves=1)
        broker.create_topic("Orders", 2 if name == "broker-a" else 1)
        broker.put("Orders", 0, 10, tags="TagA")
    made.brokers["broker-a"].put("Orders", 1, 5, tags="TagB")
    return made


@pytest.fixture
def reader(net: FakeNet, clock: Clock) -> ClusterReader:
    return ClusterReader(net.cluster(timer=clock), timer_ms=clock)


def offsets(reader: ClusterReader, queue_id: BrokerQueueId, start: int, end: int, **options: Any) -> list[int]:
    wanted = SliceRead(QueueSlice("Orders", queue_id, start, end), **({"columns": ALL} | options))
    batches = list(reader.read_slice(wanted))
    return [offset for batch in batches for offset in batch.column("queueOffset").to_pylist()]


def range_of(reader: ClusterReader, queue_id: BrokerQueueId) -> Range:
    return reader.ranges([Queue("Orders", queue_id)])[Queue("Orders", queue_id)]


def later(clock: Clock, reader: ClusterReader, by_ms: float = 5_000) -> None:
    clock.now_ms += by_ms
    reader.refresh()


def test_queues_of_all_brokers_are_one_topic(reader: ClusterReader) -> None:
    assert reader.queue_ranges("Orders") == {A0: QueueRange(0, 10), A1: QueueRange(0, 5), B0: QueueRange(0, 10)}
    assert range_of(reader, A1) == QueueRange(0, 5)
    with pytest.raises(RemotingConnectError, match="broker broker-x has no master"):
        range_of(reader, BrokerQueueId("broker-x", 0))
    assert reader.identity == "cluster:DefaultCluster"
    assert list(reader.topics()) == ["Orders"]
    assert reader.find_topic("Orders") == "Orders" and reader.find_topic("Nope") is None
    with pytest.raises(UnknownTopicError, match="no broker has a topic 'Nope', as the name servers ns:9876 say"):
        reader.queue_ranges("Nope")
    with pytest.raises(UnknownTopicError, match=r"; did you mean 'Orders'\?$"):
        reader.queue_ranges("Order")


def test_one_look_is_one_request_per_broker_and_idle_polls_ask_nobody(
    reader: ClusterReader, net: FakeNet, clock: Clock
) -> None:
    reader.queue_ranges("Orders")
    reader.refresh()
    net.calls.clear()
    later(clock, reader)
    assert net.codes() == [202, 202]
    end = reader.version()
    for _ in range(50):
        reader.refresh()
        assert reader.is_still(end)
    assert net.codes() == [202, 202]
    clock.now_ms += 21  # 10 ms for each of the two brokers
    assert not reader.is_still(end)
    reader.refresh()
    assert net.codes() == [202] * 4 and reader.version() == end


def test_news_are_planned_without_a_second_look(reader: ClusterReader, net: FakeNet, clock: Clock) -> None:
    reader.queue_ranges("Orders")
    later(clock, reader)
    before = reader.version()
    net.brokers["broker-a"].put("Orders", 0, 3)
    later(clock, reader)
    assert reader.version() != before
    assert range_of(reader, A0).max_offset == 13
    net.calls.clear()
    clock.now_ms += 90
    reader.refresh()
    assert net.codes() == []
    clock.now_ms += 20
    reader.refresh()
    assert net.codes() == [202, 202]


def test_messages_are_read_in_order_with_the_broker_in_their_rows(reader: ClusterReader, net: FakeNet) -> None:
    net.brokers["broker-a"].put("Orders", 0, 300)
    assert offsets(reader, A0, 4, 300) == list(range(4, 300))
    (batch,) = reader.read_slice(SliceRead(QueueSlice("Orders", A1, 0, 5), ALL))
    assert batch.slice(0, 1).to_pylist() == [
        {"topic": "Orders", "queueId": 1, "queueOffset": 0, "brokerName": "broker-a", "body": b"body", "tags": "TagB"}
    ]
    pulls = [command.ext_fields for _, command in net.calls if command.code == 11]
    assert {(fields["consumerGroup"], fields["sysFlag"]) for fields in pulls} == {("TOOLS_CONSUMER", "4")}
    with pytest.raises(OffsetOutOfRangeError):
        offsets(reader, A1, 0, 6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_that_cannot_be_inflated_is_read_as_it_lies(reader: ClusterReader, net: FakeNet, kind: str) -> None:
    body, flags = undecodable()[kind]
    net.brokers["broker-a"].put("Orders", 1, 1, body)
    frames = net.brokers["broker-a"].queues["Orders", 1].frames
    frames[5] = frames[5][:36] + flags.to_bytes(4, "big") + frames[5][40:]
    net.brokers["broker-a"].put("Orders", 1, 1)
    (batch,) = reader.read_slice(SliceRead(QueueSlice("Orders", A1, 4, 7), ["body", "sysFlag"]))
    assert batch.column("body").to_pylist() == [b"body", body, b"body"]
    assert batch.column("sysFlag").to_pylist() == [0, flags, 0]


def test_just_some_rows_are_read_by_short_ranges(reader: ClusterReader, net: FakeNet) -> None:
    net.brokers["broker-a"].put("Orders", 0, 1000)
    net.calls.clear()
    assert offsets(reader, A0, 3, 900, only=np.array([1, 5, 7, 800, 950])) == [5, 7, 800]
    assert len(net.codes()) == 2


def test_the_broker_filters_tags_and_the_texts_are_compared_again(reader: ClusterReader, net: FakeNet) -> None:
    broker = net.brokers["broker-a"]
    broker.put("Orders", 0, 50, tags="TagB")
    broker.put("Orders", 0, 1, tags="TagA")
    net.calls.clear()
    assert offsets(reader, A0, 0, 61, tags="TagA || Other") == [*range(10), 60]
    pulls = [command.ext_fields for _, command in net.calls if command.code == 11]
    assert {fields["subscription"] for fields in pulls} == {"TagA || Other"}


def test_a_namespace_is_on_the_wire_only(net: FakeNet) -> None:
    net.brokers["broker-a"].put("tenant%Orders", 0, 3)
    reader = ClusterReader(net.cluster(namespace="tenant"))
    assert reader.queue_ranges("Orders") == {A0: QueueRange(0, 3)}
    assert list(reader.topics()) == ["Orders"]
    (batch,) = reader.read_slice(SliceRead(QueueSlice("Orders", A0, 0, 3), ["topic"]))
    assert batch.column(0).to_pylist() == ["Orders"] * 3


def test_messages_around_a_position_are_known_by_one_pull(reader: ClusterReader, net: FakeNet, clock: Clock) -> None:
    net.calls.clear()
    assert reader.commit_log_offset_before("Orders", A0, 4) == 7_000 * 4
    assert reader.store_timestamp("Orders", A0, 3) == 1_700_000_000_003
    assert net.codes() == [11]
    assert reader.commit_log_offset_before("Orders", A0, 0) == -1
    net.brokers["broker-a"].queues["Orders", 0].min_offset = 5
    assert reader.commit_log_offset_before("Orders", A0, 4) == 7_000 * 4, "known until the next look"
    later(clock, reader)
    assert reader.commit_log_offset_before("Orders", A0, 4) == -1
    with pytest.raises(OffsetOutOfRangeError):
        reader.store_timestamp("Orders", A0, 3)


def test_each_byte_of_a_read_is_checked_once(
    reader: ClusterReader, net: FakeNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A walk computes the CRC of each frame that it passes: the one that knows what must come, or the other one."""
    net.brokers["broker-b"].put("Orders", 0, 5_000, b"x" * 1000)
    walked: list[int] = []

    def count_calls(walk: Callable[..., Any]) -> Callable[..., Any]:
        def counted(body: bytes, *given: int) -> Any:
            found = walk(body, *given)
            walked.extend([] if found is None else [len(body)])
            return found

        return counted

    monkeypatch.setattr(frame_walk, "_walk", count_calls(frame_walk._walk))
    monkeypatch.setattr(checks, "dense_frames", count_calls(checks.dense_frames))
    assert offsets(reader, B0, 0, 5_010) == list(range(5_010))
    assert len(walked) > 1 and sum(walked) == sum(map(len, net.brokers["broker-b"].queues["Orders", 0].frames.values()))


def test_times_are_asked_of_the_brokers(reader: ClusterReader) -> None:
    assert reader.offset_by_time("Orders", A0, 1_700_000_000_007) == 7
    assert reader.offset_by_time("Orders", A1, 1_800_000_000_000) == 5


def test_a_slave_tells_ends_that_may_be_late(reader: ClusterReader, net: FakeNet, clock: Clock) -> None:
    reader.queue_ranges("Orders")
    broker = net.brokers["broker-a"]
    broker.processes[0].down = True
    broker.processes[1].end = 7
    later(clock, reader)
    assert range_of(reader, A0) == UnsureRange(0, 7)
    assert range_of(reader, B0) == QueueRange(0, 10)
    assert reader.commit_log_offset_before("Orders", A0, 10) == -1, "not at the slave yet"
    assert reader.commit_log_offset_before("Orders", A0, 5) == 7_000 * 5
    broker.processes[0].down = False
    later(clock, reader, 60_000)
    assert range_of(reader, A0) == QueueRange(0, 10)


def test_a_first_look_takes_what_a_slave_has_of_a_topic_that_it_does_not_list_yet(
    reader: ClusterReader, net: FakeNet
) -> None:
    """A slave learns of topics up to a minute late; its queues were left out, and a batch read had too few rows."""
    broker = net.brokers["broker-a"]
    broker.processes[0].down = True
    reader._cluster.route("Orders")
    del broker.topics["Orders"]
    assert reader.queue_ranges("Orders") == {A0: UnsureRange(0, 10), A1: UnsureRange(0, 5), B0: QueueRange(0, 10)}


@pytest.mark.parametrize("leaves_the_route", [True, False])
def test_a_broker_that_is_away_keeps_what_is_known_of_it(
    reader: ClusterReader, net: FakeNet, clock: Clock, leaves_the_route: bool
) -> None:
    reader.queue_ranges("Orders")
    broker = net.brokers["broker-a"]
    processes = dict(broker.processes)
    for process in processes.values():
        process.down = True
    if leaves_the_route:
        broker.processes.clear()
    for _ in range(3):
        later(clock, reader, 40_000)
        assert reader.queue_ranges("Orders") == {A0: UnsureRange(0, 10), A1: UnsureRange(0, 5), B0: QueueRange(0, 10)}
    for process in processes.values():
        process.down = False
    broker.processes.update(processes)
    broker.put("Orders", 1, 1)
    later(clock, reader, 40_000)
    assert reader.queue_ranges("Orders") == {A0: QueueRange(0, 10), A1: QueueRange(0, 6), B0: QueueRange(0, 10)}


def test_a_broker_that_nobody_knows_anything_of_is_an_error_by_name(reader: ClusterReader, net: FakeNet) -> None:
    for process in net.brokers["broker-b"].processes.values():
        process.down = True
    with pytest.raises(RemotingConnectError, match="broker broker-b"):
        reader.queue_ranges("Orders")


def test_a_topic_that_a_broker_loses_has_no_queues_there(reader: ClusterReader, net: FakeNet, clock: Clock) -> None:
    reader.queue_ranges("Orders")
    del net.brokers["broker-a"].topics["Orders"]
    later(clock, reader, 40_000)
    assert reader.queue_ranges("Orders") == {B0: QueueRange(0, 10)}


def test_queues_and_topics_that_come_are_noticed(reader: ClusterReader, net: FakeNet, clock: Clock) -> None:
    assert reader.find_topic("%RETRY%cg") is None
    reader.queue_ranges("Orders")
    topics, before = reader.topics(), reader.version()
    net.brokers["broker-b"].put("%RETRY%cg", 0, 2)
    later(clock, reader, 5_000)
    assert reader.version() != before and reader.find_topic("%RETRY%cg") is not None
    assert reader.queue_ranges("%RETRY%cg") == {B0: QueueRange(0, 2)}
    net.brokers["broker-a"].put("%RETRY%cg", 0, 1)
    net.brokers["broker-a"].create_topic("Orders", 3)
    later(clock, reader, 31_000)
    assert reader.queue_ranges("%RETRY%cg") == {A0: QueueRange(0, 1), B0: QueueRange(0, 2)}
    assert BrokerQueueId("broker-a", 2) in reader.queue_ranges("Orders")
    assert reader.topics() is not topics and "%RETRY%cg" in reader.topics()
    same = reader.topics()
    later(clock, reader, 31_000)
    assert reader.topics() is same


def test_without_the_right_for_topic_stats_each_queue_is_asked(reader: ClusterReader, net: FakeNet) -> None:
    net.brokers["broker-a"].refused[202] = 16, "no permission"
    assert reader.queue_ranges("Orders") == {A0: QueueRange(0, 10), A1: QueueRange(0, 5), B0: QueueRange(0, 10)}
    net.brokers["broker-a"].refused[202] = 1, "org.apache.rocketmq.acl.common.AclException: No default permission"
    found = ClusterReader(net.cluster()).queue_ranges("Orders")
    assert found == {A0: QueueRange(0, 10), A1: QueueRange(0, 5), B0: QueueRange(0, 10)}, "as a broker of 4.9 refuses"
    net.brokers["broker-a"].refused[202] = 1, "broken"
    with pytest.raises(MQBrokerError, match="broken"):
        ClusterReader(net.cluster()).queue_ranges("Orders")


@pytest.mark.parametrize("code", [2, 14, 215, 1500])
def test_the_known_ends_stay_while_a_broker_is_busy(
    reader: ClusterReader, net: FakeNet, clock: Clock, code: int
) -> None:
    with pytest.raises(MQBrokerError, match="not now"):
        net.brokers["broker-a"].refused[202] = (code, "not now")
        reader.queue_ranges("Orders")
    del net.brokers["broker-a"].refused[202]
    reader.queue_ranges("Orders")
    net.brokers["broker-a"].refused[202] = (code, "not now")
    later(clock, reader)
    assert reader.queue_ranges("Orders") == {A0: UnsureRange(0, 10), A1: UnsureRange(0, 5), B0: QueueRange(0, 10)}
    net.brokers["broker-a"].refused[202] = (1, "java.lang.NullPointerException")
    with pytest.raises(MQBrokerError, match="NullPointer"):
        later(clock, reader)


def test_the_end_of_a_closed_queue_that_a_slave_tells_may_be_late(
    reader: ClusterReader, net: FakeNet, clock: Clock
) -> None:
    broker = net.brokers["broker-a"]
    broker.topics["Orders"] |= {"read": 1, "write": 1}
    assert range_of(reader, A1) == QueueRange(0, 5)
    broker.processes[0].down, broker.processes[1].end = True, 3
    later(clock, reader)
    assert range_of(reader, A1) == UnsureRange(0, 3)
    assert range_of(reader, BrokerQueueId("broker-b", 7)) == QueueRange(0, 0)


@pytest.mark.parametrize("goes_at", [202, 30])
def test_ends_that_a_slave_tells_queue_by_queue_may_be_late(
    reader: ClusterReader, net: FakeNet, clock: Clock, goes_at: int
) -> None:
    broker, inner = net.brokers["broker-a"], net.call
    broker.refused[202] = 16, "no permission"
    broker.processes[1].end = 7

    def call(address: str, command: Any, timeout_ms: int) -> Any:
        if command.code == goes_at and address == broker.processes[0].address:
            broker.processes[0].down = True
        return inner(address, command, timeout_ms)

    net.call = call  # type: ignore[method-assign]
    assert reader.queue_ranges("Orders") == {A0: UnsureRange(0, 7), A1: UnsureRange(0, 5), B0: QueueRange(0, 10)}
    broker.processes[0].down, net.call = False, inner  # type: ignore[method-assign]
    later(clock, reader, 60_000)
    assert range_of(reader, A0) == QueueRange(0, 10)


def test_the_second_question_about_a_time_is_asked_for_all_queues_at_once(
    reader: ClusterReader, net: FakeNet, clock: Clock
) -> None:
    reader.queue_ranges("Orders")
    net.calls.clear()
    asked = [reader.offset_by_time("Orders", queue_id, 1_700_000_000_003) for queue_id in (A0, A1, B0, A0)]
    assert asked == [3, 3, 3, 3] and net.codes() == [29, 29, 29]
    assert reader.offset_by_time("Orders", A0, 1_700_000_000_004) == 4
    assert net.codes() == [29] * 4, "another time, perhaps for this queue only"
    net.brokers["broker-a"].queues["Orders", 0].min_offset = 6
    for offset in range(6):
        del net.brokers["broker-a"].queues["Orders", 0].frames[offset]
    later(clock, reader)
    assert reader.offset_by_time("Orders", A0, 1_700_000_000_003) == 6


def _answer(body: bytes, asked: RemotingCommand) -> RemotingCommand:
    return response_to(asked, 0, body=body)


def test_groups_of_other_namespaces_are_nobodys_suggestion(net: FakeNet) -> None:
    for name in net.brokers:
        configs = {wire: SubscriptionGroupConfig(group_name=wire) for wire in ("tenant%g", "other%g2", "g3")}
        groups = SubscriptionGroupTable(subscription_group_table=configs)
        net.brokers[name].processes[0].answers.append(partial(_answer, groups.encode()))
    assert [*ClusterReader(net.cluster(namespace="tenant")).known_groups()] == ["g"]


def test_topics_that_are_kept_in_another_way_are_refused(net: FakeNet) -> None:
    net.brokers["broker-a"].create_topic("Batches", attributes={"queue.type": "BatchCQ"})
    with pytest.raises(TopicKindError):
        ClusterReader(net.cluster()).queue_ranges("Batches")


def test_closing_gives_the_cluster_back_once(net: FakeNet) -> None:
    closed: list[int] = []
    with ClusterReader(net.cluster(), on_close=lambda: closed.append(1)) as reader:
        pass
    reader.close()
    assert closed == [1]


def test_look_ups_ask_each_broker_and_keep_to_the_ranges(
    net: FakeNet, reader: ClusterReader, caplog: pytest.LogCaptureFixture
) -> None:
    spans = {A0: (0, 10), A1: (0, 5), B0: (2, 10)}
    found = reader.find("Orders", [f"{3:032X}", f"{1:032X}"], spans, "unique key")
    assert {queue_id: rows.tolist() for queue_id, rows in found.found.items()} == {A0: [1, 3], A1: [1, 3], B0: [3]}
    assert not found.uncovered and not caplog.records
    net.brokers["broker-a"].put("Orders", 0, 100, tags="many")
    found = reader.find("Orders", ["many"], {A0: (0, 200)}, "key")
    assert len(found.found[A0]) == 64
    assert "broker broker-a gives no more messages for 'many' than these" in caplog.text
    assert reader.find("Orders", ["nothing"], spans, "key").found == {}


def test_an_offset_id_is_asked_only_at_a_broker_of_the_route(net: FakeNet, reader: ClusterReader) -> None:
    """Brokers whose names nobody resolves here are asked, because the id may be theirs."""
    reader.queue_ranges("Orders")
    net.calls.clear()
    foreign = "0A0000630000" + "2A9F" + f"{7_000:016X}"
    assert reader.find("Orders", [foreign], {A0: (0, 10)}, "id").found == {}
    assert not any(address.startswith("10.0.0.99") for address, _ in net.calls)
