"""Sends and pulls that a served store answers where it has read them; sends that come together are one append."""

from __future__ import annotations

import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.cluster import requests
from helpers.cluster.asking import Connection
from rmq_store import Message, StoreConfig
from rmq_store.broker.processor import local_broker
from rmq_store.broker.write import writer
from rmq_store.broker.write.encoder import MessageEncoder
from rmq_store.broker.write.flusher import Flusher
from rmq_store.errors import CorruptRecordError, StoreFailedError, UsageError
from rmq_store.log.append.append import append_lock
from rmq_store.log.append.lone_append import LoneAppend
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.frames import FrameDecoder, encode_command
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.server import services
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.processors import sending
from rmq_store.server.processors.held_pulls import HeldPulls
from rmq_store.server.processors.pulling import PullProcessor

PATIENCE_S = 60.0
IN_LOOP = "rmq-listener"
ASYNC, SYNC = "ASYNC_FLUSH", "SYNC_FLUSH"


def eventually(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.005)


@pytest.fixture
def flush_disk_type() -> str:
    return ASYNC


@pytest.fixture
def server(
    flush_disk_type: str, root: Path, small: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> Iterator[BrokerServer]:
    """Nobody is told that it is busy: this machine may have other work."""
    patient = {name: (*figures[:2], 1000 * PATIENCE_S) for name, figures in services._FIGURES.items()}
    monkeypatch.setattr(services, "_FIGURES", patient)
    for module in (local_broker, sending):
        monkeypatch.setattr(module, "PAGE_CACHE_BUSY_MS", 60_000)
    monkeypatch.setattr(HeldPulls, "look_s", PATIENCE_S)
    with BrokerServer(root, config=replace(small, flush_disk_type=flush_disk_type), create=True) as server:
        server.store.create_topic("Orders", 2)
        assert {one.code for one in answers(server, sent(1, e=0), sent(2, e=1)).values()} == {0}
        eventually(lambda: server._pools.send.is_idle and server._pools.pull.is_idle)
        yield server


def sent(number: int, topic: str = "Orders", body: bytes | None = None, **fields: object) -> RemotingCommand:
    texts = {name: str(value) for name, value in (requests.send_fields(topic) | fields).items()}
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, texts, body or b"%d" % number, number)


def answers(server: BrokerServer, *commands: RemotingCommand) -> dict[int, RemotingCommand]:
    """By opaque. The requests are sent in one piece."""
    host, _, port = server.address.rpartition(":")
    decoder, found = FrameDecoder(), dict[int, RemotingCommand]()
    with socket.create_connection((host, int(port)), PATIENCE_S) as client:
        client.sendall(b"".join(map(encode_command, commands)))
        while len(found) < len(commands):
            found |= {one.opaque: one for one in decoder.feed(client.recv(1 << 16))}
    return found


def bodies(server: BrokerServer, queue_id: int = 0) -> list[bytes]:
    """Behind the first one, which is that of the fixture: it makes the file of the queue."""
    end = server.store.queue_range("Orders", queue_id).max_offset
    read = server.store.read("Orders", queue_id, 1, end, columns=["body"])
    return [body for batch in read for body in batch.column("body").to_pylist()]


def waits_for_the_log(server: BrokerServer, behind: int) -> None:
    """Wait until the thread of the pool waits for the log, and so many requests for that thread."""
    pool = server._pools.send
    eventually(lambda: not pool.is_idle and len(pool._waiting) == behind)


