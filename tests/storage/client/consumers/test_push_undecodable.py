"""A body that cannot be inflated: no listener gets it, it becomes a dead letter as it lies, and nobody waits for it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from helpers.undecodable import KINDS, fill, undecodable
from rmq_store import Message
from rmq_store.client.consume_service.listener import ConsumeOrderlyStatus
from rmq_store.client.group.consumer_config import MessageModel
from rmq_store.protocol.errors import RemotingConnectError
from rmq_store.protocol.messages import MessageExt

TOPIC, GROUP = "Orders", "cg_orders"
RETRY, DLQ = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"
LISTENERS = ("concurrent", "arrow", "ordered")


def letters(lab: Any) -> list[tuple[bytes, int]]:
    """(body, sysFlag) of the group's dead letters, as they lie."""
    if DLQ not in lab.store.topics():
        return []
    ((_, (first, end)),) = lab.store.queue_ranges(DLQ).items()
    rows = lab.store.read(DLQ, 0, first, end, columns=["body", "sysFlag"], raw_body=True)
    return [(row["body"], row["sysFlag"]) for batch in rows for row in batch.to_pylist()]


@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.parametrize("listener", LISTENERS)
def test_it_becomes_a_dead_letter_and_its_neighbours_are_consumed(
    lab: Any, listener: str, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Every kind among 260 good ones: in pulls of few rows and of many, whose objects the extension makes."""
    lab.topic()
    rows = fill(lab.store, TOPIC, *KINDS, queue_id=0)
    lab.send(260 - len(KINDS))
    getattr(lab, listener)(consume_message_batch_max_size=size)
    with caplog.at_level(logging.ERROR):
        lab.settle()
    good = [body.decode() for body, flags in rows if not flags]
    assert lab.bodies() == [*good, *(f"m{number}" for number in range(260 - len(KINDS)))]
    assert letters(lab) == [row for row in rows if row[1]]
    assert RETRY not in lab.store.topics() or not lab.read(RETRY)
    assert len([line for line in caplog.messages if "cannot be inflated" in line]) == len(KINDS)
    lab.consumers[0].shutdown()
    assert lab.committed() == len(rows) + 260 - len(KINDS)


@pytest.mark.parametrize("listener", LISTENERS)
def test_one_alone_at_the_end_moves_the_progress(lab: Any, listener: str) -> None:
    lab.topic()
    fill(lab.store, TOPIC)
    lab.store.send(Message(TOPIC, b"not zlib", queue_id=0), sys_flag=1)
    getattr(lab, listener)()
    lab.settle()
    assert lab.bodies() == ["good 0"] and letters(lab) == [(b"not zlib", 1)]
    lab.consumers[0].shutdown()
    assert lab.committed() == 2


@pytest.mark.parametrize("listener", LISTENERS)
def test_broadcasting_drops_it(lab: Any, listener: str, tmp_path: Path) -> None:
    lab.topic()
    getattr(lab, listener)(message_model=MessageModel.BROADCASTING, offset_store_directory=tmp_path)
    lab.settle()
    fill(lab.store, TOPIC, "no zlib")
    lab.settle()
    assert lab.bodies() == ["good 0", "good 1"] and letters(lab) == []


@pytest.mark.parametrize("listener", LISTENERS)
def test_a_retry_that_cannot_be_inflated_is_one_too(lab: Any, listener: str) -> None:
    """It came to the retry topic by another client of the group."""
    lab.topic()
    fill(lab.store, TOPIC)
    lab.store.retry.send_to_retry(GROUP, Message(TOPIC, b"not zlib"), 1, sys_flag=1)
    getattr(lab, listener)()
    lab.settle()
    lab.advance(3_600_000)
    assert lab.bodies() == ["good 0"] and letters(lab) == [(b"not zlib", 1)]


class Refusing:
    """A backend whose broker takes nothing back until `refuses` is False; `sends_back` stays refused."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.refuses = True
        self.only_36 = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def brokers(self) -> dict[str, Any]:
        return {name: _Broker(self, broker) for name, broker in self._inner.brokers().items()}


class _Broker:
    def __init__(self, owner: Refusing, inner: Any) -> None:
        self._owner, self._inner = owner, inner

    def __getattr__(self, name: str) -> Any:
        is_back = name in ("send_message_back", "send_messages_back")
        if (self._owner.refuses and (is_back or name == "send_to_retry")) or (self._owner.only_36 and is_back):
            raise RemotingConnectError("gone")
        return getattr(self._inner, name)


@pytest.mark.parametrize("listener", LISTENERS)
def test_it_waits_while_no_broker_takes_it(lab: Any, listener: str) -> None:
    lab.topic()
    fill(lab.store, TOPIC, "no zlib")
    backend = Refusing(lab.backend)
    getattr(lab, listener)(backend=backend)
    lab.settle()
    assert letters(lab) == [] and lab.bodies() == (["good 0"] if listener == "ordered" else ["good 0", "good 1"])
    backend.refuses = False
    for _ in range(12):
        lab.advance(1000)
    assert letters(lab) == [undecodable()["no zlib"]] and lab.bodies() == ["good 0", "good 1"]


@pytest.mark.parametrize("kind", ["no zlib", "zstd garbage", "type 7"])
@pytest.mark.parametrize("listener", LISTENERS)
def test_an_ordinary_send_to_the_retry_topic_keeps_body_and_flag(lab: Any, listener: str, kind: str) -> None:
    """The way for a message that its broker does not take back (sendMessageBackAsNormalMessage)."""
    lab.topic()
    fill(lab.store, TOPIC, kind)
    backend = Refusing(lab.backend)
    backend.refuses, backend.only_36 = False, True
    getattr(lab, listener)(backend=backend, max_reconsume_times=0)
    lab.settle()
    assert lab.bodies() == ["good 0", "good 1"]
    assert letters(lab) == [undecodable()[kind]]


@pytest.mark.parametrize("answer", ["COMMIT", "ROLLBACK"])
def test_in_order_without_auto_commit_nothing_before_it_is_committed_by_it(lab: Any, answer: str) -> None:
    lab.topic()
    fill(lab.store, TOPIC, "no zlib")
    outcome: list[str] = []

    def consume(messages: Sequence[MessageExt], context: Any) -> Any:
        context.auto_commit = False
        if messages[0].body == b"good 1" and not outcome:
            outcome.append(answer)
            return ConsumeOrderlyStatus[answer]
        return ConsumeOrderlyStatus.SUCCESS

    lab.ordered(consume)
    lab.settle()
    if answer == "ROLLBACK":
        assert lab.committed() is None
        lab.advance(1000)
        assert lab.bodies() == ["good 0", "good 1", "good 0", "good 1"]
    else:
        lab.consumers[0].shutdown()
        assert lab.bodies() == ["good 0", "good 1"] and lab.committed() == 3
    assert letters(lab) == [undecodable()["no zlib"]], "one, however often the batch is rolled back"
