"""Transactions at stub brokers: half messages, their ends, brokers that ask, and what gets lost on the way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.cluster.simulated import SimulatedBroker, SimulatedCluster
from helpers.cluster.stub_server import StubConnection
from rmq_store import Message, SendStatus, UsageError
from rmq_store.client import (
    LocalTransactionState,
    MessageExt,
    MessageIllegalError,
    MQClientError,
    Producer,
    TransactionListener,
    TransactionProducer,
)
from rmq_store.client.backend import remote_transactions
from rmq_store.client.backend.remote import RemoteBackend
from rmq_store.client.producer import transaction_producer
from rmq_store.client.producer.transaction_checks import CheckExecutor
from rmq_store.files.locks.background import Background
from rmq_store.protocol.bodies.clients import HeartbeatData
from rmq_store.protocol.wire.command import ONEWAY_FLAG, RemotingCommand
from rmq_store.remoting.transport.settings import ClusterSettings

COMMIT, ROLLBACK, UNKNOW = LocalTransactionState
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"


class HalfBroker:
    """A stub broker's half messages, the ends that it was told, and its questions."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self.broker = broker
        self.halves: list[RemotingCommand] = []
        self.ends: list[RemotingCommand] = []
        self.send_code = 0
        self._half_at: dict[int, RemotingCommand] = {}
        broker.queues.create(HALF_TOPIC, 1, 0, 0)
        self._send = broker._answerers[310]
        broker._answerers[310] = self._half
        broker._answerers[37] = self._end

    def _half(self, request: RemotingCommand) -> Any:
        is_half = int(request.ext_fields["f"]) & 12 == 4
        if is_half:
            self.halves.append(request)
        code, answer, body = self._stored(request) if is_half else self._send(request)
        return self.send_code or code, answer, body

    def _stored(self, half: RemotingCommand) -> Any:
        answer = self._send(RemotingCommand(310, {**half.ext_fields, "b": HALF_TOPIC, "e": "0"}, half.body))
        self._half_at[int(answer[1]["queueOffset"])] = half
        return answer

    def _end(self, request: RemotingCommand) -> Any:
        self.ends.append(request)
        return 0, {}, b""

    @property
    def states(self) -> list[tuple[str, str, str]]:
        """Of each end: 0, 8 or 12; whether a question was answered; the offset in the queue of half messages."""
        names = ("commitOrRollback", "fromTransactionCheck", "tranStateTableOffset")
        return [tuple(end.ext_fields[name] for name in names) for end in self.ends]  # type: ignore[misc]

    def ask(self, connection: StubConnection, offset: int = 0, **fields: str) -> int:
        """Ask for the outcome of a half message, which is stored again first: the question names the new place. Returns
        its offset in the queue of half messages.
        """
        _, answer, _ = self._stored(self._half_at[offset])
        queue = self.broker.queues.get(HALF_TOPIC, 0)
        assert queue is not None
        new_offset = int(answer["queueOffset"])
        (record,), _ = queue.pull(new_offset, 1)
        log_offset = int.from_bytes(record[28:36], "big")
        ext = {"tranStateTableOffset": str(new_offset), "commitLogOffset": str(log_offset), **fields}
        connection.send(RemotingCommand(39, ext, record, flag=ONEWAY_FLAG))
        return new_offset

    def connection_of(self, group: str) -> StubConnection:
        """The connection whose heartbeat has named a producer group."""

        def named(connection: StubConnection) -> bool:
            beats = [HeartbeatData.decode(one.body) for one in connection.requests if one.code == 34]
            return any(data.group_name == group for beat in beats for data in beat.producer_data_set)

        return next(one for one in self.broker.server.connections if named(one))

    def second_connection(self) -> StubConnection:
        """The connection that a heartbeat has made because the first one was lost."""
        server = self.broker.server
        until(lambda: server.accepted == 2 and server.connections)
        until(lambda: any(one.code == 34 for one in server.connections[-1].requests))
        return server.connections[-1]


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(brokers=2) as cluster:
        cluster.create_topic("Orders", 2)
        yield cluster


