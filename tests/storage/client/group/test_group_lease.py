"""The lease of a stream at brokers in memory."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rmq_store.client.group import group_lease
from rmq_store.client.group.group_lease import GroupLease
from rmq_store.client.group.lease_locks import BrokerLease
from rmq_store.cluster import live_members
from rmq_store.errors import LeaseHeldError
from rmq_store.protocol.errors import RemotingError, RemotingTimeoutError

from ...remoting.cluster.fake_cluster import FakeNet
from .conftest import A0, A1, B0, Time, ends_renewing

pytestmark = pytest.mark.usefixtures("no_thread")


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
    assert lease.held() and list(net.brokers["a"].members["cg"]) == list(net.brokers["a"].locks.values())
    assert set(net.brokers["a"].locks) == {("cg_rmq_lease", "Orders", 0)}


def test_the_lock_of_a_dead_holder_is_waited_for(net: FakeNet, make: Any, now: Time) -> None:
    """A killed process is no member any more; brokers forget its locks after 60 s."""
    locks = net.brokers["a"].locks
    locks["cg_rmq_lease", "Orders", 0] = "dead#1"

    def forgets(duration_s: float) -> None:
        if now.now_s > 1040:
            locks.pop(("cg_rmq_lease", "Orders", 0), None)

    now.meanwhile = forgets
    assert make().lease("Orders", "reports").held()
    assert 1040 < now.now_s < 1045
    locks["x_rmq_lease", "Orders", 0] = "nobody"
    with pytest.raises(LeaseHeldError, match="topic 'Orders' is consumed by unknown"):
        make("x").lease("Orders", "reports")


def asked_at(net: FakeNet, group: GroupLease, broker_names: list[str]) -> list[int]:
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
    now.now_s += 20
    group.commit({A0: 6, B0: 6})
    assert (a.offsets, b.offsets) == ({("cg", "Orders", 0): 6}, {("cg", "Orders", 0): 1})
    assert [a.locks["cg_rmq_lease", "Orders", 0]] == list(a.members["cg"])
    b.processes[0].down = False
    now.now_s += 20
    b.locks["cg_rmq_lease", "Orders", 0] = "thief#1"
    a.members["cg"]["thief#1"] = {}
    with pytest.raises(LeaseHeldError, match="another client has taken the lease of Orders: it has the lock at b"):
        group.commit({A0: 7, B0: 7})
    assert (a.offsets, b.offsets) == ({("cg", "Orders", 0): 6}, {("cg", "Orders", 0): 1}) and not lease.held()
    assert not a.locks


def test_who_takes_a_lease_waits_for_any_master_within_a_bound(net: FakeNet, make: Any, now: Time) -> None:
    a, b = (net.brokers[name].processes for name in "ab")
    a[0].down = b[0].down = True
    began_s = now.now_s
    with pytest.raises(RemotingError, match=r"no master of a, b has answered for 60 s.*commitOffsets=false"):
        make().lease("Orders", "reports")
    assert 60 <= now.now_s - began_s < 62

    def comes_back(duration_s: float) -> None:
        a[0].down = b[0].down = now.now_s < began_s + 30

    group, began_s = make(), now.now_s
    now.meanwhile = comes_back
    assert group.lease("Orders", "reports").held()
    assert 30 <= now.now_s - began_s < 32, "and nobody is watched for: both answer"


def test_a_lease_needs_a_lock_also_if_the_name_servers_know_no_broker(net: FakeNet, make: Any, now: Time) -> None:
    """They forget a killed broker that has no slave, and then an empty list has refused nothing."""
    processes, net.brokers["a"].processes, net.brokers["b"].processes = net.brokers["a"].processes, {}, {}
    with pytest.raises(RemotingError, match=r"no master of the cluster has answered.*no broker has a process"):
        make().lease("Orders", "reports")

    def registers(duration_s: float) -> None:
        net.brokers["a"].processes = processes

    group = make()
    now.meanwhile = registers
    assert group.lease("Orders", "reports").held() and net.brokers["a"].locks


def taken_while_the_holder_is_not_seen(net: FakeNet, make: Any, now: Time) -> tuple[GroupLease, GroupLease, float]:
    """The first one began while b was away, so only a has its lock. Then a went and b came back: both seemed free.
    Returns it, the one that has taken the lease at b, and when.
    """
    a, b = (net.brokers[name].processes[0] for name in "ab")
    b.down = True
    first, second = make(), make()
    first.lease("Orders", "first")
    a.down, b.down = True, False
    asked_s = now.now_s

    def renews(duration_s: float) -> None:
        if now.now_s >= asked_s + 20:
            first.renew()

    now.meanwhile = renews
    assert second.lease("Orders", "second").held() and now.now_s == asked_s
    return first, second, asked_s


def test_who_takes_a_lease_while_a_master_is_away_watches_for_its_holder_beside_its_plans(
    net: FakeNet, make: Any, now: Time, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, asked_s = taken_while_the_holder_is_not_seen(net, make, now)
    assert second.hold_before_planning(["b"]) == {}
    second.commit({B0: 7})
    with pytest.raises(LeaseHeldError, match=r"and it is not alone.*other live members.*first#") as caught:
        while now.now_s - asked_s < 30:
            now.sleep(1)
            assert second.hold_before_planning(["b"]) == {}
    assert 20 <= now.now_s - asked_s <= 21 and caught.value.holder.startswith("first#")
    b = net.brokers["b"]
    assert not b.locks and not b.offsets, "it commits nothing as long as it may not be alone"
    now.sleep(1)
    assert first.hold_before_planning(["b"]) == {} and list(b.locks.values()) == [caught.value.holder]
    second.leave()
    assert not b.offsets and list(b.locks.values()) == [caught.value.holder]
    assert "no master of a answers" in caplog.text and "members are watched 22 s at b" in caplog.text


def test_a_holder_that_shows_itself_late_is_found_by_the_thread_that_renews(
    net: FakeNet, make: Any, now: Time
) -> None:
    """A query with a long trigger does not plan meanwhile."""
    first, second, _ = taken_while_the_holder_is_not_seen(net, make, now)
    now.sleep(20)
    second.renew()
    assert not net.brokers["b"].locks
    now.sleep(1)
    assert first.hold_at(["b"]) == {"b"}
    with pytest.raises(LeaseHeldError, match="first#"):
        second.hold_before_planning(["b"])


def test_a_lease_is_taken_at_once_while_a_master_is_away_if_nobody_holds_it(
    net: FakeNet, make: Any, now: Time
) -> None:
    a, b = net.brokers["a"], net.brokers["b"]
    a.processes[0].down = True
    group, began_s = make(), now.now_s
    assert group.lease("Orders", "reports").held() and group.lease("%RETRY%cg", "reports").held()
    assert now.now_s == began_s, "a master that lives waits for none that is away"
    assert group.hold_before_planning(["b"]) == {}
    for offset in range(3, 6):
        group.commit({B0: offset})
        now.sleep(5)
        assert group.hold_before_planning(["b"]) == {} and not b.offsets
    now.sleep(7)
    assert group.hold_before_planning(["b"]) == {}
    assert b.offsets == {("cg", "Orders", 0): 5}, "nobody else was seen"
    net.calls.clear()
    now.sleep(1)
    group.hold_before_planning(["b"])
    assert net.codes() == [], "the watch is over"
    a.processes[0].down = False
    now.sleep(20)
    assert group.hold_before_planning(["a", "b"]) == {} and len(a.locks) == 2


def test_offsets_that_wait_for_the_end_of_the_watch_are_committed_when_the_query_ends(
    net: FakeNet, make: Any, now: Time
) -> None:
    net.brokers["a"].processes[0].down = True
    group = make()
    group.lease("Orders", "reports")
    group.commit({B0: 4})
    now.sleep(2)
    group.leave()
    assert net.brokers["b"].offsets == {("cg", "Orders", 0): 4}


def test_an_earlier_run_that_a_living_broker_shows_is_waited_for_also_while_another_is_away(
    net: FakeNet, make: Any, now: Time
) -> None:
    a, b, began_s, ghost = net.brokers["a"], net.brokers["b"], now.now_s, "reports#1a2b3c4d-00000000"
    a.processes[0].silent = True
    b.members["cg"][ghost] = {}

    def ends(duration_s: float) -> None:
        if now.now_s - began_s > 100:
            b.members["cg"].pop(ghost, None)

    now.meanwhile = ends
    assert make().lease("Orders", "reports", "1a2b3c4d").held()
    assert 100 <= now.now_s - began_s <= 102
    now.meanwhile = lambda duration_s: None


def test_a_master_that_hangs_is_asked_for_the_lease_as_a_plan_asks(net: FakeNet, now: Time) -> None:
    """In one plan once, whatever is asked, and for as long as the plan waits."""
    asks, cluster, beside = net.cluster(timer=now), net.cluster(timer=now), []
    call_all = cluster.call_all
    cluster.call_all = lambda *given, **named: beside.append(given) or call_all(*given, **named)  # type: ignore[method-assign]
    net.brokers["b"].processes[0].silent = True
    group = GroupLease(cluster, "cg", instead="", asks=asks, sleep=now.sleep, timer_s=now)
    group.lease("Orders", "reports")
    assert not beside and asked_of(net, "b") == [41] and asked_of(net, "a") == [41, 203, 34, 203]
    group.leave()
    assert beside


def test_a_broker_that_comes_back_is_locked_and_joined_before_anything_is_committed_there(
    net: FakeNet, make: Any, now: Time
) -> None:
    b = net.brokers["b"]
    b.processes[0].down = True
    group = make()
    group.lease("Orders", "reports")
    assert group.hold_at(["a", "b"]) == {"a"}
    b.processes[0].down = False
    now.now_s += 22
    net.calls.clear()
    group.commit({B0: 4})
    assert net.codes() == [203, 41, 34, 15], "without the heartbeat a broker of 5.x does not know the group"
    assert b.offsets == {("cg", "Orders", 0): 4} and group.hold_at(["a", "b"]) == {"a", "b"}


def test_a_broker_that_comes_back_to_another_holder_ends_the_lease(net: FakeNet, make: Any, now: Time) -> None:
    b = net.brokers["b"]
    b.groups.add("cg")
    b.processes[0].down = True
    group = make()
    lease = group.lease("Orders", "reports")
    b.processes[0].down = False
    now.now_s += 20
    now.now_s += 2
    assert group.hold_before_planning(["a"]) == {}
    b.locks["cg_rmq_lease", "Orders", 0] = "thief#1"
    net.brokers["a"].members["cg"]["thief#1"] = {}
    for _ in range(2):
        with pytest.raises(LeaseHeldError, match="another client has taken the lease of Orders"):
            group.commit({A0: 3, B0: 4})
    assert not lease.held() and not b.offsets and not net.brokers["a"].offsets
    net.calls.clear()
    group.renew()
    assert net.codes() == [], "a lease that is lost is not taken again behind the other's back"


def planned_at(group: GroupLease, now: Time, wanted: set[str]) -> None:
    """Plan each second, without waiting in any plan, until the lease is held at these brokers."""
    while True:
        began_s = now.now_s
        not_held = group.hold_before_planning(["a", "b"])
        assert now.now_s == began_s, "brokers whose locks are ours go on"
        if wanted.isdisjoint(not_held):
            return
        assert all("another client has the lease of Orders at broker" in str(why) for why in not_held.values())
        now.sleep(1)


@pytest.fixture
def disputed(net: FakeNet, make: Any, now: Time) -> GroupLease:
    """A query that was started anew while b stood still. Now b goes on, and carries out the old query's requests."""
    b = net.brokers["b"]
    b.processes[0].down = True
    group: GroupLease = make()
    group.lease("Orders", "reports")
    now.now_s += 22
    assert group.hold_before_planning(["a"]) == {}
    b.processes[0].down = False
    b.locks["cg_rmq_lease", "Orders", 0] = "reports#old"
    b.members["cg"]["reports#old"] = {}

    def renews(duration_s: float) -> None:
        if now.now_s % 20 < duration_s:
            group.renew()

    now.meanwhile = renews
    return group


