"""Messages that stay hidden while their consumer lives, by a clock that the test moves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_store import InvalidReceiptHandleError, Message, Store, StoreConfig, StoreFailedError
from rmq_store.broker.filter.subscription import MessageSelector, Subscription
from rmq_store.broker.metadata.groups import SubscriptionGroup
from rmq_store.broker.processor.local_broker import LocalBroker
from rmq_store.clock import system_clock
from rmq_store.protocol.messages import PoppedMessage
from rmq_store.server.grpc_definitions.retry_policy import wait_ms
from rmq_store.server.pop import renewals
from rmq_store.server.pop.renewals import FIRST_MS, MAX_MS, Consumer, Renewals
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.testing.broker import wait_until

MINUTE_MS = 60_000
OWN, OTHER = Consumer("cg", "c1"), Consumer("cg", "c2")
ALL = Subscription("Orders", MessageSelector.by_tag("*"))


class World:
    """A store with one message in work, and the renewals of a server for it."""

    def __init__(self, path: Path, config: StoreConfig) -> None:
        self.now_ms = 1_700_000_000_000
        self.store = Store.open(path, create=True, config=config, clock=lambda: self.now_ms)
        self.store.create_topic("Orders", 1)
        self.store.create_group(SubscriptionGroup("cg"))
        self.store.commit_offsets("cg", {("Orders", 0): 0})
        self.store.send(Message("Orders", b"tea"))
        self.broker = LocalBroker("rmq-embedded", self.store, liveness_clock=system_clock)
        self.alive = {OWN}
        served = ServedStore(self.store, self.broker, "DefaultCluster", "127.0.0.1:1")
        self.renewals = Renewals(served, self.alive.__contains__, wait_ms)

    def take(self, consumer: Consumer = OWN, user: str = "") -> PoppedMessage:
        popped = self.receive()
        self.renewals.add(consumer, user, "Orders", popped)
        return popped[0]

    def receive(self) -> list[PoppedMessage]:
        return self.broker.receive_message("cg", ALL, 32, FIRST_MS)

    def pass_ms(self, ms: int) -> None:
        """Let time pass, with a look at what is due every five seconds."""
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            self.now_ms = min(end_ms, self.now_ms + 5_000)
            self.renewals.renew_due()

    def ack(self, handle: str, consumer: Consumer = OWN) -> None:
        with self.renewals.taken(consumer, "Orders", handle) as newest:
            self.broker.ack_message("cg", "Orders", newest)

    @property
    def count(self) -> int:
        return sum(map(len, self.renewals._of.values()))


@pytest.fixture
def world(scratch: Path, small: StoreConfig) -> Iterator[World]:
    world = World(scratch / "store", small)
    yield world
    world.broker.close()
    world.store.close()


def test_a_message_stays_hidden_while_its_consumer_lives_and_its_first_handle_acknowledges_it(world: World) -> None:
    one = world.take()
    for _ in range(10):
        world.pass_ms(15 * MINUTE_MS)
        assert not world.receive()
    with pytest.raises(InvalidReceiptHandleError):
        world.broker.ack_message("cg", "Orders", one.receipt_handle)
    world.ack(one.receipt_handle)
    assert world.count == 0
    world.now_ms += 5 * MAX_MS
    assert not world.receive()


def test_renewals_become_rarer_as_at_rocketmq_and_end_after_three_hours(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    change = world.broker.change_invisible_duration

    def counted(group: str, topic: str, handle: str, ms: int) -> str:
        asked.append(((world.now_ms - since_ms) // 1000, ms // 1000))
        return change(group, topic, handle, ms)

    monkeypatch.setattr(world.broker, "change_invisible_duration", counted)
    since_ms = world.now_ms
    world.take()
    world.pass_ms(MAX_MS + 60 * MINUTE_MS)
    assert [step for _, step in asked] == [60, 180, 300, 600, 1800, 3600, 3600, 3600, 10]
    assert [at for at, _ in asked][:3] == [50, 100, 270] and asked[-1][0] >= MAX_MS // 1000
    assert world.count == 0
    [again] = world.receive()
    assert again.delivery_attempt == 2


def test_the_message_of_a_consumer_that_has_gone_is_visible_in_a_second(world: World) -> None:
    world.take()
    world.pass_ms(5 * MINUTE_MS)
    world.alive.clear()
    world.renewals.renew_due()
    assert world.count == 0 and not world.receive()
    world.now_ms += 1_000
    assert len(world.receive()) == 1


def test_a_handle_is_exchanged_for_its_consumer_and_topic_only(world: World) -> None:
    one = world.take()
    world.pass_ms(2 * MINUTE_MS)
    for consumer, topic in ((OTHER, "Orders"), (Consumer("other", "c1"), "Orders"), (OWN, "Bills")):
        with world.renewals.taken(consumer, topic, one.receipt_handle) as newest:
            assert newest == one.receipt_handle
    assert world.count == 1
    world.ack(one.receipt_handle)


def test_an_acknowledgement_that_failed_can_be_repeated(world: World) -> None:
    one = world.take()
    world.pass_ms(2 * MINUTE_MS)
    with pytest.raises(StoreFailedError), world.renewals.taken(OWN, "Orders", one.receipt_handle):
        raise StoreFailedError("the disk is full")
    world.pass_ms(60 * MINUTE_MS)
    world.ack(one.receipt_handle)


def test_a_message_that_another_consumer_has_got_is_renewed_no_more(world: World) -> None:
    world.take()
    world.now_ms += 2 * FIRST_MS  # the server stood still
    assert len(world.receive()) == 1
    world.renewals.renew_due()
    assert world.count == 0


def test_a_store_that_fails_is_asked_three_times(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> str:
        raise StoreFailedError("the disk is full")

    world.take()
    monkeypatch.setattr(world.broker, "change_invisible_duration", fails)
    world.now_ms += FIRST_MS - 5_000
    for left in (1, 1, 0):
        world.renewals.renew_due()
        assert world.count == left


def test_messages_of_too_many_are_not_renewed_and_one_user_gets_half(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewals, "RENEWED_MAX", 2)
    assert world.renewals.has_room("orders")
    one = world.take(user="orders")
    assert not world.renewals.has_room("orders") and world.renewals.has_room("bills")
    world.ack(one.receipt_handle)
    assert world.renewals.has_room("orders")


def test_a_server_that_ends_shows_what_nobody_could_acknowledge_any_more(world: World) -> None:
    world.take()
    world.pass_ms(2 * MINUTE_MS)
    world.store.send(Message("Orders", b"milk"))
    fresh = world.take()
    world.renewals.close()
    world.broker.ack_message("cg", "Orders", fresh.receipt_handle)
    world.now_ms += 1_000
    assert [one.message.body for one in world.receive()] == [b"tea"]


def test_nothing_is_looked_through_before_it_is_due(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.take()
    monkeypatch.setattr(world.renewals, "_each", lambda *_: pytest.fail("nothing is due"))
    world.now_ms += FIRST_MS - 11_000
    world.renewals.renew_due()


@pytest.mark.parametrize(
    ("policy", "reconsume_times", "seconds"),
    [
        ({"type": "CUSTOMIZED"}, 0, 10),
        ({"type": "CUSTOMIZED"}, 1000, 7200),
        ({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [3000]}}, 0, 3),
        ({"type": "EXPONENTIAL"}, 2, 20),
        ({"type": "EXPONENTIAL"}, 1000, 7200),
    ],
)
def test_the_wait_before_the_next_attempt_is_that_of_the_group(
    policy: dict[str, object], reconsume_times: int, seconds: int
) -> None:
    assert wait_ms(SubscriptionGroup("cg", group_retry_policy=policy), reconsume_times) == seconds * 1000


def test_an_answer_waits_for_the_renewal_that_is_under_way(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    one = world.take()
    change = world.broker.change_invisible_duration
    failed: list[Exception] = []

    def ack() -> None:
        try:
            world.ack(one.receipt_handle)
        except InvalidReceiptHandleError as error:
            failed.append(error)

    answering = threading.Thread(target=ack)

    def changed(*given: object) -> str:
        newest = change(*given)  # type: ignore[arg-type]
        answering.start()
        wait_until(lambda: world.renewals._changed._waiters or not answering.is_alive())  # type: ignore[attr-defined]
        return newest

    monkeypatch.setattr(world.broker, "change_invisible_duration", changed)
    world.now_ms += FIRST_MS - 5_000
    world.renewals.renew_due()
    answering.join(60)
    assert not answering.is_alive() and not failed and world.count == 0
