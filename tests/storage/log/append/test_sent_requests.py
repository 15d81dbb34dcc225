"""Several requests of one read are appended under one lock: killed or interrupted at each step, each message is there
whole or not at all, and none behind one that is not.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from rmq_store import Message, Store
from rmq_store.broker.write.sent_requests import SentRequests
from rmq_store.errors import StoreFullError
from rmq_store.files.locks.lock import OfdLock
from rmq_store.format.bytes import native
from rmq_store.log.append import append as append_module
from rmq_store.log.append import lone_append
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.frames import encode_command
from rmq_store.protocol.wire.request_codes import RequestCode

if TYPE_CHECKING:
    from ..conftest import Lab

pytestmark = pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")

ANSWER = tuple(b"<%d>" % part for part in range(6))
CLIENT = "10.1.2.3:999"
# Of one message with two keys, UNIQ_KEY among them: seven words, three writes in two halves, two slots, the header.
STEPS_OF_ONE = 7 + 6 + 2 + 1
PUBLISHES = STEPS_OF_ONE - 3
"""`appended_end`; the two words behind it say less."""
STEPS = 2 * STEPS_OF_ONE


@pytest.fixture(autouse=True)
def unwatched(lab: Lab) -> Iterator[None]:
    lab.config = replace(lab.config, mapped_file_size_consume_queue=20 * 500)
    yield
    lone_append.watch = None


def body(number: int) -> bytes:
    return b"%08d" % number + b"." * 40


def sent(number: int, queue_id: int = 0) -> bytes:
    fields = {
        "a": "tests", "b": "Alpha", "c": "TBW102", "d": "4", "e": f"{queue_id}", "f": "0", "g": "1700000000000",
        "h": "0", "i": f"UNIQ_KEY\x01{number:032X}\x02KEYS\x01K{number}\x02",
    }  # fmt: skip
    return encode_command(RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, body(number), number))


def requests_of(store: Store) -> SentRequests:
    """Two messages make the files of the queue known."""
    for number in range(2):
        store.send(Message("Alpha", body(number), keys=f"K{number}", queue_id=0))
    sends = store.sent_requests(ANSWER)
    sends.learn("Alpha", 0, store.topics())
    return sends


def serve(sends: SentRequests, *numbers: int) -> int:
    """How many bytes of the requests were taken."""
    served = sends.serve(memoryview(b"".join(map(sent, numbers))), CLIENT)
    return served.end if served is not None else 0


def opened(lab: Lab) -> Store:
    store = lab.open()
    store.create_topic("Alpha", 1)
    return store


class AtStep:
    def __init__(self, k: int, act: Callable[[], object]) -> None:
        self._k = k
        self._act = act
        self.steps: list[tuple[str, str]] = []

    def __call__(self, operation: str, target: str, fd: int, position: int, data: bytes) -> None:
        self.steps.append((operation, target))
        if len(self.steps) == self._k + 1:
            self._act()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def published_before(k: int) -> int:
    """How many of two messages are visible before step k."""
    return (k > PUBLISHES) + (k > STEPS_OF_ONE + PUBLISHES)


def test_two_messages_take_the_steps_of_two_appends(lab: Lab) -> None:
    with opened(lab) as store:
        sends = requests_of(store)
        lone_append.watch = watch = AtStep(-1, die)
        assert serve(sends, 2, 3) == len(sent(2)) + len(sent(3))
        assert len(watch.steps) == STEPS and watch.steps[:STEPS_OF_ONE] == watch.steps[STEPS_OF_ONE:]
        assert watch.steps[PUBLISHES] == ("store", "appended_end")
        assert lab.numbers(store) == [0, 1, 2, 3] and lab.is_sound()


def test_the_answers_have_the_places_of_the_messages(lab: Lab) -> None:
    with opened(lab) as store:
        sends = requests_of(store)
        start = store.log_range()[1]
        served = sends.serve(memoryview(sent(2) + sent(3)), CLIENT)
        assert served is not None
        first = store.queue_entries("Alpha", 0, 2, 4)
        places = [int(entry["commit_log_offset"]) for entry in first]
        assert places[0] == start
        host = store.send(Message("Alpha", body(4), queue_id=0)).offset_msg_id[:-16]
        wanted = [
            b"<0>%s%016X<1>0<2>%d<3>%032X<4>%d<5>" % (host.encode(), place, number, number, number)
            for number, place in zip((2, 3), places, strict=True)
        ]
        found = served.answers
        for header in wanted:
            assert int.from_bytes(found[:4], "big") == 4 + len(header)
            assert int.from_bytes(found[4:8], "big") == len(header)
            assert found[8 : 8 + len(header)] == header
            found = found[8 + len(header) :]
        assert not found


@pytest.mark.long
@pytest.mark.parametrize("k", range(STEPS))
def test_killed_before_a_step_what_was_published_is_there(lab: Lab, k: int) -> None:
    with opened(lab):
        pass

    def work() -> None:
        sends = requests_of(lab.open())
        lone_append.watch = AtStep(k, die)
        serve(sends, 2, 3)

    assert lab.in_child(work) == -signal.SIGKILL
    with lab.open() as store:
        assert lab.numbers(store) == [0, 1, 2, 3][: 2 + published_before(k)]
        assert lab.is_sound()
        assert store.send(Message("Alpha", body(7), queue_id=0)).queue_offset == 2 + published_before(k)
    assert lab.is_sound()


@pytest.mark.long
@pytest.mark.parametrize("k", range(0, STEPS, 3))
def test_another_writer_undoes_what_a_killed_server_left(lab: Lab, k: int) -> None:
    with opened(lab) as store:

        def work() -> None:
            sends = requests_of(lab.open())
            lone_append.watch = AtStep(k, die)
            serve(sends, 2, 3)

        assert lab.in_child(work) == -signal.SIGKILL
        store.send(Message("Alpha", body(7), queue_id=0))
        assert store._log.writing_page.intent is None
        assert lab.numbers(store) == [*[0, 1, 2, 3][: 2 + published_before(k)], 7]
        assert lab.is_sound()


def test_without_the_undo_the_second_of_two_is_seen(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above have teeth."""
    with opened(lab) as store:

        def work() -> None:
            sends = requests_of(lab.open())
            lone_append.watch = AtStep(STEPS_OF_ONE + PUBLISHES, die)
            serve(sends, 2, 3)

        assert lab.in_child(work) == -signal.SIGKILL
        monkeypatch.setattr(append_module, "undo", lambda log: setattr(log.writing_page, "intent_end", 0))
        intended = store._log.writing_page.intent
        assert intended is not None
        store._log.segments.write(intended[0], bytes(8))
        store.send(Message("Alpha", body(7), queue_id=0))
        assert not lab.is_sound()


