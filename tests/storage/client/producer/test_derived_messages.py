"""Messages that are made of a received one: each sender gives them ids of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import Message, Store, new_message
from rmq_store.client import (
    LocalBackend,
    LocalTransactionState,
    Producer,
    TransactionListener,
    TransactionProducer,
)

RECEIVED = dict.fromkeys(sorted(new_message.IDENTITIES | new_message.ADDED_ON_THE_WAY), "x") | {"traceparent": "00-abc"}
"""What a handler finds in the properties of a message that has been everywhere."""

ITEMS = (b"tea", b"milk")


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store.open(tmp_path / "store", create=True) as made:
        made.create_topic("Bills", queue_count=1)
        yield made


def stored(store: Store) -> list[dict[str, str]]:
    (limits,) = store.queue_ranges("Bills").values()
    return [dict(row["properties"]) for part in store.read("Bills", 0, *limits) for row in part.to_pylist()]


def derived() -> list[Message]:
    return [Message("Bills", item, properties=dict(RECEIVED), keys="ORD-1") for item in ITEMS]


def send_each(producer: Producer) -> None:
    for message in derived():
        producer.send(message)


def send_in_order(producer: Producer) -> None:
    (queue,) = producer.fetch_publish_message_queues("Bills")
    for message in derived():
        producer.send(message, queue=queue)


def send_oneway(producer: Producer) -> None:
    for message in derived():
        producer.send_oneway(message)


def send_async(producer: Producer) -> None:
    for message in derived():
        producer.send_async(message).result(30)


def send_batch(producer: Producer) -> None:
    producer.send_batch(derived())


SENDS = [send_each, send_in_order, send_oneway, send_async, send_batch]


def check(store: Store) -> None:
    found = stored(store)
    assert len({one["UNIQ_KEY"] for one in found}) == len(ITEMS)
    for one in found:
        assert one["UNIQ_KEY"] != "x"
        assert {name: text for name, text in one.items() if name != "UNIQ_KEY"} == {
            "KEYS": "ORD-1", "traceparent": "00-abc",
        }  # fmt: skip


@pytest.mark.parametrize("send", SENDS)
def test_each_send_of_a_producer_makes_new_messages(store: Store, send: Callable[[Producer], None]) -> None:
    with LocalBackend(store) as backend, Producer("pg", backend) as producer:
        send(producer)
    check(store)


def test_half_messages_are_new_messages(store: Store) -> None:
    class Commit(TransactionListener):
        def execute_local_transaction(self, message: Any, arg: Any) -> LocalTransactionState:
            return LocalTransactionState.COMMIT_MESSAGE

        def check_local_transaction(self, message: Any) -> LocalTransactionState:
            return LocalTransactionState.COMMIT_MESSAGE

    with (
        LocalBackend(store) as backend,
        TransactionProducer("pg", backend, listener=Commit()) as producer,
    ):
        ids = [producer.send_message_in_transaction(message).transaction_id for message in derived()]
    found = stored(store)
    assert [one["UNIQ_KEY"] for one in found] == ids
    assert len(set(ids)) == len(ITEMS)
    ours = {"REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP", "__transactionId__", "UNIQ_KEY", "KEYS", "traceparent"}
    assert all(one.keys() <= ours and one["__transactionId__"] == one["UNIQ_KEY"] for one in found)


def test_a_message_made_of_one_of_a_transaction_is_no_half_message(store: Store) -> None:
    """Brokers leave TRAN_MSG on a committed message. As a half message nobody would ever see the new one."""
    properties = {"TRAN_MSG": "true", "__transactionId__": "T", "REAL_TOPIC": "Orders", "PGROUP": "pg_orders", "a": "1"}
    with LocalBackend(store) as backend, Producer("pg", backend) as producer:
        producer.send(Message("Bills", b"x", properties=properties))
    (found,) = stored(store)
    assert found == {"UNIQ_KEY": found["UNIQ_KEY"], "a": "1"}


@pytest.mark.parametrize("send", [send_each, send_batch])
def test_a_copy_keeps_the_identity_of_its_message(store: Store, send: Callable[..., None]) -> None:
    with LocalBackend(store) as backend, Producer("pg", backend) as producer:
        if send is send_batch:
            producer.send_batch(derived(), keep_unique_key=True)
        else:
            for message in derived():
                producer.send(message, keep_unique_key=True)
    for one in stored(store):
        assert one == dict.fromkeys(new_message.IDENTITIES, "x") | {"KEYS": "ORD-1", "traceparent": "00-abc"}


def test_a_store_makes_new_messages_unless_it_is_told_to_take_them_as_given(store: Store) -> None:
    for message in derived():
        store.send(message)
    check(store)
    store.send_all(derived(), as_given=True)
    store.send(derived()[0], as_given=True)
    as_given = stored(store)[2:]
    assert all(one.items() >= (RECEIVED.items() - {("__CRC32#", "x")}) for one in as_given)
    assert len(as_given) == 3


def test_several_messages_and_columns_are_new_messages_too(store: Store) -> None:
    store.send_all(derived())
    check(store)


def test_columns_are_new_messages(store: Store) -> None:
    text_map = pa.map_(pa.string(), pa.string())
    rows = {
        "body": pa.array(ITEMS, pa.binary()),
        "keys": pa.array(["ORD-1"] * 2),
        "properties": pa.array([list(RECEIVED.items())] * 2, text_map),
    }
    store.append(pa.record_batch(rows), "Bills")
    check(store)
