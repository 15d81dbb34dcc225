"""Columns about consumers: a client gets what the store has, once, and in order where it asks for that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from helpers.interop.matrix import CANNOT_BE, GRPC, JAVA
from helpers.interop.program import Program
from rmq_store import Message
from rmq_store.broker.metadata.groups import SubscriptionGroup
from rmq_store.cli import commands
from rmq_store.testing import RmqTestBroker

TIMEOUT_MS = 60_000
LADDER_DELIVERIES = 17
"""The first delivery, and sixteen more."""


@pytest.fixture
def consume(row: str, client: Program, broker: RmqTestBroker, topic: str, group: str) -> Iterator[Any]:
    if row in GRPC:  # a new group would begin at the end; only remoting clients can ask for the first message
        broker.store.commit_offsets(group, {(topic, 0): 0, (topic, 1): 0})

    usual = "simple" if (row, "concurrent") in CANNOT_BE else "concurrent"

    def start(mode: str = usual, **fields: object) -> None:
        client.ask("consume", topic=topic, group=group, mode=mode, **fields)

    yield start
    client.ask("leave")


def got(client: Program, count: int) -> list[dict[str, Any]]:
    found = client.ask("received", count=count, timeoutMs=TIMEOUT_MS)
    assert len(found) >= count, found
    return list(found)


def send(broker: RmqTestBroker, topic: str, *bodies: str, tags: str | None = None) -> set[str]:
    return {sent.msg_id for sent in broker.send(topic, bodies, tags=tags)}


def committed(broker: RmqTestBroker, group: str, topic: str) -> int:
    return sum(offset for (name, _), offset in broker.store.committed_offsets(group).items() if name == topic)


def everything_arrives(client: Program, broker: RmqTestBroker, topic: str, start: Any) -> None:
    """What was there before, and what comes while the consumer runs, also by another program of the store."""
    sent = send(broker, topic, *"abcdef")
    start()
    assert {each["msgId"] for each in got(client, 6)} == sent
    sent |= send(broker, topic, "fresh")
    found = got(client, 7)
    assert {each["msgId"] for each in found} == sent and len(found) == 7


@pytest.mark.column("concurrent")
def test_a_consumer_gets_everything_once(
    row: str, client: Program, broker: RmqTestBroker, topic: str, group: str, consume: Any
) -> None:
    everything_arrives(client, broker, topic, consume)
    if row not in GRPC:  # there an offset moves at a later receive
        client.ask("leave")
        broker.wait_until(lambda: committed(broker, group, topic) == 7)


@pytest.mark.column("ordered")
def test_an_ordered_consumer_gets_each_queue_in_order(
    row: str, client: Program, broker: RmqTestBroker, topic: str, group: str, consume: Any
) -> None:
    if row in GRPC:  # there the group's settings say so, not its consumer
        broker.store.create_group(SubscriptionGroup(group, consume_message_orderly=True))
    for number in range(6):
        broker.store.send(Message(topic, b"%d" % number, queue_id=number % 2))
    consume("ordered")
    bodies = [each["body"] for each in got(client, 6)]
    assert [body for body in bodies if int(body) % 2 == 0] == ["0", "2", "4"]
    assert [body for body in bodies if int(body) % 2 == 1] == ["1", "3", "5"]


@pytest.mark.column("broadcast")
def test_a_broadcast_reaches_each_member(
    client: Program, broker: RmqTestBroker, topic: str, group: str, consume: Any
) -> None:
    consume("broadcast")
    sent = send(broker, topic, "a", "b")
    assert {each["msgId"] for each in got(client, 2)} == sent
    assert broker.store.committed_offsets(group) == {}


@pytest.mark.column("lite pull")
def test_a_lite_pull_consumer_gets_everything_once(
    client: Program, broker: RmqTestBroker, topic: str, group: str, consume: Any
) -> None:
    everything_arrives(client, broker, topic, lambda: consume("lite"))
    client.ask("leave")
    broker.wait_until(lambda: committed(broker, group, topic) == 7)


@pytest.mark.column("simple")
def test_a_simple_consumer_gets_everything_once(
    client: Program, broker: RmqTestBroker, topic: str, consume: Any
) -> None:
    consume("simple")
    sent = send(broker, topic, *"abcdef")
    found = got(client, 6)
    assert {each["msgId"] for each in found} == sent and len(found) == 6


@pytest.mark.column("POP")
def test_a_consumer_by_pop_gets_everything_once(
    client: Program, broker: RmqTestBroker, topic: str, consume: Any
) -> None:
    everything_arrives(client, broker, topic, lambda: consume("pop"))


@pytest.mark.column("tags")
def test_a_consumer_gets_its_tags_only(client: Program, broker: RmqTestBroker, topic: str, consume: Any) -> None:
    sent = send(broker, topic, "a", tags="A") | send(broker, topic, "b", tags="B")
    send(broker, topic, "c", tags="C")
    consume(tags="A || B")
    assert {each["msgId"] for each in got(client, 2)} == sent
    assert len(client.ask("received", count=3, timeoutMs=1000)) == 2


@pytest.mark.column("SQL92")
def test_a_consumer_gets_what_fits_its_expression(
    client: Program, broker: RmqTestBroker, topic: str, consume: Any
) -> None:
    for price in (5, 15, 25):
        broker.store.send(Message(topic, b"%d" % price, properties={"price": str(price)}))
    consume(sql="price BETWEEN 10 AND 20")
    assert [each["body"] for each in got(client, 1)] == ["15"]
    assert len(client.ask("received", count=2, timeoutMs=1000)) == 1


def to_next_delivery(row: str, broker: RmqTestBroker) -> None:
    """Over gRPC a message that failed is hidden; else it waits in a delay level."""
    if row in GRPC:
        broker.clock.advance(hours=3)
    else:
        broker.wait_until(lambda: broker.advance_to_next_due() is not None)


@pytest.mark.column("retries to DLQ")
def test_a_message_that_always_fails_becomes_a_dead_letter(
    row: str, client: Program, broker: RmqTestBroker, topic: str, group: str, consume: Any
) -> None:
    """With RocketMQ's default, sixteen retries in four hours and three quarters."""
    send(broker, topic, "bad")
    before = broker.clock()
    consume(fails=True)
    for delivery in range(1, LADDER_DELIVERIES + 1):
        assert len(got(client, delivery)) == delivery
        if delivery < LADDER_DELIVERIES or row in GRPC:  # there it is a dead letter when it would come again
            to_next_delivery(row, broker)
    broker.wait_until(lambda: broker.dead_letters(group) == [b"bad"])
    attempts = [each["attempt"] for each in client.ask("received", count=1, timeoutMs=0)]
    assert attempts == list(range(1, LADDER_DELIVERIES + 1))
    if row in JAVA:  # over gRPC the client hides a message for as long as the settings of its group say
        assert 4.7 < (broker.clock() - before) / 3_600_000 < 4.8


@pytest.mark.column("request-reply")
def test_a_request_gets_its_reply(client: Program, topic: str, consume: Any) -> None:
    consume(replies=True)
    assert client.ask("request", topic=topic, messages=[{"body": "how much"}]) == "reply to how much"


@pytest.mark.column("reset")
def test_a_running_consumer_follows_a_reset(
    client: Program, broker: RmqTestBroker, topic: str, group: str, consume: Any
) -> None:
    send(broker, topic, "a", "b")
    consume()
    got(client, 2)
    broker.wait_until(lambda: committed(broker, group, topic) == 2)
    line = ["-n", broker.address, "resetOffsetByTime", "-g", group, "-t", topic, "-s", "0", "--yes"]
    done = CliRunner().invoke(commands, line, env={"RMQ_STORE": None}, prog_name="rmq", catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert sorted(each["body"] for each in got(client, 4)) == ["a", "a", "b", "b"]
