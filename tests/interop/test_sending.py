"""Columns about producers: what a client sends is in the store, as it sent it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from helpers.interop.matrix import BY_THE_CLIENT, GRPC, Cell
from helpers.interop.program import Program, RefusedError
from helpers.interop.refusals import answered, refused
from interop.conftest import LARGEST_BODY_BYTES
from rmq_store.protocol.errors import ResponseCode
from rmq_store.server.grpc_definitions.enums import Code
from rmq_store.testing import RmqTestBroker

KNOWS_THE_LIMIT = tuple(row for row in GRPC if row != "Rust gRPC")
"""Clients that ask the server for the largest body, and send none that is larger."""
MINUTE_MS, HOUR_MS = 60_000, 3_600_000


def rows(broker: RmqTestBroker, topic: str) -> list[dict[str, Any]]:
    """All messages of a topic, queue by queue."""
    return [
        row
        for queue_id, ends in sorted(broker.store.queue_ranges(topic).items())
        for batch in broker.store.read(topic, queue_id, *ends)
        for row in batch.to_pylist()
    ]


def messages(*bodies: str, **fields: object) -> list[dict[str, object]]:
    return [{"body": body, **fields} for body in bodies]


@pytest.mark.column("send, sync")
def test_what_is_sent_is_stored_with_all_its_fields(client: Program, broker: RmqTestBroker, topic: str) -> None:
    sent = client.ask(
        "send", topic=topic, messages=messages("ä", "b", tags="T", keys="k1", properties={"colour": "red"})
    )
    found = rows(broker, topic)
    assert sorted(row["body"] for row in found) == sorted(["ä".encode(), b"b"])
    assert {(row["tags"], row["keys"], dict(row["properties"])["colour"]) for row in found} == {("T", "k1", "red")}
    assert {row["msgId"] for row in found} == {each["msgId"] for each in sent}


@pytest.mark.column("send, async")
def test_sends_with_a_callback_are_answered(client: Program, broker: RmqTestBroker, topic: str) -> None:
    sent = client.ask("send", topic=topic, messages=messages("a", "b"), mode="async")
    assert {row["msgId"] for row in rows(broker, topic)} == {each["msgId"] for each in sent}
    assert len(sent) == 2


@pytest.mark.column("send, one-way")
def test_sends_without_an_answer_arrive(client: Program, broker: RmqTestBroker, topic: str) -> None:
    client.ask("send", topic=topic, messages=messages("a", "b"), mode="one-way")
    assert sorted(broker.wait_for_messages(topic, 2)) == [b"a", b"b"]


@pytest.mark.column("send, batch")
def test_a_batch_is_one_request_and_many_messages(row: str, client: Program, broker: RmqTestBroker, topic: str) -> None:
    [sent] = client.ask("batch", topic=topic, messages=messages("a", "b", "c", tags="T"))
    found = rows(broker, topic)
    assert [(row["body"], row["tags"]) for row in found] == [(b"a", "T"), (b"b", "T"), (b"c", "T")]
    if row != "Go":  # its client makes no ids for the messages of a batch; the server does
        assert [each["msgId"] for each in found] == sent["msgId"].split(",")


@pytest.mark.column("send, ordered")
def test_messages_of_one_order_are_in_one_queue(client: Program, broker: RmqTestBroker, topic: str) -> None:
    client.ask("send", topic=topic, messages=messages("1", "2", "3", order="order 7"))
    found = rows(broker, topic)
    assert len({row["queueId"] for row in found}) == 1
    assert [row["body"] for row in found] == [b"1", b"2", b"3"]


@pytest.mark.column("delay level")
def test_a_level_delays_a_message(client: Program, broker: RmqTestBroker, topic: str) -> None:
    sent_ms = broker.clock()
    client.ask("send", topic=topic, messages=messages("later", delayLevel=5))
    while not broker.bodies(topic):  # retries of other tests may be due before it
        assert broker.advance_to_next_due() is not None
    assert broker.bodies(topic) == [b"later"]
    assert broker.clock() - sent_ms == MINUTE_MS


@pytest.mark.column("timer")
def test_a_timer_delivers_at_its_time(client: Program, broker: RmqTestBroker, topic: str) -> None:
    due_ms = broker.clock() + HOUR_MS
    client.ask("send", topic=topic, messages=messages("later", deliverAtMs=due_ms))
    broker.clock.advance(minutes=59)
    assert broker.bodies(topic) == []
    broker.clock.advance(minutes=1, seconds=1)
    assert broker.wait_for_messages(topic, 1) == [b"later"]


@pytest.mark.column("recall")
def test_a_timer_that_is_taken_back_is_never_delivered(client: Program, broker: RmqTestBroker, topic: str) -> None:
    due_ms = broker.clock() + HOUR_MS
    taken, _ = client.ask("send", topic=topic, messages=messages("taken", "kept", deliverAtMs=due_ms))
    client.ask("recall", topic=topic, handle=taken["recallHandle"] or handle(broker, topic, due_ms, taken["msgId"]))
    broker.clock.advance(hours=2)
    assert broker.wait_for_messages(topic, 1) == [b"kept"]


def handle(broker: RmqTestBroker, topic: str, due_ms: int, msg_id: str) -> str:
    """A handle as brokers make it (RecallMessageHandle.HandleV1): a server that refuses recalls gives none."""
    text = f"v1 {topic} {broker.store.broker_name} {due_ms} {msg_id}"
    return base64.urlsafe_b64encode(text.encode()).decode()


@pytest.mark.column("trace topic")
def test_traces_are_stored(row: str, client: Program, broker: RmqTestBroker, topic: str) -> None:
    if row == "Go":  # Java's clients make the topic with their first trace
        broker.store.create_topic("RMQ_SYS_TRACE_TOPIC", queue_count=1)
    before = broker.count("RMQ_SYS_TRACE_TOPIC")
    [sent] = client.ask("send", topic=topic, messages=messages("traced", keys="k"), trace=True)
    broker.wait_for_messages("RMQ_SYS_TRACE_TOPIC", before + 1)
    assert any(sent["msgId"].encode() in body for body in broker.bodies("RMQ_SYS_TRACE_TOPIC"))


@pytest.mark.column("message too large")
def test_a_message_above_the_limit_is_refused_and_the_next_one_is_stored(
    row: str, client: Program, broker: RmqTestBroker, topic: str, tell: Callable[[Cell], None]
) -> None:
    with pytest.raises(RefusedError) as error:
        client.ask("send", topic=topic, messages=[{"bytes": LARGEST_BODY_BYTES + 1}])
    if row in KNOWS_THE_LIMIT:
        assert f"max size={LARGEST_BODY_BYTES} bytes" in str(error.value)
        tell(Cell("refused", BY_THE_CLIENT))
    else:
        code = answered(error.value, client, "the body has ")
        assert code == (Code.MESSAGE_BODY_TOO_LARGE if row in GRPC else ResponseCode.MESSAGE_ILLEGAL)
        tell(refused(code))
    client.ask("send", topic=topic, messages=messages("small"))
    assert broker.bodies(topic) == [b"small"]