def test_the_lock_of_a_query_that_has_ended_is_waited_for_where_a_broker_comes_back(
    net: FakeNet, disputed: GroupLease, now: Time, caplog: pytest.LogCaptureFixture
) -> None:
    a, b, began_s = net.brokers["a"], net.brokers["b"], now.now_s
    disputed.commit({A0: 3, B0: 4})
    assert (a.offsets, b.offsets) == ({("cg", "Orders", 0): 3}, {}), "committed where the lock is ours"
    net.calls.clear()
    assert disputed.hold_at(["a", "b"]) == {"a"} and net.codes() == [], "asked once a second"
    renews = now.meanwhile

    def forgets(duration_s: float) -> None:
        renews(duration_s)
        if now.now_s >= began_s + 60:
            b.locks.pop(("cg_rmq_lease", "Orders", 0), None)

    now.meanwhile = forgets
    planned_at(disputed, now, {"a"})
    assert now.now_s == began_s
    planned_at(disputed, now, {"a", "b"})
    assert 60 <= now.now_s - began_s < 62
    assert caplog.text.count("It may be one of a query that has ended, and is waited for, 65 s at most") == 1
    disputed.commit({B0: 5})
    assert b.offsets == {("cg", "Orders", 0): 5} and b.locks and a.locks


def test_a_lock_elsewhere_that_does_not_go_is_one_of_a_query_that_lives(
    net: FakeNet, disputed: GroupLease, now: Time
) -> None:
    began_s = now.now_s
    with pytest.raises(LeaseHeldError, match="another client has taken the lease of Orders: it has the lock at b"):
        planned_at(disputed, now, {"b"})
    assert 65 <= now.now_s - began_s < 67
    assert not net.brokers["a"].locks and net.brokers["b"].locks == {("cg_rmq_lease", "Orders", 0): "reports#old"}


