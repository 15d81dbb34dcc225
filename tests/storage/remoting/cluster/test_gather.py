"""One gather over brokers: who told what, who is away, and what a caller makes of it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from rmq_store.protocol.answers import NOT_AT_SLAVE, is_away
from rmq_store.protocol.errors import (
    MQBrokerError,
    RemotingCommandError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
)
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import RemotingCommand, response_to
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.gather import At, Before, Gathered, Question, gather, waiting
from rmq_store.remoting.questions.offsets import ask_max_offset, read_max_offset

from .fake_cluster import FakeNet, FakeProcess

ACL_4X = "org.apache.rocketmq.acl.common.AclException: No default permission"
PASSING = [2, 14, 215, 1500, 42900]


@pytest.fixture
def net(net: FakeNet) -> FakeNet:
    for name, count in (("broker-a", 5), ("broker-b", 3)):
        net.add_broker(name, slaves=1).put("Orders", 0, count)
        net.brokers[name].processes[1].end = 2
    return net


class Time:
    """A clock in ms, and pauses on it."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.then: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        return self.now_ms

    def sleep(self, duration_s: float) -> None:
        self.now_ms += duration_s * 1000
        self.then()


def ends_of(cluster: Cluster, *names: str) -> dict[str, Question[int]]:
    return {name: Question(name, ask_max_offset(cluster, "Orders", 0, name), read_max_offset) for name in names}


def asked(net: FakeNet, address: str) -> int:
    return sum(command.code == 30 for called, command in net.calls if called == address)


def test_each_answer_says_who_gave_it_in_the_order_of_the_questions(net: FakeNet) -> None:
    cluster = net.cluster()
    net.brokers["broker-b"].processes[0].down = True
    found = gather(cluster, ends_of(cluster, "broker-b", "broker-a"), At.READABLE)
    assert list(found.told) == ["broker-b", "broker-a"]
    assert [(one.broker_name, one.broker_id, one.value) for one in found.told.values()] == [
        ("broker-b", 1, 2), ("broker-a", 0, 5),
    ]  # fmt: skip
    assert found.away == {}, "its slave has answered"
    assert found.required() == {"broker-b": 2, "broker-a": 5}


def test_only_masters_are_asked_for_what_slaves_do_not_know(net: FakeNet) -> None:
    cluster = net.cluster()
    net.brokers["broker-b"].processes[0].down = True
    found = gather(cluster, ends_of(cluster, "broker-a", "broker-b"))
    assert found.those_that_answer() == {"broker-a": 5}
    assert list(found.away) == ["broker-b"] and asked(net, "broker-b-1:10911") == 0
    with pytest.raises(RemotingConnectError, match=r"broker broker-b \(master\)"):
        found.required()


def test_one_process_that_is_named_is_asked_and_no_other(net: FakeNet) -> None:
    cluster = net.cluster()
    found = gather(cluster, ends_of(cluster, "broker-a", "broker-b"), processes={"broker-a": 1})
    assert [(one.broker_id, one.value) for one in found.told.values()] == [(1, 2), (0, 3)]
    net.brokers["broker-a"].processes[1].down = True
    assert list(gather(cluster, ends_of(cluster, "broker-a"), processes={"broker-a": 1}).away) == ["broker-a"]


@pytest.mark.parametrize("code", PASSING)
@pytest.mark.parametrize("at", At)
def test_a_broker_that_is_busy_or_shuts_down_is_away(net: FakeNet, code: int, at: At) -> None:
    cluster = net.cluster()
    net.brokers["broker-a"].processes[0].answers.append(lambda command: response_to(command, code, "later"))
    found = gather(cluster, ends_of(cluster, "broker-a", "broker-b"), at)
    if at is At.READABLE:
        assert (found.told["broker-a"].broker_id, found.required()) == (1, {"broker-a": 2, "broker-b": 3})
    else:
        assert found.those_that_answer() == {"broker-b": 3}
        assert isinstance(found.away["broker-a"], MQBrokerError)


