"""Columns about looking for messages."""

from __future__ import annotations

import pytest

from helpers.interop.program import Program
from rmq_store import Message
from rmq_store.testing import RmqTestBroker


@pytest.mark.column("query by key")
def test_messages_are_found_by_their_key(client: Program, broker: RmqTestBroker, topic: str) -> None:
    sent = [broker.store.send(Message(topic, body, keys="k7 all")).msg_id for body in (b"a", b"b")]
    broker.store.send(Message(topic, b"c", keys="k8"))
    found = client.ask("find", by="key", topic=topic, text="k7")
    assert sorted(each["msgId"] for each in found) == sorted(sent)


@pytest.mark.column("query by id")
def test_a_message_is_found_by_either_id(client: Program, broker: RmqTestBroker, topic: str) -> None:
    broker.clock.advance(hours=1)  # Java's client looks for a message from the time on that it put into the id
    [sent] = client.ask("send", topic=topic, messages=[{"body": "paid"}])
    for text in (sent["offsetMsgId"], sent["msgId"]):
        [found] = client.ask("find", by="id", topic=topic, text=text)
        assert (found["body"], found["msgId"]) == ("paid", sent["msgId"])
