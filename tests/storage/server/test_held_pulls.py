"""Pulls that wait: for how long, for what, and what becomes of them after errors and lost connections."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.filter.subscription import Subscription
from rmq_store.client import ResponseCode
from rmq_store.format.frames.frame_walk import frames_of_answer
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.header_fields import request
from rmq_store.protocol.wire.headers import PullMessageRequestHeader, PullMessageResponseHeader
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.processors.held_pulls import HeldPull, HeldPulls
from rmq_store.server.processors.pulling import SUBSCRIPTION, SUSPEND
from rmq_store.server.requests.request import Request

PATIENCE_S = 60.0


def eventually(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.005)


class Peer:
    """A client that is never told anything."""

    address = "127.0.0.1:4711"

    def send(self, *commands: RemotingCommand) -> None:
        raise AssertionError(commands)


def header(queue_id: int = 0, *, patience_ms: int = 50_000, tags: str = "*") -> PullMessageRequestHeader:
    return PullMessageRequestHeader(
        consumer_group="TOOLS_CONSUMER", topic="Orders", queue_id=queue_id, queue_offset=0, max_msg_nums=32,
        sys_flag=SUBSCRIPTION | SUSPEND, commit_offset=0, suspend_timeout_millis=patience_ms, subscription=tags,
        sub_version=0,
    )  # fmt: skip


def held(queue_id: int = 0, *, patience_ms: int = 50_000, peer: Peer | None = None) -> HeldPull:
    asked = Request(RemotingCommand(11), peer or Peer())
    return HeldPull(asked, header(queue_id), Subscription.of("Orders", "*"), patience_ms, 0)


@pytest.fixture
def store(scratch: Path, small: StoreConfig) -> Iterator[Store]:
    with Store.open(scratch / "store", create=True, config=small) as store:
        store.create_topic("Orders", 4)
        yield store


@pytest.fixture
def woken() -> list[tuple[HeldPull, bool]]:
    return []


@pytest.fixture
def holds(store: Store, woken: list[tuple[HeldPull, bool]]) -> Iterator[HeldPulls]:
    holds = HeldPulls(store)
    holds.start(lambda one, is_last, _: woken.append((one, is_last)))
    yield holds
    holds.close()


def test_nobody_waits_for_more_than_a_minute() -> None:
    one = held(patience_ms=1 << 40)
    assert one.until_s == one.request.arrived_s + 60


def test_the_pulls_of_a_connection_that_has_ended_are_forgotten(
    holds: HeldPulls, woken: list[tuple[HeldPull, bool]], store: Store
) -> None:
    gone, stays = Peer(), held()
    for queue_id in range(4):
        assert holds.hold(held(queue_id, peer=gone))
    assert holds.hold(stays)
    holds.disconnected(gone)
    eventually(lambda: holds._count == 1)
    for queue_id in range(4):
        store.send(Message("Orders", b"x", queue_id=queue_id))
    eventually(lambda: woken == [(stays, False)])
    assert holds._count == 0


@pytest.mark.parametrize("is_always", [False, True])
def test_an_error_at_one_queue_keeps_no_other_pull_and_ends_no_thread(
    holds: HeldPulls,
    woken: list[tuple[HeldPull, bool]],
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    is_always: bool,
) -> None:
    real, errors = Store.queue_range, [OSError(24, "Too many open files")] * 2

    def broken(self: Store, topic: str, queue_id: int) -> object:
        if queue_id == 0 and (is_always or errors):
            raise errors[0] if is_always else errors.pop()
        return real(self, topic, queue_id)

    monkeypatch.setattr(Store, "queue_range", broken)
    bad, good = held(0), held(1)
    assert holds.hold(bad) and holds.hold(good)
    for queue_id in (0, 1):
        store.send(Message("Orders", b"x", queue_id=queue_id))
    eventually(lambda: (good, False) in woken)
    if not is_always:
        eventually(lambda: (bad, False) in woken)
    monkeypatch.undo()
    eventually(lambda: (bad, False) in woken)


def test_an_error_of_the_look_at_the_log_ends_no_thread(
    holds: HeldPulls, woken: list[tuple[HeldPull, bool]], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()

    def broken(self: Store, end: int) -> bool:
        failed.set()
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "has_not_grown", broken)
        one = held()
        assert holds.hold(one)
        assert failed.wait(PATIENCE_S)
    store.send(Message("Orders", b"x", queue_id=0))
    eventually(lambda: woken == [(one, False)])


def test_ten_thousand_of_twenty_thousand_pulls_wake_up_at_once(
    holds: HeldPulls, woken: list[tuple[HeldPull, bool]], store: Store
) -> None:
    ones = [held(patience_ms=40_000 + number % 2) for number in range(20_000)]
    assert all(holds.hold(one) for one in ones)
    with holds._lock:
        started_s = time.thread_time()
        going = holds._let_go([("Orders", 0)], lambda one: one.patience_ms == 40_000, is_last=False)
        assert time.thread_time() - started_s < 0.5
    assert going == ones[::2] and not woken and holds._count == 10_000


def offsets_held(server: BrokerServer) -> list[int]:
    with server._holds._lock:
        return [one.offset for ones in server._holds._held.values() for one in ones]


def test_messages_that_do_not_match_keep_a_pull_waiting_behind_them(server: BrokerServer, cluster: Cluster) -> None:
    server.store.create_topic("Orders", 1)
    answers: list[RemotingCommand] = []

    def pull(patience_ms: int) -> threading.Thread:
        asked = request(header(tags="A", patience_ms=patience_ms))
        thread = threading.Thread(
            target=lambda: answers.append(cluster.client.call(server.address, asked, int(PATIENCE_S * 1000)))
        )
        thread.start()
        eventually(lambda: server._holds._count == 1)
        return thread

    waits = pull(50_000)
    for number in range(3):
        server.store.send(Message("Orders", b"%d" % number, tags="B", queue_id=0))
    eventually(lambda: offsets_held(server) == [3])
    assert answers == []
    server.store.send(Message("Orders", b"here", tags="A", queue_id=0))
    waits.join(PATIENCE_S)
    [found] = answers
    assert found.code == ResponseCode.SUCCESS and b"here" in found.body
    assert len(frames_of_answer(found.body)[0]) == 1
    assert PullMessageResponseHeader.from_ext(found.ext_fields).next_begin_offset == 4


def test_a_pull_that_only_skipped_messages_is_answered_with_where_to_go_on(
    server: BrokerServer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.store.create_topic("Orders", 1)
    answers: list[RemotingCommand] = []
    ends, is_over = HeldPull.until_s, threading.Event()
    monkeypatch.setattr(HeldPull, "until_s", property(lambda one: ends.__get__(one) - 50 * is_over.is_set()))
    asked = request(header(tags="A", patience_ms=50_000))
    waits = threading.Thread(target=lambda: answers.append(cluster.client.call(server.address, asked, 60_000)))
    waits.start()
    eventually(lambda: server._holds._count == 1)
    server.store.send(Message("Orders", b"x", tags="B", queue_id=0))
    eventually(lambda: offsets_held(server) == [1])
    assert answers == []
    is_over.set()
    waits.join(PATIENCE_S)
    [found] = answers
    assert found.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert PullMessageResponseHeader.from_ext(found.ext_fields).next_begin_offset == 1


def test_a_client_that_breaks_off_leaves_no_pull_behind(server: BrokerServer) -> None:
    server.store.create_topic("Orders", 1)
    broken = Cluster(ClusterSettings.of_text(server.address))
    broken.client.call_oneway(server.address, request(header()))
    eventually(lambda: server._holds._count == 1)
    broken.close()
    eventually(lambda: server._holds._count == 0)