@pytest.fixture
def halves(cluster: SimulatedCluster) -> list[HalfBroker]:
    return [HalfBroker(broker) for broker in cluster.brokers.values()]


def until(fulfilled: Callable[[], object]) -> None:
    ends_at = time.monotonic() + 30
    while not fulfilled():
        assert time.monotonic() < ends_at
        time.sleep(0.01)


def producer_of(
    cluster: SimulatedCluster, execute: Callable[..., Any] | None = None, check: Callable[..., Any] | None = None,
    **given: Any,
) -> TransactionProducer:  # fmt: skip
    return TransactionProducer(
        "pg", f"rmq://{cluster.name_server}", listener=TransactionListener(execute, check), **given
    )


def ends_of(halves: list[HalfBroker]) -> list[RemotingCommand]:
    return [end for half in halves for end in half.ends]


def texts(request: RemotingCommand) -> dict[str, str]:
    return dict(piece.split("\x01") for piece in request.ext_fields["i"].split("\x02") if piece)


# -- halves and ends -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "code"), [(COMMIT, "8"), (ROLLBACK, "12"), (UNKNOW, "0"), (None, "0"), (7, "0")])
def test_a_half_message_is_ended_as_the_local_transaction_says(
    cluster: SimulatedCluster, halves: list[HalfBroker], state: object, code: str
) -> None:
    seen: list[tuple[Message, object]] = []

    def execute(message: Message, arg: object) -> Any:
        assert len([one for half in halves for one in half.halves]) == 1
        assert ends_of(halves) == []
        seen.append((message, arg))
        return state

    with producer_of(cluster, execute) as producer:
        result = producer.send_message_in_transaction(Message("Orders", b"tea", tags="TagA"), "order 7")
        until(lambda: ends_of(halves))
    (end,) = ends_of(halves)
    (half,) = [one for broker in halves for one in broker.halves]
    assert int(half.ext_fields["f"]) & 12 == 4
    assert texts(half) == {"TAGS": "TagA", "TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": result.transaction_id}
    assert end.is_oneway
    assert {name: end.ext_fields[name] for name in end.ext_fields if name != "bname"} == {
        "producerGroup": "pg", "topic": "Orders", "tranStateTableOffset": str(result.queue_offset),
        "commitLogOffset": str(result.commit_log_offset), "commitOrRollback": code, "fromTransactionCheck": "false",
        "msgId": result.msg_id, "transactionId": result.msg_id,
    }  # fmt: skip
    assert end.ext_fields["bname"] == result.broker_name
    ((message, arg),) = seen
    assert (message.body, arg) == (b"tea", "order 7")
    assert message.properties["__transactionId__"] == result.transaction_id
    assert result.local_transaction_state is (state if isinstance(state, LocalTransactionState) else UNKNOW)
    assert result.end_was_sent


def test_an_exception_of_the_local_transaction_leaves_it_open(
    cluster: SimulatedCluster, halves: list[HalfBroker]
) -> None:
    def execute(message: Message, arg: object) -> Any:
        raise ValueError("secret of the user")

    with producer_of(cluster, execute) as producer:
        result = producer.send_message_in_transaction(Message("Orders", b"tea"))
        until(lambda: ends_of(halves))
    (end,) = ends_of(halves)
    assert (end.ext_fields["commitOrRollback"], end.remark) == ("0", "the local transaction failed: ValueError")
    assert result.local_transaction_state is UNKNOW


def test_ctrl_c_in_the_local_transaction_ends_nothing(cluster: SimulatedCluster, halves: list[HalfBroker]) -> None:
    def execute(message: Message, arg: object) -> Any:
        raise KeyboardInterrupt

    with producer_of(cluster, execute) as producer, pytest.raises(KeyboardInterrupt):
        producer.send_message_in_transaction(Message("Orders", b"tea"))
    assert ends_of(halves) == []


