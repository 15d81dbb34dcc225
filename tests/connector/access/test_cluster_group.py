"""A group at brokers in memory: its offsets, and the lease of a stream."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

import pytest

from pyspark_rmq.access import cluster_group
from pyspark_rmq.access.cluster_group import ClusterGroup
from pyspark_rmq.position.queue_ids import BrokerQueueId
from rmq_store.cluster import live_members
from rmq_store.errors import LeaseHeldError
from rmq_store.protocol.errors import MQBrokerError, RemotingError, RemotingTimeoutError
from rmq_store.protocol.messages import MessageQueue

from ...storage.remoting.cluster.fake_cluster import FakeNet

A0, A1, B0 = (MessageQueue("Orders", name, queue_id) for name, queue_id in (("a", 0), ("a", 1), ("b", 0)))
IDS = {queue: (queue.topic, BrokerQueueId(queue.broker_name, queue.queue_id)) for queue in (A0, A1, B0)}


class Time:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


@pytest.fixture(autouse=True)
def _no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_group, "RENEW_EVERY_S", 3600.0)


@pytest.fixture
def net() -> FakeNet:
    made = FakeNet()
    for name, queues in (("a", 2), ("b", 1)):
        made.add_broker(name)
        for queue_id in range(queues):
            made.brokers[name].put("Orders", queue_id, 10)
    return made


@pytest.fixture
def now() -> Time:
    return Time()


@pytest.fixture
def make(net: FakeNet, now: Time, request: pytest.FixtureRequest) -> Any:
    def make(name: str = "cg") -> ClusterGroup:
        group = ClusterGroup(net.cluster(timer=lambda: now.now_s * 1000), name, sleep=now.sleep, timer_s=now)
        request.addfinalizer(group.leave)
        return group

    return make


def test_offsets_are_committed_at_the_broker_of_each_queue(net: FakeNet, make: Any) -> None:
    group = make()
    net.brokers["a"].groups.add("cg")
    net.brokers["b"].groups.add("cg")
    assert group.committed([A0, A1, B0]) == {}
    group.commit({A0: 3, B0: 4})
    assert net.brokers["a"].offsets == {("cg", "Orders", 0): 3} and net.brokers["b"].offsets == {("cg", "Orders", 0): 4}
    assert group.committed([A0, A1, B0]) == {IDS[A0]: 3, IDS[B0]: 4}


def test_offsets_of_a_dead_master_are_committed_when_it_is_back(
    net: FakeNet, make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    group, a, b = make(), net.brokers["a"], net.brokers["b"]
    a.groups.add("cg")
    b.groups.add("cg")
    b.processes[0].down = True
    with caplog.at_level(logging.WARNING):
        group.commit({A0: 3, B0: 4})
        group.commit({A0: 5, B0: 6})
    assert (a.offsets, b.offsets) == ({("cg", "Orders", 0): 5}, {})
    assert [record.message for record in caplog.records] == [
        "group 'cg': no master of b answers and grants the lease; its offsets are committed when one does"
    ]
    b.processes[0].down = False
    group.commit({A0: 7})
    assert (a.offsets, b.offsets) == ({("cg", "Orders", 0): 7}, {("cg", "Orders", 0): 6})


def owed_at_the_end(net: FakeNet, group: ClusterGroup) -> None:
    """A stream that has completed a batch while the master of b is away."""
    for broker in net.brokers.values():
        broker.groups.add("cg")
    group.lease("Orders", "reports")
    net.brokers["b"].processes[0].down = True
    group.commit({A0: 3, B0: 4})


@pytest.mark.parametrize("ends_by", ["leave", "release"])
def test_owed_offsets_are_committed_when_the_query_ends(
    net: FakeNet, make: Any, now: Time, ends_by: str, caplog: pytest.LogCaptureFixture
) -> None:
    """AvailableNow commits its last batch and ends: no later commit takes the offsets along."""
    group, b = make(), net.brokers["b"]
    owed_at_the_end(net, group)

    def sleep(duration_s: float) -> None:
        now.now_s += duration_s
        b.processes[0].down = now.now_s < 1001

    group._offsets._sleep = sleep
    group.leave() if ends_by == "leave" else group.release("Orders")
    assert b.offsets == {("cg", "Orders", 0): 4}
    assert not b.locks and not b.members["cg"]
    assert "the query ends" not in caplog.text


def test_offsets_that_no_master_takes_until_the_end_are_named(
    net: FakeNet, make: Any, now: Time, caplog: pytest.LogCaptureFixture
) -> None:
    group = make()
    owed_at_the_end(net, group)
    caplog.clear()
    began_s = now.now_s
    group.leave()
    assert now.now_s - began_s == 3.0, "the next query of the group waits for the lease"
    (said,) = [record.message for record in caplog.records]
    assert said.startswith(f"group 'cg': the query ends, and no master has taken these offsets: {B0} at 4. The check")
    group.leave()
    assert now.now_s - began_s == 3.0, "said once"


def test_offsets_are_not_committed_at_the_end_where_another_client_has_the_lease(
    net: FakeNet, make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    group, b = make(), net.brokers["b"]
    owed_at_the_end(net, group)
    b.locks["cg_rmq_lease", "Orders", 0] = "thief#1"
    b.processes[0].down = False
    group._locks._since_s.pop("b")
    group.leave()
    assert b.offsets == {}
    assert "another client has taken the lease" in caplog.text and f"{B0} at 4" in caplog.text


@pytest.mark.parametrize("ends_by", ["leave", "release"])
@pytest.mark.parametrize("refused", [(2, "[OVERLOAD]"), (16, "no permission")])
def test_a_broker_that_refuses_its_locks_keeps_no_query_from_leaving(
    net: FakeNet, make: Any, ends_by: str, refused: tuple[int, str], caplog: pytest.LogCaptureFixture
) -> None:
    group, a, b = make(), net.brokers["a"], net.brokers["b"]
    owed_at_the_end(net, group)
    group._locks._since_s.pop("b")
    b.processes[0].down, b.refused[41] = False, refused
    group.leave() if ends_by == "leave" else group.release("Orders")
    assert group._stopped.is_set() and not a.locks and not a.members["cg"] and not b.members["cg"]
    assert b.offsets == {} and f"no master has taken these offsets: {B0} at 4" in caplog.text


def test_the_end_of_the_process_may_come_while_offsets_are_owed(net: FakeNet, make: Any, now: Time) -> None:
    group, a = make(), net.brokers["a"]
    owed_at_the_end(net, group)

    def sleep(duration_s: float) -> None:
        raise SystemExit

    group._offsets._sleep = sleep
    with pytest.raises(SystemExit):
        group.leave()
    group._offsets._sleep = now.sleep
    assert group._stopped.is_set() and not a.locks and not a.members["cg"]


@pytest.mark.parametrize("code", [41, 34])
def test_a_broker_that_refuses_its_locks_or_a_member_keeps_no_other_from_a_commit(
    net: FakeNet, make: Any, now: Time, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    group, a, b = make(), net.brokers["a"], net.brokers["b"]
    owed_at_the_end(net, group)
    group._locks._since_s.pop("b")
    b.processes[0].down, b.refused[code] = False, (2, "[OVERLOAD]")
    group.commit({A0: 5})
    assert a.offsets == {("cg", "Orders", 0): 5}
    net.calls.clear()
    group.hold_at(["a", "b"])
    assert net.codes() == [], "not at each look at the brokers"
    group.renew()
    assert "OVERLOAD" in caplog.text
    b.refused.clear()
    now.now_s += 1
    group.commit({A0: 6})
    assert (a.offsets, b.offsets) == ({("cg", "Orders", 0): 6}, {("cg", "Orders", 0): 4})


@pytest.mark.parametrize("gone_at", [11, 14, 15])
def test_a_master_that_goes_while_a_reset_is_ended_is_owed_its_offset(net: FakeNet, make: Any, gone_at: int) -> None:
    group, a, b = make(), net.brokers["a"], net.brokers["b"]
    for broker in (a, b):
        broker.groups.add("cg")
    a.pending_reset["cg", "Orders", 0] = 2
    inner = net.call
    seen: list[int] = []

    def call(address: str, command: Any, timeout_ms: int) -> Any:
        seen.append(command.code)
        if command.code == gone_at and (gone_at != 15 or 11 in seen):
            a.processes[0].down = True
        return inner(address, command, timeout_ms)

    net.call = call  # type: ignore[method-assign]
    group.commit({A0: 7, B0: 4})
    assert (a.offsets, b.offsets) == ({}, {("cg", "Orders", 0): 4})
    net.call, a.processes[0].down = inner, False  # type: ignore[method-assign]
    group.commit({})
    assert a.offsets == {("cg", "Orders", 0): 7} and not a.pending_reset


def test_a_refusal_leaves_owed_what_other_masters_did_not_take(
    net: FakeNet, make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    group, a, b = make(), net.brokers["a"], net.brokers["b"]
    b.groups.add("cg")
    b.processes[0].down = True
    with pytest.raises(MQBrokerError, match="26"):
        group.commit({A0: 3, B0: 4})
    b.processes[0].down = False
    group.commit({})
    assert b.offsets == {("cg", "Orders", 0): 4}, "and the one that was refused is the caller's to repeat"
    a.groups.add("cg")
    a.processes[0].down = True
    group.commit({A0: 5})
    a.processes[0].down, a.refused[15] = False, (17, "topic not exist")
    group.commit({B0: 6})
    assert b.offsets == {("cg", "Orders", 0): 6}
    assert f"its offset 5 in {A0} is not committed, because its broker refuses that" in caplog.text
    del a.refused[15]
    group.commit({B0: 7})
    assert a.offsets == {}


def test_a_group_that_a_broker_does_not_know_is_named(make: Any) -> None:
    with pytest.raises(MQBrokerError, match=r"26.*'cg' is not there at this broker"):
        make().commit({A0: 3})


def test_a_young_queue_is_begun_at_its_first_message_as_the_broker_says(net: FakeNet, make: Any) -> None:
    net.brokers["a"].queues["Orders", 1].min_offset = 4
    group = make()
    assert group.committed([A0, A1]) == {}
    net.calls.clear()
    assert group.begins_at_first(A0) and not group.begins_at_first(A1)
    assert net.codes() == [14, 14], "asked at once"


@pytest.mark.parametrize("has_committed", [True, False])
def test_a_zero_of_an_old_broker_is_an_offset_only_if_the_group_has_any_in_the_topic(
    net: FakeNet, make: Any, has_committed: bool
) -> None:
    for broker in net.brokers.values():
        broker.processes[0].version = 401
        broker.refused[208] = 1, "broken"
    if has_committed:
        queue = '{"brokerName":"a","queueId":1,"topic":"Orders"}'
        body = f'{{"offsetTable":{{{queue}:{{"brokerOffset":10,"consumerOffset":0}}}}}}'
        for broker in net.brokers.values():
            broker.refused[208] = 0, body
        inner = net.call

        def call(address: str, command: Any, timeout_ms: int) -> Any:
            answer = inner(address, command, timeout_ms)
            if command.code == 208:
                answer.body, answer.remark = body.encode(), None
            return answer

        net.call = call  # type: ignore[method-assign]
    assert make().committed([A0, B0]) == ({IDS[A0]: 0, IDS[B0]: 0} if has_committed else {})


def test_a_reset_that_waits_is_ended_by_the_query_that_commits(
    net: FakeNet, make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the reset would come back when another member pulls."""
    broker = net.brokers["a"]
    broker.groups.add("cg")
    broker.pending_reset["cg", "Orders", 0] = 2
    pulls: list[str] = []
    inner = net.call

    def call(address: str, command: Any, timeout_ms: int) -> Any:
        if command.code == 11:
            pulls.append(command.ext_fields["consumerGroup"])
            broker.pending_reset.clear()
        return inner(address, command, timeout_ms)

    net.call = call  # type: ignore[method-assign]
    group = make()
    assert group.committed([A0]) == {IDS[A0]: 2}
    group.commit({A0: 7, A1: 5})
    assert pulls == ["cg"]
    assert broker.offsets == {("cg", "Orders", 0): 7, ("cg", "Orders", 1): 5}
    assert "was reset to 2; the query that reads it stands at 7" in caplog.text


