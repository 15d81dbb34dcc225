"""POP requests that wait: an error wakes them up later, and ends no thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.filter.subscription import Subscription
from rmq_store.broker.pop.pop import Pop
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.pop_headers import PopMessageRequestHeader
from rmq_store.server.pop.held_pops import HeldPop, HeldPops
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


def held(poll_time_ms: int = 50_000) -> HeldPop:
    header = PopMessageRequestHeader(
        consumer_group="cg", topic="Orders", queue_id=-1, max_msg_nums=32, invisible_time=300_000,
        poll_time=poll_time_ms, born_time=0, init_mode=0,
    )  # fmt: skip
    return HeldPop(Request(RemotingCommand(200050), Peer()), header, Subscription.of("Orders", "*"))


@pytest.fixture
def store(scratch: Path, small: StoreConfig) -> Iterator[Store]:
    with Store.open(scratch / "store", create=True, config=small) as store:
        store.create_topic("Orders", 1)
        yield store


@pytest.fixture
def woken() -> list[tuple[HeldPop, bool]]:
    return []


@pytest.fixture
def holds(store: Store, woken: list[tuple[HeldPop, bool]]) -> Iterator[HeldPops]:
    holds = HeldPops(store)
    holds.start(lambda one, is_last, _: woken.append((one, is_last)))
    yield holds
    holds.close()


def test_a_message_of_another_process_wakes_up_one_request(
    holds: HeldPops, woken: list[tuple[HeldPop, bool]], store: Store
) -> None:
    first, second = held(), held()
    assert holds.hold(first) and holds.hold(second)
    store.send(Message("Orders", b"x"))
    eventually(lambda: woken[:1] == [(first, False)])


def test_an_error_of_the_look_at_the_log_ends_no_thread(
    holds: HeldPops, woken: list[tuple[HeldPop, bool]], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()

    def broken(self: Store, end: int) -> bool:
        failed.set()
        raise ValueError("mmap closed or invalid")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "has_not_grown", broken)
        short, one = held(poll_time_ms=300), held()
        assert holds.hold(short) and holds.hold(one)
        assert failed.wait(PATIENCE_S)
        eventually(lambda: woken == [(short, True)])  # what is over ends all the same
    store.send(Message("Orders", b"x"))
    eventually(lambda: woken == [(short, True), (one, False)])


def test_a_request_names_the_error_of_the_look_at_its_messages(
    holds: HeldPops, woken: list[tuple[HeldPop, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Pop, group: str, topic: str) -> int:
        raise ValueError("mmap closed or invalid")

    monkeypatch.setattr(Pop, "rest", broken)
    one = held()
    assert holds.hold(one)
    eventually(lambda: woken == [(one, False)])