def test_a_half_message_with_a_weak_status_is_rolled_back_unseen(
    cluster: SimulatedCluster, halves: list[HalfBroker]
) -> None:
    for half in halves:
        half.send_code = 11
    with producer_of(cluster, lambda *_: pytest.fail("it must not run")) as producer:
        result = producer.send_message_in_transaction(Message("Orders", b"tea"))
        until(lambda: ends_of(halves))
    assert (result.status, result.local_transaction_state) == (SendStatus.SLAVE_NOT_AVAILABLE, ROLLBACK)
    assert ends_of(halves)[0].ext_fields["commitOrRollback"] == "12"


@pytest.mark.statement("A07")
def test_a_half_message_whose_answer_is_lost_is_not_sent_again(
    cluster: SimulatedCluster, halves: list[HalfBroker]
) -> None:
    for half in halves:
        real = half.broker._answerers[310]

        def lose(request: RemotingCommand, half: HalfBroker = half, real: Any = real) -> Any:
            real(request)
            half.broker.server.connections[-1].reset()
            return 0, {}, b""

        half.broker._answerers[310] = lose
    with producer_of(cluster, lambda *_: pytest.fail("it must not run"), lambda _: ROLLBACK) as producer:
        with pytest.raises(MQClientError, match=r"Send \[1\] times"):
            producer.send_message_in_transaction(Message("Orders", b"tea"))
        (asker,) = [half for half in halves if half.halves]
        asker.ask(asker.second_connection())
        until(lambda: asker.ends)
    assert sum(len(half.halves) for half in halves) == 1
    assert asker.states == [("12", "true", "1")]


def test_a_half_message_goes_to_the_other_broker_if_one_is_down(
    cluster: SimulatedCluster, halves: list[HalfBroker]
) -> None:
    halves[0].broker.stop()
    with producer_of(cluster, lambda *_: COMMIT) as producer:
        results = [producer.send_message_in_transaction(Message("Orders", b"tea")) for _ in range(4)]
        until(lambda: len(halves[1].ends) == 4)
    assert {result.broker_name for result in results} == {"broker-001"}
    assert halves[1].states == [("8", "false", str(offset)) for offset in range(4)]


def test_delays_are_refused_and_plain_messages_are_plain(cluster: SimulatedCluster, halves: list[HalfBroker]) -> None:
    with producer_of(cluster) as producer:
        for name in ("DELAY", "TIMER_DELAY_SEC"):
            with pytest.raises(MessageIllegalError, match="no delay"):
                producer.send_message_in_transaction(Message("Orders", b"tea", properties={name: "1"}))
        assert producer.send(Message("Orders", b"tea")).status is SendStatus.SEND_OK
    assert [half.halves for half in halves] == [[], []]


def test_a_producer_without_answers_sends_no_half_messages(
    cluster: SimulatedCluster, halves: list[HalfBroker]
) -> None:
    with (
        Producer("pg", f"rmq://{cluster.name_server}") as producer,
        pytest.raises(MQClientError, match="half messages need a TransactionProducer"),
    ):
        producer.send(Message("Orders", b"tea", properties={"TRAN_MSG": "true"}))
    assert [half.halves for half in halves] == [[], []]


# -- brokers that ask ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "code"), [(COMMIT, "8"), (ROLLBACK, "12"), (UNKNOW, "0"), (None, "0")])
def test_a_question_is_answered_at_the_process_that_has_asked(
    cluster: SimulatedCluster, halves: list[HalfBroker], state: object, code: str
) -> None:
    asked: list[MessageExt] = []

    def check(message: MessageExt) -> Any:
        asked.append(message)
        return state

    with producer_of(cluster, lambda *_: UNKNOW, check) as producer:
        result = producer.send_message_in_transaction(Message("Orders", b"tea" * 4000, keys="k7"))
        (asker,) = [half for half in halves if half.halves]
        until(lambda: asker.ends)
        asked_for = asker.ask(asker.connection_of("pg"), result.queue_offset, transactionId=result.msg_id)
        until(lambda: len(asker.ends) == 2)
    end = asker.ends[1]
    assert asker.states[1] == (code, "true", str(asked_for))
    assert end.ext_fields["msgId"] == result.msg_id
    assert int(end.ext_fields["commitLogOffset"]) > result.commit_log_offset, "the place of the newer copy"
    (message,) = asked
    assert (message.body, message.keys, message.msg_id) == (b"tea" * 4000, "k7", result.msg_id)
    assert message.properties["__transactionId__"] == result.msg_id


