"""Groups at two brokers in memory, whose clock the tests move."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from rmq_store.client.group import group_lease
from rmq_store.client.group.group_lease import GroupLease
from rmq_store.protocol.messages import MessageQueue

from ...remoting.cluster.fake_cluster import FakeNet

A0, A1, B0 = (MessageQueue("Orders", name, queue_id) for name, queue_id in (("a", 0), ("a", 1), ("b", 0)))


class Time:
    """A clock; `meanwhile` is called when a part of a sleep is over, with its length."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.meanwhile: Callable[[float], None] = lambda duration_s: None

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s
        self.meanwhile(duration_s)


@pytest.fixture
def no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_lease, "RENEW_EVERY_S", 3600.0)


def renewing_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "rmq-group"]


def ends_renewing() -> bool:
    """Whether no thread renews a lease any more, at once or soon."""
    for thread in renewing_threads():
        thread.join(10)
    return not renewing_threads()


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
    def make(name: str = "cg") -> GroupLease:
        group = GroupLease(
            net.cluster(timer=lambda: now.now_s * 1000), name,
            instead="set commitOffsets=false", sleep=now.sleep, timer_s=now,
        )  # fmt: skip
        request.addfinalizer(group.leave)
        return group

    return make