def test_the_holder_of_a_lease_is_a_member_and_others_hear_its_name(net: FakeNet, make: Any) -> None:
    lease = make().lease("Orders", "reports on host-1")
    assert lease.held() and lease.heartbeat()
    (member,) = net.brokers["a"].members["cg"]
    assert member.startswith("reports_on_host-1#") and list(net.brokers["b"].members["cg"]) == [member]
    assert set(net.brokers["a"].locks) == {("cg_rmq_lease", "Orders", 0)}
    assert net.brokers["a"].members["cg"][member]["subscriptionDataSet"][0]["topic"] == "Orders"
    with pytest.raises(LeaseHeldError, match=r"group 'cg': topic 'Orders' is consumed by reports_on_host-1#") as caught:
        make().lease("Orders", "another")
    assert caught.value.holder == member
    assert make("other").lease("Orders", "another").held()
    lease.release()
    assert not lease.held()
    assert net.brokers["a"].members["cg"] == {} and ("cg_rmq_lease", "Orders", 0) not in net.brokers["a"].locks
    assert make().lease("Orders", "another").held()


def test_a_group_with_other_live_members_is_not_joined(net: FakeNet, make: Any) -> None:
    net.brokers["b"].members["cg"]["10.0.0.9@java"] = {}
    with pytest.raises(LeaseHeldError, match=r"other live members.*10.0.0.9@java.*commitOffsets=false") as caught:
        make().lease("Orders", "reports")
    assert caught.value.holder == "10.0.0.9@java"
    assert list(net.brokers["b"].members["cg"]) == ["10.0.0.9@java"]
    assert not net.brokers["a"].locks and not net.brokers["b"].locks
    assert 34 not in net.codes(), "it never looked like a member"


