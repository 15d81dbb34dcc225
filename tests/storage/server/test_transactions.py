"""Transactions of clients of the network: half messages, their ends, and questions to producers that are connected."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rmq_store import Store, StoreConfig
from rmq_store.client import (
    LocalTransactionState,
    Message,
    MessageExt,
    MQClientError,
    ResponseCode,
    TransactionListener,
    TransactionProducer,
)
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.pop.held_pops import HeldPops
from rmq_store.server.processors.held_pulls import HeldPulls
from rmq_store.server.requests.request import Request

COMMIT, ROLLBACK, UNKNOW = (
    LocalTransactionState.COMMIT_MESSAGE,
    LocalTransactionState.ROLLBACK_MESSAGE,
    LocalTransactionState.UNKNOW,
)
PATIENCE_S = 60.0


def eventually(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.005)


@dataclass
class Served:
    """A served store whose clock the test turns."""

    server: BrokerServer
    store: Store
    now_ms: int = 1_700_000_000_000
    asked: list[MessageExt] = field(default_factory=list)

    @property
    def place(self) -> str:
        return f"rmq://{self.server.address}"

    def bodies(self) -> list[bytes]:
        return [
            body
            for queue_id, (low, high) in self.store.queue_ranges("Orders").items()
            for batch in self.store.read("Orders", queue_id, low, high, columns=["body"])
            for body in batch.column("body").to_pylist()
        ]

    def producer(
        self, state: LocalTransactionState, later: LocalTransactionState = UNKNOW, group: str = "pg"
    ) -> TransactionProducer:
        def check(message: MessageExt) -> LocalTransactionState:
            self.asked.append(message)
            return later

        return TransactionProducer(group, self.place, listener=TransactionListener(lambda *_: state, check))


@pytest.fixture
def served(root: Path, small: StoreConfig) -> Iterator[Served]:
    now = Served.now_ms
    made: list[Served] = []

    def clock() -> int:
        return made[0].now_ms if made else now

    with Store.open(root, create=True, config=small, clock=clock) as store, BrokerServer(store) as server:
        made.append(Served(server, store))
        store.create_topic("Orders", 1)
        yield made[0]


@pytest.mark.parametrize(("state", "expected"), [(COMMIT, [b"tea"]), (ROLLBACK, [])])
def test_a_transaction_ends_as_its_producer_says(
    served: Served, state: LocalTransactionState, expected: list[bytes]
) -> None:
    with served.producer(state) as producer:
        result = producer.send_message_in_transaction(Message("Orders", b"tea", tags="TagA"))
        eventually(lambda: not served.store.transactions.pending())
    assert (result.local_transaction_state, result.end_was_sent) == (state, True)
    assert served.bodies() == expected


def test_a_commit_wakes_pulls_and_pops_and_a_half_message_none(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(HeldPulls, "stored", lambda _, topic, queue_id: told.append((topic, queue_id)))
    monkeypatch.setattr(HeldPops, "stored", lambda _, topic: told.append(topic))
    with served.producer(UNKNOW, COMMIT) as producer:
        producer.send_message_in_transaction(Message("Orders", b"tea"))
        assert told == []
        served.now_ms += 6_000
        eventually(lambda: not served.store.transactions.pending())
        eventually(lambda: told == [("Orders", 0), "Orders"])


@pytest.mark.parametrize(("later", "expected"), [(COMMIT, [b"tea"]), (ROLLBACK, [])])
def test_a_producer_of_the_group_is_asked_for_an_open_transaction(
    served: Served, later: LocalTransactionState, expected: list[bytes]
) -> None:
    with served.producer(UNKNOW, later) as producer:
        result = producer.send_message_in_transaction(Message("Orders", b"tea", tags="TagA", keys="k1"))
        assert [one.check_times for one in served.store.transactions.pending()] == [0]
        served.now_ms += 6_000
        eventually(lambda: not served.store.transactions.pending())
    (question,) = served.asked
    assert (question.topic, question.body, question.tags, question.keys) == ("Orders", b"tea", "TagA", "k1")
    assert question.properties["UNIQ_KEY"] == question.properties["__transactionId__"] == result.transaction_id
    assert "PYRMQ_HALF_OF" not in question.properties
    assert served.bodies() == expected


def test_another_member_of_the_group_answers_for_one_that_is_gone(served: Served) -> None:
    with served.producer(UNKNOW) as first:
        first.send_message_in_transaction(Message("Orders", b"tea"))
    eventually(lambda: not served.server._transactions.is_there("pg"))
    for _ in range(3):
        served.now_ms += 60_000
        served.server._checks.round()
    assert [one.check_times for one in served.store.transactions.pending()] == [0]  # nobody was there to be asked
    with served.producer(UNKNOW, COMMIT):
        eventually(lambda: not served.store.transactions.pending())
    assert served.bodies() == [b"tea"]


def test_only_the_group_of_the_half_message_is_asked(served: Served) -> None:
    with served.producer(UNKNOW, group="pg") as producer:
        producer.send_message_in_transaction(Message("Orders", b"tea"))
    eventually(lambda: not served.server._transactions.is_there("pg"))
    with served.producer(UNKNOW, COMMIT, group="other"):
        eventually(lambda: served.server._transactions.is_there("other"))
        served.now_ms += 60_000
        assert served.server._checks.round() == 0
    assert served.asked == []


@pytest.mark.statement("A07")
def test_a_half_message_whose_answer_is_late_is_not_sent_again(served: Served) -> None:
    assert served.server._dispatcher is not None
    services = served.server._dispatcher._services
    sends = services[RequestCode.SEND_MESSAGE_V2]
    taken: list[RemotingCommand] = []

    def no_answer(request: Request) -> None:
        sends.processor(request)
        taken.append(request.command)

    services[RequestCode.SEND_MESSAGE_V2] = sends._replace(processor=no_answer)
    with served.producer(UNKNOW, ROLLBACK) as producer:
        with pytest.raises(MQClientError, match=r"Send \[1\] times"):
            producer.send_message_in_transaction(Message("Orders", b"tea"), timeout=500)
        assert len(taken) == 1
        (half,) = served.store.transactions.pending()
        served.now_ms += 6_000
        eventually(lambda: not served.store.transactions.pending())
    assert [one.body for one in served.asked] == [b"tea"] and half.check_times == 0
    assert served.bodies() == []


def test_an_end_is_answered_with_the_codes_of_a_broker(served: Served) -> None:
    half = served.store.transactions.prepare(Message("Orders", b"tea"), 0, "pg")
    cluster = Cluster(ClusterSettings.of_text(served.server.address))
    fields = {
        "producerGroup": "pg", "tranStateTableOffset": "0", "commitLogOffset": str(half.commit_log_offset),
        "commitOrRollback": "8", "msgId": half.msg_id,
    }  # fmt: skip

    def end(**change: str) -> int:
        command = RemotingCommand(RequestCode.END_TRANSACTION, {**fields, **change})
        return cluster.client.call(served.server.address, command, 20_000).code

    try:
        assert end(producerGroup="another") == ResponseCode.SYSTEM_ERROR
        assert end(tranStateTableOffset="1") == ResponseCode.SYSTEM_ERROR
        assert end(commitLogOffset="1") == ResponseCode.SYSTEM_ERROR
        assert end(commitOrRollback="0") == ResponseCode.SUCCESS
        assert served.bodies() == []
        assert end() == end() == ResponseCode.SUCCESS
        assert served.bodies() == [b"tea"]
    finally:
        cluster.close()
