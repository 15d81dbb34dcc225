"""What a consumer subscribes to, and a cluster of several brokers: filters, failing brokers, retries at each broker."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rmq_store import Lease, Message, Store, UsageError
from rmq_store.broker.filter.subscription import MessageSelector
from rmq_store.broker.processor import local_groups
from rmq_store.client.backend.local import LocalBackend
from rmq_store.client.consume_service.listener import ConsumeConcurrentlyStatus
from rmq_store.client.consume_service.send_back import MessageSender
from rmq_store.client.consumer.lite_pull_consumer import LitePullConsumer
from rmq_store.client.group.consumer_config import PushConsumerConfig
from rmq_store.format.text.host import Host
from rmq_store.format.text.ids import offset_message_id
from rmq_store.protocol.errors import MQBrokerError, RemotingTimeoutError, ResponseCode
from rmq_store.protocol.messages import MessageQueue

TOPIC, GROUP = "Orders", "cg_orders"
LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER


def test_tags_are_filtered_and_the_progress_passes_what_was_left_out(lab: Any) -> None:
    """NO_MATCHED_MSG: the offset advances when nothing is unfinished."""
    lab.topic()
    for tag in ("A", "B", "C", None, "B", "C"):
        lab.send(1, tags=tag)
    consumer = lab.concurrent(start=False)
    consumer.subscribe(TOPIC, "A || B")
    consumer.start(threads=False)
    lab.settle(consumer)
    assert lab.bodies() == ["m0", "m1", "m4"]
    consumer.shutdown()
    assert lab.committed() == 6


def test_two_tags_with_one_hash_are_told_apart(lab: Any) -> None:
    """The queue holds only a hash; "AaAa" and "BBBB" have the same one in Java."""
    lab.topic()
    lab.send(1, tags="AaAa")
    lab.send(1, tags="BBBB")
    consumer = lab.concurrent(start=False)
    consumer.subscribe(TOPIC, "BBBB")
    consumer.start(threads=False)
    lab.settle(consumer)
    assert lab.bodies() == ["m1"]


def test_sql92_selectors_look_at_properties(lab: Any) -> None:
    """MessageSelector.bySql; a message that does not match is passed, and its retry topic copy is not filtered."""
    lab.topic()
    for price in (5, 50, 500):
        lab.store.send(Message(TOPIC, f"p{price}".encode(), properties={"price": str(price)}, queue_id=0))
    consumer = lab.concurrent(lambda messages, context: None if messages[0].reconsume_times else LATER, start=False)
    consumer.subscribe(TOPIC, MessageSelector.by_sql("price BETWEEN 10 AND 100"))
    consumer.start(threads=False)
    lab.settle(consumer)
    lab.advance(10_000, consumer)
    assert [(each.body, each.reconsume_times) for each in lab.seen] == [("p50", 0), ("p50", 1)]
    consumer.shutdown()
    assert lab.committed() == 3


def test_a_broken_expression_is_refused_when_it_is_given(lab: Any) -> None:
    consumer = lab.concurrent(start=False)
    with pytest.raises(UsageError):
        consumer.subscribe(TOPIC, MessageSelector.by_sql("price >"))
    with pytest.raises(UsageError, match="names no tag"):
        consumer.subscribe(TOPIC, " || ")
    with pytest.raises(UsageError, match="topic"):
        consumer.subscribe("no such/topic")


def test_a_store_is_called_what_its_cluster_calls_it(lab: Any) -> None:
    """A failed message goes back to its own broker, whose copy keeps the offset id of the original (section 2.1)."""
    lab.topic()
    lab.send(1)
    backend = LocalBackend({"broker-a": lab.store})
    places: list[tuple[str, MessageQueue]] = []

    def answer(messages: Any, context: Any) -> Any:
        places.append((messages[0].broker_name, context.message_queue))
        return ConsumeConcurrentlyStatus.RECONSUME_LATER if len(places) == 1 else None

    lab.concurrent(answer, backend=backend)
    lab.settle()
    original = lab.read(TOPIC)[0]
    (parked,) = lab.read("SCHEDULE_TOPIC_XXXX")
    host = Host.parse(original["storeHost"])
    assert parked["properties"]["ORIGIN_MESSAGE_ID"] == offset_message_id(host, original["commitLogOffset"])
    lab.advance(10_000)
    assert [place.broker_name for _, place in places] == [name for name, _ in places] == ["broker-a", "broker-a"]


def test_topics_come_and_go_while_the_consumer_runs(lab: Any) -> None:
    """DefaultMQPushConsumer#subscribe, #unsubscribe after start."""
    lab.topic()
    lab.topic(name="Other")
    consumer = lab.concurrent()
    lab.send(1, topic="Other")
    lab.settle()
    assert lab.bodies() == []
    consumer.subscribe("Other")
    lab.settle()
    assert lab.bodies() == ["m0"]
    consumer.unsubscribe("Other")
    lab.settle()
    lab.send(1, topic="Other")
    lab.send(1)
    lab.settle()
    assert lab.bodies() == ["m0", "m2"]
    assert lab.committed(topic="Other") == 1