def test_a_member_that_comes_while_the_lease_is_taken_is_seen(net: FakeNet, make: Any) -> None:
    inner = net.call

    def call(address: str, command: Any, timeout_ms: int) -> Any:
        answer = inner(address, command, timeout_ms)
        if command.code == 34:
            net.brokers["a"].members["cg"]["10.0.0.9@java"] = {}
        return answer

    net.call = call  # type: ignore[method-assign]
    group = make()
    with pytest.raises(LeaseHeldError, match=r"10\.0\.0\.9@java"):
        group.lease("Orders", "reports")
    assert not net.brokers["a"].locks
    assert list(net.brokers["a"].members["cg"]) == ["10.0.0.9@java"], "Java's consumer would leave queues to a ghost"
    assert not net.brokers["b"].members["cg"]
    # The next try is one from the beginning.
    net.call = inner  # type: ignore[method-assign]
    net.brokers["a"].members["cg"].clear()
    assert group.lease("Orders", "reports").held()


def test_a_member_that_is_refused_another_topic_stays_a_member(net: FakeNet, make: Any) -> None:
    group = make()
    lease = group.lease("Orders", "reports")
    net.brokers["b"].members["cg"]["10.0.0.9@java"] = {}
    with pytest.raises(LeaseHeldError, match=r"10\.0\.0\.9@java"):
        group.lease("%RETRY%cg", "reports")
    assert lease.held() and list(net.brokers["a"].members["cg"]) == [group._member.client_id]
    assert set(net.brokers["a"].locks) == {("cg_rmq_lease", "Orders", 0)}