@pytest.mark.parametrize("k", range(STEPS))
def test_an_error_in_the_middle_is_typed_and_nothing_half_stays(lab: Lab, k: int) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with opened(lab) as store:
        sends = requests_of(store)
        lone_append.watch = AtStep(k, fail)
        with pytest.raises(StoreFullError):
            serve(sends, 2, 3)
        lone_append.watch = None
        assert store._log.writing_page.intent is None
        assert lab.numbers(store) == [0, 1, 2, 3][: 2 + published_before(k)]
        other = OfdLock(store._log.append_lock.path)
        assert other.try_exclusive(), "the lock is free"
        other.close()
        store.send(Message("Alpha", body(7), queue_id=0))
        assert lab.is_sound()


def test_where_a_file_is_full_the_rest_is_left(lab: Lab) -> None:
    """The segment has 8 KiB: the message that does not fit begins the next one, by Python."""
    with opened(lab) as store:
        sends = requests_of(store)
        number = 2
        while taken := serve(sends, *range(number, number + 3)):
            number += taken // len(sent(number))
        assert number > 10
        store.send(Message("Alpha", body(number), keys=f"K{number}", queue_id=0))
        assert serve(sends, number + 1) == 0, "its files are to be found anew"
        sends.learn("Alpha", 0, store.topics())
        assert serve(sends, number + 1)
        assert lab.numbers(store) == list(range(number + 2)) and lab.is_sound()