@pytest.mark.parametrize("error", [RemotingConnectError("refused"), RemotingError("reset"), RemotingTimeoutError("3")])
def test_a_broker_that_gives_no_answer_is_away(net: FakeNet, error: RemotingError) -> None:
    cluster = net.cluster()
    net.brokers["broker-a"].processes[0].answers += [error, error]
    found = gather(cluster, ends_of(cluster, "broker-a", "broker-b"))
    assert found.those_that_answer() == {"broker-b": 3} and list(found.away) == ["broker-a"]


def test_a_broker_without_an_address_is_away(net: FakeNet) -> None:
    cluster = net.cluster()
    found = gather(cluster, ends_of(cluster, "broker-a", "nowhere"), At.READABLE)
    assert found.those_that_answer() == {"broker-a": 5}
    assert "no master in the routes" in str(found.away["nowhere"])


@pytest.mark.parametrize(("code", "remark"), [(16, "rights"), (1, ACL_4X), (17, "topic"), (1, "failed"), (3, "?")])
def test_a_refusal_is_no_absence_and_every_policy_raises_it(net: FakeNet, code: int, remark: str) -> None:
    cluster = net.cluster()
    net.brokers["broker-a"].refused[30] = code, remark
    for at in At:
        found = gather(cluster, ends_of(cluster, "broker-a", "broker-b"), at)
        assert found.away == {} and not found.told["broker-a"].is_away
        assert asked(net, "broker-a-1:10911") == 0, "its slave is not asked instead"
        for policy in (found.required, found.those_that_answer):
            with pytest.raises(MQBrokerError, match=f"CODE: {code}"):
                policy()
    began_ms = cluster.timer()
    told = waiting(cluster, ends_of(cluster, "broker-a"), began_ms + 60_000, pause_s=30, sleep=pytest.fail).told
    assert told["broker-a"].error is not None
    before = Before[int]("the end")
    before.or_now(lambda: 7)
    with pytest.raises(MQBrokerError):
        before.or_now(told["broker-a"].required)


def test_bytes_that_do_not_decode_are_no_absence(net: FakeNet) -> None:
    cluster = net.cluster()

    def garbled(answer: object, broker_name: str) -> int:
        raise RemotingCommandError(f"{broker_name}: no number")

    command = ask_max_offset(cluster, "Orders", 0, "broker-a")
    found = gather(cluster, {"a": Question("broker-a", command, garbled)}, At.READABLE)
    assert found.away == {} and not is_away(RemotingCommandError("?"))
    with pytest.raises(RemotingCommandError):
        found.those_that_answer()


def test_a_slave_that_refuses_for_now_does_not_speak_for_its_master(net: FakeNet) -> None:
    cluster = net.cluster()
    cluster.known_route("Orders")
    master, slave = net.brokers["broker-a"].processes.values()
    master.down = True
    slave.answers.append(lambda command: response_to(command, 14, "shutting down"))
    found = gather(cluster, ends_of(cluster, "broker-a"), At.READABLE)
    assert isinstance(found.away["broker-a"], RemotingConnectError)
    slave.answers.append(lambda command: response_to(command, 17, "no topic yet"))
    late = gather(cluster, ends_of(cluster, "broker-a", "broker-b"), At.READABLE)
    assert isinstance(late.away["broker-a"], RemotingConnectError) and late.told["broker-a"].unknown_at == 1
    assert late.those_that_answer() == {"broker-b": 3}
    slave.answers.append(lambda command: response_to(command, 17, "no topic yet"))
    call = gather(cluster, ends_of(cluster, "broker-a"), At.READABLE).required
    before = Before[dict[str, int]]("the ends")
    before.or_now(lambda: {"broker-a": 7})
    assert before.or_now(call) == {"broker-a": 7}


@pytest.mark.parametrize("code", NOT_AT_SLAVE)
def test_another_slave_is_asked_when_one_that_is_named_does_not_know_it_yet(net: FakeNet, code: int) -> None:
    broker = net.brokers["broker-a"]
    broker.processes[2] = FakeProcess(broker, 2, end=4)
    broker.processes[1].answers.append(lambda command: response_to(command, code, "later"))
    cluster = net.cluster()
    told = gather(cluster, ends_of(cluster, "broker-a"), At.READABLE, processes={"broker-a": 1}).told["broker-a"]
    assert (told.broker_id, told.value) == (2, 4)