def test_a_lock_elsewhere_is_one_of_a_query_that_lives_as_soon_as_it_sends_a_heartbeat(
    net: FakeNet, disputed: GroupLease, now: Time
) -> None:
    """Its heartbeats at the broker that came back may be old ones."""
    renews, began_s = now.meanwhile, now.now_s

    def beats(duration_s: float) -> None:
        renews(duration_s)
        if now.now_s >= began_s + 7:
            net.brokers["a"].members["cg"]["thief#1"] = {}

    now.meanwhile = beats
    with pytest.raises(LeaseHeldError, match="another client has taken the lease"):
        planned_at(disputed, now, {"b"})
    assert 7 <= now.now_s - began_s < 9


def test_members_that_cannot_be_told_end_no_lease(net: FakeNet, disputed: GroupLease, now: Time) -> None:
    net.brokers["a"].refused[203] = 2, "[OVERLOAD]"
    assert disputed.hold_at(["a", "b"]) == {"a"}


@pytest.mark.parametrize("becomes", ["away", "refusing"])
def test_a_broker_that_goes_again_is_waited_for_no_more(
    net: FakeNet, disputed: GroupLease, now: Time, becomes: str
) -> None:
    b, began_s = net.brokers["b"], now.now_s
    assert disputed.hold_at(["a", "b"]) == {"a"}
    if becomes == "away":
        b.processes[0].down = True
    else:
        b.refused[41] = 2, "[OVERLOAD]"
    now.sleep(1)
    assert list(disputed.hold_before_planning(["a", "b"])) == ["b"]
    assert disputed.at("b").disputed_s is None and now.now_s - began_s <= 2


