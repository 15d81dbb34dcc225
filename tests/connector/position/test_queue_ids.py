"""Names of queues: numbers in a store, a broker and a number in a cluster."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rmq.position.fingerprint import Fingerprint
from pyspark_rmq.position.position import Queue, StreamPosition, describe, parse_assign, parse_offsets
from pyspark_rmq.position.queue_ids import (
    BrokerQueueId,
    broker_of,
    named_in_full,
    number_of,
    parse_queue_id,
)
from rmq_store.errors import UsageError

BROKERS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=6)
IDS = st.builds(BrokerQueueId, BROKERS, st.integers(0, 2**31 - 1))
QUEUES = st.builds(Queue, st.text(min_size=1, max_size=3), IDS)
OFFSETS = st.dictionaries(QUEUES, st.integers(0, 2**63 - 1), max_size=4)
MARKS = st.builds(Fingerprint, st.integers(0, 2**63 - 1), st.none() | st.integers(0, 2**63 - 1))
A0, A1, B0 = BrokerQueueId("broker-a", 0), BrokerQueueId("broker-a", 1), BrokerQueueId("broker-b", 0)


@given(IDS | st.integers(0, 2**31 - 1))
def test_a_queue_id_is_read_as_it_is_written(queue_id: BrokerQueueId | int) -> None:
    assert parse_queue_id(str(queue_id)) == queue_id


@pytest.mark.parametrize(
    "text",
    ["", ":", "a:", ":0", "a:-1", "a:01", "a:²", "a:2147483648", "a:" + "9" * 5000, "a", "-1", "2147483648", " 0"],
)
def test_what_is_no_queue_id_is_not_taken_for_one(text: str) -> None:
    assert parse_queue_id(text) is None


@given(OFFSETS, st.dictionaries(QUEUES, MARKS, max_size=4), OFFSETS)
def test_a_position_in_a_cluster_survives_the_checkpoint(following, after, closed) -> None:  # type: ignore[no-untyped-def]
    position = StreamPosition("cluster:c", following, after, {}, closed)
    assert StreamPosition.from_json(json.loads(json.dumps(position.to_json()))) == position


def test_the_checkpoint_of_a_cluster_names_brokers() -> None:
    position = StreamPosition("cluster:c", {Queue("T", B0): 3, Queue("T", A1): 2, Queue("T", A0): 1})
    assert json.dumps(position.to_json()) == (
        '{"version": 1, "store": "cluster:c", "topics": {"T": {"broker-a:0": 1, "broker-a:1": 2, "broker-b:0": 3}}}'
    )
    assert describe([("T", A0, 1, 2)]) == "T-broker-a:0 [1, 2)"


def test_options_name_queues_of_brokers() -> None:
    assert parse_offsets('{"T":{"broker-a:0":5,"1":6}}', "x", ("earliest",)).values == {
        Queue("T", A0): 5, Queue("T", 1): 6,
    }  # fmt: skip
    assert parse_assign('{"T":["broker-b:0",3,"broker-a:0"]}') == {"T": (3, A0, B0)}


def test_a_plain_number_stands_for_the_only_queue_of_that_number() -> None:
    assert named_in_full(1, [A0, A1, B0]) == A1
    assert named_in_full(B0, [A0]) == B0
    assert named_in_full(0, [0, 1]) == 0
    assert named_in_full(7, [A0]) == 7
    with pytest.raises(UsageError, match='queue 0 is at several brokers; write one of "broker-a:0", "broker-b:0"'):
        named_in_full(0, [A0, A1, B0])


def test_a_row_has_the_number_and_the_broker() -> None:
    assert (number_of(A1), broker_of(A1)) == (1, "broker-a")
    assert (number_of(3), broker_of(3)) == (3, None)
