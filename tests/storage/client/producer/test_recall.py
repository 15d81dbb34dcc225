"""Producers take timers back: of a store, and of a broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_store import Store, StoreConfig, UsageError
from rmq_store.client import Message, MQBrokerError, MQClientError, Producer, ResponseCode
from rmq_store.client.delivery.request import send_result
from rmq_store.format.text.recall_handle import RecallHandle
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.headers import SendMessageResponseHeader
from rmq_store.server.broker_server import BrokerServer


@pytest.fixture(params=["store", "broker"])
def place(request: Any, scratch: Path, small: StoreConfig) -> Iterator[tuple[BrokerServer, str]]:
    """A served store, and how a producer reaches it."""
    with BrokerServer(scratch / "store", config=small, create=True) as server:
        server.store.create_topic("Orders", 2)
        yield server, str(server.store.path) if request.param == "store" else f"rmq://{server.address}"


def test_a_producer_takes_a_timer_back(place: tuple[BrokerServer, str]) -> None:
    server, way = place
    later = server.store.clock() + 3_600_000
    taken, kept = (server.store.send(Message("Orders", body, deliver_timestamp_ms=later)) for body in (b"a", b"b"))
    assert taken.recall_handle is not None and kept.recall_handle is not None
    with Producer("pg", way) as producer:
        assert producer.recall_message("Orders", taken.recall_handle) == taken.msg_id
        assert [waiting.messages for waiting in server.store.delay_backlogs()] == [1]
        with pytest.raises(UsageError, match="recall handle"):
            producer.recall_message("Orders", "x")
        known = RecallHandle.parse(kept.recall_handle)
        gone = str(RecallHandle("Orders", known.broker_name, 1, known.message_id))
        with pytest.raises(MQBrokerError) as refused:
            producer.recall_message("Orders", gone)
        assert refused.value.response_code == ResponseCode.ILLEGAL_OPERATION
        with pytest.raises(MQClientError, match="not exist"):
            producer.recall_message("Orders", str(RecallHandle("Orders", "other", known.deliver_ms, "U")))


def test_the_result_of_a_send_has_the_handle(scratch: Path, small: StoreConfig) -> None:
    with Store.open(scratch / "store", create=True, config=small) as store:
        store.create_topic("Orders", 2)
    with Producer("pg", str(scratch / "store")) as producer:
        message = Message("Orders", b"x", properties={"TIMER_DELAY_SEC": "60"})
        handle = producer.send(message).recall_handle
        assert handle is not None and producer.recall_message("Orders", handle)
        assert producer.send(Message("Orders", b"now")).recall_handle is None


def test_the_handle_of_a_brokers_answer_is_in_the_result() -> None:
    header = SendMessageResponseHeader(msg_id="", queue_id=0, queue_offset=0, recall_handle="h")
    answer = RemotingCommand(0, header.to_ext())
    assert send_result(answer, "b", [Message("Orders", b"x")]).recall_handle == "h"