def test_who_has_no_lock_anywhere_does_not_wait_for_that_of_another(net: FakeNet, make: Any, now: Time) -> None:
    group, b = make(), net.brokers["b"]
    group.lease("Orders", "reports")
    suspended(net, now)
    b.locks["cg_rmq_lease", "Orders", 0] = "thief#1"
    began_s = now.now_s
    with pytest.raises(LeaseHeldError, match="another client has taken the lease"):
        group.hold_before_planning(["b"])
    assert now.now_s == began_s


def test_the_end_of_a_query_waits_for_no_lock_of_another(net: FakeNet, disputed: GroupLease, now: Time) -> None:
    disputed.commit({A0: 3, B0: 4})
    began_s = now.now_s
    disputed.leave()
    assert now.now_s - began_s == 3
    assert net.brokers["b"].offsets == {} and not net.brokers["a"].locks
    disputed.hold_before_planning(["a", "b"])


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


def test_what_is_known_of_the_lease_at_a_broker_is_one_value(net: FakeNet, make: Any, now: Time) -> None:
    group, b = make(), net.brokers["b"]
    assert group.at("a") == BrokerLease()
    group.lease("Orders", "reports")
    assert group.at("a") == group.at("b") == BrokerLease(locked_s=1000)
    b.processes[0].down = True
    now.now_s += 20
    group.renew()
    assert group.at("a") == BrokerLease(locked_s=1020) and group.at("b") == BrokerLease(locked_s=1000, away_s=1020)
    assert group.at("b").is_held(1059.9) and not group.at("b").is_held(1060)
    assert group.at("b").is_away(1039.9) and not group.at("b").is_away(1040)
    now.now_s += 20
    group.renew()
    b.processes[0].down = False
    now.now_s += 20
    b.locks["cg_rmq_lease", "Orders", 0] = "other"
    assert group.hold_at(["a", "b"]) == {"a"}
    assert group.at("b") == BrokerLease(locked_s=1000, refused_s=1060, disputed_s=1060), "and it has answered"
    group.leave()
    assert group.at("b") == BrokerLease()


