"""Sends that a server answers from their bytes, by one call of the extension: the same store and the same answers as by
its processors, which get whatever is unusual.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from helpers.cluster import requests
from helpers.cluster.asking import Connection
from rmq_store import Store, StoreConfig
from rmq_store.broker.processor import local_broker
from rmq_store.broker.processor.local_broker import LocalBroker
from rmq_store.broker.write.disk_space import DiskSpace
from rmq_store.broker.write.sent_requests import SentRequests, Served
from rmq_store.errors import StoreError, StoreFullError
from rmq_store.format.bytes import native
from rmq_store.log.append.lone_append import FRAME_BYTES_MAX
from rmq_store.protocol.errors import MQBrokerError
from rmq_store.protocol.wire.command import ONEWAY_FLAG, RemotingCommand, SerializeType
from rmq_store.protocol.wire.frames import FrameDecoder, encode_command
from rmq_store.protocol.wire.pop_headers import PopMessageRequestHeader
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.server import services
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.pop.held_pops import HeldPops
from rmq_store.server.processors import sending
from rmq_store.server.processors.held_pulls import HeldPulls
from rmq_store.server.processors.pulling import PullProcessor
from rmq_store.server.processors.sending import SendProcessor
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.requests import at_once
from rmq_store.server.requests.request import Request
from rmq_store.server.requests.worker_pool import Work
from rmq_store.server.transport.limits import ListenerLimits
from rmq_store.verify import verify_store

pytestmark = pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")

MESSAGES = 10_000
NOW_MS = 1_700_000_000_000
PATIENCE_S = 60.0
CLIENT = "10.1.2.3:999"
TOPICS = ("Alpha", "Beta", "Gamma_" + "g" * 60)


def properties_of(unique_key: str, **others: str) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in ({"UNIQ_KEY": unique_key} | others).items())


def sent(number: int, topic: str = "Alpha", body: bytes | None = None, **fields: object) -> RemotingCommand:
    """A usual send; `fields` by the wire's names."""
    usual = requests.send_fields(topic) | {"g": NOW_MS, "i": properties_of(f"{number:032X}", TAGS="TagA", WAIT="true")}
    texts = {name: str(value) for name, value in (usual | fields).items()}
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, texts, b"%d" % number if body is None else body, number)


class Side(NamedTuple):
    """A store behind the processor of a server, without its sockets."""

    store: Store
    sends: SendProcessor
    woken: list[tuple[str, int]]

    def served(self, data: bytes) -> tuple[int, bytes]:
        return self.sends.serve(memoryview(data), CLIENT)

    def decoded(self, data: bytes) -> bytes:
        """The answers of the processor."""
        commands = FrameDecoder().feed(data)
        return b"".join(encode_command(self._answer(command)) for command in commands)

    def _answer(self, command: RemotingCommand) -> RemotingCommand:
        request = Request(command, Peer())
        try:
            return self.sends.send(request)
        except MQBrokerError as error:
            return request.answer(error.response_code, error.remark)
        except StoreError as error:
            return request.answer(1, str(error))

    def warm(self, *queues: tuple[str, int]) -> None:
        """Send a message to each of these queues as a group of one, which the server has read by itself."""
        for topic, queue_id in queues:
            request = Request(sent(0, topic, b"warm", e=queue_id), Peer())
            assert self.sends.send_together([request], may_wait=True) is not None

    def words(self) -> bytes:
        """What an append changes."""
        return self.store._log.writing_page.map[:]


class Peer:
    address = CLIENT

    def send(self, *commands: RemotingCommand) -> None:
        raise AssertionError


def side_at(root: Path, config: StoreConfig, clock: Callable[[], int] | None = None) -> Side:
    store = Store.open(root, create=True, config=config, clock=clock)
    woken: list[tuple[str, int]] = []
    served = ServedStore(store, LocalBroker("broker-a", store), "DefaultCluster", "10.0.0.1:10911")
    return Side(store, SendProcessor(served, lambda topic, queue_id: woken.append((topic, queue_id))), woken)


@pytest.fixture
def side(scratch: Path, small: StoreConfig) -> Iterator[Side]:
    """Both queues of Alpha are known."""
    made = side_at(scratch / "store", replace(small, max_message_size=4000, flush_interval_commit_log=10**9))
    with made.store:
        for topic in TOPICS:
            made.store.create_topic(topic, 2)
        made.warm(("Alpha", 0), ("Alpha", 1))
        made.woken.clear()
        yield made


