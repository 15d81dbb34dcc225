"""Store directories as the brokers of a cluster: routes, and what a send is answered.

Sources: MQClientInstance#topicRouteData2TopicPublishInfo (routes), SendMessageProcessor (answers), BrokerFastFailure
(a busy broker).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_store import Message, SendStatus, Store, TopicConfig, UsageError
from rmq_store.broker.processor import local_broker
from rmq_store.broker.processor.local_broker import LocalBroker
from rmq_store.client.backend.local import LocalBackend
from rmq_store.files import durable
from rmq_store.files.locks.lock import OfdLock
from rmq_store.kinds.table import COMPACTION
from rmq_store.log.append import flush
from rmq_store.protocol.errors import MQBrokerError, MQClientError, ResponseCode
from rmq_store.protocol.messages import MessageQueue

from ..conftest import QUEUE, START_MS, create_store, send_to


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    yield
    durable.hook = None


# -- the cluster -------------------------------------------------------------------------------------------------------


def test_a_store_a_path_and_several_of_them_make_a_cluster(local_home: dict[str, Path]) -> None:
    path = local_home["broker-a"]
    with LocalBackend(path) as backend:
        assert list(backend.brokers()) == ["rmq-embedded"]
    with LocalBackend([str(path)]) as backend:
        assert list(backend.brokers()) == ["rmq-embedded"]
    with Store.open(path) as store:
        with LocalBackend({"mine": store}) as backend:
            assert list(backend.brokers()) == ["mine"]
            assert backend.clock() == START_MS
        store.send(Message("T", b"x"))  # what was given open stays open


def test_two_stores_of_one_name_need_names(local_home: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match="both called 'rmq-embedded'"):
        LocalBackend(list(local_home.values()))
    with pytest.raises(UsageError, match="at least one"):
        LocalBackend([])
    # What was opened before the error is closed again.
    with Store.open(local_home["broker-a"]) as store:
        assert store.recovery is not None


def test_messages_carry_the_name_of_their_broker(broker: LocalBroker) -> None:
    result = send_to(broker)
    assert result.broker_name == "broker-a"
    assert broker.pull("g", QUEUE, 0, 1).messages[0].broker_name == "broker-a"


def test_a_topic_is_made_at_every_broker_that_may(local_cluster: LocalBackend) -> None:
    """autoCreateTopicEnable; min(defaultTopicQueueNums, 8 of TBW102) queues (createTopicInSendMessageMethod)."""
    assert local_cluster.subscribe_queues("New") == []
    queues = local_cluster.publish_queues("New", 3)
    assert [str(queue) for queue in queues[2:4]] == [
        "MessageQueue [topic=New, brokerName=broker-a, queueId=2]",
        "MessageQueue [topic=New, brokerName=broker-b, queueId=0]",
    ]
    assert queues == sorted(queues)
    assert local_cluster.publish_queues("New", 5) == queues == local_cluster.subscribe_queues("New")
    assert len(local_cluster.publish_queues("Wide", 99)) == 16


def test_a_topic_that_one_broker_has_is_not_made_at_another(local_cluster: LocalBackend, broker: LocalBroker) -> None:
    assert {queue.broker_name for queue in local_cluster.publish_queues("T")} == {"broker-a"}


def test_retry_and_dead_letter_topics_are_not_made_by_a_producer(local_cluster: LocalBackend) -> None:
    assert local_cluster.publish_queues("%RETRY%g") == []
    assert local_cluster.publish_queues("%DLQ%g") == []


def test_a_store_without_auto_creation_makes_none(scratch: Path) -> None:
    with LocalBackend(create_store(scratch / "s", auto_create_topic_enable=False)) as backend:
        assert backend.publish_queues("New") == []


def test_permissions_decide_which_queues_are_for_whom(local_cluster: LocalBackend, broker: LocalBroker) -> None:
    for perm, writable, readable in ((6, 3, 2), (4, 0, 2), (2, 3, 0)):
        broker.store._topics.update(TopicConfig("T", 2, 3, perm))
        assert len(local_cluster.publish_queues("T")) == writable
        assert len(local_cluster.subscribe_queues("T")) == readable


def test_the_queues_of_a_topic_are_those_of_now(local_cluster: LocalBackend, broker: LocalBroker) -> None:
    """They are asked for with every message, and made anew only when a table has changed."""
    broker.store.create_topic("Grows", 2)
    assert len(local_cluster.publish_queues("Grows")) == 2
    local_cluster.publish_queues("Grows").clear()
    assert len(local_cluster.publish_queues("Grows")) == 2
    with Store.open(broker.store.path) as other:
        other._topics.update(TopicConfig("Grows", 5, 5))
    assert len(local_cluster.publish_queues("Grows")) == 5


def test_a_topic_that_is_kept_in_another_way_now_is_refused(
    local_cluster: LocalBackend, broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its settings are equal to those of before: the kind is no setting."""
    known = broker.store.create_topic("Compacted", 2)
    assert local_cluster.publish_queues("Compacted")
    monkeypatch.setattr(broker.store, "topics", lambda: {"Compacted": replace(known, kind=COMPACTION)})
    with pytest.raises(MQClientError, match="Compacted"):
        local_cluster.publish_queues("Compacted")


def test_an_order_configuration_decides_the_queues_of_a_topic(local_home: dict[str, Path]) -> None:
    with LocalBackend(local_home, order_topic_conf={"T": "broker-b:1"}) as backend:
        assert backend.publish_queues("T") == [MessageQueue("T", "broker-b", 0)]


