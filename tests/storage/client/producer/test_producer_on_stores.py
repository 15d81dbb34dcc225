"""Producers for real: several store directories as brokers, some of which fail, and several processes.

What the tests of the rules do with a cluster in memory happens here to stores on disk.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import rmq_store
from rmq_store import Message, SendStatus, Store
from rmq_store.client.backend.local import LocalBackend
from rmq_store.client.producer.producer import Producer
from rmq_store.client.producer.producer_config import ProducerConfig
from rmq_store.files import durable
from rmq_store.files.locks.lock import OfdLock
from rmq_store.protocol.errors import MQBrokerError, MQClientError, ResponseCode
from rmq_store.protocol.messages import MessageExt

from ..conftest import FakeClock, advance, create_store

HANG_S = 60


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    yield
    durable.hook = None


def full(path: Path) -> None:
    """From now on the disk of this store is full."""

    def refuse(operation: str, where: str) -> None:
        if operation == "write" and where.startswith(str(path / "commitlog")):
            raise OSError(28, os.strerror(28))

    durable.hook = refuse


def everything(backend: LocalBackend, topic: str = "T") -> list[MessageExt]:
    """All messages of a topic, queue by queue."""
    found: list[MessageExt] = []
    for queue in backend.subscribe_queues(topic):
        broker = backend.brokers()[queue.broker_name]
        offset = 0
        while messages := broker.pull("reader", queue, offset, 1_000).messages:
            found += messages
            offset = messages[-1].queue_offset + 1
    return found


@pytest.mark.statement("A09", "A10", "A14")
def test_messages_for_a_full_disk_go_to_the_other_brokers(scratch: Path) -> None:
    home = {name: create_store(scratch / name) for name in ("a", "b", "c")}
    with LocalBackend(home) as backend, Producer("pg", backend) as producer:
        for n in range(24):
            producer.send(Message("T", b"%d" % n))
        assert Counter(message.broker_name for message in everything(backend)) == {"a": 8, "b": 8, "c": 8}
        full(home["b"])
        for n in range(24, 48):
            assert producer.send(Message("T", b"%d" % n)).broker_name != "b"
        found = everything(backend)
    assert sorted(int(message.body) for message in found) == list(range(48))
    assert len({message.msg_id for message in found}) == 48


@pytest.mark.statement("A13")
def test_with_all_disks_full_the_caller_is_told(scratch: Path) -> None:
    home = {name: create_store(scratch / name) for name in ("a", "b")}
    with LocalBackend(home) as backend, Producer("pg", backend) as producer:
        backend.publish_queues("T")
        full(scratch / "a")
        refuse_a = durable.hook
        full(scratch / "b")
        refuse_b = durable.hook
        assert refuse_a is not None
        assert refuse_b is not None
        durable.hook = lambda operation, where: (refuse_a(operation, where), refuse_b(operation, where))[0]
        with pytest.raises(MQClientError, match=r"Send \[3\] times") as caught:
            producer.send(Message("T", b"x"))
        assert caught.value.response_code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert isinstance(caught.value.__cause__, MQBrokerError)
        durable.hook = None
        assert everything(backend) == []


@pytest.mark.statement("A06")
def test_a_busy_store_is_left_alone_for_a_second(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_store.broker.processor.local_broker.PAGE_CACHE_BUSY_MS", 5)
    clock = FakeClock()
    with LocalBackend(create_store(scratch / "a")) as backend:
        store = backend.brokers()["rmq-embedded"].store
        lock = OfdLock(store._log.append_lock.path, byte=store._log.append_lock.byte)

        def sleep(duration_ms: float) -> None:
            clock.sleep(duration_ms)
            lock.release()

        with Producer("pg", backend, timer=clock.exact, sleep=sleep, rng=random.Random(1)) as producer:
            backend.publish_queues("T")
            assert lock.try_exclusive()
            assert producer.send(Message("T", b"x")).status is SendStatus.SEND_OK
        assert clock.slept == [1_000]


@pytest.mark.statement("A08", "A16", "H01")
def test_a_store_may_ask_its_producers_to_try_another_one(scratch: Path) -> None:
    """A16: retryAnotherBrokerWhenNotStoreOK in the configuration of the broker, as the article has it."""
    settings = {"flush_disk_type": "SYNC_FLUSH", "retry_another_broker_when_not_store_ok": True}
    home = {name: create_store(scratch / name, **settings) for name in ("a", "b")}
    config = ProducerConfig(send_msg_max_timeout_per_request=20, send_msg_timeout=60_000)
    with LocalBackend(home) as backend, Producer("pg", backend, config, rng=random.Random(1)) as producer:
        backend.publish_queues("T", 1)
        with OfdLock(scratch / "a" / "pyrmq" / "flush.lock").exclusive(1_000):
            results = [producer.send(Message("T", b"%d" % n)) for n in range(2)]
        assert {(result.status, result.broker_name) for result in results} == {(SendStatus.SEND_OK, "b")}
        backend.brokers()["a"].store.flush()
        # One of the two was stored at a first, but not flushed in time: it is there twice, under one id.
        ids = Counter(message.msg_id for message in everything(backend))
        assert sorted(ids.values()) == [1, 2]
        assert set(ids) == {result.msg_id for result in results}


@pytest.mark.statement("A04")
def test_messages_of_a_key_keep_their_order(scratch: Path) -> None:
    home = {name: create_store(scratch / name) for name in ("a", "b")}
    with LocalBackend(home) as backend, Producer("pg", backend) as producer:
        for n in range(60):
            producer.send(Message("T", b"%d" % n, sharding_key=f"order-{n % 5}"))
        by_key: dict[str, list[MessageExt]] = {}
        for message in everything(backend):
            by_key.setdefault(message.properties["__SHARDINGKEY"], []).append(message)
    for number in range(5):
        of_key = by_key[f"order-{number}"]
        assert [int(message.body) for message in of_key] == list(range(number, 60, 5))
        assert len({(message.broker_name, message.queue_id) for message in of_key}) == 1


@pytest.mark.statement("C10")
def test_a_delayed_message_of_a_producer_comes_when_it_is_due(scratch: Path) -> None:
    with LocalBackend(create_store(scratch / "a")) as backend, Producer("pg", backend) as producer:
        broker = backend.brokers()["rmq-embedded"]
        producer.send(Message("T", b"level 3", delay_level=3))
        producer.send(Message("T", b"at", deliver_timestamp_ms=backend.clock() + 30_000))
        broker.deliver_due()
        assert everything(backend) == []
        advance(broker, 10_000)
        broker.deliver_due()
        assert [message.body for message in everything(backend)] == [b"level 3"]
        advance(broker, 20_000)
        broker.deliver_due()
        assert sorted(message.body for message in everything(backend)) == [b"at", b"level 3"]


def test_a_large_body_is_stored_compressed_and_read_plain(scratch: Path) -> None:
    body = b"tea " * 5_000
    with LocalBackend(create_store(scratch / "a")) as backend, Producer("pg", backend) as producer:
        result = producer.send(Message("T", body))
        store = backend.brokers()["rmq-embedded"].store
        (raw,) = store.read("T", result.queue_id, 0, 1, columns=["body", "sysFlag"], raw_body=True)
        assert raw.to_pylist() == [{"body": zlib.compress(body, 5), "sysFlag": 0x301}]
        assert [message.body for message in everything(backend)] == [body]


def test_a_producer_opens_and_closes_stores_given_by_path(scratch: Path) -> None:
    path = create_store(scratch / "a")
    with Producer("pg", path) as producer:
        result = producer.send_batch([Message("T", b"%d" % n) for n in range(3)])
        producer.send_oneway(Message("T", b"3"))
        assert producer.send_async(Message("T", b"4")).result(HANG_S).status is SendStatus.SEND_OK
    assert not (path / "abort").exists()  # stopped cleanly
    with Store.open(path) as store, LocalBackend(store) as backend:
        assert sorted(message.body for message in everything(backend)) == [b"0", b"1", b"2", b"3", b"4"]
        assert result.queue_offset == 0


@pytest.mark.statement("A02")
def test_asynchronous_sends_from_many_threads_arrive_once_each(scratch: Path) -> None:
    home = {name: create_store(scratch / name) for name in ("a", "b")}
    config = ProducerConfig(async_sender_threads=8, enable_backpressure_for_async_mode=True)
    with LocalBackend(home) as backend:
        with Producer("pg", backend, config) as producer:
            futures = [producer.send_async(Message("T", b"%d" % n)) for n in range(300)]
        results = [future.result(HANG_S) for future in futures]
        found = everything(backend)
    assert sorted(int(message.body) for message in found) == list(range(300))
    assert {result.msg_id for result in results} == {message.msg_id for message in found}


KILLED = """
import sys
from rmq_store import Message
from rmq_store.client.producer.producer import Producer
with Producer("pg", {"a": sys.argv[1], "b": sys.argv[2]}) as producer:
    for number in range(10_000):
        result = producer.send(Message("T", f"{sys.argv[3]}-{number}".encode()))
        print(result.msg_id, flush=True)
"""


def test_what_was_acknowledged_to_a_killed_process_is_there(scratch: Path) -> None:
    """Four producers on two stores; all of them are killed while they send."""
    home = {name: create_store(scratch / name) for name in ("a", "b")}
    with LocalBackend(home) as backend:
        backend.publish_queues("T")
    environment = {**os.environ, "PYTHONPATH": str(Path(rmq_store.__file__).parents[1])}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", KILLED, str(home["a"]), str(home["b"]), str(number)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    acknowledged: list[str] = []
    for worker in workers:
        assert worker.stdout is not None
        acknowledged += [worker.stdout.readline().strip() for _ in range(20)]
    for worker in workers:
        worker.kill()
    for worker in workers:
        assert worker.stdout is not None
        with worker.stdout:
            acknowledged += [line.strip() for line in worker.stdout if line.endswith("\n")]  # the last may be cut
        worker.wait(HANG_S)
    with LocalBackend(home) as backend:
        found = everything(backend)
    assert len({message.msg_id for message in found}) == len(found)
    assert set(acknowledged) <= {message.msg_id for message in found}
    assert len(found) <= len(acknowledged) + 4  # each had at most one send under way