def test_a_commit_that_was_lost_is_told_when_the_broker_asks(
    cluster: SimulatedCluster, halves: list[HalfBroker]
) -> None:
    def execute(message: Message, arg: object) -> Any:
        for half in halves:
            half.broker.stop()
        return COMMIT

    with producer_of(cluster, execute, lambda _: COMMIT) as producer:
        result = producer.send_message_in_transaction(Message("Orders", b"tea"))
        (asker,) = [half for half in halves if half.halves]
        # The end may have left before the client noticed: it has no answer, so it is lost in either case.
        assert (result.local_transaction_state, asker.ends) == (COMMIT, [])
        asker.broker.start()
        asked_for = asker.ask(asker.second_connection(), result.queue_offset)
        until(lambda: asker.ends)
    assert asker.states == [("8", "true", str(asked_for))]


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_transaction_under_way_is_unknown_and_its_end_goes_to_the_newest_copy(
    cluster: SimulatedCluster, halves: list[HalfBroker], monkeypatch: pytest.MonkeyPatch, is_answered: bool
) -> None:
    """The listener finds no trace yet, and would roll back what is about to be committed. An end of the first copy
    would leave the second one open: the broker would ask for it, and its commit would be the message once more.
    """
    asked_for: list[int] = []
    if not is_answered:
        monkeypatch.setattr(transaction_producer, "GATHER_S", 2.0)  # more than a busy machine takes for both questions

    def execute(message: Message, arg: object) -> Any:
        (asker,) = [half for half in halves if half.halves]
        for _ in range(2):
            asked_for.append(asker.ask(asker.connection_of("pg"), asked_for[-1] if asked_for else 0))
            until(lambda: len(asker.ends) == len(asked_for) if is_answered else is_noted(message))
        return COMMIT

    def is_noted(message: Message) -> bool:
        half = producer._open._running[message.properties["UNIQ_KEY"]]
        return half is not None and half.queue_offset == asked_for[-1]

    with producer_of(cluster, execute, lambda _: ROLLBACK) as producer:
        result = producer.send_message_in_transaction(Message("Orders", b"tea"))
        (asker,) = [half for half in halves if half.halves]
        until(lambda: asker.states[-1:] == [("8", "true", str(asked_for[-1]))])
        time.sleep(0.3 if is_answered else 2.3)  # an answer that is not due would come now
    unknown = [("0", "true", str(offset)) for offset in asked_for] if is_answered else []
    assert asker.states == [*unknown, ("8", "true", str(asked_for[-1]))]
    assert result.local_transaction_state is COMMIT


def test_a_transaction_that_ends_by_an_exception_leaves_its_question_to_the_listener(
    cluster: SimulatedCluster, halves: list[HalfBroker]
) -> None:
    asked_for: list[int] = []

    def execute(message: Message, arg: object) -> Any:
        (asker,) = [half for half in halves if half.halves]
        asked_for.append(asker.ask(asker.connection_of("pg")))
        until(lambda: producer._open._asked)
        raise KeyboardInterrupt

    with producer_of(cluster, execute, lambda _: ROLLBACK) as producer:
        with pytest.raises(KeyboardInterrupt):
            producer.send_message_in_transaction(Message("Orders", b"tea"))
        (asker,) = [half for half in halves if half.halves]
        until(lambda: asker.ends)
    assert asker.states == [("12", "true", str(asked_for[0]))]