def test_the_lock_of_a_dead_holder_is_waited_for(net: FakeNet, make: Any, now: Time) -> None:
    """A killed process is no member any more; brokers forget its locks after 60 s."""
    locks = net.brokers["a"].locks
    locks["cg_rmq_lease", "Orders", 0] = "dead#1"

    def sleep(duration_s: float) -> None:
        now.now_s += duration_s
        if now.now_s > 1040:
            locks.pop(("cg_rmq_lease", "Orders", 0), None)

    now.sleep = sleep  # type: ignore[method-assign]
    assert make().lease("Orders", "reports").held()
    assert 1040 < now.now_s < 1045
    locks["x_rmq_lease", "Orders", 0] = "nobody"
    with pytest.raises(LeaseHeldError, match="topic 'Orders' is consumed by unknown"):
        make("x").lease("Orders", "reports")


def asked_at(net: FakeNet, group: ClusterGroup, broker_names: list[str]) -> list[int]:
    """Codes of the requests that a commit at these brokers makes before it, because their locks may be forgotten."""
    net.calls.clear()
    assert group.hold_at(broker_names) == set(broker_names)
    return net.codes()


def test_a_lease_is_lost_when_another_client_has_the_lock(
    net: FakeNet, make: Any, now: Time, caplog: pytest.LogCaptureFixture
) -> None:
    group = make()
    lease = group.lease("Orders", "reports")
    now.now_s += 59
    assert asked_at(net, group, ["a"]) == []
    group.renew()
    now.now_s += 59
    assert asked_at(net, group, ["a"]) == []
    now.now_s += 2
    assert lease.held(), "nobody renewed it, and nobody took it"
    assert asked_at(net, group, ["a"]) == [41, 34]
    group.renew()
    assert lease.held()
    net.brokers["b"].locks["cg_rmq_lease", "Orders", 0] = "thief#1"
    group.renew()
    assert not lease.held()
    assert "another client has taken the lease of Orders" in caplog.text


