"""A topic of a group is shared by consumers, or one stream's alone, whoever comes when, and however they go."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import rmq_store
from rmq_store import LeaseHeldError, Message, Store, live_leases
from rmq_store.broker.metadata import topic_use
from rmq_store.broker.metadata.leases import Lease
from rmq_store.broker.metadata.topic_use import TopicLease, TopicUse
from rmq_store.broker.monitoring.active_consumers import active_groups, require_idle
from rmq_store.broker.monitoring.offset_reset import apply_reset, earliest, plan_reset
from rmq_store.client import (
    ConsumeConcurrentlyStatus,
    LitePullConsumer,
    LitePullConsumerConfig,
    LocalBackend,
    MessageListenerConcurrently,
    PushConsumer,
    PushConsumerConfig,
    SimpleConsumer,
)

GROUP = "g"
RETRY = "%RETRY%g"
RACER = Path(__file__).parents[2] / "workers" / "group_racer.py"
KINDS = ("push", "lite", "simple")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store", create=True) as opened:
        for topic in ("T", "U"):
            opened.create_topic(topic, 1)
        yield opened


@pytest.fixture
def join(store: Store) -> Iterator[Callable[..., Any]]:
    """Join the group as a consumer of a kind."""
    with contextlib.ExitStack() as stack:

        def one(kind: str, *topics: str, **settings: Any) -> Any:
            if kind == "simple":
                simple = SimpleConsumer(GROUP, store, dict.fromkeys(topics, "*"), await_duration=timedelta(0))
                return stack.enter_context(contextlib.closing(simple))
            consumer: Any
            if kind == "push":
                consumer = PushConsumer(GROUP, store, PushConsumerConfig(**settings))
                done = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                consumer.register_message_listener(MessageListenerConcurrently(lambda messages, context: done))
            else:
                consumer = LitePullConsumer(GROUP, store, LitePullConsumerConfig(**settings))
            for topic in topics:
                consumer.subscribe(topic)
            consumer.start(threads=False)
            return stack.enter_context(consumer)

        yield one


def end(consumer: Any) -> None:
    consumer.close() if isinstance(consumer, SimpleConsumer) else consumer.shutdown()


@pytest.mark.parametrize("kind", KINDS)
def test_a_consumer_is_refused_while_a_stream_has_the_topic(store: Store, join: Any, kind: str) -> None:
    stream = store.lease(GROUP, "T", "query 'orders'")
    with pytest.raises(LeaseHeldError) as refused:
        join(kind, "U", "T")
    assert f"\"query 'orders'\" (process {os.getpid()}, since 20" in str(refused.value)
    assert f" on {socket.gethostname()}; " in str(refused.value)
    assert refused.value.holder == "query 'orders'"
    assert LocalBackend(store).brokers()[store.broker_name].consumer_ids(GROUP) == []
    store.lease(GROUP, "U", "who was refused holds nothing").release()
    stream.release()
    join(kind, "U", "T")


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_is_refused_while_consumers_share_the_topic(store: Store, join: Any, kind: str) -> None:
    consumers = [join(kind, "T"), join(kind, "T")]
    with pytest.raises(LeaseHeldError) as refused:
        store.lease(GROUP, "T", "a stream")
    assert str(refused.value).count(f"(process {os.getpid()}, since 20") == 2
    store.lease(GROUP, "U", "a stream").release()
    store.lease("another", "T", "a stream").release()
    end(consumers[0])
    with pytest.raises(LeaseHeldError, match="'T' is being read by"):
        store.lease(GROUP, "T", "a stream")
    end(consumers[1])
    store.lease(GROUP, "T", "a stream").release()
    assert list((store.path / "pyrmq" / "groups" / GROUP).iterdir()) == []


def test_consumers_of_every_kind_share_a_topic(store: Store, join: Any) -> None:
    for kind in KINDS * 2:
        join(kind, "T")


@pytest.mark.parametrize("kind", ["push", "lite"])
def test_a_consumer_that_broadcasts_is_not_refused_and_refuses_nobody(
    store: Store, join: Any, tmp_path: Path, kind: str
) -> None:
    settings = {"message_model": "BROADCASTING", "offset_store_directory": tmp_path}
    stream = store.lease(GROUP, "T", "a stream")
    first = join(kind, "T", instance_name="a", **settings)
    first.subscribe("U")
    stream.release()
    store.lease(GROUP, "U", "a stream")
    join("push", "T")
    with pytest.raises(LeaseHeldError) as refused:
        store.lease(GROUP, "T", "a stream")
    assert first.client_id not in str(refused.value)


def test_queues_that_were_assigned_are_read_beside_a_stream(store: Store) -> None:
    """As beside other members: who assigns says which queues, whoever else reads them."""
    store.send(Message("T", b"one"))
    with LitePullConsumer(GROUP, store) as consumer:
        consumer.assign(consumer.fetch_message_queues("T"))
        consumer.start(threads=False)
        store.lease(GROUP, "T", "a stream")
        assert [message.body for message in consumer.poll(0)] == [b"one"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_topic_that_comes_later_is_refused_when_it_is_named(store: Store, join: Any, kind: str) -> None:
    consumer = join(kind, "U")
    stream = store.lease(GROUP, "T", "a stream")
    with pytest.raises(LeaseHeldError, match="'T' is being read by 'a stream'"):
        consumer.subscribe("T")
    stream.release()
    store.lease(GROUP, "T", "it did not stay with the consumer").release()
    consumer.subscribe("T")
    with pytest.raises(LeaseHeldError):
        store.lease(GROUP, "T", "a stream")


@pytest.mark.parametrize("kind", KINDS)
def test_a_topic_is_free_when_the_consumer_has_given_its_queues_back(store: Store, join: Any, kind: str) -> None:
    consumer = join(kind, "T", "U")
    consumer.unsubscribe("T")
    for _ in range(3):
        consumer.receive(1, timedelta(1)) if kind == "simple" else (
            consumer.poll(0) if kind == "lite" else consumer.run_once()
        )
    store.lease(GROUP, "T", "a stream")
    with pytest.raises(LeaseHeldError):
        store.lease(GROUP, "U", "a stream")


def test_a_topic_is_kept_while_the_consumer_still_has_queues_of_it(store: Store, join: Any) -> None:
    """Its progress is stored when they go, which must not be after a stream has begun."""
    consumer = join("push", "T", "U")
    consumer.unsubscribe("T")
    consumer._membership._heartbeat()
    with pytest.raises(LeaseHeldError):
        store.lease(GROUP, "T", "a stream")


@pytest.mark.parametrize("kind", ["push", "simple"])
def test_the_retry_topic_counts_for_those_who_read_it(store: Store, join: Any, kind: str) -> None:
    """A stream that reads what comes back, and consumers of other topics: both would get it."""
    streams = [store.lease(GROUP, topic, "a stream") for topic in ("T", RETRY)]
    with pytest.raises(LeaseHeldError, match=r"'%RETRY%g' is being read by 'a stream'.* retryTopic=false"):
        join(kind, "U")
    join("lite", "U")  # reads no retry topic
    streams[1].release()
    join(kind, "U")
    with pytest.raises(LeaseHeldError):
        store.lease(GROUP, RETRY, "a stream")


def test_a_refused_consumer_changes_nothing_of_its_group(store: Store, join: Any) -> None:
    store.lease(GROUP, "T", "a stream")
    with pytest.raises(LeaseHeldError):
        join("push", "T", max_reconsume_times=3)
    assert GROUP not in store.groups()


def test_a_topic_need_not_exist_to_be_held(store: Store, join: Any) -> None:
    join("push", "Later")
    with pytest.raises(LeaseHeldError):
        store.lease(GROUP, "Later", "a stream")


def test_offsets_are_reset_beside_simple_consumers_which_are_no_members(store: Store, join: Any) -> None:
    consumer = join("simple", "T")
    assert live_leases(store.path, GROUP) == [] and active_groups(store, "T") == []
    require_idle(store, GROUP)
    apply_reset(store, GROUP, plan_reset(store, GROUP, ["T"], earliest))
    consumer.receive(1, timedelta(seconds=1))


def test_long_names_of_topics_are_told_apart(store: Store) -> None:
    first, second = (TopicUse(store.path, GROUP, "%RETRY%" + "x" * 240 + end) for end in "ab")
    Lease(store.path, GROUP, "T").acquire("makes the directory")
    first.share()
    second.take_alone()
    assert first.held() and second.held()


def test_one_that_cannot_be_named_is_refused_all_the_same(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_use, "_UNNAMED_S", 0.01)
    Lease(store.path, GROUP, "U").acquire("makes the directory")
    nameless = TopicUse(store.path, GROUP, "T")
    nameless.share()
    with pytest.raises(LeaseHeldError, match="'T' is being read by another member"):
        TopicLease(store.path, GROUP, "T").acquire("a stream")
    nameless.release()
    nameless.take_alone()
    with pytest.raises(LeaseHeldError, match="'T' is being read by another member"):
        TopicUse(store.path, GROUP, "T").share()


@contextlib.contextmanager
def racers(path: Path, *kinds: tuple[str, ...]) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are ready to join."""
    environment = {**os.environ, "PYTHONPATH": str(Path(rmq_store.__file__).parents[1])}
    started = []
    try:
        for kind, *topics in kinds:
            command = [sys.executable, str(RACER), str(path), kind, *topics]
            started.append(
                subprocess.Popen(
                    command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            )
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def go(processes: list[subprocess.Popen[str]]) -> list[str]:
    """Let all of them join at one instant; what they say."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    answers = []
    for process in processes:
        assert process.stdout is not None
        answers.append(process.stdout.readline())
    return answers


def test_of_streams_and_consumers_that_start_at_one_instant_one_side_wins(store: Store) -> None:
    kinds = ("stream", "push", "stream", "lite", "stream", "simple", "stream", "push")
    with racers(store.path, *((kind, "T", "U") for kind in kinds)) as processes:
        answers = go(processes)
        held = {kind for kind, answer in zip(kinds, answers, strict=True) if answer == "held\n"}
        assert held == {"stream"} or held == {"push", "lite", "simple"}, answers
        assert held != {"stream"} or answers.count("held\n") == 1
        refused = [answer for answer in answers if answer != "held\n"]
        assert all(answer.startswith("refused: group 'g': ") for answer in refused), answers


@pytest.mark.parametrize("kind", [*KINDS, "stream"])
def test_a_killed_holder_frees_the_topic_at_once(store: Store, kind: str) -> None:
    with racers(store.path, (kind, "T")) as (process,):
        assert go([process]) == ["held\n"]

        def take() -> None:
            if kind == "stream":
                SimpleConsumer(GROUP, store, {"T": "*"}).close()
            else:
                store.lease(GROUP, "T", "a stream").release()

        with pytest.raises(LeaseHeldError, match=rf"\(process {process.pid}, since"):
            take()
        process.send_signal(signal.SIGKILL)
        process.wait()
        take()