def test_a_question_that_comes_while_an_older_one_is_taken_is_answered(
    cluster: SimulatedCluster, halves: list[HalfBroker]
) -> None:
    """Without the lock the newer one would wait for an answer that the thread has just given to the older one."""
    has_popped = threading.Event()

    class Slow(dict[str, Any]):
        def __contains__(self, key: object) -> bool:
            found = super().__contains__(key)
            if found:
                has_popped.wait(0.5)
            return found

        def pop(self, *given: Any) -> Any:
            has_popped.set()
            return super().pop(*given)

    with producer_of(cluster, lambda *_: UNKNOW, lambda _: COMMIT) as producer:
        result = producer.send_message_in_transaction(Message("Orders", b"tea"))
        producer._open._asked = Slow()
        has_popped.clear()
        (asker,) = [half for half in halves if half.halves]
        connection = asker.connection_of("pg")
        asker.ask(connection, result.queue_offset)
        newest = asker.ask(connection, result.queue_offset)
        until(lambda: ("8", "true", str(newest)) in asker.states)


def test_a_listener_that_fails_answers_unknown_and_another_group_is_not_answered_for(
    cluster: SimulatedCluster, halves: list[HalfBroker], caplog: pytest.LogCaptureFixture
) -> None:
    def check(message: MessageExt) -> Any:
        raise RuntimeError("no database")

    with producer_of(cluster, lambda *_: UNKNOW, check) as producer:
        result = producer.send_message_in_transaction(Message("Orders", b"tea"))
        (asker,) = [half for half in halves if half.halves]
        until(lambda: asker.ends)
        connection = asker.connection_of("pg")
        producer._backend._transactions._members["other"] = producer._backend._transactions._members.pop("pg")  # type: ignore[union-attr]
        asker.ask(connection, result.queue_offset)
        until(lambda: "which is not here" in caplog.text)
        producer._backend._transactions._members["pg"] = producer._backend._transactions._members.pop("other")  # type: ignore[union-attr]
        asker.ask(connection, result.queue_offset)
        until(lambda: len(asker.ends) == 2)
    assert asker.states[1][:2] == ("0", "true")
    assert asker.ends[1].remark == "the check of the transaction failed: RuntimeError"