class Appends:
    """The threads and the sizes of the appends of singles and of groups."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[str, int]] = []
        one, several, lone = writer.append_one, writer.append_records, LoneAppend.append

        def append_one(*given: object) -> object:
            self.made.append((threading.current_thread().name, 1))
            return one(*given)  # type: ignore[arg-type]

        def append_lone(*given: object) -> object:
            placed = lone(*given)  # type: ignore[arg-type]
            if placed is not None:
                self.made.append((threading.current_thread().name, 1))
            return placed

        def append_records(log: object, records: list[object]) -> object:
            self.made.append((threading.current_thread().name, len(records)))
            return several(log, records)  # type: ignore[arg-type]

        monkeypatch.setattr(writer, "append_one", append_one)
        monkeypatch.setattr(LoneAppend, "append", append_lone)
        monkeypatch.setattr(writer, "append_records", append_records)


@pytest.fixture
def appends(server: BrokerServer, monkeypatch: pytest.MonkeyPatch) -> Appends:
    return Appends(monkeypatch)


def test_sends_that_come_together_are_one_append_in_the_thread_that_read_them(
    server: BrokerServer, appends: Appends
) -> None:
    found = answers(server, *(sent(number, e=number % 2) for number in range(1, 5)))
    assert appends.made == [(IN_LOOP, 4)]
    assert [(found[number].code, found[number].ext_fields["queueOffset"]) for number in range(1, 5)] == [
        (0, "1"), (0, "1"), (0, "2"), (0, "2"),
    ]  # fmt: skip
    assert (bodies(server, 0), bodies(server, 1)) == ([b"2", b"4"], [b"1", b"3"])


def test_a_send_alone_is_answered_where_it_was_read(server: BrokerServer, appends: Appends) -> None:
    assert answers(server, sent(1))[1].code == 0
    assert appends.made == [(IN_LOOP, 1)]


def test_the_first_message_of_a_queue_makes_its_file_in_the_pool(server: BrokerServer, appends: Appends) -> None:
    server.store.create_topic("New", 1)
    assert answers(server, sent(1, topic="New"))[1].code == 0
    eventually(lambda: server._pools.send.is_idle)
    assert answers(server, sent(2, topic="New"))[2].code == 0
    assert appends.made == [("send-0", 1), (IN_LOOP, 1)]


def test_the_thread_of_the_connections_flushes_for_nobody(
    server: BrokerServer, appends: Appends, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushers: list[str] = []
    monkeypatch.setattr(Flusher, "flush_if_due", lambda *_, **__: flushers.append(threading.current_thread().name))
    monkeypatch.setattr(Flusher, "is_late", True)
    assert answers(server, sent(1))[1].code == 0
    assert appends.made == [("send-0", 1)] and "send-0" in flushers and IN_LOOP not in flushers


@pytest.mark.parametrize("flush_disk_type", [SYNC])
def test_what_waits_for_the_disk_waits_in_the_pool(server: BrokerServer, appends: Appends) -> None:
    assert answers(server, sent(1))[1].code == 0
    assert not any(thread == IN_LOOP for thread, _ in appends.made) and bodies(server) == [b"1"]


def test_while_another_writer_has_the_log_the_server_answers_others_and_keeps_the_order(
    server: BrokerServer, appends: Appends
) -> None:
    done: dict[int, RemotingCommand] = {}
    thread = threading.Thread(target=lambda: done.update(answers(server, *(sent(number) for number in range(1, 6)))))
    with append_lock(server.store._writing()._log):
        thread.start()
        eventually(lambda: not server._pools.send.is_idle)
        late = threading.Thread(target=lambda: done.update(answers(server, sent(6))))
        late.start()
        eventually(lambda: len(server._pools.send._waiting) >= 1)
        with Connection(server.address) as other:
            assert other.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Orders"}).code == 0
        assert not done
    thread.join()
    late.join()
    assert bodies(server) == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert {one.code for one in done.values()} == {0} and IN_LOOP not in {thread for thread, _ in appends.made}


def test_a_send_does_not_wait_while_this_process_encodes_a_large_batch(
    server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    encodes, go_on, in_vain = threading.Event(), threading.Event(), list[bool]()
    encode_all = MessageEncoder.encode_all

    def encode_slowly(*given: Any, **named: Any) -> object:
        encodes.set()
        in_vain.append(not go_on.wait(5))
        return encode_all(*given, **named)

    monkeypatch.setattr(MessageEncoder, "encode_all", encode_slowly)
    batch = pa.record_batch({"body": pa.array([b"large"], pa.binary())})
    thread = threading.Thread(target=lambda: server.store.append(batch, "Orders"))
    thread.start()
    assert encodes.wait(PATIENCE_S)
    assert answers(server, sent(1))[1].code == 0
    go_on.set()
    thread.join()
    assert in_vain == [False]


def test_a_message_that_is_refused_takes_no_other_with_it(server: BrokerServer) -> None:
    found = answers(server, sent(1), sent(2, e=9), sent(3, topic="SCHEDULE_TOPIC_XXXX"), sent(4))
    assert [found[number].code == 0 for number in range(1, 5)] == [True, False, False, True]
    assert "queue 9" in (found[2].remark or "") and found[3].code == ResponseCode.NO_PERMISSION
    assert bodies(server) == [b"1", b"4"]


def test_each_message_keeps_its_compression_its_sender_and_its_delay(server: BrokerServer) -> None:
    packed = zlib.compress(b"tea" * 2000)
    later = "DELAY\x013\x02"
    answers(server, sent(1, body=packed, f=0x301), sent(2), sent(3, i=later))
    first, second = (server.store.message_at(offset) for offset in places(server))
    assert (first.sys_flag, zlib.decompress(first.body)) == (0x301, b"tea" * 2000)
    assert (second.sys_flag, second.body) == (0, b"2")
    assert first.born_host == second.born_host and first.born_host.address == bytes((127, 0, 0, 1))
    assert first.born_host.port != 0
    assert server.store.queue_range("SCHEDULE_TOPIC_XXXX", 2).max_offset == 1


def places(server: BrokerServer) -> list[int]:
    end = server.store.queue_range("Orders", 0).max_offset
    return [entry["commit_log_offset"] for entry in server.store.queue_entries("Orders", 0, 1, end)]


def test_half_messages_and_new_topics_among_them_are_stored_as_ever(server: BrokerServer) -> None:
    half = "TRAN_MSG\x01true\x02PGROUP\x01pg\x02UNIQ_KEY\x01" + "0" * 32 + "\x02"
    found = answers(server, sent(1), sent(2, i=half, f=4), sent(3, topic="New"), sent(4))
    assert {one.code for one in found.values()} == {0}
    assert bodies(server) == [b"1", b"4"] and server.store.find_topic("New") is not None
    assert len(list(server.store.transactions.pending())) == 1


def test_when_nobody_knows_whether_they_are_stored_none_is_sent_a_second_time(
    server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def fail(*_: object) -> object:
        calls.append(1)
        raise StoreFailedError("the disk is broken")

    monkeypatch.setattr(writer, "append_records", fail)
    monkeypatch.setattr(writer, "append_one", fail)
    found = answers(server, sent(1), sent(2))
    assert [found[number].code for number in (1, 2)] == [ResponseCode.SYSTEM_ERROR] * 2 and len(calls) == 1
    assert all("the disk is broken" in (one.remark or "") for one in found.values())


def test_sends_behind_a_writer_that_takes_long_are_told_so_together(
    server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them would wait as long as the first one."""
    monkeypatch.setattr(sending, "PAGE_CACHE_BUSY_MS", 300)
    monkeypatch.setattr(local_broker, "PAGE_CACHE_BUSY_MS", 300)
    waits: list[int] = []
    lock = writer.append_lock

    def counted(*given: object) -> object:
        waits.append(1)
        return lock(*given)  # type: ignore[arg-type]

    with append_lock(server.store._writing()._log):
        monkeypatch.setattr(writer, "append_lock", counted)
        with Connection(server.address) as first:
            opaque = first.send(RequestCode.SEND_MESSAGE_V2, requests.send_fields("Orders"), b"0")
            waits_for_the_log(server, behind=0)
            found = answers(server, *(sent(number) for number in range(1, 9)))
            assert first.answer(opaque).code == ResponseCode.SYSTEM_BUSY
    assert {one.code for one in found.values()} == {ResponseCode.SYSTEM_BUSY} and bodies(server) == []
    assert len(waits) <= 4  # the first one at once and in the pool, and the group behind it


