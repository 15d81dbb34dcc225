"""Which properties a new message takes over from the message that it was made of."""

from __future__ import annotations

import pytest

from rmq_store.broker.rules import failure, transaction
from rmq_store.format.properties import property_string as names
from rmq_store.format.properties.mirror_properties import MIRROR_PROPERTIES, is_brought_back
from rmq_store.format.properties.new_message import (
    ADDED_ON_THE_WAY,
    CARRIED_OUT_BY,
    IDENTITIES,
    OUTBOX_ID,
    REQUESTS,
    of_new_message,
)

USERS = {
    "KEYS", "TAGS", "__SHARDINGKEY", "BUYER_ID", "TRACE_CONTEXT",
    # Of the reply to a request: its broker finds the asking client by them.
    "CORRELATION_ID", "REPLY_TO_CLIENT",
}  # fmt: skip


def test_each_name_of_rocketmq_is_decided_once() -> None:
    of_rocketmq = {
        value for name, value in vars(names).items() if name.isupper() and isinstance(value, str) and len(value) > 1
    }
    assert of_rocketmq <= IDENTITIES | ADDED_ON_THE_WAY | REQUESTS | USERS
    for one, other in ((IDENTITIES, ADDED_ON_THE_WAY), (IDENTITIES, REQUESTS), (ADDED_ON_THE_WAY, REQUESTS)):
        assert one.isdisjoint(other)
    assert USERS.isdisjoint(IDENTITIES | ADDED_ON_THE_WAY | REQUESTS)
    assert CARRIED_OUT_BY <= ADDED_ON_THE_WAY


def test_each_name_of_ours_is_left_out() -> None:
    assert {OUTBOX_ID, failure.REPLAYS, failure.DEAD_LETTER} <= IDENTITIES
    assert {*failure.REASONS, *MIRROR_PROPERTIES} <= ADDED_ON_THE_WAY
    assert {transaction.HALF_OF, transaction.PREPARED_QUEUE_OFFSET} <= ADDED_ON_THE_WAY


ALL = dict.fromkeys(sorted(IDENTITIES | ADDED_ON_THE_WAY | REQUESTS | USERS | {"traceparent"}), "x")


def test_a_new_message_keeps_what_is_the_users() -> None:
    assert of_new_message(ALL).keys() == USERS | {"traceparent"}
    copy = of_new_message(ALL, keep_identities=True)
    assert copy.keys() == USERS | IDENTITIES | {"traceparent"}


def test_properties_of_which_nothing_is_left_out_are_not_copied() -> None:
    own = {"a": "1", "DELAY": "3", "KEYS": "k", "MIRROR_OF_OURS": "2"}
    assert of_new_message(own) is own
    assert of_new_message(own, keep_identities=True) is own


@pytest.mark.parametrize("request_name", sorted(REQUESTS))
def test_a_request_is_the_senders_until_a_broker_has_carried_it_out(request_name: str) -> None:
    """A handler of a retry would send messages that wait 10 s (DELAY) and are not flushed (WAIT); one of a transaction
    would send half messages, of which no producer knows the outcome.
    """
    received = {"UNIQ_KEY": "A", "MIN_OFFSET": "0", "CONSUME_START_TIME": "1", request_name: "3"}
    assert of_new_message(received) == {request_name: "3"}
    for mark in CARRIED_OUT_BY:
        assert of_new_message({**received, mark: "x", "a": "1"}) == {"a": "1"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"UNIQ_KEY": "OTHER"}, False),
        ({"MIRROR_TO": "T K 1"}, False),
        ({"MIRROR_TO": ""}, False),
        ({"MIRROR_PATH": '[["K","T"]]'}, False),
        ({"MIRROR_PATH": "[]"}, False),
        ({"MIRROR_PATH": '{"a":1,"b":2}'}, False),
        ({"MIRROR_PATH": "[" * 100_000}, False),
        ({"MIRROR_PATH": "no json"}, False),
        ({"MIRROR_PATH": '[["R","T"],["K","T"],["R2","T"],["K2","T"]]'}, True),
    ],
)
def test_only_a_copy_of_a_message_of_rocketmq_was_brought_back(changes: dict[str, str], expected: bool) -> None:
    copy = {"UNIQ_KEY": "K", "MIRROR_TO": "T K 1700000000000 0a0b0c0d", "MIRROR_PATH": '[["R","T"],["K","T"]]'}
    assert is_brought_back(copy | changes) is expected