# -- sending -----------------------------------------------------------------------------------------------------------


def test_what_a_store_refuses_is_answered_by_code(broker: LocalBroker) -> None:
    """SendMessageProcessor#handlePutMessageResult."""

    def code(action: object) -> int:
        with pytest.raises(MQBrokerError) as caught:
            action()  # type: ignore[operator]
        assert caught.value.broker_name == "broker-a"
        return caught.value.response_code

    assert code(lambda: send_to(broker, b"x" * (5 << 20))) == ResponseCode.MESSAGE_ILLEGAL
    assert code(lambda: send_to(broker, properties={"a": "b" * 40_000})) == ResponseCode.MESSAGE_ILLEGAL
    assert code(lambda: send_to(broker, queue_id=2)) == ResponseCode.INVALID_PARAMETER
    assert code(lambda: broker.send(Message("T", b"x"), 0, 3_000, "pg", sys_flag=4)) == ResponseCode.NO_PERMISSION
    broker.store._topics.update(TopicConfig("T", 2, 2, 4))
    assert code(lambda: send_to(broker)) == ResponseCode.NO_PERMISSION
    assert code(lambda: broker.send_batch([Message("T", b"x")], 0, 3_000, "pg")) == ResponseCode.NO_PERMISSION
    assert broker.store.queue_range("T", 0).max_offset == 0


def test_a_missing_topic_is_answered_where_none_may_be_made(scratch: Path) -> None:
    with LocalBackend(create_store(scratch / "s", auto_create_topic_enable=False)) as backend:
        broker = backend.brokers()["rmq-embedded"]
        with pytest.raises(MQBrokerError) as caught:
            send_to(broker)
        assert caught.value.response_code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize(
    ("number", "code"), [(28, ResponseCode.SERVICE_NOT_AVAILABLE), (5, ResponseCode.SYSTEM_ERROR)]
)
def test_a_disk_that_is_full_or_fails_is_answered_by_code(broker: LocalBroker, number: int, code: int) -> None:
    def fail(operation: str, path: str) -> None:
        if operation == "write" and "commitlog" in path:
            raise OSError(number, os.strerror(number))

    durable.hook = fail
    with pytest.raises(MQBrokerError) as caught:
        send_to(broker)
    assert caught.value.response_code == code
    durable.hook = None
    assert send_to(broker).status is SendStatus.SEND_OK


def test_an_append_that_has_to_wait_is_answered_with_busy(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DefaultMessageStore#isOSPageCacheBusy: the append lock held for osPageCacheBusyTimeOutMills is SYSTEM_BUSY."""
    assert local_broker.PAGE_CACHE_BUSY_MS == 1_000
    monkeypatch.setattr(local_broker, "PAGE_CACHE_BUSY_MS", 10)
    other = OfdLock(broker.store._log.append_lock.path, byte=broker.store._log.append_lock.byte)
    with other.exclusive(1_000):
        for call in (lambda: send_to(broker), lambda: broker.send_batch([Message("T", b"x")], 0, 3_000, "pg")):
            with pytest.raises(MQBrokerError) as caught:
                call()
            assert caught.value.response_code == ResponseCode.SYSTEM_BUSY
    assert send_to(broker).queue_offset == 0


@pytest.mark.statement("A16")
def test_a_flush_that_takes_too_long_is_a_result(scratch: Path) -> None:
    with LocalBackend(create_store(scratch / "s", flush_disk_type="SYNC_FLUSH")) as backend:
        broker = backend.brokers()["rmq-embedded"]
        with OfdLock(broker.store.path / "pyrmq" / "flush.lock").exclusive(1_000):
            result = broker.send(Message("T", b"x"), 0, 10, "pg")
            assert result.status is SendStatus.FLUSH_DISK_TIMEOUT
            result = broker.send_batch([Message("T", b"x"), Message("T", b"y")], 0, 10, "pg")
            assert result.status is SendStatus.FLUSH_DISK_TIMEOUT
        broker.store.flush()
        assert broker.store.queue_range("T", 0).max_offset == 3
        assert flush.LOCK_TIMEOUT_MS > 1_000  # so it was ours that was too short


def test_a_batch_is_stored_in_one_queue_with_all_its_ids(broker: LocalBroker) -> None:
    send_to(broker)
    messages = [
        Message("T", b"%d" % n, tags="A", keys=f"k{n}", properties={"UNIQ_KEY": f"ID{n}", "own": "p"}, flag=n)
        for n in range(3)
    ]
    result = broker.send_batch(messages, 1, 3_000, "pg")
    assert (result.queue_id, result.queue_offset, result.msg_id) == (1, 0, "ID0,ID1,ID2")
    found = broker.pull("g", MessageQueue("T", "broker-a", 1), 0, 9).messages
    assert [(m.body, m.msg_id, m.tags, m.keys, m.flag, m.properties["own"]) for m in found] == [
        (b"%d" % n, f"ID{n}", "A", f"k{n}", n, "p") for n in range(3)
    ]
    assert result.offset_msg_id == ",".join(m.offset_msg_id for m in found)
    assert result.commit_log_offset == found[0].commit_log_offset


def test_a_batch_is_visible_as_one_or_not_at_all(broker: LocalBroker) -> None:
    with pytest.raises(MQBrokerError):
        broker.send_batch([Message("T", b"x"), Message("T", b"x" * (5 << 20))], 0, 3_000, "pg")
    assert broker.store.queue_range("T", 0).max_offset == 0