def test_a_damaged_queue_takes_no_other_with_it(server: BrokerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    log = server.store._writing()._log
    real = log.next_queue_offset

    def broken(topic: str, queue_id: int, start: int) -> int:
        if queue_id == 1:
            raise CorruptRecordError("commitlog", 0, "the newest record is damaged")
        return real(topic, queue_id, start)

    monkeypatch.setattr(log, "next_queue_offset", broken)
    server.store._writing()._lone_append.forget()
    found = answers(server, sent(1), sent(2, e=1), sent(3))
    assert [found[number].code for number in (1, 2, 3)] == [0, ResponseCode.SYSTEM_ERROR, 0]
    assert bodies(server) == [b"1", b"3"]


def test_an_error_of_the_flush_does_not_say_that_nothing_was_stored(
    server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise UsageError("no record locks")

    monkeypatch.setattr(Flusher, "appended", fail)
    found = answers(server, sent(1), sent(2))
    assert [found[number].code for number in (1, 2)] == [ResponseCode.SYSTEM_ERROR] * 2
    assert bodies(server) == [b"1", b"2"]


@pytest.mark.parametrize("flush_disk_type", [SYNC])
def test_sends_of_several_clients_wait_for_one_flush(server: BrokerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    flushes: list[int] = []
    flush = writer.flush

    def counted(*given: object) -> object:
        flushes.append(1)
        return flush(*given)  # type: ignore[arg-type]

    clients = [Connection(server.address) for _ in range(8)]
    try:
        with append_lock(server.store._writing()._log):
            opaques = []
            for number, client in enumerate(clients):
                opaques.append(client.send(RequestCode.SEND_MESSAGE_V2, requests.send_fields("Orders"), b"%d" % number))
                waits_for_the_log(server, behind=number)
            monkeypatch.setattr(writer, "flush", counted)
        assert [client.answer(opaque).code for client, opaque in zip(clients, opaques, strict=True)] == [0] * 8
    finally:
        for client in clients:
            client.close()
    assert sorted(bodies(server)) == [b"%d" % number for number in range(8)]
    assert len(flushes) == 2  # of the first one, and of all that have waited behind it
    assert len({server.store.message_at(offset).born_host.port for offset in places(server)}) == 8


@pytest.mark.parametrize("flush_disk_type", [SYNC])
def test_a_message_that_does_not_wait_for_the_disk_is_in_no_group(server: BrokerServer, appends: Appends) -> None:
    """The first message of a group says whether all wait (MessageBatch#generateFromList)."""
    done: dict[int, RemotingCommand] = {}
    in_haste = "WAIT\x01false\x02"
    thread = threading.Thread(target=lambda: done.update(answers(server, sent(2, i=in_haste), sent(3))))
    with Connection(server.address) as first:
        with append_lock(server.store._writing()._log):
            opaque = first.send(RequestCode.SEND_MESSAGE_V2, requests.send_fields("Orders"), b"1")
            waits_for_the_log(server, behind=0)
            thread.start()
            waits_for_the_log(server, behind=2)
        assert first.answer(opaque).code == 0
    thread.join()
    assert {one.code for one in done.values()} == {0} and max(count for _, count in appends.made) == 1
    assert bodies(server) == [b"1", b"2", b"3"]


# -- pulls ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that have read messages for pulls."""
    found: list[str] = []
    read = PullProcessor._read

    def noted(*given: object) -> object:
        found.append(threading.current_thread().name)
        return read(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(PullProcessor, "_read", noted)
    return found


def test_a_pull_is_answered_where_it_was_read(server: BrokerServer, readers: list[str]) -> None:
    server.store.send(Message("Orders", b"tea", queue_id=0))
    with Connection(server.address) as client:
        assert requests.pull(client, "Orders").code == 0
    assert readers == [IN_LOOP]


def test_a_condition_over_thousands_of_messages_and_a_new_group_keep_nobody_waiting(
    server: BrokerServer, readers: list[str]
) -> None:
    server.store.send(Message("Orders", b"tea", queue_id=0))
    with Connection(server.address) as client:
        assert requests.pull(client, "Orders", subscription="1 = 1", expression_type="SQL92").code == 0
        assert requests.pull(client, "Orders", group="new").code == 0
    assert len(readers) == 2 and IN_LOOP not in readers


@pytest.mark.parametrize(
    ("expression_type", "subscription", "is_prompt"), [("TAG", "*", True), ("SQL92", "1 = 1", False)]
)
def test_a_send_answers_a_held_pull_in_its_own_thread(
    server: BrokerServer, readers: list[str], expression_type: str, subscription: str, is_prompt: bool
) -> None:
    with Connection(server.address) as consumer, Connection(server.address) as producer:
        fields = requests.pull_fields(
            "Orders", offset=1, sys_flag=requests.SUBSCRIPTION_FLAG | requests.SUSPEND_FLAG, suspend_ms=30_000,
            expression_type=expression_type, subscription=subscription,
        )  # fmt: skip
        opaque = consumer.send(RequestCode.PULL_MESSAGE, fields)
        eventually(lambda: server._holds.count(("Orders", 0)) == 1 and not server._holds._marked)
        assert requests.send(producer, "Orders").code == 0
        assert consumer.answer(opaque).code == 0
    assert [reader == IN_LOOP for reader in readers] == [is_prompt, is_prompt]
