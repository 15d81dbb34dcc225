"""SimpleConsumer over store directories: E01 to E06 of docs/conformance.md, SimpleConsumerImpl.java."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rmq_store import InvalidReceiptHandleError, Message, Store, StoreConfig, SubscriptionGroup, UsageError
from rmq_store.broker.filter.subscription import MessageSelector
from rmq_store.broker.rules import hot_queue
from rmq_store.client.backend.local import LocalBackend
from rmq_store.client.consumer.message_view import MessageView
from rmq_store.client.consumer.simple_consumer import FilterExpression, FilterExpressionType, SimpleConsumer
from rmq_store.client.group.consumer_config import ConsumeFromWhere
from rmq_store.protocol.errors import MQBrokerError
from rmq_store.protocol.messages import MessageQueue

NOTHING = timedelta(0)


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


class Lab:
    """Two brokers, a time that only moves when told, and a sleep that moves it."""

    def __init__(self, root: Path) -> None:
        self.now_ms = 1_700_000_000_000
        self.slept_ms: list[int] = []
        self.on_sleep: list[Callable[[], None]] = []
        config = StoreConfig(mapped_file_size_commit_log=1 << 20, max_hash_slot_num=100, max_index_num=1000)
        self.stores = {
            name: Store.open(root / name, create=True, config=config, clock=lambda: self.now_ms, broker_name=name)
            for name in ("broker-a", "broker-b")
        }
        for store in self.stores.values():
            store.create_topic("T", queue_count=2)
        self.backend = LocalBackend(self.stores)
        self.consumers: list[SimpleConsumer] = []

    def sleep(self, seconds: float) -> None:
        self.slept_ms.append(round(seconds * 1000))
        self.now_ms += self.slept_ms[-1]
        if self.on_sleep:
            self.on_sleep.pop(0)()

    def consumer(self, topics: Any = ("T",), group: str = "g", **options: Any) -> SimpleConsumer:
        filters = topics if isinstance(topics, dict) else dict.fromkeys(topics, "*")
        consumer = SimpleConsumer(
            group, self.backend, filters, **{"await_duration": NOTHING, "sleep": self.sleep, **options}
        )
        self.consumers.append(consumer)
        return consumer

    def send(self, *bodies: str, broker: str = "broker-a", topic: str = "T", **fields: Any) -> None:
        for body in bodies:
            self.stores[broker].send(Message(topic, body.encode(), **fields))

    def close(self) -> None:
        for consumer in self.consumers:
            consumer.close()
        self.backend.close()
        for store in self.stores.values():
            store.close()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as directory:
        lab = Lab(Path(directory))
        yield lab
        lab.close()


def bodies(views: list[MessageView]) -> list[str]:
    return sorted(view.body.decode() for view in views)


def drain(consumer: SimpleConsumer) -> list[MessageView]:
    found: list[MessageView] = []
    while views := consumer.receive(32, ms(60_000)):
        found += views
    return found


@pytest.mark.statement("E01", "E02", "E06")
def test_what_is_acknowledged_is_done_and_the_rest_comes_again(lab: Lab) -> None:
    consumer = lab.consumer()
    lab.send("one", "two")
    first = {view.body: view for view in consumer.receive(2, ms(30))}
    consumer.ack(first[b"one"])
    lab.now_ms += 29
    assert consumer.receive(2, ms(30)) == []
    lab.now_ms += 1
    (again,) = consumer.receive(2, ms(30))
    assert (again.body, again.delivery_attempt) == (b"two", 2)
    assert again.receipt_handle != first[b"two"].receipt_handle
    with pytest.raises(InvalidReceiptHandleError):
        consumer.ack(first[b"two"])


def test_a_broker_that_only_the_routes_know_yet_is_passed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of brokers and the route of a topic are asked for by themselves, and each may be half a minute old."""
    consumer = lab.consumer()
    lab.send("one", broker="broker-b")
    known = {"broker-b": lab.backend.brokers()["broker-b"]}
    monkeypatch.setattr(lab.backend, "brokers", lambda: known)
    assert bodies(drain(consumer)) == ["one"]


@pytest.mark.statement("E03", "E04")
def test_more_time_can_be_asked_for_while_there_is_some(lab: Lab) -> None:
    consumer = lab.consumer()
    lab.send("one")
    (view,) = consumer.receive(1, ms(20))
    old = view.receipt_handle
    lab.now_ms += 10
    consumer.change_invisible_duration(view, ms(50))
    assert view.receipt_handle != old
    lab.now_ms += 49
    assert consumer.receive(1, ms(20)) == []
    consumer.ack(view)
    with pytest.raises(InvalidReceiptHandleError):
        consumer.change_invisible_duration(view, ms(50))
    lab.send("two")
    (view,) = consumer.receive(1, ms(20))
    lab.now_ms += 20
    with pytest.raises(InvalidReceiptHandleError):
        consumer.change_invisible_duration(view, ms(50))


