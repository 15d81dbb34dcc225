"""Planning: few calls, right ranges; commits that are ignored or refused; topics that are refused."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from rmq_store.errors import TopicKindError, UnknownTopicError
from rmq_store.protocol.errors import MQBrokerError, RemotingConnectError, RemotingError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.results import QueueRange
from rmq_store.protocol.wire.command import RemotingCommand, response_to
from rmq_store.remoting.admin.scope import ask, masters
from rmq_store.remoting.admin.topics import delete_route, topic_config
from rmq_store.remoting.cluster import topics
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.gather import At
from rmq_store.remoting.cluster.groups import create_group
from rmq_store.remoting.cluster.offsets import (
    query_consumer_offset,
    query_consumer_offsets,
    queue_ranges,
    search_offset,
    search_offsets,
    try_update_consumer_offsets,
    update_consumer_offsets,
)
from rmq_store.remoting.cluster.topics import at_brokers, ends_at_brokers, topic_stats
from rmq_store.remoting.questions.answer import checked
from rmq_store.remoting.questions.offsets import ConsumerOffset
from rmq_store.remoting.questions.topics import ask_delete_topic

from .fake_cluster import LISTS_READABLE, FakeBroker, FakeNet, frame

A0, A1 = MessageQueue("Orders", "broker-a", 0), MessageQueue("Orders", "broker-a", 1)
B0 = MessageQueue("Orders", "broker-b", 0)


def two_brokers(net: FakeNet) -> Cluster:
    for name, counts in (("broker-a", (5, 7)), ("broker-b", (3,))):
        broker = net.add_broker(name, slaves=1)
        for queue_id, count in enumerate(counts):
            broker.put("Orders", queue_id, count)
        broker.create_topic("Orders", len(counts))
    net.brokers["broker-a"].queues["Orders", 1].min_offset = 2
    return net.cluster()


RANGES = {A0: QueueRange(0, 5), A1: QueueRange(2, 7), B0: QueueRange(0, 3)}


def test_the_ranges_of_a_topic_take_one_request_per_broker(net: FakeNet) -> None:
    cluster = two_brokers(net)
    assert topic_stats(cluster, "Orders") == RANGES
    assert net.codes() == [202, 202]


def test_a_cluster_of_100_brokers_with_100_queues_takes_100_requests(net: FakeNet) -> None:
    for number in range(100):
        net.add_broker(f"broker-{number:03}").create_topic("Orders", 100)
    assert len(topic_stats(net.cluster(), "Orders")) == 10_000
    assert net.codes() == [202] * 100
    assert net.codes(name_servers=True) == [105]


@pytest.mark.parametrize("refusal", [(16, "no rights"), (1, "AclException: no rights"), (3, "not supported")])
def test_a_broker_that_refuses_it_is_asked_for_each_queue(net: FakeNet, refusal: tuple[int, str]) -> None:
    cluster = two_brokers(net)
    net.brokers["broker-a"].refused[202] = refusal
    assert topic_stats(cluster, "Orders") == RANGES
    assert net.codes() == [202, 202, 31, 30, 31, 30]
    net.brokers["broker-a"].refused[30] = refusal
    with pytest.raises(MQBrokerError, match="broker-a"):
        topic_stats(cluster, "Orders")


@pytest.mark.parametrize(("version", "codes"), [(407, [202, 202, 31, 30]), (LISTS_READABLE, [202, 202])])
def test_queues_that_can_only_be_read_are_there_too(net: FakeNet, version: int, codes: list[int]) -> None:
    """Brokers before 5.3 leave them out of 202."""
    cluster = two_brokers(net)
    net.brokers["broker-a"].topics["Orders"] |= {"read": 2, "write": 1}
    net.brokers["broker-a"].processes[0].version = version
    assert topic_stats(cluster, "Orders") == RANGES
    assert net.codes() == codes


def test_queues_that_can_only_be_written_are_told_and_are_none_to_read(net: FakeNet) -> None:
    cluster = two_brokers(net)
    net.brokers["broker-a"].topics["Orders"] |= {"read": 1, "write": 2}
    assert topic_stats(cluster, "Orders") == {A0: RANGES[A0], B0: RANGES[B0]}
    told = ends_at_brokers(cluster, at_brokers([cluster.known_route("Orders")]))
    assert [ends.ranges for ends in told] == [{A0: RANGES[A0], A1: RANGES[A1]}, {B0: RANGES[B0]}]
    assert all(ends.of_master and ends.error is None for ends in told)


def test_who_has_told_the_ends_is_known_also_of_the_queues_that_are_asked_for_one_by_one(net: FakeNet) -> None:
    cluster = two_brokers(net)
    broker = net.brokers["broker-a"]
    broker.topics["Orders"] |= {"read": 2, "write": 1}
    for process in broker.processes.values():
        process.version = 407
    broker.processes[0].silent = True
    (told, other) = ends_at_brokers(cluster, at_brokers([cluster.known_route("Orders")]))
    assert told.ranges == {A0: RANGES[A0], A1: RANGES[A1]} and not told.of_master and other.of_master
    assert net.codes() == [202, 202, 202, 31, 30], "the silent master is waited for once"
    (told, _) = ends_at_brokers(cluster, at_brokers([cluster.known_route("Orders")]), of_masters=True)
    assert isinstance(told.error, RemotingError) and not told.limits
    with pytest.raises(RemotingError, match="broker-a"):
        told.required()


def test_a_slave_tells_the_ranges_while_its_master_does_not_answer(net: FakeNet) -> None:
    cluster = two_brokers(net)
    net.brokers["broker-b"].processes[0].silent = True
    net.brokers["broker-b"].processes[1].end = 2
    assert topic_stats(cluster, "Orders") == RANGES | {B0: QueueRange(0, 2)}
    net.brokers["broker-b"].processes[1].down = True
    with pytest.raises(Exception, match="broker-b"):
        topic_stats(cluster, "Orders")


def test_a_slave_that_does_not_know_the_topic_yet_is_asked_for_each_queue(net: FakeNet) -> None:
    cluster = two_brokers(net)
    broker = net.brokers["broker-b"]
    broker.processes[0].down = True
    cluster.route("Orders")
    del broker.topics["Orders"]
    assert topic_stats(cluster, "Orders") == RANGES
    (_, told) = ends_at_brokers(cluster, at_brokers([cluster.known_route("Orders")]))
    assert told.error is None and not told.of_master
    assert told.ranges == {B0: QueueRange(0, 3)}


@pytest.mark.parametrize("refused", [29, 30, 31])
def test_a_slave_that_does_not_know_the_topic_yet_leaves_its_broker_away(net: FakeNet, refused: int) -> None:
    cluster = two_brokers(net)
    broker = net.brokers["broker-b"]
    broker.processes[0].down = True
    cluster.route("Orders")
    del broker.topics["Orders"]
    broker.refused[refused] = 17, "topic[Orders] not exist"
    with pytest.raises(RemotingConnectError, match="broker-b"):
        search_offset(cluster, B0, 3) if refused == 29 else queue_ranges(cluster, [B0])
    if refused != 29:
        (_, told) = ends_at_brokers(cluster, at_brokers([cluster.known_route("Orders")]))
        assert isinstance(told.error, RemotingConnectError), "it is not deleted"
        with pytest.raises(RemotingConnectError):
            topic_stats(cluster, "Orders")


def test_a_pull_that_a_slave_cannot_answer_yet_leaves_its_broker_away(net: FakeNet) -> None:
    """4.x: a time is looked for by pulls."""
    cluster = two_brokers(net)
    broker = net.brokers["broker-b"]
    broker.processes[0].version = broker.processes[1].version = 405
    cluster.route("Orders")
    broker.processes[0].down = True
    broker.refused[11] = 17, "topic[Orders] not exist"
    with pytest.raises(RemotingConnectError, match="broker-b"):
        search_offset(cluster, B0, 1_700_000_000_003)


def test_the_ranges_of_some_brokers_wait_for_no_other(net: FakeNet) -> None:
    cluster = two_brokers(net)
    for process in net.brokers["broker-b"].processes.values():
        process.down = True
    assert topic_stats(cluster, "Orders", ["broker-a"]) == {A0: RANGES[A0], A1: RANGES[A1]}


def test_an_unknown_queue_is_empty(net: FakeNet) -> None:
    assert queue_ranges(two_brokers(net), [MessageQueue("Nothing", "broker-a", 9)]) == {
        MessageQueue("Nothing", "broker-a", 9): QueueRange(0, 0)
    }
    with pytest.raises(UnknownTopicError):
        topic_stats(net.cluster(), "Nothing")


@pytest.mark.parametrize("version", [405, 500])
@pytest.mark.parametrize(("since", "offset"), [(0, 0), (3, 3), (4, 4), (5, 5), (1 << 40, 5)])
def test_the_offset_of_a_time_is_the_first_at_or_after_it(
    net: FakeNet, version: int, since: int, offset: int
) -> None:
    cluster = two_brokers(net)
    net.brokers["broker-a"].processes[0].version = version
    assert search_offset(cluster, A0, 1_700_000_000_000 + since) == offset


@pytest.mark.parametrize("version", [405, 500])
def test_a_slave_tells_the_offset_of_a_time_while_its_master_does_not_answer(net: FakeNet, version: int) -> None:
    cluster = two_brokers(net)
    master, slave = net.brokers["broker-a"].processes.values()
    master.version = slave.version = version
    cluster.route("Orders")
    master.down = True
    assert search_offset(cluster, A0, 1_700_000_000_003) == 3


@pytest.mark.parametrize("version", [405, 500])
def test_the_offset_of_a_time_may_be_asked_of_the_master_alone(net: FakeNet, version: int) -> None:
    """A slave that came late tells a later one."""
    cluster = two_brokers(net)
    master, slave = net.brokers["broker-a"].processes.values()
    master.version = slave.version = version
    slave.begin = 4
    assert search_offset(cluster, A0, 1_700_000_000_003, At.MASTERS) == 3
    master.down = True
    with pytest.raises(RemotingConnectError):
        search_offset(cluster, A0, 1_700_000_000_003, At.MASTERS)


@pytest.mark.parametrize("version", [405, 500])
def test_the_offsets_of_a_time_are_asked_for_in_rounds_of_all_queues(net: FakeNet, version: int) -> None:
    """Not in one wait for each queue; 4.x needs more rounds, and each has one pull of a queue at most."""
    for number in range(3):
        broker = net.add_broker(f"broker-{number}")
        broker.processes[0].version = version
        for queue_id in range(40):
            broker.put("Orders", queue_id, queue_id)
    rounds: list[list[int]] = []
    cluster = net.cluster()
    ask = cluster.call_all
    cluster.call_all = (  # type: ignore[method-assign]
        lambda commands, *given, **named: rounds.append([command.code for _, command in commands])
        or ask(commands, *given, **named)
    )
    queues = cluster.known_route("Orders").read_queues()
    net.calls.clear()
    found = search_offsets(cluster, queues, 1_700_000_000_009)
    assert found == {queue: min(queue.queue_id, 9) for queue in queues}
    assert rounds[0] == [29] * 120 and len(rounds) <= (1 if version >= 413 else 12)
    assert all(len(codes) <= 120 for codes in rounds[2:])
    assert len(net.codes()) == sum(map(len, rounds)), "nothing is asked beside the rounds"


@pytest.mark.parametrize("version", [405, 500])
def test_the_offset_of_a_time_in_an_empty_queue_is_its_begin(net: FakeNet, version: int) -> None:
    broker = net.add_broker()
    broker.processes[0].version = version
    broker.create_topic("Orders")
    assert search_offset(net.cluster(), A0, 1_700_000_000_000) == 0


def known_group(broker: FakeBroker) -> FakeBroker:
    broker.groups.add("cg")
    return broker


def test_commits_are_answered_and_read_back(net: FakeNet) -> None:
    cluster = two_brokers(net)
    for broker in net.brokers.values():
        known_group(broker)
    assert update_consumer_offsets(cluster, "cg", {A0: 4, B0: 2}) == {A0: 4, B0: 2}
    assert query_consumer_offsets(cluster, "cg", [A0, A1, B0]) == {A0: ConsumerOffset(4), B0: ConsumerOffset(2)}
    assert query_consumer_offset(cluster, "cg", A0) == 4


def test_the_first_commit_of_a_topic_is_alone_at_its_broker(net: FakeNet) -> None:
    # Of two first commits at once a broker forgets one, and answers both with success.
    cluster = two_brokers(net)
    for broker in net.brokers.values():
        known_group(broker)
    cluster.known_route("Orders")
    net.held = []
    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(update_consumer_offsets, cluster, "cg", {A0: 4, A1: 6, B0: 2})
        waiting = net.held
        assert waiting is not None
        held_is(waiting, ["0", "0"])
        assert sorted(address for _, address, _ in waiting) == ["broker-a-0:10911", "broker-b-0:10911"]
        net.release(1)
        net.release(0)
        held_is(waiting, ["1"])
        net.release(0)
        assert done.result(10) == {A0: 4, A1: 6, B0: 2}


def test_the_other_queues_of_a_broker_that_is_away_are_not_waited_for(net: FakeNet) -> None:
    cluster = two_brokers(net)
    known_group(net.brokers["broker-b"])
    net.brokers["broker-a"].processes[0].down = True
    outcomes = try_update_consumer_offsets(cluster, "cg", {A0: 4, A1: 6, B0: 2})
    assert outcomes.pop(B0) == 2
    assert [type(outcome) for outcome in outcomes.values()] == [RemotingConnectError] * 2
    assert sum(command.code == 15 for address, command in net.calls if address.startswith("broker-a")) == 1


def held_is(waiting: list[tuple[Future[RemotingCommand], str, RemotingCommand]], queue_ids: list[str]) -> None:
    """Wait until these commits are on their way, and no others."""
    until = time.monotonic() + 10
    while len(waiting) < len(queue_ids) and time.monotonic() < until:
        time.sleep(0.01)
    assert [command.ext_fields["queueId"] for _, _, command in waiting] == queue_ids


def test_a_commit_that_a_pending_reset_makes_void_returns_what_stands(net: FakeNet) -> None:
    cluster = two_brokers(net)
    known_group(net.brokers["broker-a"]).pending_reset["cg", "Orders", 0] = 1
    assert update_consumer_offsets(cluster, "cg", {A0: 4, A1: 6}) == {A0: 1, A1: 6}
    assert net.brokers["broker-a"].offsets == {("cg", "Orders", 1): 6}


def test_a_group_that_a_broker_does_not_know_is_refused_until_it_is_created(net: FakeNet) -> None:
    cluster = two_brokers(net)
    known_group(net.brokers["broker-b"])
    with pytest.raises(MQBrokerError, match=r"'cg' is not there at this broker.*broker-a") as raised:
        update_consumer_offsets(cluster, "cg", {A0: 4, B0: 2})
    assert raised.value.response_code == 26
    assert net.brokers["broker-b"].offsets == {("cg", "Orders", 0): 2}
    create_group(cluster, "cg", "broker-a")
    assert update_consumer_offsets(cluster, "cg", {A0: 4}) == {A0: 4}


def test_offsets_are_never_committed_to_a_slave(net: FakeNet) -> None:
    cluster = two_brokers(net)
    broker = known_group(net.brokers["broker-a"])
    broker.processes[0].down = True
    with pytest.raises(RemotingConnectError):
        update_consumer_offsets(cluster, "cg", {A0: 4})
    assert broker.offsets == {}


def test_a_new_group_has_offset_0_in_a_young_queue_unless_a_broker_of_5_is_asked_for_the_truth(net: FakeNet) -> None:
    cluster = two_brokers(net)
    assert query_consumer_offset(cluster, "cg", A0) == 0
    assert query_consumer_offset(cluster, "cg", A1) is None
    assert query_consumer_offsets(cluster, "cg", [A0, A1]) == {}
    net.brokers["broker-a"].processes[0].version = 405
    assert query_consumer_offsets(cluster, "cg", [A0, A1]) == {A0: ConsumerOffset(0, may_be_none=True)}


@pytest.mark.parametrize(
    "attributes", [{"queue.type": "BatchCQ"}, {"cleanup.policy": "COMPACTION"}]
)
def test_topics_of_another_kind_are_refused_by_their_attributes(net: FakeNet, attributes: dict[str, str]) -> None:
    cluster = two_brokers(net)
    topics.refuse_to_read_topic(cluster, "Orders")
    net.brokers["broker-b"].topics["Orders"]["attributes"] = attributes
    for refuse in (topics.refuse_to_read_topic, topics.refuse_to_write_topic):
        with pytest.raises(TopicKindError, match="'Orders'"):
            refuse(cluster, "Orders")


def test_static_topics_and_queues_of_other_topics_are_refused(net: FakeNet) -> None:
    cluster = two_brokers(net)
    with pytest.raises(TopicKindError, match="LMQ"):
        topics.refuse_to_read_topic(cluster, "%LMQ%home")
    net.extra_route["topicQueueMappingByBroker"] = {"broker-a": {"topic": "Orders"}}
    with pytest.raises(TopicKindError, match="mapped to queues of several brokers"):
        topics.refuse_to_read_topic(net.cluster(), "Orders")


def test_older_brokers_have_no_such_kinds(net: FakeNet) -> None:
    cluster = two_brokers(net)
    for broker in net.brokers.values():
        broker.processes[0].version = 405
    topics.refuse_to_read_topic(cluster, "Orders")


def test_a_topic_is_created_at_every_master_and_deleted_everywhere(net: FakeNet) -> None:
    cluster = two_brokers(net)
    route = topics.create_topic(cluster, "Bills", 3)
    assert [queue.broker_name for queue in route.publish_queues()] == ["broker-a"] * 3 + ["broker-b"] * 3
    config = topic_config(cluster, masters(cluster)[1], "Bills")
    assert config is not None and config.write_queue_nums == 3
    for process in masters(cluster):
        ask(cluster, process, ask_delete_topic(cluster, "Bills"), checked)
    delete_route(cluster, "Bills")
    assert cluster.route("Bills") is None
    assert net.codes(name_servers=True)[-3:] == [216, 105, 105]


def test_no_topic_is_created_while_the_name_servers_show_no_broker(net: FakeNet) -> None:
    cluster = two_brokers(net)
    for broker in net.brokers.values():
        broker.processes.clear()
    with pytest.raises(RemotingConnectError, match="'Bills' cannot be made: no broker is registered"):
        topics.create_topic(cluster, "Bills", 3)


def test_names_on_the_wire_have_the_namespace(net: FakeNet) -> None:
    net.add_broker().put("ns1%Orders", 0, 5)
    cluster = net.cluster("ns1")
    assert topic_stats(cluster, "Orders") == {A0: QueueRange(0, 5)}
    net.brokers["broker-a"].groups.add("ns1%cg")
    assert update_consumer_offsets(cluster, "cg", {A0: 3}) == {A0: 3}
    assert net.brokers["broker-a"].offsets == {("ns1%cg", "ns1%Orders", 0): 3}


@pytest.mark.parametrize("times", [(1, 3, 5, 7, 9, 11, 13), (1, 1, 1, 5, 5, 5, 5), (5, 5, 5, 5, 5, 5, 5), (7,)])
@pytest.mark.parametrize("start", [0, 2])
def test_a_time_is_found_whichever_near_message_an_old_broker_answers(
    net: FakeNet, times: tuple[int, ...], start: int
) -> None:
    """4.x answers the message that is nearest in time, and of several any one."""
    broker = net.add_broker()
    broker.processes[0].version = 405
    broker.create_topic("Orders")
    queue = broker.queues["Orders", 0]
    start = min(start, len(times) - 1)
    queue.min_offset = start
    for offset, time_ms in enumerate(times):
        raw = bytearray(frame("Orders", 0, offset))
        raw[56:64] = time_ms.to_bytes(8)
        queue.frames[offset] = bytes(raw)
    cluster = net.cluster()
    for wanted in range(16):
        expected = next((at for at in range(start, len(times)) if times[at] >= wanted), len(times))
        for near in range(len(times)):
            answered = {"offset": str(near)}
            broker.processes[0].answers.append(lambda command, ext=answered: answer_29(command, ext))
            assert search_offset(cluster, A0, wanted) == expected, (wanted, near)


def answer_29(command: RemotingCommand, ext_fields: dict[str, str]) -> RemotingCommand:
    given = response_to(command, 0, ext_fields=ext_fields)
    given.version = 405
    return given
