"""The cluster as one plan sees it, and outages from plan to plan, over a cluster in memory."""

from __future__ import annotations

import traceback
from concurrent.futures import Future
from typing import Any

import pytest

from pyspark_rmq.cluster_read.look import BOUND_MS, LEAST_MS, Look, Silence
from pyspark_rmq.cluster_read.outages import Outages
from rmq_store.cluster import At, Question, ask_runtime_info, checked, gather
from rmq_store.protocol.errors import MQBrokerError, RemotingConnectError, RemotingError, RemotingTimeoutError
from rmq_store.protocol.wire.command import RemotingCommand

from ...storage.remoting.cluster.fake_cluster import FakeNet

FIGURES = 28


class TimedNet(FakeNet):
    """A process that is silent takes the time that it is given. `given_ms`: that of all requests to brokers."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0.0
        self.given_ms: list[int] = []

    def timer(self) -> float:
        return self.now_ms

    def submit(self, address: str, command: RemotingCommand, timeout_ms: int) -> Future[RemotingCommand]:
        self._spend(address, timeout_ms)
        return super().submit(address, command, timeout_ms)

    def call(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        if timeout_ms != 1:  # of `submit`
            self._spend(address, timeout_ms)
        return super().call(address, command, timeout_ms)

    def _spend(self, address: str, timeout_ms: int) -> None:
        process = self._process(address)
        if process is not None:
            self.given_ms.append(timeout_ms)
            self.now_ms += timeout_ms if process.silent else 0


@pytest.fixture
def net() -> TimedNet:
    made = TimedNet()
    for name in ("broker-a", "broker-b", "broker-c"):
        made.add_broker(name, slaves=1).put("T", 0, 5)
    return made


@pytest.fixture
def look(net: TimedNet) -> Look:
    made = Look(net.cluster(timer=net.timer))
    made.route("T")
    return made


def ask(look: Look, *names: str, at: At = At.READABLE) -> dict[str, Any]:
    told = gather(look, {name: Question(name, ask_runtime_info(), checked) for name in names}, at).told
    return {name: one.error for name, one in told.items()}


def silence(net: FakeNet, name: str, *ids: int) -> None:
    for broker_id in ids:
        net.brokers[name].processes[broker_id].silent = True


def test_who_does_not_answer_is_asked_once_in_a_plan(net: TimedNet, look: Look) -> None:
    silence(net, "broker-b", 0, 1)
    assert ask(look, "broker-a", "broker-b")["broker-a"] is None
    assert set(look.away) == {"broker-b"} and net.codes() == [FIGURES] * 3
    for _ in range(3):
        assert isinstance(ask(look, "broker-b")["broker-b"], RemotingTimeoutError)
        with pytest.raises(RemotingTimeoutError, match="broker-b"):
            look.call_broker("broker-b", ask_runtime_info(), broker_id=1)
    assert net.codes() == [FIGURES] * 3
    look.begin()
    assert not look.away and ask(look, "broker-b")["broker-b"] and net.codes() == [FIGURES] * 5


def test_while_a_slave_answers_its_broker_is_there_and_the_master_is_waited_for_once(net: TimedNet, look: Look) -> None:
    silence(net, "broker-b", 0)
    for _ in range(3):
        assert ask(look, "broker-b") == {"broker-b": None}
    assert not look.away and net.codes() == [FIGURES] * 4
    assert isinstance(ask(look, "broker-b", at=At.MASTERS)["broker-b"], RemotingTimeoutError)


def test_a_route_and_addresses_stay_while_no_name_server_shows_others(net: TimedNet, look: Look) -> None:
    seen = look.route("T")
    net.unregistered = {"ns:9876": set(net.brokers)}
    net.now_ms += 31_000
    net.calls.clear()
    for _ in range(20):
        assert look.route("T") is seen
        assert look.routes_of(["T"], 1) == {"T": seen}
    assert len(net.codes(name_servers=True)) == 1, "it is asked again after a second"
    net.now_ms += 1_001
    assert look.route("T") is seen and len(net.codes(name_servers=True)) == 2
    assert ask(look, "broker-b") == {"broker-b": None}
    with pytest.raises(RemotingConnectError, match="broker broker-x has no master"):
        look.address("broker-x")
    look.forget_route("T")
    net.now_ms += 1_001
    assert look.route("T") is None


def test_a_broker_that_has_moved_is_there(net: TimedNet, look: Look) -> None:
    look.address("broker-b")
    net.now_ms += 5_000
    moved = net.brokers["broker-b"]
    moved.name = "elsewhere"
    net.brokers["broker-b"] = moved
    table = net._name_server

    def named(address: str, command: RemotingCommand) -> RemotingCommand:
        answer = table(address, command)
        answer.body = answer.body.replace(b'"brokerName": "elsewhere"', b'"brokerName": "broker-b"')
        return answer

    net._name_server = named  # type: ignore[method-assign]
    assert ask(look, "broker-b") == {"broker-b": None} and not look.away


@pytest.mark.parametrize("code", [2, 14, 215, 1500])
def test_one_that_is_busy_is_away_for_all_questions(net: TimedNet, look: Look, code: int) -> None:
    net.brokers["broker-b"].refused[FIGURES] = code, "not now"
    assert isinstance(ask(look, "broker-b")["broker-b"], MQBrokerError)
    assert set(look.away) == {"broker-b"}
    net.calls.clear()
    with pytest.raises(RemotingError, match="not now"):
        look.address("broker-b")
    assert not net.codes()


@pytest.mark.parametrize("error", [(16, "no rights"), (17, "no such topic"), (1, "NullPointerException")])
def test_a_refusal_is_an_answer(net: TimedNet, look: Look, error: tuple[int, str]) -> None:
    net.brokers["broker-b"].refused[FIGURES] = error
    assert isinstance(ask(look, "broker-b")["broker-b"], MQBrokerError)
    assert not look.away


def test_a_plan_waits_for_all_who_are_silent_no_longer_than_the_bound(net: TimedNet, look: Look) -> None:
    for name in ("broker-a", "broker-b", "broker-c"):
        silence(net, name, 0, 1)
        ask(look, name)
    assert set(look.away) == set(net.brokers)
    assert net.given_ms == [BOUND_MS, *[LEAST_MS] * 5]
    assert net.now_ms <= BOUND_MS + 5 * LEAST_MS


def test_time_that_answers_take_is_not_counted(net: TimedNet, look: Look) -> None:
    for _ in range(10):
        ask(look, "broker-a")
        net.now_ms += BOUND_MS
    assert set(net.given_ms) == {BOUND_MS}


def test_others_who_ask_the_cluster_are_not_kept_from_it(net: TimedNet) -> None:
    cluster = net.cluster(timer=net.timer)
    look = Look(cluster)
    silence(net, "broker-b", 0, 1)
    ask(look, "broker-b")
    net.brokers["broker-b"].processes[0].silent = False
    assert cluster.call_broker("broker-b", ask_runtime_info()).code == 0
    assert set(look.away) == {"broker-b"}
    look.close()
    assert not net.closed


def test_silent_processes_are_not_asked_by_later_plans(net: TimedNet, look: Look) -> None:
    """A master whose slave answers is waited for once, too."""
    silence(net, "broker-b", 0, 1)
    silence(net, "broker-c", 0)
    ask(look, "broker-b", "broker-c")
    for _ in range(3):
        net.calls.clear()
        look.begin(dict(look.silent))
        assert set(look.away) == {"broker-b"}
        assert ask(look, "broker-c") == {"broker-c": None}
        assert isinstance(ask(look, "broker-b")["broker-b"], RemotingTimeoutError)
        assert [address for address, _ in net.calls] == ["broker-c-1:10911"]
    net.brokers["broker-b"].processes[2] = type(net.brokers["broker-b"].processes[1])(net.brokers["broker-b"], 2)
    net.now_ms += 31_000
    look.begin(dict(look.silent))
    assert ask(look, "broker-b") == {"broker-b": None} and not look.away, "another slave"


def test_an_error_that_is_raised_in_plan_after_plan_does_not_grow(net: TimedNet, look: Look) -> None:
    net.brokers["broker-b"].processes[0].down = net.brokers["broker-b"].processes[1].down = True
    ask(look, "broker-b")
    lengths = set()
    for _ in range(4):
        look.begin(dict(look.silent))
        for _ in range(5):
            with pytest.raises(RemotingError):
                look.call_broker("broker-b", ask_runtime_info())
        error = look.silent["broker-b", 0].error
        lengths.add(sum(1 for _ in traceback.walk_tb(error.__traceback__)))
    assert len(lengths) == 1, lengths


B1 = ("broker-b", 1)
GONE = {B1: Silence(RemotingConnectError("gone"), "broker-b-1:10911")}


def test_a_silent_process_is_probed_beside_the_plans(net: TimedNet) -> None:
    outages = Outages(net.cluster(timer=net.timer))
    net.brokers["broker-b"].processes[1].down = True
    outages.found(GONE, 0.0)
    probed: list[float] = []
    for now_ms in range(0, 120_000, 500):
        net.calls.clear()
        assert outages.not_back(float(now_ms)) == GONE
        if FIGURES in net.codes():
            probed.append(now_ms / 1000)
    assert probed == [1, 3, 7, 15, 31, 61, 91]
    net.brokers["broker-b"].processes[1].down = False
    assert outages.not_back(121_000.0) == {}
    outages.found({}, 121_000.0)
    net.calls.clear()
    assert outages.not_back(200_000.0) == {} and not net.codes()


def test_one_that_goes_again_at_once_is_probed_as_before(net: TimedNet) -> None:
    outages = Outages(net.cluster(timer=net.timer))
    outages.found(GONE, 0.0)
    assert outages.not_back(1_000.0) == {}
    outages.found(GONE, 1_000.0)
    net.calls.clear()
    assert set(outages.not_back(2_900.0)) == {B1} and not net.calls
    assert outages.not_back(3_000.0) == {}


@pytest.mark.parametrize(("answer", "is_back"), [((16, "no rights"), True), ((2, "busy"), False), ((14, ""), False)])
def test_a_probe_is_answered_by_a_refusal_and_not_by_being_busy(
    net: TimedNet, answer: tuple[int, str], is_back: bool
) -> None:
    outages = Outages(net.cluster(timer=net.timer))
    net.brokers["broker-b"].refused[FIGURES] = answer
    outages.found(GONE, 0.0)
    assert (outages.not_back(1_000.0) == {}) is is_back
    net.brokers["broker-b"].refused.clear()
    assert outages.not_back(3_000.0) == {}, "it is probed again"


def test_nobody_waits_for_a_probe(net: TimedNet) -> None:
    outages = Outages(net.cluster(timer=net.timer))
    outages.found(GONE, 0.0)
    net.held = []
    assert outages.not_back(1_000.0) == GONE and len(net.held) == 1
    assert outages.not_back(60_000.0) == GONE and len(net.held) == 1, "one at a time"
    net.release()
    assert outages.not_back(60_000.0) == {}