def bodies(store: Store, topic: str = "Alpha", queue_id: int = 0) -> list[bytes]:
    """Behind the first one, which made the file of the queue."""
    read = store.read(topic, queue_id, 1, store.queue_range(topic, queue_id).max_offset, columns=["body"])
    return [body for batch in read for body in batch.column("body").to_pylist()]


# -- bytes ------------------------------------------------------------------------------------------------------------


def random_send(chance: random.Random, number: int) -> RemotingCommand:
    """Nine of ten are usual."""
    others = {f"name{each}": "v" * chance.randrange(1, 9) for each in range(chance.randrange(3))}
    if chance.random() < 0.7:
        others["TAGS"] = chance.choice(("TagA", 'Tag"B\\/', "Tag\t"))
    if chance.random() < 0.7:
        others["KEYS"] = chance.choice(("K1", "K0 L0", "K2 K2 M2", " K3  "))
    fields: dict[str, object] = {
        "e": chance.randrange(2), "i": properties_of(f"{number:032X}", **others), "h": chance.choice((0, 5, 1 << 29)),
        "g": NOW_MS + chance.randrange(10**6), "n": "broker-a",
    }  # fmt: skip
    if chance.random() < 0.1:
        fields |= chance.choice(ODD)
    body = chance.randbytes(chance.choice((1, 7, 100, 100, 1024)))
    command = sent(number, chance.choice(TOPICS), body, **fields)
    if chance.random() < 0.02:
        command.serialize_type = SerializeType.ROCKETMQ
    return command


KEY = "A" * 32
ODD: tuple[dict[str, object], ...] = (
    {"i": "TAGS\x01TagA\x02UNIQ_KEY\x01" + KEY + "\x02WAIT\x01false"},  # usual: no separator at the end, as of 4.9
    {"i": properties_of(KEY, DELAY="1")},
    {"i": properties_of(KEY, TIMER_DELIVER_MS=str(NOW_MS + 5000))},
    {"i": properties_of(KEY, **{"__CRC32#": "0123456789"})},
    {"i": properties_of(KEY, REPLY_TO_CLIENT="c")},
    {"i": properties_of(KEY, TRAN_MSG="false")},
    {"i": properties_of(KEY) + properties_of(KEY)},
    {"i": properties_of(KEY) + "TAGS\x01a\x02TAGS\x01b\x02"},
    {"i": properties_of(KEY) + "\x02\x02noname\x02\x01v\x02empty\x01\x02a\x01b\x01c\x02"},
    {"i": properties_of('quoted"' + "B" * 25)},
    {"i": properties_of(KEY, TAGS="T\u00e4g", KEYS="Schl\u00fcssel \U0001f511")},
    {"i": properties_of(KEY, **{f"p{each}": "v" for each in range(70)})},
    {"i": properties_of(KEY, KEYS=" ".join(f"k{each}" for each in range(80)))},
    {"e": 7},
    {"e": "-1"},
    {"e": "+1"},
    {"e": "01"},
    {"h": -5},
    {"f": 16},
    {"m": "true"},
    {"k": "true"},
    {"j": 3, "l": 16},
    {"zz": "of a version to come"},
    {"b": "SCHEDULE_TOPIC_XXXX"},
    {"b": "NoSuchTopic"},
    {"b": "Alpha Beta"},
)
# Of these.
USUAL = (0, 16, 20, 21)


def lived(root: Path, config: StoreConfig, count: int, *, serves: bool) -> tuple[list[bytes], int]:
    """Answers to random requests that come in groups; and how many were served from their bytes."""
    chance, now_ms, served_count = random.Random(0), NOW_MS, 0

    def clock() -> int:
        return now_ms

    found = []
    side = side_at(root, config, clock)
    side.sends._random = random.Random(1)
    with side.store as store:
        for topic in TOPICS:
            store.create_topic(topic, 2)
        number = 0
        while number < count:
            now_ms += chance.choice((0, 0, 1, 700))
            group = [random_send(chance, number + each) for each in range(chance.choice((1, 1, 2, 7)))]
            number += len(group)
            frames = [encode_command(command) for command in group]
            while frames:
                end, answers = side.served(b"".join(frames)) if serves else (0, b"")
                while end:
                    end -= len(frames.pop(0))
                    served_count += 1
                if frames:  # the first one that was left
                    command = FrameDecoder().feed(frame := frames.pop(0))[0]
                    answers += side.decoded(frame)
                    if (topic := command.ext_fields["b"]) in TOPICS and command.ext_fields["e"] in "01":
                        side.sends._sent_requests.learn(topic, int(command.ext_fields["e"]), store.topics())
                found.append(answers)
    assert not verify_store(root).problems
    return found, served_count