def test_a_lease_outlives_masters_that_are_away(
    net: FakeNet, make: Any, now: Time, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody else can take it meanwhile: slaves grant no locks. Their offsets are owed."""
    group, a, b = make(), net.brokers["a"], net.brokers["b"]
    lease = group.lease("Orders", "reports")
    group.commit({A0: 1, B0: 1})
    for broker in (a, b):
        broker.processes[0].down = True
        broker.locks.clear()
    for offset in range(2, 6):
        now.now_s += 40
        group.renew()
        assert lease.held() and "cannot be renewed now" in caplog.text
        group.commit({A0: offset, B0: offset})
    assert a.offsets == {("cg", "Orders", 0): 1}
    a.processes[0].down = False
    group.commit({A0: 6, B0: 6})
    assert (a.offsets, b.offsets) == ({("cg", "Orders", 0): 6}, {("cg", "Orders", 0): 1})
    assert a.locks == {("cg_rmq_lease", "Orders", 0): group._member.client_id}
    b.processes[0].down = False
    b.locks["cg_rmq_lease", "Orders", 0] = "thief#1"
    with pytest.raises(LeaseHeldError, match="another client has taken the lease"):
        group.commit({A0: 7, B0: 7})
    assert (a.offsets, b.offsets) == ({("cg", "Orders", 0): 6}, {("cg", "Orders", 0): 1}) and not lease.held()


def test_who_takes_a_lease_waits_for_any_master_within_a_bound(net: FakeNet, make: Any, now: Time) -> None:
    a, b = (net.brokers[name].processes for name in "ab")
    a[0].down = b[0].down = True
    began_s = now.now_s
    with pytest.raises(RemotingError, match=r"no master of a, b has answered for 60 s.*commitOffsets=false"):
        make().lease("Orders", "reports")
    assert 60 <= now.now_s - began_s < 62

    def sleep(duration_s: float) -> None:
        now.now_s += duration_s
        a[0].down = b[0].down = now.now_s < began_s + 30

    group, began_s = make(), now.now_s
    group._sleep = sleep
    assert group.lease("Orders", "reports").held()
    assert 30 <= now.now_s - began_s < 32, "and nobody is watched for: both answer"


def test_a_lease_needs_a_lock_also_if_the_name_servers_know_no_broker(net: FakeNet, make: Any, now: Time) -> None:
    """They forget a killed broker that has no slave, and then an empty list has refused nothing."""
    processes, net.brokers["a"].processes, net.brokers["b"].processes = net.brokers["a"].processes, {}, {}
    with pytest.raises(RemotingError, match=r"no master of the cluster has answered.*no broker has a process"):
        make().lease("Orders", "reports")

    def sleep(duration_s: float) -> None:
        now.now_s += duration_s
        net.brokers["a"].processes = processes

    group = make()
    group._sleep = sleep
    assert group.lease("Orders", "reports").held() and net.brokers["a"].locks


def test_who_takes_a_lease_while_a_master_is_away_watches_for_its_holder_first(
    net: FakeNet, make: Any, now: Time, caplog: pytest.LogCaptureFixture
) -> None:
    """The holder began while b was away, so only a has its lock. Then a went and b came back: both seemed free."""
    a, b = (net.brokers[name].processes[0] for name in "ab")
    b.down = True
    first = make()
    held = first.lease("Orders", "first")
    a.down, b.down = True, False

    def sleep(duration_s: float) -> None:
        now.now_s += duration_s
        if now.now_s >= asked_s + 20:
            first.renew()

    now.sleep = sleep  # type: ignore[method-assign]
    second, asked_s = make(), now.now_s
    second._sleep = sleep
    with pytest.raises(LeaseHeldError, match=r"other live members.*first#"):
        second.lease("Orders", "second")
    assert held.held() and net.brokers["b"].locks == {("cg_rmq_lease", "Orders", 0): first._member.client_id}
    assert "no master of a answers" in caplog.text and "members are watched 22 s" in caplog.text


def test_a_lease_is_taken_while_a_master_is_away_if_nobody_holds_it(net: FakeNet, make: Any, now: Time) -> None:
    net.brokers["a"].processes[0].down = True
    group, began_s = make(), now.now_s
    assert group.lease("Orders", "reports").held()
    assert 22 <= now.now_s - began_s < 24
    began_s = now.now_s
    assert group.lease("%RETRY%cg", "reports").held()
    assert now.now_s == began_s, "it is a member already, and others see it"


def test_a_broker_that_comes_back_is_locked_and_joined_before_anything_is_committed_there(
    net: FakeNet, make: Any
) -> None:
    b = net.brokers["b"]
    b.processes[0].down = True
    group = make()
    group.lease("Orders", "reports")
    assert group.hold_at(["a", "b"]) == {"a"}
    b.processes[0].down = False
    net.calls.clear()
    group.commit({B0: 4})
    assert net.codes() == [41, 34, 15], "without the heartbeat a broker of 5.x does not know the group"
    assert b.offsets == {("cg", "Orders", 0): 4} and group.hold_at(["a", "b"]) == {"a", "b"}


def test_a_broker_that_comes_back_to_another_holder_ends_the_lease(net: FakeNet, make: Any) -> None:
    b = net.brokers["b"]
    b.groups.add("cg")
    b.processes[0].down = True
    group = make()
    lease = group.lease("Orders", "reports")
    b.processes[0].down = False
    b.locks["cg_rmq_lease", "Orders", 0] = "thief#1"
    for _ in range(2):
        with pytest.raises(LeaseHeldError, match="another client has taken the lease of Orders"):
            group.commit({A0: 3, B0: 4})
    assert not lease.held() and not b.offsets and not net.brokers["a"].offsets
    net.calls.clear()
    group.renew()
    assert net.codes() == [], "a lease that is lost is not taken again behind the other's back"


def suspended(net: FakeNet, now: Time) -> None:
    """The process stands still for so long that brokers forget its locks and its membership."""
    now.now_s += 121
    for broker in net.brokers.values():
        broker.locks.clear()
        broker.members.clear()


@pytest.mark.parametrize("by", ["renewal", "commit"])
def test_a_query_that_was_suspended_sets_no_offset_of_another_one_back(
    net: FakeNet, make: Any, now: Time, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    group, other, a = make(), make(), net.brokers["a"]
    lease = group.lease("Orders", "reports")
    group.commit({A0: 5, A1: 5, B0: 5})
    suspended(net, now)
    other.lease("Orders", "another")
    other.commit({A1: 9})
    other.leave()
    if by == "renewal":
        group.renew()
    with pytest.raises(LeaseHeldError, match=r"another client has moved the group on.* from . to 9"):
        group.commit({A0: 6, A1: 6, B0: 6})
    assert a.offsets == {("cg", "Orders", 0): 5, ("cg", "Orders", 1): 9} and not a.locks and not lease.held()
    assert "Start it again only if the group shall go back" in caplog.text
    group.leave()
    assert a.offsets["cg", "Orders", 1] == 9, "nor when it ends"
    # Whoever starts it again says that.
    group.lease("Orders", "reports")
    now.now_s += 61
    group.commit({A1: 6})
    assert a.offsets["cg", "Orders", 1] == 6


def test_a_lease_that_had_lapsed_goes_on_if_the_group_was_not_moved_on(net: FakeNet, make: Any, now: Time) -> None:
    """A broker that was killed also comes back with offsets that are up to 5 s old."""
    group, a = make(), net.brokers["a"]
    lease = group.lease("Orders", "reports")
    group.commit({A0: 5, B0: 5})
    suspended(net, now)
    a.offsets["cg", "Orders", 0] = 3
    net.calls.clear()
    group.commit({A0: 6})
    assert net.codes() == [41, 14, 34, 15] and lease.held() and a.offsets["cg", "Orders", 0] == 6


def test_a_commit_whose_answer_was_lost_is_our_own(net: FakeNet, make: Any, now: Time) -> None:
    group, a = make(), net.brokers["a"]
    group.lease("Orders", "reports")
    group.commit({A0: 5})
    inner = net.call

    def call(address: str, command: Any, timeout_ms: int) -> Any:
        answer = inner(address, command, timeout_ms)
        if command.code == 15:
            raise RemotingTimeoutError("no answer")
        return answer

    net.call = call  # type: ignore[method-assign]
    group.commit({A0: 8})
    net.call = inner  # type: ignore[method-assign]
    assert a.offsets["cg", "Orders", 0] == 8
    suspended(net, now)
    group.renew()
    group.commit({A0: 9})
    assert a.offsets["cg", "Orders", 0] == 9


def test_a_renewal_during_a_commit_takes_its_offset_for_our_own(net: FakeNet, make: Any, now: Time) -> None:
    group, inner = make(), net.call
    lease = group.lease("Orders", "reports")
    group.commit({A0: 5})

    def call(address: str, command: Any, timeout_ms: int) -> Any:
        answer = inner(address, command, timeout_ms)
        if command.code == 15:
            suspended(net, now)
            group.renew()
        return answer

    net.call = call  # type: ignore[method-assign]
    group.commit({A0: 8})
    assert lease.held() and net.brokers["a"].offsets["cg", "Orders", 0] == 8


@pytest.mark.parametrize("refused", [True, False])
def test_a_broker_that_does_not_tell_the_offsets_after_a_lapse_is_owed_them(
    net: FakeNet, make: Any, now: Time, refused: bool
) -> None:
    group, a, b = make(), net.brokers["a"], net.brokers["b"]
    group.lease("Orders", "reports")
    group.commit({A0: 5, B0: 5})
    suspended(net, now)
    inner = net.call

    def call(address: str, command: Any, timeout_ms: int) -> Any:
        if command.code == 14 and address.startswith("b"):
            raise RemotingTimeoutError("no answer")
        return inner(address, command, timeout_ms)

    if refused:
        b.refused[14] = 2, "[OVERLOAD]"
    else:
        net.call = call  # type: ignore[method-assign]
    group.commit({A0: 6, B0: 6})
    assert (a.offsets, b.offsets) == ({("cg", "Orders", 0): 6}, {("cg", "Orders", 0): 5})
    b.refused.clear()
    net.call = inner  # type: ignore[method-assign]
    group.commit({A0: 7})
    assert (a.offsets, b.offsets) == ({("cg", "Orders", 0): 7}, {("cg", "Orders", 0): 6})


@pytest.mark.parametrize("away_at", [1, 2])
def test_a_broker_that_comes_is_locked_for_all_topics(net: FakeNet, make: Any, away_at: int) -> None:
    b = net.brokers["b"]
    group = make()
    for number, topic in enumerate(("Orders", "%RETRY%cg"), 1):
        b.processes[0].down = number == away_at
        group.lease(topic, "reports")
    b.processes[0].down = False
    assert group.hold_at(["b"]) == {"b"}
    assert {topic for _, topic, _ in b.locks} == {"Orders", "%RETRY%cg"}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("at", [41, 34])
def test_the_end_of_the_process_may_come_while_a_lease_is_taken(net: FakeNet, make: Any, at: int) -> None:
    """A handler of SIGTERM runs in the thread that takes the lease."""
    group, inner, has_come = make(), net.call, []

    def call(address: str, command: Any, timeout_ms: int) -> Any:
        answer = inner(address, command, timeout_ms)
        if command.code == at and not has_come:
            has_come.append(True)
            group.leave()
            raise SystemExit
        return answer

    net.call = call  # type: ignore[method-assign]
    with pytest.raises(SystemExit):
        group.lease("Orders", "reports")
    assert not net.brokers["a"].locks and not net.brokers["b"].locks
    assert not net.brokers["a"].members["cg"] and not net.brokers["b"].members["cg"]


def test_a_lease_of_another_topic_makes_no_older_lease_younger(net: FakeNet, make: Any, now: Time) -> None:
    """Brokers forget each lock 60 s after the request that asked for it, and then another query may have it."""
    group = make()
    old = group.lease("Orders", "reports")
    now.now_s += 50
    young = group.lease("%RETRY%cg", "reports")
    now.now_s += 11
    assert asked_at(net, group, ["a"]) == [41, 34]
    assert old.held() and young.held()


def test_a_lease_counts_from_the_request_for_its_locks(
    net: FakeNet, make: Any, now: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = make()
    others = group._member.others

    def slow() -> list[str]:
        now.now_s += 20
        return others()  # type: ignore[no-any-return]

    monkeypatch.setattr(group._member, "others", slow)
    group.lease("Orders", "reports")
    now.now_s += 21
    assert asked_at(net, group, ["a"]) == [41, 34]


def test_who_leaves_during_a_renewal_is_no_member_afterwards(
    net: FakeNet, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat of the renewal would join again, and the locks would stay for 60 s."""
    group = make()
    group.lease("Orders", "reports")
    is_renewing, may_go_on, beat = threading.Event(), threading.Event(), group._member.beat

    def slow(topics: set[str]) -> None:
        is_renewing.set()
        assert may_go_on.wait(10)
        beat(topics)

    monkeypatch.setattr(group._member, "beat", slow)
    renewal = threading.Thread(target=group.renew)
    renewal.start()
    assert is_renewing.wait(10)
    leaving = threading.Thread(target=group.leave)
    leaving.start()
    leaving.join(0.2)
    may_go_on.set()
    for thread in (renewal, leaving):
        thread.join(10)
        assert not thread.is_alive()
    assert not net.brokers["a"].members["cg"] and not net.brokers["b"].members["cg"]
    assert not net.brokers["a"].locks and not net.brokers["b"].locks


def test_members_that_join_a_running_query_are_logged_once(
    net: FakeNet, make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    group = make()
    group.lease("Orders", "reports")
    net.brokers["a"].members["cg"]["10.0.0.9@java"] = {}
    group.renew()
    group.renew()
    assert caplog.text.count("10.0.0.9@java joined while this query reads all queues") == 1
    assert live_members(net.cluster(), "cg") == {"10.0.0.9@java", group._member.client_id}


def test_the_lease_is_renewed_by_a_thread(net: FakeNet, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_group, "RENEW_EVERY_S", 0.01)
    group = make()
    group.lease("Orders", "reports")
    net.calls.clear()
    import time

    deadline = time.monotonic() + 10
    while 34 not in net.codes() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert 41 in net.codes() and 34 in net.codes()
    thread = group._thread
    group.leave()
    thread.join(10)
    assert not thread.is_alive()
    # A group that was left is leased again.
    group.lease("Orders", "reports")
    net.calls.clear()
    deadline = time.monotonic() + 10
    while 34 not in net.codes() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert 41 in net.codes() and 34 in net.codes()


def test_a_lease_of_a_topic_that_is_not_there_yet_is_a_lease(net: FakeNet, make: Any) -> None:
    lease = make().lease("%RETRY%cg", "reports")
    assert lease.held()
    assert json.loads(next(c.body for _, c in net.calls if c.code == 41))["mqSet"][0]["topic"] == "%RETRY%cg"