@pytest.mark.parametrize("slave_count", [1, 2])
def test_a_slave_that_is_named_and_does_not_know_the_topic_yet_does_not_speak_for_its_master(
    net: FakeNet, slave_count: int
) -> None:
    broker = net.brokers["broker-a"]
    if slave_count == 2:
        broker.processes[2] = FakeProcess(broker, 2, end=4)
    cluster = net.cluster()
    cluster.known_route("Orders")
    broker.processes[0].down = True
    for number in range(1, 1 + slave_count):
        broker.processes[number].answers.append(lambda command: response_to(command, 17, "no topic yet"))
    found = gather(cluster, ends_of(cluster, "broker-a"), At.READABLE, processes={"broker-a": 1})
    assert isinstance(found.away["broker-a"], RemotingConnectError) and found.told["broker-a"].unknown_at is not None
    broker.processes[0].down = False
    for number in range(1, 1 + slave_count):
        broker.processes[number].answers.append(lambda command: response_to(command, 17, "no topic yet"))
    found = gather(cluster, ends_of(cluster, "broker-a"), At.READABLE, processes={"broker-a": 1})
    assert found.required() == {"broker-a": 5}


def test_the_second_slave_is_asked_when_the_first_does_not_know_the_topic_yet(net: FakeNet) -> None:
    broker = net.brokers["broker-a"]
    broker.processes[2] = FakeProcess(broker, 2, end=4)
    cluster = net.cluster()
    broker.processes[0].down = True
    broker.processes[1].answers.append(lambda command: response_to(command, 17, "no topic yet"))
    told = gather(cluster, ends_of(cluster, "broker-a"), At.READABLE).told["broker-a"]
    assert (told.broker_id, told.value) == (2, 4)


def test_a_slaves_refusal_for_want_of_rights_is_final(net: FakeNet) -> None:
    cluster = net.cluster()
    cluster.known_route("Orders")
    master, slave = net.brokers["broker-a"].processes.values()
    master.down = True
    slave.answers.append(lambda command: response_to(command, 16, "no rights"))
    with pytest.raises(MQBrokerError, match="CODE: 16"):
        gather(cluster, ends_of(cluster, "broker-a"), At.READABLE).those_that_answer()


def test_waiting_goes_on_while_a_slave_does_not_know_the_topic_yet(net: FakeNet) -> None:
    time = Time()
    cluster = net.cluster(timer=time)
    cluster.known_route("Orders")
    master, slave = net.brokers["broker-a"].processes.values()
    master.down = True
    slave.answers.append(lambda command: response_to(command, 17, "no topic yet"))
    found = waiting(
        cluster, ends_of(cluster, "broker-a"), 5000, At.READABLE, pause_s=0.2, sleep=time.sleep
    )
    assert found.required() == {"broker-a": 2} and time.now_ms == 200


def test_the_second_slave_is_asked_when_the_first_does_not_answer(net: FakeNet) -> None:
    broker = net.brokers["broker-a"]
    broker.processes[2] = FakeProcess(broker, 2, end=4)
    cluster = net.cluster()
    broker.processes[0].down = broker.processes[1].down = True
    told = gather(cluster, ends_of(cluster, "broker-a"), At.READABLE).told["broker-a"]
    assert (told.broker_id, told.value) == (2, 4)


def test_one_that_is_known_to_be_away_is_not_asked(net: FakeNet) -> None:
    cluster = net.cluster()
    net.brokers["broker-b"].processes[0].down = True
    first = gather(cluster, ends_of(cluster, "broker-a", "broker-b"))
    net.brokers["broker-b"].processes[0].down = False
    net.calls.clear()
    found = gather(cluster, ends_of(cluster, "broker-a", "broker-b"), At.READABLE, without=first.away)
    assert found.those_that_answer() == {"broker-a": 5} and found.away == first.away
    assert not [address for address, _ in net.calls if address.startswith("broker-b")]