class Cluster:
    """Two stores as brokers; every call of a broker that is down fails, and so do the calls that are refused."""

    def __init__(self, root: Path, clock: Callable[[], int], config: Any) -> None:
        self.stores = {
            name: Store.open(root / name, create=True, clock=clock, config=config, broker_name=name)
            for name in ("broker-a", "broker-b")
        }
        self._backend = LocalBackend(dict(self.stores))
        self.down: dict[str, Exception] = {}
        self.refused: set[str] = set()
        self.resent: list[tuple[str, Message]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def brokers(self) -> Any:
        return {name: _Broker(self, name, broker) for name, broker in self._backend.brokers().items()}

    def close(self) -> None:
        self._backend.close()
        for store in self.stores.values():
            store.close()


class _Broker:
    def __init__(self, cluster: Cluster, name: str, broker: Any) -> None:
        self._cluster, self.name, self._broker = cluster, name, broker

    def __getattr__(self, name: str) -> Any:
        if self.name in self._cluster.down or name in self._cluster.refused:

            def fail(*arguments: Any, **options: Any) -> Any:
                raise self._cluster.down.get(self.name) or MQBrokerError(ResponseCode.SYSTEM_ERROR, "refused")

            return fail
        return getattr(self._broker, name)

    def send_to_retry(self, group: str, message: Message, *times: Any) -> None:
        if self.name in self._cluster.down:
            raise self._cluster.down[self.name]
        self._cluster.resent.append((self.name, message))
        self._broker.send_to_retry(group, message, *times)


@pytest.fixture
def cluster(lab: Any) -> Iterator[Cluster]:
    made = Cluster(lab.store.path.parent, lab.clock, lab.store.config)
    for store in made.stores.values():
        store.create_topic(TOPIC, queue_count=2)
    yield made
    made.down.clear()
    for consumer in lab.consumers:
        consumer.shutdown()
    lab.consumers.clear()
    made.close()


def send(cluster: Cluster, name: str, *bodies: str) -> None:
    for body in bodies:
        cluster.stores[name].send(Message(TOPIC, body.encode(), queue_id=0))


def test_queues_of_all_brokers_are_shared_and_each_keeps_its_own_progress(lab: Any, cluster: Cluster) -> None:
    """A group's retry topic exists at the brokers where something failed, and is consumed at each of them."""
    send(cluster, "broker-a", "a0", "a1")
    send(cluster, "broker-b", "b0")
    consumer = lab.concurrent(
        lambda messages, context: LATER if messages[0].body == b"b0" and not messages[0].reconsume_times else None,
        backend=cluster,
    )
    lab.settle()
    lab.advance(10_000)
    seen = sorted((each.body, each.reconsume_times) for each in lab.seen)
    assert seen == [("a0", 0), ("a1", 0), ("b0", 0), ("b0", 1)]
    consumer.shutdown()
    offsets = {name: store.committed_offsets(GROUP) for name, store in cluster.stores.items()}
    assert offsets["broker-a"][TOPIC, 0] == 2
    assert (offsets["broker-b"][TOPIC, 0], offsets["broker-b"][f"%RETRY%{GROUP}", 0]) == (1, 1)
    assert f"%RETRY%{GROUP}" not in cluster.stores["broker-a"].topics()


def test_a_message_that_its_broker_does_not_take_back_goes_to_another_broker(lab: Any, cluster: Cluster) -> None:
    """DefaultMQPushConsumerImpl#sendMessageBackAsNormalMessage: any broker of the cluster will do."""
    send(cluster, "broker-a", "a0")

    def fail_and_cut_off(messages: Any, context: Any) -> Any:
        if messages[0].reconsume_times:
            return None
        cluster.down["broker-a"] = RemotingTimeoutError("no answer")
        return LATER

    lab.concurrent(fail_and_cut_off, backend=cluster)
    lab.settle()
    cluster.down.clear()
    lab.advance(10_000)
    assert [(each.body, each.reconsume_times, each.topic) for each in lab.seen] == [("a0", 0, TOPIC), ("a0", 1, TOPIC)]
    assert f"%RETRY%{GROUP}" in cluster.stores["broker-b"].topics()


def test_a_broker_may_leave_while_a_message_goes_to_the_retry_topic(lab: Any, cluster: Cluster) -> None:
    """Each look at the brokers may find other ones."""
    send(cluster, "broker-b", "b0")
    (message,) = cluster.brokers()["broker-b"].pull(GROUP, MessageQueue(TOPIC, "broker-b", 0), 0, 1).messages
    looks = iter([cluster.brokers(), *[{}] * 9])
    backend: Any = SimpleNamespace(brokers=lambda: next(looks))
    assert MessageSender(backend, GROUP, 7).send_as_normal_message(message)
    assert [name for name, _ in cluster.resent] == ["broker-a"]


def test_the_ordinary_message_goes_to_another_broker_first_and_names_its_origin(lab: Any, cluster: Cluster) -> None:
    """A producer's retry avoids the broker that has just refused. The properties are those of the client's code."""
    send(cluster, "broker-a", "a0")
    cluster.refused.add("send_message_back")
    lab.concurrent(lambda messages, context: LATER, backend=cluster, max_reconsume_times=7)
    lab.settle()
    ((name, message),) = cluster.resent
    assert (name, message.topic, message.body) == ("broker-b", TOPIC, b"a0")
    unique_key = lab.seen[0].properties["UNIQ_KEY"]
    wanted = {
        "RETRY_TOPIC": TOPIC, "RECONSUME_TIME": "1", "MAX_RECONSUME_TIMES": "7", "DELAY": "3",
        "ORIGIN_MESSAGE_ID": unique_key, "UNIQ_KEY": unique_key,
    }  # fmt: skip
    assert {key: message.properties.get(key) for key in wanted} == wanted


@pytest.mark.parametrize(
    ("error", "pause_ms"),
    [(RemotingTimeoutError("no answer"), 3000), (MQBrokerError(ResponseCode.SYSTEM_BUSY, "busy"), 3000),
     (MQBrokerError(ResponseCode.FLOW_CONTROL, "slower"), 20)],
)  # fmt: skip
def test_a_broker_that_fails_is_left_alone_for_a_while_and_the_others_go_on(
    lab: Any, cluster: Cluster, error: Exception, pause_ms: int
) -> None:
    """pullMessage: again 3000 ms after an exception (SYSTEM_BUSY too), 20 ms after FLOW_CONTROL."""
    lab.concurrent(backend=cluster)
    lab.settle()
    cluster.down["broker-a"] = error
    send(cluster, "broker-a", "a0")
    send(cluster, "broker-b", "b0")
    lab.settle()
    assert lab.bodies() == ["b0"]
    cluster.down.clear()
    lab.advance(pause_ms - 1)
    assert lab.bodies() == ["b0"]
    lab.advance(1)
    assert lab.bodies() == ["b0", "a0"]


@pytest.mark.parametrize(("code", "pause_ms"), [(ResponseCode.SYSTEM_BUSY, 3000), (ResponseCode.FLOW_CONTROL, 20)])
def test_a_lite_pull_consumer_leaves_a_queue_alone_as_long_as_a_push_consumer(
    lab: Any, cluster: Cluster, code: int, pause_ms: int
) -> None:
    send(cluster, "broker-a", "a0")
    with LitePullConsumer(GROUP, cluster, client_id="l1") as consumer:
        consumer.subscribe(TOPIC)
        consumer.start(threads=False)
        cluster.down["broker-a"] = MQBrokerError(code, "slower")
        consumer.poll(0)
        cluster.down.clear()
        for passed_ms, bodies in ((pause_ms - 1, []), (1, [b"a0"])):
            lab.advance(passed_ms)
            assert [message.body for message in consumer.poll(0)] == bodies


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Store, "queue_range"),
        (Store, "topics"),
        (Store, "committed_offsets"),
        (Store, "commit_offsets"),
        (Lease, "heartbeat"),
        (Lease, "acquire"),
        (local_groups, "live_leases"),
    ],
)
@pytest.mark.parametrize("kind", ["concurrent", "ordered"])
def test_a_process_without_file_descriptors_for_a_while_goes_on_afterwards(
    lab: Any, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, kind: str
) -> None:
    """An open file that a listener has forgotten must not end its consumer: Java's tries again after 3 s, too."""
    lab.topic()
    lab.send(1)
    getattr(lab, kind)()
    lab.settle()

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, refuse)
        lab.send(1)
        for _ in range(40):
            lab.advance(1000)
    for _ in range(30):
        lab.advance(1000)
    assert lab.bodies() == ["m0", "m1"]
    assert lab.committed() == 2