@pytest.mark.parametrize(
    ("count", "crc_property", "index"),
    [
        (500, True, True),
        pytest.param(MESSAGES, True, True, marks=pytest.mark.long),
        pytest.param(MESSAGES // 10, False, True, marks=pytest.mark.long),
        pytest.param(MESSAGES // 10, True, False, marks=pytest.mark.long),
    ],
)
def test_the_same_answers_and_the_same_files_as_from_python(
    tmp_path: Path, count: int, crc_property: bool, index: bool
) -> None:
    config = StoreConfig(
        mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20 * 500, max_hash_slot_num=500,
        max_index_num=4000, flush_interval_commit_log=10**9, delete_commit_log_files_interval=0,
        enabled_append_prop_crc=crc_property, message_index_enable=index, broker_host="10.0.0.1:10911",
    )  # fmt: skip
    served, served_count = lived(tmp_path / "served", config, count, serves=True)
    plain, none = lived(tmp_path / "plain", config, count, serves=False)
    assert served_count > 0.6 * count and none == 0
    assert b"".join(served) == b"".join(plain)
    found = [files(tmp_path / name) for name in ("served", "plain")]
    assert found[0].keys() == found[1].keys()
    assert [name for name in found[0] if found[0][name] != found[1][name]] == []


def files(root: Path) -> dict[str, bytes]:
    """Log and views."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for name in ("commitlog", "consumequeue", "index")
        for path in sorted((root / name).rglob("*"))
        if path.is_file()
    }


# -- what is served, and what is left ---------------------------------------------------------------------------------


def test_usual_sends_are_served_together_and_their_queues_are_looked_at(side: Side) -> None:
    data = b"".join(encode_command(sent(number, e=number % 2)) for number in range(1, 5))
    end, answers = side.served(data)
    assert end == len(data)
    found = FrameDecoder().feed(answers)
    assert [(one.opaque, one.code, one.ext_fields["queueOffset"]) for one in found] == [
        (1, 0, "1"), (2, 0, "1"), (3, 0, "2"), (4, 0, "2"),
    ]  # fmt: skip
    assert sorted(side.woken) == [("Alpha", 0), ("Alpha", 1)]
    assert (bodies(side.store, queue_id=0), bodies(side.store, queue_id=1)) == ([b"2", b"4"], [b"1", b"3"])


@pytest.mark.parametrize(
    "spell",
    [
        lambda text: text,
        lambda text: text.replace('"language":"PYTHON"', '"language":"JAVA"'),
        lambda text: text.replace(',"version":', ',"serializeTypeCurrentRPC":"JSON","version":').replace(
            '"serializeTypeCurrentRPC":"JSON",', "", 1
        ),
        lambda text: text.replace("\\u0001", "\\u0001").replace("TagA", "\\u0054ag\\u0041"),
    ],
)
def test_each_form_of_a_usual_header_is_served(side: Side, spell: Callable[[str], str]) -> None:
    frame = respelled(sent(1), spell)
    assert side.served(frame)[0] == len(frame)
    assert bodies(side.store) == [b"1"]
    stored = side.store.message_at(last_place(side.store))
    assert stored.tags == "TagA"


def respelled(command: RemotingCommand, spell: Callable[[str], str]) -> bytes:
    frame = encode_command(command)
    header_bytes = int.from_bytes(frame[5:8], "big")
    header = spell(frame[8 : 8 + header_bytes].decode()).encode()
    body = frame[8 + header_bytes :]
    return struct.pack(">iI", 4 + len(header) + len(body), len(header)) + header + body


def last_place(store: Store) -> int:
    end = store.queue_range("Alpha", 0).max_offset
    [entry] = store.queue_entries("Alpha", 0, end - 1, end)
    return int(entry["commit_log_offset"])


def odd(number: int) -> bytes:
    return encode_command(sent(1, **ODD[number]))


def without(name: str) -> bytes:
    command = sent(1)
    del command.ext_fields[name]
    return encode_command(command)


def torn(size: int) -> bytes:
    return encode_command(sent(1))[:size]


LEFT: dict[str, Callable[[], bytes]] = {
    **{f"odd{number}": partial(odd, number) for number in range(len(ODD)) if number not in USUAL},
    "oneway": lambda: encode_command(replace(sent(1), flag=ONEWAY_FLAG)),
    "another code": lambda: encode_command(replace(sent(1), code=RequestCode.SEND_MESSAGE)),
    "a batch": lambda: encode_command(replace(sent(1), code=RequestCode.SEND_BATCH_MESSAGE)),
    "binary": lambda: encode_command(replace(sent(1), serialize_type=SerializeType.ROCKETMQ)),
    "a remark": lambda: encode_command(replace(sent(1), remark="x")),
    "no key": lambda: encode_command(sent(1, i="TAGS\x01TagA\x02")),
    "no properties": lambda: encode_command(sent(1, i="")),
    "another queue": lambda: encode_command(sent(1, "Beta")),
    "large": lambda: encode_command(sent(1, body=bytes(FRAME_BYTES_MAX))),
    "more than maxMessageSize": lambda: encode_command(sent(1, body=bytes(5000))),
    "compressed": lambda: encode_command(sent(1, f=1)),
    "spaces": lambda: respelled(sent(1), lambda text: text.replace(":", ": ", 1)),
    "twice": lambda: respelled(sent(1), lambda text: text.replace('"flag":0', '"flag":0,"flag":0')),
    "a field twice": lambda: respelled(sent(1), lambda text: text.replace('"h":"0"', '"h":"0","h":"0"')),
    "a number": lambda: respelled(sent(1), lambda text: text.replace('"h":"0"', '"h":0')),
    "a surrogate": lambda: respelled(sent(1), lambda text: text.replace("TagA", "\\ud800")),
    "an escape that is none": lambda: respelled(sent(1), lambda text: text.replace("TagA", "\\x")),
    "cut": lambda: respelled(sent(1), lambda text: text[:-1]),
    "more behind it": lambda: respelled(sent(1), lambda text: text + " "),
    **{f"without {name}": partial(without, name) for name in "abcdefgh"},
    **{f"torn at {size}": partial(torn, size) for size in (0, 3, 7, 8, 9, 40, 300)},
}  # fmt: skip


@pytest.mark.parametrize("what", LEFT)
def test_what_is_unusual_is_left_as_it_was(side: Side, what: str) -> None:
    before = side.words()
    assert side.served(LEFT[what]()) == (0, b"")
    assert side.words() == before and not side.woken
    first = encode_command(sent(2))
    assert side.served(first + LEFT[what]())[0] == len(first), "what is before it is served"


def test_the_usual_ones_of_the_odd_are_served(side: Side) -> None:
    """The test above would say nothing of fields that no request may have."""
    for number in USUAL:
        frame = odd(number)
        assert side.served(frame)[0] == len(frame), ODD[number]


def test_no_more_than_64_are_served_by_one_call(side: Side) -> None:
    frames = [encode_command(sent(number)) for number in range(70)]
    assert side.served(b"".join(frames))[0] == sum(map(len, frames[:64]))


def topic_changed(side: Side) -> None:
    side.store.create_topic("New", 1)


def topic_deleted(side: Side) -> None:
    side.store.admin.delete_topic("Alpha")


def locked(side: Side) -> None:
    side.store._log.append_lock.claim.take((1, None))


def flushing(side: Side) -> None:
    side.store._log.writing_page.flushing = 1


def files_forgotten(side: Side) -> None:
    side.store._log.files.clear()


def closed(side: Side) -> None:
    side.store.close()


@pytest.mark.parametrize("happens", [topic_changed, topic_deleted, locked, flushing, files_forgotten, closed])
def test_in_an_unusual_moment_nothing_is_served(side: Side, happens: Callable[[Side], None]) -> None:
    happens(side)
    assert side.served(encode_command(sent(1))) == (0, b"")
    side.store._log.append_lock.claim.give_up()


def test_a_full_disk_and_a_late_flush_are_for_the_processors(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: DiskSpace) -> None:
        raise StoreFullError("the disk is full")

    frame = encode_command(sent(1))
    with monkeypatch.context() as patched:
        patched.setattr(DiskSpace, "check", full)
        assert side.served(frame) == (0, b"")
    with monkeypatch.context() as patched:
        patched.setattr(type(side.store._flusher), "is_late", True)
        assert side.served(frame) == (0, b"")
    assert side.served(frame)[0] == len(frame)


# -- a server ---------------------------------------------------------------------------------------------------------


class Seen(list[Served]):
    """What was served from its bytes."""

    @property
    def count(self) -> int:
        return sum(len(FrameDecoder().feed(one.answers)) for one in self)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found = Seen()
    serve = SentRequests.serve

    def noted(sends: SentRequests, data: memoryview, born_host: str) -> Served | None:
        served = serve(sends, data, born_host)
        if served is not None:
            found.append(served)
        return served

    monkeypatch.setattr(SentRequests, "serve", noted)
    return found


@pytest.fixture
def server(scratch: Path, small: StoreConfig, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerServer]:
    patient = {name: (*figures[:2], 1000 * PATIENCE_S) for name, figures in services._FIGURES.items()}
    monkeypatch.setattr(services, "_FIGURES", patient)
    # However slow the machine is: nothing waits for a flush, and a slow send does not end those at once.
    for name in ("_TURN_S", "_SLOW_S"):
        monkeypatch.setattr(at_once, name, PATIENCE_S)
    for module in (local_broker, sending):
        monkeypatch.setattr(module, "PAGE_CACHE_BUSY_MS", 60_000)
    for held in (HeldPulls, HeldPops):
        monkeypatch.setattr(held, "look_s", PATIENCE_S)
    config = replace(small, flush_interval_commit_log=10**9)
    with BrokerServer(scratch / "store", config=config, create=True) as server:
        ready(server)
        seen.clear()
        yield server


def ready(server: BrokerServer) -> None:
    """Two queues of Alpha have a message, and are known, whether the pool took those messages together or not."""
    server.store.create_topic("Alpha", 2)
    assert {one.code for one in answers(server, sent(1), sent(2, e=1))} == {0}
    eventually(lambda: server._pools.send.is_idle)
    assert server._dispatcher is not None
    serve: Any = server._dispatcher._services[RequestCode.SEND_MESSAGE_V2].of_bytes
    for queue_id in (0, 1) if serve is not None else ():
        serve.__self__._sent_requests.learn("Alpha", queue_id, server.store.topics())


def eventually(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.005)


def answers(server: BrokerServer, *commands: RemotingCommand, pieces: int = 1) -> list[RemotingCommand]:
    """In their order. The requests are sent in one piece, or in so many."""
    host, _, port = server.address.rpartition(":")
    decoder, found = FrameDecoder(), list[RemotingCommand]()
    data = b"".join(map(encode_command, commands))
    with socket.create_connection((host, int(port)), PATIENCE_S) as client:
        for piece in range(pieces):
            client.sendall(data[len(data) * piece // pieces : len(data) * (piece + 1) // pieces])
            time.sleep(0.02 * (pieces > 1))
        while len(found) < len(commands):
            found += decoder.feed(client.recv(1 << 16))
    return found


def test_sends_of_a_client_are_served_and_pulled(server: BrokerServer, seen: Seen) -> None:
    found = answers(server, *(sent(number) for number in range(1, 9)))
    assert [one.opaque for one in found] == list(range(1, 9)) and {one.code for one in found} == {0}
    assert seen.count == 8
    assert bodies(server.store) == [b"%d" % number for number in range(1, 9)]
    stored = server.store.message_at(last_place(server.store))
    assert stored.born_host.address == bytes((127, 0, 0, 1)) and stored.born_host.port != 0


@pytest.mark.parametrize("pieces", [2, 3, 7])
def test_frames_in_pieces_are_answered_in_their_order(server: BrokerServer, pieces: int) -> None:
    found = answers(server, *(sent(number) for number in range(1, 9)), pieces=pieces)
    assert {one.code for one in found} == {0}
    assert bodies(server.store) == [b"%d" % number for number in range(1, 9)]


def test_an_unusual_send_keeps_its_place_among_the_others(server: BrokerServer, seen: Seen) -> None:
    odd = sent(2, i=properties_of(KEY, TAGS="T\u00e4g"))
    answers(server, sent(1), odd, sent(3), sent(4))
    assert bodies(server.store) == [b"1", b"2", b"3", b"4"]
    assert seen.count == 1, "what comes behind an unusual one goes its way"


def test_while_the_pool_is_busy_none_is_served(server: BrokerServer, seen: Seen) -> None:
    """A send that waits there may be one of the same client."""
    goes_on, found = threading.Event(), list[RemotingCommand]()
    pool = server._pools.send

    def work() -> None:
        goes_on.wait(PATIENCE_S)

    assert pool.submit(Work(float("inf"), work, work))
    client = threading.Thread(target=lambda: found.extend(answers(server, sent(1))))
    client.start()
    try:
        eventually(lambda: len(pool._waiting) >= 1 or seen)
        assert not seen
    finally:
        goes_on.set()
        client.join()
    assert [one.code for one in found] == [0] and bodies(server.store) == [b"1"]


def test_a_body_that_looks_like_a_request_is_none(server: BrokerServer, seen: Seen) -> None:
    """It comes in a piece of its own."""
    inner = encode_command(sent(7))
    frame = encode_command(sent(1, body=inner))
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as client:
        client.sendall(frame[: -len(inner)])
        eventually(lambda: server._listener.incomplete.count)
        client.sendall(inner)
        [answer] = FrameDecoder().feed(client.recv(1 << 16))
    assert (answer.opaque, answer.code) == (1, 0) and not seen
    assert bodies(server.store) == [inner]


def test_a_served_send_answers_a_held_pull_at_once(
    server: BrokerServer, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[str] = []
    read = PullProcessor._read

    def noted(*given: object) -> object:
        readers.append(threading.current_thread().name)
        return read(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(PullProcessor, "_read", noted)
    with Connection(server.address) as consumer:
        fields = requests.pull_fields(
            "Alpha", offset=1, sys_flag=requests.SUBSCRIPTION_FLAG | requests.SUSPEND_FLAG, suspend_ms=30_000
        )
        opaque = consumer.send(RequestCode.PULL_MESSAGE, fields)
        eventually(lambda: server._holds.count(("Alpha", 0)) == 1 and not server._holds._marked)
        assert answers(server, sent(1))[0].code == 0
        assert consumer.answer(opaque).code == 0
    assert seen.count == 1 and set(readers) == {"rmq-listener"}


def test_a_served_send_wakes_a_held_pop(server: BrokerServer, seen: Seen) -> None:
    header = PopMessageRequestHeader(
        consumer_group="cg", topic="Alpha", queue_id=-1, max_msg_nums=32, invisible_time=300_000, poll_time=50_000,
        born_time=int(time.time() * 1000), init_mode=0, exp_type="TAG", exp="*",
    )  # fmt: skip
    with Connection(server.address) as consumer:
        assert consumer.ask(RequestCode.POP_MESSAGE, header.to_ext()).code == 0  # what is there already
        waits = consumer.send(RequestCode.POP_MESSAGE, header.to_ext())
        eventually(lambda: server._held_pops._count == 1 and not server._held_pops._marked)
        assert answers(server, sent(1))[0].code == 0
        assert b"%032X" % 1 in consumer.answer(waits).body
    assert seen.count == 1


def test_where_there_are_users_each_request_is_decoded(scratch: Path, small: StoreConfig, seen: Seen) -> None:
    users = scratch / "users.toml"
    users.write_text('[[user]]\naccess_key = "u"\nsecret_key = "secret-key"\nadmin = true\n')
    users.chmod(0o600)
    with BrokerServer(scratch / "store", config=small, create=True, acl_file=users) as server:
        server.store.create_topic("Alpha", 2)
        assert answers(server, sent(1))[0].code != 0
        assert server._listener.serve is None and not seen


def test_where_frames_must_be_smaller_each_one_is_decoded(scratch: Path, small: StoreConfig) -> None:
    limits = ListenerLimits(frame_bytes_max=FRAME_BYTES_MAX - 1)
    with BrokerServer(scratch / "store", config=small, create=True, limits=limits) as server:
        assert server._listener.serve is None


def test_with_sync_flush_a_send_waits_in_its_pool(scratch: Path, small: StoreConfig, seen: Seen) -> None:
    config = replace(small, flush_disk_type="SYNC_FLUSH")
    with BrokerServer(scratch / "store", config=config, create=True) as server:
        ready(server)
        assert {one.code for one in answers(server, sent(1), sent(2))} == {0}
        assert not seen and server.store._log.writing_page.flushed_end == server.store.log_range()[1]
