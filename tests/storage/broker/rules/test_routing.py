"""Which queue a message goes to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store import Message, Store, StoreConfig, TopicConfig, UnknownTopicError, UsageError
from rmq_store.broker.rules.routing import Router
from rmq_store.client import MQClientError, Producer
from rmq_store.format.text.hashing import java_hash

TOPICS = {
    "Two": TopicConfig("Two", 2, 2),
    "Wide": TopicConfig("Wide", 16, 16),
    "ReadOnly": TopicConfig("ReadOnly", 4, 4, 4),
    "Narrow": TopicConfig("Narrow", 8, 3),
}


def route(router: Router, topics: list[str], keys: list | None = None, ids: list | None = None) -> list[int]:
    return router.route(
        pa.array(topics).dictionary_encode(),
        None if keys is None else pa.array(keys, pa.string()),
        None if ids is None else pa.array(ids, pa.int32()),
    ).tolist()


@pytest.fixture
def router() -> Router:
    return Router(TOPICS, StoreConfig())


@pytest.mark.statement("A09")
def test_without_a_wish_the_queues_of_each_topic_are_taken_in_turn(router: Router) -> None:
    rows = ["Two", "Wide"] * 32
    chosen = route(router, rows)
    again = route(router, ["Wide"] * 16)
    wide = [queue_id for topic, queue_id in zip(rows, chosen, strict=True) if topic == "Wide"]
    assert np.diff(wide).tolist() == [step if step == 1 else -15 for step in np.diff(wide)]
    assert set(wide) == set(range(16))
    assert again[0] == (wide[-1] + 1) % 16
    assert sorted(chosen[::2]) == [0] * 16 + [1] * 16


def test_writers_do_not_all_begin_with_the_same_queue() -> None:
    firsts = {route(Router(TOPICS, StoreConfig()), ["Wide"])[0] for _ in range(200)}
    assert len(firsts) > 8


@given(st.lists(st.text(min_size=1), min_size=1, max_size=20))
def test_the_same_sharding_key_goes_where_rocketmqs_selector_sends_it(keys: list[str]) -> None:
    router = Router(TOPICS, StoreConfig())
    chosen = route(router, ["Wide"] * len(keys), keys)
    assert chosen == [abs(java_hash(key)) % 16 for key in keys]
    assert chosen == [router.route_one("Wide", key, None) for key in keys]


def test_the_hash_that_has_no_absolute_value_goes_to_queue_0_as_in_java(router: Router) -> None:
    key = "polygenelubricants"
    assert java_hash(key) == -(1 << 31)
    assert route(router, ["Wide"], [key]) == [(1 << 31) % 16]
    assert route(router, ["Narrow"], [key]) == [(1 << 31) % 3]
    assert router.route_one("Narrow", key, None) == (1 << 31) % 3


def test_a_wished_queue_wins_over_a_key_and_an_empty_key_is_none(router: Router) -> None:
    assert route(router, ["Wide"] * 2, ["key", "key"], [5, None]) == [5, abs(java_hash("key")) % 16]
    turns = route(router, ["Wide"] * 4, ["", None, "", ""])
    assert len(set(turns)) == 4
    assert len({router.route_one("Wide", "", None) for _ in range(4)}) == 4


@pytest.mark.parametrize("queue_id", [-1, 3, 7, 1 << 30])
def test_a_wished_queue_must_be_one_that_can_be_written(router: Router, queue_id: int) -> None:
    with pytest.raises(UsageError, match=rf"row 1: topic 'Narrow' has no queue {queue_id}: it has 3 queues"):
        route(router, ["Narrow"] * 2, None, [0, queue_id])


def test_a_message_may_name_a_queue_that_is_only_read(router: Router) -> None:
    """A producer's route is older than the topic's settings (AbstractSendMessageProcessor#msgCheck)."""
    assert [router.route_one("Narrow", None, queue_id) for queue_id in (0, 3, 7)] == [0, 3, 7]
    assert max(router.route_one("Narrow", None, None) for _ in range(9)) == 2
    for queue_id in (-1, 8, 1 << 30):
        with pytest.raises(UsageError, match=f"no queue {queue_id}: it has 8 queues"):
            router.route_one("Narrow", None, queue_id)


def test_topics_that_may_not_be_written_are_refused(router: Router) -> None:
    for topic, reason in (("ReadOnly", "perm 4"), ("rmq_sys_x", "system topic"), ("a b", "characters")):
        with pytest.raises(UsageError, match=reason):
            route(router, ["Two", topic])
        with pytest.raises(UsageError, match=reason):
            router.route_one(topic, None, None)


def test_a_topic_to_be_made_has_the_default_number_of_queues_but_no_more_than_8() -> None:
    for default, expected in ((4, 4), (1, 1), (16, 8)):
        assert Router({}, StoreConfig(default_topic_queue_nums=default)).queue_count("New") == expected
    with pytest.raises(UnknownTopicError, match="create it first"):
        Router({}, StoreConfig(auto_create_topic_enable=False)).queue_count("New")


def test_dictionary_entries_that_no_row_uses_do_not_matter(router: Router) -> None:
    topics = pa.DictionaryArray.from_arrays(pa.array([1, 1], pa.int32()), pa.array(["rmq_sys_x", "Two"]))
    assert sorted(router.route(topics, None, None).tolist()) == [0, 1]
    assert router.route(pa.array([], pa.string()).dictionary_encode(), None, None).tolist() == []


def test_a_topic_without_write_queues_says_so(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", create=True) as store, Producer("p", store) as producer:
        store.create_topic("T", 1)
        closed = TopicConfig("T", 1, 0)
        store.admin.update_topic("T", lambda topic: closed, default=closed)
        with pytest.raises(UsageError, match="topic 'T' has 0 write queues"):
            store.send(Message("T", b"x"))
        with pytest.raises(UsageError, match="row 0: topic 'T' has 0 write queues"):
            store.append(pa.RecordBatch.from_pydict({"body": [b"x"]}), topic="T")
        with pytest.raises(MQClientError, match="No route info of this topic: T: it has no queue that may be written"):
            producer.send(Message("T", b"x"))
