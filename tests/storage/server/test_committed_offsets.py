"""Commits that nobody waits for: none is lost, none overtakes a newer one, and a bad one harms no other."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.processor.local_broker import LocalBroker
from rmq_store.errors import StoreError, StoreFailedError, StoreLockedError, UsageError
from rmq_store.protocol.errors import MQBrokerError
from rmq_store.protocol.wire.command import ONEWAY_FLAG, RemotingCommand
from rmq_store.protocol.wire.headers import QueryConsumerOffsetResponseHeader
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.server.processors.committed_offsets import CommittedOffsets
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.requests.request import Request

PATIENCE_S = 30.0
ORDERS = ("Orders", 0)


class Peer:
    """A client that is never told anything."""

    address = "127.0.0.1:4711"

    def send(self, *commands: RemotingCommand) -> None:
        raise AssertionError(commands)


@pytest.fixture
def store(scratch: Path, small: StoreConfig) -> Iterator[Store]:
    with Store.open(scratch / "store", create=True, config=small) as store:
        store.create_topic("Orders", 4)
        yield store


@pytest.fixture
def offsets(store: Store) -> CommittedOffsets:
    return CommittedOffsets(ServedStore(store, LocalBroker("b", store), "c", "127.0.0.1:1"))


def update(queue_id: int, offset: int, *, topic: str = "Orders", flag: int = 0, group: str = "cg") -> Request:
    fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
    return Request(RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, fields, flag=flag), Peer())


def test_who_wants_no_zero_learns_that_a_group_has_not_begun(store: Store, offsets: CommittedOffsets) -> None:
    """ConsumerManageProcessor#queryConsumerOffset. Spark's group offsets and `rmq -n` ask this way."""
    store.send(Message("Orders", b"x", queue_id=0))
    fields = {"consumerGroup": "cg", "topic": "Orders", "queueId": "0"}
    ask = Request(RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, fields), Peer())
    fields = fields | {"setZeroIfNotFound": "false"}
    ask_exactly = Request(RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, fields), Peer())
    assert offsets.query(ask).ext_fields["offset"] == "0"
    with pytest.raises(MQBrokerError) as caught:
        offsets.query(ask_exactly)
    assert caught.value.response_code == 22
    offsets.update(update(0, 0))
    assert offsets.query(ask_exactly).ext_fields["offset"] == "0"


@pytest.mark.parametrize("flag", [0, ONEWAY_FLAG])
def test_a_topic_that_was_deleted_gets_no_offsets(store: Store, offsets: CommittedOffsets, flag: int) -> None:
    """A member commits until it sees that its topic is gone (ConsumerManageProcessor#updateConsumerOffset)."""
    offsets.update(update(0, 5, flag=flag))
    offsets.write()
    store.admin.delete_topic("Orders")
    with pytest.raises(MQBrokerError, match="not exist") as caught:
        offsets.update(update(0, 6, flag=flag))
    offsets.write()
    assert caught.value.response_code == 17 and store.committed_offsets("cg") == {}


@pytest.mark.parametrize("flag", [0, ONEWAY_FLAG])
def test_no_client_sets_the_offsets_that_say_which_half_messages_are_done(
    store: Store, offsets: CommittedOffsets, flag: int
) -> None:
    """Half messages below a wrong offset would never be committed."""
    request = update(0, 5, topic="RMQ_SYS_TRANS_HALF_TOPIC", flag=flag, group="CID_RMQ_SYS_TRANS")
    with pytest.raises(MQBrokerError, match="belong to the broker") as caught:
        offsets.update(request)
    assert caught.value.response_code == 16
    with pytest.raises(MQBrokerError):
        offsets.commit_later("CID_RMQ_SYS_TRANS", ORDERS, 5)  # as a pull does
    offsets.write()
    assert store.committed_offsets("CID_RMQ_SYS_TRANS") == {}


@pytest.mark.parametrize(
    ("queue_id", "offset", "topic"), [(-1, 5, "Orders"), (0, -5, "Orders"), (0, 5, "no topic"), (0, 5, "")]
)
def test_a_bad_commit_is_refused_and_harms_no_other(
    store: Store, offsets: CommittedOffsets, queue_id: int, offset: int, topic: str
) -> None:
    offsets.update(update(0, 7, flag=ONEWAY_FLAG))
    with pytest.raises((UsageError, MQBrokerError)):
        offsets.update(update(queue_id, offset, topic=topic, flag=ONEWAY_FLAG))
    offsets.write()
    assert store.committed_offsets("cg") == {ORDERS: 7}


@pytest.mark.parametrize(
    ("error", "is_kept"),
    [(StoreLockedError("busy"), True), (OSError(24, "Too many open files"), True), (StoreFailedError("disk"), False)],
)
def test_what_is_refused_for_a_while_is_written_later(
    store: Store, offsets: CommittedOffsets, monkeypatch: pytest.MonkeyPatch, error: Exception, is_kept: bool
) -> None:
    offsets.commit_later("cg", ORDERS, 7)
    offsets.commit_later("cg", ("Orders", 1), 8)

    def fail(self: Store, group: str, given: Mapping[Any, int]) -> None:
        offsets.commit_later("cg", ORDERS, 9)  # meanwhile: newer than what is put back
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Store, "commit_offsets", fail)
        offsets.write()
    assert store.committed_offsets("cg") == {}
    offsets.write()
    assert store.committed_offsets("cg") == {ORDERS: 9} | ({("Orders", 1): 8} if is_kept else {})


@pytest.mark.parametrize("asks", ["update", "query"])
def test_nobody_comes_between_an_offset_that_is_taken_and_the_store(
    store: Store, offsets: CommittedOffsets, monkeypatch: pytest.MonkeyPatch, asks: str
) -> None:
    """An older value in the hand of the writer, while a client commits a newer one, or asks."""
    taken, go_on = threading.Event(), threading.Event()
    real = Store.commit_offsets

    def slow(self: Store, group: str, given: Mapping[tuple[str, int], int]) -> None:
        if given == {ORDERS: 7}:
            taken.set()
            assert go_on.wait(PATIENCE_S)
        real(self, group, given)

    monkeypatch.setattr(Store, "commit_offsets", slow)
    offsets.commit_later("cg", ORDERS, 7)
    writer = threading.Thread(target=offsets.write)
    writer.start()
    assert taken.wait(PATIENCE_S)
    found: list[RemotingCommand | StoreError] = []

    def ask() -> None:
        if asks == "update":
            found.append(offsets.update(update(0, 9)))
        else:
            fields = {"consumerGroup": "cg", "topic": "Orders", "queueId": "0"}
            found.append(offsets.query(Request(RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, fields), Peer())))

    client = threading.Thread(target=ask)
    client.start()
    client.join(0.2)
    assert found == []
    go_on.set()
    for thread in (writer, client):
        thread.join(PATIENCE_S)
    [answer] = found
    assert isinstance(answer, RemotingCommand)
    if asks == "query":
        assert QueryConsumerOffsetResponseHeader.from_ext(answer.ext_fields).offset == 7
    else:
        assert store.committed_offsets("cg") == {ORDERS: 9}
