"""One loop with a budget: what is sent again, for how long, to which broker, and what is final at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from rmq_store.client.delivery.deliver import Delivery, Single
from rmq_store.client.delivery.outcome import SendOutcome, verdict_of
from rmq_store.client.delivery.request import single_request
from rmq_store.protocol.errors import (
    ClientError,
    MQBrokerError,
    MQClientError,
    RemotingConnectError,
    RemotingTimeoutError,
    SendInDoubtError,
)
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import RemotingCommand, response_to

from ...remoting.cluster.fake_cluster import NAME_SERVER, FakeNet

AWAY = RemotingConnectError("connection refused")
SILENT = RemotingTimeoutError("no answer")
ACL_4X = "org.apache.rocketmq.acl.common.AclException: No default permission for topic:T"
Answer = int | Exception | RemotingCommand


class Brokers:
    """Brokers that answer with what is due next, the last one again and again; and a clock that only waits move."""

    def __init__(self, **answers: list[Answer]) -> None:
        self._answers = {name: deque(given) for name, given in answers.items()}
        self.asked: list[str] = []
        self.now_ms = 0.0
        self.slept_s: list[float] = []
        self.routes = SimpleNamespace(not_reached=lambda name: None)

    def timer(self) -> float:
        return self.now_ms

    def sleep(self, duration_s: float) -> None:
        self.slept_s.append(duration_s)
        self.now_ms += duration_s * 1000

    def submit_broker(self, name: str, command: RemotingCommand, timeout_ms: int) -> Future[RemotingCommand]:
        self.asked.append(name)
        waiting = self._answers[name]
        answer = waiting.popleft() if len(waiting) > 1 else waiting[0]
        future: Future[RemotingCommand] = Future()
        if isinstance(answer, Exception):
            if answer is SILENT:
                self.now_ms += timeout_ms
            future.set_exception(answer)
        else:
            found = answer if isinstance(answer, RemotingCommand) else RemotingCommand(answer, {"queueOffset": "7"})
            future.set_result(found)
        return future


class Looks:
    """A verifier that finds `there`, and takes `lasts_ms` for it."""

    def __init__(self, brokers: Brokers, *there: Hashable, lasts_ms: float = 0) -> None:
        self._brokers = brokers
        self._there = set(there)
        self._lasts_ms = lasts_ms
        self.asked: list[tuple[str, set[Hashable]]] = []

    def stored(self, broker_name: str, keys: Collection[Hashable], reason: str) -> set[Hashable]:
        self.asked.append((broker_name, set(keys)))
        self._brokers.now_ms += self._lasts_ms
        return self._there & set(keys)


def delivery(brokers: Brokers, budget_ms: int = 60_000, verifier: Any = None) -> Delivery:
    return Delivery(brokers, budget_ms, verifier, sleep=brokers.sleep)  # type: ignore[arg-type]


def to(*names: str) -> list[Single]:
    return [Single(name, RemotingCommand(310), number, f"message {number}") for number, name in enumerate(names)]


NOT_STORED: list[Answer] = [AWAY, 2, 14, 1500, 215]


@pytest.mark.parametrize("answer", NOT_STORED)
def test_what_is_not_stored_is_sent_again_as_long_as_there_is_time(answer: Answer) -> None:
    brokers = Brokers(a=[*[answer] * 30, 0])
    (stored,) = delivery(brokers).send_all(to("a"))
    assert stored.fields == {"queueOffset": "7"}
    assert len(brokers.asked) == 31
    brokers = Brokers(a=[*[answer] * 30, 0])
    assert list(delivery(brokers).send_copies(to("a"), 2, 1)) == [0]
    assert len(brokers.asked) == 31


@pytest.mark.parametrize("answer", [*NOT_STORED, 1, SILENT])
def test_a_budget_that_is_used_up_ends_the_call_with_the_code_of_the_last_answer(answer: Answer) -> None:
    code = answer if isinstance(answer, int) else -1
    for copies in (False, True):
        brokers = Brokers(a=[answer])
        with pytest.raises(MQClientError) as caught:
            sender = delivery(brokers, 10_000)
            sender.send_copies(to("a"), 2, 1) if copies else sender.send_all(to("a"))
        assert caught.value.response_code == code
        assert 10_000 <= brokers.now_ms < 14_000
        assert max(brokers.slept_s, default=0) <= 1


REFUSALS: list[Answer] = [13, 16, 17, 29, RemotingCommand(1, {}, remark=ACL_4X)]


@pytest.mark.parametrize("answer", REFUSALS)
def test_a_refusal_is_raised_at_once_where_no_other_broker_will_do(answer: Answer) -> None:
    for copies in (False, True):
        brokers = Brokers(a=[answer])
        with pytest.raises(MQBrokerError) as caught:
            sender = delivery(brokers)
            sender.send_copies(to("a"), 2, 1) if copies else sender.send_all(to("a"))
        assert caught.value.response_code == (answer.code if isinstance(answer, RemotingCommand) else answer)
        assert (brokers.asked, brokers.slept_s) == (["a"], [])


@pytest.mark.parametrize("answer", REFUSALS)
def test_a_copy_that_one_broker_refuses_goes_to_another_one(answer: Answer) -> None:
    brokers = Brokers(a=[answer], b=[0], c=[0])
    assert sorted(delivery(brokers).send_copies(to("a", "b", "c"), 2, 2)) == [1, 2]
    assert brokers.slept_s == []
    brokers = Brokers(a=[answer], b=[0], c=[answer])
    with pytest.raises(MQBrokerError):
        delivery(brokers).send_copies(to("a", "b", "c"), 2, 2)
    assert brokers.slept_s == []


def test_refusals_that_leave_too_few_brokers_are_raised_beside_one_that_is_away() -> None:
    brokers = Brokers(a=[16], b=[AWAY], c=[16])
    with pytest.raises(MQBrokerError):
        delivery(brokers).send_copies(to("a", "b", "c"), 2, 2)
    assert brokers.slept_s == []


@pytest.mark.parametrize("away", ["a", "b", "c"])
@pytest.mark.parametrize("answer", [AWAY, 14, 1500])
def test_no_copy_waits_for_a_broker_that_is_not_needed(away: str, answer: Answer) -> None:
    brokers = Brokers(**{name: [answer if name == away else 0] for name in "abc"})  # type: ignore[arg-type]
    assert len(delivery(brokers).send_copies(to("a", "b", "c"), 2, 2)) == 2
    assert brokers.slept_s == []
    brokers = Brokers(**{name: [answer if name == away else 0] for name in "ab"})  # type: ignore[arg-type]
    assert len(delivery(brokers).send_copies(to("a", "b"), 2, 1)) == (1 if away in "ab" else 2)
    assert brokers.slept_s == []


@pytest.mark.parametrize("answer", [2, 1, SILENT])
def test_a_broker_that_is_busy_or_silent_is_asked_a_few_times_before_another_one_gets_its_copy(answer: Answer) -> None:
    brokers = Brokers(a=[answer, answer, 0], b=[0], c=[0])
    assert sorted(delivery(brokers).send_copies(to("a", "b", "c"), 2, 2)) == [0, 1]
    brokers = Brokers(a=[answer], b=[0], c=[0])
    assert sorted(delivery(brokers).send_copies(to("a", "b", "c"), 2, 2)) == [1, 2]
    assert brokers.asked == ["a", "b", "a", "a", "a", "c"]


@pytest.mark.parametrize("answer", [2, 1])
def test_a_copy_that_is_only_wanted_is_not_given_up_for_a_busy_moment(answer: Answer) -> None:
    brokers = Brokers(a=[answer, 0], b=[0])
    assert sorted(delivery(brokers).send_copies(to("a", "b"), 2, 1)) == [0, 1]
    brokers = Brokers(a=[answer], b=[0])
    assert sorted(delivery(brokers).send_copies(to("a", "b"), 2, 1)) == [1]
    assert brokers.asked == ["a", "b", "a", "a", "a"]


def test_every_broker_is_asked_once_also_when_the_time_is_over() -> None:
    brokers = Brokers(a=[SILENT], b=[SILENT], c=[0])
    assert list(delivery(brokers, 100).send_copies(to("a", "b", "c"), 1, 1)) == [2]


def test_copies_that_are_needed_are_waited_for_at_any_of_the_brokers() -> None:
    brokers = Brokers(a=[0], b=[AWAY], c=[*[AWAY] * 9, 0])
    assert sorted(delivery(brokers).send_copies(to("a", "b", "c"), 2, 2)) == [0, 2]
    brokers = Brokers(a=[0], b=[AWAY], c=[14])
    with pytest.raises(MQClientError, match=r"1 of 3 brokers take message 0 in 5000 ms, and 2 must: broker 'b'"):
        delivery(brokers, 5_000).send_copies(to("a", "b", "c"), 2, 2)


def test_only_what_is_in_no_queue_is_sent_again() -> None:
    brokers = Brokers(a=[1, 1, 0], b=[0])
    looks = Looks(brokers, 0)
    first, second, third = delivery(brokers, verifier=looks).send_all(to("a", "a", "b"))
    assert (first.was_found, second.was_found, third.was_found) == (True, False, False)
    assert looks.asked == [("a", {0, 1})]
    assert brokers.asked == ["a", "a", "b", "a"]


def test_a_look_takes_nothing_of_the_budget() -> None:
    """The look has a limit of its own. A message that it has not found is sent again before it is given up."""
    brokers = Brokers(a=[SILENT, 0])
    looks = Looks(brokers, lasts_ms=50_000)
    (stored,) = delivery(brokers, 20_000, looks).send_all(to("a"))
    assert not stored.was_found
    assert brokers.asked == ["a", "a"]


def test_a_look_that_finds_out_nothing_ends_the_call() -> None:
    def stored(*_: Any) -> set[Hashable]:
        raise SendInDoubtError("the queue cannot be read")

    brokers = Brokers(a=[SILENT, 0])
    with pytest.raises(SendInDoubtError):
        delivery(brokers, verifier=SimpleNamespace(stored=stored)).send_all(to("a"))
    assert brokers.asked == ["a"]


# -- name servers that fail meanwhile ----------------------------------------------------------------------------------


def no(code: int) -> Callable[[RemotingCommand], RemotingCommand]:
    return lambda command: response_to(command, code, "not now")


@pytest.fixture
def net() -> FakeNet:
    made = FakeNet()
    for name in ("a", "b"):
        made.add_broker(name).create_topic("Orders")
    return made


def orders(*names: str) -> list[Single]:
    queues = [MessageQueue("Orders", name, 0) for name in names]
    made = [single_request(FakeNet().cluster(), queue, b"x", "", group="g", born_ms=1) for queue in queues]
    return [Single(name, command, name, name) for name, command in zip(names, made, strict=True)]


def test_a_name_server_that_refuses_takes_no_verdict_away(net: FakeNet) -> None:
    """Whoever does not answer is asked for at the name servers: their refusal is not that of the broker."""
    clock = Brokers()
    looks = Looks(clock, "a")

    def lost(command: RemotingCommand) -> RemotingCommand:
        clock.now_ms += 60_000  # whatever is known of the broker is old by now
        net.name_servers[NAME_SERVER].answers += [no(17), no(1), no(1)]
        raise SILENT

    cluster = net.cluster(timer=clock.timer)
    cluster.known_route("Orders")
    net.brokers["a"].processes[0].answers.append(lost)
    (stored,) = Delivery(cluster, 600_000, looks, sleep=clock.sleep).send_all(orders("a"))
    assert stored.was_found
    assert looks.asked == [("a", {"a"})]


@pytest.mark.parametrize("refusal", [no(1), no(16), SILENT])
def test_a_request_whose_broker_cannot_be_asked_for_is_not_stored_and_the_others_are_judged(
    net: FakeNet, refusal: Any
) -> None:
    clock = Brokers()
    looks = Looks(clock, "a")
    cluster = net.cluster(timer=clock.timer)
    cluster.known_route("Orders")
    net.brokers["a"].processes[0].answers.append(SILENT)
    submits = cluster.submit_broker

    def submit_broker(name: str, *given: Any) -> Future[RemotingCommand]:
        if name == "b" and refusals:
            clock.now_ms += 60_000
            net.name_servers[NAME_SERVER].answers += [no(17), refusals.pop()]
        return submits(name, *given)

    refusals = [refusal]
    cluster.submit_broker = submit_broker  # type: ignore[method-assign]
    first, second = Delivery(cluster, 600_000, looks, sleep=clock.sleep).send_all(orders("a", "b"))
    assert (first.was_found, second.was_found) == (True, False)
    assert looks.asked == [("a", {"a"})], "nothing of b has left this process: no queue is read for it"


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("last", [AWAY, 2, 14, 16, 29])
def test_an_error_says_that_an_earlier_try_is_in_doubt(last: Answer, copies: bool) -> None:
    """The last answer says that nothing is stored; an earlier one was lost, and nobody has looked."""

    def error(brokers: Brokers, verifier: Any = None) -> ClientError:
        with pytest.raises(ClientError) as caught:
            sender = delivery(brokers, 20_000, verifier)
            sender.send_copies(to("a"), 1, 1) if copies else sender.send_all(to("a"))
        return caught.value

    assert verdict_of(error(Brokers(a=[SILENT, last]))).outcome is SendOutcome.UNKNOWN
    assert error(Brokers(a=[last])).doubt is None
    brokers = Brokers(a=[SILENT, last])
    assert error(brokers, Looks(brokers)).doubt is None
