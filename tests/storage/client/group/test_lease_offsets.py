"""The offsets of a group at brokers in memory."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from rmq_store.client.group.group_lease import GroupLease
from rmq_store.protocol.errors import MQBrokerError

from ...remoting.cluster.fake_cluster import FakeNet
from .conftest import A0, A1, B0, Time, ends_renewing

pytestmark = pytest.mark.usefixtures("no_thread")


def test_offsets_are_committed_at_the_broker_of_each_queue(net: FakeNet, make: Any) -> None:
    group = make()
    net.brokers["a"].groups.add("cg")
    net.brokers["b"].groups.add("cg")
    assert group.committed([A0, A1, B0]) == {}
    group.commit({A0: 3, B0: 4})
    assert net.brokers["a"].offsets == {("cg", "Orders", 0): 3} and net.brokers["b"].offsets == {("cg", "Orders", 0): 4}
    assert group.committed([A0, A1, B0]) == {A0: 3, B0: 4}


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


@pytest.mark.parametrize("code", [2, 14, 215])
def test_offsets_of_a_busy_master_are_owed(net: FakeNet, make: Any, code: int) -> None:
    group, a, b = make(), net.brokers["a"], net.brokers["b"]
    for broker in (a, b):
        broker.groups.add("cg")
    b.refused[15] = (code, "[OVERLOAD]system busy")
    group.commit({A0: 3, B0: 4})
    group.commit({A0: 5})
    assert (a.offsets, b.offsets) == ({("cg", "Orders", 0): 5}, {})
    del b.refused[15]
    group.commit({})
    assert b.offsets == {("cg", "Orders", 0): 4}


def owed_at_the_end(net: FakeNet, group: GroupLease) -> None:
    """A stream that has completed a batch while the master of b is away."""
    for broker in net.brokers.values():
        broker.groups.add("cg")
    group.lease("Orders", "reports")
    net.brokers["b"].processes[0].down = True
    group.commit({A0: 3, B0: 4})


def lapses_at_b(group: GroupLease, now: Time) -> None:
    """The broker is away for so long that it forgets the lock there."""
    for _ in range(4):
        now.now_s += 20
        group.renew()


@pytest.mark.parametrize("ends_by", ["leave", "release"])
def test_owed_offsets_are_committed_when_the_query_ends(
    net: FakeNet, make: Any, now: Time, ends_by: str, caplog: pytest.LogCaptureFixture
) -> None:
    """AvailableNow commits its last batch and ends: no later commit takes the offsets along."""
    group, b = make(), net.brokers["b"]
    owed_at_the_end(net, group)

    def comes_back(duration_s: float) -> None:
        b.processes[0].down = now.now_s < 1001

    now.meanwhile = comes_back
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
    net: FakeNet, make: Any, now: Time, caplog: pytest.LogCaptureFixture
) -> None:
    group, b = make(), net.brokers["b"]
    owed_at_the_end(net, group)
    lapses_at_b(group, now)
    b.locks["cg_rmq_lease", "Orders", 0] = "thief#1"
    b.processes[0].down = False
    group.leave()
    assert b.offsets == {}
    assert "another client has the lock of Orders at b" in caplog.text and f"{B0} at 4" in caplog.text


@pytest.mark.parametrize("ends_by", ["leave", "release"])
@pytest.mark.parametrize("refused", [(2, "[OVERLOAD]"), (16, "no permission")])
def test_a_broker_that_refuses_its_locks_keeps_no_query_from_leaving(
    net: FakeNet, make: Any, now: Time, ends_by: str, refused: tuple[int, str], caplog: pytest.LogCaptureFixture
) -> None:
    group, a, b = make(), net.brokers["a"], net.brokers["b"]
    owed_at_the_end(net, group)
    lapses_at_b(group, now)
    b.processes[0].down, b.refused[41] = False, refused
    group.leave() if ends_by == "leave" else group.release("Orders")
    assert ends_renewing() and not a.locks and not a.members["cg"] and not b.members["cg"]
    assert b.offsets == {} and f"no master has taken these offsets: {B0} at 4" in caplog.text


def test_the_end_of_the_process_may_come_while_offsets_are_owed(net: FakeNet, make: Any, now: Time) -> None:
    group, a = make(), net.brokers["a"]
    owed_at_the_end(net, group)

    def ends(duration_s: float) -> None:
        raise SystemExit

    now.meanwhile = ends
    with pytest.raises(SystemExit):
        group.leave()
    now.meanwhile = lambda duration_s: None
    assert ends_renewing() and not a.locks and not a.members["cg"]


@pytest.mark.parametrize("code", [41, 34])
def test_a_broker_that_refuses_its_locks_or_a_member_keeps_no_other_from_a_commit(
    net: FakeNet, make: Any, now: Time, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    group, a, b = make(), net.brokers["a"], net.brokers["b"]
    owed_at_the_end(net, group)
    lapses_at_b(group, now)
    b.processes[0].down, b.refused[code] = False, (2, "[OVERLOAD]")
    now.now_s += 20
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
    assert group.starts_at_first_message(A0) and not group.starts_at_first_message(A1)
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
    assert make().committed([A0, B0]) == ({A0: 0, B0: 0} if has_committed else {})


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
    assert group.committed([A0]) == {A0: 2}
    group.commit({A0: 7, A1: 5})
    assert pulls == ["cg"]
    assert broker.offsets == {("cg", "Orders", 0): 7, ("cg", "Orders", 1): 5}
    assert "was reset to 2; the query that reads it stands at 7" in caplog.text


@pytest.mark.parametrize("lapses", [True, False])
@pytest.mark.parametrize("owes", [True, False])
def test_an_offset_that_an_operator_moves_at_a_broker_that_is_back_stays(
    net: FakeNet, make: Any, now: Time, lapses: bool, owes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    group, a, b = make(), net.brokers["a"], net.brokers["b"]
    for broker in (a, b):
        broker.groups.add("cg")
    lease = group.lease("Orders", "reports")
    group.commit({A0: 3, B0: 4})
    b.processes[0].down = True
    if owes:
        group.commit({A0: 4, B0: 6})
    if lapses:
        lapses_at_b(group, now)
    b.processes[0].down = False
    b.offsets["cg", "Orders", 0] = 9
    now.now_s += 20
    assert group.hold_before_planning(["a", "b"]) == {} and lease.held()
    group.commit({A0: 5})
    assert (a.offsets, b.offsets) == ({("cg", "Orders", 0): 5}, {("cg", "Orders", 0): 9})
    ours = 6 if owes else 4
    moved = f"its offset in {B0} was moved from outside to 9, while the query that reads it stands at {ours}: it is set"
    assert caplog.text.count(moved) == (1 if owes or lapses else 0)
    group.commit({B0: 7})
    assert b.offsets == {("cg", "Orders", 0): 7}, "it follows the query when it advances"


def test_owed_offsets_go_only_forward_also_when_the_query_ends(net: FakeNet, make: Any) -> None:
    group, b = make(), net.brokers["b"]
    owed_at_the_end(net, group)
    b.processes[0].down = False
    b.offsets["cg", "Orders", 0] = 9
    group.leave()
    assert b.offsets == {("cg", "Orders", 0): 9}