def test_shutdown_leaves_the_group_and_answers_what_was_asked(
    cluster: SimulatedCluster, halves: list[HalfBroker]
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def check(message: MessageExt) -> Any:
        begun.set()
        assert go_on.wait(30)
        return COMMIT

    producer = producer_of(cluster, lambda *_: UNKNOW, check)
    producer.start()
    result = producer.send_message_in_transaction(Message("Orders", b"tea"))
    (asker,) = [half for half in halves if half.halves]
    asker.ask(asker.connection_of("pg"), result.queue_offset)
    assert begun.wait(30)
    asker.ask(asker.connection_of("pg"), result.queue_offset)  # a newer copy, while the first is checked
    until(lambda: producer._checks._calls.qsize() == 1)
    closer = threading.Thread(target=producer.shutdown)
    closer.start()
    until(lambda: asker.broker.calls[35])
    go_on.set()
    closer.join(30)
    until(lambda: len(asker.ends) == 3)
    assert [state[:2] for state in asker.states] == [("0", "false"), ("8", "true"), ("8", "true")]
    (left,) = [one for one in asker.broker.server.requests if one.code == 35]
    assert left.ext_fields["producerGroup"] == "pg"
    with pytest.raises(MQClientError, match="not running"):
        producer.send_message_in_transaction(Message("Orders", b"tea"))


def test_of_questions_that_pile_up_only_the_newest_is_answered(
    cluster: SimulatedCluster, halves: list[HalfBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker has stored the half message again for each question: two commits would be two messages."""
    monkeypatch.setattr(transaction_producer, "GATHER_S", 1.0)  # more than a busy machine takes for five questions
    with producer_of(cluster, lambda *_: UNKNOW, lambda _: COMMIT) as producer:
        result = producer.send_message_in_transaction(Message("Orders", b"tea"))
        (asker,) = [half for half in halves if half.halves]
        connection = asker.connection_of("pg")
        for _ in range(5):
            newest = asker.ask(connection, result.queue_offset)
        until(lambda: len(asker.ends) == 2)
        time.sleep(0.3)
    assert asker.states == [("0", "false", str(result.queue_offset)), ("8", "true", str(newest))]


def test_questions_beyond_the_bound_are_dropped_and_a_stuck_one_ends_the_wait() -> None:
    checks, go_on = CheckExecutor(1, 2), threading.Event()
    assert [checks.submit(lambda: go_on.wait(30)) for _ in range(3)] == [True, True, False]  # type: ignore[arg-type,return-value]
    assert not checks.shutdown(50)
    go_on.set()
    assert checks.shutdown(30_000)
    assert not checks.submit(go_on.set)


# -- groups ----------------------------------------------------------------------------------------------------------


def test_all_masters_know_the_group_and_each_backend_has_one_member(cluster: SimulatedCluster) -> None:
    with RemoteBackend(ClusterSettings.of_text(cluster.name_server)) as backend:
        listener = TransactionListener()
        with TransactionProducer("pg", backend, listener=listener):
            assert [broker.calls[34] for broker in cluster.brokers.values()] == [1, 1]
            with pytest.raises(UsageError, match="has a TransactionProducer in this backend"):
                TransactionProducer("pg", backend, listener=listener).start()
        with TransactionProducer("pg", backend, listener=listener):
            pass


def test_two_producers_that_start_at_a_time_share_one_thread(
    cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`close` stops one: with two it could wait for ever for the one that has not heard of it."""
    made: list[Background] = []
    with RemoteBackend(ClusterSettings.of_text(cluster.name_server)) as backend:

        def make(work: Callable[[], None], name: str) -> Background:
            thread = Background(work, name)
            made.append(thread)
            if len(made) == 1:
                others.start()
                others.join(0.3)  # too short a wait only hides that it made a thread, too
            return thread

        others = threading.Thread(target=lambda: backend.transactions("pg2", "c2", lambda check: None))
        monkeypatch.setattr(remote_transactions, "Background", make)
        backend.transactions("pg1", "c1", lambda check: None)
        others.join()
        for extra in made[1:]:  # so that closing ends
            backend._transactions._stop.put(None)
            extra.join()
    assert len(made) == 1


def test_a_namespace_is_on_the_wire_only(cluster: SimulatedCluster, halves: list[HalfBroker]) -> None:
    cluster.create_topic("ns%Orders", 1)
    asked: list[str] = []
    settings = ClusterSettings.of_text(cluster.name_server, namespace="ns")
    listener = TransactionListener(lambda *_: UNKNOW, lambda message: asked.append(message.topic) or COMMIT)
    with RemoteBackend(settings) as backend, TransactionProducer("pg", backend, listener=listener) as producer:
        result = producer.send_message_in_transaction(Message("Orders", b"tea"))
        (asker,) = [half for half in halves if half.halves]
        until(lambda: asker.ends)
        assert texts(asker.halves[0])["PGROUP"] == "ns%pg"
        fields = asker.ends[0].ext_fields
        assert (fields["producerGroup"], fields["topic"]) == ("ns%pg", "ns%Orders")
        asker.ask(asker.connection_of("ns%pg"), result.queue_offset)
        until(lambda: len(asker.ends) == 2)
    assert asker.ends[1].ext_fields["producerGroup"] == "ns%pg"


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        TransactionProducer("pg", tmp_path, listener=TransactionListener(), check_request_hold_max=0)
    with pytest.raises(UsageError, match="a function is expected"):
        TransactionListener(7)  # type: ignore[arg-type]