@contextmanager
def held_renewal(net: FakeNet, group: GroupLease, code: int, may_go_on: threading.Event) -> Iterator[None]:
    """A renewal in a thread of its own, held at its first request of this code until the event, or the block, ends."""
    is_held, inner = threading.Event(), net.call

    def held(address: str, command: Any, timeout_ms: int) -> Any:
        if command.code == code and threading.current_thread() is renewal:
            is_held.set()
            assert may_go_on.wait(10)
        return inner(address, command, timeout_ms)

    net.call = held  # type: ignore[method-assign]
    renewal = threading.Thread(target=group.renew)
    renewal.start()
    try:
        assert is_held.wait(10)
        yield
    finally:
        may_go_on.set()
        renewal.join(10)


def test_a_renewal_that_waits_for_a_broker_keeps_no_plan_waiting(net: FakeNet, make: Any) -> None:
    group = make()
    group.lease("Orders", "reports")
    with held_renewal(net, group, 34, threading.Event()):
        planning = threading.Thread(target=group.hold_before_planning, args=(["a", "b"],))
        planning.start()
        planning.join(10)
        assert not planning.is_alive()


def test_a_plan_does_not_wait_for_a_renewal_that_waits_for_a_broker(
    net: FakeNet, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it needs a lock: the next plan asks for that."""
    monkeypatch.setattr(group_lease, "PLAN_WAITS_S", 0.01)
    net.brokers["b"].processes[0].down = True
    group = make()
    group.lease("Orders", "reports")
    net.brokers["b"].processes[0].down = False
    with held_renewal(net, group, 41, threading.Event()):
        not_held = group.hold_before_planning(["a", "b"])
        assert [str(why) for why in not_held.values()] == ["the lease of Orders at broker b is not taken yet"]
    assert group.hold_before_planning(["a", "b"]) == {}


def test_a_plan_waits_a_moment_for_a_renewal_that_is_about_to_end(
    net: FakeNet, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the queues of a broker that is back would miss the plan, as often as a renewal is under way."""
    monkeypatch.setattr(group_lease, "PLAN_WAITS_S", 10.0)
    net.brokers["b"].processes[0].down = True
    group = make()
    group.lease("Orders", "reports")
    net.brokers["b"].processes[0].down = False
    is_waited_for = threading.Event()

    class Noted:
        def __init__(self, lock: Any) -> None:
            self.release = lock.release
            self._lock = lock

        def acquire(self, *given: Any, **named: Any) -> bool:
            is_waited_for.set()
            return bool(self._lock.acquire(*given, **named))

    with held_renewal(net, group, 41, is_waited_for):
        lock = group._lock
        monkeypatch.setattr(group, "_lock", Noted(lock))
        try:
            assert group.hold_before_planning(["a", "b"]) == {}
        finally:
            monkeypatch.setattr(group, "_lock", lock)


def asked_of(net: FakeNet, broker_name: str) -> list[int]:
    """Codes of the requests to a broker."""
    return [command.code for address, command in net.calls if address.startswith(broker_name)]


def test_a_master_that_hangs_is_asked_once_in_a_renewal_and_not_when_the_query_ends(
    net: FakeNet, make: Any, now: Time
) -> None:
    """Each request would wait for its time-out."""
    group = make()
    group.lease("Orders", "reports")
    group.lease("%RETRY%cg", "reports")
    net.brokers["b"].processes[0].silent = True
    net.calls.clear()
    now.now_s += 20
    group.renew()
    assert asked_of(net, "b") == [41] and asked_of(net, "a") == [41, 34, 203]
    net.calls.clear()
    group.leave()
    assert asked_of(net, "b") == [] and asked_of(net, "a") == [42, 35]


def test_a_master_that_hangs_is_asked_nothing_for_the_lease_of_another_topic(net: FakeNet, make: Any) -> None:
    group = make()
    group.lease("Orders", "reports")
    net.brokers["b"].processes[0].silent = True
    group.are_away(["b"])
    net.calls.clear()
    assert group.lease("Bills", "reports").held()
    assert asked_of(net, "b") == [] and {topic for _, topic, _ in net.brokers["a"].locks} == {"Orders", "Bills"}
    net.brokers["b"].processes[0].silent = False
    assert group.hold_before_planning(["a", "b"]) == {}
    assert {topic for _, topic, _ in net.brokers["b"].locks} == {"Orders", "Bills"}


def test_the_lease_of_another_topic_waits_for_no_lock_of_another_client(
    net: FakeNet, disputed: GroupLease, now: Time
) -> None:
    assert list(disputed.hold_before_planning(["a", "b"])) == ["b"]
    net.brokers["b"].locks["cg_rmq_lease", "Bills", 0] = "reports#old"
    began_s = now.now_s
    assert disputed.lease("Bills", "reports").held()
    assert now.now_s == began_s and list(disputed.hold_before_planning(["a", "b"])) == ["b"]
    for topic in ("Orders", "Bills"):
        net.brokers["b"].locks.pop(("cg_rmq_lease", topic, 0))
    now.sleep(1)
    assert disputed.hold_before_planning(["a", "b"]) == {}


def test_a_broker_that_refuses_the_lock_holds_up_its_own_queues_and_says_why(
    net: FakeNet, make: Any, now: Time
) -> None:
    group = make()
    group.lease("Orders", "reports")
    now.now_s += 61
    net.brokers["b"].refused[41] = 16, "no permission"
    (why,) = group.hold_before_planning(["a", "b"]).items()
    assert why[0] == "b" and "the lease of Orders at broker b is not taken yet: CODE: 16  DESC: no perm" in str(why[1])
    net.brokers["b"].refused.clear()
    now.now_s += 1
    assert group.hold_before_planning(["a", "b"]) == {}


def test_an_earlier_run_that_brokers_still_show_ends_no_later_run(net: FakeNet, make: Any, now: Time) -> None:
    """A broker stood still, and carries out what a run has asked for that has ended; another one still shows it."""
    group, a, b = make(), net.brokers["a"], net.brokers["b"]
    group.lease("Orders", "reports", "1a2b3c4d")

    def comes_back_to(other: str) -> None:
        b.processes[0].down = True
        for _ in range(4):
            now.now_s += 20
            group.renew()
        b.processes[0].down = False
        b.locks["cg_rmq_lease", "Orders", 0] = other
        a.members["cg"][other] = {}

    comes_back_to("reports#1a2b3c4d-00000000")
    assert list(group.hold_before_planning(["a", "b"])) == ["b"]
    b.locks.clear()
    now.now_s += 1
    assert group.hold_before_planning(["a", "b"]) == {}
    comes_back_to("reports#ffffffff-00000000")
    with pytest.raises(LeaseHeldError, match="another client has taken the lease"):
        group.hold_before_planning(["a", "b"])


@pytest.mark.parametrize("ends_after_s", [20, 129, None])
def test_an_earlier_run_of_the_query_is_waited_for_130_s_and_named_if_it_lives(
    net: FakeNet, make: Any, now: Time, ends_after_s: int | None
) -> None:
    b, began_s, other = net.brokers["b"], now.now_s, "reports#1a2b3c4d-00000000"
    b.members["cg"][other] = {}

    def ends(duration_s: float) -> None:
        assert not b.locks and not net.brokers["a"].locks, "who waits has nothing, and may end at any time"
        if ends_after_s is not None and now.now_s - began_s > ends_after_s:
            b.members["cg"].pop(other, None)

    now.meanwhile = ends
    if ends_after_s is None:
        with pytest.raises(LeaseHeldError, match="other live members") as caught:
            make().lease("Orders", "reports", "1a2b3c4d")
        assert caught.value.holder == other
    else:
        assert make().lease("Orders", "reports", "1a2b3c4d").held()
    assert now.now_s - began_s == (130 if ends_after_s is None else ends_after_s + 1)
    now.meanwhile = lambda duration_s: None


@pytest.mark.parametrize("other", ["reports#00000000-1a2b3c4d", "1a2b3c4d@10.0.0.9", "reports#1a2b3c4d"])
def test_only_a_run_of_the_same_query_may_have_ended(net: FakeNet, make: Any, now: Time, other: str) -> None:
    net.brokers["b"].members["cg"][other] = {}
    began_s = now.now_s
    with pytest.raises(LeaseHeldError, match="other live members"):
        make().lease("Orders", "reports", "1a2b3c4d")
    assert now.now_s == began_s


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


def test_a_lease_counts_from_the_request_for_its_locks(net: FakeNet, make: Any, now: Time) -> None:
    group, inner = make(), net.call

    def slow(address: str, command: Any, timeout_ms: int) -> Any:
        now.now_s += 10 if command.code == 203 else 0
        return inner(address, command, timeout_ms)

    net.call = slow  # type: ignore[method-assign]
    group.lease("Orders", "reports")
    now.now_s += 21
    assert asked_at(net, group, ["a"]) == [41, 34]


def test_who_leaves_during_a_renewal_is_no_member_afterwards(net: FakeNet, make: Any) -> None:
    """The heartbeat of the renewal would join again, and the locks would stay for 60 s."""
    group = make()
    group.lease("Orders", "reports")
    is_renewing, may_go_on, inner = threading.Event(), threading.Event(), net.call

    def slow(address: str, command: Any, timeout_ms: int) -> Any:
        if command.code == 34:
            is_renewing.set()
            assert may_go_on.wait(10)
        return inner(address, command, timeout_ms)

    net.call = slow  # type: ignore[method-assign]
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
    (holder,) = net.brokers["b"].members["cg"]
    assert live_members(net.cluster(), "cg") == {"10.0.0.9@java", holder}


def test_the_lease_is_renewed_by_a_thread(net: FakeNet, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_lease, "RENEW_EVERY_S", 0.01)
    group = make()
    group.lease("Orders", "reports")
    net.calls.clear()
    import time

    deadline = time.monotonic() + 10
    while 34 not in net.codes() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert 41 in net.codes() and 34 in net.codes()
    group.leave()
    assert ends_renewing()
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