@pytest.mark.statement("B05", "E05")
def test_a_message_that_fails_too_often_is_a_dead_letter(lab: Lab) -> None:
    lab.stores["broker-a"].retry.set_max_reconsume_times("g", 2)
    consumer = lab.consumer()
    lab.send("poison")
    attempts = []
    for _ in range(5):
        attempts += [view.delivery_attempt for view in consumer.receive(1, ms(30))]
        lab.now_ms += 30
    assert attempts == [1, 2, 3]
    assert lab.stores["broker-a"].queue_range("%DLQ%g", 0) == (0, 1)
    other = lab.consumer(group="h", max_delivery_attempts=1)
    assert [view.delivery_attempt for view in other.receive(1, ms(30))] == [1]
    lab.now_ms += 30
    assert other.receive(1, ms(30)) == []


def test_members_of_a_group_share_the_queues_of_all_brokers(lab: Lab) -> None:
    one, two = lab.consumer(), lab.consumer()
    lab.send(*(f"a{number}" for number in range(10)))
    lab.send(*(f"b{number}" for number in range(10)), broker="broker-b")
    found = [one.receive(3, ms(30)), two.receive(3, ms(30)), drain(one), drain(two)]
    everything = [view for views in found for view in views]
    assert bodies(everything) == sorted(f"{broker}{number}" for broker in "ab" for number in range(10))
    assert {view.broker_name for view in everything} == {"broker-a", "broker-b"}
    for view in everything:
        two.ack(view)
    lab.now_ms += 60_000
    assert drain(one) == []


def test_tags_and_conditions_choose(lab: Lab) -> None:
    lab.backend.publish_queues("U")
    for number in range(6):
        lab.send(str(number), tags="AB"[number % 2], properties={"n": str(number)})
        lab.send(f"u{number}", topic="U", tags="AB"[number % 2], properties={"n": str(number)})
    consumer = lab.consumer(
        {"T": FilterExpression("A || C"), "U": FilterExpression("n > 1 AND TAGS = 'B'", FilterExpressionType.SQL92)}
    )
    assert bodies(drain(consumer)) == ["0", "2", "4", "u3", "u5"]
    other = lab.consumer({"T": MessageSelector.by_sql("n BETWEEN 4 AND 5"), "U": "B"}, group="h")
    assert other.subscription_expressions["U"] == MessageSelector("TAG", "B")
    assert bodies(drain(other)) == ["4", "5", "u1", "u3", "u5"]
    with pytest.raises(UsageError, match="position 2"):
        other.subscribe("T", FilterExpression("n ; 1", FilterExpressionType.SQL92))


def test_subscriptions_come_and_go(lab: Lab) -> None:
    lab.backend.publish_queues("U")
    lab.send("t")
    lab.send("u", topic="U")
    consumer = lab.consumer()
    assert bodies(drain(consumer)) == ["t"]
    consumer.subscribe("U")
    (view,) = drain(consumer)
    assert view.body == b"u"
    consumer.unsubscribe("U")
    lab.send("u2", topic="U")
    assert drain(consumer) == []
    consumer.ack(view)
    consumer.unsubscribe("T")
    with pytest.raises(UsageError, match="no subscription"):
        consumer.receive(1, ms(30))


def test_a_topic_that_is_not_there_yet_has_no_messages(lab: Lab) -> None:
    consumer = lab.consumer(["Later"])
    assert consumer.receive(1, ms(30)) == []
    lab.stores["broker-b"].create_topic("Later", queue_count=1)
    lab.send("x", topic="Later", broker="broker-b")
    assert bodies(consumer.receive(1, ms(30))) == ["x"]


def test_messages_that_others_sent_back_come_under_their_own_topic(lab: Lab) -> None:
    store = lab.stores["broker-a"]
    lab.send("x", tags="A", keys="k1 k2", sharding_key="s", queue_id=1)
    store.retry.send_back("g", store.commit_log_offset_before("T", 1, 1), delay_level=1)
    store.commit_offsets("g", {("T", 1): 1})
    consumer = lab.consumer({"T": "B"})
    assert consumer.receive(1, ms(30)) == []
    lab.now_ms += 1000
    (view,) = consumer.receive(1, ms(30))
    assert (view.topic, view.received_from, view.delivery_attempt) == ("T", "%RETRY%g", 2)
    assert (view.tag, view.keys, view.message_group, view.properties["TAGS"]) == ("A", ("k1", "k2"), "s", "A")
    assert view.message_id == view.message.msg_id
    assert view.born_timestamp_ms == lab.now_ms - 1000
    consumer.ack(view)
    lab.now_ms += 30
    assert consumer.receive(1, ms(30)) == []