def test_progress_that_a_broker_did_not_take_is_stored_later(lab: Any, cluster: Cluster) -> None:
    """At least once: while it is not stored, a restart would deliver the message again."""
    send(cluster, "broker-a", "a0")
    lab.concurrent(backend=cluster)
    lab.settle()
    cluster.down["broker-a"] = RemotingTimeoutError("no answer")
    lab.advance(10_000)
    assert cluster.stores["broker-a"].committed_offsets(GROUP) == {}
    cluster.down.clear()
    lab.advance(5_000)
    assert cluster.stores["broker-a"].committed_offsets(GROUP) == {(TOPIC, 0): 1}


def test_a_consumer_that_cannot_reach_a_broker_at_start_is_no_member_anywhere(lab: Any, cluster: Cluster) -> None:
    cluster.down["broker-b"] = RemotingTimeoutError("no answer")
    consumer = lab.concurrent(backend=cluster, start=False)
    with pytest.raises(RemotingTimeoutError):
        consumer.start(threads=False)
    cluster.down.clear()
    assert [broker.consumer_ids(GROUP) for broker in cluster.brokers().values()] == [[], []]


def test_the_defaults_are_rocketmqs() -> None:
    """The defaults of DefaultMQPushConsumer."""
    config = PushConsumerConfig()
    assert (config.consume_thread_nums, config.pull_batch_size, config.consume_message_batch_max_size) == (20, 32, 1)
    assert (config.pull_threshold_for_queue, config.pull_threshold_size_for_queue) == (1000, 100)
    assert (config.pull_threshold_for_topic, config.pull_threshold_size_for_topic) == (-1, -1)
    assert (config.consume_concurrently_max_span, config.pull_interval, config.consume_timeout) == (2000, 0, 15)
    assert config.allocate_message_queue_strategy.name == "AVG"
    assert config.message_model == "CLUSTERING"
    assert config.consume_from_where == "CONSUME_FROM_LAST_OFFSET"
    assert config.consume_timestamp_ms(10_000_000) == 10_000_000 - 30 * 60_000
