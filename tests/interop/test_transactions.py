"""Columns about transactions."""

from __future__ import annotations

import pytest

from helpers.interop.program import Program
from rmq_store.testing import RmqTestBroker


def begin(client: Program, topic: str, end: str, check: str = "unknown") -> None:
    client.ask("transaction", group=f"pg-{topic}", topic=topic, messages=[{"body": "paid"}], end=end, check=check)


@pytest.mark.column("transaction, commit")
def test_a_committed_message_is_seen(client: Program, broker: RmqTestBroker, topic: str) -> None:
    begin(client, topic, "commit")
    assert broker.wait_for_messages(topic, 1) == [b"paid"]


@pytest.mark.column("transaction, rollback")
def test_a_message_that_is_rolled_back_is_never_seen(client: Program, broker: RmqTestBroker, topic: str) -> None:
    before = client.ask("checked")
    begin(client, topic, "rollback")
    broker.clock.advance(minutes=10)
    begin(client, topic, "commit")
    assert broker.wait_for_messages(topic, 1) == [b"paid"]
    assert client.ask("checked") == before


@pytest.mark.column("transaction, check-back")
def test_the_producer_is_asked_for_an_outcome_that_it_did_not_tell(
    client: Program, broker: RmqTestBroker, topic: str
) -> None:
    before = client.ask("checked")
    begin(client, topic, "unknown", check="commit")
    assert broker.bodies(topic) == []
    broker.clock.advance(seconds=10)
    assert broker.wait_for_messages(topic, 1) == [b"paid"]
    assert client.ask("checked") == before + 1