def test_a_group_begins_where_it_is_told(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot_queue, "HOT_MEMORY_PERCENT", 0)
    lab.send("0", "1", "2", queue_id=0)
    assert bodies(drain(lab.consumer(group="last"))) == ["2"]
    first = lab.consumer(group="first", consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    assert bodies(drain(first)) == ["0", "1", "2"]
    with pytest.raises(UsageError, match="first or the last"):
        lab.consumer(consume_from_where=ConsumeFromWhere.CONSUME_FROM_TIMESTAMP)


# -- waiting ----------------------------------------------------------------------------------------------------------


def test_receive_waits_for_a_first_message_and_no_longer(lab: Lab) -> None:
    consumer = lab.consumer(await_duration=ms(1000))
    start_ms = lab.now_ms
    assert consumer.receive(1, ms(30)) == []
    assert lab.now_ms - start_ms == sum(lab.slept_ms) == 1000
    lab.slept_ms.clear()
    lab.on_sleep = [lambda: None, lambda: lab.send("x")]
    assert bodies(consumer.receive(1, ms(30))) == ["x"]
    assert len(lab.slept_ms) == 2


def test_a_clock_that_stands_still_makes_nobody_wait_for_ever(lab: Lab) -> None:
    slept = []
    consumer = lab.consumer(await_duration=ms(100), sleep=slept.append)
    assert consumer.receive(1, ms(30)) == []
    assert sum(slept) == pytest.approx(0.1)


def test_the_other_calls_wait_on_threads_of_their_own(lab: Lab) -> None:
    consumer = lab.consumer()
    lab.send("x", "y")
    views = [*consumer.receive_async(1, ms(30)).result(10), *consumer.receive_async(1, ms(30)).result(10)]
    assert bodies(views) == ["x", "y"]
    consumer.ack_async(views[0]).result(10)
    old = views[1].receipt_handle
    consumer.change_invisible_duration_async(views[1], ms(10)).result(10)
    assert views[1].receipt_handle != old
    with pytest.raises(InvalidReceiptHandleError):
        consumer.ack_async(views[0]).result(10)
    lab.now_ms += 10
    assert [view.delivery_attempt for view in consumer.receive(2, ms(30))] == [2]


def test_a_closed_consumer_does_nothing_any_more(lab: Lab) -> None:
    lab.send("x")
    with lab.consumer() as consumer:
        (view,) = consumer.receive(1, ms(30))
    for call in (
        lambda: consumer.receive(1, ms(30)),
        lambda: consumer.receive_async(1, ms(30)),
        lambda: consumer.ack(view),
        lambda: consumer.change_invisible_duration(view, ms(1)),
    ):
        with pytest.raises(UsageError, match="is closed"):
            call()
    lab.now_ms += 30
    assert bodies(lab.consumer().receive(1, ms(30))) == ["x"]


@pytest.mark.parametrize(
    ("count", "invisible"), [(0, ms(30)), (33, ms(30)), (True, ms(30)), (1, NOTHING), (1, 30), (1, ms(-1))]
)
def test_what_cannot_be_asked_for_is_refused(lab: Lab, count: int, invisible: Any) -> None:
    with pytest.raises(UsageError, match=r"max_message_num|invisible_duration"):
        lab.consumer().receive(count, invisible)


def test_subscriptions_are_a_mapping_and_texts_are_members_of_enumerations(lab: Lab) -> None:
    with pytest.raises(UsageError, match=r"^subscription_expressions=\['T'\]: a mapping or None is expected$"):
        SimpleConsumer("g", lab.backend, ["T"])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="first or the last offset"):
        lab.consumer(consume_from_where="CONSUME_FROM_TIMESTAMP")
    lab.send("before")
    assert lab.consumer(consume_from_where="CONSUME_FROM_FIRST_OFFSET").receive(1, ms(30))


def test_a_consumer_closes_only_a_store_that_it_was_given_by_path(lab: Lab) -> None:
    store = lab.stores["broker-a"]
    consumer = SimpleConsumer("g", store.path, {"T": "*"}, await_duration=NOTHING)
    assert consumer.receive(1, ms(30)) == []
    (broker,) = consumer._backend.brokers().values()
    consumer.close()
    with pytest.raises(UsageError, match="closed"):
        broker.max_offset(MessageQueue("T", "broker-a", 0))
    SimpleConsumer("g", store, {"T": "*"}).close()
    assert store.queue_range("T", 0).max_offset == 0


def test_a_group_that_may_not_consume_is_told_so(lab: Lab) -> None:
    for store in lab.stores.values():
        store._groups.create(SubscriptionGroup("g", consume_enable=False))
    with pytest.raises(MQBrokerError) as caught:
        lab.consumer().receive(1, ms(30))
    assert caught.value.response_code == 16


def test_committed_offsets_serve_a_consumer_of_another_kind(lab: Lab) -> None:
    consumer = lab.consumer()
    lab.send("0", "1", "2", queue_id=0)
    views = consumer.receive(3, ms(60_000))
    consumer.ack(views[0])
    for store in lab.stores.values():
        store.pop.close()
    assert lab.stores["broker-a"].committed_offsets("g")["T", 0] == 1