def test_a_broker_that_has_moved_is_asked_at_its_new_address(net: FakeNet) -> None:
    time = Time()
    cluster = net.cluster(timer=time)
    gather(cluster, ends_of(cluster, "broker-a"))
    broker = net.brokers["broker-a"]
    old, moved = broker.processes[0], FakeProcess(broker, 7)
    old.down = True
    broker.processes[0] = moved
    time.now_ms += 5000
    found = gather(cluster, ends_of(cluster, "broker-a"))
    assert found.required() == {"broker-a": 5} and asked(net, moved.address) == 1


def test_nobody_is_asked_when_there_is_no_question(net: FakeNet) -> None:
    found: Gathered[str, int] = gather(net.cluster(), {})
    assert (found.required(), found.away, net.calls) == ({}, {}, [])


@pytest.mark.parametrize("how", ["down", "busy"])
def test_waiting_asks_those_that_are_away_again_and_no_others(net: FakeNet, how: str) -> None:
    time = Time()
    cluster = net.cluster(timer=time)
    cluster.known_route("Orders")
    master = net.brokers["broker-b"].processes[0]
    if how == "busy":
        net.brokers["broker-b"].refused[30] = 2, "[OVERLOAD]"
    master.down = how == "down"

    def back_after_a_second() -> None:
        if time.now_ms >= 1000:
            master.down = False
            net.brokers["broker-b"].refused.clear()

    time.then = back_after_a_second
    questions = ends_of(cluster, "broker-a", "broker-b")
    found = waiting(cluster, questions, 5000, pause_s=0.2, sleep=time.sleep)
    assert found.required() == {"broker-a": 5, "broker-b": 3}
    assert asked(net, "broker-a-0:10911") == 1 and time.now_ms == 1000


def test_waiting_ends_at_its_deadline_with_those_that_are_still_away(net: FakeNet) -> None:
    time = Time()
    cluster = net.cluster(timer=time)
    net.brokers["broker-b"].processes[0].down = True
    found = waiting(cluster, ends_of(cluster, "broker-a", "broker-b"), 1000, pause_s=0.25, sleep=time.sleep)
    assert found.those_that_answer() == {"broker-a": 5} and list(found.away) == ["broker-b"]
    assert time.now_ms == 1000


@pytest.mark.parametrize("error", [RemotingTimeoutError("3 s"), *(MQBrokerError(code, "later") for code in PASSING)])
def test_what_was_known_before_stays_while_somebody_is_away(
    error: RemotingError | MQBrokerError, caplog: pytest.LogCaptureFixture
) -> None:
    def call() -> int:
        raise error

    before = Before[int]("the ends of topic Orders")
    with pytest.raises(type(error)):
        before.or_now(call)
    assert before.or_now(lambda: 7) == 7
    with caplog.at_level(logging.WARNING):
        assert [before.or_now(call) for _ in range(3)] == [7, 7, 7]
        assert before.or_now(lambda: 8) == 8 == before.or_now(lambda: 8) == before.or_now(call)
    said = [record.getMessage().partition(" are ")[2][:10] for record in caplog.records]
    assert said == ["those of b", "told again", "those of b"], "once each"
    with pytest.raises(type(error)):
        Before[int]("the ends", is_passing=lambda _: False).or_now(call)


def test_a_range_says_when_a_slave_told_a_part_of_it(net: FakeNet) -> None:
    from rmq_store.remoting.cluster.offsets import gather_ranges

    cluster = net.cluster()
    queue = MessageQueue("Orders", "broker-a", 0)

    def busy(command: RemotingCommand) -> RemotingCommand:
        return response_to(command, 2, "busy")

    net.brokers["broker-a"].processes[0].answers.append(busy)
    told = gather_ranges(cluster, [queue]).told[queue]
    assert told.broker_id == 1 and told.required().max_offset == 5
    assert gather_ranges(cluster, [queue]).told[queue].broker_id == 0
